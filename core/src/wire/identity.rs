//! Identity of a device: its provisioning blob, and the keys of a run derived from its long-term key.

use core::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{EncodeError, Writer};
use crate::state::crc32;

/// Identity of a device, stored in its provisioning blob. It does not depend on the run. The controller has a copy for each
/// enrolled device.
///
/// `Debug` does not show the key.
#[derive(Clone)]
pub struct Identity {
    fleet: u32,
    agent: u32,
    dimension: u8,
    mode: u8,
    flags: u8,
    noise: f32,
    theta_norm: f32,
    key: [u8; 32],
}

/// Reason why a provisioning blob is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum IdentityError {
    /// The bytes do not start with `FBID`, for example because the flash is erased.
    NotAnIdentity,
    /// The layout version is not supported.
    Version(u8),
    /// The checksum does not match.
    Corrupt,
    /// The mode is unknown, or the blob requires sealed frames and this build lacks the feature `sealed`.
    Mode(u8),
    /// A flag is unknown.
    Flags(u8),
    /// R or S is not positive and finite.
    Constants,
    /// The dimension is zero, or not that of the session.
    Dimension(u8),
}

/// Modes of the blob.
const PLAIN: u8 = 0;
const SEALED: u8 = 1;

/// Flag of the blob: the device may keep its own data over episodes.
const GUARD: u8 = 1;

/// Layout version of the blob.
const VERSION: u8 = 2;

/// Sender of the frames that a key is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Device,
    Controller,
}

impl Identity {
    /// Length of a provisioning blob, in bytes.
    pub const BLOB_LEN: usize = 60;

    /// Creates the identity of a device with plain frames, no guard, R = 0.5 and S = 1. A fleet shares no device numbers and no
    /// keys with another.
    pub const fn new(fleet: u32, agent: u32, dimension: u8, key: [u8; 32]) -> Self {
        Self { fleet, agent, dimension, mode: PLAIN, flags: 0, noise: 0.5, theta_norm: 1.0, key }
    }

    /// Requires sealed frames.
    #[cfg(feature = "sealed")]
    pub const fn with_sealed_frames(self) -> Self {
        Self { mode: SEALED, ..self }
    }

    /// Allows the guard: the device may be a [`GuardedAgent`](crate::GuardedAgent), which keeps its own data over episodes. Devices
    /// of private runs must not.
    pub const fn with_guard(self) -> Self {
        Self { flags: self.flags | GUARD, ..self }
    }

    /// Sets the constants that a device must not learn from a controller: R, the noise level of rewards, and S, the bound on
    /// ‖θ*‖₂.
    pub const fn with_constants(self, noise: f32, theta_norm: f32) -> Self {
        Self { noise, theta_norm, ..self }
    }

    /// Returns the number of the fleet.
    pub const fn fleet(&self) -> u32 {
        self.fleet
    }

    /// Returns the number of the device within the fleet.
    pub const fn agent(&self) -> u32 {
        self.agent
    }

    /// Returns D.
    pub const fn dimension(&self) -> u8 {
        self.dimension
    }

    /// Returns true if the device's frames are sealed.
    pub const fn is_sealed(&self) -> bool {
        self.mode == SEALED
    }

    /// Returns true if the device may be a [`GuardedAgent`](crate::GuardedAgent). No message of a controller changes it.
    pub const fn allows_guard(&self) -> bool {
        self.flags & GUARD != 0
    }

    /// Returns R, the noise level of rewards.
    pub const fn noise(&self) -> f32 {
        self.noise
    }

    /// Returns S, the bound on ‖θ*‖₂.
    pub const fn theta_norm(&self) -> f32 {
        self.theta_norm
    }

