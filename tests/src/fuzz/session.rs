//! Sequences of operations on a device's session, with a controller that holds the key and sends anything.

use std::collections::BTreeMap;

use fedbandit_core::session::{Event, Session};
use fedbandit_core::wire::{Channel, Fate, HEADER_LEN, Identity, Message, max_frame_len};
use fedbandit_core::{Agent, Model, Prior, Rewards};

use crate::harness::test_rng::TestRng;

const D: usize = 2;
const FRAME: usize = max_frame_len(D);
const WAITING: usize = 2;
/// Longest wait that a controller can impose, in milliseconds: a day.
const DAY: u32 = 86_400_000;
/// Longest time until the next hello or summary: a day, 1/16 of it, and a second.
const LONGEST_DELAY: u64 = DAY as u64 + DAY as u64 / 16 + 1_000;

/// State of a session that a frame without effect leaves unchanged.
#[derive(Debug, PartialEq)]
struct Snapshot {
    run: u32,
    wants_model: bool,
    poll_at: Option<u64>,
    pending: Vec<Vec<u8>>,
    dropped: u32,
    agent: [u8; Agent::<D>::SAVED_LEN],
}

struct Fuzzed {
    identity: Identity,
    boot: u32,
    heartbeats: Option<u32>,
    session: Session<D, FRAME, WAITING>,
    agent: Agent<D>,
    rng: TestRng,
    now: u64,
    controller: Channel,
    /// Decodes the controller's frames.
    judge: Channel,
    /// Challenge that an answer must repeat.
    challenge: Option<u32>,
    last_model: u32,
    /// Number of frames since the backoff was reset.
    attempts: u32,
    /// Earliest time of the next hello or summary.
    earliest: u64,
    /// Earliest time of the next heartbeat, or of a hello in its place.
    earliest_heartbeat: u64,
    /// Sealed frames of both ends, by sender, run and nonce.
    nonces: BTreeMap<(bool, u32, Vec<u8>), Vec<u8>>,
    /// Frames of the controller.
    recorded: Vec<Vec<u8>>,
}

/// Session operations: one byte of setup, then six bytes per operation: its kind, a parameter and a number.
///
/// The session sends only at `poll_at`, keeps to its backoff and to the waits, and obeys an answer only with its challenge.
pub(super) fn session(data: &[u8]) {
    let [setup, operations @ ..] = data else { return };
    let mut fuzzed = Fuzzed::new(*setup);
    for operation in operations.as_chunks::<6>().0 {
        let [kind, parameter, number @ ..] = *operation;
        fuzzed.operate(kind, parameter, u32::from_le_bytes(number));
        fuzzed.check_schedule();
    }
}

impl Fuzzed {
    fn new(setup: u8) -> Self {
        let identity = Identity::new(1, 2, D as u8, [3; 32]);
        let identity = if setup & 1 == 0 { identity } else { identity.with_sealed_frames() };
        let heartbeats = (setup & 2 != 0).then_some(1 << (setup >> 3));
        let mut fuzzed = Self {
            session: Session::new(identity.clone(), 1).expect("an identity of dimension D"),
            agent: Agent::new(&Prior::new(1.0, 1.0, 4, Rewards::Unbounded)).expect("a valid prior"),
            rng: TestRng::new(setup.into(), 0),
            now: 0,
            controller: Channel::controller(identity.clone(), 1, 1),
            judge: Channel::device(identity.clone(), 0),
            identity,
            boot: 1,
            heartbeats,
            challenge: None,
            last_model: 0,
            attempts: 0,
            earliest: 0,
            earliest_heartbeat: 0,
            nonces: BTreeMap::new(),
            recorded: Vec::new(),
        };
        fuzzed.send_heartbeats();
        fuzzed
    }

    fn send_heartbeats(&mut self) {
        if let Some(interval) = self.heartbeats {
            self.session.send_heartbeats(interval);
        }
    }

    fn operate(&mut self, kind: u8, parameter: u8, number: u32) {
        let challenge = self.challenge.filter(|_| parameter & 1 == 0).unwrap_or(number);
        match kind % 12 {
            0 => self.now += u64::from(number >> (parameter % 32)),
            1 => self.now = self.session.poll_at().map_or(self.now, |due| due.max(self.now)),
            2 => self.poll(),
            3 => {
                self.session.link_up(self.now);
                self.earliest_heartbeat = self.now;
                self.reset_backoff(0);
            }
            4 => self.submit(parameter),
            5 => {
                let episode = self.session.newest_unacknowledged().filter(|_| parameter & 1 == 0).unwrap_or(number);
                self.send(&Message::Ack { episode, fate: Fate::Other(parameter >> 1), wait: number });
            }
            6 => self.send(&Message::Wait { challenge, wait: number }),
            7 => self.send(&Message::NextRun { challenge, run: number >> (parameter / 8) }),
            8 => {
                let episode = self.last_model.wrapping_add(u32::from(parameter % 4)).wrapping_sub(1);
                let (length, value) = (u32::from(parameter / 8), f32::from_bits(number));
                let (theta, design) = ([0.5, value], [2.0, 0.0, 1.0 + value]);
                self.send(&Message::Model(Model::new(episode, length, 0.5, Rewards::Clipped, &theta, &design)));
            }
            9 => {
                let Some(frame) = self.recorded.get(usize::from(parameter) % self.recorded.len().max(1)) else {
                    return;
                };
                let mut frame = frame.clone();
                if number > 0 {
                    let bit = number as usize % (8 * frame.len());
                    frame[bit / 8] ^= 1 << (bit % 8);
                }
                self.handle(&frame);
            }
            10 => self.restart(),
            _ => {
                // A frame that no controller sends, and one that is not a summary.
                self.controller.enter_run(self.session.run());
                self.send(&Message::Heartbeat { model: number });
                assert!(self.session.resume(&number.to_le_bytes()).is_err());
            }
        }
    }

