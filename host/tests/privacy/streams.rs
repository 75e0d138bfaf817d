//! Private streams: sensitivity of messages, releases, and restarts.

use std::collections::BTreeSet;
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

use crate::random::Random;
use fedbandit::aggregate::{AggregateError, GeometricMedian, Groups, Mean, Tolerance};
use fedbandit::algorithm::{
    AdmissionError, AgentId, Controller, ControllerConfig, Episodes, Level, PaperRule, Privatise, SetupError, Streams,
};
use fedbandit::math::symmetric;
use fedbandit::privacy::calibration::{Budget, Mechanism, NoiseBound, NoiseNorms, paper_bound, sensitivity, truncated};
use fedbandit::privacy::key::NoiseKey;
use fedbandit::privacy::{Plan, PlanError, Private, RunKey, Seed, Stream};
use fedbandit_core::{packed_len, rounding};
use nalgebra::{DMatrix, DVector};

const MECHANISMS: [Mechanism; 3] = [Mechanism::Tree, Mechanism::Honaker, Mechanism::Blt];
/// Episode length L.
const LENGTH: u32 = 64;

fn config(dimension: u8, episodes: u32, level: Level) -> ControllerConfig {
    let episodes = Episodes::new(LENGTH * episodes, LENGTH, LENGTH).unwrap();
    ControllerConfig { dimension, episodes, level, reward_bound: Some(1.0), window: 2, half_life: None }
}

fn plan(dimension: u8, episodes: u32, level: Level, mechanism: Mechanism) -> Plan {
    Plan::new(&config(dimension, episodes, level), Budget::new(1.0, 1e-6).unwrap(), mechanism, 1).unwrap()
}

fn values(streams: &Streams) -> Vec<f64> {
    [streams.gram.values(), streams.feature_sum.values()].concat()
}

impl Random {
    fn unit_vector(&mut self, dimension: usize) -> DVector<f64> {
        DVector::from_fn(dimension, |_, _| self.symmetric()).normalize()
    }

