//! Reference model: a plain list of stored events, against which the service is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::SQRT_2;

use fedbandit::algorithm::Admission;
use fedbandit::privacy::Plan;
use fedbandit::service::event::{Event, ModelEvent, SummaryEvent};
use fedbandit::service::store::file::File;
use fedbandit::service::store::{Memory, Store, StoreError};
use fedbandit::service::{AnyController, Outgoing, StateMachine};
use fedbandit_core::packed_len;
use fedbandit_core::wire::{Channel, Identity, Message, claimed_address};

use super::D;

/// Description of a violated promise.
pub type Violation = String;

/// Values of a summary as bits: steps, sum of rewards, U packed, u.
pub type Values = Vec<u32>;

/// Reference model of a run. It knows all keys, all summaries that devices made, and all stored events.
pub struct Oracle {
    /// Decoders of the devices, by agent.
    channels: BTreeMap<u32, Channel>,
    /// All summaries made with the key of their agent, by agent and episode.
    made: BTreeSet<(u32, u32, Values)>,
    /// Events that the store has committed, in order.
    stored: Vec<Vec<u8>>,
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
    nonces: BTreeSet<(u32, Vec<u8>)>,
    terms: RunTerms,
    violation: Option<Violation>,
    /// Number of checked frames.
    pub checked: u64,
}

/// ServiceConfig of a run.
pub struct RunTerms {
    /// Agents by row.
    pub agents: Vec<u32>,
    /// Window W.
    pub window: u32,
    /// Number of episodes K.
    pub episodes: u32,
    /// Admission check.
    pub admission: Admission,
    /// Privacy plan of a private run.
    pub plan: Option<Plan>,
}

impl Oracle {
    /// Creates the model of a run. Devices are given with their mode: true if sealed.
    pub fn new(terms: RunTerms, devices: impl IntoIterator<Item = (Identity, bool)>) -> Self {
        let channel = |(identity, sealed): (Identity, bool)| {
            let agent = identity.agent;
            (agent, if sealed { Channel::sealed_device(identity, 0) } else { Channel::plain(identity) })
        };
        let rows = vec![vec![0.0; packed_len(D) + D]; terms.agents.len()];
        Self {
            channels: devices.into_iter().map(channel).collect(),
            made: BTreeSet::new(),
            stored: Vec::new(),
            in_flight: Vec::new(),
            values: BTreeMap::new(),
            value_in_flight: None,
            summaries: BTreeSet::new(),
            releases: Vec::new(),
            is_over: false,
            released_sums: rows.clone(),
            sums: rows,
            noisy: BTreeMap::new(),
            nonces: BTreeSet::new(),
            terms,
            violation: None,
            checked: 0,
        }
    }

    /// Records a summary that was made with the key of its agent.
    pub fn made(&mut self, agent: u32, episode: u32, values: Values) {
        self.made.insert((agent, episode, values));
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
                let running = self.releases.len() as u32;
                if !(running.saturating_sub(self.terms.window)..=running).contains(&episode) || episode == 0 {
                    return Err(format!("a summary of episode {episode} is stored in episode {running}"));
                }
                if !self.summaries.insert((agent, episode)) {
                    return Err(format!("two summaries of agent {agent}, episode {episode}, are stored"));
                }
                let values = gram.iter().chain(feature_sum).map(|value| value.to_bits());
                let bits = [steps, reward_sum.to_bits()].into_iter().chain(values);
                if !self.made.contains(&(agent, episode, bits.collect())) {
                    return Err(format!("agent {agent} did not make its stored summary of episode {episode}"));
                }
                self.add(agent, gram, feature_sum);
            }
            Event::Model(release) => {
                if release.episode != self.releases.len() as u32 + 1 {
                    return Err(format!("release {} is stored after {} others", release.episode, self.releases.len()));
                }
                self.releases.push(release);
                self.released_sums.clone_from(&self.sums);
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
        }
        Ok(())
    }

    fn add(&mut self, agent: u32, gram: &[f32], feature_sum: &[f32]) {
        let [gram, feature_sum] =
            [gram, feature_sum].map(|values| values.iter().copied().map(f64::from).collect::<Vec<_>>());
        let row = self.terms.agents.iter().position(|known| *known == agent);
        let (Some(row), Ok(())) = (row, self.terms.admission.check(&gram, &feature_sum)) else { return };
        let diagonal = (0..D).flat_map(|i| (i..D).map(move |j| i == j));
        let scales = diagonal.map(|on| if on { 1.0 } else { SQRT_2 }).chain([1.0; D]);
        for ((sum, value), scale) in self.sums[row].iter_mut().zip(gram.into_iter().chain(feature_sum)).zip(scales) {
            *sum += value * scale;
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
        let (_, agent) = claimed_address(&frame).ok_or("a frame has no address")?;
        let channel = self.channels.get(&agent).ok_or("a frame is for an unknown agent")?;
        let sealed = frame[0] & 0x80 != 0;
        if sealed && !self.nonces.insert((agent, frame[16..28].to_vec())) {
            return Err(format!("a nonce for agent {agent} is used twice"));
        }
        let message = channel.decode(&mut frame);
        self.checked += 1;
        match message {
            Ok(Message::Ack { episode }) if !self.summaries.contains(&(agent, episode)) => {
                Err(format!("agent {agent}, episode {episode}, is acknowledged before it is stored"))
            }
            Ok(Message::Model(model)) => {
                let stored = self.releases.get((model.episode as usize).wrapping_sub(1));
                match stored {
                    None => Err(format!("the model of episode {} is sent before it is stored", model.episode)),
                    Some(stored) if !same(stored, &ModelEvent::of(&model)) => {
                        Err(format!("the model of episode {} differs from the stored one", model.episode))
                    }
                    Some(_) => Ok(()),
                }
            }
            Ok(Message::Ack { .. } | Message::Nack { .. }) => Ok(()),
            other => Err(format!("agent {agent} is sent {other:?}")),
        }
    }

    /// Checks a reopened store: it must have all commits, and of a failed commit all or nothing.
    pub fn reopened(&mut self, store: &File) -> Result<(), Violation> {
        let mut found = Vec::new();
        store.replay(&mut |bytes| found.push(bytes.to_vec())).map_err(|error| error.to_string())?;
        let mut values = BTreeMap::new();
        for name in self.values.keys().chain(self.value_in_flight.iter().map(|(name, _)| name)) {
            if let Some(value) = store.value(name).map_err(|error| error.to_string())? {
                values.insert(name.clone(), value);
            }
        }
        // The disk was read without a fault: a difference is an error of the store.
        let in_flight = std::mem::take(&mut self.in_flight);
        let (kept, more) = found.split_at(self.stored.len().min(found.len()));
        if kept != self.stored || !(more.is_empty() || more == in_flight) {
            let (there, promised) = (found.len(), self.stored.len());
            return Err(format!("{there} events found, {promised} committed, {} in flight", in_flight.len()));
        }
        self.committed(more);
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

    /// Checks the model against the estimate (G, b) and λ of the rule: Λ = G + λI and Λθ = b.
    fn check_model(&self, service: &StateMachine) -> Result<(), Violation> {
        let (estimate, Some(release)) = (service.controller().estimate(), self.releases.last()) else { return Ok(()) };
        if service.is_finished() || estimate.parameters.is_none() || estimate.raised > 0 {
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

    /// Returns the number of releases and of summaries.
    pub fn counts(&self) -> (usize, usize) {
        (self.releases.len(), self.summaries.len())
    }
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

    fn replay(&self, each: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        self.store.replay(each)
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
}
