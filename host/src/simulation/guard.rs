//! Guards of virtual devices.

use std::ops::Deref;

#[cfg(feature = "service")]
use fedbandit_core::Learner;
use fedbandit_core::{Action, Agent, EpisodeSummary, Guard, GuardedAgent, Model, ModelError, Prior, RecordError};

use super::config::SimulationConfig;
use crate::names::named;

/// Guard of virtual devices, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardName {
    /// Devices use the controller's models as they are.
    Off,
    /// Devices fuse models with their own data ([`GuardedAgent`]).
    On,
    /// As `On`; one step in 16, at random, uses the own data alone.
    Untrusting,
}

named!(GuardName, "guard", Off = "off", On = "on", Untrusting = "untrusting");

/// Smallest R of a guard. Simulated rewards may have no noise at all.
const MIN_NOISE: f64 = 1e-3;

impl GuardName {
    /// Returns the share of scout steps.
    pub(super) fn scouts(self) -> f32 {
        if self == Self::Untrusting { 1.0 / 16.0 } else { 0.0 }
    }

    /// Returns the constants of the guard in a world.
    pub(super) fn constants(config: &SimulationConfig) -> Guard {
        let run = config.resolve();
        Guard {
            noise: run.noise.noise().max(MIN_NOISE) as f32,
            theta_norm: run.theta_bound as f32,
            max_episode_len: run.longest(),
            half_life: run.half_life(),
        }
    }
}

/// Agent of a virtual device.
#[derive(Clone, PartialEq)]
pub(super) enum DeviceAgent<const D: usize, const T: usize> {
    Plain(Agent<D>),
    Guarded(Box<GuardedAgent<D, T>>),
}

impl<const D: usize, const T: usize> DeviceAgent<D, T> {
    pub(super) fn new(prior: &Prior, guard: Option<Guard>) -> Result<Self, ModelError> {
        match guard {
            Some(guard) => Ok(Self::Guarded(Box::new(GuardedAgent::new(prior, guard)?))),
            None => Ok(Self::Plain(Agent::new(prior)?)),
        }
    }

    pub(super) fn begin(&mut self, model: &Model<'_>) -> Result<(), ModelError> {
        match self {
            Self::Plain(agent) => agent.begin(model),
            Self::Guarded(agent) => agent.begin(model),
        }
    }

    pub(super) fn record(&mut self, action: &Action<D>, reward: f32) -> Result<(), RecordError> {
        match self {
            Self::Plain(agent) => agent.record(action, reward),
            Self::Guarded(agent) => agent.record(action, reward),
        }
    }

    pub(super) fn finish(&mut self) -> EpisodeSummary<'_, D> {
        match self {
            Self::Plain(agent) => agent.finish(),
            Self::Guarded(agent) => agent.finish(),
        }
    }

    /// Returns the number of alarms.
    pub(super) fn alarms(&self) -> u64 {
        match self {
            Self::Plain(_) => 0,
            Self::Guarded(agent) => agent.alarms().into(),
        }
    }
}

#[cfg(feature = "service")]
impl<const D: usize, const T: usize> Learner<D> for DeviceAgent<D, T> {
    fn begin(&mut self, model: &Model<'_>) -> Result<(), ModelError> {
        self.begin(model)
    }

    fn go_back(&mut self, model: &Model<'_>) -> Result<(), ModelError> {
        match self {
            Self::Plain(agent) => agent.go_back(model),
            Self::Guarded(agent) => agent.go_back(model),
        }
    }

    fn restart(&mut self) {
        match self {
            Self::Plain(agent) => Learner::restart(agent),
            Self::Guarded(agent) => agent.restart(),
        }
    }
}

impl<const D: usize, const T: usize> Deref for DeviceAgent<D, T> {
    type Target = Agent<D>;

    fn deref(&self) -> &Agent<D> {
        match self {
            Self::Plain(agent) => agent,
            Self::Guarded(agent) => agent,
        }
    }
}