    /// Returns a summary as a device computes it, in f32: actions near a common one, rewards up to 1.
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

/// Packed triangle of U, and u.
type Message = (Vec<f64>, Vec<f64>);

fn pack(matrix: &DMatrix<f64>) -> Vec<f64> {
    let n = matrix.nrows();
    (0..n).flat_map(|i| (i..n).map(move |j| matrix[(i, j)])).collect()
}

// --- sensitivity -----------------------------------------------------------------------------------------------------

/// Returns special values and numbers around the limits of a check.
fn boundary_values(limit: f64) -> Vec<f64> {
    let mut numbers = vec![f64::NAN, f64::INFINITY, -0.0, 5e-324, f64::MIN_POSITIVE, f64::MAX, 1e154, 1e19, 0.5, 1.0];
    for factor in [1.0, FRAC_1_SQRT_2, SQRT_2, 0.5, 2.0] {
        let near = limit * factor;
        numbers.extend([near, near.next_up(), near.next_down(), near * 1.000_01, near * 0.999_99]);
    }
    numbers.iter().flat_map(|number| [*number, -number]).collect()
}

/// Returns messages at and beyond the limits: single entries, rank one, at the tolerances, and honest summaries.
fn messages(dimension: usize, random: &mut Random) -> Vec<Message> {
    let delta = rounding::sums(LENGTH, dimension);
    let length = f64::from(LENGTH);
    let mut messages = Vec::new();
    for number in boundary_values(length * (1.0 + delta)) {
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

/// Returns max ‖q − q′‖² over the quantised messages; a rejected message counts as 0.
fn largest_squared_distance(plan: &Plan, messages: &[Message]) -> i128 {
    let zero = vec![0; plan.coordinates()];
    let quantised: BTreeSet<Vec<i64>> =
        messages.iter().map(|(gram, sum)| plan.quantise(gram, sum).unwrap_or_else(|| zero.clone())).collect();
    let quantised: Vec<_> = quantised.into_iter().collect();
    let distance = |a: &[i64], b: &[i64]| a.iter().zip(b).map(|(a, b)| i128::from(a - b).pow(2)).sum();
    let pairs = quantised.iter().enumerate().flat_map(|(i, a)| quantised[i..].iter().map(move |b| (a, b)));
    pairs.map(|(a, b)| distance(a, b)).max().unwrap()
}

#[test]
fn quantised_messages_differ_by_at_most_the_sensitivity() {
    let mut random = Random::new(1);
    for dimension in [1_u8, 2, 3, 8] {
        let messages = messages(dimension.into(), &mut random);
        for level in [Level::Paper, Level::Strict] {
            let plan = plan(dimension, 32, level, Mechanism::Tree);
            let delta = sensitivity(level, LENGTH, dimension.into());
            let largest_squared_distance = largest_squared_distance(&plan, &messages);
            let limit = truncated(delta, plan.step(), dimension.into()) / plan.step();
            assert!(largest_squared_distance <= limit.powi(2) as i128, "D = {dimension}, {level:?}");
            // At the paper's level truncation adds nothing. In one dimension there is no angle of 120°.
            assert!(level == Level::Strict || largest_squared_distance <= (delta / plan.step()).powi(2) as i128);
            let reached = (largest_squared_distance as f64).sqrt() * plan.step() / delta;
            assert!(reached > if dimension > 1 { 0.9999 } else { 0.9 }, "D = {dimension}, {level:?}: {reached}");
        }
    }
}

/// Quantisation only shrinks values, so an honest summary at the limit is still admitted.
#[test]
fn honest_summaries_are_admitted_after_quantisation() {
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
fn plan_keeps_grid_fine_and_sums_in_range() {
    let long = ControllerConfig {
        episodes: Episodes::new(65_536 * 4096, 65_536, 65_536).unwrap(),
        ..config(50, 2, Level::Strict)
    };
    for config in [config(1, 2, Level::Strict), config(8, 1, Level::Paper), config(8, 1024, Level::Strict), long] {
        for (mechanism, mu) in MECHANISMS.into_iter().flat_map(|m| [0.5, 1.0, 8.0, 1e3].map(|mu| (m, mu))) {
            let plan = Plan::new(&config, Budget::new(mu, 1e-6).unwrap(), mechanism, 1).unwrap();
            let bits = (plan.gaussian().sigma() as f64).log2();
            assert!(bits < 25.01 && (bits >= 24.0 || mu == 1e3), "{mechanism}, μ = {mu}: {bits}");
            let most = f64::from(config.episodes.length(1)) * 1.01 / plan.step();
            assert!(plan.step().log2().fract() == 0.0 && most < 1.02 * (1 << 26) as f64);
        }
    }
}

/// Noise of 200 runs without messages. With δ = 10⁻⁹, any run of the six cases exceeds the bounds with probability
/// 6·200·δ/4 = 3·10⁻⁷. The variance is checked to six deviations: 42 checks, probability 2·10⁻⁹ each.
#[test]
fn noise_of_a_run_is_within_its_bounds() {
    const RUNS: u64 = 200;
    let groups = Groups::new(12, 4, 2).unwrap();
    for (mechanism, group_size) in MECHANISMS.into_iter().flat_map(|mechanism| [(mechanism, 1), (mechanism, 3)]) {
        let plan = plan(4, 8, Level::Strict, mechanism);
        let fleet = plan.fleet(12, group_size, 1e-9);
        let mut squares = [0.0; 9];
        for seed in (0..RUNS).map(Seed) {
            let mut private = match group_size {
                1 => Private::agents(plan.clone(), seed, 12).unwrap(),
                _ => Private::groups(plan.clone(), seed, 12, &groups).unwrap(),
            };
            for episode in 2..=8 {
                let bounds = plan.noise_norms(NoiseBound::Exact, &fleet, episode);
                let streams = private.release(episode);
                for (gram, feature_sum) in streams.gram.rows().zip(streams.feature_sum.rows()) {
                    let norm = |values: &[f64]| DVector::from_column_slice(values).norm();
                    assert!(symmetric::matrix(gram, 4).symmetric_eigenvalues().amax() < bounds.spectral);
                    assert!(norm(gram) < bounds.frobenius && norm(feature_sum) < bounds.vector);
                    squares[episode as usize] += norm(feature_sum).powi(2);
                }
            }
        }
        let draws = (4 * RUNS * u64::from(12 / group_size)) as f64;
        for episode in 2..=8 {
            let sigma = plan.noise().release_sigma(episode - 1) / f64::from(group_size);
            let ratio = squares[episode as usize] / draws / sigma.powi(2);
            assert!(
                (ratio - 1.0).abs() < 6.0 * (2.0 / draws).sqrt(),
                "{mechanism}, group size {group_size}, episode {episode}: variance ratio {ratio}"
            );
        }
    }
}

#[test]
fn plan_reports_bounds_of_its_noise() {
    for mechanism in MECHANISMS {
        let plan = plan(4, 8, Level::Strict, mechanism);
        assert_eq!(plan.noise().node_sigma(), plan.step() * plan.gaussian().sigma() as f64);
        let fleet = plan.fleet(12, 1, 0.05);
        let norms = |bound, episode| plan.noise_norms(bound, &fleet, episode);
        assert_eq!(norms(NoiseBound::Exact, 1).frobenius, 0.0, "the first model has noise");
        assert_eq!(norms(NoiseBound::Exact, 8), norms(NoiseBound::Exact, 9), "bounds change after the last release");
        let paper = paper_bound(Budget::new(1.0, 1e-6).unwrap(), 12, 8.0 * 64.0, 4, 0.05) * 64.0;
        assert_eq!(norms(NoiseBound::Paper, 1), NoiseNorms { spectral: paper, frobenius: 2.0 * paper, vector: paper });
    }
}

#[test]
fn plan_rejects_configurations_without_privacy() {
    let plan = |config| Plan::new(&config, Budget::new(1.0, 1e-6).unwrap(), Mechanism::Tree, 1).unwrap_err();
    assert_eq!(plan(config(0, 2, Level::Strict)), PlanError::Dimension);
    let unbounded = ControllerConfig { reward_bound: None, ..config(2, 2, Level::Strict) };
    assert_eq!(plan(unbounded), PlanError::Admission(AdmissionError::PrivacyNeedsBoundedRewards));
    let tiny = Budget::new(1e-9, 1e-12).unwrap();
    let many = config(255, 1 << 20, Level::Strict);
    assert_eq!(Plan::new(&many, tiny, Mechanism::Blt, 1).unwrap_err(), PlanError::TooMuchNoise);
}

// --- releases --------------------------------------------------------------------------------------------------------

/// (agent, episode, message) in order of arrival.
type Arrivals = Vec<(usize, u32, Message)>;

/// Four episodes of three agents. Agent 1 sends its second message late, during the third episode.
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

/// Returns a plan for each admission level.
fn plans(mechanism: Mechanism) -> [Plan; 2] {
    [Level::Paper, Level::Strict].map(|level| plan(2, 5, level, mechanism))
}

#[test]
fn restart_repeats_releases_in_any_order_of_arrival() {
    for plan in MECHANISMS.into_iter().flat_map(plans) {
        let stored = RunKey::generate().unwrap().to_stored();
        let groups = Groups::new(3, 2, 9).unwrap();
        let run_both = |arrivals: &[Arrivals]| {
            let key = || RunKey::from_stored(&stored[..]).unwrap();
            let agents = run(Private::agents(plan.clone(), key(), 3).unwrap(), arrivals);
            (agents, run(Private::groups(plan.clone(), key(), 3, &groups).unwrap(), arrivals))
        };
        let original = arrivals(4);
        let mut reordered = original.clone();
        reordered.iter_mut().for_each(|messages| messages.reverse());
        assert_eq!(run_both(&original), run_both(&reordered));
        assert!(run_both(&original).0[0].iter().all(|value| *value == 0.0), "the first release has noise");
        assert!(run_both(&original).0[1..].iter().flatten().all(|value| *value != 0.0), "a later release has no noise");
    }
}

/// After a rollback a different message may arrive. The releases' difference must not reveal that of the messages.
#[test]
fn different_data_get_different_noise() {
    for mechanism in MECHANISMS {
        let plan = plan(2, 5, Level::Strict, mechanism);
        let released = |arrivals: &[Arrivals]| run(Private::agents(plan.clone(), Seed(1), 3).unwrap(), arrivals);
        let original = arrivals(5);
        let mut changed = original.clone();
        // One grid step in one coordinate of agent 0's first message; any larger change comes from the noise.
        changed[0][0].2.0[0] -= plan.step();
        let (before, after) = (released(&original), released(&changed));
        // V̂ first, three values per agent, then v̂, two per agent.
        let of_agent =
            |release: &[f64], agent: usize| [&release[3 * agent..][..3], &release[9 + 2 * agent..][..2]].concat();
        for k in 1..=4 {
            let mut pairs = of_agent(&before[k], 0).into_iter().zip(of_agent(&after[k], 0));
            assert!(
                pairs.all(|(before, after)| (before - after).abs() > 4.0 * plan.step()),
                "{mechanism}, release {k}"
            );
            assert_eq!(of_agent(&before[k], 1), of_agent(&after[k], 1), "{mechanism}, release {k}");
            assert_eq!(of_agent(&before[k], 2), of_agent(&after[k], 2), "{mechanism}, release {k}");
        }
    }
}

/// Only the sum is released: different messages with the same sum yield the same release.
#[test]
fn equal_sums_get_equal_noise() {
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

// --- groups ----------------------------------------------------------------------------------------------------------

#[test]
fn groups_of_wrong_size_are_rejected() {
    let config = config(1, 4, Level::Strict);
    let groups = Groups::new(7, 3, 5).unwrap();
    let plan = plan(1, 4, Level::Strict, Mechanism::Tree);
    let rule = PaperRule::new(Mean, Mean, |_| (1.0, 1.0));
    let result =
        Controller::new(config, (0..6).map(AgentId), rule, |agents, _| Private::groups(plan, Seed(1), agents, &groups));
    let error = AggregateError::WrongNumber { expected: 7, actual: 6 };
    assert_eq!(result.map(|_| ()), Err(SetupError::Rule(error)));
}

// --- controller ------------------------------------------------------------------------------------------------------

#[test]
fn controller_runs_on_private_streams() {
    for mechanism in MECHANISMS {
        let config = config(2, 6, Level::Strict);
        let plan = plan(2, 6, Level::Strict, mechanism);
        let sigma = plan.step() * plan.gaussian().sigma() as f64;
        let groups = Groups::for_corruption(40, 3, 1).unwrap();
        let median = GeometricMedian::new(Tolerance::Relative(1e-6));
        let rule = PaperRule::new(median.clone(), median, |_| (8.0 * sigma, 1.0));
        let privatise = |agents, _: usize| Private::groups(plan, RunKey::generate().unwrap(), agents, &groups);
        let mut controller = Controller::new(config, (0..40).map(AgentId), rule, privatise).unwrap();
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
        let units: Vec<_> = controller.deviations().map(|deviation| deviation.unit).collect();
        assert_eq!(units, (0..9).map(Stream).collect::<Vec<_>>());
    }
}