    fn reset_backoff(&mut self, delay: u64) {
        (self.attempts, self.earliest) = (0, self.now + delay);
    }

    fn snapshot(&self) -> Snapshot {
        let mut agent = [0; Agent::<D>::SAVED_LEN];
        self.agent.save(&mut agent).expect("the buffer has the right length");
        Snapshot {
            run: self.session.run(),
            wants_model: self.session.wants_model(),
            poll_at: self.session.poll_at(),
            pending: self.session.unacknowledged().map(<[u8]>::to_vec).collect(),
            dropped: self.session.dropped(),
            agent,
        }
    }

    /// Finishes the episode after some steps.
    fn submit(&mut self, steps: u8) {
        for _ in 0..steps % 8 {
            let _ = self.agent.record(&[0.5, -0.5], 1.0);
        }
        let summary = self.agent.finish();
        self.session.submit(&summary, self.now);
        self.challenge = None;
        self.reset_backoff(0);
    }

    /// Restarts the device, which keeps its state.
    fn restart(&mut self) {
        let before = self.snapshot();
        self.boot += 1;
        self.session = Session::new(self.identity.clone(), self.boot).expect("an identity of dimension D");
        self.session.resume_run(before.run);
        for frame in &before.pending {
            self.session.resume(frame).expect("its own summary");
        }
        self.send_heartbeats();
        (self.challenge, self.last_model, self.attempts) = (None, 0, 0);
        (self.earliest, self.earliest_heartbeat) = (0, 0);
        let after = self.snapshot();
        assert_eq!((after.run, after.pending, after.wants_model), (before.run, before.pending, true));
    }

    /// Sends a message of the controller in the session's run.
    fn send(&mut self, message: &Message<'_>) {
        let run = self.session.run();
        self.controller.enter_run(run);
        let mut frame = vec![0; FRAME];
        let length = self.controller.encode(message, &mut frame).expect("the buffer is large enough");
        frame.truncate(length);
        self.check_nonce(false, run, &frame);
        self.handle(&frame);
        self.recorded.push(frame);
    }

    /// Checks that a nonce is used again only for the same bytes.
    fn check_nonce(&mut self, is_device: bool, run: u32, frame: &[u8]) {
        if self.identity.is_sealed() {
            let nonce = frame[HEADER_LEN..HEADER_LEN + 12].to_vec();
            let earlier = self.nonces.insert((is_device, run, nonce), frame.to_vec());
            assert!(earlier.is_none_or(|earlier| earlier == frame), "nonce is used twice in run {run}");
        }
    }

    fn handle(&mut self, frame: &[u8]) {
        let before = self.snapshot();
        self.judge.enter_run(before.run);
        let mut copy = frame.to_vec();
        let message = self.judge.decode(&mut copy);
        let result = self.session.handle(&mut frame.to_vec(), &mut self.agent, self.now);
        let after = self.snapshot();
        let (Ok(event), Ok(message)) = (result, message) else {
            assert_eq!(result.err(), message.err());
            assert_eq!(after, before);
            return;
        };
        let is_answer = match message {
            Message::Wait { challenge, .. } => self.challenge == Some(challenge),
            Message::NextRun { challenge, run } => self.challenge == Some(challenge) && run != 0,
            _ => false,
        };
        assert_eq!(matches!(event, Event::Waiting | Event::NextRun { .. }), is_answer, "{message:?} gives {event:?}");
        match (event, message) {
            (Event::Waiting, Message::Wait { wait, .. }) => {
                self.challenge = None;
                self.earliest = self.earliest.max(self.now + u64::from(wait.min(DAY)) + 500);
                assert_eq!(Snapshot { poll_at: before.poll_at, ..after }, before);
            }
            (Event::NextRun { run }, _) => {
                (self.challenge, self.last_model) = (None, 0);
                let dropped = before.dropped + before.pending.len() as u32;
                assert_eq!((after.run, after.dropped, after.pending.len()), (run, dropped, 0));
                assert!(after.wants_model && after.poll_at == before.poll_at);
                assert_eq!((self.agent.episode(), self.agent.steps()), (1, 0));
            }
            (Event::Acknowledged { episode, fate }, Message::Ack { episode: sent, fate: told, wait }) => {
                assert_eq!((episode, fate), (sent, told));
                assert_eq!(after.pending.len() + 1, before.pending.len());
                let wait = u64::from(wait.min(DAY)) + 500;
                self.reset_backoff(if after.pending.is_empty() { wait } else { 0 });
            }
            (Event::Model { episode }, Message::Model(model)) => {
                assert!(episode == model.episode && episode == self.agent.episode() && !after.wants_model);
                if episode > self.last_model {
                    self.reset_backoff(0);
                }
                (self.challenge, self.last_model) = (None, episode);
            }
            (Event::Ignored, _) | (Event::ModelRejected(_), Message::Model(_)) => assert_eq!(after, before),
            other => panic!("{other:?}"),
        }
    }

