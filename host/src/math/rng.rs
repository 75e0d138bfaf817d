//! Where randomness that is no secret comes from: one generator for each use, from (seed, use, number).

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// What a generator is used for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// θ* and who is corrupted.
    World,
    /// An agent's decision sets and rewards. It is asked for the same numbers whatever the agent chooses, so that runs
    /// of different rules meet the same draws.
    Agent,
    /// A step's decision set that all agents share.
    Step,
    /// When an agent is attacked.
    Attacked,
    /// What an attacker tries.
    Attacker,
    /// The groups of a median of means.
    Groups,
}

/// The generator of one use. Its state is a hash, so that no two of them have anything in common.
pub(crate) fn generator(seed: u64, purpose: Purpose, number: u64) -> Pcg64 {
    let mut hash = blake3::Hasher::new();
    hash.update(b"fedbandit simulation").update(&seed.to_le_bytes());
    hash.update(&[purpose as u8]).update(&number.to_le_bytes());
    Pcg64::from_seed(hash.finalize().into())
}

/// Uniform in [0, 1).
pub(crate) fn uniform(rng: &mut impl Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 * f64::EPSILON / 2.0
}

/// Uniform below a bound, up to 2⁻³².
pub(crate) fn below(bound: usize, rng: &mut impl Rng) -> usize {
    ((u128::from(rng.next_u64()) * bound as u128) >> 64) as usize
}
