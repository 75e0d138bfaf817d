//! The service as a state machine: frames and time in, events to store and frames to send out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

use fedbandit_core::planted::{self, Bug};
use fedbandit_core::wire::{
    DecodeError, Identity, Message, NackReason, Nonces, Seal, Summary, claimed_address, max_sealed_frame_len,
};
use fedbandit_core::{Model, packed_len};
use serde::Serialize;

use super::event::{Event, Release};
use crate::admission::Fault;
use crate::aggregate::AggregateError;
use crate::controller::{Closed, Controller, Counts, Suspicion};
use crate::privacy::{Private, RunKey};
use crate::rule::{Estimate, Rule};
use crate::streams::{AgentId, NoPrivacy, Streams};
use crate::symmetric;

/// A controller with or without privacy.
#[expect(clippy::large_enum_variant, reason = "there is one of them")]
pub enum Learner {
    /// Streams are no secret.
    Plain(Controller<NoPrivacy, Box<dyn Rule + Send>>),
    /// Streams are private.
    Private(Controller<Private<RunKey>, Box<dyn Rule + Send>>),
}

/// Calls the same method of either controller.
macro_rules! either {
    ($learner:expr, $controller:ident => $call:expr) => {
        match $learner {
            Learner::Plain($controller) => $call,
            Learner::Private($controller) => $call,
        }
    };
}

impl Learner {
    fn model(&self) -> Option<Model<'_>> {
        either!(self, controller => controller.model())
    }

    fn expects(&self, agent: u32, episode: u32) -> Result<(), Fault> {
        either!(self, controller => controller.expects(AgentId(agent), episode))
    }

    fn receive(&mut self, agent: u32, episode: u32, gram: &[f32], feature_sum: &[f32]) {
        let (gram, feature_sum) = (gram.iter().copied(), feature_sum.iter().copied());
        // What is wrong with a summary is in the controller's counts.
        let _ = either!(self, controller => controller.receive(AgentId(agent), episode, gram, feature_sum));
    }

    fn close_episode(&mut self) -> Result<Option<Closed>, AggregateError> {
        either!(self, controller => controller.close_episode())
    }

    fn missing(&self) -> usize {
        either!(self, controller => controller.missing())
    }

    /// V̂_i and v̂_i as they are released; without privacy the sums as they are.
    pub fn streams(&self) -> &Streams {
        either!(self, controller => controller.streams())
    }

    /// What happened so far; exact, and so for the operator alone where streams are private.
    pub fn counts(&self) -> &Counts {
        either!(self, controller => controller.counts())
    }

    /// What the rule said last.
    pub fn estimate(&self) -> &Estimate {
        either!(self, controller => controller.estimate())
    }

    fn is_private(&self) -> bool {
        matches!(self, Self::Private(_))
    }

    /// The devices that are farthest from the centre, the farthest first; none where streams are private.
    fn suspicious(&self, most: usize) -> Vec<Suspect> {
        let Self::Plain(controller) = self else { return Vec::new() };
        let suspect = |suspicion: Suspicion<AgentId>| Suspect {
            agent: suspicion.unit.0,
            // What is infinitely many median radii away is shown as very many.
            distance: suspicion.gram.max(suspicion.feature_sum).min(1e9),
        };
        let mut suspects: Vec<Suspect> = controller.suspicions().map(suspect).collect();
        suspects.sort_by(|a, b| b.distance.total_cmp(&a.distance));
        suspects.truncate(most);
        suspects
    }
}

/// A device and how far from the centre its sums are, in median radii.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Suspect {
    /// Its number.
    pub agent: u32,
    /// The larger distance of its two sums.
    pub distance: f64,
}

/// How well an episode went, as far as the released sums tell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// k, the episode that the next model is for.
    pub episode: u32,
    /// β_k.
    pub beta: f32,
    /// √(θᵀ(G_k − G_{k−1})θ/L): the root mean square of ⟨x, θ⟩ over the steps of the last episode. It grows as actions
    /// turn towards θ.
    pub predicted_reward: f64,
}

/// How many episodes are remembered for people.
const HISTORY: usize = 256;
/// How many suspects are shown.
const SUSPECTS: usize = 8;

/// A connection, by a number that is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link(pub u64);

/// A frame to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// Where to.
    pub link: Link,
    /// What.
    pub frame: Vec<u8>,
}

/// Why a frame was dropped before it could mean anything. It is counted, and its sender hears nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Dropped {
    /// Too short or too long.
    Length,
    /// Of another version.
    Version,
    /// Of another run, or of nobody that is enrolled.
    Unknown,
    /// Of a device whose identity was revoked.
    Revoked,
    /// The tag is wrong.
    Tag,
    /// A message that no device sends.
    Type,
}

