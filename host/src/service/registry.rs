//! The enrolled devices of a run.

use serde::{Deserialize, Serialize};

/// Who is enrolled: what `enroll` and `revoke` write, and what a service reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    /// The run's number.
    pub run: u32,
    /// D.
    pub dimension: u8,
    /// All devices that were ever enrolled, by their number. N of them count, whether they ever send or not.
    pub devices: Vec<EnrolledDevice>,
}

/// An enrolled device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnrolledDevice {
    /// Its number in the run.
    pub agent: u32,
    /// Whether its frames are dropped.
    pub revoked: bool,
    /// Whether its frames are sealed.
    #[serde(default)]
    pub sealed: bool,
    /// When it was enrolled, in seconds of the Unix epoch, if that is known.
    #[serde(default)]
    pub enrolled_at: Option<u64>,
}
