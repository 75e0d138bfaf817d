//! What private streams are made of: the mechanisms as matrices, the sensitivity of messages, and what is released when.

mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};
use std::sync::Mutex;

use fedbandit::admission::{Level, SettingError};
use fedbandit::aggregate::{AggregateError, GeometricMedian, Groups, Mean, Tolerance};
use fedbandit::controller::{Controller, Episodes, Setting, SetupError};
use fedbandit::privacy::calibration::{Blt, Budget, Mechanism, levels, sensitivity, truncated};
use fedbandit::privacy::key::{Node, NoiseKey, Scripted};
use fedbandit::privacy::{Plan, PlanError, Private, RunKey, Seed, Stream};
use fedbandit::rule::Separate;
use fedbandit::streams::{AgentId, Privatise, Streams};
use fedbandit_core::{packed_len, rounding};
use nalgebra::{DMatrix, DVector};
use random::Random;

const MECHANISMS: [Mechanism; 3] = [Mechanism::Tree, Mechanism::Honaker, Mechanism::Blt];
/// L.
const LENGTH: u32 = 64;

fn setting(dimension: u8, episodes: u32, level: Level) -> Setting {
    let episodes = Episodes::new(LENGTH * episodes, LENGTH, LENGTH).unwrap();
    Setting { dimension, episodes, level, reward_bound: Some(1.0), window: 2 }
}

fn plan(dimension: u8, episodes: u32, level: Level, mechanism: Mechanism) -> Plan {
    Plan::new(&setting(dimension, episodes, level), Budget::new(1.0, 1e-6).unwrap(), mechanism, 1).unwrap()
}

/// One unit in one dimension, and a script for its noise.
fn scripted<F: Fn(Node, &mut [i64]) + Sync>(mechanism: Mechanism, episodes: u32, script: F) -> Private<Scripted<F>> {
    Private::agents(plan(1, episodes, Level::Paper, mechanism), Scripted(script), 1).unwrap()
}

/// The release for the next episode after k leaves: V̂ in units of the grid.
fn gram(private: &mut impl Privatise, k: u32, step: f64) -> f64 {
    private.release(k + 1).gram.row(0)[0] / step
}

fn values(streams: &Streams) -> Vec<f64> {
    [streams.gram.values(), streams.feature_sum.values()].concat()
}

impl Random {
    fn unit_vector(&mut self, dimension: usize) -> DVector<f64> {
        DVector::from_fn(dimension, |_, _| self.symmetric()).normalize()
    }

    /// A summary as a device makes it, in f32: actions near a common one, and rewards up to 1.
    fn summary(&mut self, dimension: usize, spread: f64) -> Message {
        let centre = self.unit_vector(dimension);
        let (mut gram, mut feature_sum) = (DMatrix::zeros(dimension, dimension), DVector::zeros(dimension));
        for _ in 0..LENGTH {
            let x = (&centre + self.unit_vector(dimension) * spread).normalize().map(|value| value as f32);
            gram += &x * x.transpose();
            feature_sum += x * (1.0 - spread * self.symmetric().abs()) as f32;
        }
        (pack(&gram.map(f64::from)), feature_sum.map(f64::from).as_slice().to_vec())
    }
}

/// U as its packed triangle, and u.
type Message = (Vec<f64>, Vec<f64>);

fn pack(matrix: &DMatrix<f64>) -> Vec<f64> {
    let n = matrix.nrows();
    (0..n).flat_map(|i| (i..n).map(move |j| matrix[(i, j)])).collect()
}

// --- structure ------------------------------------------------------------------------------------------------------

