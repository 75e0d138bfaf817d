//! Guarantees of the agent, tested where it runs: on this computer under `cargo test`, and on every board as a module of
//! `firmware-example`'s `on_target`. The tests therefore use no standard library, no heap and less than 16 KiB of RAM.

use fedbandit_core::ActionError::{self, NormAboveOne, NotFinite};
use fedbandit_core::Rewards::Unbounded;
use fedbandit_core::Values::{Native, Wire};
use fedbandit_core::{Action, Agent, Model, ModelError, Prior, RecordError, SelectError, StateError, packed_len};
use rand_pcg::Pcg32;
use rand_pcg::rand_core::SeedableRng;

/// Names and functions of all tests.
pub(crate) const TESTS: [(&str, fn()); 8] = [
    ("episode_of_exact_numbers_has_exact_sums", episode_of_exact_numbers_has_exact_sums),
    ("model_with_invalid_values_is_rejected", model_with_invalid_values_is_rejected),
    ("model_that_does_not_match_is_rejected", model_that_does_not_match_is_rejected),
    ("invalid_actions_and_rewards_are_rejected", invalid_actions_and_rewards_are_rejected),
    ("ties_are_broken_by_index_or_at_random", ties_are_broken_by_index_or_at_random),
    ("restored_agent_continues_bit_for_bit", restored_agent_continues_bit_for_bit),
    ("corrupt_state_is_rejected", corrupt_state_is_rejected),
    ("wire_values_equal_native_values", wire_values_equal_native_values),
];

const D: usize = 4;
const PRIOR: Prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 8, rewards: Unbounded };
const THETA: [f32; D] = [0.5, 0.0, 0.0, 0.0];
const DESIGN: [f32; packed_len(D)] = [4.0, 0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 4.0, 0.0, 4.0];

/// θ = e₀/2 and Λ = 4I: scores of simple actions are exact.
const MODEL: Model<'static> =
    Model { episode: 3, episode_len: 8, beta: 1.0, rewards: Unbounded, theta: Native(&THETA), design: Native(&DESIGN) };

/// The vector with `entry` at one index and zeros elsewhere.
fn axis<const N: usize>(index: usize, entry: f32) -> Action<N> {
    Action::from_fn(|i, _| if i == index { entry } else { 0.0 })
}

/// Builds a packed triangle from its entries by row and column.
fn packed<const N: usize, const LEN: usize>(entry: impl Fn(usize, usize) -> f32) -> [f32; LEN] {
    let mut indices = (0..N).flat_map(|i| (i..N).map(move |j| (i, j)));
    [(); LEN].map(|()| indices.next().map_or(f32::NAN, |(i, j)| entry(i, j)))
}

/// An agent with [`MODEL`] and one recorded step.
fn agent_with_one_step() -> Agent<D> {
    let mut agent = Agent::new(&PRIOR).unwrap();
    agent.begin(&MODEL).unwrap();
    agent.record(&axis(1, 0.5), 2.0).unwrap();
    agent
}

/// Runs N − 1 steps with x = (e₀ + eⱼ)/2 and r = j for j from 1, then one step of the next episode.
fn run_episode<const N: usize, const LEN: usize>() {
    let theta: [f32; N] = core::array::from_fn(|i| if i == 0 { 0.5 } else { 0.0 });
    let design: [f32; LEN] = packed::<N, LEN>(|i, j| if i == j { 4.0 } else { 0.0 });
    let length = N as u32 - 1;
    let mut agent = Agent::<N>::new(&PRIOR).unwrap();
    agent.begin(&Model { episode_len: length, theta: (&theta).into(), design: (&design).into(), ..MODEL }).unwrap();
    assert_eq!((agent.episode(), agent.episode_len(), agent.theta()), (3, length, &theta));
    for j in 1..N {
        let choice = agent.select(&[axis(j, 1.0), axis(0, 1.0), axis(N - 1, 0.5)]).unwrap();
        assert_eq!((choice.index, choice.score), (1, 1.0));
        agent.record(&(axis(0, 0.5) + axis(j, 0.5)), j as f32).unwrap();
    }
    let full = agent.clone();
    assert_eq!(agent.record(&axis(0, 0.5), 1.0), Err(RecordError::EpisodeFull));
    assert_eq!(agent, full);

    let summary = agent.finish();
    assert_eq!((summary.episode(), summary.steps()), (3, length));
    let gram = |i, j| if (i, j) == (0, 0) { 0.25 * length as f32 } else { f32::from(i == 0 || i == j) * 0.25 };
    assert!(summary.gram().eq(packed::<N, LEN>(gram)));
    let sum = |j: usize| if j == 0 { 0.25 * (N * (N - 1)) as f32 } else { 0.5 * j as f32 };
    assert_eq!(*summary.feature_sum(), core::array::from_fn(sum));
    assert_eq!((agent.episode(), agent.steps()), (4, 0));

    agent.record(&axis(1, 1.0), -3.0).unwrap();
    let next = agent.finish();
    assert_eq!((next.episode(), next.steps(), next.gram().sum::<f32>(), next.feature_sum()[1]), (4, 1, 1.0, -3.0));
}

