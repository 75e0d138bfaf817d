//! The agent against a naive reference model, under arbitrary and hostile sequences of calls.

mod common;

use common::{OwnedModel, PRIOR, Random, agent, to_f64, unpack};
use fedbandit_core::{
    Action, ActionError, Agent, MAX_EPISODE_LEN, Model, ModelError, Prior, REWARD_LIMIT, RecordError, Rewards,
    StateError, VALUE_LIMIT, Values, rounding,
};
use nalgebra::{DMatrix, DVector};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const D: usize = 5;

/// Property test configuration with a fixed seed, so that results are reproducible.
fn cases(cases: u32) -> ProptestConfig {
    let cases = if cfg!(miri) { 2 } else { cases };
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() }
}

/// A call on an agent.
#[derive(Clone, Debug)]
enum Call {
    Begin { ahead: i32, episode_len: u32, rewards: Rewards, seed: u64, defect: Option<Defect> },
    Record { seed: u64, reward: f32 },
    RecordInvalidAction(f32),
    Select(u64),
    Finish,
    SleepAndWake,
}

/// A defect of a model.
#[derive(Clone, Copy, Debug)]
enum Defect {
    ShortTheta,
    LongDesign,
    Theta(f32),
    Design(usize, f32),
    Beta(f32),
    Indefinite,
    Singular,
    EpisodeLen(u32),
}

fn defects() -> impl Strategy<Value = Defect> {
    let bad =
        prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(f32::MAX), Just(-1e30_f32)];
    prop_oneof![
        Just(Defect::ShortTheta),
        Just(Defect::LongDesign),
        bad.clone().prop_map(Defect::Theta),
        (0..15_usize, bad.clone()).prop_map(|(at, value)| Defect::Design(at, value)),
        prop_oneof![bad, Just(-1.0_f32)].prop_map(Defect::Beta),
        Just(Defect::Indefinite),
        Just(Defect::Singular),
        prop_oneof![Just(0_u32), Just(MAX_EPISODE_LEN + 1), Just(u32::MAX)].prop_map(Defect::EpisodeLen),
    ]
}

fn calls() -> impl Strategy<Value = Call> {
    let rewards = prop_oneof![6 => Just(Rewards::Unbounded), 1 => Just(Rewards::Clipped)];
    let reward = prop_oneof![
        8 => -3.0_f32..3.0,
        1 => prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(-f32::MAX), Just(REWARD_LIMIT), Just(-0.0_f32)],
    ];
    let model = (
        -2..3_i32,
        prop_oneof![6 => Just(8_u32), 1 => 1..20_u32],
        rewards,
        any::<u64>(),
        proptest::option::of(defects()),
    );
    prop_oneof![
        3 => model.prop_map(|(ahead, episode_len, rewards, seed, defect)| Call::Begin { ahead, episode_len, rewards, seed, defect }),
        9 => (any::<u64>(), reward).prop_map(|(seed, reward)| Call::Record { seed, reward }),
        1 => prop_oneof![Just(f32::NAN), Just(2.0_f32), Just(f32::INFINITY)].prop_map(Call::RecordInvalidAction),
        2 => any::<u64>().prop_map(Call::Select),
        2 => Just(Call::Finish),
        1 => Just(Call::SleepAndWake),
    ]
}

/// A random model, valid except for the defect.
fn model(episode: u32, episode_len: u32, rewards: Rewards, seed: u64, defect: Option<Defect>) -> OwnedModel {
    let mut random = Random::new(seed);
    let root = DMatrix::from_fn(D, D, |_, _| random.normal());
    let mut model = OwnedModel::identity(D, episode);
    model.design = common::pack(&(&root * root.transpose() + DMatrix::identity(D, D)));
    model.theta = (0..D).map(|_| random.normal() as f32).collect();
    (model.episode_len, model.rewards) = (episode_len, rewards);
    match defect {
        None => {}
        Some(Defect::ShortTheta) => model.theta.truncate(D - 1),
        Some(Defect::LongDesign) => model.design.push(1.0),
        Some(Defect::Theta(value)) => model.theta[2] = value,
        Some(Defect::Design(at, value)) => model.design[at] = value,
        Some(Defect::Beta(value)) => model.beta = value,
        Some(Defect::Indefinite) => model.design[1] = 1e3,
        Some(Defect::Singular) => model.design = vec![1.0; 15],
        Some(Defect::EpisodeLen(length)) => model.episode_len = length,
    }
    model
}

/// Reference agent: the list of recorded steps and the last valid model.
struct Reference {
    model: OwnedModel,
    episode: u32,
    records: Vec<(Action<D>, f32)>,
}

