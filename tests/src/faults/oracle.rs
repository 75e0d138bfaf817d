//! Reference model: a plain list of stored events, against which the service is checked.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::SQRT_2;
use std::mem;
use std::ops::RangeInclusive;

use fedbandit::algorithm::{Admission, AgentId, Fault, PriorUse};
use fedbandit::privacy::Plan;
use fedbandit::service::event::{Event, ModelEvent, SummaryEvent};
use fedbandit::service::store::file::File;
use fedbandit::service::store::{Memory, Store, StoreError};
use fedbandit::service::{AnyController, Outgoing, Snapshot, StateMachine};
use fedbandit_core::packed_len;
use fedbandit_core::wire::{Channel, Fate, HEADER_LEN, Identity, Message, unverified_address, unverified_run};

use super::D;

/// Description of a violated promise.
pub type Violation = String;

/// Values of a summary as bits: steps, sum of rewards, U packed, u.
pub type Values = Vec<u32>;

/// Agent, run, episode and values of a summary that a device made.
pub type Made = (u32, u32, u32, Values);

/// Length of the nonce of a sealed frame.
const NONCE_LEN: usize = 12;

/// Wait in milliseconds that devices are told after the end of a run.
pub const WAIT_AFTER_END: u64 = 3_600_000;

/// Reference model of a fleet and of its current run. It knows all keys, all summaries that devices made, all frames that the
/// service received and all stored events.
pub struct Oracle {
    devices: BTreeMap<u32, Enrolled>,
    /// All summaries made with the key of their agent.
    made: BTreeSet<Made>,
    /// Sealed frames of devices, by agent, run and nonce.
    device_nonces: BTreeMap<(u32, u32, Vec<u8>), Vec<u8>>,
    /// Agents, runs and nonces of the service's sealed frames. One pair of agent and run has one key, in all services.
    nonces: BTreeSet<(u32, u32, Vec<u8>)>,
    /// Agents, runs and episodes of the summaries that count.
    counting: BTreeSet<(u32, u32, u32)>,
    /// Number of checked frames.
    pub checked: u64,
    /// Number of releases and of summaries in earlier runs.
    earlier: (usize, usize),
    /// Events that the store has committed, in order.
    stored: Vec<Vec<u8>>,
    /// Numbers of committed events that a snapshot has removed.
    removed: BTreeSet<u64>,
    /// Bytes of the committed snapshot.
    snapshot: Option<Vec<u8>>,
    /// Snapshot that could not be stored.
    snapshot_in_flight: Option<Snapshot>,
    /// Number of stored snapshots in all runs.
    pub snapshots: u64,
    /// Events of a commit that failed.
    in_flight: Vec<Vec<u8>>,
    values: BTreeMap<String, Vec<u8>>,
    /// Value that could not be set.
    value_in_flight: Option<(String, Vec<u8>)>,
    /// Committed summaries, by agent and episode.
    summaries: BTreeSet<(u32, u32)>,
    releases: Vec<ModelEvent>,
    /// True once the end of the run is committed.
    is_over: bool,
    /// V_i and v_i by row: sums over the committed summaries, in order.
    sums: Vec<Vec<f64>>,
    /// Sums at the last release.
    released_sums: Vec<Vec<f64>>,
    /// V̂_i and v̂_i as bits, by episode of their release.
    noisy: BTreeMap<u32, Vec<u64>>,
    /// Answers that the service owes.
    owed: Vec<Owed>,
    /// Agents that a new release may still be sent to without a request.
    pushed: BTreeSet<u32>,
    /// Clock of the service.
    pub clock: u64,
    /// Deadline of the running episode, and before it those of episodes that ended at this time.
    deadlines: Vec<u64>,
    terms: RunTerms,
    violation: Option<Violation>,
}

/// Device of the fleet.
struct Enrolled {
    is_revoked: bool,
    /// Decodes the service's frames.
    device: Channel,
    /// Decodes the device's frames.
    controller: Channel,
}

/// Answer to a frame of an agent in a run.
#[derive(Debug, PartialEq)]
struct Owed {
    agent: u32,
    run: u32,
    answer: Answer,
}

#[derive(Debug, PartialEq)]
enum Answer {
    /// The model of an episode.
    Model(u32),
    /// A wait with a challenge.
    Wait(u32),
    /// The number of the run, with a challenge.
    NextRun(u32),
    /// The fate of the summary of an episode.
    Ack(u32, Fate),
}

