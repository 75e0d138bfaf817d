//! Simulated devices: agent and session of the firmware, honest or hostile.

use fedbandit::service::{EnrolledDevice, MasterKey, Registry};
use fedbandit_core::session::{Event, HEARTBEAT_INTERVAL, Session};
use fedbandit_core::wire::{Channel, DecodeError, Fate, Identity, Message, SummaryMessage, cobs};
use fedbandit_core::{Action, Agent, Prior, Rewards, packed_len};

use super::oracle::{Made, Violation};
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
    /// Number of the device.
    pub number: u32,
    /// Behaviour.
    pub role: Role,
    identity: Identity,
    key: [u8; 32],
    agent: Agent<D>,
    session: Session<D, FRAME, WAITING>,
    boot: u32,
    /// True if its link reports that it is up again.
    reports_link: bool,
    sends_heartbeats: bool,
    /// True if it continues with its last model when no new one arrives.
    runs_ahead: bool,
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
    /// Decodes the controller's frames and the device's own, to check the session.
    judges: [Channel; 2],
    /// Challenge of the last hello, until it is answered.
    challenge: Option<u32>,
    /// Episode of the last model in this run.
    newest_model: u32,
    /// Encodes hostile frames.
    hostile: Channel,
    /// Boot counter of the last channel for hostile frames, counted down from `u32::MAX`, far from the session's.
    hostile_boot: u32,
    /// Overheard frames of others.
    overheard: Vec<Vec<u8>>,
    /// Decoder of received bytes.
    pub decoder: cobs::Decoder<FRAME>,
}

fn new_agent() -> Agent<D> {
    Agent::new(&Prior::new(1.0, 1.0, 1, Rewards::Unbounded)).expect("a valid prior")
}

fn new_session(identity: &Identity, boot: u32, sends_heartbeats: bool) -> Session<D, FRAME, WAITING> {
    let mut session = Session::new(identity.clone(), boot).expect("an identity of dimension D");
    if sends_heartbeats {
        session.send_heartbeats(HEARTBEAT_INTERVAL);
    }
    session
}

impl Device {
    /// Starts an enrolled device. It does not know its run.
    pub fn new(
        registry: &Registry,
        master: &MasterKey,
        enrolled: &EnrolledDevice,
        role: Role,
        mut rng: TestRng,
    ) -> Self {
        let identity = registry.identity(enrolled, master);
        let sends_heartbeats = rng.per_mille(300);
        Self {
            number: enrolled.agent,
            role,
            key: master.device_key(registry.fleet, enrolled.agent, enrolled.generation),
            agent: new_agent(),
            session: new_session(&identity, 1, sends_heartbeats),
            boot: 1,
            reports_link: rng.per_mille(400),
            sends_heartbeats,
            runs_ahead: rng.per_mille(500),
            started: 0,
            ahead: 0,
            next_step: 0,
            pace: rng.within(10, 400),
            since: 0,
            joined: false,
            rng,
            judges: [Channel::device(identity.clone(), 0), Channel::controller(identity.clone(), 0, 0)],
            challenge: None,
            newest_model: 0,
            hostile: Channel::device(identity.clone(), u32::MAX),
            hostile_boot: u32::MAX,
            identity,
            overheard: Vec::new(),
            decoder: cobs::Decoder::new(),
        }
    }

    fn clock(&self, now: u64) -> u64 {
        now - self.started + self.ahead
    }

    /// Returns the run that the device is in.
    pub fn run(&self) -> u32 {
        self.session.run()
    }

    /// Returns true if the device follows the protocol and is not revoked.
    pub fn is_honest(&self) -> bool {
        matches!(self.role, Role::Durable | Role::Forgetful)
    }

    /// Returns true if no summary waits for an answer.
    pub fn is_drained(&self) -> bool {
        self.session.unacknowledged().next().is_none()
    }

    /// Returns the time at which [`step`](Self::step) has something to do.
    pub fn wake_at(&self, now: u64, patience: u64) -> u64 {
        let step = self.step_at(patience).map(|at| at.max(self.next_step));
        let due = self.session.poll_at().into_iter().chain(step).min();
        due.map_or(u64::MAX, |due| now + due.saturating_sub(self.clock(now)))
    }

