//! The service as a state machine: frames and time in, events to store and frames to send out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

use fedbandit_core::wire::{self, Channel, DecodeError, Message, NackReason, claimed_address, max_sealed_frame_len};
use serde::Serialize;

use super::any_controller::AnyController;
use super::event::{Event, ModelEvent, SummaryEvent};
use super::status::{Outlier, Promise, Quality, Received, Status};
use crate::aggregate::{AggregateError, lower_median};
use crate::algorithm::AgentId;
use crate::algorithm::ClosedEpisode;
use crate::algorithm::Estimate;
use crate::algorithm::Fault;
use crate::privacy::calibration::{Budget, Mechanism};

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
    /// Of another run, or of nobody that is enrolled, or on another's topic.
    Unknown,
    /// Of a device whose identity was revoked.
    Revoked,
    /// The tag is wrong.
    Tag,
    /// A message that no device sends.
    Type,
    /// More than a device may send at once; only transports that cannot slow down one device drop for this.
    TooMany,
}

/// A device as the service knows it.
struct Device {
    channel: Channel,
    revoked: bool,
    /// Whether it was heard since the service started.
    seen: bool,
    link: Option<Link>,
}

/// The controller of real devices, without clock, network or storage.
///
/// The caller hands in frames by [`handle`](Self::handle) and time by [`tick`](Self::tick). Then it takes what happened by
/// [`take_batch`](Self::take_batch), stores it durably, says so by [`committed`](Self::committed), and sends all that
/// [`poll`](Self::poll) has. Nothing that depends on an event is sent before that event is stored: no acknowledgement
/// before its summary, no model before its release. If storing fails, the caller stops; after a restart
/// [`Restoring`] makes of the stored events what was there before.
pub struct StateMachine {
    run: u32,
    dimension: usize,
    learner: AnyController,
    devices: BTreeMap<AgentId, Device>,
    /// The running episode's model; none when the run is over.
    release: Option<ModelEvent>,
    /// What happened since the last batch was taken.
    uncommitted: Vec<Event>,
    /// Whether that batch is still being stored.
    storing: bool,
    /// The (agent, episode) of summaries that are not stored yet.
    staged: BTreeSet<(AgentId, u32)>,
    outbox: VecDeque<Outgoing>,
    dropped: BTreeMap<Dropped, u64>,
    /// The link over which devices without one of their own are reached.
    common: Option<Link>,
    /// How long an episode may last, in milliseconds.
    time_limit: u64,
    /// When the running one ends.
    deadline: u64,
    /// The devices' mean rewards in the running episode, as they say. None where streams are private: no noise is on
    /// them, so they are not even collected.
    mean_rewards: Option<Vec<f64>>,
    received: Received,
    /// The frames that were dropped and the summaries that counted as zero when the last episode closed.
    rejected_before: [u64; 2],
    history: VecDeque<Quality>,
    /// Who was farthest from the centre when the last episode closed.
    suspicious: Vec<Outlier>,
    about: RunInfo,
}

/// Events to be stored together, and then to be handed back to the service that they are of.
#[derive(Debug)]
#[must_use = "a service waits for its batch to be stored"]
pub struct Batch(Vec<Event>);

impl Batch {
    /// What happened, in order; never nothing.
    pub fn events(&self) -> &[Event] {
        &self.0
    }

    /// The events' bytes.
    pub fn to_bytes(&self) -> Vec<Vec<u8>> {
        self.0.iter().map(Event::to_bytes).collect()
    }
}

/// What is known of a run before it begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunInfo {
    /// Of all that the store and the service must agree on.
    pub config_hash: u64,
    /// K.
    pub episodes: u32,
    /// The promise of a private run, and how it is kept.
    pub privacy: Option<(Budget, Mechanism)>,
}

/// How a service starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateMachineConfig {
    /// The run's number.
    pub run: u32,
    /// D.
    pub dimension: usize,
    /// How long an episode may last, in milliseconds.
    pub time_limit: u64,
    /// The time, in milliseconds.
    pub now: u64,
    /// What is to be said of the run.
    pub about: RunInfo,
}

/// A stored event that cannot have happened in this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {0} of the store is not one of this run: restore the last backup")]
pub struct RestoreError(u64);

/// A service that is being told what was stored before it started, one event after the other.
pub struct Restoring {
    service: StateMachine,
    events: u64,
}