/// All numbers are exactly representable in f32.
pub(crate) fn episode_of_exact_numbers_has_exact_sums() {
    run_episode::<4, { packed_len(4) }>();
    run_episode::<8, { packed_len(8) }>();
}

/// Asserts that the agent rejects the model for this reason, stays unchanged and still selects.
fn assert_rejected(model: &Model<'_>, reason: ModelError) {
    let mut agent = agent_with_one_step();
    let before = agent.clone();
    assert_eq!(agent.begin(model), Err(reason));
    assert_eq!(agent, before);
    assert_eq!(agent.select(&[axis(1, 1.0), axis(0, 1.0)]).unwrap().index, 1);
}

/// NaN, infinite or too large values at every index, and indefinite or singular designs.
pub(crate) fn model_with_invalid_values_is_rejected() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        for index in 0..DESIGN.len() {
            let (mut theta, mut design) = (THETA, DESIGN);
            theta[index % D] = value;
            design[index] = value;
            assert_rejected(&Model { theta: Native(&theta), ..MODEL }, ModelError::OutOfRange);
            assert_rejected(&Model { design: Native(&design), ..MODEL }, ModelError::OutOfRange);
        }
        assert_rejected(&Model { beta: value, ..MODEL }, ModelError::OutOfRange);
    }
    assert_rejected(&Model { beta: -1.0, ..MODEL }, ModelError::OutOfRange);
    for (index, value, row) in [(1, 5.0, 1), (1, -4.0, 1), (9, 0.0, 3), (9, -4.0, 3), (0, 0.0, 0), (0, -1.0, 0)] {
        let mut design = DESIGN;
        design[index] = value;
        assert_rejected(&Model { design: Native(&design), ..MODEL }, ModelError::NotPositiveDefinite { row });
    }
}

/// Another dimension, episode or episode length.
pub(crate) fn model_that_does_not_match_is_rejected() {
    let empty = Native(&[]);
    assert_rejected(&Model { theta: THETA[1..].into(), ..MODEL }, ModelError::Dimension { theta: 3, design: 10 });
    assert_rejected(&Model { design: (&[1.0; 15]).into(), ..MODEL }, ModelError::Dimension { theta: 4, design: 15 });
    assert_rejected(&Model { theta: empty, design: empty, ..MODEL }, ModelError::Dimension { theta: 0, design: 0 });
    assert_rejected(&Model { episode_len: 0, ..MODEL }, ModelError::EpisodeLen(0));
    assert_rejected(&Model { episode_len: 65_537, ..MODEL }, ModelError::EpisodeLen(65_537));
    assert_rejected(&Model { episode: 2, ..MODEL }, ModelError::OldEpisode { model: 2, agent: 3 });
    assert_rejected(&Model { episode: 4, ..MODEL }, ModelError::EpisodeUnfinished { steps: 1 });
}

