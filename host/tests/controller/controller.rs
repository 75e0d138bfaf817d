//! The controller against a naive implementation of Algorithm 1, against hostile messages, and with real agents.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::rc::Rc;

use fedbandit::aggregate::{
    Aggregate, AggregateError, Aggregator, GeometricMedian, Mean, Points, ShapeError, Tolerance, objective,
};
use fedbandit::algorithm::{
    AdmissionError, AgentId, ClosedEpisode, Controller, ControllerConfig, Deviation, EpisodeLenError, Episodes,
    Estimate, Evidence, Fault, Level, ModelParameters, NoPrivacy, PaperRule, Privatise, Rule, Schedule, SetupError,
    Solution, Streams,
};
use fedbandit::math::symmetric;
use fedbandit_core::{Action, Agent, MAX_EPISODE_LEN, Model, Prior, Rewards, packed_len, project};
use nalgebra::{DMatrix, DVector};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use rand_pcg::rand_core::Rng;

use crate::naive::{IsAgg, KINDS, Kind, Message, Naive, beta, geometric_median, is_mean, is_median, lambda};
use crate::random::Random;

// --- helpers --------------------------------------------------------------------------------------------------------

/// Slow reference implementation of the geometric median.
#[derive(Clone, Debug)]
struct Median;

impl Aggregator for Median {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        let rows: Vec<_> = points.rows().map(DVector::from_column_slice).collect();
        answer(points, geometric_median(&rows).as_slice().to_vec())
    }
}

fn answer(points: &Points<'_>, point: Vec<f64>) -> Result<Aggregate, AggregateError> {
    if points.is_empty() {
        return Err(AggregateError::Empty);
    }
    let objective = objective(points, &point);
    Ok(Aggregate { point, objective, certified_gap: objective, passes: 1 })
}

/// Returns a configuration with T steps in episodes of 8 and the paper's admission checks.
fn config(dimension: u8, horizon: u32) -> ControllerConfig {
    let episodes = Episodes::new(horizon, 8, 8).unwrap();
    ControllerConfig { dimension, episodes, level: Level::Paper, reward_bound: None, window: 0, half_life: None }
}

/// Returns agents whose numbers have gaps and are not in order.
fn agents(n: u32) -> Vec<AgentId> {
    (0..n).rev().map(|agent| AgentId(10 * agent + 7)).collect()
}

fn paper_rule<A: Aggregator + Clone>(aggregator: A) -> impl Rule {
    PaperRule::new(aggregator.clone(), aggregator, |episode: u32| (lambda(episode), beta(episode)))
}

fn theta(model: &Model<'_>) -> DVector<f64> {
    DVector::from_iterator(model.theta.len(), model.theta.iter().map(f64::from))
}

fn design(model: &Model<'_>) -> DMatrix<f64> {
    let packed: Vec<_> = model.design.iter().map(f64::from).collect();
    let dimension = model.theta.len();
    symmetric::matrix(&symmetric::scaled(&packed, dimension).collect::<Vec<_>>(), dimension)
}

fn pack(matrix: &DMatrix<f64>) -> Vec<f64> {
    let n = matrix.nrows();
    (0..n).flat_map(|i| (i..n).map(move |j| matrix[(i, j)])).collect()
}

/// Returns true if a device accepts the model.
fn device_accepts<const D: usize>(model: &Model<'_>) -> bool {
    let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 1, rewards: Rewards::Unbounded };
    Agent::<D>::new(&prior).unwrap().begin(model).is_ok()
}

// --- Algorithm 1 ----------------------------------------------------------------------------------------------------

/// Rule that records its input.
struct RecordingRule<R> {
    rule: R,
    seen: Rc<RefCell<Option<Streams>>>,
}

impl<R: Rule> Rule for RecordingRule<R> {
    fn estimate(&mut self, streams: &Streams, episode: u32) -> Result<Estimate, AggregateError> {
        *self.seen.borrow_mut() = Some(streams.clone());
        self.rule.estimate(streams, episode)
    }
}

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    agents: u32,
    config: ControllerConfig,
    /// One in this many messages is malformed.
    malformed: usize,
}

fn case() -> impl Strategy<Value = Case> {
    let level = prop_oneof![Just(Level::Paper), Just(Level::Strict)];
    let bound = prop_oneof![Just(None), Just(Some(1.0)), Just(Some(3.0))];
    let lengths = (0..4_u32, 0..4_u32, 1..90_u32)
        .prop_map(|(first, doublings, horizon)| Episodes::new(horizon, 1 << first, 3 << (first + doublings)).unwrap());
    let half_life = prop_oneof![Just(None), (1..200_u32).prop_map(NonZeroU32::new)];
    let config = (2..6_u8, lengths, level, bound, 0..4_u32, half_life).prop_map(
        |(dimension, episodes, level, reward_bound, window, half_life)| ControllerConfig {
            dimension,
            episodes,
            level,
            reward_bound,
            window,
            half_life,
        },
    );
    // The geometric median of an odd number of agents is unique.
    (any::<u64>(), 0..5_u32, config, 2..8_usize).prop_map(|(seed, n, config, malformed)| Case {
        seed,
        agents: 2 * n + 1,
        config,
        malformed,
    })
}

