//! Sans-IO core of the service: frames and time in, events to store and frames to send out.

pub(super) mod device_history;
mod device_page;
mod restore;
mod statistics;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::ops::Range;

use fedbandit_core::wire::{
    self, Channel, DecodeError, Fate, Identity, Message, max_frame_len, unverified_address, unverified_run,
};
use serde::Serialize;

use device_history::DeviceHistory;
pub use restore::{RestoreError, Restoring};
use statistics::Statistics;

use super::any_controller::AnyController;
use super::continuation::Continuation;
use super::event::{Event, ModelEvent, SummaryEvent};
use super::snapshot::{Snapshot, SnapshotPolicy};
use crate::aggregate::AggregateError;
use crate::algorithm::{AgentId, EnrollError, Fault};
use crate::privacy::calibration::{Budget, Mechanism};
use crate::robust::Assumptions;

/// Connection, identified by a number that is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link(pub u64);

/// Frame to send.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// Connection to send on.
    pub link: Link,
    /// Bytes of the frame.
    pub frame: Vec<u8>,
}

/// Reason for which a frame was dropped. Dropped frames are counted and not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Dropped {
    /// The frame is too short or too long.
    Length,
    /// The protocol version differs.
    Version,
    /// The frame names another fleet, a device that is not enrolled, or a device other than that of its topic.
    Unknown,
    /// The device is revoked.
    Revoked,
    /// The tag is wrong.
    Tag,
    /// Devices do not send messages of this type.
    Type,
    /// The device exceeds its rate; only transports that cannot slow down a single device drop for this reason.
    TooMany,
}

impl Dropped {
    /// All reasons.
    pub const ALL: [Self; 7] =
        [Self::Length, Self::Version, Self::Unknown, Self::Revoked, Self::Tag, Self::Type, Self::TooMany];

    /// Returns true if a frame is dropped for this reason only after its tag was verified.
    pub const fn is_verified(self) -> bool {
        matches!(self, Self::Revoked | Self::Type)
    }
}

/// Enrolled device.
struct Device {
    channel: Channel,
    revoked: bool,
    link: Option<Link>,
    history: DeviceHistory,
    /// Time of the last valid frame since the service started.
    last_seen: Option<u64>,
    /// Transport of the last valid frame.
    transport: Option<&'static str>,
    /// Boot counter in the last hello.
    boot: Option<u32>,
    /// Dropped frames with the address of this device.
    dropped: BTreeMap<Dropped, u64>,
}

impl Device {
    fn new(channel: Channel, revoked: bool) -> Self {
        let (history, dropped) = (DeviceHistory::default(), BTreeMap::new());
        Self { channel, revoked, link: None, history, last_seen: None, transport: None, boot: None, dropped }
    }

    /// Calls a function with the channel in a run. The channel itself stays in the service's run.
    fn in_run<T>(&mut self, run: u32, call: impl FnOnce(&mut Channel) -> T) -> T {
        let own = self.channel.run();
        if run == own {
            return call(&mut self.channel);
        }
        self.channel.enter_run(run);
        let result = call(&mut self.channel);
        self.channel.enter_run(own);
        result
    }
}

/// Returns the fate that a device is told. It depends on the device's own summary, the terms of the run and the running
/// episode alone.
fn fate(result: Result<(), Fault>) -> Fate {
    match result {
        Ok(()) => Fate::Counts,
        Err(Fault::WrongDimension) => Fate::WrongDimension,
        Err(Fault::NonFinite) => Fate::NotFinite,
        Err(Fault::Norm) => Fate::Norm,
        Err(Fault::NotPositiveSemidefinite | Fault::Asymmetric) => Fate::NotPositiveSemidefinite,
        Err(Fault::Inconsistent) => Fate::Inconsistent,
        Err(Fault::Dropped) => Fate::Excluded,
        Err(Fault::WrongEpisode | Fault::UnknownAgent | Fault::Duplicate) => Fate::WrongEpisode,
    }
}

/// Wait in milliseconds for devices that ask after the end of the run.
const WAIT_AFTER_END: u32 = 60 * 60 * 1000;