/// Terms of a run.
pub struct RunTerms {
    /// Number of the run.
    pub run: u32,
    /// Agents by row.
    pub agents: Vec<u32>,
    /// Window W.
    pub window: u32,
    /// Longest duration of an episode in milliseconds.
    pub time_limit: u64,
    /// Number of episodes K.
    pub episodes: u32,
    /// Admission check.
    pub admission: Admission,
    /// Privacy plan of a private run.
    pub plan: Option<Plan>,
    /// Number of closed episodes whose summaries are kept after a snapshot.
    pub retain: Option<u32>,
    /// True if models are those of the paper's rule.
    pub is_papers_rule: bool,
}

impl Oracle {
    /// Creates the model of a fleet and its first run. Devices are given with a flag that is true if they are revoked.
    pub fn new(terms: RunTerms, devices: impl IntoIterator<Item = (Identity, bool)>) -> Self {
        let enrolled = |(identity, is_revoked): (Identity, bool)| {
            let agent = identity.agent();
            let (device, controller) = (Channel::device(identity.clone(), 0), Channel::controller(identity, 0, 0));
            (agent, Enrolled { is_revoked, device, controller })
        };
        let rows = vec![vec![0.0; packed_len(D) + D]; terms.agents.len()];
        Self {
            devices: devices.into_iter().map(enrolled).collect(),
            made: BTreeSet::new(),
            device_nonces: BTreeMap::new(),
            nonces: BTreeSet::new(),
            counting: BTreeSet::new(),
            checked: 0,
            earlier: (0, 0),
            stored: Vec::new(),
            removed: BTreeSet::new(),
            snapshot: None,
            snapshot_in_flight: None,
            snapshots: 0,
            in_flight: Vec::new(),
            values: BTreeMap::new(),
            value_in_flight: None,
            summaries: BTreeSet::new(),
            releases: Vec::new(),
            is_over: false,
            released_sums: rows.clone(),
            sums: rows,
            noisy: BTreeMap::new(),
            owed: Vec::new(),
            pushed: BTreeSet::new(),
            clock: 0,
            deadlines: Vec::new(),
            terms,
            violation: None,
        }
    }

    /// Begins another run of the same devices, with an empty store.
    pub fn next_run(&mut self, terms: RunTerms) {
        let earlier = self.counts();
        let last = mem::replace(self, Self::new(terms, []));
        (self.devices, self.made, self.counting) = (last.devices, last.made, last.counting);
        (self.device_nonces, self.nonces) = (last.device_nonces, last.nonces);
        (self.checked, self.earlier, self.snapshots) = (last.checked, earlier, last.snapshots);
    }

    /// Adds a device that is enrolled during the run.
    pub fn enrolled(&mut self, identity: Identity) {
        let agent = identity.agent();
        let (device, controller) = (Channel::device(identity.clone(), 0), Channel::controller(identity, 0, 0));
        self.devices.insert(agent, Enrolled { is_revoked: false, device, controller });
    }

    /// Records a start of the service: what the previous one owed is lost.
    pub fn started(&mut self) {
        self.owed.clear();
        self.pushed.clear();
        (self.clock, self.deadlines) = (0, vec![self.terms.time_limit]);
    }

    /// Records a summary that was made with the key of its agent.
    pub fn made(&mut self, made: Made) {
        self.made.insert(made);
    }

    /// Checks a frame of an honest device: a nonce is used again only for the same bytes.
    pub fn sent_by_device(&mut self, agent: u32, frame: &[u8]) -> Result<(), Violation> {
        let Some((run, nonce)) = sealed_nonce(frame) else { return Ok(()) };
        match self.device_nonces.insert((agent, run, nonce), frame.to_vec()) {
            Some(earlier) if earlier != frame => Err(format!("device {agent} uses a nonce twice in run {run}")),
            _ => Ok(()),
        }
    }

