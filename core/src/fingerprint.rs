//! A hash of everything an agent computes over a long run, to hold targets to the same bits.

use rand_core::Rng;

use crate::{Action, Agent, Choice, Model, ModelError, Prior, Rewards, Values, packed_len, project};

const LAMBDA: f32 = 1.0;
const EPISODE_LEN: u32 = 50;
const ARMS: usize = 4;

/// Runs an agent against its own data for `steps` steps and hashes every score, choice, sum and model on the way.
///
/// The same generator in the same state gives the same hash on every target: run it on a new one to know
/// that its compiler, float library and rounding mode keep to the definition. It is a test aid, not part of an application.
///
/// Each step draws a decision set of four actions, selects one, draws a reward and records them; each episode of 50 steps ends
/// with a summary from which the next model is made, as a controller of one agent would: Λ = λI + U, θ = u/L.
///
/// ```
/// # use fedbandit_core::fingerprint;
/// # use rand_pcg::{Pcg32, rand_core::SeedableRng};
/// assert_eq!(fingerprint::<8>(&mut Pcg32::seed_from_u64(1), 1_000), Ok(2_561_274_089_282_584_882));
/// ```
///
/// # Errors
/// Never on a target that computes as it should: then the agent accepts each of its own models.
pub fn fingerprint<const D: usize>(rng: &mut impl Rng, steps: u32) -> Result<u64, ModelError> {
    let mut agent =
        Agent::<D>::new(&Prior { lambda: LAMBDA, beta: 1.0, episode_len: EPISODE_LEN, rewards: Rewards::Unbounded })?;
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    let mut decision_set = [Action::<D>::zeros(); ARMS];
    for _ in 0..steps {
        for action in &mut decision_set {
            *action = project(&Action::from_fn(|_, _| uniform(rng)));
        }
        let Ok(Choice { index, score }) = agent.select(&decision_set) else { continue };
        hash.add(index as u32);
        hash.add(score.to_bits());
        let Some(action) = decision_set.get(index) else { continue };
        if agent.record(action, uniform(rng)).is_err() {
            continue;
        }
        if agent.steps() == EPISODE_LEN {
            next_episode(&mut agent, &mut hash)?;
        }
    }
    Ok(hash.0)
}

fn next_episode<const D: usize>(agent: &mut Agent<D>, hash: &mut Fnv) -> Result<(), ModelError> {
    let summary = agent.finish();
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
    agent.begin(&Model {
        episode: agent.episode(),
        episode_len: EPISODE_LEN,
        beta: 1.0,
        rewards: Rewards::Unbounded,
        theta: (&theta).into(),
        design: Values::Native(design.as_flattened().get(..packed_len(D)).unwrap_or_default()),
    })
}

/// In [−1, 1), exactly representable.
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