/// Controller of real devices, without clock, network or storage.
///
/// # Contract
///
/// The caller passes frames to [`handle_frame`](Self::handle_frame) and time to [`tick`](Self::tick). After either, it
///
/// 1. takes the new events with [`take_batch`](Self::take_batch),
/// 2. stores them durably,
/// 3. confirms that with [`mark_committed`](Self::mark_committed), and
/// 4. sends every frame that [`poll`](Self::poll) returns, and
/// 5. stores the snapshot that [`take_snapshot`](Self::take_snapshot) returns, if one is due.
///
/// No frame depends on an event that is not stored: a summary is durable before it is acknowledged, and a model before it
/// is sent. If storing fails, the caller stops. After a restart, [`Restoring`] rebuilds the state from the stored events.
///
/// # Path of a summary
///
/// | function | effect |
/// |---|---|
/// | `handle_frame` | counts the frame if it is dropped |
/// | `authenticate` | finds the sender, verifies the tag, attaches the sender to the link |
/// | `handle_message` | answers a hello with the model or a wait, passes a summary on |
/// | `redirect` | answers a frame of another run, instead of `handle_message` |
/// | `stage_summary` | answers a repeated or unexpected summary; any other becomes an uncommitted [`Event`] |
/// | `take_batch`, `mark_committed` | the caller stores the event in between |
/// | `apply_summary` | passes the summary to [`Controller::receive`](crate::Controller::receive), which checks and adds it |
/// | `send` | queues the acknowledgement |
pub struct StateMachine {
    fleet: u32,
    run: u32,
    /// Boot counter of the service.
    boot: u32,
    dimension: usize,
    info: RunInfo,
    controller: AnyController,
    devices: BTreeMap<AgentId, Device>,
    /// Model of the running episode; none before the first is stored and after the run has finished.
    model: Option<ModelEvent>,
    /// Events since the last batch was taken.
    uncommitted: Vec<Event>,
    /// True while a batch is being written.
    writing: bool,
    /// Agent and episode of summaries that are not stored yet.
    staged: BTreeSet<(AgentId, u32)>,
    outbox: VecDeque<Outgoing>,
    /// Transports of the open links.
    links: BTreeMap<Link, &'static str>,
    /// Link to a broker, which reaches the devices that have no link of their own.
    broker: Option<Link>,
    /// Longest duration of an episode in milliseconds.
    time_limit: u64,
    /// Time at which the running episode closes.
    deadline: u64,
    /// Time at which `now` was 0, in seconds since the Unix epoch.
    unix_seconds: u64,
    snapshots: SnapshotPolicy,
    /// Time of the last frame or tick.
    now: u64,
    statistics: Statistics,
    progress: Progress,
}

/// Position in the log, and what a snapshot depends on.
#[derive(Default)]
struct Progress {
    /// Number of stored events.
    events: u64,
    /// Numbers of the models whose summaries are stored, each with its episode.
    models: VecDeque<(u32, u64)>,
    /// Bytes of events since the last snapshot.
    unsaved: u64,
    /// Length and time of the last snapshot; the time is in seconds since the Unix epoch.
    saved: Option<(u64, u64)>,
    /// True directly after a model or the end of the run: the only state that is saved.
    at_model: bool,
}

impl Progress {
    /// Counts a stored event.
    fn count(&mut self, event: &Event) {
        if let Event::Model(model) = event {
            self.models.push_back((model.episode, self.events));
        }
        self.at_model = matches!(event, Event::Model(_) | Event::End);
        self.unsaved += event.encoded_len() as u64;
        self.events += 1;
    }
}

/// Events to store atomically, before they are passed to [`StateMachine::mark_committed`].
#[derive(Debug)]
#[must_use = "the state machine waits until its batch is committed"]
pub struct Batch(Vec<Event>);

impl Batch {
    /// Returns the events in order; there is at least one.
    pub fn events(&self) -> &[Event] {
        &self.0
    }

    /// Encodes the events for the store.
    pub fn to_bytes(&self) -> Vec<Vec<u8>> {
        self.0.iter().map(Event::to_bytes).collect()
    }
}

/// Facts about a run that its status reports.
#[derive(Clone, Debug, PartialEq)]
pub struct RunInfo {
    /// Hash of the run's terms.
    pub config_hash: u64,
    /// K.
    pub episodes: u32,
    /// Budget and mechanism of a private run.
    pub privacy: Option<(Budget, Mechanism)>,
    /// Assumptions under which directions are identifiable.
    pub assumptions: Assumptions,
    /// False if the rule takes a missing device for a corrupted one.
    pub tolerates_absence: bool,
    /// True if devices may be enrolled while the run goes on: the rule tolerates absence, and privacy has not fixed the units.
    pub accepts_devices: bool,
    /// The earlier runs that this one continues.
    pub continues: Option<Continuation>,
}

