//! Mechanisms with scripted noise: their nodes, their matrices, and groups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use nalgebra::{DMatrix, DVector};

use super::calibration::{Blt, Budget, Mechanism, levels};
use super::key::{Node, Scripted};
use super::{Plan, Private, Seed};
use crate::aggregate::Groups;
use crate::algorithm::Level;
use crate::algorithm::{ControllerConfig, Episodes};
use crate::algorithm::{Privatise, Streams};

const MECHANISMS: [Mechanism; 3] = [Mechanism::Tree, Mechanism::Honaker, Mechanism::Blt];

fn plan(dimension: u8, episodes: u32, mechanism: Mechanism) -> Plan {
    let episodes = Episodes::new(64 * episodes, 64, 64).unwrap();
    let setting = ControllerConfig {
        dimension,
        episodes,
        level: Level::Paper,
        reward_bound: Some(1.0),
        window: 0,
        half_life: None,
    };
    Plan::new(&setting, Budget::new(1.0, 1e-6).unwrap(), mechanism, 1).unwrap()
}

fn no_noise(_: Node, _: &mut [i64]) {}

fn values(streams: &Streams) -> Vec<f64> {
    [streams.gram.values(), streams.feature_sum.values()].concat()
}

/// One unit in one dimension with scripted noise.
fn scripted<F: Fn(Node, &mut [i64]) + Sync>(mechanism: Mechanism, episodes: u32, script: F) -> Private<Scripted<F>> {
    Private::agents(plan(1, episodes, mechanism), Scripted(script), 1).unwrap()
}

/// V̂ of the release after k leaves, in units of the grid.
fn gram(private: &mut impl Privatise, k: u32, step: f64) -> f64 {
    private.release(k + 1).gram.row(0)[0] / step
}

// --- structure ------------------------------------------------------------------------------------------------------

/// Every noise is 1. Release k of the tree then has popcount(k). Honaker's estimate e_j of a node at level j has
/// e_j = v_j + (1 − v_j)·2e_{j−1} with v_j = 1/(2 − 2⁻ʲ) and e_0 = 1, hence e_j = (j + 1)/(2 − 2⁻ʲ).
#[test]
fn releases_consist_of_expected_nodes() {
    let one = |_: Node, sum: &mut [i64]| sum.iter_mut().for_each(|value| *value += 1);
    let step = plan(1, 1030, Mechanism::Tree).step();
    let mut tree = scripted(Mechanism::Tree, 1030, one);
    let mut honaker = scripted(Mechanism::Honaker, 1030, one);
    let node = |j: i32| f64::from(j + 1) / (2.0 - 0.5_f64.powi(j));
    for k in 1..1030_u32 {
        assert_eq!(gram(&mut tree, k, step), f64::from(k.count_ones()));
        let expected: f64 = (0..11).filter(|j| k >> j & 1 == 1).map(node).sum();
        assert!((gram(&mut honaker, k, step) - expected).abs() < 1e-12, "{k}");
    }
    assert_eq!([1, 2, 3].map(node), [4.0 / 3.0, 12.0 / 7.0, 32.0 / 15.0]);
    assert_eq!(node(10), 11.0 / (2.0 - 1.0 / 1024.0));
}

/// Returns for each leaf the nodes that depend on it.
fn nodes_of_each_leaf(mechanism: Mechanism, episodes: u32) -> Vec<BTreeSet<Node>> {
    let nodes_of = |leaf: u32| {
        let touched = Mutex::new(BTreeSet::new());
        let script = |node: Node, sum: &mut [i64]| touched.lock().unwrap().extend((sum[0] != 0).then_some(node));
        let mut private = scripted(mechanism, episodes, script);
        private.release(leaf);
        private.add(0, leaf, &[1.0], &[0.0]);
        private.release(u32::MAX);
        drop(private);
        touched.into_inner().unwrap()
    };
    (1..episodes).map(nodes_of).collect()
}

#[test]
fn message_is_in_calibrated_number_of_nodes() {
    for mechanism in [Mechanism::Tree, Mechanism::Honaker] {
        for episodes in [2, 3, 4, 5, 8, 9, 33, 64, 65] {
            let nodes = nodes_of_each_leaf(mechanism, episodes);
            let most = nodes.iter().map(BTreeSet::len).max().unwrap();
            assert_eq!(most, levels(episodes) as usize, "{mechanism}, K = {episodes}");
        }
    }
    assert!(nodes_of_each_leaf(Mechanism::Tree, 1).is_empty());
}

