//! Enrolled devices of a run.

use fedbandit_core::wire::Identity;
use serde::{Deserialize, Serialize};

use super::continuation::Continuation;
use super::master_key::MasterKey;

/// Registry of a run's devices: written by `enroll`, `continue`, `rekey` and `revoke`, read by the service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    /// Number of the fleet, which keeps its devices from one run to the next.
    pub fleet: u32,
    /// Number of the run.
    pub run: u32,
    /// D.
    pub dimension: u8,
    /// R, the noise level of rewards that devices are provisioned with.
    pub noise: f32,
    /// S, the bound on ‖θ*‖₂ that devices are provisioned with.
    pub theta_norm: f32,
    /// True if devices may be guarded, and so remember data of earlier episodes. A private run requires false.
    #[serde(default)]
    pub guard: bool,
    /// The earlier runs that this one continues, and what it learns from them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<Continuation>,
    /// All devices ever enrolled, ordered by number. Each counts as one of the N agents, even if it never sends.
    pub devices: Vec<EnrolledDevice>,
}

impl Registry {
    /// Creates a registry without devices, for R = 0.5, S = 1 and no guard.
    pub const fn new(fleet: u32, run: u32, dimension: u8) -> Self {
        Self { fleet, run, dimension, noise: 0.5, theta_norm: 1.0, guard: false, continues: None, devices: Vec::new() }
    }

    /// Adds devices with plain frames.
    #[must_use]
    pub fn with_devices(mut self, agents: impl IntoIterator<Item = u32>) -> Self {
        self.devices.extend(agents.into_iter().map(EnrolledDevice::new));
        self
    }

    /// Returns the registry of the next run: the same devices, and the number that follows.
    ///
    /// `None` if there are no run numbers left.
    pub fn next_run(&self, continues: Continuation) -> Option<Self> {
        Some(Self { run: self.run.checked_add(1)?, continues: Some(continues), ..self.clone() })
    }

    /// Returns the identity of a device.
    pub fn identity(&self, device: &EnrolledDevice, master: &MasterKey) -> Identity {
        let key = master.device_key(self.fleet, device.agent, device.generation);
        let identity = Identity::new(self.fleet, device.agent, self.dimension, key);
        let identity = identity.with_constants(self.noise, self.theta_norm);
        let identity = if self.guard { identity.with_guard() } else { identity };
        if device.sealed { identity.with_sealed_frames() } else { identity }
    }
}

/// Enrolled device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnrolledDevice {
    /// Number of the device in the fleet.
    pub agent: u32,
    /// True if the device's frames are dropped.
    pub revoked: bool,
    /// True if the device's frames are encrypted.
    #[serde(default)]
    pub sealed: bool,
    /// Number of times that the device's key was issued again.
    #[serde(default)]
    pub generation: u32,
    /// Time of enrolment in seconds since the Unix epoch, if known.
    #[serde(default)]
    pub enrolled_at: Option<u64>,
}

impl EnrolledDevice {
    /// Creates a device with plain frames.
    pub const fn new(agent: u32) -> Self {
        Self { agent, revoked: false, sealed: false, generation: 0, enrolled_at: None }
    }
}
