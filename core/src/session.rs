//! The device's side of the link to a controller, as a state machine without IO.
//!
//! Time and random numbers come in as arguments, frames go out of [`Session::poll`]. A summary is sent again, the same bytes each time, until the
//! controller acknowledges it; attempts back off from one second to a minute, with jitter, so that a fleet does not return in
//! step after an outage.

use heapless::{Deque, Vec};
use rand_core::Rng;

use crate::agent::Agent;
use crate::error::ModelError;
use crate::model::Model;
use crate::summary::EpisodeSummary;
use crate::wire::{Channel, DecodeError, Identity, Message, NackReason, Sender, claimed_type};

/// The wait after a first attempt, in milliseconds.
const FIRST_WAIT: u32 = 1_000;

/// Doublings of the wait: 1 s, 2 s, … 64 s.
const DOUBLINGS: u32 = 6;

/// With nothing to say, a device shows itself this often, in milliseconds.
const HEARTBEAT: u32 = 30_000;

/// A link with room for W unacknowledged summaries in frames of up to F bytes ([`max_frame_len`](crate::wire::max_frame_len), or
/// `max_sealed_frame_len`).
pub struct Session<const F: usize, const W: usize> {
    channel: Channel,
    boot: u32,
    /// Unacknowledged summaries, the oldest first, and their episodes.
    outbox: Deque<(u32, Vec<u8, F>), W>,
    /// Whether the model of the running episode is still to come.
    wants_model: bool,
    /// The episode of the last model that was taken; 0 before the first.
    last_model: u32,
    /// When to speak next, in milliseconds.
    next: u64,
    attempts: u32,
    lost: u32,
}

/// What a received frame meant.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Event {
    /// The agent took the model into use.
    Model {
        /// The model's episode.
        episode: u32,
    },
    /// The agent refused the model and keeps its last good one.
    ModelRefused(ModelError),
    /// A summary is safe with the controller.
    Acknowledged {
        /// The summary's episode.
        episode: u32,
    },
    /// The controller does not want a summary.
    Rejected {
        /// The summary's episode.
        episode: u32,
        /// Why not.
        reason: NackReason,
    },
    /// An acknowledgement of nothing that waits for one, or a device's own kind of message.
    Ignored,
}

impl<const F: usize, const W: usize> Session<F, W> {
    /// A session of a device that has started `boot` times; it begins with a hello.
    pub fn new(identity: Identity, boot: u32) -> Self {
        Self::with(Channel::plain(identity), boot)
    }

    /// A session in sealed frames, for an identity that asks for them; it refuses plain frames.
    ///
    /// To be made once per start, with a boot number that is larger at each start and was stored durably before: see [`Nonces`].
    /// [`handle`](Self::handle) and [`resume`](Self::resume) take F bytes of stack to open a frame.
    #[cfg(feature = "sealed")]
    pub fn sealed(identity: Identity, boot: u32) -> Self {
        Self::with(Channel::sealed_device(identity, boot), boot)
    }

    fn with(channel: Channel, boot: u32) -> Self {
        Self { channel, boot, outbox: Deque::new(), wants_model: true, last_model: 0, next: 0, attempts: 0, lost: 0 }
    }

    /// Whether the model of the running episode is still to come.
    pub fn wants_model(&self) -> bool {
        self.wants_model
    }

    /// The unacknowledged summaries' frames, the oldest first.
    pub fn unacknowledged(&self) -> impl Iterator<Item = &[u8]> {
        self.outbox.iter().map(|(_, frame)| frame.as_slice())
    }

    /// The episode of the newest unacknowledged summary.
    pub fn newest(&self) -> Option<u32> {
        self.outbox.back().map(|(episode, _)| *episode)
    }

    /// How many summaries were given up, because W newer ones were waiting.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Queues the summary of the episode that just ended. From here on the next episode's model is wanted.
    pub fn submit<const D: usize>(&mut self, summary: &EpisodeSummary<'_, D>, now: u64) {
        let mut frame = Vec::new();
        // Always room for it, if F is a frame's length: then nothing is lost here.
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
        self.speak_at_once(now);
    }

