//! Virtual devices for a real controller: the agent and the session of the firmware, in a simulated environment.

use std::num::NonZeroU32;

use fedbandit_core::session::{Event, HEARTBEAT_INTERVAL, Session};
use fedbandit_core::wire::{DecodeError, Identity, max_frame_len};
use fedbandit_core::{Choice, Guard, MAX_EPISODE_LEN, ModelError, Prior, Rewards, SelectError, packed_len};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;
use serde::Serialize;

use super::attack::Attack;
use super::config::{SimulationConfig, unsupported_dimension};
use super::environment::{Context, World};
use super::fleet::for_dimensions;
use super::guard::{DeviceAgent, GuardName};
use super::replay::Logs;
use crate::config::{ConfigError, RewardKind, RunConfig};
use crate::math::rng::{Purpose, generator};

/// A virtual device of some dimension.
pub trait VirtualDevice: Send {
    /// Handles a frame from the controller.
    ///
    /// # Errors
    /// The bytes are not a frame for this device.
    fn handle(&mut self, frame: &mut [u8], now: u64) -> Result<Event, DecodeError>;

    /// Returns the frame to send now, if any.
    fn poll(&mut self, now: u64) -> Option<&[u8]>;

    /// Returns the time at which [`poll`](Self::poll) or [`run_episode`](Self::run_episode) has something to do, if nothing
    /// is received before.
    fn wake_at(&self, patience: u64) -> u64;

    /// Tells the device that its link was down and is up again.
    fn link_up(&mut self, now: u64);

    /// Runs the steps of an episode and submits its summary, if a new model has arrived. After `patience` milliseconds
    /// without one, the last model is used again.
    fn run_episode(&mut self, now: u64, patience: u64);

    /// Returns the progress so far.
    fn progress(&self) -> DeviceProgress;

    /// Returns true if no summary waits for an answer of the controller.
    fn is_settled(&self) -> bool;
}

/// Progress of a virtual device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DeviceProgress {
    /// Number of episodes run.
    pub episodes: u32,
    /// Number of summaries that the controller has acknowledged.
    pub acknowledged: u32,
    /// Mean expected reward over the steps of the last episode.
    pub last_mean_worth: f64,
    /// Mean expected reward of the best actions on these steps.
    pub last_mean_best: f64,
    /// Number of steps in all episodes.
    pub steps: u64,
    /// Sum of expected rewards over these steps.
    pub worth: f64,
    /// Sum of expected rewards of the best actions on these steps.
    pub best: f64,
    /// Number of alarms of the guard.
    pub alarms: u64,
}

/// Attacks that need no knowledge of other devices.
pub const INDEPENDENT_ATTACKS: [Attack; 6] =
    [Attack::None, Attack::SignFlip, Attack::FakeParameter, Attack::Zero, Attack::Huge, Attack::Silent];

/// Creates the virtual device of an identity. The configuration and the seed determine the world, and must be the same for
/// all devices of a fleet.
///
/// An honest device has the guard of the configuration, by default where its identity permits one, with R and S of its identity and
/// the half-life of the configuration. A corrupted one has none.
///
/// # Errors
/// The dimension is not supported, the attack needs knowledge of other devices, the identity does not permit the guard, or the log
/// is not in `logs`.
pub fn virtual_device(
    identity: Identity,
    boot: u32,
    config: &SimulationConfig,
    logs: &Logs,
    seed: u64,
) -> Result<Box<dyn VirtualDevice>, ConfigError> {
    let attack = config.attack;
    if !INDEPENDENT_ATTACKS.contains(&attack) {
        let names: Vec<_> = INDEPENDENT_ATTACKS.iter().map(ToString::to_string).collect();
        let reason = format!("{attack} needs knowledge of other devices; use one of {}", names.join(", "));
        return Err(ConfigError::new("attack", reason));
    }
    let by_identity = if identity.allows_guard() { GuardName::On } else { GuardName::Off };
    let guard = if attack == Attack::None { config.guard.unwrap_or(by_identity) } else { GuardName::Off };
    if guard != GuardName::Off && !identity.allows_guard() {
        let reason = format!("device {} is enrolled with --private; use off", identity.agent());
        return Err(ConfigError::new("guard", reason));
    }
    let run = RunConfig { dim: identity.dimension().into(), ..config.run };
    let world = World::new(&SimulationConfig { run, ..config.clone() }, logs, seed)?;
    macro_rules! by_dimension {
        ($($d:literal)*) => {
            match identity.dimension() {
                $($d => {
                    let conduct = (attack, guard);
                    let device = Device::<$d, { packed_len($d) }, { max_frame_len($d) }>::new(
                        identity, boot, world, &run, conduct, seed,
                    );
                    Box::new(device.map_err(|error| ConfigError::new("guard", error))?)
                })*
                other => return Err(unsupported_dimension(other.into())),
            }
        };
    }
    Ok(for_dimensions!(by_dimension))
}

/// Largest number of unacknowledged summaries.
const WINDOW: usize = 4;