#[test]
fn releases_without_noise_are_exact_sums() {
    for mechanism in MECHANISMS {
        let plan = plan(3, 70, mechanism);
        let mut private = Private::agents(plan.clone(), Scripted(no_noise), 2).unwrap();
        let mut sums = vec![0; 2 * plan.coordinates()];
        for episode in 1..70 {
            for agent in 0..2 {
                let (y, x) = (f64::from(episode) + 0.1 * agent as f64).sin_cos();
                let gram = [x * x, x * y, 0.5 * x, y * y, 0.5 * y, 0.25].map(|value| 50.0 * value);
                let feature_sum = [-20.0 * x, -20.0 * y, 10.0];
                private.add(agent, episode, &gram, &feature_sum);
                let message = plan.quantise(&gram, &feature_sum).unwrap();
                sums[9 * agent..][..9].iter_mut().zip(message).for_each(|(sum, value)| *sum += value);
            }
            let streams = private.release(episode + 1);
            let rows = streams.gram.rows().zip(streams.feature_sum.rows());
            let released: Vec<_> = rows.flat_map(|(gram, feature_sum)| [gram, feature_sum].concat()).collect();
            for (released, sum) in released.iter().zip(&sums) {
                let error = (released / plan.step() - *sum as f64).abs();
                // Every y_k is rounded by at most about ½, and rows of B sum to less than 20 here.
                assert!(
                    error <= if mechanism == Mechanism::Blt { 10.0 } else { 0.0 },
                    "{mechanism} {episode}: {error}"
                );
            }
        }
    }
}

// --- the mechanisms as matrices -------------------------------------------------------------------------------------

/// Returns B and C of B·(C·x + z) as measured on the mechanism: C by a message in one leaf, B by noise in one node.
fn factors(mechanism: Mechanism, episodes: u32) -> (DMatrix<f64>, DMatrix<f64>) {
    let step = plan(1, episodes, mechanism).step();
    let n = episodes as usize - 1;
    let largest = plan(1, episodes, mechanism).quantise(&[64.0], &[0.0]).unwrap()[0] as f64;
    let columns: Vec<BTreeMap<Node, f64>> = (1..episodes)
        .map(|leaf| {
            let seen = Mutex::new(BTreeMap::new());
            let record = |node: Node, sum: &mut [i64]| seen.lock().unwrap().extend([(node, sum[0] as f64 / largest)]);
            let mut private = scripted(mechanism, episodes, record);
            private.release(leaf);
            private.add(0, leaf, &[64.0], &[0.0]);
            private.release(episodes);
            drop(private);
            seen.into_inner().unwrap()
        })
        .collect();
    let nodes: Vec<Node> = columns[0].keys().copied().collect();
    let c = DMatrix::from_fn(nodes.len(), n, |row, leaf| columns[leaf][&nodes[row]]);
    let mut b = DMatrix::zeros(n, nodes.len());
    for (j, node) in nodes.iter().enumerate() {
        let mut private = scripted(mechanism, episodes, |at: Node, sum: &mut [i64]| sum[0] += i64::from(at == *node));
        (0..n).for_each(|k| b[(k, j)] = gram(&mut private, k as u32 + 1, step));
    }
    (b, c)
}

#[test]
fn mechanisms_are_factorisations_with_calibrated_norms() {
    for (mechanism, episodes) in MECHANISMS.into_iter().flat_map(|m| [2, 3, 8, 17, 33, 64].map(|k| (m, k))) {
        let (b, c) = factors(mechanism, episodes);
        let n = episodes as usize - 1;
        let sums = DMatrix::from_fn(n, n, |k, leaf| f64::from(leaf <= k));
        assert!((&b * &c - sums).amax() < 2e-5, "{mechanism}, K = {episodes}: A ≠ BC");
        let largest = c.column_iter().map(|column| column.norm_squared()).fold(0.0, f64::max);
        let blt = Blt::for_episodes(episodes);
        let (column, tolerance) = match mechanism {
            Mechanism::Blt => (blt.column_norm_squared(n as u32), 1e-5),
            _ => (levels(episodes).into(), 0.0),
        };
        assert!((largest - column).abs() <= tolerance, "{mechanism}, K = {episodes}: {largest} {column}");
        for k in 1..episodes {
            let variance: f64 = match mechanism {
                Mechanism::Tree => k.count_ones().into(),
                Mechanism::Honaker => (0..6).filter(|j| k >> j & 1 == 1).map(|j| 1.0 / (2.0 - 0.5_f64.powi(j))).sum(),
                Mechanism::Blt => blt.row_norm_squared(k),
            };
            let row = b.row(k as usize - 1).norm_squared();
            assert!((row - variance).abs() < 1e-6, "{mechanism}, K = {episodes}, k = {k}: {row} {variance}");
        }
    }
}