/// Runs a controller and the naive implementation side by side, comparing all results.
fn side_by_side<A: Aggregator + Clone>(case: &Case, aggregator: A, is_agg: IsAgg) -> Naive {
    let Case { seed, config, .. } = *case;
    let enrolled = agents(case.agents);
    let mut random = Random::new(seed);
    let seen = Rc::new(RefCell::new(None));
    let rule = RecordingRule { rule: paper_rule(aggregator), seen: seen.clone() };
    let mut controller = Controller::new(config, enrolled.clone(), rule, NoPrivacy::new).unwrap();
    let mut naive = Naive::new(config, enrolled.len());
    loop {
        compare(&controller, &mut naive, &seen.borrow().clone().unwrap(), is_agg);
        for _ in 0..2 * enrolled.len() {
            let episode = naive.k.saturating_sub(random.below(4 + config.window as usize).saturating_sub(2) as u32)
                + u32::from(random.below(10) == 0);
            let agent = Some(random.below(enrolled.len() + 1)).filter(|agent| *agent < enrolled.len());
            let kind = if random.below(case.malformed) == 0 { KINDS[random.below(KINDS.len())] } else { Kind::Honest };
            let message = Message::new(kind, config.dimension.into(), config.episodes.length(episode), &mut random);
            let id = agent.map_or(AgentId(1), |agent| enrolled[agent]);
            let feature_sum = message.feature_sum.as_slice();
            let outcome = if kind == Kind::Asymmetric || random.below(2) == 0 {
                controller.receive_matrix(id, episode, message.gram.transpose().as_slice(), feature_sum)
            } else {
                controller.receive(id, episode, pack(&message.gram), feature_sum.iter().copied())
            };
            assert_eq!(outcome, naive.receive(agent, episode, &message), "{kind:?} of episode {episode}");
        }
        assert_eq!(controller.counts().faults, naive.faults);
        assert_eq!((controller.missing(), controller.missing_agents().count()), (naive.missing(), naive.missing()));
        let closed = controller.close_episode().unwrap();
        assert_eq!(closed, Some(ClosedEpisode { episode: naive.k, missing: naive.missing() }));
        naive.k += 1;
        if controller.model().is_none() {
            break;
        }
    }
    assert_eq!(naive.k, config.episodes.count() + 1);
    assert_eq!((controller.counts().repaired, controller.counts().kept), (naive.repaired, 0));
    naive
}

/// Compares lines 3 and 4.
fn compare(controller: &Controller<NoPrivacy, impl Rule>, naive: &mut Naive, streams: &Streams, is_agg: IsAgg) {
    let d = streams.dimension();
    let full = |scaled: &[f64]| symmetric::matrix(scaled, d);
    let sums = naive.sums();
    for (i, (gram, feature_sum)) in sums.iter().enumerate() {
        let rounding = 1e-13 * naive.magnitude(i);
        assert!((full(streams.gram.row(i)) - gram).amax() <= rounding, "V of agent {i}");
        let error = (DVector::from_column_slice(streams.feature_sum.row(i)) - feature_sum).amax();
        assert!(error <= if naive.config.half_life.is_some() { rounding } else { 0.0 }, "v of agent {i}");
    }
    let flat = |matrix: &DMatrix<f64>| DVector::from_column_slice(matrix.as_slice());
    let estimate = controller.estimate();
    let gram = full(&estimate.gram.point);
    let b = DVector::from_column_slice(&estimate.feature_sum.point);
    assert!(is_agg(&sums.iter().map(|(gram, _)| flat(gram)).collect::<Vec<_>>(), &flat(&gram)), "Agg of V");
    assert!(is_agg(&sums.iter().map(|(_, v)| v.clone()).collect::<Vec<_>>(), &b), "Agg of v");

    let model = controller.model().unwrap();
    let (expected_design, expected_theta) = naive.solve(gram, &b);
    assert!((design(&model) - &expected_design).amax() <= 1e-7 * expected_design.amax(), "Λ");
    assert!((theta(&model) - &expected_theta).amax() <= 1e-7 * expected_theta.amax(), "θ");
    let rewards = if naive.config.reward_bound == Some(1.0) { Rewards::Clipped } else { Rewards::Unbounded };
    assert_eq!(model.beta, beta(naive.k) as f32);
    assert_eq!(
        (model.episode, model.episode_len, model.rewards),
        (naive.k, naive.config.episodes.length(naive.k), rewards)
    );
}