/// A device as the service knows it.
struct Device {
    end: End,
    revoked: bool,
    link: Option<Link>,
}

/// The controller's end of the link to a device.
pub enum End {
    /// Frames are authenticated.
    Plain(Identity),
    /// Frames are sealed; others are refused.
    Sealed(Seal),
}

impl End {
    fn decode<'a>(&self, frame: &'a mut [u8]) -> Result<Message<'a>, DecodeError> {
        match self {
            Self::Plain(identity) => identity.decode(frame),
            Self::Sealed(seal) => seal.decode(frame),
        }
    }

    fn encode(&self, nonces: &mut Nonces, message: &Message<'_>, frame: &mut [u8]) -> Option<usize> {
        match self {
            Self::Plain(identity) => identity.encode(message, frame).ok(),
            Self::Sealed(seal) => seal.encode(nonces.next()?, message, frame).ok(),
        }
    }
}

/// The controller of real devices, without clock, network or storage.
///
/// The caller hands in frames by [`handle`](Self::handle) and time by [`tick`](Self::tick). Then it stores
/// [`uncommitted`](Self::uncommitted) events durably, says so by [`committed`](Self::committed), and sends all that
/// [`poll`](Self::poll) has. Nothing that depends on an event is sent before that event is stored: no acknowledgement
/// before its summary, no model before its release. If storing fails, the caller stops; after a restart
/// [`restore`](Self::restore) makes of the stored events what was there before.
pub struct Service {
    run: u32,
    dimension: usize,
    learner: Learner,
    devices: BTreeMap<u32, Device>,
    /// For all sealed frames until the next start.
    nonces: Nonces,
    /// The running episode's model; none when the run is over.
    release: Option<Release>,
    uncommitted: Vec<Event>,
    /// The (agent, episode) of uncommitted summaries.
    staged: BTreeSet<(u32, u32)>,
    outbox: VecDeque<Outgoing>,
    dropped: BTreeMap<Dropped, u64>,
    /// How long an episode may last, in milliseconds.
    patience: u64,
    /// When the running one ends.
    deadline: u64,
    last_closed: Option<Closed>,
    /// G_k of the running episode, in the scaled packing.
    gram: Vec<f64>,
    history: VecDeque<Quality>,
}

/// How a service starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The run's number.
    pub run: u32,
    /// D.
    pub dimension: usize,
    /// Larger at each start, and stored durably before: sealed frames are counted from it.
    pub boot: u32,
    /// How long an episode may last, in milliseconds.
    pub patience: u64,
    /// The time, in milliseconds.
    pub now: u64,
}

/// The stored events are not those of this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// An event that cannot have happened.
    #[error("event {0} of the store is not one of this run")]
    Event(u64),
    /// The rule is not defined for these agents.
    #[error("the aggregator does not fit the enrolled devices")]
    Rule,
}