    /// Reads the provisioning blob flashed beside the firmware.
    ///
    /// # Errors
    /// The bytes are not a valid blob, or this build does not support it; see [`IdentityError`].
    pub fn from_blob(blob: &[u8; Self::BLOB_LEN]) -> Result<Self, IdentityError> {
        const CONTENT: usize = Identity::BLOB_LEN - 4;
        let (Some((content, checksum)), Some((start, _))) =
            (blob.split_first_chunk::<CONTENT>(), blob.split_first_chunk())
        else {
            return Err(IdentityError::NotAnIdentity);
        };
        let &[b'F', b'B', b'I', b'D', version, dimension, mode, flags] = start else {
            return Err(IdentityError::NotAnIdentity);
        };
        if version != VERSION {
            return Err(IdentityError::Version(version));
        }
        if checksum != crc32(content).to_le_bytes() {
            return Err(IdentityError::Corrupt);
        }
        if mode != PLAIN && !(mode == SEALED && cfg!(feature = "sealed")) {
            return Err(IdentityError::Mode(mode));
        }
        if flags & !GUARD != 0 {
            return Err(IdentityError::Flags(flags));
        }
        if dimension == 0 {
            return Err(IdentityError::Dimension(0));
        }
        let &[_, _, fleet, agent, noise, theta_norm, ref key @ ..] = content.as_chunks::<4>().0 else {
            return Err(IdentityError::NotAnIdentity);
        };
        let constants @ [noise, theta_norm] = [noise, theta_norm].map(f32::from_le_bytes);
        if !constants.iter().all(|constant| *constant > 0.0 && constant.is_finite()) {
            return Err(IdentityError::Constants);
        }
        let mut identity = Self::new(u32::from_le_bytes(fleet), u32::from_le_bytes(agent), dimension, [0; 32]);
        identity.key.iter_mut().zip(key.as_flattened()).for_each(|(to, from)| *to = *from);
        Ok(Self { mode, flags, noise, theta_norm, ..identity })
    }

    /// Writes the provisioning blob: `FBID`, version 2, dimension, mode, flags, fleet, agent, R, S, key, CRC-32.
    pub fn to_blob(&self) -> [u8; Self::BLOB_LEN] {
        let mut blob = [0; Self::BLOB_LEN];
        let mut writer = Writer { bytes: &mut blob, at: 0 };
        let parts: [&[u8]; 6] = [
            &[b'F', b'B', b'I', b'D', VERSION, self.dimension, self.mode, self.flags],
            &self.fleet.to_le_bytes(),
            &self.agent.to_le_bytes(),
            &self.noise.to_le_bytes(),
            &self.theta_norm.to_le_bytes(),
            &self.key,
        ];
        let written: Result<(), EncodeError> = parts.into_iter().try_for_each(|part| writer.put(part));
        let checksum = crc32(writer.written());
        // Cannot fail: 8 + 4·4 + 32 + 4 bytes are the array's length.
        _ = written.and_then(|()| writer.put(&checksum.to_le_bytes()));
        blob
    }

    /// Derives the key of one end's frames in a run: HMAC-SHA256 under the long-term key, which authenticates and seals no
    /// frame itself.
    pub(super) fn run_key(&self, end: End, run: u32) -> [u8; 32] {
        let direction = match end {
            End::Device => 1,
            End::Controller => 2,
        };
        let mut mac = hmac(&self.key);
        mac.update(b"fedbandit v2");
        mac.update(&[self.mode, direction]);
        mac.update(&run.to_le_bytes());
        mac.finalize().into_bytes().into()
    }
}

/// HMAC-SHA256 with a key of 32 bytes, zero-padded to a block as HMAC defines it.
pub(super) fn hmac(key: &[u8; 32]) -> Hmac<Sha256> {
    let mut block = [0; 64];
    block.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    Hmac::new(&block.into())
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent {} of fleet {}", self.agent, self.fleet)
    }
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnIdentity => f.write_str("not a device identity"),
            Self::Version(version) => write!(f, "unsupported identity version {version}"),
            Self::Corrupt => f.write_str("identity is corrupt: checksum mismatch"),
            Self::Mode(mode) => write!(f, "identity requires frames of mode {mode}, which this build does not support"),
            Self::Flags(flags) => write!(f, "identity has unknown flags {flags:#04x}; update the firmware"),
            Self::Constants => f.write_str("identity has a noise level or norm bound that is not positive"),
            Self::Dimension(dimension) => write!(f, "identity is for dimension {dimension}"),
        }
    }
}

impl core::error::Error for IdentityError {}
