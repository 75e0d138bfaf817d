//! Streaming evaluation of the binary tree over episodes (Dwork et al. 2010; Chan, Shi and Song 2011).

use serde::{Deserialize, Serialize};

use super::calibration::honaker_variance;
use super::grid::accumulate;

/// Noisy prefix sums of one unit's leaves, in units of the grid.
///
/// The tree works like a binary counter. After k leaves it has one open node for each bit set in k, and the node at level
/// j covers 2ʲ leaves. The k-th release is the sum of these nodes. A leaf completes the nodes up to level tz(k), the number
/// of trailing zeros of k. The plain tree adds noise to the last of them and uses it alone; Honaker's estimator uses all.
///
/// K − 1 leaves have m = ⌊log₂(K − 1)⌋ + 1 levels, so in both cases a message is in at most m noisy nodes.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Tree {
    estimator: Estimator,
    leaves: u32,
    /// Open nodes, indexed by level.
    open: Vec<Option<Open>>,
}

/// Value of a node in a release.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Estimator {
    /// Noisy sum of the node.
    Node,
    /// Best linear estimate from the noisy sums of the node and of all nodes below it (Honaker 2015, "estimation from
    /// below").
    Honaker,
}

#[derive(Clone, Serialize, Deserialize)]
struct Open {
    sum: Vec<i64>,
    estimate: Vec<f64>,
}

impl Tree {
    pub(super) fn new(estimator: Estimator) -> Self {
        Self { estimator, leaves: 0, open: Vec::new() }
    }

    /// Adds a leaf. `noise` receives the level, the index and the sum of a node, and adds noise to the sum.
    pub(super) fn push(&mut self, leaf: &[i64], mut noise: impl FnMut(u32, u32, &mut [i64])) {
        self.leaves += 1;
        let mut sum = leaf.to_vec();
        let mut children = None;
        for level in 0.. {
            let left = self.open.get_mut(level as usize).and_then(Option::take);
            let used = left.is_none() || self.estimator == Estimator::Honaker;
            let estimate = used.then(|| {
                let mut noisy = sum.clone();
                noise(level, self.leaves >> level, &mut noisy);
                refine(&noisy, children.take(), level)
            });
            let Some(left) = left else {
                self.open.resize_with(self.open.len().max(level as usize + 1), || None);
                self.open[level as usize] = estimate.map(|estimate| Open { sum, estimate });
                return;
            };
            accumulate(&mut sum, &left.sum);
            children = estimate.map(|right| left.estimate.iter().zip(right).map(|(l, r)| l + r).collect());
        }
    }

    /// Returns true if this saved tree has a number of leaves of a dimension, and the estimator of another tree.
    pub(super) fn fits(&self, other: &Self, dimension: usize, leaves: u32) -> bool {
        let is_open = |level: usize| leaves.checked_shr(level as u32).unwrap_or(0) & 1 == 1;
        self.estimator == other.estimator
            && self.leaves == leaves
            && self.open.len() == (u32::BITS - leaves.leading_zeros()) as usize
            && self.open.iter().enumerate().all(|(level, node)| match node {
                Some(Open { sum, estimate }) => is_open(level) && sum.len() == dimension && estimate.len() == dimension,
                None => !is_open(level),
            })
    }

    /// Returns the noisy sum of all leaves so far.
    pub(super) fn prefix(&self, dimension: usize) -> Vec<f64> {
        self.open.iter().rev().flatten().fold(vec![0.0; dimension], |mut total, node| {
            total.iter_mut().zip(&node.estimate).for_each(|(total, value)| *total += value);
            total
        })
    }
}

/// Estimates a node from its noisy sum, of variance 1, and the sum of its children's estimates, of variance 2v_{j−1}.
///
/// The best weights are inversely proportional to the variances. The node itself gets v_j = 2v_{j−1}/(1 + 2v_{j−1}), which is
/// also the variance of the estimate, [`honaker_variance`].
fn refine(noisy: &[i64], children: Option<Vec<f64>>, level: u32) -> Vec<f64> {
    let noisy = noisy.iter().map(|value| *value as f64);
    let Some(children) = children else { return noisy.collect() };
    let weight = honaker_variance(level);
    noisy.zip(children).map(|(node, children)| weight * node + (1.0 - weight) * children).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_logarithmically() {
        for estimator in [Estimator::Node, Estimator::Honaker] {
            let mut tree = Tree::new(estimator);
            for k in 1..=1023_u32 {
                let mut noises = 0;
                tree.push(&[1], |_, _, _| noises += 1);
                assert_eq!(tree.open.iter().flatten().count(), k.count_ones() as usize);
                assert_eq!(noises, if estimator == Estimator::Node { 1 } else { k.trailing_zeros() + 1 });
            }
            assert_eq!(tree.open.len(), 10);
        }
    }
}
