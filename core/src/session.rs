//! The device's side of the link to a controller, as a sans-IO state machine.
//!
//! Time and random numbers are arguments; [`Session::poll`] returns the frames to send. A summary is repeated, byte for byte,
//! until the controller acknowledges it. Retries back off exponentially from one second to about a minute. Jitter keeps the
//! devices of a fleet from reconnecting simultaneously after an outage.

use heapless::{Deque, Vec};
use rand_core::Rng;

use crate::agent::Agent;
use crate::error::ModelError;
use crate::model::Model;
use crate::summary::EpisodeSummary;
use crate::wire::{Channel, DecodeError, Identity, Message, NackReason, Sender, claimed_type};

/// Delay before the first retry, in milliseconds.
const FIRST_RETRY: u32 = 1_000;

/// Largest number of doublings of the retry delay: 1 s, 2 s, … 64 s.
const MAX_DOUBLINGS: u32 = 6;

/// Longest interval between heartbeats, in milliseconds.
const HEARTBEAT_INTERVAL: u32 = 30_000;

/// Link state of a device, with room for W unacknowledged summaries in frames of up to F bytes.
///
/// F must be at least [`max_frame_len`](crate::wire::max_frame_len) of the dimension, `max_sealed_frame_len` for sealed frames.
pub struct Session<const F: usize, const W: usize> {
    channel: Channel,
    boot: u32,
    /// Episodes and frames of unacknowledged summaries, oldest first.
    outbox: Deque<(u32, Vec<u8, F>), W>,
    /// True until the model of the running episode arrives.
    wants_model: bool,
    /// Episode of the last applied model; 0 before the first.
    last_model: u32,
    /// Time of the next frame, in milliseconds.
    next_send: u64,
    attempts: u32,
    lost: u32,
}

/// Effect of a received frame.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Event {
    /// The agent applied the model.
    Model {
        /// The model's episode.
        episode: u32,
    },
    /// The agent rejected the model and keeps its last valid one.
    ModelRefused(ModelError),
    /// The controller stored a summary durably.
    Acknowledged {
        /// The summary's episode.
        episode: u32,
    },
    /// The controller rejected a summary.
    Rejected {
        /// The summary's episode.
        episode: u32,
        /// Reason for the rejection.
        reason: NackReason,
    },
    /// The frame acknowledged no pending summary, or its message type is sent by devices only.
    Ignored,
}

impl<const F: usize, const W: usize> Session<F, W> {
    /// Creates a session over plain frames; `boot` is the device's boot counter. The first frame is a hello.
    pub fn new(identity: Identity, boot: u32) -> Self {
        Self::with(Channel::plain(identity), boot)
    }

    /// Creates a session over sealed frames, for an identity that requires them. It rejects plain frames.
    ///
    /// Create only one per start: the rules of [`Channel::sealed_device`] for `boot` apply.
    /// [`handle`](Self::handle) and [`resume`](Self::resume) need F bytes of stack to open a frame.
    #[cfg(feature = "sealed")]
    pub fn sealed(identity: Identity, boot: u32) -> Self {
        Self::with(Channel::sealed_device(identity, boot), boot)
    }