/// The error names the action's index anywhere in the set; a rejected record leaves the sums unchanged.
pub(crate) fn invalid_actions_and_rewards_are_rejected() {
    const INVALID: [(f32, ActionError); 4] =
        [(f32::NAN, NotFinite), (f32::INFINITY, NotFinite), (f32::MAX, NormAboveOne), (1.001, NormAboveOne)];
    let (mut agent, rng) = (agent_with_one_step(), &mut Pcg32::seed_from_u64(1));
    assert_eq!(agent.select::<&[Action<4>; 0]>(&[]), Err(SelectError::EmptyDecisionSet));
    for (index, (entry, reason)) in (0..20).flat_map(|index| INVALID.map(|invalid| (index, invalid))) {
        let mut decision_set = [axis(0, 0.5); 20];
        decision_set[index] = axis(index % D, entry);
        assert_eq!(agent.select(&decision_set), Err(SelectError::Action { index, reason }));
        assert_eq!(agent.select_random_ties(&decision_set, rng), Err(SelectError::Action { index, reason }));
        assert_eq!(agent.record(&decision_set[index], 1.0), Err(RecordError::Action(reason)));
    }
    for reward in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -8e28] {
        assert_eq!(agent.record(&axis(3, 1.0), reward), Err(RecordError::Reward));
    }
    assert_eq!(agent, agent_with_one_step());
}

/// `select` takes the first of the tied actions, `select_random_ties` any of them and no other.
pub(crate) fn ties_are_broken_by_index_or_at_random() {
    let (agent, rng) = (agent_with_one_step(), &mut Pcg32::seed_from_u64(1));
    let decision_set = [axis(0, 0.5), axis(0, 1.0), axis(1, 1.0), axis(0, 1.0), axis(0, 1.0)];
    assert_eq!(agent.select(&decision_set).unwrap().index, 1);
    let mut chosen = [false; 5];
    (0..60).for_each(|_| chosen[agent.select_random_ties(&decision_set, rng).unwrap().index] = true);
    assert_eq!(chosen, [false, true, false, true, true]);
}

/// An agent saved and restored during an episode returns the same summary.
pub(crate) fn restored_agent_continues_bit_for_bit() {
    let (mut agent, mut flash) = (agent_with_one_step(), [0; Agent::<D>::SAVED_LEN]);
    agent.save(&mut flash).unwrap();
    let mut restored = Agent::restore(&flash).unwrap();
    for agent in [&mut agent, &mut restored] {
        agent.record(&Action::from([0.1, -0.2, 0.3, 0.7]), 0.3).unwrap();
    }
    assert_eq!(agent.finish(), restored.finish());
    assert_eq!(agent, restored);
}

/// One corrupt byte in each field.
pub(crate) fn corrupt_state_is_rejected() {
    let mut flash = [0; Agent::<D>::SAVED_LEN];
    agent_with_one_step().save(&mut flash).unwrap();
    let header =
        [(0, StateError::NotASavedAgent), (4, StateError::Version(!flash[4])), (6, StateError::Dimension(251))];
    let corrupt = [5, 8, 12, 16, 20, 24, 40, 90, 120, 139].map(|offset| (offset, StateError::Corrupt));
    for (offset, error) in header.into_iter().chain(corrupt) {
        flash[offset] ^= 0xff;
        assert_eq!(Agent::<D>::restore(&flash), Err(error));
        flash[offset] ^= 0xff;
    }
    assert_eq!(Agent::restore(&flash), Ok(agent_with_one_step()));
}

/// Values in a frame give the same model as values in memory.
pub(crate) fn wire_values_equal_native_values() {
    let theta = [0.1, -0.2, 0.3, -0.4];
    let (theta_bytes, design_bytes) = (theta.map(f32::to_le_bytes), DESIGN.map(f32::to_le_bytes));
    let (mut native, mut wire) = (Agent::<D>::new(&PRIOR).unwrap(), Agent::<D>::new(&PRIOR).unwrap());
    native.begin(&Model { theta: Native(&theta), ..MODEL }).unwrap();
    assert_ne!(native, wire);
    wire.begin(&Model { theta: Wire(&theta_bytes), design: Wire(&design_bytes), ..MODEL }).unwrap();
    assert_eq!(native, wire);
}

#[cfg(not(target_os = "none"))]
#[test]
fn on_target_tests_pass_on_the_host() {
    TESTS.iter().for_each(|(_, test)| test());
}