impl Reference {
    fn begin(&mut self, model: &OwnedModel, defect: Option<Defect>) -> bool {
        let ours = &self.model;
        let same_terms =
            model.episode == self.episode && model.episode_len == ours.episode_len && model.rewards == ours.rewards;
        let accepted = defect.is_none() && model.episode >= self.episode && (self.records.is_empty() || same_terms);
        if accepted {
            self.episode = model.episode;
            self.model = model.clone();
        }
        accepted
    }

    fn record(&mut self, x: Action<D>, reward: f32) -> bool {
        let accepted = self.records.len() < self.model.episode_len as usize && reward.abs() <= REWARD_LIMIT;
        if accepted {
            let clipped = self.model.rewards == Rewards::Clipped;
            self.records.push((x, if clipped { reward.clamp(-1.0, 1.0) } else { reward }));
        }
        accepted
    }

    /// Returns U, u and Σ|r| in f64.
    fn sums(&self) -> (DMatrix<f64>, DVector<f64>, f64) {
        let mut sums = (DMatrix::zeros(D, D), DVector::zeros(D), 0.0);
        for (x, reward) in &self.records {
            let (x, reward) = (to_f64(x), f64::from(*reward));
            sums.0 += &x * x.transpose();
            sums.1 += &x * reward;
            sums.2 += reward.abs();
        }
        sums
    }
}

fn apply(agent: &mut Agent<D>, reference: &mut Reference, call: &Call) -> Result<(), TestCaseError> {
    match call {
        Call::Begin { ahead, episode_len, rewards, seed, defect } => {
            let episode = reference.episode.saturating_add_signed(*ahead);
            let model = model(episode, *episode_len, *rewards, *seed, *defect);
            let before = agent.clone();
            let result = agent.begin(&model.view());
            prop_assert_eq!(result.is_ok(), reference.begin(&model, *defect), "{:?}", result);
            if result.is_err() {
                prop_assert_eq!(&*agent, &before, "a rejected model changed the agent");
            }
        }
        Call::Record { seed, reward } => {
            let x = Random::new(*seed).action();
            let before = agent.clone();
            let result = agent.record(&x, *reward);
            prop_assert_eq!(result.is_ok(), reference.record(x, *reward), "{:?}", result);
            if result.is_err() {
                prop_assert_eq!(&*agent, &before, "a rejected record changed the agent");
            }
        }
        Call::RecordInvalidAction(entry) => {
            let result = agent.record(&Action::repeat(*entry), 0.5);
            prop_assert!(matches!(result, Err(RecordError::Action(_) | RecordError::EpisodeFull)));
        }
        Call::Select(seed) => {
            let mut random = Random::new(*seed);
            let decision_set: [Action<D>; 6] = std::array::from_fn(|_| random.action());
            let before = agent.clone();
            let choice = agent.select(&decision_set);
            prop_assert!(choice.is_ok_and(|choice| choice.index < 6 && choice.score.is_finite()));
            prop_assert_eq!(&*agent, &before, "select changed the agent");
        }
        Call::Finish => {
            let (gram, feature_sum, rewards) = reference.sums();
            let summary = agent.finish();
            prop_assert_eq!(
                (summary.episode(), summary.steps() as usize),
                (reference.episode, reference.records.len())
            );
            let delta = rounding::sums(summary.steps(), D);
            let error = (unpack(summary.gram(), D) - gram).norm();
            prop_assert!(error <= delta * reference.records.len() as f64, "error of U: {error:e}");
            let error =
                (DVector::from_iterator(D, summary.feature_sum().iter().map(|u| f64::from(*u))) - feature_sum).norm();
            prop_assert!(error <= delta * rewards, "error of u: {error:e}");
            let reward_sum: f64 = reference.records.iter().map(|(_, reward)| f64::from(*reward)).sum();
            let error = (f64::from(summary.reward_sum()) - reward_sum).abs();
            prop_assert!(error <= delta * rewards, "error of the reward sum: {error:e}");
            reference.records.clear();
            reference.episode += 1;
        }
        Call::SleepAndWake => {
            let mut flash = [0; Agent::<D>::SAVED_LEN];
            agent.save(&mut flash).unwrap();
            let woken = Agent::restore(&flash).unwrap();
            prop_assert_eq!(&woken, &*agent);
            *agent = woken;
        }
    }
    prop_assert_eq!(agent.episode(), reference.episode);
    prop_assert_eq!(agent.steps() as usize, reference.records.len());
    prop_assert_eq!(agent.theta().as_slice(), reference.model.theta.as_slice());
    prop_assert_eq!((agent.episode_len(), agent.rewards()), (reference.model.episode_len, reference.model.rewards));
    Ok(())
}