struct Device<const D: usize, const T: usize, const F: usize> {
    number: u64,
    agent: DeviceAgent<D, T>,
    session: Session<D, F, WINDOW>,
    world: World,
    attack: Attack,
    guard: GuardName,
    draws: Pcg64,
    jitter: Pcg64,
    /// Generator of scout steps.
    scouts: Pcg64,
    context: Context<D>,
    step: u32,
    /// True once a model was received.
    joined: bool,
    /// End of the last episode.
    since: u64,
    progress: DeviceProgress,
}

impl<const D: usize, const T: usize, const F: usize> Device<D, T, F> {
    fn new(
        identity: Identity,
        boot: u32,
        world: World,
        run: &RunConfig,
        (attack, guard): (Attack, GuardName),
        seed: u64,
    ) -> Result<Self, ModelError> {
        let number = u64::from(identity.agent());
        // A guard keeps to this range of rewards; other agents take it from the model.
        let rewards = if run.rewards == RewardKind::Bounded { Rewards::Clipped } else { Rewards::Unbounded };
        let constants = Guard {
            noise: identity.noise(),
            theta_norm: identity.theta_norm(),
            max_episode_len: MAX_EPISODE_LEN,
            half_life: run.forget.and_then(NonZeroU32::new),
        };
        let prior = Prior::new(1.0, 1.0, 1, rewards);
        let agent = DeviceAgent::new(&prior, (guard != GuardName::Off).then_some(constants))?;
        let mut session = Session::new(identity, boot).expect("a session of the identity's dimension");
        session.send_heartbeats(HEARTBEAT_INTERVAL);
        Ok(Self {
            number,
            agent,
            session,
            world,
            attack,
            guard,
            draws: generator(seed, Purpose::Agent, number),
            // Challenges must differ from those of earlier starts.
            jitter: generator(seed ^ u64::from(boot) << 32, Purpose::Attacked, number),
            scouts: generator(seed ^ u64::from(boot) << 32, Purpose::Scouts, number),
            context: Context::new(),
            step: 0,
            joined: false,
            since: 0,
            progress: DeviceProgress::default(),
        })
    }

    fn select(&mut self) -> Result<Choice, SelectError> {
        match &self.agent {
            DeviceAgent::Guarded(agent) if self.guard == GuardName::Untrusting => {
                agent.select_or_scout(&self.context.arms, self.guard.scouts(), &mut self.scouts)
            }
            agent => agent.select(&self.context.arms),
        }
    }

    /// Draws the reward that the agent records.
    fn reward(&mut self, mean: f64) -> f32 {
        let faked = self.attack == Attack::FakeParameter && self.jitter.next_u32() >> 31 == 1;
        let reward = self.world.reward(mean, faked, &mut self.draws);
        match self.attack {
            Attack::SignFlip => -reward,
            Attack::Huge => -1e6 * reward,
            _ => reward,
        }
    }
}

impl<const D: usize, const T: usize, const F: usize> VirtualDevice for Device<D, T, F> {
    fn handle(&mut self, frame: &mut [u8], now: u64) -> Result<Event, DecodeError> {
        let event = self.session.handle(frame, &mut self.agent, now)?;
        self.joined |= matches!(event, Event::Model { .. });
        self.progress.acknowledged += u32::from(matches!(event, Event::Acknowledged { .. }));
        Ok(event)
    }

    fn poll(&mut self, now: u64) -> Option<&[u8]> {
        self.session.poll(now, &mut self.jitter)
    }

    fn wake_at(&self, patience: u64) -> u64 {
        let episode = match self.session.wants_model() {
            true if self.joined => self.since.saturating_add(patience),
            true => u64::MAX,
            false => 0,
        };
        self.session.poll_at().map_or(episode, |at| at.min(episode))
    }

    fn link_up(&mut self, now: u64) {
        self.session.link_up(now);
    }

    fn run_episode(&mut self, now: u64, patience: u64) {
        let late = self.joined && now >= self.since.saturating_add(patience);
        if self.session.wants_model() && !late {
            return;
        }
        let (mut worth, mut best) = (0.0, 0.0);
        let length = self.agent.episode_len();
        for _ in 0..length {
            self.world.draw(self.number, self.step, &mut self.draws, &mut self.context);
            self.step = self.step.wrapping_add(1);
            let Ok(choice) = self.select() else { continue };
            let mean = self.context.expected_rewards[choice.index];
            worth += mean;
            best += self.context.best_and_random().0;
            let reward = self.reward(mean);
            if self.attack != Attack::Zero {
                // Fails if the episode was begun before and has fewer steps left.
                let _ = self.agent.record(&self.context.arms[choice.index], reward);
            }
        }
        self.progress.episodes += 1;
        self.progress.steps += u64::from(length);
        self.progress.worth += worth;
        self.progress.best += best;
        self.progress.last_mean_worth = worth / f64::from(length);
        self.progress.last_mean_best = best / f64::from(length);
        let summary = self.agent.finish();
        if self.attack != Attack::Silent {
            self.session.submit(&summary, now);
        }
        self.progress.alarms = self.agent.alarms();
        self.since = now;
    }

    fn is_settled(&self) -> bool {
        self.session.unacknowledged().next().is_none()
    }

    fn progress(&self) -> DeviceProgress {
        self.progress
    }
}
