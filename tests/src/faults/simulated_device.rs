//! Simulated devices: agent and session of the firmware, honest or hostile.

use fedbandit_core::session::Session;
use fedbandit_core::wire::{Channel, Identity, Message, SummaryMessage, cobs};
use fedbandit_core::{Action, Agent, Prior, Rewards, packed_len};

use super::oracle::Values;
use super::{D, FRAME};
use crate::harness::test_rng::TestRng;

/// Maximum number of unacknowledged summaries.
const WAITING: usize = 4;

/// Behaviour of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Keeps its state over a reset.
    Durable,
    /// Keeps only its boot counter over a reset.
    Forgetful,
    /// Abuses its key.
    Hostile,
    /// As `Durable`, with a revoked identity.
    Revoked,
}

/// A simulated device.
pub struct Device {
    /// Identity.
    pub identity: Identity,
    /// True if its frames are sealed.
    pub sealed: bool,
    /// Behaviour.
    pub role: Role,
    agent: Agent<D>,
    session: Session<FRAME, WAITING>,
    boot: u32,
    /// Time at which its clock was 0.
    started: u64,
    /// Offset of its clock, in milliseconds.
    pub ahead: u64,
    /// Time of its next step, by its clock.
    next_step: u64,
    pace: u64,
    since: u64,
    joined: bool,
    rng: TestRng,
    /// Encodes hostile frames.
    hostile: Channel,
    /// Boot counter of the last sealed channel for hostile frames, counted down from `u32::MAX`, far from the session's.
    hostile_boot: u32,
    /// Overheard frames of others.
    overheard: Vec<Vec<u8>>,
    /// Decoder of received bytes.
    pub decoder: cobs::Decoder<FRAME>,
}

/// Agent, episode and values of a summary that a device made.
pub type Made = (u32, u32, Values);

fn new_agent() -> Agent<D> {
    let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 1, rewards: Rewards::Unbounded };
    Agent::new(&prior).expect("a valid prior")
}

fn channel(identity: Identity, sealed: bool, boot: u32) -> Channel {
    if sealed { Channel::sealed_device(identity, boot) } else { Channel::plain(identity) }
}

fn new_session(identity: &Identity, sealed: bool, boot: u32) -> Session<FRAME, WAITING> {
    if sealed { Session::sealed(identity.clone(), boot) } else { Session::new(identity.clone(), boot) }
}

impl Device {
    /// Starts a device.
    pub fn new(identity: Identity, sealed: bool, role: Role, mut rng: TestRng, now: u64) -> Self {
        Self {
            agent: new_agent(),
            session: new_session(&identity, sealed, 1),
            hostile: channel(identity.clone(), sealed, u32::MAX),
            hostile_boot: u32::MAX,
            identity,
            sealed,
            role,
            boot: 1,
            started: now,
            ahead: 0,
            next_step: 0,
            pace: rng.within(10, 400),
            since: 0,
            joined: false,
            rng,
            overheard: Vec::new(),
            decoder: cobs::Decoder::new(),
        }
    }

    fn clock(&self, now: u64) -> u64 {
        now - self.started + self.ahead
    }

    /// Returns true if no summary waits for an answer.
    pub fn is_drained(&self) -> bool {
        self.session.unacknowledged().next().is_none()
    }

    /// Takes a step of the episode when it is due, and returns the next frame to send. Adds new summaries to `made`.
    pub fn step(&mut self, now: u64, patience: u64, made: &mut Vec<Made>) -> Option<Vec<u8>> {
        let clock = self.clock(now);
        let late = self.joined && clock >= self.since + 3 * patience;
        if clock >= self.next_step && (!self.session.wants_model() || self.agent.steps() > 0 || late) {
            self.next_step = clock + self.pace;
            self.act(clock, made);
        }
        let mut frame = [0; FRAME];
        let length = self.session.poll(self.agent.episode(), clock, self.rng.generator(), &mut frame)?;
        Some(frame[..length].to_vec())
    }

    fn act(&mut self, clock: u64, made: &mut Vec<Made>) {
        let mut action = || Action::<D>::from_fn(|_, _| self.rng.signed_unit() * 0.7);
        let arms = [action(), action(), action()];
        if let Ok(choice) = self.agent.select(&arms) {
            let reward = if self.rng.per_mille(500) { 1.0 } else { -1.0 };
            let _ = self.agent.record(&arms[choice.index], reward);
        }
        if self.agent.steps() >= self.agent.episode_len() {
            let summary = self.agent.finish();
            let numbers = [summary.steps(), summary.reward_sum().to_bits()];
            let values = summary.gram().chain(*summary.feature_sum()).map(f32::to_bits);
            made.push((self.identity.agent, summary.episode(), numbers.into_iter().chain(values).collect()));
            self.session.submit(&summary, clock);
            self.since = clock;
        }
    }

    /// Takes received bytes.
    pub fn receive(&mut self, bytes: &[u8], now: u64) {
        let clock = self.clock(now);
        for byte in bytes {
            let Some(frame) = self.decoder.push(*byte) else { continue };
            let event = self.session.handle(frame, &mut self.agent, clock);
            self.joined |= matches!(event, Ok(fedbandit_core::session::Event::Model { .. }));
        }
    }

    /// Loses power, and starts again with the state that it keeps.
    pub fn restart(&mut self, now: u64) {
        let waiting: Vec<Vec<u8>> = self.session.unacknowledged().map(<[u8]>::to_vec).collect();
        self.boot += 1;
        self.session = new_session(&self.identity, self.sealed, self.boot);
        (self.started, self.ahead, self.next_step, self.since) = (now, 0, 0, 0);
        self.decoder = cobs::Decoder::new();
        if self.role == Role::Forgetful {
            self.agent = new_agent();
            self.joined = false;
            return;
        }
        let mut saved = [0; Agent::<D>::SAVED_LEN];
        self.agent.save(&mut saved).expect("the buffer has the right length");
        self.agent = Agent::restore(&saved).expect("a saved state is valid");
        for frame in waiting {
            self.session.resume(&frame).expect("its own frame");
        }
    }

