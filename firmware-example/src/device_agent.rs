//! The device's agent: guarded, unless its identity is for private runs.

use core::num::NonZeroU32;
use core::ops::Deref;

use fedbandit_core::wire::Identity;
use fedbandit_core::{
    Action, Agent, EpisodeSummary, Guard, GuardedAgent, Learner, Model, ModelError, Prior, RecordError, StateError,
    packed_len,
};

use crate::environment::{D, REWARDS};

/// Longest episode that a guarded device accepts. A hostile controller can ruin the whole first episode, so do not make it
/// longer than your runs need.
pub const LONGEST_EPISODE: u32 = 1_024;

/// Half-life of the device's own data in steps, for a θ* that drifts; usually the run's `forget`.
pub const HALF_LIFE: Option<NonZeroU32> = None;

/// Prior of an agent without a saved state. The device waits for its first model, so no step uses it.
const PRIOR: Prior = Prior::new(1.0, 1.0, 64, REWARDS);

/// Guarded agent of the device's dimension.
type Guarded = GuardedAgent<D, { packed_len(D) }>;

/// Returns the constants of the guard. `None` for private runs, in which a device must not remember its own data.
pub fn guard(identity: &Identity) -> Option<Guard> {
    identity.allows_guard().then(|| Guard {
        noise: identity.noise(),
        theta_norm: identity.theta_norm(),
        max_episode_len: LONGEST_EPISODE,
        half_life: HALF_LIFE,
    })
}

/// Agent of either kind. A firmware for one kind of run needs only that agent.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "the device has no allocator, and RAM for the larger one")]
pub enum DeviceAgent {
    /// Uses models as they are.
    Plain(Agent<D>),
    /// Fuses models with its own data.
    Guarded(Guarded),
}

impl DeviceAgent {
    /// Number of bytes that [`save`](Self::save) writes.
    pub const SAVED_LEN: usize = Guarded::SAVED_LEN;

    /// Creates an agent without data.
    pub fn new(guard: Option<Guard>) -> Result<Self, ModelError> {
        match guard {
            Some(guard) => GuardedAgent::new(&PRIOR, guard).map(Self::Guarded),
            None => Agent::new(&PRIOR).map(Self::Plain),
        }
    }

    /// Writes the complete state to a buffer. That of a plain agent is followed by zeros.
    pub fn save(&self, bytes: &mut [u8; Self::SAVED_LEN]) -> Result<(), StateError> {
        match self {
            Self::Plain(agent) => {
                let (plain, rest) = bytes.split_at_mut(Agent::<D>::SAVED_LEN);
                rest.fill(0);
                agent.save(plain)
            }
            Self::Guarded(agent) => agent.save(bytes),
        }
    }

    /// Restores an agent of the same kind. Its data must not pass from a guarded agent to a plain one.
    pub fn restore(bytes: &[u8], guard: Option<Guard>) -> Option<Self> {
        let (plain, rest) = bytes.split_at_checked(Agent::<D>::SAVED_LEN)?;
        match guard {
            Some(guard) => GuardedAgent::restore(bytes, guard).ok().map(Self::Guarded),
            None if rest.iter().all(|byte| *byte == 0) => Agent::restore(plain).ok().map(Self::Plain),
            None => None,
        }
    }

    /// Records a step.
    pub fn record(&mut self, action: &Action<D>, reward: f32) -> Result<(), RecordError> {
        match self {
            Self::Plain(agent) => agent.record(action, reward),
            Self::Guarded(agent) => agent.record(action, reward),
        }
    }

    /// Ends the episode.
    pub fn finish(&mut self) -> EpisodeSummary<'_, D> {
        match self {
            Self::Plain(agent) => agent.finish(),
            Self::Guarded(agent) => agent.finish(),
        }
    }

    /// Returns the number of alarms.
    pub fn alarms(&self) -> u8 {
        match self {
            Self::Plain(_) => 0,
            Self::Guarded(agent) => agent.alarms(),
        }
    }
}

impl Learner<D> for DeviceAgent {
    fn begin(&mut self, model: &Model<'_>) -> Result<(), ModelError> {
        match self {
            Self::Plain(agent) => agent.begin(model),
            Self::Guarded(agent) => agent.begin(model),
        }
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

impl Deref for DeviceAgent {
    type Target = Agent<D>;

    fn deref(&self) -> &Agent<D> {
        match self {
            Self::Plain(agent) => agent,
            Self::Guarded(agent) => agent,
        }
    }
}
