//! Device keys, derived from one master key.

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

/// Secret from which the keys of all devices are derived. Its holder can impersonate every device; a device's key reveals
/// nothing about the master key or about other devices' keys.
///
/// The type has no `Debug`, `Clone` or `Serialize`.
pub struct MasterKey(Zeroizing<[u8; 32]>);

impl MasterKey {
    /// Generates a key from the operating system's entropy.
    ///
    /// # Errors
    /// No entropy is available.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut secret = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *secret)?;
        Ok(Self(secret))
    }

    /// Reads a stored key; none unless there are 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(Zeroizing::new(bytes.try_into().ok()?)))
    }

    /// Returns the bytes of the key, for storage that only the operator can read.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives a device's long-term key: HKDF-SHA256 of the master key, without salt, with "fedbandit device v2", fleet,
    /// agent and generation as `info`.
    pub fn device_key(&self, fleet: u32, agent: u32, generation: u32) -> [u8; 32] {
        let mut key = [0; 32];
        let [fleet, agent, generation] = [fleet, agent, generation].map(u32::to_le_bytes);
        let information = [&b"fedbandit device v2"[..], &fleet, &agent, &generation];
        let derived = Hkdf::<Sha256>::new(None, &*self.0).expand_multi_info(&information, &mut key);
        derived.expect("HKDF-SHA256 yields up to 8,160 bytes");
        key
    }
}