/// Settings of a state machine.
#[derive(Clone, Debug, PartialEq)]
pub struct StateMachineConfig {
    /// Number of the fleet.
    pub fleet: u32,
    /// Number of the run.
    pub run: u32,
    /// Boot counter of the service.
    pub boot: u32,
    /// D.
    pub dimension: usize,
    /// Longest duration of an episode in milliseconds.
    pub time_limit: u64,
    /// Current time in milliseconds.
    pub now: u64,
    /// Time at which `now` was 0, in seconds since the Unix epoch.
    pub unix_seconds: u64,
    /// When snapshots are taken.
    pub snapshots: SnapshotPolicy,
    /// Facts for the status.
    pub info: RunInfo,
}

impl StateMachine {
    /// Handles a frame that arrived on a link. A sealed payload is decrypted in place.
    ///
    /// # Errors
    /// The frame was dropped and counted. A link with many such frames in a row should be closed.
    pub fn handle_frame(&mut self, link: Link, frame: &mut [u8], now: u64) -> Result<(), Dropped> {
        self.now = now;
        let address = unverified_address(frame).filter(|(fleet, _)| *fleet == self.fleet);
        let result = self.authenticate(link, frame).and_then(|(agent, run, message)| match run == self.run {
            true => self.handle_message(agent, &message),
            false => self.redirect(agent, run, &message),
        });
        result.inspect_err(|reason| self.count_dropped(address.map(|(_, agent)| agent), *reason))
    }

    /// Counts a frame that was dropped, here or by a transport, also for the device that it is addressed from.
    pub fn count_dropped(&mut self, agent: Option<u32>, reason: Dropped) {
        self.statistics.count_dropped(reason);
        if let Some(device) = agent.and_then(|agent| self.devices.get_mut(&AgentId(agent))) {
            *device.dropped.entry(reason).or_default() += 1;
        }
    }

    /// Replaces a device's identity after its key was issued again: frames under the old key are dropped.
    pub fn rekey(&mut self, identity: Identity) {
        let agent = identity.agent();
        if let Some(device) = self.devices.get_mut(&AgentId(agent)) {
            device.link = None;
            device.channel.set_identity(identity);
            tracing::info!(agent, "device has a new key");
        }
    }

    /// Revokes a device or reinstates it. The frames of a revoked device are dropped, and nothing is sent to it. It still
    /// counts as one of the N agents.
    pub fn set_revoked(&mut self, agent: u32, revoked: bool) {
        if let Some(device) = self.devices.get_mut(&AgentId(agent)).filter(|device| device.revoked != revoked) {
            (device.revoked, device.link) = (revoked, None);
            tracing::info!(agent, "device {}", if revoked { "revoked" } else { "reinstated" });
        }
    }

    /// Enrolls a device while the run goes on. It begins with empty sums, once the event is stored.
    ///
    /// # Errors
    /// The run's devices are fixed ([`RunInfo::accepts_devices`]).
    pub fn enroll(&mut self, identity: Identity, revoked: bool) -> Result<(), EnrollError> {
        let agent = AgentId(identity.agent());
        if !self.info.accepts_devices {
            return Err(EnrollError::Fixed);
        }
        if self.devices.contains_key(&agent) {
            return Err(EnrollError::Enrolled(agent));
        }
        let channel = Channel::controller(identity, self.boot, self.run);
        self.devices.insert(agent, Device::new(channel, revoked));
        tracing::info!(agent = agent.0, "device enrolled");
        // After the end it waits for the next run.
        if self.controller.model().is_some() {
            self.uncommitted.push(Event::Enrollment(agent));
        }
        Ok(())
    }

    fn apply_enrollment(&mut self, agent: AgentId) -> Result<(), EnrollError> {
        self.controller.enroll(agent)?;
        let enrolled_after = self.closed_episodes();
        if let Some(device) = self.devices.get_mut(&agent) {
            device.history.enrolled_after = enrolled_after;
        }
        Ok(())
    }

