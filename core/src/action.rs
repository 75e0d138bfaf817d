//! Actions: points of the unit ball.

use nalgebra::SVector;

use crate::error::ActionError;
use crate::kernel::dot;

/// Action x of a decision set: a feature vector with ‖x‖₂ ≤ 1.
///
/// A column vector of `nalgebra`, with its arithmetic; `Action::from([…])` converts an array.
/// [`Agent::select`](crate::Agent::select) and [`Agent::record`](crate::Agent::record) check the norm. [`project`] scales any
/// finite vector into range.
pub type Action<const D: usize> = SVector<f32, D>;

/// Largest ‖x‖₂², computed in f32, that is accepted as "at most one": 1 + (D + 8)·2⁻²³.
///
/// A vector that was scaled to unit length in f32 arithmetic misses 1 by up to (D + 7)·2⁻²⁴ relative, and computing
/// its squared norm errs by D·2⁻²⁴ more; both fit below this limit.
/// The controller's tolerance, [`rounding::sums`](crate::rounding::sums), includes this slack.
pub const fn norm_squared_limit(dimension: usize) -> f32 {
    1.0 + (dimension as f32 + 8.0) * f32::EPSILON
}

/// Scales a vector with norm above 1 back to the unit sphere; returns any other vector unchanged.
///
/// For features outside the unit ball, pass `decision_set.iter().map(project)` to `select` and record the projected action.
/// A vector with NaN or infinite entries stays invalid and is rejected later.
///
/// ```
/// use fedbandit_core::{Action, project};
/// assert_eq!(project(&Action::from([3.0, 4.0])), Action::from([0.6, 0.8]));
/// assert_eq!(project(&Action::from([0.3, 0.4])), Action::from([0.3, 0.4]));
/// ```
pub fn project<const D: usize>(action: &Action<D>) -> Action<D> {
    // Division by the largest entry first keeps squares from overflowing.
    let largest = action.iter().fold(0.0_f32, |max, x| if x.abs() > max { x.abs() } else { max });
    if largest <= 1.0 && dot(entries(action), entries(action)) <= 1.0 {
        return *action;
    }
    let scaled = action.map(|x| x / largest);
    let norm = libm::sqrtf(dot(entries(&scaled), entries(&scaled)));
    scaled.map(|x| x / norm)
}

/// Validates that ‖x‖₂ ≤ 1 and every entry is finite. A NaN or an infinity fails the comparison of the squared norm too.
#[inline(always)]
pub(crate) fn check<const D: usize>(x: &[f32; D]) -> Result<(), ActionError> {
    if dot(x, x) <= const { norm_squared_limit(D) } { Ok(()) } else { Err(rejection(x)) }
}

/// Reason why [`check`] rejects x.
#[cold]
#[inline(never)]
pub(crate) fn rejection(x: &[f32]) -> ActionError {
    if x.iter().all(|entry| entry.is_finite()) { ActionError::NormAboveOne } else { ActionError::NotFinite }
}

/// Returns the action's entries as an array.
#[inline(always)]
pub(crate) fn entries<const D: usize>(action: &Action<D>) -> &[f32; D] {
    let [x] = &action.data.0;
    x
}
