//! Actions: points of the unit ball.

use nalgebra::SVector;

use crate::error::ActionError;
use crate::kernel::dot;

/// An action x of a decision set: a feature vector with ‖x‖₂ ≤ 1.
///
/// It is `nalgebra`'s column vector, so features are built with its arithmetic; an array converts by
/// `Action::from([…])`. The norm is checked where an action is used, by
/// [`Agent::select`](crate::Agent::select) and [`Agent::record`](crate::Agent::record);
/// [`project`] makes any finite vector fit.
pub type Action<const D: usize> = SVector<f32, D>;

/// The largest ‖x‖₂² that passes as "at most one", computed in f32: 1 + (D + 8)·2⁻²³.
///
/// A vector that was scaled to unit length in f32 arithmetic misses 1 by up to (D + 7)·2⁻²⁴ relative, and computing
/// its squared norm errs by D·2⁻²⁴ more; both fit below this limit.
/// [`rounding`](crate::rounding) carries the slack on to the controller.
pub const fn norm_squared_limit(dimension: usize) -> f32 {
    1.0 + (dimension as f32 + 8.0) * f32::EPSILON
}

/// Scales an action that is too long back to the unit sphere; leaves every other action as it is.
///
/// To accept decision sets that do not keep to the unit ball, hand in
/// `decision_set.iter().map(project)` and record the projected action too. Entries that are not finite stay so and are refused later.
///
/// ```
/// use fedbandit_core::{Action, project};
/// assert_eq!(project(&Action::from([3.0, 4.0])), Action::from([0.6, 0.8]));
/// assert_eq!(project(&Action::from([0.3, 0.4])), Action::from([0.3, 0.4]));
/// ```
pub fn project<const D: usize>(action: &Action<D>) -> Action<D> {
    // Divided by its largest entry first, so that no square overflows.
    let largest = action.iter().fold(0.0_f32, |max, x| if x.abs() > max { x.abs() } else { max });
    if largest <= 1.0 && dot(entries(action), entries(action)) <= 1.0 {
        return *action;
    }
    let scaled = action.map(|x| x / largest);
    let norm = libm::sqrtf(dot(entries(&scaled), entries(&scaled)));
    scaled.map(|x| x / norm)
}

/// ‖x‖₂ ≤ 1 and every entry finite: one comparison decides, since a NaN or an infinity makes the
/// squared norm fail it as well.
#[inline(always)]
pub(crate) fn check<const D: usize>(x: &[f32; D]) -> Result<(), ActionError> {
    if dot(x, x) <= const { norm_squared_limit(D) } { Ok(()) } else { Err(refuse(x)) }
}

#[cold]
#[inline(never)]
pub(crate) fn refuse(x: &[f32]) -> ActionError {
    if x.iter().all(|entry| entry.is_finite()) { ActionError::NormAboveOne } else { ActionError::NotFinite }
}

/// The action as an array.
#[inline(always)]
pub(crate) fn entries<const D: usize>(action: &Action<D>) -> &[f32; D] {
    let [x] = &action.data.0;
    x
}
