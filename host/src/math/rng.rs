//! Random number generators for simulations, one for each (seed, purpose, number). Not for secrets.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Purpose of a generator.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// θ* and the choice of corrupted agents.
    World,
    /// An agent's decision sets and rewards. The number of draws does not depend on the agent's choices, so that runs of
    /// different rules meet the same draws.
    Agent,
    /// Decision set of a step, if all agents share it.
    Step,
    /// Choice of an agent's attacked steps.
    Attacked,
    /// Choices of the attackers.
    Attacker,
    /// Groups of a median of means.
    Groups,
    /// Choice of a device's scout steps.
    Scouts,
    /// Choices of a hostile controller for a device.
    HostileController,
    /// Presence of a device.
    Participation,
    /// Acceptance of logged events.
    Rejection,
}

/// Returns the generator of a purpose. Its state is a hash, so that generators are independent.
pub(crate) fn generator(seed: u64, purpose: Purpose, number: u64) -> Pcg64 {
    let mut hash = blake3::Hasher::new();
    hash.update(b"fedbandit simulation").update(&seed.to_le_bytes());
    hash.update(&[purpose as u8]).update(&number.to_le_bytes());
    Pcg64::from_seed(hash.finalize().into())
}

/// Returns a uniform number in [0, 1).
pub(crate) fn uniform(rng: &mut impl Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 * f64::EPSILON / 2.0
}

/// Returns a uniform number below `bound`, by Lemire's multiplication with rejection.
pub(crate) fn below(bound: usize, rng: &mut impl Rng) -> usize {
    let bound = bound as u64;
    loop {
        let product = u128::from(rng.next_u64()) * u128::from(bound);
        if product as u64 >= bound.wrapping_neg() % bound {
            return (product >> 64) as usize;
        }
    }
}