    /// Records a frame that the service is about to handle, and the answer that it owes.
    pub fn received(&mut self, frame: &[u8]) {
        let Some(((_, agent), run)) = unverified_address(frame).zip(unverified_run(frame)) else { return };
        let Some(device) = self.devices.get_mut(&agent).filter(|device| !device.is_revoked) else { return };
        device.controller.enter_run(run);
        let mut frame = frame.to_vec();
        let Ok(message) = device.controller.decode(&mut frame) else { return };
        let newest = self.releases.len() as u32;
        let answer = match message {
            Message::Hello { challenge, .. } if run != self.terms.run => Answer::NextRun(challenge),
            Message::Hello { challenge, .. } if self.is_over => Answer::Wait(challenge),
            // Before its first release, the service does not answer.
            Message::Hello { .. } if newest == 0 => return,
            Message::Hello { model, challenge, .. } => match model.cmp(&newest) {
                Ordering::Less => Answer::Model(newest),
                Ordering::Equal => Answer::Wait(challenge),
                // Only a hostile device claims a model that does not exist yet.
                Ordering::Greater => Answer::NextRun(challenge),
            },
            Message::Summary(summary) if run != self.terms.run => Answer::Ack(summary.episode, Fate::WrongRun),
            Message::Summary(summary) => {
                let episode = summary.episode;
                let is_open = !self.is_over && episode > 0 && self.window().contains(&episode);
                let is_stored = self.summaries.contains(&(agent, episode));
                let fate = match () {
                    () if summary.feature_sum.len() != D => Fate::WrongDimension,
                    () if !is_open && !is_stored => Fate::WrongEpisode,
                    () => self.fate(summary.gram.iter(), summary.feature_sum.iter()),
                };
                // Of several that arrive before the first is stored, only the first is answered.
                let is_pending = |owed: &Owed| match owed.answer {
                    Answer::Ack(other, fate) => owed.agent == agent && other == episode && needs_storage(fate),
                    _ => false,
                };
                if !is_stored && needs_storage(fate) && self.owed.iter().any(is_pending) {
                    return;
                }
                Answer::Ack(episode, fate)
            }
            _ => return,
        };
        self.owed.push(Owed { agent, run, answer });
    }

    /// Returns the episodes whose summaries are accepted.
    fn window(&self) -> RangeInclusive<u32> {
        let running = self.releases.len() as u32;
        running.saturating_sub(self.terms.window)..=running
    }

    /// Returns the fate of a summary with this content.
    fn fate(&self, gram: impl Iterator<Item = f32>, feature_sum: impl Iterator<Item = f32>) -> Fate {
        let [gram, feature_sum]: [Vec<f64>; 2] = [gram.map(f64::from).collect(), feature_sum.map(f64::from).collect()];
        match self.terms.admission.check(&gram, &feature_sum) {
            Ok(()) => Fate::Counts,
            Err(Fault::NonFinite) => Fate::NotFinite,
            Err(Fault::Norm) => Fate::Norm,
            Err(Fault::NotPositiveSemidefinite) => Fate::NotPositiveSemidefinite,
            Err(Fault::Inconsistent) => Fate::Inconsistent,
            Err(fault) => unreachable!("{fault} of a packed matrix of dimension D"),
        }
    }

    /// Checks that a summary counts, which its device was told in a run.
    pub fn check_counting(&self, agent: u32, run: u32, episode: u32) -> Result<(), Violation> {
        match self.counting.contains(&(agent, run, episode)) {
            true => Ok(()),
            false => Err(format!("device {agent} is told that episode {episode} of run {run} counts")),
        }
    }