#[test]
fn agent_matches_reference_under_any_calls() {
    let calls = proptest::collection::vec(calls(), 1..120);
    proptest!(cases(600), |(calls in calls)| {
        let mut agent = Agent::<D>::new(&Prior { episode_len: 8, ..PRIOR }).unwrap();
        let mut model = OwnedModel::identity(D, 1);
        model.episode_len = 8;
        let mut reference = Reference { model, episode: 1, records: Vec::new() };
        for call in &calls {
            apply(&mut agent, &mut reference, call)?;
        }
    });
}

#[test]
fn rejected_calls_report_the_reason() {
    let reject = |defect| agent::<D>().begin(&model(1, 8, Rewards::Unbounded, 1, Some(defect)).view()).unwrap_err();
    assert_eq!(reject(Defect::ShortTheta), ModelError::Dimension { theta: 4, design: 15 });
    assert_eq!(reject(Defect::LongDesign), ModelError::Dimension { theta: 5, design: 16 });
    assert_eq!(reject(Defect::Theta(f32::NAN)), ModelError::OutOfRange);
    assert_eq!(reject(Defect::Design(14, f32::INFINITY)), ModelError::OutOfRange);
    assert_eq!(reject(Defect::Beta(-0.1)), ModelError::OutOfRange);
    assert_eq!(reject(Defect::Indefinite), ModelError::NotPositiveDefinite { row: 1 });
    assert_eq!(reject(Defect::Singular), ModelError::NotPositiveDefinite { row: 1 });
    assert_eq!(reject(Defect::EpisodeLen(65_537)), ModelError::EpisodeLen(65_537));

    let mut agent = agent::<D>();
    agent.begin(&OwnedModel::identity(D, 7).view()).unwrap();
    let old = agent.begin(&OwnedModel::identity(D, 6).view());
    assert_eq!(old, Err(ModelError::OldEpisode { model: 6, agent: 7 }));
    agent.record(&Action::repeat(0.1), 1.0).unwrap();
    let later = agent.begin(&OwnedModel::identity(D, 8).view());
    assert_eq!(later, Err(ModelError::EpisodeUnfinished { steps: 1 }));
    assert_eq!(agent.record(&Action::repeat(1.0), 1.0), Err(RecordError::Action(ActionError::NormAboveOne)));
    assert_eq!(agent.record(&Action::repeat(0.1), f32::NAN), Err(RecordError::Reward));
    for _ in 1..64 {
        agent.record(&Action::repeat(0.1), 1.0).unwrap();
    }
    assert_eq!(agent.record(&Action::repeat(0.1), 1.0), Err(RecordError::EpisodeFull));
    assert_eq!(agent.finish().steps(), 64);

    for (lambda, beta, episode_len) in [
        (0.0, 1.0, 1),
        (-1.0, 1.0, 1),
        (f32::NAN, 1.0, 1),
        (f32::INFINITY, 1.0, 1),
        (1e-38, 1.0, 1),
        (1.0, -1.0, 1),
        (1.0, f32::NAN, 1),
        (1.0, 1.0, 0),
    ] {
        let prior = Prior { lambda, beta, episode_len, rewards: Rewards::Unbounded };
        assert!(Agent::<D>::new(&prior).is_err(), "{prior:?}");
    }
}

/// Every accepted model gives finite scores, even at the extremes of its value range.
#[test]
fn accepted_models_never_overflow() {
    let extremes = || {
        prop_oneof![
            Just(0.0_f32),
            Just(VALUE_LIMIT),
            Just(-VALUE_LIMIT),
            Just(1e-45_f32),
            Just(1e-18_f32),
            Just(1e-9_f32),
            -2.0_f32..2.0
        ]
    };
    let diagonal = prop_oneof![Just(VALUE_LIMIT), Just(1e-18_f32), Just(1e-17_f32), Just(1e-9_f32), 0.5_f32..2.0];
    let model = (
        proptest::collection::vec(extremes(), 3),
        proptest::collection::vec(diagonal, 3),
        proptest::collection::vec(extremes(), 3),
        prop_oneof![Just(VALUE_LIMIT), Just(1.0_f32)],
    );
    let accepted = std::cell::Cell::new(0);
    proptest!(cases(20_000), |((theta, d, off, beta) in model, seed in any::<u64>())| {
        let design = [d[0], off[0], off[1], d[1], off[2], d[2]];
        let mut agent = agent::<3>();
        let model = Model { episode: 1, episode_len: 64, beta, rewards: Rewards::Unbounded, theta: theta.as_slice().into(), design: (&design).into() };
        if agent.begin(&model).is_ok() {
            accepted.set(accepted.get() + 1);
            let mut random = Random::new(seed);
            for x in [random.action(), Action::from([1.0, 0.0, 0.0]), Action::from([0.0, 0.0, -1.0]), Action::repeat(0.577)] {
                prop_assert!(agent.score(&x).unwrap().is_finite());
            }
        }
    });
    assert!(cfg!(miri) || accepted.get() > 1_000, "only {} models were accepted", accepted.get());
}