impl Service {
    /// A run that begins, or goes on: with the events that were stored before, in order. The devices, with whether they
    /// are revoked, are those that the learner was made for.
    ///
    /// # Errors
    /// The events do not fit.
    pub fn restore(
        start: Start,
        learner: Learner,
        devices: impl IntoIterator<Item = (u32, End, bool)>,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<Self, RestoreError> {
        let device = |(agent, end, revoked)| (agent, Device { end, revoked, link: None });
        let Start { run, dimension, boot, patience, now } = start;
        let mut service = Self {
            run,
            dimension,
            learner,
            devices: devices.into_iter().map(device).collect(),
            nonces: Nonces::new(boot),
            release: None,
            uncommitted: Vec::new(),
            staged: BTreeSet::new(),
            outbox: VecDeque::new(),
            dropped: BTreeMap::new(),
            patience,
            deadline: now.saturating_add(patience),
            last_closed: None,
            gram: Vec::new(),
            history: VecDeque::new(),
        };
        for (number, event) in (0..).zip(events) {
            service.replay(event).map_err(|()| RestoreError::Event(number))?;
        }
        if service.release.is_none() && service.learner.model().is_some() {
            service.stage_release();
        }
        Ok(service)
    }

    fn replay(&mut self, event: Event) -> Result<(), ()> {
        match event {
            Event::Summary { agent, episode, values, .. } => {
                self.learner.expects(agent, episode).map_err(drop)?;
                let (gram, feature_sum) = values.split_at(packed_len(self.dimension));
                self.learner.receive(agent, episode, gram, feature_sum);
            }
            Event::Release(release) => {
                if self.release.is_some() {
                    self.last_closed = self.learner.close_episode().map_err(drop)?;
                }
                let same = self.learner.model().is_some_and(|model| model.episode == release.episode);
                if !same {
                    return Err(());
                }
                // What was sent once is what is sent again.
                self.publish(release);
            }
        }
        Ok(())
    }

    /// Takes a frame that came over a link. A sealed one is opened in place.
    ///
    /// # Errors
    /// The frame means nothing: it is counted, and its sender hears nothing. A link that brings nothing else is worth
    /// closing.
    pub fn handle(&mut self, link: Link, frame: &mut [u8]) -> Result<(), Dropped> {
        self.read(link, frame).inspect_err(|reason| *self.dropped.entry(*reason).or_default() += 1)
    }

    fn read(&mut self, link: Link, frame: &mut [u8]) -> Result<(), Dropped> {
        let (run, agent) = claimed_address(frame).ok_or(Dropped::Length)?;
        let device = self.devices.get_mut(&agent).filter(|_| run == self.run).ok_or(Dropped::Unknown)?;
        let message = device.end.decode(frame).map_err(|error| match error {
            DecodeError::Version(_) => Dropped::Version,
            DecodeError::Address => Dropped::Unknown,
            DecodeError::Tag => Dropped::Tag,
            DecodeError::Type(_) => Dropped::Type,
            _ => Dropped::Length,
        })?;
        if device.revoked {
            return Err(Dropped::Revoked);
        }
        device.link = Some(link);
        match message {
            Message::Hello { .. } => self.send_model(agent),
            Message::Heartbeat { .. } => {}
            Message::Summary(summary) => self.take(agent, &summary),
            _ => return Err(Dropped::Type),
        }
        Ok(())
    }

    fn take(&mut self, agent: u32, summary: &Summary<'_>) {
        let Summary { episode, steps, gram, feature_sum } = *summary;
        if feature_sum.len() != self.dimension && !planted::is(Bug::UncheckedLength) {
            return self.send(agent, &Message::Nack { episode, reason: NackReason::WrongDimension });
        }
        match self.learner.expects(agent, episode) {
            Ok(()) if self.staged.insert((agent, episode)) => {
                let values = gram.iter().chain(feature_sum.iter()).collect();
                self.uncommitted.push(Event::Summary { agent, episode, steps, values });
                if planted::is(Bug::AckBeforeCommit) {
                    self.send(agent, &Message::Ack { episode });
                }
            }
            // It is about to be stored, and answered then.
            Ok(()) => {}
            // The first one counts, and it is stored.
            Err(Fault::Duplicate) => self.send(agent, &Message::Ack { episode }),
            Err(_) => self.send(agent, &Message::Nack { episode, reason: NackReason::WrongEpisode }),
        }
    }

    /// Tells the time. Closes the episode when it is due: at its deadline, or as soon as all have reported; with
    /// privacy at its deadline only, since when a model comes would tell who has sent.
    ///
    /// # Errors
    /// The rule's; the episode goes on.
    pub fn tick(&mut self, now: u64) -> Result<(), AggregateError> {
        if self.release.is_none() || !self.uncommitted.is_empty() {
            return Ok(());
        }
        let complete = !self.learner.is_private() && self.learner.missing() == 0;
        if now >= self.deadline || complete {
            self.last_closed = self.learner.close_episode()?;
            self.deadline = now.saturating_add(self.patience);
            self.stage_release();
        }
        Ok(())
    }

    /// The learner's model becomes the one to be stored and sent.
    fn stage_release(&mut self) {
        match self.learner.model().map(|model| Release::of(&model)) {
            Some(release) => {
                self.uncommitted.push(Event::Release(release.clone()));
                if planted::is(Bug::ReleaseBeforeLog) {
                    self.release(release);
                }
            }
            None => self.release = None,
        }
    }

    /// What must be stored before anything else happens.
    pub fn uncommitted(&self) -> &[Event] {
        &self.uncommitted
    }

    /// The uncommitted events are stored: summaries count and are acknowledged, a release is sent to all.
    pub fn committed(&mut self) {
        self.staged.clear();
        for event in mem::take(&mut self.uncommitted) {
            match event {
                Event::Summary { agent, episode, values, .. } => {
                    let (gram, feature_sum) = values.split_at(packed_len(self.dimension));
                    self.learner.receive(agent, episode, gram, feature_sum);
                    self.send(agent, &Message::Ack { episode });
                }
                Event::Release(release) => self.release(release),
            }
        }
    }

    /// A release takes effect, and is sent to all.
    fn release(&mut self, release: Release) {
        self.publish(release);
        let agents: Vec<u32> = self.devices.keys().copied().collect();
        agents.into_iter().for_each(|agent| self.send_model(agent));
    }

    /// A release takes effect.
    fn publish(&mut self, release: Release) {
        let gram = &self.learner.estimate().gram.point;
        let theta: Vec<f64> = release.values.iter().take(self.dimension).copied().map(f64::from).collect();
        let energy = |gram: &[f64]| {
            let image = if gram.is_empty() { vec![0.0; theta.len()] } else { symmetric::product(gram, &theta) };
            image.iter().zip(&theta).map(|(image, theta)| image * theta).sum::<f64>()
        };
        let steps = self.release.as_ref().map_or(1, |last| last.episode_len);
        let predicted_reward = ((energy(gram) - energy(&self.gram)) / f64::from(steps)).max(0.0).sqrt();
        self.history.push_back(Quality { episode: release.episode, beta: release.beta, predicted_reward });
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        self.gram.clone_from(gram);
        self.release = Some(release);
    }

    /// The next frame to send, if any.
    pub fn poll(&mut self) -> Option<Outgoing> {
        self.outbox.pop_front()
    }

    /// A link is gone.
    pub fn disconnected(&mut self, link: Link) {
        for device in self.devices.values_mut().filter(|device| device.link == Some(link)) {
            device.link = None;
        }
    }

    fn send_model(&mut self, agent: u32) {
        if let Some(release) = self.release.clone() {
            self.send(agent, &Message::Model(release.model(self.dimension)));
        }
    }

    fn send(&mut self, agent: u32, message: &Message<'_>) {
        let Some(Device { end, link: Some(link), revoked: false }) = self.devices.get(&agent) else { return };
        let mut frame = vec![0; max_sealed_frame_len(self.dimension)];
        if let Some(length) = end.encode(&mut self.nonces, message, &mut frame) {
            frame.truncate(length);
            self.outbox.push_back(Outgoing { link: *link, frame });
        }
    }

    /// Whether all episodes are over.
    pub fn is_over(&self) -> bool {
        self.release.is_none()
    }

    /// The learner, to look at.
    pub fn learner(&self) -> &Learner {
        &self.learner
    }

    /// What an operator sees.
    pub fn status(&self, now: u64) -> Status {
        let estimate = self.learner.estimate();
        Status {
            run: self.run,
            episode: self.release.as_ref().map(|release| release.episode),
            seconds_left: self.deadline.saturating_sub(now) / 1000,
            enrolled: self.devices.len(),
            revoked: self.devices.values().filter(|device| device.revoked).count(),
            connected: self.devices.values().filter(|device| device.link.is_some()).count(),
            missing: self.learner.missing(),
            missing_in_last_episode: self.last_closed.map(|closed| closed.missing),
            beta: self.release.as_ref().map(|release| release.beta),
            lambda: estimate.lambda,
            certified_gap: estimate.gram.certified_gap.max(estimate.feature_sum.certified_gap),
            passes: estimate.gram.passes + estimate.feature_sum.passes,
            repaired: self.learner.counts().repaired,
            faults: self.learner.counts().faults.clone(),
            dropped: self.dropped.clone(),
            private: self.learner.is_private(),
            suspicious: self.learner.suspicious(SUSPECTS),
            history: self.history.iter().copied().collect(),
        }
    }
}

/// A run at a glance. The numbers are exact: with privacy, they are for the operator alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// The run's number.
    pub run: u32,
    /// k; none when the run is over.
    pub episode: Option<u32>,
    /// Until the running episode ends.
    pub seconds_left: u64,
    /// N.
    pub enrolled: usize,
    /// How many of them are revoked.
    pub revoked: usize,
    /// How many of them are connected.
    pub connected: usize,
    /// How many have sent nothing for the running episode.
    pub missing: usize,
    /// How many had sent nothing when the last one closed.
    pub missing_in_last_episode: Option<usize>,
    /// β_k.
    pub beta: Option<f32>,
    /// λ_k.
    pub lambda: f64,
    /// The larger one of the last two aggregations.
    pub certified_gap: f64,
    /// Of the last two aggregations together.
    pub passes: u32,
    /// Models whose Λ was repaired.
    pub repaired: u64,
    /// Summaries that counted as zero, by reason.
    pub faults: BTreeMap<Fault, u64>,
    /// Frames that were dropped, by reason.
    pub dropped: BTreeMap<Dropped, u64>,
    /// Whether streams are private.
    pub private: bool,
    /// The devices farthest from the centre; nobody where streams are private.
    pub suspicious: Vec<Suspect>,
    /// The last episodes.
    pub history: Vec<Quality>,
}