    fn with(channel: Channel, boot: u32) -> Self {
        Self {
            channel,
            boot,
            outbox: Deque::new(),
            wants_model: true,
            last_model: 0,
            next_send: 0,
            attempts: 0,
            lost: 0,
        }
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
    pub fn newest(&self) -> Option<u32> {
        self.outbox.back().map(|(episode, _)| *episode)
    }

    /// Returns the number of summaries dropped because W newer ones were pending.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Queues the summary of the episode that just ended and requests the next episode's model.
    pub fn submit<const D: usize>(&mut self, summary: &EpisodeSummary<'_, D>, now: u64) {
        let mut frame = Vec::new();
        // Resizing to the capacity cannot fail. Encoding fails if F is shorter than the frame.
        if frame.resize(F, 0).is_ok() {
            match self.channel.encode_summary(summary, &mut frame) {
                Some(length) => {
                    frame.truncate(length);
                    self.enqueue(summary.episode(), frame);
                }
                None => self.lost = self.lost.saturating_add(1),
            }
        }
        self.wants_model = true;
        self.schedule(now, 0);
    }

    /// Queues a frame saved from [`unacknowledged`](Self::unacknowledged) before a reset.
    ///
    /// # Errors
    /// The bytes are not a summary frame of this device.
    pub fn resume(&mut self, frame: &[u8]) -> Result<(), DecodeError> {
        let mut buffer = Vec::<u8, F>::new();
        let Message::Summary(summary) = self.channel.decode_copy(Sender::Own, frame, &mut buffer)? else {
            return Err(DecodeError::Type(claimed_type(frame)));
        };
        let frame = Vec::from_slice(frame).map_err(|_| DecodeError::Length)?;
        self.enqueue(summary.episode, frame);
        Ok(())
    }

    /// Queues a frame unless one of the same episode is already pending.
    fn enqueue(&mut self, episode: u32, frame: Vec<u8, F>) {
        if self.outbox.iter().any(|(pending, _)| *pending == episode) {
            return;
        }
        if self.outbox.is_full() {
            // A controller accepts late summaries only within a window, so the oldest is the least valuable.
            self.outbox.pop_front();
            self.lost = self.lost.saturating_add(1);
        }
        _ = self.outbox.push_back((episode, frame));
    }

    /// Processes a received frame and passes a model on to the agent.
    ///
    /// # Errors
    /// The bytes are not a frame for this device; session and agent stay unchanged.
    pub fn handle<const D: usize>(
        &mut self,
        frame: &[u8],
        agent: &mut Agent<D>,
        now: u64,
    ) -> Result<Event, DecodeError> {
        let mut buffer = Vec::<u8, F>::new();
        let message = self.channel.decode_copy(Sender::Peer, frame, &mut buffer)?;
        let event = match message {
            Message::Model(model) => match self.begin(&model, agent) {
                Ok(()) => Event::Model { episode: model.episode },
                Err(error) => Event::ModelRefused(error),
            },
            Message::Ack { episode } if self.remove(episode) => Event::Acknowledged { episode },
            Message::Nack { episode, reason } if self.remove(episode) => Event::Rejected { episode, reason },
            _ => Event::Ignored,
        };
        match event {
            Event::Ignored | Event::ModelRefused(_) => {}
            // The controller is reachable, so the next frame goes out without delay.
            _ if !self.outbox.is_empty() => self.schedule(now, 0),
            _ => self.schedule(now, FIRST_RETRY),
        }
        Ok(event)
    }

    /// Applies a model. An agent that ran ahead with its last model returns to the controller's episode, but only for a newer
    /// model than that one: a replayed old model must not move it back.
    fn begin<const D: usize>(&mut self, model: &Model<'_>, agent: &mut Agent<D>) -> Result<(), ModelError> {
        match model.episode > self.last_model {
            true => agent.go_back(model)?,
            false => agent.begin(model)?,
        }
        (self.last_model, self.wants_model) = (model.episode, false);
        Ok(())
    }

    /// Writes the frame that is due, if any, and returns its length.
    ///
    /// Call it regularly, and after each [`submit`](Self::submit) and [`handle`](Self::handle). At most one frame is due at a
    /// time: after `Some`, calls with the same `now` return `None`, so it may be called in a loop until then.
    ///
    /// `episode` is the agent's. A buffer of F bytes always suffices; with a shorter one the frame stays due.
    pub fn poll(&mut self, episode: u32, now: u64, rng: &mut impl Rng, frame: &mut [u8]) -> Option<usize> {
        if now < self.next_send {
            return None;
        }
        let length = match self.outbox.front() {
            Some((_, pending)) => {
                let target = frame.get_mut(..pending.len())?;
                for (to, from) in target.iter_mut().zip(pending) {
                    *to = *from;
                }
                pending.len()
            }
            None => {
                let message = match self.wants_model {
                    true => Message::Hello { episode, boot: self.boot },
                    false => Message::Heartbeat { episode },
                };
                self.channel.encode(&message, frame)?
            }
        };
        let delay = match self.outbox.is_empty() && !self.wants_model {
            true => HEARTBEAT_INTERVAL,
            false => FIRST_RETRY << self.attempts,
        };
        // Shortens the delay by up to a half.
        let jitter = (u64::from(rng.next_u32()) * u64::from(delay / 2)) >> 32;
        self.next_send = now.saturating_add(u64::from(delay) - jitter);
        self.attempts = (self.attempts + 1).min(MAX_DOUBLINGS);
        Some(length)
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
}
