//! A virtual device for a real controller: the agent and the session of the firmware, in a simulated environment.

use fedbandit_core::session::{Event, Session};
use fedbandit_core::wire::{DecodeError, Identity, max_sealed_frame_len};
use fedbandit_core::{Agent, Prior, Rewards};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;
use serde::Serialize;

use crate::learning::{ConfigError, Learning};
use crate::random::{Use, generator};
use crate::simulation::{Attack, Config, DIMENSIONS, Logs, Scene, World, for_dimensions};

/// A virtual device of some dimension.
pub trait Edge: Send {
    /// Takes a frame of the controller's.
    ///
    /// # Errors
    /// The bytes are not a frame for this device.
    fn handle(&mut self, frame: &[u8], now: u64) -> Result<Event, DecodeError>;

    /// Writes the frame to send now, if any, and returns its length.
    fn poll(&mut self, now: u64, frame: &mut [u8]) -> Option<usize>;

    /// Lives through the running episode, if there is a model to go by: what it is worth is counted, and its summary
    /// waits to be sent. The last good model does after `patience` milliseconds without a new one.
    fn live(&mut self, now: u64, patience: u64);

    /// Returns true if no summary waits for an answer of the controller.
    fn is_settled(&self) -> bool;

    /// What it has lived through.
    fn life(&self) -> Life;
}

/// A device's life so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Life {
    /// Episodes lived through.
    pub episodes: u32,
    /// Summaries that the controller has acknowledged.
    pub acknowledged: u32,
    /// The mean expected reward over the steps of the last episode.
    pub last_mean_worth: f64,
    /// The same for the best actions.
    pub last_mean_best: f64,
    /// Steps lived through.
    pub steps: u64,
    /// The sum of expected rewards over these steps.
    pub worth: f64,
    /// The same for the best actions.
    pub best: f64,
}

/// What a lone attacker can do: it knows nothing of the others.
pub const LONE_ATTACKS: [Attack; 6] =
    [Attack::None, Attack::SignFlip, Attack::FakeParameter, Attack::Zero, Attack::Huge, Attack::Silent];

/// The device of an identity in the world of a configuration and a seed, the same for all devices of a fleet. With a
/// number of its start, larger each time, its frames are sealed.
///
/// # Errors
/// The dimension is not compiled in, the attack needs to know other devices, or the log is not among `logs`.
pub fn edge(
    identity: Identity,
    sealed: Option<u32>,
    config: &Config,
    logs: &Logs,
    seed: u64,
) -> Result<Box<dyn Edge>, ConfigError> {
    if !LONE_ATTACKS.contains(&config.attack) {
        let names: Vec<_> = LONE_ATTACKS.iter().map(ToString::to_string).collect();
        let reason =
            format!("{} needs to know the other devices; a lone one can do {}", config.attack, names.join(", "));
        return Err(ConfigError::new("attack", reason));
    }
    let learning = Learning { dim: identity.dimension.into(), ..config.learning };
    let world = World::new(&Config { learning, ..config.clone() }, logs, seed)?;
    macro_rules! by_dimension {
        ($($d:literal)*) => {
            match identity.dimension {
                $($d => {
                    let number = u64::from(identity.agent);
                    let session = match sealed {
                        Some(boot) => Session::sealed(identity, boot),
                        None => Session::new(identity, 1),
                    };
                    Box::new(Device::<$d, { max_sealed_frame_len($d) }>::new(number, session, world, config.attack, seed))
                })*
                other => return Err(ConfigError::new("dim", format!("virtual devices have one of {DIMENSIONS:?}, not {other}"))),
            }
        };
    }
    Ok(for_dimensions!(by_dimension))
}

/// Summaries that wait for an acknowledgement at the most.
const WINDOW: usize = 4;

struct Device<const D: usize, const F: usize> {
    number: u64,
    agent: Agent<D>,
    session: Session<F, WINDOW>,
    world: World,
    attack: Attack,
    draws: Pcg64,
    jitter: Pcg64,
    scene: Scene<D>,
    step: u32,
    joined: bool,
    /// When the last episode ended.
    since: u64,
    life: Life,
}

impl<const D: usize, const F: usize> Device<D, F> {
    fn new(number: u64, session: Session<F, WINDOW>, world: World, attack: Attack, seed: u64) -> Self {
        let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 1, rewards: Rewards::Unbounded };
        Self {
            number,
            agent: Agent::new(&prior).expect("a valid prior"),
            session,
            world,
            attack,
            draws: generator(seed, Use::Agent, number),
            jitter: generator(seed, Use::Attacked, number),
            scene: Scene::new(),
            step: 0,
            joined: false,
            since: 0,
            life: Life::default(),
        }
    }

    fn reward(&mut self, worth: f64) -> f32 {
        let faked = self.attack == Attack::FakeParameter && self.jitter.next_u32() >> 31 == 1;
        let reward = self.world.reward(worth, faked, &mut self.draws);
        match self.attack {
            Attack::SignFlip => -reward,
            Attack::Huge => -1e6 * reward,
            _ => reward,
        }
    }
}

impl<const D: usize, const F: usize> Edge for Device<D, F> {
    fn handle(&mut self, frame: &[u8], now: u64) -> Result<Event, DecodeError> {
        let event = self.session.handle(frame, &mut self.agent, now)?;
        self.joined |= matches!(event, Event::Model { .. });
        self.life.acknowledged += u32::from(matches!(event, Event::Acknowledged { .. }));
        Ok(event)
    }

    fn poll(&mut self, now: u64, frame: &mut [u8]) -> Option<usize> {
        self.session.poll(self.agent.episode(), now, &mut self.jitter, frame)
    }

    fn live(&mut self, now: u64, patience: u64) {
        let late = self.joined && now >= self.since.saturating_add(patience);
        if self.session.wants_model() && !late {
            return;
        }
        let (mut worth, mut best) = (0.0, 0.0);
        let length = self.agent.episode_len();
        for _ in 0..length {
            self.world.draw(self.number, self.step, &mut self.draws, &mut self.scene);
            self.step = self.step.wrapping_add(1);
            let Ok(choice) = self.agent.select(&self.scene.arms) else { continue };
            worth += self.scene.worth[choice.index];
            best += self.scene.best_and_random().0;
            let reward = self.reward(self.scene.worth[choice.index]);
            if self.attack != Attack::Zero {
                // An episode that was begun before has fewer steps left.
                let _ = self.agent.record(&self.scene.arms[choice.index], reward);
            }
        }
        self.life.episodes += 1;
        self.life.steps += u64::from(length);
        self.life.worth += worth;
        self.life.best += best;
        self.life.last_mean_worth = worth / f64::from(length);
        self.life.last_mean_best = best / f64::from(length);
        let summary = self.agent.finish();
        if self.attack != Attack::Silent {
            self.session.submit(&summary, now);
        }
        self.since = now;
    }

    fn is_settled(&self) -> bool {
        self.session.unacknowledged().next().is_none()
    }

    fn life(&self) -> Life {
        self.life
    }
}
