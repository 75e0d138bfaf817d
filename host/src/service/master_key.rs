//! Who the devices are: keys from one master secret.

use fedbandit_core::wire::Identity;
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

/// The secret from which every device's key follows. Whoever has it can speak for all devices; a device's own key
/// tells nothing about it or about others'.
///
/// It has no `Debug`, `Clone` or `Serialize`.
pub struct MasterKey(Zeroizing<[u8; 32]>);

impl MasterKey {
    /// A new one, from the operating system's entropy.
    ///
    /// # Errors
    /// The system has none.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut secret = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *secret)?;
        Ok(Self(secret))
    }

    /// One that was kept: 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(Zeroizing::new(bytes.try_into().ok()?)))
    }

    /// Its bytes, to be kept where nobody else can read them.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A device's identity: its key is HKDF-SHA256 of the master with "fedbandit device v1", run and agent as its
    /// information.
    pub fn identity(&self, run: u32, agent: u32, dimension: u8) -> Identity {
        let mut key = [0; 32];
        let information = [&b"fedbandit device v1"[..], &run.to_le_bytes(), &agent.to_le_bytes()];
        let derived = Hkdf::<Sha256>::new(None, &*self.0).expand_multi_info(&information, &mut key);
        derived.expect("32 bytes are not too many for HKDF-SHA256");
        Identity { run, agent, dimension, key }
    }
}
