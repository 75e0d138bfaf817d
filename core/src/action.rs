//! Actions: points of the unit ball.

use nalgebra::SVector;

use crate::error::ActionError;
use crate::kernel::dot;

/// Action x of a decision set: a feature vector with ‖x‖₂ ≤ 1.
///
/// A column vector of `nalgebra`, with its arithmetic. An array `[f32; D]` is accepted wherever an action is.
/// [`Agent::select`](crate::Agent::select) and [`Agent::record`](crate::Agent::record) check the norm. [`project`] scales any
/// finite vector into range.
pub type Action<const D: usize> = SVector<f32, D>;

/// An [`Action`] or an array of its D entries, or a reference to either.
pub trait AsAction<const D: usize> {
    /// Returns the entries.
    fn as_action(&self) -> &[f32; D];
}

impl<const D: usize> AsAction<D> for [f32; D] {
    #[inline(always)]
    fn as_action(&self) -> &[f32; D] {
        self
    }
}

impl<const D: usize> AsAction<D> for Action<D> {
    #[inline(always)]
    fn as_action(&self) -> &[f32; D] {
        let [x] = &self.data.0;
        x
    }
}

impl<A: AsAction<D>, const D: usize> AsAction<D> for &A {
    #[inline(always)]
    fn as_action(&self) -> &[f32; D] {
        (**self).as_action()
    }
}

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
/// assert_eq!(project(&[3.0, 4.0]), Action::from([0.6, 0.8]));
/// assert_eq!(project(&[0.3, 0.4]), Action::from([0.3, 0.4]));
/// ```
pub fn project<const D: usize>(action: &impl AsAction<D>) -> Action<D> {
    let x = action.as_action();
    // Division by the largest entry first keeps squares from overflowing.
    let largest = x.iter().fold(0.0_f32, |max, x| if x.abs() > max { x.abs() } else { max });
    if largest <= 1.0 && dot(x, x) <= 1.0 {
        return Action::from(*x);
    }
    let scaled = x.map(|x| x / largest);
    let norm = libm::sqrtf(dot(&scaled, &scaled));
    Action::from(scaled.map(|x| x / norm))
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
