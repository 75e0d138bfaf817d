//! Bit-exactness: a hash of everything an agent computes in a long run, the same on every target.
//!
//! Runs on this computer under `cargo test`, and on every board as a module of `firmware-example`'s `fingerprint`. It
//! therefore uses neither the standard library nor a heap.

use core::num::NonZeroU32;

use fedbandit_core::{
    Action, Agent, Choice, EpisodeSummary, Guard, GuardedAgent, Model, ModelError, Prior, Rewards, Values, packed_len,
    project,
};
use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Dimensions and their fingerprints, computed on x86-64 and confirmed on Cortex-M0, M3, M4F and M33.
///
/// They change only when the definition of the arithmetic changes.
#[cfg(not(target_os = "none"))]
pub(crate) const FINGERPRINTS: [(usize, u64); 4] = [
    (4, 14_995_942_170_868_315_241),
    (8, 9_401_485_950_117_335_156),
    (16, 14_308_525_626_624_260_638),
    (32, 2_534_675_148_950_578_132),
];

/// The same for guarded agents.
#[cfg(not(target_os = "none"))]
pub(crate) const GUARDED_FINGERPRINTS: [(usize, u64); 3] =
    [(4, 16_811_105_025_237_292_126), (8, 11_668_252_092_362_378_768), (16, 3_936_244_013_223_297_322)];

const SEED: u64 = 2022;
const STEPS: u32 = 10_000;
const LAMBDA: f32 = 1.0;
const EPISODE_LEN: u32 = 50;
const ARMS: usize = 4;

/// Fingerprint of a run with the seed of [`FINGERPRINTS`].
pub(crate) fn fingerprint<const D: usize>() -> u64 {
    hash_run::<D>(&mut Pcg32::seed_from_u64(SEED)).unwrap()
}

/// Runs an agent against its own data and hashes every score, choice, sum and model.
///
/// Each step draws a decision set, selects an action, draws a reward and records both. At the end of each episode the next
/// model follows from the summary, as a controller of a single agent would compute it: Λ = λI + U, θ = u/L.
fn hash_run<const D: usize>(rng: &mut impl Rng) -> Result<u64, ModelError> {
    let mut agent =
        Agent::<D>::new(&Prior { lambda: LAMBDA, beta: 1.0, episode_len: EPISODE_LEN, rewards: Rewards::Unbounded })?;
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    let mut decision_set = [Action::<D>::zeros(); ARMS];
    for _ in 0..STEPS {
        for action in &mut decision_set {
            *action = project(&Action::from_fn(|_, _| uniform(rng)));
        }
        let Choice { index, score } = agent.select(&decision_set).unwrap();
        hash.add(index as u32);
        hash.add(score.to_bits());
        agent.record(&decision_set[index], uniform(rng)).unwrap();
        if agent.steps() == EPISODE_LEN {
            begin_next_episode(&mut agent, &mut hash)?;
        }
    }
    Ok(hash.0)
}

/// Fingerprint of a guarded run.
pub(crate) fn guarded_fingerprint<const D: usize, const T: usize>() -> u64 {
    hash_guarded_run::<D, T>(&mut Pcg32::seed_from_u64(SEED)).unwrap()
}

/// As [`hash_run`], with a guard and scouts. Models are near the own estimate, and every fourth is near its opposite. For D = 8
/// the guard has a half-life.
fn hash_guarded_run<const D: usize, const T: usize>(rng: &mut impl Rng) -> Result<u64, ModelError> {
    let prior = Prior::new(LAMBDA, 1.0, EPISODE_LEN, Rewards::Unbounded);
    let half_life = NonZeroU32::new(300).filter(|_| D == 8);
    let guard = Guard { noise: 0.5, theta_norm: 1.0, max_episode_len: 65_536, half_life };
    let mut agent = GuardedAgent::<D, T>::new(&prior, guard)?;
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    let mut decision_set = [Action::<D>::zeros(); ARMS];
    let mut followed = 0;
    for _ in 0..STEPS {
        for action in &mut decision_set {
            *action = project(&Action::from_fn(|_, _| uniform(rng)));
        }
        let Choice { index, score } = agent.select_or_scout(&decision_set, 0.1, rng).unwrap();
        hash.add(index as u32);
        hash.add(score.to_bits());
        let reward = 0.5 * decision_set[index][0] + 0.2 * uniform(rng);
        agent.record(&decision_set[index], reward).unwrap();
        if agent.steps() == EPISODE_LEN {
            let (_, design) = next_model(agent.finish(), &mut hash);
            let spread = 4.0 / (8 + agent.episode()) as f32;
            let sign = if agent.episode() % 4 == 0 { -1.0 } else { 1.0 };
            let theta = agent.theta().map(|entry| sign * (entry + spread * uniform(rng)));
            let design = Values::Native(&design.as_flattened()[..T]);
            agent.begin(&Model::new(agent.episode(), EPISODE_LEN, 0.1, Rewards::Unbounded, &theta, design))?;
            followed += u32::from(agent.follows_controller());
            hash.add(u32::from(agent.alarms()) << 1 | u32::from(agent.follows_controller()));
        }
    }
    // The run must cover fusion, alarms and models that are not followed.
    assert!((50..150).contains(&followed) && agent.alarms() > 0);
    Ok(hash.0)
}

fn begin_next_episode<const D: usize>(agent: &mut Agent<D>, hash: &mut Fnv) -> Result<(), ModelError> {
    let (theta, design) = next_model(agent.finish(), hash);
    agent.begin(&Model {
        episode: agent.episode(),
        episode_len: EPISODE_LEN,
        beta: 1.0,
        rewards: Rewards::Unbounded,
        theta: (&theta).into(),
        design: Values::Native(&design.as_flattened()[..packed_len(D)]),
    })
}

/// Returns θ and Λ, packed, of the next model.
fn next_model<const D: usize>(summary: EpisodeSummary<'_, D>, hash: &mut Fnv) -> ([f32; D], [[f32; D]; D]) {
    let theta = summary.feature_sum().map(|sum| sum / EPISODE_LEN as f32);
    let mut design = [[0.0; D]; D];
    let on_diagonal = (0..D).flat_map(|i| (i..D).map(move |j| i == j));
    for ((cell, value), on_diagonal) in design.as_flattened_mut().iter_mut().zip(summary.gram()).zip(on_diagonal) {
        hash.add(value.to_bits());
        *cell = if on_diagonal { value + LAMBDA } else { value };
    }
    for value in theta {
        hash.add(value.to_bits());
    }
    (theta, design)
}

/// Uniform in [−1, 1), exactly representable.
fn uniform(rng: &mut impl Rng) -> f32 {
    (rng.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0
}

/// FNV-1a over words.
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, word: u32) {
        for byte in word.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(not(target_os = "none"))]
#[test]
fn fingerprints_match_every_target() {
    let computed =
        [(4, fingerprint::<4>()), (8, fingerprint::<8>()), (16, fingerprint::<16>()), (32, fingerprint::<32>())];
    assert_eq!(computed, FINGERPRINTS);
    let computed = [
        (4, guarded_fingerprint::<4, { packed_len(4) }>()),
        (8, guarded_fingerprint::<8, { packed_len(8) }>()),
        (16, guarded_fingerprint::<16, { packed_len(16) }>()),
    ];
    assert_eq!(computed, GUARDED_FINGERPRINTS);
}

#[cfg(not(target_os = "none"))]
#[test]
fn fingerprint_with_another_seed_differs() {
    let other = hash_run::<4>(&mut Pcg32::seed_from_u64(SEED + 1)).unwrap();
    assert_ne!(other, fingerprint::<4>());
}