    /// Records a frame of another device.
    pub fn overhear(&mut self, frame: &[u8]) {
        if self.overheard.len() < 64 {
            self.overheard.push(frame.to_vec());
        } else {
            let place = self.rng.below(64) as usize;
            self.overheard[place] = frame.to_vec();
        }
    }

    /// Makes a hostile frame. Returns it, and how often it is sent.
    pub fn abuse(&mut self, episode: u32, agents: u32, made: &mut Vec<Made>) -> (Vec<u8>, u64) {
        let kind = self.rng.below(12);
        let times = if self.rng.per_mille(50) { 40 } else { 1 };
        let frame = match kind {
            0 => (0..self.rng.below(120)).map(|_| self.rng.below(256) as u8).collect(),
            1..=4 => self.summary(episode, made),
            5 => self.of_another_dimension(episode),
            6 => {
                // The number of another agent under its own key.
                let agent = self.rng.within(1, u64::from(agents)) as u32;
                if agent == self.identity.agent { self.summary(episode, made) } else { self.forgery(agent, episode) }
            }
            7 | 8 if !self.overheard.is_empty() => self.rng.pick(&self.overheard).clone(),
            9 if !self.overheard.is_empty() => {
                let mut frame = self.rng.pick(&self.overheard).clone();
                let place = self.rng.below(frame.len() as u64) as usize;
                frame[place] ^= 1 << self.rng.below(8);
                frame
            }
            10 => {
                let mut frame = self.encode(&Message::Hello { episode, boot: 7 });
                let length = self.rng.below(frame.len() as u64 + 8) as usize;
                frame.resize(length, 0);
                frame
            }
            _ => {
                let message = match self.rng.below(3) {
                    0 => Message::Ack { episode },
                    1 => Message::Heartbeat { episode },
                    _ => Message::Hello { episode, boot: 9 },
                };
                self.encode(&message)
            }
        };
        (frame, times)
    }

    fn encode(&mut self, message: &Message<'_>) -> Vec<u8> {
        let mut frame = vec![0; 4 * FRAME];
        let length = self.hostile.encode(message, &mut frame).expect("the buffer is large enough");
        frame.truncate(length);
        frame
    }

    fn numbers(&mut self, count: usize) -> Vec<f32> {
        let number = |rng: &mut TestRng| match rng.below(12) {
            0 => f32::NAN,
            1 => f32::INFINITY,
            2 => 3e38,
            3 => -1e30,
            _ => rng.signed_unit() * 2.0,
        };
        let honest_looking = self.rng.per_mille(500);
        (0..count).map(|_| if honest_looking { 0.25 } else { number(&mut self.rng) }).collect()
    }

    fn some_episode(&mut self, episode: u32) -> u32 {
        match self.rng.below(8) {
            0 => 0,
            1 => u32::MAX,
            2 => episode + 1,
            3 => episode.saturating_sub(1),
            4 => episode.saturating_sub(3),
            _ => episode,
        }
    }

    /// Makes a summary under its own key, with arbitrary values. It may count, once.
    fn summary(&mut self, episode: u32, made: &mut Vec<Made>) -> Vec<u8> {
        let episode = self.some_episode(episode);
        let values = self.numbers(packed_len(D) + D + 2);
        let steps = self.rng.below(100) as u32;
        let (reward_sum, values) = (values[0], &values[2..]);
        let (gram, feature_sum) = values.split_at(packed_len(D));
        let numbers = [steps, reward_sum.to_bits()].into_iter().chain(values.iter().map(|value| value.to_bits()));
        made.push((self.identity.agent, episode, numbers.collect()));
        let (gram, feature_sum) = (gram.into(), feature_sum.into());
        self.encode(&Message::Summary(SummaryMessage { episode, steps, reward_sum, gram, feature_sum }))
    }

    fn of_another_dimension(&mut self, episode: u32) -> Vec<u8> {
        let other = [1, D + 1][self.rng.below(2) as usize];
        let values = self.numbers(packed_len(other) + other);
        let (gram, feature_sum) = values.split_at(packed_len(other));
        let (gram, feature_sum) = (gram.into(), feature_sum.into());
        let message = Message::Summary(SummaryMessage { episode, steps: 1, reward_sum: 0.0, gram, feature_sum });
        let identity = Identity { dimension: other as u8, ..self.identity.clone() };
        let mut frame = vec![0; 4 * FRAME];
        self.hostile_boot -= 1;
        let mut channel = channel(identity, self.sealed, self.hostile_boot);
        let length = channel.encode(&message, &mut frame).expect("the buffer is large enough");
        frame.truncate(length);
        frame
    }

    fn forgery(&mut self, agent: u32, episode: u32) -> Vec<u8> {
        let identity = Identity { agent, ..self.identity.clone() };
        let values = self.numbers(packed_len(D) + D);
        let (gram, feature_sum) = values.split_at(packed_len(D));
        let (gram, feature_sum) = (gram.into(), feature_sum.into());
        let message = Message::Summary(SummaryMessage { episode, steps: 1, reward_sum: 0.5, gram, feature_sum });
        let mut frame = vec![0; 4 * FRAME];
        let length = identity.encode(&message, &mut frame).expect("the buffer is large enough");
        frame.truncate(length);
        frame
    }
}