    /// Returns the verified sender, run and message of a frame, and attaches the sender to the link.
    fn authenticate<'a>(&mut self, link: Link, frame: &'a mut [u8]) -> Result<(AgentId, u32, Message<'a>), Dropped> {
        let (fleet, agent) = unverified_address(frame).ok_or(Dropped::Length)?;
        let run = unverified_run(frame).ok_or(Dropped::Length)?;
        let agent = AgentId(agent);
        let device = self.devices.get_mut(&agent).filter(|_| fleet == self.fleet).ok_or(Dropped::Unknown)?;
        let message = device.in_run(run, |channel| channel.decode(frame)).map_err(|error| match error {
            DecodeError::Version(_) => Dropped::Version,
            DecodeError::Address => Dropped::Unknown,
            DecodeError::Tag => Dropped::Tag,
            DecodeError::Type(_) => Dropped::Type,
            _ => Dropped::Length,
        })?;
        if device.revoked {
            return Err(Dropped::Revoked);
        }
        (device.last_seen, device.link) = (Some(self.now), Some(link));
        device.transport = self.links.get(&link).copied();
        Ok((agent, run, message))
    }

    fn handle_message(&mut self, agent: AgentId, message: &Message<'_>) -> Result<(), Dropped> {
        match message {
            Message::Hello { model, boot, challenge } => {
                self.note_boot(agent, *boot);
                self.answer_hello(agent, *model, *challenge);
            }
            Message::Heartbeat { .. } => {}
            Message::Summary(summary) => self.stage_summary(agent, summary),
            _ => return Err(Dropped::Type),
        }
        Ok(())
    }

    fn note_boot(&mut self, agent: AgentId, boot: u32) {
        if let Some(device) = self.devices.get_mut(&agent) {
            device.boot = Some(boot);
        }
    }

    /// Sends the model if it is newer than the device's. Before the first model is stored, the device asks again.
    ///
    /// A device whose model is newer than the controller's got it from somebody else, or before this service was restored
    /// from a backup. It starts the run anew.
    fn answer_hello(&mut self, agent: AgentId, newest: u32, challenge: u32) {
        match &self.model {
            Some(model) if model.episode > newest => self.send_model(agent),
            Some(model) if model.episode < newest => {
                self.send(agent, &Message::NextRun { challenge, run: self.run });
            }
            None if !self.is_finished() => {}
            _ => self.send(agent, &Message::Wait { challenge, wait: self.wait() }),
        }
    }

    /// Answers a frame of another run: the device moves to this one at its next hello.
    fn redirect(&mut self, agent: AgentId, run: u32, message: &Message<'_>) -> Result<(), Dropped> {
        match *message {
            Message::Hello { boot, challenge, .. } => {
                self.note_boot(agent, boot);
                self.send_in(run, agent, &Message::NextRun { challenge, run: self.run });
            }
            Message::Heartbeat { .. } => {}
            Message::Summary(wire::SummaryMessage { episode, .. }) => {
                self.statistics.received.refused += 1;
                self.send_in(run, agent, &Message::Ack { episode, fate: Fate::WrongRun, wait: 0 });
            }
            _ => return Err(Dropped::Type),
        }
        Ok(())
    }

    /// Returns the time until the deadline in milliseconds.
    fn wait(&self) -> u32 {
        match self.is_finished() {
            true => WAIT_AFTER_END,
            false => self.deadline.saturating_sub(self.now).try_into().unwrap_or(u32::MAX),
        }
    }

    fn acknowledge(&mut self, agent: AgentId, episode: u32, fate: Fate) {
        self.send(agent, &Message::Ack { episode, fate, wait: self.wait() });
    }

    fn stage_summary(&mut self, agent: AgentId, summary: &wire::SummaryMessage<'_>) {
        let wire::SummaryMessage { episode, steps, reward_sum, gram, feature_sum } = *summary;
        if feature_sum.len() != self.dimension {
            self.statistics.received.refused += 1;
            return self.acknowledge(agent, episode, Fate::WrongDimension);
        }
        match self.controller.expects(agent, episode) {
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
            // Already staged: acknowledged once it is stored.
            Ok(()) => {}
            // The first one is stored, and it is the one that counts.
            Err(Fault::Duplicate) => {
                self.statistics.received.duplicate += 1;
                let fate = fate(self.controller.judge(agent, episode, gram.iter(), feature_sum.iter()));
                self.acknowledge(agent, episode, fate);
            }
            Err(_) => {
                self.statistics.received.refused += 1;
                self.acknowledge(agent, episode, Fate::WrongEpisode);
            }
        }
    }

    /// Advances the time, and closes the running episode if it is due.
    ///
    /// An episode is due at its deadline, or as soon as all agents have reported. With privacy only the deadline counts:
    /// the time of a model would reveal who has reported.
    ///
    /// # Errors
    /// The rule failed; the episode stays open.
    pub fn tick(&mut self, now: u64) -> Result<(), AggregateError> {
        self.now = now;
        if self.model.is_none() || self.writing || !self.uncommitted.is_empty() {
            return Ok(());
        }
        let complete = !self.controller.is_private() && self.controller.missing() == 0;
        if now >= self.deadline || complete {
            self.close_episode()?;
            self.deadline = now.saturating_add(self.time_limit);
            self.statistics.log_closed_episode(&self.controller);
            self.stage_model();
        }
        Ok(())
    }

    /// Passes a stored summary to the controller.
    fn apply_summary(&mut self, summary: &SummaryEvent) -> Fate {
        let result = self.controller.receive(summary);
        if result.is_ok() {
            let is_late = self.model.as_ref().is_some_and(|model| model.episode > summary.episode);
            self.statistics.count_accepted(summary, is_late);
        }
        let is_private = self.controller.is_private();
        if let Some(Device { history, .. }) = self.devices.get_mut(&summary.agent) {
            history.last_episode = history.last_episode.max(summary.episode);
            if let Some(fault) = result.err().filter(|_| !is_private) {
                *history.zeroed.entry(fault).or_default() += 1;
            }
        }
        fate(result)
    }

    fn close_episode(&mut self) -> Result<(), AggregateError> {
        if let Some(closed) = self.controller.close_episode()? {
            let beta = self.model.as_ref().map_or(0.0, |model| model.beta);
            self.statistics.record_episode(closed, beta, &self.controller);
        }
        Ok(())
    }

    /// Stages the controller's next model, or the end of the run after the last one.
    fn stage_model(&mut self) {
        match self.controller.model().map(|model| ModelEvent::of(&model)) {
            Some(model) => self.uncommitted.push(Event::Model(model)),
            None => self.uncommitted.push(Event::End),
        }
    }

    /// Returns the events that must be stored next, if any. Later events form the next batch, which is available once this
    /// one is [committed](Self::mark_committed).
    pub fn take_batch(&mut self) -> Option<Batch> {
        if self.writing || self.uncommitted.is_empty() {
            return None;
        }
        self.writing = true;
        Some(Batch(mem::take(&mut self.uncommitted)))
    }

    /// Applies a stored batch: its summaries count and are acknowledged, its model is sent to all devices.
    pub fn mark_committed(&mut self, batch: Batch) {
        self.writing = false;
        for event in batch.0 {
            self.progress.count(&event);
            match event {
                Event::Summary(summary) => {
                    let SummaryEvent { agent, episode, .. } = summary;
                    self.staged.remove(&(agent, episode));
                    let fate = self.apply_summary(&summary);
                    self.acknowledge(agent, episode, fate);
                }
                Event::Model(model) => self.broadcast(model),
                Event::End => self.model = None,
                // Staged once per agent, and only if the run accepts devices.
                Event::Enrollment(agent) => drop(self.apply_enrollment(agent)),
            }
        }
    }

    /// Returns a snapshot if one is due. Everything that is stored is part of it.
    ///
    /// A snapshot is due directly after a model, once enough events have been stored since the last one.
    pub fn take_snapshot(&mut self) -> Option<Snapshot> {
        let Progress { at_model, unsaved, saved, .. } = self.progress;
        let SnapshotPolicy { least_bytes, ratio, .. } = self.snapshots;
        let (length, saved_at) = saved.unwrap_or((0, self.unix_seconds));
        let due = least_bytes.max(length.saturating_mul(ratio));
        let is_old = self.unix_time(self.now) >= saved_at.saturating_add(self.snapshots.most_seconds);
        if !at_model || unsaved == 0 || (unsaved < due && !is_old) {
            return None;
        }
        let removable = self.forget_old_summaries();
        let bytes = self.save().to_bytes();
        self.progress.saved = Some((bytes.len() as u64, self.unix_time(self.now)));
        self.progress.unsaved = 0;
        Some(Snapshot { bytes, removable })
    }

    /// Returns the ranges of the summaries that are no longer retained.
    fn forget_old_summaries(&mut self) -> Vec<Range<u64>> {
        let Some(retain) = self.snapshots.retain else { return Vec::new() };
        let models = &mut self.progress.models;
        let newest = models.back().map_or(0, |(episode, _)| *episode);
        let mut removable = Vec::new();
        while let [Some((episode, from)), Some((_, to))] = [models.front().copied(), models.get(1).copied()]
            && newest - episode > retain
        {
            models.pop_front();
            removable.push(from + 1..to);
        }
        removable
    }

    /// Returns the seconds since the last snapshot; none before the first.
    fn snapshot_age(&self, now: u64) -> Option<u64> {
        let (_, taken_at) = self.progress.saved?;
        Some(self.unix_time(now).saturating_sub(taken_at))
    }

    /// Returns a time in seconds since the Unix epoch.
    fn unix_time(&self, now: u64) -> u64 {
        self.unix_seconds.saturating_add(now / 1000)
    }

    /// Puts a model into force and sends it to all devices.
    fn broadcast(&mut self, model: ModelEvent) {
        self.model = Some(model);
        let agents: Vec<AgentId> = self.devices.keys().copied().collect();
        agents.into_iter().for_each(|agent| self.send_model(agent));
    }

    /// Returns the next frame to send, if any.
    pub fn poll(&mut self) -> Option<Outgoing> {
        self.outbox.pop_front()
    }

    /// Adds an open link, of which the device table shows the transport.
    pub fn add_link(&mut self, link: Link, transport: &'static str) {
        self.links.insert(link, transport);
    }

    /// Adds the link to a broker, which reaches every device. Devices without a link of their own get their models over
    /// it, the current one at once.
    pub fn add_broker(&mut self, link: Link) {
        self.broker = Some(link);
        let unlinked = self.devices.iter().filter(|(_, device)| device.link.is_none());
        let agents: Vec<AgentId> = unlinked.map(|(agent, _)| *agent).collect();
        agents.into_iter().for_each(|agent| self.send_model(agent));
    }

    /// Removes a closed link.
    pub fn remove_link(&mut self, link: Link) {
        self.links.remove(&link);
        self.broker = self.broker.filter(|broker| *broker != link);
        for device in self.devices.values_mut().filter(|device| device.link == Some(link)) {
            device.link = None;
        }
    }

    /// Detaches a device from a link that it shares with others.
    pub fn detach(&mut self, link: Link, agent: u32) {
        if let Some(device) = self.devices.get_mut(&AgentId(agent)).filter(|device| device.link == Some(link)) {
            device.link = None;
        }
    }

    fn send_model(&mut self, agent: AgentId) {
        if let Some(model) = self.model.clone() {
            self.send(agent, &Message::Model(model.model()));
        }
    }

    fn send(&mut self, agent: AgentId, message: &Message<'_>) {
        self.send_in(self.run, agent, message);
    }

    /// Sends a message in a run, which may be another than this one.
    fn send_in(&mut self, run: u32, agent: AgentId, message: &Message<'_>) {
        let Some(device) = self.devices.get_mut(&agent).filter(|device| !device.revoked) else { return };
        let Some(link) = device.link.or(self.broker) else { return };
        let mut frame = vec![0; max_frame_len(self.dimension)];
        if let Ok(length) = device.in_run(run, |channel| channel.encode(message, &mut frame)) {
            frame.truncate(length);
            self.outbox.push_back(Outgoing { link, frame });
        }
    }

    /// Returns true once all episodes are closed and the end of the run is stored.
    pub fn is_finished(&self) -> bool {
        self.model.is_none() && self.controller.model().is_none()
    }

    /// Returns the numbers of the devices, in order.
    pub fn agents(&self) -> impl Iterator<Item = u32> {
        self.devices.keys().map(|agent| agent.0)
    }

    /// Returns the controller.
    pub fn controller(&self) -> &AnyController {
        &self.controller
    }
}