    /// Sends what is due.
    fn poll(&mut self) {
        let (before, boot) = (self.snapshot(), self.boot);
        if before.poll_at.is_none_or(|due| self.now < due) {
            return;
        }
        let frame = self.session.poll(self.now, self.rng.generator()).expect("a frame is due at poll_at").to_vec();
        self.controller.enter_run(before.run);
        self.check_nonce(true, before.run, &frame);
        let may_be_heartbeat = self.heartbeats.is_some() && self.now >= self.earliest_heartbeat;
        if let Some(interval) = self.heartbeats {
            self.earliest_heartbeat = self.now + u64::from(interval - interval / 2);
        }
        let asks = before.wants_model && before.pending.is_empty();
        let mut copy = frame.clone();
        match self.controller.decode(&mut copy).expect("a frame of the session") {
            Message::Heartbeat { model } => {
                assert!(may_be_heartbeat && !asks && model == self.last_model);
                return;
            }
            Message::Hello { model, boot: sent, challenge } => {
                assert!(asks);
                assert_eq!((model, sent), (self.last_model, boot));
                self.challenge = Some(challenge);
                if may_be_heartbeat {
                    return;
                }
            }
            Message::Summary(_) => assert_eq!(before.pending.first(), Some(&frame)),
            other => panic!("a device sends {other:?}"),
        }
        assert!(self.now >= self.earliest, "sent at {}, not before {}", self.now, self.earliest);
        self.earliest = self.now + (500 << self.attempts);
        self.attempts = (self.attempts + 1).min(6);
    }

    /// Checks the time of the next frame. Before it, nothing is sent.
    fn check_schedule(&mut self) {
        let before = self.snapshot();
        let is_pending = before.wants_model || !before.pending.is_empty();
        assert_eq!(before.poll_at.is_some(), is_pending || self.heartbeats.is_some());
        let longest = self.heartbeats.map_or(LONGEST_DELAY, |interval| u64::from(interval).max(LONGEST_DELAY));
        assert!(before.poll_at.is_none_or(|due| due <= self.now + longest), "{:?} at {}", before.poll_at, self.now);
        if before.poll_at.is_none_or(|due| self.now < due) {
            assert!(self.session.poll(self.now, self.rng.generator()).is_none());
            assert_eq!(self.snapshot(), before);
        }
    }
}

/// Returns sequences in which a device learns its run, reports, waits and moves to another run, plain and sealed.
pub(super) fn examples() -> Vec<Vec<u8>> {
    const POLL: &[(u8, u8, u32)] = &[(1, 0, 0), (2, 0, 0)];
    let joined = [POLL, &[(7, 0, 1)], POLL, &[(8, 2 + 8 * 4, 0x3f00_0000)]].concat();
    let reported =
        [joined.as_slice(), &[(4, 4, 0)], POLL, &[(5, 0, 5_000)], POLL, &[(6, 0, 59_000), (6, 0, 59_000)], POLL]
            .concat();
    let moved =
        [reported.as_slice(), &[(4, 1, 0), (2, 0, 0), (5, 6, 0)], POLL, &[(7, 1, 9), (7, 0, 2), (9, 0, 0)], POLL]
            .concat();
    let hostile =
        [POLL, &[(6, 0, 0)], POLL, &[(7, 0, 1)], POLL, &[(7, 0, 2)], POLL, &[(6, 0, u32::MAX)], POLL].concat();
    let offline =
        [joined.as_slice(), &[(4, 4, 0), (4, 4, 0), (4, 4, 0), (10, 0, 0), (3, 0, 0)], POLL, &[(9, 1, 77), (11, 0, 3)]]
            .concat();
    let bytes = |(setup, operations): (u8, Vec<(u8, u8, u32)>)| {
        let operations = operations
            .into_iter()
            .flat_map(|(kind, parameter, number)| [kind, parameter].into_iter().chain(number.to_le_bytes()));
        [setup].into_iter().chain(operations).collect()
    };
    [(0, reported.clone()), (3 + 8 * 15, reported), (1, moved), (0, hostile), (1, offline)].map(bytes).to_vec()
}