impl Restoring {
    /// The next event.
    ///
    /// # Errors
    /// The event does not fit what was before it.
    pub fn replay(&mut self, event: Event) -> Result<(), RestoreError> {
        self.service.replay(event).map_err(|()| RestoreError(self.events))?;
        self.events += 1;
        Ok(())
    }

    /// There are no more: the run begins, or goes on.
    pub fn finish(self) -> StateMachine {
        let mut service = self.service;
        service.rejected_before[1] = service.learner.counts().faults.values().sum();
        if service.release.is_none() && service.learner.model().is_some() {
            service.stage_release();
        }
        service
    }

    /// How many there were so far.
    pub fn events(&self) -> u64 {
        self.events
    }
}

impl StateMachine {
    /// A run before any of its events. The devices, with whether they are revoked, are those that the learner was made for.
    pub fn restore(
        start: StateMachineConfig,
        learner: AnyController,
        devices: impl IntoIterator<Item = (AgentId, Channel, bool)>,
    ) -> Restoring {
        let device = |(agent, channel, revoked)| (agent, Device { channel, revoked, seen: false, link: None });
        let StateMachineConfig { run, dimension, time_limit, now, about } = start;
        let mean_rewards = (!learner.is_private()).then(Vec::new);
        let suspicious = learner.suspicious(SUSPECTS);
        let service = Self {
            run,
            dimension,
            learner,
            devices: devices.into_iter().map(device).collect(),
            release: None,
            uncommitted: Vec::new(),
            storing: false,
            staged: BTreeSet::new(),
            outbox: VecDeque::new(),
            dropped: BTreeMap::new(),
            common: None,
            time_limit,
            deadline: now.saturating_add(time_limit),
            mean_rewards,
            received: Received::default(),
            rejected_before: [0; 2],
            history: VecDeque::new(),
            suspicious,
            about,
        };
        Restoring { service, events: 0 }
    }