#[test]
fn controller_matches_algorithm_1() {
    let config = ProptestConfig {
        cases: 200,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let faults = RefCell::new(BTreeMap::new());
    let repaired = RefCell::new(0);
    TestRunner::new(config)
        .run(&case(), |case| {
            let mean = side_by_side(&case, Mean, is_mean);
            let median = side_by_side(&case, Median, is_median);
            side_by_side(&case, GeometricMedian::new(Tolerance::Relative(1e-9)), is_median);
            for (fault, count) in mean.faults.iter().chain(&median.faults) {
                *faults.borrow_mut().entry(*fault).or_insert(0) += count;
            }
            *repaired.borrow_mut() += mean.repaired + median.repaired;
            Ok(())
        })
        .unwrap();
    assert_eq!(faults.borrow().len(), 9, "a fault did not occur: {faults:?}");
    assert!(faults.borrow().values().all(|count| *count > 50), "a fault occurred rarely: {faults:?}");
    assert!(*repaired.borrow() > 50, "only {repaired:?} repairs occurred");
}

// --- hostile messages -----------------------------------------------------------------------------------------------

const EXTREMES: [f64; 14] = [
    0.0,
    1.0,
    -1.0,
    8.0,
    -64.0,
    1e30,
    -1e30,
    f32::MAX as f64,
    1e300,
    -1e300,
    f64::MAX,
    f64::MIN_POSITIVE,
    f64::NAN,
    f64::NEG_INFINITY,
];

/// Sends a mix of extreme values from all agents and checks that devices accept each model. Returns (repaired, kept).
fn bombard<const D: usize>(level: Level, aggregator: impl Aggregator + Clone, seed: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let reward_bound = (level == Level::Strict).then_some(1.0);
    let config = ControllerConfig { level, reward_bound, window: 2, ..config(D as u8, 8 * 12) };
    let mut controller = Controller::new(config, agents(5), paper_rule(aggregator), NoPrivacy::new).unwrap();
    while let Some(model) = controller.model() {
        assert!(device_accepts::<D>(&model), "D {D}, seed {seed}: {model:?}");
        let episode = model.episode;
        // Limits the magnitude in this run, so that extremes of all sizes take effect.
        let largest = 2 + (seed as usize) % (EXTREMES.len() - 1);
        for agent in agents(6) {
            let mut value = || EXTREMES[random.below(largest)];
            let gram: Vec<_> = (0..packed_len(D)).map(|_| value()).collect();
            let feature_sum: Vec<_> = (0..D).map(|_| value()).collect();
            // The result does not matter here.
            _ = controller.receive(agent, episode - episode.min(random.below(4) as u32), gram, feature_sum);
        }
        controller.close_episode().unwrap();
    }
    let Estimate { gram, feature_sum, .. } = controller.estimate();
    if gram.point.iter().chain(&feature_sum.point).all(|value| value.is_finite()) {
        assert!(controller.deviations().all(|unit| unit.gram >= 0.0 && unit.feature_sum >= 0.0), "deviation is NaN");
    }
    (controller.counts().repaired, controller.counts().kept)
}

#[test]
fn devices_accept_all_models_despite_extreme_messages() {
    let median = GeometricMedian::new(Tolerance::Relative(1e-6));
    let (mut repaired, mut kept) = (0, 0);
    for seed in 0..60 {
        for (r, k) in [
            bombard::<1>(Level::Paper, Mean, seed),
            bombard::<2>(Level::Paper, Mean, seed),
            bombard::<3>(Level::Paper, median.clone(), seed),
            bombard::<8>(Level::Paper, Mean, seed),
        ] {
            repaired += r;
            kept += k;
        }
        assert_eq!(bombard::<2>(Level::Strict, Mean, seed), (0, 0), "strict admission prevents repairs");
        assert_eq!(bombard::<4>(Level::Strict, median.clone(), seed), (0, 0));
    }
    assert!(repaired > 100 && kept > 300, "{repaired} repaired, {kept} kept");
}

#[test]
fn huge_message_to_the_mean_keeps_the_last_parameters() {
    for huge in [1e30_f32, f32::MAX] {
        let mut controller = Controller::new(config(2, 8 * 6), agents(3), paper_rule(Mean), NoPrivacy::new).unwrap();
        let mut before = None;
        while let Some(model) = controller.model() {
            let (episode, values) = (model.episode, (theta(&model), design(&model), model.beta));
            match episode {
                ..4 => before = Some(values),
                _ => assert_eq!(
                    before.as_ref(),
                    Some(&values),
                    "the last valid parameters stay in use, including the width"
                ),
            }
            for (i, agent) in agents(3).into_iter().enumerate() {
                let value = if (episode, i) == (3, 1) { huge } else { 1.0 };
                controller.receive(agent, episode, [4.0, 0.0, value], [1.0, value]).unwrap();
            }
            controller.close_episode().unwrap();
            let kept = episode.clamp(2, 5) - 2;
            assert_eq!((controller.counts().kept, controller.counts().repaired), (kept.into(), 0));
        }
        assert_eq!(controller.estimate().parameters, None);
    }
}

/// Aggregator with a constant result.
#[derive(Clone, Debug)]
struct Fixed(f64);

impl Aggregator for Fixed {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        answer(points, vec![self.0; points.dimension()])
    }
}

