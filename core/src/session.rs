//! The device's side of the link to a controller, as a sans-IO state machine.
//!
//! Time and random numbers are arguments. [`Session::poll`] returns the frame to send, and [`Session::poll_at`] the time of the
//! next one, so a device can sleep until then. A summary is repeated, byte for byte, until the controller settles it. Retries
//! back off exponentially from one second to about a minute. Jitter keeps the devices of a fleet from sending simultaneously
//! after an outage or a deadline.

use heapless::{Deque, Vec};
use rand_core::Rng;

use crate::agent::Learner;
use crate::error::ModelError;
use crate::model::Model;
use crate::summary::EpisodeSummary;
use crate::wire::{
    CONTROL_LEN, Channel, DecodeError, EncodeError, Fate, Identity, IdentityError, Message, max_frame_len,
};

/// Delay before the first retry, in milliseconds.
const FIRST_RETRY: u32 = 1_000;

/// Largest number of doublings of the retry delay: 1 s, 2 s, … 64 s.
const MAX_DOUBLINGS: u32 = 6;

/// Longest wait that a controller can impose, in milliseconds: a day.
const MAX_WAIT: u32 = 86_400_000;

/// Interval of heartbeats, in milliseconds, that keeps a connection to the service open.
pub const HEARTBEAT_INTERVAL: u32 = 30_000;

/// Link state of a device of dimension D, with room for W unacknowledged summaries in frames of up to F bytes.
///
/// F must be at least [`max_frame_len`] of D; the compiler checks it:
///
/// ```compile_fail
/// # use fedbandit_core::{session::Session, wire::Identity};
/// let session = Session::<8, 200, 4>::new(Identity::new(1, 1, 8, [0; 32]), 1);
/// ```
pub struct Session<const D: usize, const F: usize, const W: usize> {
    channel: Channel,
    boot: u32,
    /// Episodes and frames of unacknowledged summaries, oldest first.
    outbox: Deque<(u32, Vec<u8, F>), W>,
    /// The last frame that was not a summary.
    control: [u8; CONTROL_LEN],
    /// True until the model of the running episode arrives.
    wants_model: bool,
    /// Episode of the last model applied in this run; 0 before the first.
    last_model: u32,
    /// Challenge of the hello that has not been answered yet.
    challenge: Option<u32>,
    /// Time of the next summary or hello, in milliseconds.
    next_send: u64,
    attempts: u32,
    /// Interval of heartbeats; none if there are none.
    heartbeat: Option<u32>,
    next_heartbeat: u64,
    /// Random number drawn for the last frame.
    jitter: u32,
    dropped: u32,
}

/// Effect of a received frame.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Event {
    /// The agent applied the model.
    Model {
        /// The model's episode.
        episode: u32,
    },
    /// The agent rejected the model and keeps its last valid one.
    ModelRejected(ModelError),
    /// The controller settled a summary, which is not sent again.
    Acknowledged {
        /// The summary's episode.
        episode: u32,
        /// Whether it counts.
        fate: Fate,
    },
    /// There is no newer model yet. The session asks again after the deadline.
    Waiting,
    /// The session continues in another run, or in the same one from its first model on. Store the run for [`Session::resume_run`] if the device's state survives a
    /// reset.
    NextRun {
        /// The run.
        run: u32,
    },
    /// The frame answers nothing that is pending.
    Ignored,
}

impl<const D: usize, const F: usize, const W: usize> Session<D, F, W> {
    /// Creates a session; `boot` is the device's boot counter. The first frame is a hello, which asks for the run.
    ///
    /// With sealed frames, create only one session per start: the rules of [`Channel::device`] for `boot` apply.
    ///
    /// # Errors
    /// The identity is for another dimension than D.
    pub fn new(identity: Identity, boot: u32) -> Result<Self, IdentityError> {
        const { assert!(F >= max_frame_len(D), "frame buffer F must have at least max_frame_len(D) bytes") };
        const { assert!(W > 0, "there must be room for one summary") };
        if usize::from(identity.dimension()) != D {
            return Err(IdentityError::Dimension(identity.dimension()));
        }
        Ok(Self {
            channel: Channel::device(identity, boot),
            boot,
            outbox: Deque::new(),
            control: [0; CONTROL_LEN],
            wants_model: true,
            last_model: 0,
            challenge: None,
            next_send: 0,
            attempts: 0,
            heartbeat: None,
            next_heartbeat: 0,
            jitter: 0,
            dropped: 0,
        })
    }

    /// Continues in the run stored before a reset, so that the device need not ask for it.
    pub fn resume_run(&mut self, run: u32) {
        self.channel.enter_run(run);
    }