    /// Queues a frame of [`unacknowledged`](Self::unacknowledged) again, after a reset.
    ///
    /// # Errors
    /// The bytes are not a summary of this device.
    pub fn resume(&mut self, frame: &[u8]) -> Result<(), DecodeError> {
        let mut buffer = Vec::<u8, F>::new();
        let Message::Summary(summary) = self.channel.decode_copy(Sender::Own, frame, &mut buffer)? else {
            return Err(DecodeError::Type(claimed_type(frame)));
        };
        let frame = Vec::from_slice(frame).map_err(|_| DecodeError::Length)?;
        self.enqueue(summary.episode, frame);
        Ok(())
    }

    /// Queues a frame, unless one of the same episode waits already: the first stays.
    fn enqueue(&mut self, episode: u32, frame: Vec<u8, F>) {
        if self.outbox.iter().any(|(waiting, _)| *waiting == episode) {
            return;
        }
        if self.outbox.is_full() {
            // A controller takes late summaries for a window only: the oldest is the least worth.
            self.outbox.pop_front();
            self.lost = self.lost.saturating_add(1);
        }
        _ = self.outbox.push_back((episode, frame));
    }

    /// Takes a received frame; a model goes to the agent.
    ///
    /// # Errors
    /// The bytes are not a frame for this device. Nothing changes then.
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
            // The controller is there: the next frame need not wait for the last one's turn.
            _ if !self.outbox.is_empty() => self.speak_at_once(now),
            _ => self.wait(now, FIRST_WAIT),
        }
        Ok(event)
    }

    /// Which episode runs is the controller's to say. An agent that went on with its last model may have counted too far; it goes
    /// back for a model that is newer than that one. An older one, which somebody may have recorded, moves it nowhere.
    fn begin<const D: usize>(&mut self, model: &Model<'_>, agent: &mut Agent<D>) -> Result<(), ModelError> {
        match model.episode > self.last_model {
            true => agent.go_back(model)?,
            false => agent.begin(model)?,
        }
        (self.last_model, self.wants_model) = (model.episode, false);
        Ok(())
    }

    /// Writes the frame to send now, if any, and returns its length. To be called again and again.
    ///
    /// `episode` is the agent's. A buffer of F bytes always suffices; with a shorter one nothing is sent.
    pub fn poll(&mut self, episode: u32, now: u64, rng: &mut impl Rng, frame: &mut [u8]) -> Option<usize> {
        if now < self.next {
            return None;
        }
        let length = match self.outbox.front() {
            Some((_, waiting)) => {
                let place = frame.get_mut(..waiting.len())?;
                for (to, from) in place.iter_mut().zip(waiting) {
                    *to = *from;
                }
                waiting.len()
            }
            None => {
                let message = match self.wants_model {
                    true => Message::Hello { episode, boot: self.boot },
                    false => Message::Heartbeat { episode },
                };
                self.channel.encode(&message, frame)?
            }
        };
        let wait = match self.outbox.is_empty() && !self.wants_model {
            true => HEARTBEAT,
            false => FIRST_WAIT << self.attempts,
        };
        // Between a half and the whole of the wait.
        let jitter = (u64::from(rng.next_u32()) * u64::from(wait / 2)) >> 32;
        self.next = now.saturating_add(u64::from(wait) - jitter);
        self.attempts = (self.attempts + 1).min(DOUBLINGS);
        Some(length)
    }

    /// Forgets the summary of an episode, if it waits.
    fn remove(&mut self, episode: u32) -> bool {
        let waiting = self.outbox.len();
        for _ in 0..waiting {
            if let Some(entry) = self.outbox.pop_front().filter(|entry| entry.0 != episode) {
                _ = self.outbox.push_back(entry);
            }
        }
        self.outbox.len() < waiting
    }

    fn speak_at_once(&mut self, now: u64) {
        self.wait(now, 0);
    }

    fn wait(&mut self, now: u64, milliseconds: u32) {
        self.attempts = 0;
        self.next = now.saturating_add(milliseconds.into());
    }
}