#[test]
fn invalid_first_model_is_rejected() {
    let start = |lambda, beta, centre| {
        let rule = PaperRule::new(Fixed(centre), Fixed(centre), move |_| (lambda, beta));
        Controller::new(config(2, 8), agents(3), rule, NoPrivacy::new).map(|_| ())
    };
    assert_eq!(start(1.0, 0.0, 0.0), Ok(()));
    for (lambda, beta, centre) in [
        (0.0, 1.0, 0.0),
        (-1.0, 1.0, 0.0),
        (f64::NAN, 1.0, 0.0),
        (f64::INFINITY, 1.0, 0.0),
        (1e19, 1.0, 0.0),
        (1.0, -1.0, 0.0),
        (1.0, f64::NAN, 0.0),
        (1.0, 1e19, 0.0),
        (1.0, 1.0, f64::NAN),
        (1.0, 1.0, 1e300),
    ] {
        assert_eq!(start(lambda, beta, centre), Err(SetupError::FirstModel), "λ {lambda}, β {beta}, Agg {centre}");
    }
}

#[test]
fn parameters_are_those_that_a_device_accepts() {
    let design = |a, b, c| DMatrix::from_row_slice(2, 2, &[a, b, b, c]);
    let new = |theta, design, beta| ModelParameters::new(&DVector::from_vec(vec![theta, 0.0]), &design, beta);
    let parameters = new(3.0, design(2.0, 1.0, 4.0), 0.5).unwrap();
    let model = parameters.model(9, 8, Rewards::Clipped);
    assert!(device_accepts::<2>(&model));
    assert_eq!((model.theta, model.design, model.beta), ((&[3.0, 0.0]).into(), (&[2.0, 1.0, 4.0]).into(), 0.5));
    assert_eq!((model.episode, model.episode_len, model.rewards), (9, 8, Rewards::Clipped));
    assert_eq!(new(3.0, design(1.0, 2.0, 1.0), 0.5), None, "indefinite");
    assert_eq!(new(3.0, design(1.0, 1.0, 1.0 + 1e-8), 0.5), None, "too close to singular for f32");
    assert_eq!(new(2e18, design(2.0, 1.0, 4.0), 0.5), None, "θ out of range");
    assert_eq!(new(3.0, design(2.0, 1.0, 4.0), -0.5), None, "negative width");
}

#[test]
fn matrices_and_vectors_have_separate_aggregators() {
    let streams = Streams::zeros(3, 2).unwrap();
    let estimate = PaperRule::new(Fixed(2.0), Fixed(3.0), |_| (1.0, 1.0)).estimate(&streams, 1).unwrap();
    assert_eq!((estimate.gram.point, estimate.feature_sum.point), (vec![2.0; 3], vec![3.0; 2]));
}

/// Schedule with λ = max_i ‖V̂_i‖_F and β = ‖Λθ − b‖ + λ, where the first term is 0.
struct DataDependent;

impl Schedule for DataDependent {
    fn lambda(&self, evidence: &Evidence<'_>) -> f64 {
        evidence.streams.gram.rows().map(|row| DVector::from_column_slice(row).norm()).fold(1.0, f64::max)
    }

    fn beta(&self, evidence: &Evidence<'_>, solution: &Solution<'_>) -> f64 {
        let b = DVector::from_column_slice(evidence.feature_sum);
        (solution.design * solution.theta - b).norm() + solution.lambda
    }
}

#[test]
fn schedule_may_depend_on_data() {
    let rule: Box<dyn Rule> = Box::new(PaperRule::new(Mean, Mean, DataDependent));
    let mut controller = Controller::new(config(2, 16), agents(2), rule, NoPrivacy::new).unwrap();
    controller.receive(AgentId(7), 1, [2.0, 1.0, 2.0], [3.0, 5.0]).unwrap();
    controller.close_episode().unwrap();
    let model = controller.model().unwrap();
    let lambda = 10.0_f64.sqrt();
    let expected = DMatrix::from_row_slice(2, 2, &[1.0 + lambda, 0.5, 0.5, 1.0 + lambda]);
    assert!((design(&model) - expected).amax() < 1e-6 && (f64::from(model.beta) - lambda).abs() < 1e-6);
}

// --- single properties ----------------------------------------------------------------------------------------------

#[test]
fn indefinite_design_is_repaired_and_counted() {
    let rule = PaperRule::new(Mean, Mean, |_| (2.0, 0.5));
    let mut controller = Controller::new(config(2, 24), agents(3), rule, NoPrivacy::new).unwrap();
    for agent in agents(3) {
        controller.receive(agent, 1, [-100.0, 0.0, 5.0], [3.0, 14.0]).unwrap();
    }
    controller.close_episode().unwrap();
    assert_eq!((controller.estimate().raised, controller.counts().repaired), (1, 1));
    let model = controller.model().unwrap();
    // λ/2 = 1 instead of −98; 5 + λ stays. θ follows the repaired Λ.
    let error = (design(&model) - DMatrix::from_row_slice(2, 2, &[1.0, 0.0, 0.0, 7.0])).amax();
    assert!(error < 1e-6 && (theta(&model) - DVector::from_vec(vec![3.0, 2.0])).amax() < 1e-6);

    for agent in agents(3) {
        controller.receive(agent, 2, [200.0, 0.0, 5.0], [0.0, 0.0]).unwrap();
    }
    controller.close_episode().unwrap();
    assert_eq!(
        (controller.estimate().raised, controller.counts().repaired),
        (0, 1),
        "the repair does not change the sums"
    );
    assert_eq!(design(&controller.model().unwrap())[(0, 0)], 102.0);
}