    fn replay(&mut self, event: Event) -> Result<(), ()> {
        match event {
            Event::Summary(summary) => {
                self.learner.expects(summary.agent, summary.episode).map_err(drop)?;
                self.receive(&summary);
            }
            Event::Model(release) => {
                if self.release.is_some() {
                    self.close_episode().map_err(drop)?;
                }
                let same = self.learner.model().is_some_and(|model| model.episode == release.episode);
                if !same {
                    return Err(());
                }
                // What was sent once is what is sent again.
                self.release = Some(release);
            }
            Event::End => {
                self.release.as_ref().ok_or(())?;
                self.close_episode().map_err(drop)?;
                if self.learner.model().is_some() {
                    return Err(());
                }
                self.release = None;
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
        self.read(link, frame).inspect_err(|reason| self.count(*reason))
    }

    /// Counts a frame that was dropped on its way.
    pub fn count(&mut self, reason: Dropped) {
        *self.dropped.entry(reason).or_default() += 1;
    }

    /// From now on a device's frames are dropped, and it is sent nothing. It still counts as one of N.
    pub fn revoke(&mut self, agent: u32) {
        if let Some(device) = self.devices.get_mut(&AgentId(agent)) {
            (device.revoked, device.link) = (true, None);
        }
    }

    fn read(&mut self, link: Link, frame: &mut [u8]) -> Result<(), Dropped> {
        let (run, agent) = claimed_address(frame).ok_or(Dropped::Length)?;
        let agent = AgentId(agent);
        let device = self.devices.get_mut(&agent).filter(|_| run == self.run).ok_or(Dropped::Unknown)?;
        let message = device.channel.decode(frame).map_err(|error| match error {
            DecodeError::Version(_) => Dropped::Version,
            DecodeError::Address => Dropped::Unknown,
            DecodeError::Tag => Dropped::Tag,
            DecodeError::Type(_) => Dropped::Type,
            _ => Dropped::Length,
        })?;
        if device.revoked {
            return Err(Dropped::Revoked);
        }
        (device.seen, device.link) = (true, Some(link));
        match message {
            Message::Hello { .. } => self.send_model(agent),
            Message::Heartbeat { .. } => {}
            Message::Summary(summary) => self.take(agent, &summary),
            _ => return Err(Dropped::Type),
        }
        Ok(())
    }

    fn take(&mut self, agent: AgentId, summary: &wire::SummaryMessage<'_>) {
        let wire::SummaryMessage { episode, steps, reward_sum, gram, feature_sum } = *summary;
        if feature_sum.len() != self.dimension {
            self.received.refused += 1;
            return self.send(agent, &Message::Nack { episode, reason: NackReason::WrongDimension });
        }
        match self.learner.expects(agent, episode) {
            Ok(()) if self.staged.insert((agent, episode)) => {
                let (gram, feature_sum) = (gram.iter().collect(), feature_sum.iter().collect());
                self.uncommitted.push(Event::Summary(SummaryEvent {
                    agent,
                    episode,
                    steps,
                    reward_sum,
                    gram,
                    feature_sum,
                }));
            }
            // It is about to be stored, and answered then.
            Ok(()) => {}
            // The first one counts, and it is stored.
            Err(Fault::Duplicate) => {
                self.received.duplicate += 1;
                self.send(agent, &Message::Ack { episode });
            }
            Err(_) => {
                self.received.refused += 1;
                self.send(agent, &Message::Nack { episode, reason: NackReason::WrongEpisode });
            }
        }
    }

    /// Tells the time. Closes the episode when it is due: at its deadline, or as soon as all have reported; with
    /// privacy at its deadline only, since when a model comes would tell who has sent.
    ///
    /// # Errors
    /// The rule's; the episode goes on.
    pub fn tick(&mut self, now: u64) -> Result<(), AggregateError> {
        if self.release.is_none() || self.storing || !self.uncommitted.is_empty() {
            return Ok(());
        }
        let complete = !self.learner.is_private() && self.learner.missing() == 0;
        if now >= self.deadline || complete {
            self.close_episode()?;
            self.deadline = now.saturating_add(self.time_limit);
            self.report();
            self.stage_release();
        }
        Ok(())
    }

    /// Lets a stored summary count.
    fn receive(&mut self, summary: &SummaryEvent) {
        if !self.learner.receive(summary) {
            return;
        }
        let late = self.release.as_ref().is_some_and(|release| release.episode > summary.episode);
        self.received.accepted += 1;
        self.received.late += u64::from(late);
        let mean_reward = f64::from(summary.reward_sum) / f64::from(summary.steps);
        if let Some(mean_rewards) = &mut self.mean_rewards
            && !late
            && mean_reward.is_finite()
        {
            mean_rewards.push(mean_reward);
        }
    }

    /// The learner's episode ends, and how it went is remembered.
    fn close_episode(&mut self) -> Result<(), AggregateError> {
        let Some(ClosedEpisode { episode, missing }) = self.learner.close_episode()? else { return Ok(()) };
        self.suspicious = self.learner.suspicious(SUSPECTS);
        let said = self.mean_rewards.as_mut().map(mem::take).filter(|said| !said.is_empty());
        let beta = self.release.as_ref().map_or(0.0, |release| release.beta);
        self.history.push_back(Quality { episode, beta, missing, mean_reward: said.map(lower_median) });
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        Ok(())
    }

    /// Tells the log of the episode that was closed; of what strangers sent meanwhile no more than a line.
    fn report(&mut self) {
        let Some(Quality { episode, beta, missing, mean_reward }) = self.history.back() else { return };
        let (passes, gap) = self.aggregation();
        let (repaired, late) = (self.learner.counts().repaired, self.received.late);
        tracing::info!(episode, missing, beta, mean_reward, passes, gap, repaired, late, "episode closed");
        let faults = &self.learner.counts().faults;
        let rejected = [self.dropped.values().sum(), faults.values().sum()];
        if rejected != self.rejected_before {
            let [frames, summaries] = std::array::from_fn(|i| rejected[i] - self.rejected_before[i]);
            let since_start = format!("{:?}, {faults:?}", self.dropped);
            tracing::warn!(episode, frames, summaries, since_start, "frames dropped, or summaries counted as zero");
            self.rejected_before = rejected;
        }
    }

    /// Passes of the last two aggregations together, and the larger certified gap.
    fn aggregation(&self) -> (u32, f64) {
        let Estimate { gram, feature_sum, .. } = self.learner.estimate();
        (gram.passes + feature_sum.passes, gram.certified_gap.max(feature_sum.certified_gap))
    }

    /// The learner's model becomes the one to be stored and sent; after the last one it is stored that there is none.
    fn stage_release(&mut self) {
        match self.learner.model().map(|model| ModelEvent::of(&model)) {
            Some(release) => self.uncommitted.push(Event::Model(release)),
            None => self.uncommitted.push(Event::End),
        }
    }

    /// What must be stored before anything else comes of it, if there is anything. What happens from now on is in the next
    /// batch, which is there once this one is [`committed`](Self::committed).
    pub fn take_batch(&mut self) -> Option<Batch> {
        if self.storing || self.uncommitted.is_empty() {
            return None;
        }
        self.storing = true;
        Some(Batch(mem::take(&mut self.uncommitted)))
    }

    /// A batch is stored: its summaries count and are acknowledged, its release is sent to all.
    pub fn committed(&mut self, batch: Batch) {
        self.storing = false;
        for event in batch.0 {
            match event {
                Event::Summary(summary) => {
                    let SummaryEvent { agent, episode, .. } = summary;
                    self.staged.remove(&(agent, episode));
                    self.receive(&summary);
                    self.send(agent, &Message::Ack { episode });
                }
                Event::Model(release) => self.broadcast(release),
                Event::End => self.release = None,
            }
        }
    }

    /// A release takes effect, and is sent to all.
    fn broadcast(&mut self, release: ModelEvent) {
        self.release = Some(release);
        let agents: Vec<AgentId> = self.devices.keys().copied().collect();
        agents.into_iter().for_each(|agent| self.send_model(agent));
    }

    /// The next frame to send, if any.
    pub fn poll(&mut self) -> Option<Outgoing> {
        self.outbox.pop_front()
    }

    /// A link is there that reaches every device, whether it has spoken or not: those without a link of their own get
    /// their models over it, the running one at once.
    pub fn reaches_all(&mut self, link: Link) {
        self.common = Some(link);
        let without = self.devices.iter().filter(|(_, device)| device.link.is_none());
        let agents: Vec<AgentId> = without.map(|(agent, _)| *agent).collect();
        agents.into_iter().for_each(|agent| self.send_model(agent));
    }

    /// A link is gone.
    pub fn disconnected(&mut self, link: Link) {
        self.common = self.common.filter(|common| *common != link);
        for device in self.devices.values_mut().filter(|device| device.link == Some(link)) {
            device.link = None;
        }
    }

    /// A device is gone from a link that others share.
    pub fn left(&mut self, link: Link, agent: u32) {
        if let Some(device) = self.devices.get_mut(&AgentId(agent)).filter(|device| device.link == Some(link)) {
            device.link = None;
        }
    }

    fn send_model(&mut self, agent: AgentId) {
        if let Some(release) = self.release.clone() {
            self.send(agent, &Message::Model(release.model()));
        }
    }

    fn send(&mut self, agent: AgentId, message: &Message<'_>) {
        let Some(Device { channel, link, revoked: false, .. }) = self.devices.get_mut(&agent) else { return };
        let Some(link) = link.or(self.common) else { return };
        let mut frame = vec![0; max_sealed_frame_len(self.dimension)];
        if let Some(length) = channel.encode(message, &mut frame) {
            frame.truncate(length);
            self.outbox.push_back(Outgoing { link, frame });
        }
    }

    /// Whether all episodes are over.
    pub fn is_over(&self) -> bool {
        self.release.is_none()
    }

    /// The learner, to look at.
    pub fn learner(&self) -> &AnyController {
        &self.learner
    }

    /// What an operator sees.
    pub fn status(&self, now: u64) -> Status {
        let (passes, certified_gap) = self.aggregation();
        let devices = |is: fn(&Device) -> bool| self.devices.values().filter(|device| is(device)).count();
        let releases = self.release.as_ref().map_or(self.about.episodes, |release| release.episode);
        Status {
            run: self.run,
            config_hash: format!("{:016x}", self.about.config_hash),
            episode: self.release.as_ref().map(|release| release.episode),
            episodes: self.about.episodes,
            seconds_left: self.deadline.saturating_sub(now) / 1000,
            seconds_per_episode: self.time_limit / 1000,
            enrolled: self.devices.len(),
            revoked: devices(|device| device.revoked),
            seen: devices(|device| device.seen),
            connected: devices(|device| device.link.is_some()),
            missing: self.learner.missing(),
            missing_in_last_episode: self.history.back().map(|last| last.missing),
            mean_reward: self.history.back().and_then(|last| last.mean_reward),
            beta: self.release.as_ref().map(|release| release.beta),
            lambda: self.learner.estimate().lambda,
            certified_gap,
            passes,
            repaired: self.learner.counts().repaired,
            received: self.received,
            faults: self.learner.counts().faults.clone(),
            dropped: self.dropped.clone(),
            private: self.learner.is_private(),
            privacy: self.about.privacy.map(|(budget, mechanism)| Promise {
                mu: budget.mu(),
                nu: budget.nu(),
                rho: budget.rho(),
                mechanism: mechanism.to_string(),
                releases,
            }),
            suspicious: self.suspicious.clone(),
            history: self.history.iter().copied().collect(),
        }
    }
}
