//! The aggregation oracles Agg of Algorithm 1: many points in, one point out.
//!
//! A point is a row of p numbers: a feature sum v_i, or a Gram matrix V_i packed so that ℓ2 is its Frobenius norm
//! ([`crate::math::symmetric`]). One oracle therefore serves matrices and vectors.

mod coordinate;
mod geometric_median;
mod krum;
mod mean;
mod median_of_means;
mod points;
pub mod table;

pub(crate) use coordinate::median;
pub use coordinate::{CoordinateMedian, TrimmedMean};
#[doc(hidden)]
pub use geometric_median::pass;
pub use geometric_median::{GeometricMedian, Tolerance, certify};
pub use krum::{Krum, MultiKrum};
pub use mean::Mean;
pub use median_of_means::{Groups, GroupsError, MedianOfMeans};
pub use points::{MAGNITUDE, Points, ShapeError};

use std::ops::Range;

use thiserror::Error;

/// An aggregation oracle.
///
/// It is `&mut` because an oracle may remember where its last answer was, to start there next time; what it answers is
/// determined by the points, within its tolerance.
pub trait Aggregator {
    /// The oracle's answer for these points.
    ///
    /// # Errors
    /// The rule is not defined for so many points with so many of them corrupted.
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError>;
}

impl<A: Aggregator + ?Sized> Aggregator for Box<A> {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        (**self).aggregate(points)
    }
}

/// What an oracle answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Aggregate {
    /// ẑ.
    pub point: Vec<f64>,
    /// g(ẑ), the mean distance from ẑ to the points.
    pub objective: f64,
    /// A proven bound on g(ẑ) − min g: how good ẑ is as a geometric median.
    pub certified_gap: f64,
    /// How many times the rule read all points.
    pub passes: u32,
}

/// Why an oracle cannot answer.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum AggregateError {
    /// There is no point.
    #[error("there is nothing to aggregate")]
    Empty,
    /// More corrupted points than the rule can bear.
    #[error("{rule} of {n} points cannot bear {f} corrupted ones: {needs}")]
    TooCorrupted {
        /// The rule's name.
        rule: &'static str,
        /// n, the number of points.
        n: usize,
        /// f, how many of them may be corrupted.
        f: usize,
        /// What the rule asks for.
        needs: &'static str,
    },
    /// Another number of points than the groups were drawn for.
    #[error("the groups were drawn for {expected} points, not {actual}")]
    WrongNumber {
        /// The number of points that were grouped.
        expected: usize,
        /// The number of points that came.
        actual: usize,
    },
}

/// f = ⌊share·n⌋ as decimals have it: 29 for 0.29 of 100, whose product in f64 is a rounding error below.
pub fn corrupted(share: f64, n: usize) -> usize {
    (share * n as f64 * (1.0 + 4.0 * f64::EPSILON)) as usize
}

/// The ⌈n/2⌉-th smallest of n numbers, 0 of none. Fewer than half of them, if corrupted, cannot move it beyond the
/// largest of the others.
pub fn lower_median(mut values: Vec<f64>) -> f64 {
    middle_pair(&mut values).map_or(0.0, |[lower, _]| lower)
}

/// Returns the ⌈n/2⌉-th and the (⌊n/2⌋ + 1)-th smallest of n numbers: twice the same for odd n, `None` for n = 0.
///
/// Reorders the numbers.
fn middle_pair(values: &mut [f64]) -> Option<[f64; 2]> {
    let n = values.len();
    if n == 0 {
        return None;
    }
    let (below, upper, _) = values.select_nth_unstable_by(n / 2, f64::total_cmp);
    let lower = below.iter().filter(|_| n.is_multiple_of(2)).max_by(|a, b| a.total_cmp(b));
    Some([*lower.unwrap_or(upper), *upper])
}

/// g(z), the mean distance from z to the points.
pub fn objective(points: &Points<'_>, z: &[f64]) -> f64 {
    // Dividing first keeps the sum finite for all magnitudes.
    points.rows().map(|row| distance(row, z) / points.len() as f64).sum()
}

/// ‖x − z‖₂, without overflow or underflow on the way.
pub fn distance(x: &[f64], z: &[f64]) -> f64 {
    if let Some(distance) = root(squared_distance(x, z)) {
        return distance;
    }
    let largest = x.iter().zip(z).map(|(x, z)| (x - z).abs()).fold(0.0, f64::max);
    if largest == 0.0 {
        return 0.0;
    }
    let squares: f64 = x.iter().zip(z).map(|(x, z)| ((x - z) / largest).powi(2)).sum();
    largest * squares.sqrt()
}

/// ‖x‖₂, where no square overflows or underflows.
pub(crate) fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// ‖x − z‖₂², which may overflow or underflow. Eight sums at a time, because one would wait for each addition.
fn squared_distance(x: &[f64], z: &[f64]) -> f64 {
    let ((x, x_rest), (z, z_rest)) = (x.as_chunks::<8>(), z.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (x, z) in x.iter().zip(z) {
        for l in 0..8 {
            sums[l] += (x[l] - z[l]) * (x[l] - z[l]);
        }
    }
    let rest: f64 = x_rest.iter().zip(z_rest).map(|(x, z)| (x - z) * (x - z)).sum();
    sums.iter().sum::<f64>() + rest
}

/// Sums of squares that no overflow or underflow can have spoilt.
const SQUARES: Range<f64> = 1e-280..1e300;

fn root(squares: f64) -> Option<f64> {
    SQUARES.contains(&squares).then(|| squares.sqrt())
}