#[test]
fn order_of_agents_does_not_matter() {
    let run = |order: &dyn Fn(&mut Vec<AgentId>, &mut Random)| {
        let mut shuffle = Random::new(5);
        let config = ControllerConfig { level: Level::Strict, ..config(3, 80) };
        let mut controller = Controller::new(config, agents(7), paper_rule(Median), NoPrivacy::new).unwrap();
        let mut models = Vec::new();
        while let Some(model) = controller.model() {
            let episode = model.episode;
            models.push((theta(&model), design(&model)));
            let mut arriving = agents(7);
            order(&mut arriving, &mut shuffle);
            for agent in arriving {
                let mut random = Random::new(u64::from(100 * agent.0 + episode));
                let message = Message::new(KINDS[random.below(7)], 3, 8, &mut random);
                _ = controller.receive(agent, episode, pack(&message.gram), message.feature_sum.iter().copied());
            }
            controller.close_episode().unwrap();
        }
        (models, controller.counts().clone())
    };
    let in_order = run(&|_, _| ());
    assert_eq!(in_order, run(&|agents, _| agents.reverse()));
    assert_eq!(in_order, run(&|agents, random| agents.sort_by_key(|_| random.0.next_u64())));
}

#[test]
fn episodes_cover_the_horizon() {
    let lengths = |horizon, first, longest| {
        let episodes = Episodes::new(horizon, first, longest).unwrap();
        (1..=episodes.count()).map(|k| episodes.length(k)).collect::<Vec<_>>()
    };
    assert_eq!(lengths(100, 4, 32), [4, 8, 16, 32, 32, 32]);
    assert_eq!(lengths(92, 4, 32), [4, 8, 16, 32, 32], "not more than needed");
    assert_eq!(lengths(93, 4, 32), [4, 8, 16, 32, 32, 32], "not less than needed");
    assert_eq!(lengths(10, 4, 32), [4, 8]);
    assert_eq!(lengths(30, 10, 10), [10, 10, 10]);
    assert_eq!(lengths(10, 3, 5), [3, 5, 5]);
    assert_eq!(lengths(0, 3, 5), [0_u32; 0]);
    assert_eq!(lengths(200_000, 1, 65_536).len(), 19);
    for (first, longest, length, limit) in
        [(0, 4, 0, 4), (5, 4, 5, 4), (1, 0, 0, MAX_EPISODE_LEN), (4, 65_537, 65_537, MAX_EPISODE_LEN)]
    {
        assert_eq!(Episodes::new(10, first, longest), Err(EpisodeLenError { length, limit }));
    }
}

#[test]
fn run_ends_after_its_last_episode() {
    let config = ControllerConfig { window: 63, ..config(2, 16) };
    let mut controller = Controller::new(config, agents(3), paper_rule(Mean), NoPrivacy::new).unwrap();
    controller.receive(AgentId(17), 1, [0.0; 3], [0.0; 2]).unwrap();
    assert_eq!(controller.missing_agents().collect::<Vec<_>>(), [AgentId(27), AgentId(7)]);
    assert_eq!(controller.close_episode(), Ok(Some(ClosedEpisode { episode: 1, missing: 2 })));
    assert_eq!(controller.close_episode(), Ok(Some(ClosedEpisode { episode: 2, missing: 3 })));
    assert_eq!((controller.close_episode(), controller.model()), (Ok(None), None));
    for episode in 0..4 {
        assert_eq!(controller.receive(AgentId(7), episode, [0.0; 3], [0.0; 2]), Err(Fault::WrongEpisode));
    }
    assert_eq!(controller.faults_of(AgentId(7)), Some(&BTreeMap::from([(Fault::WrongEpisode, 4)])));
    assert_eq!(controller.faults_of(AgentId(17)), Some(&BTreeMap::new()));
    assert_eq!(
        controller.expects(AgentId(17), 1),
        Err(Fault::Duplicate),
        "received messages are known after the end as well"
    );
    assert_eq!(controller.expects(AgentId(17), 2), Err(Fault::WrongEpisode));
    assert_eq!(controller.faults_of(AgentId(8)), None);
}

#[test]
fn late_summaries_count_once_within_the_window() {
    let config = ControllerConfig { window: 63, ..config(1, 8 * 70) };
    let mut controller = Controller::new(config, agents(1), paper_rule(Mean), NoPrivacy::new).unwrap();
    let send = |controller: &mut Controller<_, _>, episode| {
        Controller::<NoPrivacy, _>::receive(controller, AgentId(7), episode, [1.0], [1.0])
    };
    assert_eq!(send(&mut controller, 2), Err(Fault::WrongEpisode), "episode has not begun");
    for episode in 1..=64 {
        if episode != 1 && episode != 2 {
            assert_eq!(send(&mut controller, episode), Ok(()));
        }
        if episode < 64 {
            controller.close_episode().unwrap();
        }
    }
    assert_eq!(controller.estimate().gram.point, [61.0]);
    assert_eq!(send(&mut controller, 1), Ok(()), "63 episodes late");
    assert_eq!(send(&mut controller, 1), Err(Fault::Duplicate));
    controller.close_episode().unwrap();
    assert_eq!(controller.estimate().gram.point, [63.0]);
    assert_eq!(send(&mut controller, 1), Err(Fault::WrongEpisode), "64 episodes late");
    assert_eq!(send(&mut controller, 2), Ok(()));
    assert_eq!(send(&mut controller, 3), Err(Fault::Duplicate));
}