    /// Queues a frame saved from [`unacknowledged`](Self::unacknowledged) before a reset. Call
    /// [`resume_run`](Self::resume_run) first.
    ///
    /// # Errors
    /// The bytes are not a summary frame of this device and run.
    pub fn resume(&mut self, frame: &[u8]) -> Result<(), DecodeError> {
        let episode = self.channel.own_summary(frame)?;
        let frame = Vec::from_slice(frame).map_err(|_| DecodeError::Length)?;
        self.enqueue(episode, frame);
        Ok(())
    }

    /// Sends a heartbeat whenever nothing else was sent for `interval` milliseconds, shortened at random by up to a half. While the
    /// session waits for a model, it sends a hello instead, and so gets a model again that was lost on the way.
    ///
    /// For devices that are always on, with [`HEARTBEAT_INTERVAL`], which keeps a connection open. Off by default: a heartbeat would
    /// wake up a sleeping device.
    pub fn send_heartbeats(&mut self, interval: u32) {
        self.heartbeat = Some(interval.max(1));
    }

    /// Returns the run; 0 before the first.
    pub fn run(&self) -> u32 {
        self.channel.run()
    }

    /// Returns true before the first model, and from the end of an episode until the next model is applied.
    pub fn wants_model(&self) -> bool {
        self.wants_model
    }

    /// Iterates over the frames of unacknowledged summaries, oldest first.
    pub fn unacknowledged(&self) -> impl Iterator<Item = &[u8]> {
        self.outbox.iter().map(|(_, frame)| frame.as_slice())
    }

    /// Returns the episode of the newest unacknowledged summary.
    pub fn newest_unacknowledged(&self) -> Option<u32> {
        self.outbox.back().map(|(episode, _)| *episode)
    }

    /// Returns the number of summaries dropped because W newer ones were pending, or because the session changed its run.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }

    /// Queues the summary of the episode that just ended and requests the next episode's model.
    pub fn submit(&mut self, summary: &EpisodeSummary<'_, D>, now: u64) {
        let mut frame = Vec::new();
        // Resizing to the capacity cannot fail. Encoding fails only after 2³² sealed frames.
        let resized = frame.resize(F, 0).map_err(|_| EncodeError::BufferTooShort);
        match resized.and_then(|()| self.channel.encode_summary(summary, &mut frame)) {
            Ok(length) => {
                frame.truncate(length);
                self.enqueue(summary.episode(), frame);
            }
            Err(_) => self.dropped = self.dropped.saturating_add(1),
        }
        self.wants_model = true;
        self.challenge = None;
        self.schedule(now, 0);
    }

    /// Queues a frame unless one of the same episode is already pending.
    fn enqueue(&mut self, episode: u32, frame: Vec<u8, F>) {
        if self.outbox.iter().any(|(pending, _)| *pending == episode) {
            return;
        }
        if self.outbox.is_full() {
            // A controller accepts late summaries only within a window, so the oldest is the least valuable.
            self.outbox.pop_front();
            self.dropped = self.dropped.saturating_add(1);
        }
        _ = self.outbox.push_back((episode, frame));
    }

    /// Tells the session that the link was down and is up again: what is pending is sent at once.
    ///
    /// For links that report it, such as a TCP connection. Without this call, the session notices at its next retry.
    pub fn link_up(&mut self, now: u64) {
        self.next_heartbeat = now;
        self.schedule(now, 0);
    }

    /// Processes a received frame and passes a model on to the agent. A sealed frame is decrypted in place.
    ///
    /// # Errors
    /// The bytes are not a frame for this device and run; session and agent stay unchanged.
    pub fn handle(&mut self, frame: &mut [u8], agent: &mut impl Learner<D>, now: u64) -> Result<Event, DecodeError> {
        let event = match self.channel.decode(frame)? {
            Message::Model(model) => match self.begin(&model, agent) {
                Ok(is_newer) => {
                    // A replayed model must not draw out a pending summary.
                    if is_newer {
                        self.schedule(now, 0);
                    }
                    Event::Model { episode: model.episode }
                }
                Err(error) => Event::ModelRejected(error),
            },
            Message::Ack { episode, fate, wait } if self.remove(episode) => {
                // The controller is reachable, so the next summary is sent without delay.
                let delay = if self.outbox.is_empty() { self.delay_after(wait) } else { 0 };
                self.schedule(now, delay);
                Event::Acknowledged { episode, fate }
            }
            Message::Wait { challenge, wait } if self.challenge == Some(challenge) => {
                self.challenge = None;
                // Only ever postpones: a controller cannot make the device ask more often than without answers.
                self.next_send = self.next_send.max(now.saturating_add(self.delay_after(wait).into()));
                Event::Waiting
            }
            Message::NextRun { challenge, run } if self.challenge == Some(challenge) && run != 0 => {
                self.enter_run(run, agent);
                Event::NextRun { run }
            }
            _ => Event::Ignored,
        };
        Ok(event)
    }

