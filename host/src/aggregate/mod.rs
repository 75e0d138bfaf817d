//! Aggregation oracles Agg of Algorithm 1, from many points to one.
//!
//! A point is a row of p numbers: a feature sum v_i, or a Gram matrix V_i packed so that the ℓ2 norm is its Frobenius
//! norm ([`crate::math::symmetric`]). One oracle therefore serves matrices and vectors.

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

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Aggregation oracle.
///
/// It takes `&mut self` so that it can start from its last answer. The points alone determine the answer, within the
/// oracle's tolerance.
pub trait Aggregator {
    /// Aggregates the points.
    ///
    /// # Errors
    /// The rule is undefined for this number of points and of corrupted points.
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError>;

    /// Returns the state from which the next call starts.
    fn warm_start(&self) -> WarmStart {
        WarmStart::default()
    }

    /// Restores the state of [`warm_start`](Self::warm_start): the next answer has the same bits as that of the saved oracle.
    fn set_warm_start(&mut self, _start: WarmStart) {}
}

impl<A: Aggregator + ?Sized> Aggregator for Box<A> {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        (**self).aggregate(points)
    }

    fn warm_start(&self) -> WarmStart {
        (**self).warm_start()
    }

    fn set_warm_start(&mut self, start: WarmStart) {
        (**self).set_warm_start(start);
    }
}

/// State from which an oracle or a rule starts its next search. Empty before the first answer, and if nothing is searched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WarmStart {
    /// Vectors of the search itself.
    pub vectors: Vec<Vec<f64>>,
    /// States of the searches that it consists of.
    pub parts: Vec<Self>,
}

impl WarmStart {
    /// Combines the states of several searches.
    pub fn of_parts<const N: usize>(parts: [Self; N]) -> Self {
        Self { vectors: Vec::new(), parts: parts.into() }
    }

    /// Returns the states of several searches, all of them empty if there is another number of them.
    pub fn into_parts<const N: usize>(self) -> [Self; N] {
        self.parts.try_into().unwrap_or_else(|_| std::array::from_fn(|_| Self::default()))
    }
}

/// Answer of an oracle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aggregate {
    /// ẑ.
    pub point: Vec<f64>,
    /// g(ẑ), the mean distance from ẑ to the points.
    pub objective: f64,
    /// Proven bound on g(ẑ) − min g, the quality of ẑ as a geometric median.
    pub certified_gap: f64,
    /// Number of times that the rule read all points.
    pub passes: u32,
}

/// Error returned by [`Aggregator::aggregate`].
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum AggregateError {
    /// No points.
    #[error("no points to aggregate")]
    Empty,
    /// More corrupted points than the rule tolerates.
    #[error("{rule} is undefined for {n} points, {f} of them corrupted: {needs}")]
    TooCorrupted {
        /// Name of the rule.
        rule: &'static str,
        /// n, the number of points.
        n: usize,
        /// f, the number of points that may be corrupted.
        f: usize,
        /// Requirement of the rule.
        needs: &'static str,
    },
    /// The number of points differs from the number that groups were drawn for.
    #[error("groups were drawn for {expected} points, got {actual}")]
    WrongNumber {
        /// Number of grouped points.
        expected: usize,
        /// Number of points to aggregate.
        actual: usize,
    },
}

/// Returns f = ⌊share·n⌋ in decimal arithmetic: 29 for 0.29 of 100, although the product in f64 is slightly below 29.
pub fn corrupted(share: f64, n: usize) -> usize {
    (share * n as f64 * (1.0 + 4.0 * f64::EPSILON)) as usize
}

/// Returns the ⌈n/2⌉-th smallest of n numbers, or 0 for n = 0. Fewer than half of the numbers cannot move it beyond the
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

/// Returns g(z), the mean distance from z to the points.
pub fn objective(points: &Points<'_>, z: &[f64]) -> f64 {
    // Dividing first keeps the sum finite.
    points.rows().map(|row| distance(row, z) / points.len() as f64).sum()
}

/// Returns ‖x − z‖₂ without intermediate overflow or underflow.
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

/// Returns ‖x‖₂ for values whose squares neither overflow nor underflow.
pub(crate) fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Returns ‖x − z‖₂², which may overflow or underflow. Eight independent sums hide the latency of additions.
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

/// Range of sums of squares that are unaffected by overflow and underflow.
const SQUARES: Range<f64> = 1e-280..1e300;

fn root(squares: f64) -> Option<f64> {
    SQUARES.contains(&squares).then(|| squares.sqrt())
}
