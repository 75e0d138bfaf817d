//! Keyed noise: a function of a secret key and of the sum that it hides.
//!
//! **Definition.** The noise of a node of the mechanism comes from a ChaCha20 stream under the key
//!
//! ```text
//! BLAKE3(run key; tag ‖ H(run, budget, episodes, grid, mechanism, units) ‖ unit ‖ level ‖ index ‖ sum of the node).
//! ```
//!
//! **Lemma.** If BLAKE3 and ChaCha20 are random functions, the noise of a run is independent of its data and has exactly
//! the distribution that the privacy proof requires.
//!
//! *Proof.* A run requests each (unit, level, index) once, so its inputs never repeat, whatever the sums are. The value of
//! a random function at a new input is uniform given everything before, even if an observer of all that chose the input.
//! ∎ The only exception is an observer who can distinguish the real functions from random ones.
//!
//! **Equal sums get equal noise.** A controller that lost its memory and receives the same messages again releases the
//! same numbers. Their order within an episode is irrelevant. The second release is a copy and reveals nothing new.
//!
//! **Different sums get independent noise**, as with a misuse-resistant (SIV) cipher. After a rollback, or with a second
//! controller on the same key, the difference of two releases is not the difference of two sums. Such a second history is a
//! second release of the common part, and costs as much.
//!
//! **The sum instead of a hash of the messages.** A node's release is a function of its sum alone. Within one history both
//! choices have the same distribution, by the lemma. With two histories, a hash would give fresh noise to different
//! messages with an equal sum. One number could then be averaged over two releases. The sum gives the same release.
//! It needs no agreed order of messages and no additional state.
//!
//! Beyond two releases, two histories on one key reveal an equality: of all messages of a node with a hash, of their total
//! with the sum. The difference matters in groups. Members that change their own messages between the histories can test
//! one guess at the change of another member's message. The guess must be exact to the grid in all coordinates. An
//! honest device repeats its messages unchanged, so that there is nothing to guess.

use chacha20::ChaCha20Rng;
use chacha20::rand_core::SeedableRng;
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use super::gaussian::DiscreteGaussian;

/// Version of the noise. Every change of the sampler or of the order of coordinates must change it.
const TAG: &[u8] = b"fedbandit dp-noise v1";

/// Secret key of a run. Whoever knows it can remove the noise from every release.
///
/// It comes from the operating system. It must be stored before the first message and excluded from backups. A run that
/// continues with another key releases its past a second time. The key stays in one place in memory and is wiped on drop,
/// as are values derived from it.
///
/// It cannot be printed, copied or serialised,
///
/// ```compile_fail,E0277
/// # fn debug(_: impl std::fmt::Debug) {}
/// debug(fedbandit::privacy::RunKey::generate().unwrap());
/// ```
/// ```compile_fail,E0277
/// # fn clone(_: impl Clone) {}
/// clone(fedbandit::privacy::RunKey::generate().unwrap());
/// ```
/// ```compile_fail,E0277
/// # fn serialize(_: impl serde::Serialize) {}
/// serialize(fedbandit::privacy::RunKey::generate().unwrap());
/// ```
///
/// nor be created from a number:
///
/// ```compile_fail,E0277
/// let key: fedbandit::privacy::RunKey = 7_u64.into();
/// ```
pub struct RunKey(Box<Zeroizing<[u8; 32]>>);