    /// Applies a model, and returns true if it is newer than the last one. An agent that ran ahead with its last model returns to
    /// the controller's episode, but only for a newer model than that one: a replayed old model must not move it back.
    fn begin(&mut self, model: &Model<'_>, agent: &mut impl Learner<D>) -> Result<bool, ModelError> {
        let is_newer = model.episode > self.last_model;
        match is_newer {
            true => agent.go_back(model)?,
            false => agent.begin(model)?,
        }
        (self.last_model, self.wants_model, self.challenge) = (model.episode, false, None);
        Ok(is_newer)
    }

    /// Starts another run, or the same one anew. Pending summaries can never count again. The backoff goes on, so that a
    /// controller cannot keep the device busy by sending it to and fro.
    fn enter_run(&mut self, run: u32, agent: &mut impl Learner<D>) {
        self.channel.enter_run(run);
        self.dropped = self.dropped.saturating_add(self.outbox.len() as u32);
        self.outbox.clear();
        (self.last_model, self.wants_model, self.challenge) = (0, true, None);
        agent.restart();
    }

    /// Returns the time at which [`poll`](Self::poll) has a frame to send, if nothing happens before: the device can sleep until
    /// then. `None` if nothing is scheduled.
    ///
    /// Every call with `&mut self` can change it.
    pub fn poll_at(&self) -> Option<u64> {
        let pending = (self.wants_model || !self.outbox.is_empty()).then_some(self.next_send);
        let heartbeat = self.heartbeat.map(|_| self.next_heartbeat);
        match (pending, heartbeat) {
            (Some(pending), Some(heartbeat)) => Some(pending.min(heartbeat)),
            (pending, heartbeat) => pending.or(heartbeat),
        }
    }

    /// Returns the frame that is due, if any: a summary, a hello or a heartbeat.
    ///
    /// Call it at [`poll_at`](Self::poll_at). Calls in between return `None`. At most one frame is due at a time: after `Some`,
    /// calls with the same `now` return `None`, so it may be called in a loop until then.
    pub fn poll(&mut self, now: u64, rng: &mut impl Rng) -> Option<&[u8]> {
        if self.poll_at().is_none_or(|due| now < due) {
            return None;
        }
        self.jitter = rng.next_u32();
        if let Some(interval) = self.heartbeat {
            self.next_heartbeat = now.saturating_add(self.shortened(interval).into());
        }
        let is_due = now >= self.next_send;
        let summary_is_due = is_due && !self.outbox.is_empty();
        if summary_is_due || is_due && self.wants_model {
            self.next_send = now.saturating_add(self.shortened(FIRST_RETRY << self.attempts).into());
            self.attempts = (self.attempts + 1).min(MAX_DOUBLINGS);
        }
        if summary_is_due {
            return self.outbox.front().map(|(_, frame)| frame.as_slice());
        }
        let model = self.last_model;
        // While the device waits for a model, a hello takes the heartbeat's place: a model that got lost is sent again.
        let message = match self.wants_model && self.outbox.is_empty() {
            true => {
                let challenge = rng.next_u32();
                self.challenge = Some(challenge);
                Message::Hello { model, boot: self.boot, challenge }
            }
            false => Message::Heartbeat { model },
        };
        let length = self.channel.encode(&message, &mut self.control).ok()?;
        self.control.get(..length)
    }

    /// Removes the pending summary of an episode; returns false if there is none.
    fn remove(&mut self, episode: u32) -> bool {
        let pending = self.outbox.len();
        for _ in 0..pending {
            if let Some(entry) = self.outbox.pop_front().filter(|entry| entry.0 != episode) {
                _ = self.outbox.push_back(entry);
            }
        }
        self.outbox.len() < pending
    }

    /// Schedules the next frame and resets the backoff.
    fn schedule(&mut self, now: u64, delay: u32) {
        self.attempts = 0;
        self.next_send = now.saturating_add(delay.into());
    }

    /// Returns the delay of the next hello after an answer that announces a deadline in `wait` milliseconds: 1/32 more, for a
    /// clock that is fast by up to 3 %, and up to 1/32 and a second as jitter.
    fn delay_after(&self, wait: u32) -> u32 {
        let wait = wait.min(MAX_WAIT);
        wait + wait / 32 + self.shortened(FIRST_RETRY) + self.random_part(wait / 32)
    }

    /// Shortens a delay at random by up to a half.
    fn shortened(&self, delay: u32) -> u32 {
        delay - self.random_part(delay / 2)
    }

    /// Returns a random part of a delay, from the number drawn for the last frame.
    fn random_part(&self, delay: u32) -> u32 {
        ((u64::from(self.jitter) * u64::from(delay)) >> 32) as u32
    }
}
