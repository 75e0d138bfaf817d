//! Enrolled devices of a run.

use serde::{Deserialize, Serialize};

/// Registry of a run's devices: written by `enroll` and `revoke`, read by the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    /// Number of the run.
    pub run: u32,
    /// D.
    pub dimension: u8,
    /// All devices ever enrolled, ordered by number. Each counts as one of the N agents, even if it never sends.
    pub devices: Vec<EnrolledDevice>,
}

/// Enrolled device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnrolledDevice {
    /// Number of the device in the run.
    pub agent: u32,
    /// True if the device's frames are dropped.
    pub revoked: bool,
    /// True if the device's frames are encrypted.
    #[serde(default)]
    pub sealed: bool,
    /// Time of enrolment in seconds since the Unix epoch, if known.
    #[serde(default)]
    pub enrolled_at: Option<u64>,
}