/// Episodes of 8 steps and a half-life of 16: each episode multiplies older weights by 2^(−1/2).
#[test]
fn half_life_weights_messages_by_the_age_of_their_episode() {
    let config = ControllerConfig { window: 3, half_life: NonZeroU32::new(16), ..config(1, 8 * 6) };
    let mut controller = Controller::new(config, agents(1), paper_rule(Mean), NoPrivacy::new).unwrap();
    let root = 0.5_f64.sqrt();
    let close = |controller: &mut Controller<NoPrivacy, _>, expected: f64| {
        controller.close_episode().unwrap();
        let Estimate { gram, feature_sum, .. } = controller.estimate();
        assert!((gram.point[0] - expected).abs() < 1e-12, "{} instead of {expected}", gram.point[0]);
        assert!((feature_sum.point[0] - expected / 2.0).abs() < 1e-12);
    };
    controller.receive(AgentId(7), 1, [4.0], [2.0]).unwrap();
    close(&mut controller, 4.0);
    // No message: an older one counts less all the same.
    close(&mut controller, 4.0 * root);
    controller.receive(AgentId(7), 3, [6.0], [3.0]).unwrap();
    close(&mut controller, 4.0 * 0.5 + 6.0);
    // A message of episode 2, whose weight is now 1/2, and one of the running episode 4.
    controller.receive(AgentId(7), 2, [8.0], [4.0]).unwrap();
    controller.receive(AgentId(7), 4, [1.0], [0.5]).unwrap();
    let last = 4.0 * 0.5 * root + 8.0 * 0.5 + 6.0 * root + 1.0;
    close(&mut controller, last);
    close(&mut controller, last * root);
    // The sums have the weights of the model that follows, here of none.
    assert!((controller.streams().gram.row(0)[0] - last * 0.5).abs() < 1e-12);
    controller.close_episode().unwrap();
    assert!(controller.model().is_none());
    assert!((controller.streams().gram.row(0)[0] - last * 0.5).abs() < 1e-12, "the run is over");
}

/// A late message of every age gives the same sums as the same message in time.
#[test]
fn late_summary_has_the_weight_of_its_episode() {
    let episodes = Episodes::new(400, 2, 32).unwrap();
    let config = ControllerConfig { episodes, window: 8, half_life: NonZeroU32::new(40), ..config(1, 0) };
    let sums = |delay: u32| {
        let mut controller = Controller::new(config, agents(1), paper_rule(Mean), NoPrivacy::new).unwrap();
        for episode in 1..=12 {
            let due = episode - u32::min(episode, delay);
            let late = if episode == 12 { due..=12 } else { due..=due };
            late.filter(|due| *due > 0)
                .for_each(|due| controller.receive(AgentId(7), due, [f64::from(due)], [1.0]).unwrap());
            controller.close_episode().unwrap();
        }
        let Streams { gram, feature_sum } = controller.streams();
        [gram.row(0)[0], feature_sum.row(0)[0]]
    };
    let in_time = sums(0);
    for delay in 1..=8 {
        for (late, in_time) in sums(delay).into_iter().zip(in_time) {
            assert!((late / in_time - 1.0).abs() < 1e-13, "{delay} episodes late: {late}, in time {in_time}");
        }
    }
}

#[test]
fn late_summary_is_checked_against_its_own_episode_length() {
    let config = ControllerConfig {
        level: Level::Strict,
        episodes: Episodes::new(60, 4, 32).unwrap(),
        window: 3,
        ..config(1, 0)
    };
    let mut controller = Controller::new(config, agents(3), paper_rule(Mean), NoPrivacy::new).unwrap();
    for _ in 0..3 {
        controller.close_episode().unwrap();
    }
    let mut send = |agent, episode, value: f64| controller.receive(AgentId(agent), episode, [value], [0.0]);
    assert_eq!(send(7, 1, 4.5), Err(Fault::Norm));
    assert_eq!(send(17, 1, 4.0), Ok(()));
    assert_eq!(send(7, 2, 8.0), Ok(()));
    assert_eq!(send(7, 4, 32.0), Ok(()));
    assert_eq!(send(17, 4, 33.0), Err(Fault::Norm));
    assert_eq!(send(17, 4, 32.0), Err(Fault::Duplicate), "a malformed first message takes the slot");
}