/// The noise of a release is Bz for any z, so its covariance is σ²BBᵀ.
#[test]
fn releases_are_linear_in_noise() {
    for mechanism in MECHANISMS {
        let (b, c) = factors(mechanism, 64);
        let noise = |node: Node| i64::from(node.index * 7919 + node.level * 104_729) % 2003 - 1001;
        let nodes = Mutex::new(BTreeMap::new());
        let mut private = scripted(mechanism, 64, |node: Node, sum: &mut [i64]| {
            nodes.lock().unwrap().insert(node, noise(node) as f64);
            sum[0] += noise(node);
        });
        let step = plan(1, 64, mechanism).step();
        let released = DVector::from_fn(63, |k, _| gram(&mut private, k as u32 + 1, step));
        drop(private);
        let z = DVector::from_iterator(c.nrows(), nodes.into_inner().unwrap().into_values());
        assert!((b * z - released).amax() < 1e-8, "{mechanism}");
    }
}

// --- timing of releases ---------------------------------------------------------------------------------------------

#[test]
fn release_is_made_once() {
    for mechanism in MECHANISMS {
        let mut private = Private::agents(plan(1, 4, mechanism), Seed(1), 1).unwrap();
        let mut exact = scripted(mechanism, 4, no_noise);
        private.add(0, 1, &[8.0], &[0.0]);
        exact.add(0, 1, &[8.0], &[0.0]);
        let second = values(private.release(2));
        exact.release(2);
        // Messages after a release are in the next leaf, even if that release is requested again.
        private.add(0, 1, &[16.0], &[0.0]);
        exact.add(0, 1, &[16.0], &[0.0]);
        assert_eq!(values(private.release(2)), second);
        assert_eq!(values(private.release(1)), second, "earlier releases cannot be requested");
        assert_eq!(exact.release(2).gram.row(0), [8.0]);
        assert!((exact.release(3).gram.row(0)[0] - 24.0).abs() < 1e-3);
        // The last release is for episode 4: the budget covers no further noise.
        let last = values(private.release(4));
        private.add(0, 4, &[32.0], &[0.0]);
        assert_eq!(values(private.release(5)), last);
        assert_eq!(values(private.release(u32::MAX)), last);
    }
}

#[test]
fn group_release_is_noisy_sum_divided_by_size() {
    let plan = plan(1, 4, Mechanism::Tree);
    let groups = Groups::new(7, 3, 5).unwrap();
    let drawn = Mutex::new(Vec::new());
    let noise = Scripted(|node: Node, sum: &mut [i64]| {
        drawn.lock().unwrap().push(node.unit);
        sum[0] += 1000;
    });
    let mut private = Private::groups(plan.clone(), noise, 7, &groups).unwrap();
    // Only one member of every group sends a message.
    let present: BTreeSet<usize> = (0..3).map(|group| (0..7).find(|i| groups.group_of(*i) == group).unwrap()).collect();
    present.iter().for_each(|agent| private.add(*agent, 1, &[6.0], &[3.0]));
    let streams = private.release(2);
    for (row, size) in groups.sizes().enumerate() {
        let expected = [(6.0 + 1000.0 * plan.step()) / size as f64, 3.0 / size as f64];
        assert_eq!([streams.gram.row(row)[0], streams.feature_sum.row(row)[0]], expected);
    }
    drop(private);
    let mut drawn = drawn.into_inner().unwrap();
    drawn.sort();
    assert_eq!(drawn, [0, 1, 2]);
}