    /// Returns the time from which the device takes steps, by its clock. It waits for a model three times as long as an
    /// episode lasts, and forever for its first one or if it does not run ahead.
    fn step_at(&self, patience: u64) -> Option<u64> {
        match !self.session.wants_model() || self.agent.steps() > 0 {
            true => Some(0),
            false => (self.joined && self.runs_ahead).then_some(self.since + 3 * patience),
        }
    }

    /// Takes a step of the episode when it is due, and returns the frame that is due. Adds new summaries to `made`.
    pub fn step(&mut self, now: u64, patience: u64, made: &mut Vec<Made>) -> Option<Vec<u8>> {
        let clock = self.clock(now);
        if clock >= self.next_step && self.step_at(patience).is_some_and(|at| clock >= at) {
            self.next_step = clock + self.pace;
            self.act(clock, made);
        }
        self.session.poll_at().filter(|due| clock >= *due)?;
        let frame = self.session.poll(clock, self.rng.generator()).expect("a frame is due at poll_at").to_vec();
        if let Ok(Message::Hello { challenge, .. }) = self.judged(1, &mut frame.clone()) {
            self.challenge = Some(challenge);
        }
        Some(frame)
    }

    /// Decodes a frame of the controller, 0, or of the device, 1.
    fn judged<'a>(&mut self, end: usize, frame: &'a mut [u8]) -> Result<Message<'a>, DecodeError> {
        self.judges[end].enter_run(self.session.run());
        self.judges[end].decode(frame)
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
            let values = numbers.into_iter().chain(values).collect();
            made.push((self.number, self.session.run(), summary.episode(), values));
            self.session.submit(&summary, clock);
            (self.since, self.challenge) = (clock, None);
        }
    }

    /// Handles received bytes and returns the events of the session, each with its run.
    ///
    /// # Errors
    /// The session obeyed an answer that it had not asked for, or returned to an earlier model.
    pub fn receive(&mut self, bytes: &[u8], now: u64) -> Result<Vec<(u32, Event)>, Violation> {
        let mut events = Vec::new();
        for byte in bytes {
            let Some(frame) = self.decoder.push(*byte) else { continue };
            let mut frame = frame.to_vec();
            events.extend(self.handle(&mut frame, self.clock(now))?);
        }
        Ok(events)
    }

    fn handle(&mut self, frame: &mut [u8], clock: u64) -> Result<Option<(u32, Event)>, Violation> {
        let (run, asked) = (self.session.run(), self.challenge);
        let mut copy = frame.to_vec();
        let message = self.judged(0, &mut copy).ok();
        let is_answer = match message {
            Some(Message::Wait { challenge, .. }) => Some(asked == Some(challenge)),
            Some(Message::NextRun { challenge, run: next }) => Some(asked == Some(challenge) && next != 0),
            _ => None,
        };
        let before = self.session.poll_at();
        let Ok(event) = self.session.handle(frame, &mut self.agent, clock) else { return Ok(None) };
        let is_obeyed = matches!(event, Event::Waiting | Event::NextRun { .. });
        if is_obeyed != is_answer.unwrap_or(false) || (event == Event::Ignored && self.session.poll_at() != before) {
            let number = self.number;
            return Err(format!("device {number}, last challenge {asked:?}, handles {message:?}: {event:?}"));
        }
        match event {
            Event::Waiting => self.challenge = None,
            Event::NextRun { .. } => (self.challenge, self.newest_model) = (None, 0),
            Event::Model { episode } if episode < self.newest_model => {
                return Err(format!("device {} returns from model {} to {episode}", self.number, self.newest_model));
            }
            Event::Model { episode } => (self.joined, self.newest_model, self.challenge) = (true, episode, None),
            _ => {}
        }
        Ok(Some((run, event)))
    }

    /// Handles a new connection.
    pub fn connect(&mut self, now: u64) {
        self.decoder = cobs::Decoder::new();
        if self.reports_link {
            self.session.link_up(self.clock(now));
        }
    }

    /// Loses power, and starts again with the state that it keeps.
    pub fn restart(&mut self, now: u64) {
        let run = self.session.run();
        let waiting: Vec<Vec<u8>> = self.session.unacknowledged().map(<[u8]>::to_vec).collect();
        self.boot += 1;
        self.session = new_session(&self.identity, self.boot, self.sends_heartbeats);
        (self.started, self.ahead, self.next_step, self.since) = (now, 0, 0, 0);
        (self.challenge, self.newest_model) = (None, 0);
        if self.role == Role::Forgetful {
            self.agent = new_agent();
            self.joined = false;
            return;
        }
        let mut saved = [0; Agent::<D>::SAVED_LEN];
        self.agent.save(&mut saved).expect("the buffer has the right length");
        self.agent = Agent::restore(&saved).expect("a saved state is valid");
        self.session.resume_run(run);
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

    /// Makes a hostile frame while a run is in an episode. Returns it, and how often it is sent.
    pub fn abuse(&mut self, run: u32, episode: u32, agents: u32, made: &mut Vec<Made>) -> (Vec<u8>, u64) {
        let kind = self.rng.below(12);
        let times = if self.rng.per_mille(50) { 40 } else { 1 };
        let run = self.some_run(run);
        self.hostile.enter_run(run);
        let frame = match kind {
            0 => (0..self.rng.below(120)).map(|_| self.rng.below(256) as u8).collect(),
            1..=4 => self.summary(episode, made),
            5 => {
                let dimension = [1, D + 1][self.rng.below(2) as usize];
                self.forgery(self.number, dimension, episode)
            }
            6 => {
                // The number of another agent under its own key.
                let agent = self.rng.within(1, u64::from(agents)) as u32;
                if agent == self.number { self.summary(episode, made) } else { self.forgery(agent, D, episode) }
            }
            7 | 8 if !self.overheard.is_empty() => self.rng.pick(&self.overheard).clone(),
            9 if !self.overheard.is_empty() => {
                let mut frame = self.rng.pick(&self.overheard).clone();
                let place = self.rng.below(frame.len() as u64) as usize;
                frame[place] ^= 1 << self.rng.below(8);
                frame
            }
            10 => {
                let mut frame = encode(&mut self.hostile, &Message::Hello { model: episode, boot: 7, challenge: 8 });
                let length = self.rng.below(frame.len() as u64 + 8) as usize;
                frame.resize(length, 0);
                frame
            }
            _ => {
                let (model, challenge) = (self.some_episode(episode), self.rng.below(1 << 32) as u32);
                let message = match self.rng.below(6) {
                    0 => Message::Ack { episode, fate: Fate::Counts, wait: challenge },
                    1 => Message::Wait { challenge, wait: 0 },
                    2 => Message::NextRun { challenge, run },
                    3 => Message::Heartbeat { model },
                    _ => Message::Hello { model, boot: 9, challenge },
                };
                encode(&mut self.hostile, &message)
            }
        };
        (frame, times)
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

    fn some_run(&mut self, run: u32) -> u32 {
        match self.rng.below(10) {
            0 => 0,
            1 => run - 1,
            2 => run + 1,
            _ => run,
        }
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
        made.push((self.number, self.hostile.run(), episode, numbers.collect()));
        let (gram, feature_sum) = (gram.into(), feature_sum.into());
        let summary = SummaryMessage { episode, steps, reward_sum, gram, feature_sum };
        encode(&mut self.hostile, &Message::Summary(summary))
    }

    /// Makes a summary of an agent and a dimension under its own key.
    fn forgery(&mut self, agent: u32, dimension: usize, episode: u32) -> Vec<u8> {
        let identity = Identity::new(self.identity.fleet(), agent, dimension as u8, self.key);
        let identity = if self.identity.is_sealed() { identity.with_sealed_frames() } else { identity };
        self.hostile_boot -= 1;
        let mut channel = Channel::device(identity, self.hostile_boot);
        channel.enter_run(self.hostile.run());
        let values = self.numbers(packed_len(dimension) + dimension);
        let (gram, feature_sum) = values.split_at(packed_len(dimension));
        let (gram, feature_sum) = (gram.into(), feature_sum.into());
        let summary = SummaryMessage { episode, steps: 1, reward_sum: 0.5, gram, feature_sum };
        encode(&mut channel, &Message::Summary(summary))
    }
}

fn encode(channel: &mut Channel, message: &Message<'_>) -> Vec<u8> {
    let mut frame = vec![0; 4 * FRAME];
    let length = channel.encode(message, &mut frame).expect("the buffer is large enough");
    frame.truncate(length);
    frame
}