#[test]
fn invalid_settings_are_rejected() {
    fn start(config: ControllerConfig, enrolled: Vec<AgentId>) -> Result<(), SetupError> {
        Controller::new(config, enrolled, paper_rule(Mean), NoPrivacy::new).map(|_| ())
    }
    assert_eq!(start(config(2, 8), agents(3)), Ok(()));
    assert_eq!(start(config(0, 8), agents(3)), Err(SetupError::Shape(ShapeError::NoColumns)));
    assert_eq!(start(config(2, 8), vec![]), Err(SetupError::Rule(AggregateError::Empty)));
    let twice = [3, 4, 3].map(AgentId).to_vec();
    assert_eq!(start(config(2, 8), twice), Err(SetupError::EnrolledTwice(AgentId(3))));
    assert_eq!(start(ControllerConfig { window: 64, ..config(2, 8) }, agents(3)), Err(SetupError::Window(64)));
    let forgetting = ControllerConfig { half_life: NonZeroU32::new(64), ..config(2, 8) };
    assert_eq!(
        Controller::new(forgetting, agents(3), paper_rule(Mean), Groups::new).map(|_| ()),
        Err(SetupError::PrivateHalfLife)
    );
    let unbounded = ControllerConfig { reward_bound: Some(f64::INFINITY), ..config(2, 8) };
    assert_eq!(start(unbounded, agents(3)), Err(SetupError::Admission(AdmissionError::RewardBound(f64::INFINITY))));
    assert_eq!(
        Controller::new(config(2, 8), agents(3), paper_rule(Mean), Groups::new).map(|_| ()),
        Err(SetupError::Admission(AdmissionError::PrivacyNeedsBoundedRewards))
    );
}

#[test]
fn deviations_are_distances_in_median_radii() {
    let rule = PaperRule::new(Fixed(0.0), Fixed(0.0), |_| (1.0, 1.0));
    let mut controller = Controller::new(config(1, 80), agents(4), rule, NoPrivacy::new).unwrap();
    let seen = |controller: &Controller<NoPrivacy, _>| {
        controller
            .deviations()
            .map(|deviation: Deviation<_>| (deviation.gram, deviation.feature_sum))
            .collect::<Vec<_>>()
    };
    assert_eq!(seen(&controller), [(0.0, 0.0); 4], "nothing was received yet");
    for (agent, (gram, feature_sum)) in agents(4).into_iter().zip([(1.0, 0.0), (2.0, 0.0), (3.0, 5.0), (40.0, -7.0)]) {
        controller.receive(agent, 1, [gram], [feature_sum]).unwrap();
    }
    controller.close_episode().unwrap();
    let infinite = f64::INFINITY;
    assert_eq!(seen(&controller), [(0.5, 0.0), (1.0, 0.0), (1.5, infinite), (20.0, infinite)]);
    assert_eq!(controller.deviations().map(|deviation| deviation.unit).collect::<Vec<_>>(), agents(4));
}

// --- privacy --------------------------------------------------------------------------------------------------------

/// Fake privatiser: means of groups of three, with a constant in place of noise.
struct Groups {
    sums: Streams,
    released: Streams,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Group(usize);

impl Groups {
    fn new(agents: usize, dimension: usize) -> Result<Self, ShapeError> {
        let sums = Streams::zeros(agents / 3, dimension)?;
        Ok(Self { released: sums.clone(), sums })
    }
}

impl Privatise for Groups {
    type Unit = Group;

    const PRIVATE: bool = true;

    fn add(&mut self, agent: usize, _episode: u32, gram: &[f64], feature_sum: &[f64]) {
        let third = |values: &[f64]| values.iter().map(|value| value / 3.0).collect::<Vec<_>>();
        self.sums.add(agent / 3, &third(gram), &third(feature_sum));
    }

    fn release(&mut self, episode: u32) -> &Streams {
        self.released = self.sums.clone();
        for group in 0..self.released.gram.len() {
            let noise = f64::from(episode - 1) * (group as f64 + 1.0);
            self.released.add(group, &[noise, 0.0, noise], &[noise, 0.0]);
        }
        &self.released
    }

    fn streams(&self) -> &Streams {
        &self.released
    }

    type Saved = ();

    fn save(&self) {}

    fn restore(&mut self, (): ()) -> bool {
        false
    }