    /// Records a commit.
    fn committed(&mut self, events: &[Vec<u8>]) {
        for bytes in events {
            if let Err(violation) = self.take(bytes) {
                self.violation.get_or_insert(violation);
            }
            self.stored.push(bytes.clone());
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let event = Event::from_bytes(bytes, D).ok_or("an invalid event is stored")?;
        if self.is_over {
            return Err(format!("{event:?} is stored after the end of the run"));
        }
        match event {
            Event::Summary(summary) => {
                let SummaryEvent { episode, steps, reward_sum, ref gram, ref feature_sum, .. } = summary;
                let agent = summary.agent.0;
                if !self.window().contains(&episode) || episode == 0 {
                    return Err(format!("a summary of episode {episode} is stored in episode {}", self.releases.len()));
                }
                if !self.summaries.insert((agent, episode)) {
                    return Err(format!("two summaries of agent {agent}, episode {episode}, are stored"));
                }
                let values = gram.iter().chain(feature_sum).map(|value| value.to_bits());
                let bits = [steps, reward_sum.to_bits()].into_iter().chain(values);
                if !self.made.contains(&(agent, self.terms.run, episode, bits.collect())) {
                    return Err(format!("agent {agent} did not make its stored summary of episode {episode}"));
                }
                self.add(agent, episode, gram, feature_sum);
            }
            Event::Model(release) => {
                if release.episode != self.releases.len() as u32 + 1 {
                    return Err(format!("release {} is stored after {} others", release.episode, self.releases.len()));
                }
                self.releases.push(release);
                self.released_sums.clone_from(&self.sums);
                self.pushed = self.devices.keys().copied().collect();
                self.deadlines.push(self.clock + self.terms.time_limit);
            }
            Event::End => {
                if self.releases.len() as u32 != self.terms.episodes {
                    return Err(format!(
                        "the run ends after {} of {} episodes",
                        self.releases.len(),
                        self.terms.episodes
                    ));
                }
                self.is_over = true;
            }
            Event::Enrollment(AgentId(agent)) => {
                if !self.devices.contains_key(&agent) || self.terms.agents.contains(&agent) {
                    return Err(format!("the enrolment of agent {agent} is stored, which is unknown or has a row"));
                }
                self.terms.agents.push(agent);
                self.sums.push(vec![0.0; packed_len(D) + D]);
                self.released_sums.push(vec![0.0; packed_len(D) + D]);
            }
        }
        Ok(())
    }

    /// Records a stored snapshot. It may remove summaries of episodes that are no longer retained, and enrolments of that time.
    fn snapshotted(&mut self, snapshot: &Snapshot) -> Result<(), Violation> {
        self.snapshots += 1;
        self.snapshot = Some(snapshot.bytes.clone());
        let mut models = 0;
        let running = self.releases.len() as u32;
        for (number, bytes) in (0..).zip(&self.stored) {
            let event = Event::from_bytes(bytes, D);
            models += u32::from(matches!(event, Some(Event::Model(_))));
            if !snapshot.removable.iter().any(|range| range.contains(&number)) {
                continue;
            }
            // The event follows the model of episode `models`, and so belongs to that episode or to an earlier one.
            let is_old = self.terms.retain.is_some_and(|retain| running - models > retain);
            if !is_old || !matches!(event, Some(Event::Summary(_) | Event::Enrollment(_))) {
                return Err(format!("a snapshot of episode {running} removes event {number}, {event:?}"));
            }
            if !self.removed.insert(number) {
                return Err(format!("event {number} is removed twice"));
            }
        }
        let last = snapshot.removable.iter().map(|range| range.end).max();
        match last.is_some_and(|last| last > self.stored.len() as u64) {
            true => Err("a snapshot removes events that are not stored yet".into()),
            false => Ok(()),
        }
    }

    fn add(&mut self, agent: u32, episode: u32, gram: &[f32], feature_sum: &[f32]) {
        let row = self.terms.agents.iter().position(|known| *known == agent);
        let fate = self.fate(gram.iter().copied(), feature_sum.iter().copied());
        let (Some(row), Fate::Counts) = (row, fate) else { return };
        self.counting.insert((agent, self.terms.run, episode));
        let diagonal = (0..D).flat_map(|i| (i..D).map(move |j| i == j));
        let scales = diagonal.map(|on| if on { 1.0 } else { SQRT_2 }).chain([1.0; D]);
        for ((sum, value), scale) in self.sums[row].iter_mut().zip(gram.iter().chain(feature_sum)).zip(scales) {
            *sum += f64::from(*value) * scale;
        }
    }

    /// Returns the first violation that was found in a commit.
    pub fn verdict(&mut self) -> Result<(), Violation> {
        self.violation.take().map_or(Ok(()), Err)
    }

    /// Checks a frame that the service sends.
    pub fn sent(&mut self, outgoing: &Outgoing) -> Result<(), Violation> {
        self.verdict()?;
        let mut frame = outgoing.frame.clone();
        let address = unverified_address(&frame).zip(unverified_run(&frame));
        let ((_, agent), run) = address.ok_or("a frame has no address")?;
        if let Some((run, nonce)) = sealed_nonce(&frame)
            && !self.nonces.insert((agent, run, nonce))
        {
            return Err(format!("a nonce for agent {agent} is used twice in run {run}"));
        }
        let device = self.devices.get_mut(&agent).ok_or("a frame is for an unknown agent")?;
        device.device.enter_run(run);
        let message = device.device.decode(&mut frame).map_err(|error| format!("agent {agent} is sent {error}"))?;
        self.checked += 1;
        let answer = match message {
            Message::Model(model) => {
                self.check_release(&ModelEvent::of(&model))?;
                Answer::Model(model.episode)
            }
            Message::Wait { challenge, wait } => {
                self.check_wait(wait)?;
                Answer::Wait(challenge)
            }
            Message::NextRun { challenge, run: next } => {
                if next != self.terms.run {
                    return Err(format!("agent {agent} is sent to run {next}"));
                }
                Answer::NextRun(challenge)
            }
            Message::Ack { episode, fate, wait } => {
                if needs_storage(fate) && !self.summaries.contains(&(agent, episode)) {
                    return Err(format!("agent {agent}, episode {episode}, is acknowledged before it is stored"));
                }
                match fate {
                    Fate::WrongRun if wait == 0 => {}
                    _ => self.check_wait(wait)?,
                }
                Answer::Ack(episode, fate)
            }
            other => return Err(format!("agent {agent} is sent {other:?}")),
        };
        let owed = Owed { agent, run, answer };
        if let Some(place) = self.owed.iter().position(|other| *other == owed) {
            self.owed.remove(place);
            return Ok(());
        }
        // A new release is sent to all connected devices.
        let is_push = run == self.terms.run && owed.answer == Answer::Model(self.releases.len() as u32);
        if is_push && self.pushed.remove(&agent) {
            return Ok(());
        }
        Err(format!("{:?} is sent to agent {agent} in run {run}, which is owed {:?}", owed.answer, self.owed))
    }

    fn check_release(&self, model: &ModelEvent) -> Result<(), Violation> {
        match self.releases.get((model.episode as usize).wrapping_sub(1)) {
            None => Err(format!("the model of episode {} is sent before it is stored", model.episode)),
            Some(stored) if !same(stored, model) => {
                Err(format!("the model of episode {} differs from the stored one", model.episode))
            }
            Some(_) => Ok(()),
        }
    }

    /// Checks the wait that a device is told: the time until the deadline, or an hour once the run is over.
    fn check_wait(&self, wait: u32) -> Result<(), Violation> {
        let end = self.is_over.then_some(WAIT_AFTER_END);
        let waits = self.deadlines.iter().map(|deadline| deadline.saturating_sub(self.clock)).chain(end);
        match waits.clone().any(|expected| expected == u64::from(wait)) {
            true => Ok(()),
            false => Err(format!("a device is told to wait {wait} ms, not {:?}", waits.collect::<Vec<_>>())),
        }
    }

    /// Checks, once the service has nothing left to send, that it owes no answer.
    pub fn answered(&mut self) -> Result<(), Violation> {
        self.pushed.clear();
        // After the end there is no deadline.
        let outdated = self.deadlines.len() - usize::from(!self.is_over && !self.deadlines.is_empty());
        self.deadlines.drain(..outdated);
        match self.owed.first() {
            None => Ok(()),
            Some(owed) => Err(format!("the service sends nothing, and owes {owed:?}")),
        }
    }

    /// Checks a reopened store: it must have all commits, and of a failed commit all or nothing.
    pub fn reopened(&mut self, store: &File) -> Result<(), Violation> {
        let text = |error: StoreError| error.to_string();
        let mut found = Vec::new();
        store.replay(0, &mut |number, bytes| found.push((number, bytes.to_vec()))).map_err(text)?;
        let mut values = BTreeMap::new();
        for name in self.values.keys().chain(self.value_in_flight.iter().map(|(name, _)| name)) {
            if let Some(value) = store.value(name).map_err(text)? {
                values.insert(name.clone(), value);
            }
        }
        let snapshot = store.snapshot().map_err(text)?;
        // The disk was read without a fault: a difference is an error of the store.
        if let Some(in_flight) = self.snapshot_in_flight.take()
            && snapshot.as_ref() == Some(&in_flight.bytes)
        {
            self.snapshotted(&in_flight)?;
        }
        if snapshot != self.snapshot {
            return Err("the stored snapshot is neither the last one nor the one in flight".into());
        }
        let expected = (0..).zip(&self.stored).filter(|(number, _)| !self.removed.contains(number));
        let expected: Vec<(u64, Vec<u8>)> = expected.map(|(number, bytes)| (number, bytes.clone())).collect();
        let in_flight: Vec<_> = (self.stored.len() as u64..).zip(mem::take(&mut self.in_flight)).collect();
        let (kept, more) = found.split_at(expected.len().min(found.len()));
        if kept != expected || !(more.is_empty() || more == in_flight) {
            let (there, promised) = (found.len(), expected.len());
            return Err(format!("{there} events found, {promised} committed, {} in flight", in_flight.len()));
        }
        let more: Vec<Vec<u8>> = more.iter().map(|(_, bytes)| bytes.clone()).collect();
        self.committed(&more);
        let mut changed = self.values.clone();
        changed.extend(self.value_in_flight.take());
        if values != self.values && values != changed {
            return Err(format!("the values are {values:?}, not {:?}", self.values));
        }
        self.values = values;
        self.verdict()
    }

    /// Checks the state of the service after a commit.
    pub fn settled(&mut self, service: &StateMachine) -> Result<(), Violation> {
        self.verdict()?;
        if service.is_finished() != self.is_over {
            return Err("service and store disagree on the end of the run".into());
        }
        let streams = service.controller().streams();
        let rows: Vec<Vec<f64>> = streams
            .gram
            .rows()
            .zip(streams.feature_sum.rows())
            .map(|(gram, feature_sum)| gram.iter().chain(feature_sum).copied().collect())
            .collect();
        match service.controller() {
            AnyController::Plain(_) => {
                let bits = |rows: &[Vec<f64>]| -> Vec<u64> { rows.iter().flatten().map(|x| x.to_bits()).collect() };
                if bits(&rows) != bits(&self.sums) {
                    return Err("the sums are not those of the stored summaries".into());
                }
            }
            AnyController::Private(_) if !service.is_finished() => self.check_noise(&rows)?,
            AnyController::Private(_) => {}
        }
        self.check_model(service)
    }

    /// Checks that the streams of a release never change, and are close to their sums.
    fn check_noise(&mut self, rows: &[Vec<f64>]) -> Result<(), Violation> {
        let (Some(plan), episode @ 1..) = (&self.terms.plan, self.releases.len() as u32) else { return Ok(()) };
        let bits: Vec<u64> = rows.iter().flatten().map(|x| x.to_bits()).collect();
        let first = self.noisy.entry(episode).or_insert_with(|| bits.clone());
        if *first != bits {
            return Err(format!("the noise of release {episode} has changed"));
        }
        let (agents, groups) = (self.terms.agents.len(), rows.len());
        let size = |group: usize| agents / groups + usize::from(group < agents % groups);
        let noise = if episode > 1 { plan.noise().release_sigma(episode - 1) } else { 0.0 };
        // Truncation to the grid takes less than a step from each coordinate of each message.
        let truncation = plan.step() * f64::from(episode) * f64::from(self.terms.window + 1);
        for coordinate in 0..packed_len(D) + D {
            let exact = |row: &Vec<f64>| row[coordinate];
            let near = |released: f64, exact: f64, units: f64| {
                // Ten standard deviations: in 10^9 comparisons, a false alarm has probability 10^-14.
                (released - exact).abs() <= 10.0 * noise * units.sqrt() + truncation * agents as f64
            };
            let alone = groups == agents
                && !rows.iter().zip(&self.released_sums).all(|(row, sums)| near(exact(row), exact(sums), 1.0));
            let total: f64 = rows.iter().enumerate().map(|(group, row)| exact(row) * size(group) as f64).sum();
            if alone || !near(total, self.released_sums.iter().map(exact).sum(), groups as f64) {
                return Err(format!("release {episode} is farther from its sums than its noise"));
            }
        }
        Ok(())
    }

    /// Checks the model against the estimate (G, b) and λ of the rule: Λ = G + λI and Λθ = b. A model that is fused with a prior
    /// is another one.
    fn check_model(&self, service: &StateMachine) -> Result<(), Violation> {
        let (estimate, Some(release)) = (service.controller().estimate(), self.releases.last()) else { return Ok(()) };
        let is_fused = matches!(estimate.prior, Some(PriorUse::Fused(weight)) if weight > 0.0);
        let is_solution =
            self.terms.is_papers_rule && estimate.parameters.is_some() && estimate.raised == 0 && !is_fused;
        if service.is_finished() || !is_solution {
            return Ok(());
        }
        let [theta, design] =
            [&release.theta, &release.design].map(|values| values.iter().copied().map(f64::from).collect::<Vec<_>>());
        let mut full = [[0.0; D]; D];
        let mut scale: f64 = 0.0;
        let places = (0..D).flat_map(|i| (i..D).map(move |j| (i, j)));
        for (((i, j), found), gram) in places.zip(design).zip(&estimate.gram.point) {
            let expected = if i == j { gram + estimate.lambda } else { gram / SQRT_2 };
            scale = scale.max(expected.abs());
            (full[i][j], full[j][i]) = (expected, expected);
            if (found - expected).abs() > 1e-6 * (scale + estimate.lambda) {
                return Err(format!("Λ of release {} is not G + λI", release.episode));
            }
        }
        let norm = theta.iter().map(|x| x.abs()).sum::<f64>();
        for (row, b) in full.iter().zip(&estimate.feature_sum.point) {
            let image: f64 = row.iter().zip(&theta).map(|(entry, x)| entry * x).sum();
            if (image - b).abs() > 1e-5 * (scale * norm + b.abs()) + 1e-9 {
                return Err(format!("θ of release {} does not solve Λθ = b", release.episode));
            }
        }
        Ok(())
    }

    /// Copies all commits into a store in memory.
    pub fn copy(&self) -> Result<Memory, Violation> {
        let mut memory = Memory::default();
        memory.append(&self.stored).map_err(|error| error.to_string())?;
        for (name, value) in &self.values {
            memory.set_value(name, value).map_err(|error| error.to_string())?;
        }
        Ok(memory)
    }

    /// Returns the number of releases and of summaries in all runs.
    pub fn counts(&self) -> (usize, usize) {
        (self.earlier.0 + self.releases.len(), self.earlier.1 + self.summaries.len())
    }

    /// Returns the number of the last episode that began in this run.
    pub fn episode(&self) -> u32 {
        self.releases.len() as u32
    }

    /// Returns true if the end of the run is committed.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

/// Returns true if a summary with this fate is stored before it is acknowledged.
fn needs_storage(fate: Fate) -> bool {
    !matches!(fate, Fate::WrongEpisode | Fate::WrongDimension | Fate::WrongRun)
}

/// Returns the run and the nonce of a sealed frame.
fn sealed_nonce(frame: &[u8]) -> Option<(u32, Vec<u8>)> {
    let nonce = frame.get(HEADER_LEN..HEADER_LEN + NONCE_LEN).filter(|_| frame[0] & 0x80 != 0)?;
    Some((unverified_run(frame)?, nonce.to_vec()))
}

/// Returns true if two releases have the same bits.
fn same(one: &ModelEvent, other: &ModelEvent) -> bool {
    Event::Model(one.clone()).to_bytes() == Event::Model(other.clone()).to_bytes()
}

/// Store that reports every commit to the oracle.
pub struct Watched<'a> {
    /// Real store.
    pub store: &'a mut File,
    /// Oracle of the run.
    pub oracle: &'a mut Oracle,
}

impl Store for Watched<'_> {
    fn append(&mut self, events: &[Vec<u8>]) -> Result<(), StoreError> {
        let outcome = self.store.append(events);
        match outcome {
            Ok(()) => self.oracle.committed(events),
            Err(_) => self.oracle.in_flight = events.to_vec(),
        }
        outcome
    }

    fn replay(&self, from: u64, each: &mut dyn FnMut(u64, &[u8])) -> Result<(), StoreError> {
        self.store.replay(from, each)
    }

    fn set_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), StoreError> {
        let outcome = self.store.set_snapshot(snapshot);
        match outcome {
            Ok(()) => {
                if let Err(violation) = self.oracle.snapshotted(snapshot) {
                    self.oracle.violation.get_or_insert(violation);
                }
            }
            Err(_) => {
                let Snapshot { bytes, removable } = snapshot;
                self.oracle.snapshot_in_flight = Some(Snapshot { bytes: bytes.clone(), removable: removable.clone() });
            }
        }
        outcome
    }

    fn snapshot(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.snapshot()
    }

    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.value(name)
    }

    fn set_value(&mut self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        let outcome = self.store.set_value(name, value);
        match outcome {
            Ok(()) => drop(self.oracle.values.insert(name.into(), value.to_vec())),
            Err(_) => self.oracle.value_in_flight = Some((name.into(), value.to_vec())),
        }
        outcome
    }
    fn append_audit(&mut self, entries: &[Vec<u8>], values: &[(&str, Vec<u8>)]) -> Result<(), StoreError> {
        self.store.append_audit(entries, values)
    }
}
