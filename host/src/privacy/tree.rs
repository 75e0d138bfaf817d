//! The binary tree over episodes (Dwork et al. 2010; Chan, Shi and Song 2011), one node at a time.

use super::calibration::honaker_variance;
use super::grid::accumulate;

/// The prefix sums of one unit's leaves with a tree's noise, in units of the grid.
///
/// Like a binary counter: after k leaves there is one open node for each bit that k has, which covers 2^level leaves,
/// and the k-th release is the sum of these nodes. A leaf closes the nodes up to level tz(k), the number of zeros at
/// the end of k. Of them the plain tree uses, and puts noise on, the last alone; Honaker's estimator uses all. At most
/// m = ⌊log₂(K − 1)⌋ + 1 levels exist for K − 1 leaves, so a message is in at most m noisy nodes either way.
pub(super) struct Tree {
    estimator: Estimator,
    leaves: u32,
    /// By level.
    open: Vec<Option<Open>>,
}

/// What stands for a node in a release.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Estimator {
    /// Its noisy sum.
    Node,
    /// The best linear estimate from its noisy sum and all those below it (Honaker 2015, "estimation from below").
    Honaker,
}

struct Open {
    sum: Vec<i64>,
    estimate: Vec<f64>,
}

impl Tree {
    pub(super) fn new(estimator: Estimator) -> Self {
        Self { estimator, leaves: 0, open: Vec::new() }
    }

    /// Adds a leaf. `noise` makes the noisy sum of a node from its level, its index in there, and its sum.
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

    /// The sum of all leaves so far, as it may be released.
    pub(super) fn prefix(&self, dimension: usize) -> Vec<f64> {
        self.open.iter().rev().flatten().fold(vec![0.0; dimension], |mut total, node| {
            total.iter_mut().zip(&node.estimate).for_each(|(total, value)| *total += value);
            total
        })
    }
}

/// A node's estimate from its noisy sum, with variance 1, and the sum of its children's estimates, with variance 2v_{j−1}.
///
/// The best weights are in inverse proportion to the variances: v_j = 2v_{j−1}/(1 + 2v_{j−1}) for the node itself, which
/// then is the variance of the estimate, [`honaker_variance`].
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
    fn memory_is_logarithmic() {
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
