//! Where noise comes from: a secret key, and the sum that is to be hidden.
//!
//! The noise of a node of the mechanism is a ChaCha20 stream under the key
//!
//! BLAKE3(run key; tag ‖ H(run, budget, episodes, grid, mechanism, units) ‖ unit ‖ level ‖ index ‖ the node's sum).
//!
//! **It is as good as drawn.** Were BLAKE3 and ChaCha20 random functions, inputs that differ would have independent
//! noise. A run asks once for each (unit, level, index), so none of its inputs repeats, whatever the sums are; and a
//! value at an input that was not asked before is uniform given all that came before, even if the input was chosen by
//! somebody who saw that. So the noise of a run is independent of its data and has exactly the distribution that the
//! proof asks for. Who can tell the real functions from random ones is the only exception.
//!
//! **The same sum gets the same noise.** A controller that lost its memory and hears the same messages again releases
//! the same numbers, in whatever order they come within an episode: a second release is a copy and tells nothing new.
//!
//! **Another sum gets independent noise.** After a rollback, or beside a twin on the same key, the difference of two
//! releases is no difference of sums, as with the message in the nonce of a misuse-resistant (SIV) cipher. Such a
//! second history is a second release of what both have in common, and costs as much.
//!
//! **Why the sum, and not a hash of the messages.** A node's release is a function of its sum alone. In one history
//! both choices have the same distribution, by the argument above. In two, other messages with an equal sum would get
//! fresh noise under a hash, so that the same number could be averaged over two releases; under the sum they get the
//! same release. The sum needs no order of messages to agree on, and nothing to be kept beside it. What two histories
//! on one key show, beyond two releases, is whether something was equal: with a hash, all messages of a node, and with
//! the sum, their total. The difference is in groups. Members that change their own messages between the histories can
//! test one guess, exact to the grid in all coordinates, at how another member's message changed between them. A
//! device that repeats its messages as they were, as an honest one does, has no such change.

use chacha20::ChaCha20Rng;
use chacha20::rand_core::SeedableRng;
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use super::gaussian::DiscreteGaussian;

/// Names the noise of this version: what is changed in the sampler or in the order of coordinates must change it.
const TAG: &[u8] = b"fedbandit dp-noise v1";

/// The secret of a run: who knows it can take the noise off every release.
///
/// It comes from the operating system and must be stored before the first message and kept from backups; a run that
/// goes on with another key releases what it released before a second time. It stays in one place in memory, where it is
/// wiped when dropped, as is what is derived from it.
///
/// There is no way to print, copy or serialise it,
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
/// and none to make one of a number:
///
/// ```compile_fail,E0277
/// let key: fedbandit::privacy::RunKey = 7_u64.into();
/// ```
pub struct RunKey(Box<Zeroizing<[u8; 32]>>);

impl RunKey {
    /// A new key.
    ///
    /// # Errors
    /// The operating system has no randomness to give.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut key = Self(Box::default());
        getrandom::fill(&mut **key.0)?;
        Ok(key)
    }

    /// The key as it may be stored: 32 bytes and a check.
    pub fn to_stored(&self) -> Zeroizing<[u8; STORED_LEN]> {
        let mut stored = Zeroizing::new([0; STORED_LEN]);
        stored[..32].copy_from_slice(&**self.0);
        stored[32..].copy_from_slice(&self.check());
        stored
    }

    /// A key that was stored.
    ///
    /// # Errors
    /// These bytes never were a key: cut off, zeroed, or a file of something else.
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

/// The length of a stored key.
pub const STORED_LEN: usize = 64;

/// Bytes that are no stored [`RunKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("this is no stored run key")]
pub struct NotAKey;

/// Reproducible noise for simulations, whose data are no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

/// A source of noise: a [`RunKey`], or for simulations a [`Seed`].
///
/// Nothing else can be one.
pub trait NoiseKey: Sealed + Sync {
    /// Adds the noise of a node to its sum.
    #[doc(hidden)]
    fn add_noise(&self, scope: &Scope, node: Node, sum: &mut [i64]);
}

use sealed::Sealed;

mod sealed {
    #[expect(unnameable_types, reason = "that is what seals it")]
    pub trait Sealed {}
}

/// What all nodes of a run have in common.
#[doc(hidden)]
#[derive(Debug)]
pub struct Scope {
    pub(super) digest: blake3::Hash,
    pub(super) gaussian: DiscreteGaussian,
}

/// Which of a run's noises.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// The stream, counted from 0.
    pub unit: u64,
    /// The level in the tree, leaves being 0.
    pub level: u32,
    /// The place in its level, counted from 1.
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

/// A function in the place of noise, to test what is done with it.
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

    /// A run that goes on after an update must not get other noise. The numbers agree with a separate implementation.
    #[test]
    fn noise_is_frozen() {
        let scope = Scope { digest: blake3::hash(b"run"), gaussian: DiscreteGaussian::new(1 << 24).unwrap() };
        let mut sum = [1, -2, 3];
        Seed(1).add_noise(&scope, Node { unit: 4, level: 5, index: 6 }, &mut sum);
        assert_eq!(sum, [-27_606_280, 8_187_733, -32_797_893]);
    }
}