impl RunKey {
    /// Generates a key.
    ///
    /// # Errors
    /// The operating system provides no randomness.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut key = Self(Box::default());
        getrandom::fill(&mut **key.0)?;
        Ok(key)
    }

    /// Encodes the key for storage: 32 bytes and a checksum.
    pub fn to_stored(&self) -> Zeroizing<[u8; STORED_LEN]> {
        let mut stored = Zeroizing::new([0; STORED_LEN]);
        stored[..32].copy_from_slice(&**self.0);
        stored[32..].copy_from_slice(&self.check());
        stored
    }

    /// Decodes a stored key.
    ///
    /// # Errors
    /// The bytes are not a stored key, for example truncated, zeroed or another file.
    pub fn from_stored(stored: &[u8]) -> Result<Self, NotAKey> {
        let (bytes, check) = stored.split_at_checked(32).ok_or(NotAKey)?;
        let mut key = Self(Box::default());
        key.0.copy_from_slice(bytes);
        if key.check() == check { Ok(key) } else { Err(NotAKey) }
    }

    fn check(&self) -> [u8; 32] {
        blake3::keyed_hash(&self.0, b"fedbandit stored run key v1").into()
    }
}

/// Length of a stored key in bytes.
pub const STORED_LEN: usize = 64;

/// Error returned by [`RunKey::from_stored`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a stored run key: wrong length or checksum")]
pub struct NotAKey;

/// Reproducible noise for simulations, whose data are not secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

/// Source of noise: a [`RunKey`], or a [`Seed`] for simulations. The trait is sealed.
pub trait NoiseKey: Sealed + Sync {
    /// Adds the noise of a node to its sum.
    #[doc(hidden)]
    fn add_noise(&self, scope: &Scope, node: Node, sum: &mut [i64]);
}

use sealed::Sealed;

mod sealed {
    #[expect(unnameable_types, reason = "seals NoiseKey")]
    pub trait Sealed {}
}

/// Parameters that all nodes of a run share.
#[doc(hidden)]
#[derive(Debug)]
pub struct Scope {
    pub(super) digest: blake3::Hash,
    pub(super) gaussian: DiscreteGaussian,
}

/// Identifier of a noise vector within a run.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// Stream, counted from 0.
    pub unit: u64,
    /// Level in the tree; leaves have level 0.
    pub level: u32,
    /// Index within the level, counted from 1.
    pub index: u32,
}

impl Sealed for RunKey {}

impl NoiseKey for RunKey {
    fn add_noise(&self, scope: &Scope, node: Node, sum: &mut [i64]) {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(TAG).update(scope.digest.as_bytes());
        hasher.update(&node.unit.to_le_bytes()).update(&node.level.to_le_bytes()).update(&node.index.to_le_bytes());
        for value in &*sum {
            hasher.update(&value.to_le_bytes());
        }
        let seed = Zeroizing::new(<[u8; 32]>::from(hasher.finalize()));
        hasher.zeroize();
        let mut rng = ChaCha20Rng::from_seed(*seed);
        for value in sum {
            *value = value.saturating_add(scope.gaussian.sample(&mut rng));
        }
    }
}

impl Sealed for Seed {}

impl NoiseKey for Seed {
    fn add_noise(&self, scope: &Scope, node: Node, sum: &mut [i64]) {
        let key = blake3::derive_key("fedbandit simulated dp-noise v1", &self.0.to_le_bytes());
        RunKey(Box::new(Zeroizing::new(key))).add_noise(scope, node, sum);
    }
}

/// Function in place of noise, for tests.
#[cfg(test)]
pub(super) struct Scripted<F>(pub(super) F);

#[cfg(test)]
impl<F> Sealed for Scripted<F> {}

#[cfg(test)]
impl<F: Fn(Node, &mut [i64]) + Sync> NoiseKey for Scripted<F> {
    fn add_noise(&self, _: &Scope, node: Node, sum: &mut [i64]) {
        (self.0)(node, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that continues after an update must get the same noise. The numbers agree with a separate implementation.
    #[test]
    fn noise_matches_frozen_vector() {
        let scope = Scope { digest: blake3::hash(b"run"), gaussian: DiscreteGaussian::new(1 << 24).unwrap() };
        let mut sum = [1, -2, 3];
        Seed(1).add_noise(&scope, Node { unit: 4, level: 5, index: 6 }, &mut sum);
        assert_eq!(sum, [-27_606_280, 8_187_733, -32_797_893]);
    }
}
