//! The geometric median of group means, the oracle of Byzantine-UCB-DP-MoM.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "groups are drawn from a seed that is given")]

use rand_pcg::Pcg64;
use rand_pcg::rand_core::SeedableRng;
use thiserror::Error;

use super::mean::Divisor;
use super::{Aggregate, AggregateError, Aggregator, GeometricMedian, Points, Tolerance, WarmStart};
use crate::math::rng::below;

/// Partition of n points into P groups of sizes ⌊n/P⌋ and ⌈n/P⌉, drawn uniformly from a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    group_of: Vec<usize>,
    count: usize,
}

/// Error returned by the constructors of [`Groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GroupsError {
    /// No group, or an empty one.
    #[error("cannot split {n} points into {groups} groups; expected from 1 to {n}")]
    Count {
        /// n, the number of points.
        n: usize,
        /// P, the number of groups.
        groups: usize,
    },
    /// α > 1/4, which the paper excludes: most groups would have a single point.
    #[error("median of means tolerates at most a quarter of the points corrupted, got {corrupted} of {n}")]
    TooCorrupted {
        /// n, the number of points.
        n: usize,
        /// N₁, the number of points that may be corrupted.
        corrupted: usize,
    },
}

#[expect(clippy::len_without_is_empty, reason = "groups are never empty")]
impl Groups {
    /// Draws `groups` groups of `n` points.
    ///
    /// # Errors
    /// `groups` is 0 or exceeds `n`.
    pub fn new(n: usize, groups: usize, seed: u64) -> Result<Self, GroupsError> {
        if groups == 0 || groups > n {
            return Err(GroupsError::Count { n, groups });
        }
        let mut group_of: Vec<usize> = (0..n).map(|i| i % groups).collect();
        shuffle(&mut group_of, &mut Pcg64::seed_from_u64(seed));
        Ok(Self { group_of, count: groups })
    }

    /// Draws the paper's P = 3·N₁ groups, or a single group for N₁ = 0.
    ///
    /// With α = N₁/n, ⌊1/(3α)⌋ ≤ |G| ≤ ⌈1/(3α)⌉, and at most a third of the groups contain a corrupted point.
    ///
    /// # Errors
    /// N₁ exceeds a quarter of the points, or `n` is 0.
    pub fn for_corruption(n: usize, corrupted: usize, seed: u64) -> Result<Self, GroupsError> {
        if corrupted > n / 4 {
            return Err(GroupsError::TooCorrupted { n, corrupted });
        }
        Self::new(n, (3 * corrupted).max(1), seed)
    }

    /// The group of point `i`, both counted from 0.
    pub fn group_of(&self, i: usize) -> usize {
        self.group_of[i]
    }

    /// |G| of every group, larger groups first.
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = usize> {
        let (n, count) = (self.group_of.len(), self.count);
        (0..count).map(move |group| n / count + usize::from(group < n % count))
    }

    /// P, the number of groups.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the mean of every group. Reads the points once.
    ///
    /// # Errors
    /// The groups were drawn for a different number of points.
    pub fn means(&self, points: &Points<'_>) -> Result<Points<'static>, AggregateError> {
        let (expected, actual, p) = (self.group_of.len(), points.len(), points.dimension());
        if expected != actual {
            return Err(AggregateError::WrongNumber { expected, actual });
        }
        let divisors: Vec<Divisor> = self.sizes().map(Divisor::new).collect();
        let mut means = vec![0.0; self.count * p];
        for (row, &group) in points.rows().zip(&self.group_of) {
            divisors[group].add(&mut means[group * p..][..p], row);
        }
        means.chunks_exact_mut(p).zip(divisors).for_each(|(mean, divisor)| divisor.divide(mean));
        Ok(Points::new(means, p).expect("whole rows of the points' own length"))
    }
}

/// Geometric median of the means of fixed [`Groups`]: argmin_z Σ_G ‖z − x̄_G‖.
///
/// Objective, certified gap and passes refer to the median of the P means, not to the n points.
#[derive(Clone, Debug)]
pub struct MedianOfMeans {
    groups: Groups,
    median: GeometricMedian,
}

impl MedianOfMeans {
    /// Creates the rule for these groups, with the tolerance of the median.
    pub fn new(groups: Groups, tolerance: Tolerance) -> Self {
        Self { groups, median: GeometricMedian::new(tolerance) }
    }
}

impl Aggregator for MedianOfMeans {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        self.median.aggregate(&self.groups.means(points)?)
    }

    fn warm_start(&self) -> WarmStart {
        self.median.warm_start()
    }

    fn set_warm_start(&mut self, start: WarmStart) {
        self.median.set_warm_start(start);
    }
}

/// Shuffles uniformly (Fisher and Yates).
fn shuffle(values: &mut [usize], rng: &mut Pcg64) {
    for i in (1..values.len()).rev() {
        values.swap(i, below(i + 1, rng));
    }
}
