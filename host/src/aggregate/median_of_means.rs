//! The geometric median of group means, the oracle of Byzantine-UCB-DP-MoM.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "groups are drawn from a seed that is given")]

use rand_pcg::Pcg64;
use rand_pcg::rand_core::SeedableRng;
use thiserror::Error;

use super::mean::Divisor;
use super::{Aggregate, AggregateError, Aggregator, GeometricMedian, Points, Tolerance};
use crate::math::rng::below;

/// Which point is in which of P groups, drawn uniformly from a seed, with sizes ⌊n/P⌋ and ⌈n/P⌉.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    group_of: Vec<usize>,
    count: usize,
}

/// Why no groups can be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GroupsError {
    /// Every group needs a point.
    #[error("{n} points make from 1 to {n} groups, not {groups}")]
    Count {
        /// n, the number of points.
        n: usize,
        /// P, the number of groups.
        groups: usize,
    },
    /// The paper asks for α ≤ 1/4: beyond it most groups would be of a single point.
    #[error("a median of means bears at most a quarter of the points corrupted, not {corrupted} of {n}")]
    TooCorrupted {
        /// n, the number of points.
        n: usize,
        /// N₁, how many of them may be corrupted.
        corrupted: usize,
    },
}

#[expect(clippy::len_without_is_empty, reason = "there is at least one group")]
impl Groups {
    /// `groups` groups of `n` points.
    ///
    /// # Errors
    /// There is no group, or more groups than points.
    pub fn new(n: usize, groups: usize, seed: u64) -> Result<Self, GroupsError> {
        if groups == 0 || groups > n {
            return Err(GroupsError::Count { n, groups });
        }
        let mut group_of: Vec<usize> = (0..n).map(|i| i % groups).collect();
        shuffle(&mut group_of, &mut Pcg64::seed_from_u64(seed));
        Ok(Self { group_of, count: groups })
    }

    /// The paper's P = 3·N₁ groups, or a single one if no point is corrupted.
    ///
    /// With α = N₁/n, ⌊1/(3α)⌋ ≤ |G| ≤ ⌈1/(3α)⌉, and at most a third of the groups hold a corrupted point.
    ///
    /// # Errors
    /// More than a quarter of the points may be corrupted, or there is no point.
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

    /// |G| of every group; the larger ones come first.
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = usize> {
        let (n, count) = (self.group_of.len(), self.count);
        (0..count).map(move |group| n / count + usize::from(group < n % count))
    }

    /// P, the number of groups.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The mean of every group. Reads the points once.
    ///
    /// # Errors
    /// The groups were drawn for another number of points.
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

/// The geometric median of the means of fixed [`Groups`]: argmin_z Σ_G ‖z − x̄_G‖.
///
/// Objective, certified gap and passes of its answer are those of the median over the P means, not over the n points.
#[derive(Clone, Debug)]
pub struct MedianOfMeans {
    groups: Groups,
    median: GeometricMedian,
}

impl MedianOfMeans {
    /// The median over these groups to a tolerance.
    pub fn new(groups: Groups, tolerance: Tolerance) -> Self {
        Self { groups, median: GeometricMedian::new(tolerance) }
    }
}

impl Aggregator for MedianOfMeans {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        self.median.aggregate(&self.groups.means(points)?)
    }
}

/// Fisher and Yates: every order is as likely as any other.
fn shuffle(values: &mut [usize], rng: &mut Pcg64) {
    for i in (1..values.len()).rev() {
        values.swap(i, below(i + 1, rng));
    }
}