#[test]
fn wire_values_equal_native_values() {
    let model = model(1, 8, Rewards::Unbounded, 3, None);
    let bytes = |values: &[f32]| values.iter().map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let (theta, design) = (bytes(&model.theta), bytes(&model.design));
    let wire = Model { theta: Values::Wire(&theta), design: design.as_slice().into(), ..model.view() };
    let (mut a, mut b) = (agent::<D>(), agent::<D>());
    a.begin(&model.view()).unwrap();
    b.begin(&wire).unwrap();
    assert_eq!(a, b);
    assert_ne!(a, agent::<D>());
}

/// State of an agent of dimension 2 saved by version 0.1.0, with zlib's checksum. `corrupt_state_is_rejected` spells out the layout.
const SAVED_BY_0_1_0: &str = "46424147020002000300000040000000010000000000803f000000400000003f000080be0000003f0000803e0000803e\
    0000003e000000800000803d0000803f0000003fb4958b97";

#[test]
fn state_of_earlier_version_is_restored() {
    let digits = |at: usize| u8::from_str_radix(&SAVED_BY_0_1_0[at..at + 2], 16).unwrap();
    let saved: Vec<u8> = (0..SAVED_BY_0_1_0.len()).step_by(2).map(digits).collect();
    let mut agent = Agent::<2>::restore(&saved).unwrap();
    assert_eq!((agent.episode(), agent.episode_len(), agent.steps()), (3, 64, 1));
    // β = 1, θ = (1/2, −1/4) and Λ = diag(4, 16): scores of 1/2 + 1/2 and −1/4 + 1/4.
    let choice = agent.select(&[Action::from([0.0, 1.0]), Action::from([1.0, 0.0])]).unwrap();
    assert_eq!((choice.index, choice.score), (1, 1.0));
    let summary = agent.finish();
    assert_eq!((summary.reward_sum(), *summary.feature_sum()), (2.0, [1.0, 0.5]));
    assert_eq!(summary.gram().collect::<Vec<_>>(), [0.25, 0.125, 0.0625]);
}

#[test]
fn corrupt_state_is_rejected() {
    let mut agent = agent::<2>();
    agent
        .begin(&Model {
            theta: (&[0.5, -0.25]).into(),
            design: (&[4.0, 0.0, 16.0]).into(),
            ..OwnedModel::identity(2, 3).view()
        })
        .unwrap();
    agent.record(&Action::from([0.5, 0.25]), 2.0).unwrap();
    let mut flash = [0; Agent::<2>::SAVED_LEN];
    agent.save(&mut flash).unwrap();

    // The documented layout, spelled out by hand.
    let mut expected = Vec::from(*b"FBAG\x02\x00\x02\x00");
    expected.extend([3_u32, 64, 1].into_iter().flat_map(u32::to_le_bytes));
    let floats = [1.0_f32, 2.0, 0.5, -0.25, 0.5, 0.25, 0.25, 0.125, -0.0, 0.0625, 1.0, 0.5];
    expected.extend(floats.into_iter().flat_map(f32::to_le_bytes));
    assert_eq!(flash[..flash.len() - 4], expected);

    // A sample of bits under Miri, which is slow.
    for bit in (0..flash.len() * 8).step_by(if cfg!(miri) { 13 } else { 1 }) {
        let mut corrupt = flash;
        corrupt[bit / 8] ^= 1 << (bit % 8);
        assert!(Agent::<2>::restore(&corrupt).is_err(), "bit {bit}");
    }
    for length in 0..flash.len() {
        assert!(Agent::<2>::restore(&flash[..length]).is_err());
    }
    assert_eq!(Agent::<2>::restore(&[0xff; 76]), Err(StateError::NotASavedAgent));
    assert_eq!(Agent::<3>::restore(&flash), Err(StateError::Dimension(2)));
    assert_eq!(agent.save(&mut [0; 5]), Err(StateError::Length { expected: Agent::<2>::SAVED_LEN, found: 5 }));
    let mut newer = flash;
    newer[4] = 3;
    assert_eq!(Agent::<2>::restore(&newer), Err(StateError::Version(3)));
}