    fn unit(&self, row: usize, _enrolled: &[AgentId]) -> Group {
        Group(row)
    }
}

#[test]
fn privatiser_can_add_noise_to_groups() {
    let config = ControllerConfig { reward_bound: Some(1.0), ..config(2, 80) };
    let rule = PaperRule::new(Mean, Mean, |_| (1.0, 1.0));
    let mut controller = Controller::new(config, agents(6), rule, Groups::new).unwrap();
    assert_eq!(design(&controller.model().unwrap()), DMatrix::identity(2, 2), "no noise before the first message");
    for agent in agents(6) {
        controller.receive(agent, 1, [3.0, 1.0, 2.0], [1.0, 0.0]).unwrap();
    }
    assert_eq!(controller.receive(AgentId(7), 1, [0.0; 3], [0.0; 2]), Err(Fault::Duplicate));
    controller.close_episode().unwrap();
    // The mean over both groups of message + noise, plus λ = 1.
    let model = controller.model().unwrap();
    assert!((design(&model) - DMatrix::from_row_slice(2, 2, &[5.5, 1.0, 1.0, 4.5])).amax() < 1e-6);
    assert_eq!(model.rewards, Rewards::Clipped);
    let deviations: Vec<_> = controller.deviations().collect();
    assert_eq!(deviations.iter().map(|deviation| deviation.unit).collect::<Vec<_>>(), [Group(0), Group(1)]);
    assert!(deviations.iter().all(|deviation| (deviation.gram - 1.0).abs() < 1e-12));
    // With privacy, the paper's level limits norms to L = 8.
    assert_eq!(controller.receive(AgentId(7), 2, [9.0, 0.0, 0.0], [0.0; 2]), Err(Fault::Norm));
    assert_eq!(controller.counts().faults, BTreeMap::from([(Fault::Duplicate, 1), (Fault::Norm, 1)]));
}

// --- with agents ----------------------------------------------------------------------------------------------------

const D: usize = 4;
const THETA: [f64; D] = [0.6, -0.4, 0.5, -0.3];

/// Runs nine agents, the first three of which flip the sign of u. Returns ‖θ_k − θ*‖ by episode and the last deviations.
fn learn(aggregator: impl Aggregator + Clone) -> (Vec<f64>, BTreeMap<AgentId, f64>) {
    let config = ControllerConfig { level: Level::Strict, reward_bound: Some(1.0), ..config(D as u8, 0) };
    let config = ControllerConfig { episodes: Episodes::new(600, 4, 64).unwrap(), ..config };
    let rule = PaperRule::new(aggregator.clone(), aggregator, |_| (1.0, 0.5));
    let mut controller = Controller::new(config, agents(9), rule, NoPrivacy::new).unwrap();
    let mut random = Random::new(11);
    let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 4, rewards: Rewards::Clipped };
    let mut devices = vec![Agent::<D>::new(&prior).unwrap(); 9];
    let mut errors = Vec::new();
    while controller.model().is_some() {
        for (i, device) in devices.iter_mut().enumerate() {
            let model = controller.model().unwrap();
            device.begin(&model).unwrap();
            for _ in 0..model.episode_len {
                let decision_set: [Action<D>; 5] =
                    std::array::from_fn(|_| project(&Action::from_fn(|_, _| random.symmetric() as f32)));
                let x = decision_set[device.select(&decision_set).unwrap().index];
                let mean: f64 = x.iter().zip(THETA).map(|(x, theta)| f64::from(*x) * theta).sum();
                device.record(&x, (mean + 0.2 * random.symmetric()) as f32).unwrap();
            }
            let summary = device.finish();
            let sign = if i < 3 { -1.0 } else { 1.0 };
            let feature_sum = summary.feature_sum().map(|value| sign * value);
            controller.receive(agents(9)[i], summary.episode(), summary.gram(), feature_sum).unwrap();
        }
        errors.push((theta(&controller.model().unwrap()) - DVector::from_row_slice(&THETA)).norm());
        controller.close_episode().unwrap();
    }
    assert_eq!(controller.counts(), &Default::default(), "all summaries are valid");
    (errors, controller.deviations().map(|deviation| (deviation.unit, deviation.feature_sum)).collect())
}

#[test]
fn agents_learn_although_a_third_are_corrupted() {
    let (errors, deviations) = learn(GeometricMedian::new(Tolerance::Relative(1e-6)));
    let (first, last) = (errors[0], errors[errors.len() - 1]);
    assert!((first - 0.927).abs() < 0.001, "θ_1 = 0: {first}");
    assert!(last < 0.1, "‖θ_k − θ*‖: {errors:?}");
    let (mean, _) = learn(Mean);
    assert!(mean[mean.len() - 1] > 0.5, "the mean should not learn: {mean:?}");
    for (i, agent) in agents(9).iter().enumerate() {
        assert_eq!(deviations[agent] > 3.0, i < 3, "{deviations:?}");
    }
}

/// The rows of streams move when an agent is excluded, and an agent that is enrolled afterwards has none at the estimate.
#[test]
fn deviations_name_their_agents_after_exclusions_and_enrolments() {
    let setting = ControllerConfig { level: Level::Drop, ..config(1, 80) };
    let rule = PaperRule::new(Mean, Mean, |_| (1.0, 0.5));
    let mut controller = Controller::new(setting, (1..=5).map(AgentId), rule, NoPrivacy::new).unwrap();
    for agent in 1..=5 {
        controller.receive(AgentId(agent), 1, [f64::from(agent)], [0.0]).unwrap();
    }
    controller.close_episode().unwrap();
    let distances = |controller: &Controller<_, _>, agents: &[u32]| -> Vec<Option<f64>> {
        let distance = |agent: &u32| Some(controller.deviation_of(AgentId(*agent))?.gram);
        agents.iter().map(distance).collect()
    };
    let before = distances(&controller, &[1, 3, 4, 5]);
    assert_eq!(before, [Some(2.0), Some(0.0), Some(1.0), Some(2.0)]);
    controller.enroll(AgentId(9)).unwrap();
    controller.receive(AgentId(2), 2, [-1.0], [0.0]).unwrap_err();
    assert_eq!(distances(&controller, &[1, 3, 4, 5]), before);
    assert_eq!(distances(&controller, &[2, 9, 7]), [None; 3]);
    let named: BTreeSet<u32> = controller.deviations().map(|deviation| deviation.unit.0).collect();
    assert_eq!(named, BTreeSet::from([1, 3, 4, 5]));
}