/// With 1 for every noise, release k has as many as k has bits; Honaker's estimate of a node at level j, which is half
/// as much from itself and twice as much from below, has (j + 1)/(2 − 2⁻ʲ).
#[test]
fn releases_are_made_of_the_right_nodes() {
    let one = |_: Node, sum: &mut [i64]| sum.iter_mut().for_each(|value| *value += 1);
    let step = plan(1, 1030, Level::Paper, Mechanism::Tree).step();
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

/// Leaf by leaf, which nodes change with it.
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
fn a_message_is_in_as_many_nodes_as_the_calibration_says() {
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
fn without_noise_releases_are_exact_sums() {
    let mut random = Random::new(3);
    for mechanism in MECHANISMS {
        let plan = plan(3, 70, Level::Strict, mechanism);
        let mut private = Private::agents(plan.clone(), Scripted(|_: Node, _: &mut [i64]| ()), 2).unwrap();
        let mut sums = vec![0; 2 * plan.coordinates()];
        for episode in 1..70 {
            for agent in 0..2 {
                let (gram, feature_sum) = random.summary(3, 0.5);
                private.add(agent, episode, &gram, &feature_sum);
                let message = plan.quantise(&gram, &feature_sum).unwrap();
                sums[9 * agent..][..9].iter_mut().zip(message).for_each(|(sum, value)| *sum += value);
            }
            let streams = private.release(episode + 1);
            let rows = streams.gram.rows().zip(streams.feature_sum.rows());
            let released: Vec<_> = rows.flat_map(|(gram, feature_sum)| [gram, feature_sum].concat()).collect();
            for (released, sum) in released.iter().zip(&sums) {
                let error = (released / plan.step() - *sum as f64).abs();
                // Every y_k is rounded, and B's rows sum up to less than 20 here.
                assert!(
                    error <= if mechanism == Mechanism::Blt { 10.0 } else { 0.0 },
                    "{mechanism} {episode}: {error}"
                );
            }
        }
    }
}

// --- the mechanisms as matrices -------------------------------------------------------------------------------------

/// B and C of B·(C·x + z), taken from the running mechanism: C by a message in one leaf, B by noise in one node.
fn factors(mechanism: Mechanism, episodes: u32) -> (DMatrix<f64>, DMatrix<f64>) {
    let step = plan(1, episodes, Level::Paper, mechanism).step();
    let n = episodes as usize - 1;
    let largest = plan(1, episodes, Level::Paper, mechanism).quantise(&[64.0], &[0.0]).unwrap()[0] as f64;
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
fn mechanisms_are_factorisations_with_the_norms_of_the_calibration() {
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

/// The noise of a release is Bz for any z, so BBᵀ is its covariance.
#[test]
fn releases_are_linear_in_the_noise() {
    for mechanism in MECHANISMS {
        let (b, c) = factors(mechanism, 64);
        let noise = |node: Node| i64::from(node.index * 7919 + node.level * 104_729) % 2003 - 1001;
        let nodes = Mutex::new(BTreeMap::new());
        let mut private = scripted(mechanism, 64, |node: Node, sum: &mut [i64]| {
            nodes.lock().unwrap().insert(node, noise(node) as f64);
            sum[0] += noise(node);
        });
        let step = plan(1, 64, Level::Paper, mechanism).step();
        let released = DVector::from_fn(63, |k, _| gram(&mut private, k as u32 + 1, step));
        drop(private);
        let z = DVector::from_iterator(c.nrows(), nodes.into_inner().unwrap().into_values());
        assert!((b * z - released).amax() < 1e-8, "{mechanism}");
    }
}

// --- sensitivity ----------------------------------------------------------------------------------------------------

/// Numbers around every limit that a check could get wrong.
fn awkward(limit: f64) -> Vec<f64> {
    let mut numbers = vec![f64::NAN, f64::INFINITY, -0.0, 5e-324, f64::MIN_POSITIVE, f64::MAX, 1e154, 1e19, 0.5, 1.0];
    for factor in [1.0, FRAC_1_SQRT_2, SQRT_2, 0.5, 2.0] {
        let near = limit * factor;
        numbers.extend([near, near.next_up(), near.next_down(), near * 1.000_01, near * 0.999_99]);
    }
    numbers.iter().flat_map(|number| [*number, -number]).collect()
}

/// Messages at and beyond the limits: single numbers, rank one, at the edge of the tolerances, and as devices send them.
fn messages(dimension: usize, random: &mut Random) -> Vec<Message> {
    let delta = rounding::sums(LENGTH, dimension);
    let length = f64::from(LENGTH);
    let mut messages = Vec::new();
    for number in awkward(length * (1.0 + delta)) {
        for place in 0..packed_len(dimension) {
            let mut gram = vec![0.0; packed_len(dimension)];
            gram[place] = number;
            messages.push((gram, vec![0.0; dimension]));
        }
        messages.push((
            vec![0.0; packed_len(dimension)],
            (0..dimension).map(|i| if i == 0 { number } else { 0.0 }).collect(),
        ));
    }
    let angles = (0..24).map(|i| f64::from(i) * std::f64::consts::TAU / 24.0);
    let planar = angles
        .map(|angle| DVector::from_fn(dimension, |i, _| [angle.cos(), angle.sin()].get(i).copied().unwrap_or(0.0)));
    let directions: Vec<_> = planar.chain((0..20).map(|_| random.unit_vector(dimension))).collect();
    for a in &directions {
        for scale in [1.0, 1.0 + delta, 1.0 + 0.999 * delta, -1.0, -1.0 - delta] {
            for shift in [0.0, -0.999 * delta, -2.99 * delta] {
                let identity = DMatrix::identity(dimension, dimension) * (shift * length);
                let gram = pack(&(a * a.transpose() * (scale * length) + identity));
                messages
                    .extend([1.0, -1.0, 1.0 + delta].map(|s| (gram.clone(), (a * (s * length)).as_slice().to_vec())));
            }
        }
    }
    messages.extend((0..50).map(|i| random.summary(dimension, f64::from(i % 5) / 4.0)));
    messages
}

/// max ‖q − q′‖²; a refused message is 0.
fn widest(plan: &Plan, messages: &[Message]) -> i128 {
    let zero = vec![0; plan.coordinates()];
    let counted: BTreeSet<Vec<i64>> =
        messages.iter().map(|(gram, sum)| plan.quantise(gram, sum).unwrap_or_else(|| zero.clone())).collect();
    let counted: Vec<_> = counted.into_iter().collect();
    let distance = |a: &[i64], b: &[i64]| a.iter().zip(b).map(|(a, b)| i128::from(a - b).pow(2)).sum();
    let pairs = counted.iter().enumerate().flat_map(|(i, a)| counted[i..].iter().map(move |b| (a, b)));
    pairs.map(|(a, b)| distance(a, b)).max().unwrap()
}

#[test]
fn no_two_messages_are_further_apart_than_the_sensitivity() {
    let mut random = Random::new(1);
    for dimension in [1_u8, 2, 3, 8] {
        let messages = messages(dimension.into(), &mut random);
        for level in [Level::Paper, Level::Strict] {
            let plan = plan(dimension, 32, level, Mechanism::Tree);
            let delta = sensitivity(level, LENGTH, dimension.into());
            let widest = widest(&plan, &messages);
            let limit = truncated(delta, plan.step(), dimension.into()) / plan.step();
            assert!(widest <= limit.powi(2) as i128, "D = {dimension}, {level:?}");
            // At the paper's level truncation adds nothing. A line has no angle of 120°.
            assert!(level == Level::Strict || widest <= (delta / plan.step()).powi(2) as i128);
            let reached = (widest as f64).sqrt() * plan.step() / delta;
            assert!(reached > if dimension > 1 { 0.9999 } else { 0.9 }, "D = {dimension}, {level:?}: {reached}");
        }
    }
}

/// Values shrink, so an honest summary at the very limit passes, too.
#[test]
fn honest_summaries_count() {
    let mut random = Random::new(2);
    for level in [Level::Paper, Level::Strict] {
        let plan = plan(4, 32, level, Mechanism::Tree);
        for i in 0..500 {
            let (gram, feature_sum) = random.summary(4, f64::from(i % 5) / 4.0);
            let integers = plan.quantise(&gram, &feature_sum).unwrap();
            for (integer, value) in integers[10..].iter().zip(feature_sum) {
                let back = *integer as f64 * plan.step();
                assert!(back.abs() <= value.abs() && (back - value).abs() < plan.step());
            }
        }
    }
}

#[test]
fn plans_keep_the_grid_fine_and_sums_in_range() {
    let long =
        Setting { episodes: Episodes::new(65_536 * 4096, 65_536, 65_536).unwrap(), ..setting(50, 2, Level::Strict) };
    for setting in [setting(1, 2, Level::Strict), setting(8, 1, Level::Paper), setting(8, 1024, Level::Strict), long] {
        for (mechanism, mu) in MECHANISMS.into_iter().flat_map(|m| [0.5, 1.0, 8.0, 1e3].map(|mu| (m, mu))) {
            let plan = Plan::new(&setting, Budget::new(mu, 1e-6).unwrap(), mechanism, 1).unwrap();
            let bits = (plan.gaussian().sigma() as f64).log2();
            assert!(bits < 25.01 && (bits >= 24.0 || mu == 1e3), "{mechanism}, μ = {mu}: {bits}");
            let most = f64::from(setting.episodes.length(1)) * 1.01 / plan.step();
            assert!(plan.step().log2().fract() == 0.0 && most < 1.02 * (1 << 26) as f64);
        }
    }
}

#[test]
fn settings_without_privacy_are_refused() {
    let plan = |setting| Plan::new(&setting, Budget::new(1.0, 1e-6).unwrap(), Mechanism::Tree, 1).unwrap_err();
    assert_eq!(plan(setting(0, 2, Level::Strict)), PlanError::Dimension);
    let unbounded = Setting { reward_bound: None, ..setting(2, 2, Level::Strict) };
    assert_eq!(plan(unbounded), PlanError::Setting(SettingError::PrivacyNeedsBoundedRewards));
    let tiny = Budget::new(1e-9, 1e-12).unwrap();
    let many = setting(255, 1 << 20, Level::Strict);
    assert_eq!(Plan::new(&many, tiny, Mechanism::Blt, 1).unwrap_err(), PlanError::TooMuchNoise);
}

// --- what is released when ------------------------------------------------------------------------------------------

/// (agent, episode, message), as they come in.
type Arrivals = Vec<(usize, u32, Message)>;

/// Three agents, four episodes; in the third, agent 1 also sends what it owed for the second.
fn arrivals(seed: u64) -> Vec<Arrivals> {
    let mut random = Random::new(seed);
    let mut arrivals: Vec<Arrivals> =
        (1..=4).map(|episode| (0..3).map(|agent| (agent, episode, random.summary(2, 0.7))).collect()).collect();
    let late = arrivals[1].remove(1);
    arrivals[2].push(late);
    arrivals
}

fn run(mut private: Private<impl NoiseKey>, arrivals: &[Arrivals]) -> Vec<Vec<f64>> {
    let mut released = vec![values(private.release(1))];
    for (k, messages) in (1..).zip(arrivals) {
        for (agent, episode, (gram, feature_sum)) in messages {
            private.add(*agent, *episode, gram, feature_sum);
        }
        released.push(values(private.release(k + 1)));
    }
    released
}

fn everything(mechanism: Mechanism) -> [Plan; 2] {
    [Level::Paper, Level::Strict].map(|level| plan(2, 5, level, mechanism))
}

#[test]
fn a_restart_repeats_all_releases_whatever_the_order_of_arrival() {
    for plan in MECHANISMS.into_iter().flat_map(everything) {
        let stored = RunKey::generate().unwrap().to_stored();
        let groups = Groups::new(3, 2, 9).unwrap();
        let again = |arrivals: &[Arrivals]| {
            let key = || RunKey::from_stored(&stored[..]).unwrap();
            let agents = run(Private::agents(plan.clone(), key(), 3).unwrap(), arrivals);
            (agents, run(Private::groups(plan.clone(), key(), 3, &groups).unwrap(), arrivals))
        };
        let original = arrivals(4);
        let mut reordered = original.clone();
        reordered.iter_mut().for_each(|messages| messages.reverse());
        assert_eq!(again(&original), again(&reordered));
        assert!(again(&original).0[0].iter().all(|value| *value == 0.0), "the first release has no noise");
        assert!(again(&original).0[1..].iter().flatten().all(|value| *value != 0.0), "all others have");
    }
}

/// After a rollback another message comes: the difference of the two releases must not be that of the messages.
#[test]
fn other_data_get_other_noise() {
    for mechanism in MECHANISMS {
        let plan = plan(2, 5, Level::Strict, mechanism);
        let noiseless = |arrivals: &[Arrivals]| {
            run(Private::agents(plan.clone(), Scripted(|_: Node, _: &mut [i64]| ()), 3).unwrap(), arrivals)
        };
        let noise = |arrivals: &[Arrivals]| -> Vec<Vec<f64>> {
            let released = run(Private::agents(plan.clone(), Seed(1), 3).unwrap(), arrivals);
            let pairs = released.iter().flatten().zip(noiseless(arrivals).into_iter().flatten());
            let noise: Vec<f64> = pairs.map(|(noisy, exact)| noisy - exact).collect();
            noise.chunks(15).map(<[f64]>::to_vec).collect()
        };
        let original = arrivals(5);
        let mut changed = original.clone();
        // By the last bit that counts, of agent 0's first message.
        changed[0][0].2.0[0] -= plan.step();
        let (before, after) = (noise(&original), noise(&changed));
        // V̂ comes first, three values for each of the agents, then v̂, two for each.
        let of_agent =
            |release: &[f64], agent: usize| [&release[3 * agent..][..3], &release[9 + 2 * agent..][..2]].concat();
        for k in 1..=4 {
            let changes = |agent| {
                let (before, after) = (of_agent(&before[k], agent), of_agent(&after[k], agent));
                before.iter().zip(after).all(|(before, after)| (before - after).abs() > 4.0 * plan.step())
            };
            // A tree's third release is of the node of the first two leaves and a leaf of its own.
            assert!(changes(0), "{mechanism}, release {k}");
            assert!(!changes(1) && !changes(2), "{mechanism}, release {k}");
        }
    }
}

/// The sum is what counts: other messages with the same sum are not even a second release.
#[test]
fn the_same_sum_gets_the_same_noise() {
    let plan = plan(1, 5, Level::Paper, Mechanism::Tree);
    let groups = Groups::new(2, 1, 0).unwrap();
    let release = |first: f64, second: f64| {
        let mut private = Private::groups(plan.clone(), Seed(1), 2, &groups).unwrap();
        private.add(0, 1, &[first], &[0.0]);
        private.add(1, 1, &[second], &[0.0]);
        values(private.release(2))
    };
    assert_eq!(release(1.0, 3.0), release(2.0, 2.0));
}

#[test]
fn a_release_is_made_once() {
    for mechanism in MECHANISMS {
        let mut private = Private::agents(plan(1, 4, Level::Paper, mechanism), Seed(1), 1).unwrap();
        let mut exact = scripted(mechanism, 4, |_: Node, _: &mut [i64]| ());
        private.add(0, 1, &[8.0], &[0.0]);
        exact.add(0, 1, &[8.0], &[0.0]);
        let second = values(private.release(2));
        exact.release(2);
        // What comes now is in the next leaf, even if the second release is asked for again.
        private.add(0, 1, &[16.0], &[0.0]);
        exact.add(0, 1, &[16.0], &[0.0]);
        assert_eq!(values(private.release(2)), second);
        assert_eq!(values(private.release(1)), second, "there is no way back");
        assert_eq!(exact.release(2).gram.row(0), [8.0]);
        assert!((exact.release(3).gram.row(0)[0] - 24.0).abs() < 1e-3);
        // The tree ends with the release for episode 4: no further noise was accounted for.
        let last = values(private.release(4));
        private.add(0, 4, &[32.0], &[0.0]);
        assert_eq!(values(private.release(5)), last);
        assert_eq!(values(private.release(u32::MAX)), last);
    }
}

// --- groups ---------------------------------------------------------------------------------------------------------

#[test]
fn a_group_is_its_sum_with_one_noise_over_its_size() {
    let plan = plan(1, 4, Level::Paper, Mechanism::Tree);
    let groups = Groups::new(7, 3, 5).unwrap();
    let drawn = Mutex::new(Vec::new());
    let noise = Scripted(|node: Node, sum: &mut [i64]| {
        drawn.lock().unwrap().push(node.unit);
        sum[0] += 1000;
    });
    let mut private = Private::groups(plan.clone(), noise, 7, &groups).unwrap();
    // Of every group only one member sends anything.
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

#[test]
fn groups_are_of_the_agents_enrolled() {
    let setting = setting(1, 4, Level::Strict);
    let groups = Groups::new(7, 3, 5).unwrap();
    let plan = plan(1, 4, Level::Strict, Mechanism::Tree);
    let rule = Separate::new(Mean, Mean, |_| (1.0, 1.0));
    let start = Controller::new(setting, (0..6).map(AgentId), rule, |agents, _| {
        Private::groups(plan, Seed(1), agents, &groups)
    });
    let refused = AggregateError::WrongNumber { expected: 7, actual: 6 };
    assert_eq!(start.map(|_| ()), Err(SetupError::Rule(refused)));
}

// --- with a controller ----------------------------------------------------------------------------------------------

#[test]
fn a_controller_runs_on_private_streams() {
    for mechanism in MECHANISMS {
        let setting = setting(2, 6, Level::Strict);
        let plan = plan(2, 6, Level::Strict, mechanism);
        let sigma = plan.step() * plan.gaussian().sigma() as f64;
        let groups = Groups::for_corruption(40, 3, 1).unwrap();
        let median = GeometricMedian::new(Tolerance::Relative(1e-6));
        let rule = Separate::new(median.clone(), median, |_| (8.0 * sigma, 1.0));
        let privatise = |agents, _: usize| Private::groups(plan, RunKey::generate().unwrap(), agents, &groups);
        let mut controller = Controller::new(setting, (0..40).map(AgentId), rule, privatise).unwrap();
        let mut random = Random::new(8);
        while let Some(model) = controller.model() {
            let episode = model.episode;
            for agent in 0..40 {
                let (gram, feature_sum) = random.summary(2, 0.3);
                controller.receive(AgentId(agent), episode, gram, feature_sum).unwrap();
            }
            controller.close_episode().unwrap();
        }
        assert_eq!(controller.counts(), &Default::default());
        let units: Vec<_> = controller.suspicions().map(|suspicion| suspicion.unit).collect();
        assert_eq!(units, (0..9).map(Stream).collect::<Vec<_>>());
    }
}
