//! What must hold, by a plain list of what was stored.

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

/// Why a run is wrong.
pub type Wrong = String;

/// The values of a summary: steps, the sum of rewards, then U packed and u, as bits.
pub type Values = Vec<u32>;

/// What the service must agree with. It knows the devices' keys, what they made, and what was stored.
pub struct Oracle {
    /// How frames of each agent are read on its device.
    channels: BTreeMap<u32, Channel>,
    /// All summaries that somebody made with an agent's own key, by agent and episode.
    made: BTreeSet<(u32, u32, Values)>,
    /// What the store promised to hold, in order.
    stored: Vec<Vec<u8>>,
    /// What it was asked to hold when it failed.
    in_flight: Vec<Vec<u8>>,
    values: BTreeMap<String, Vec<u8>>,
    /// A value that it was asked to set when it failed.
    value_in_flight: Option<(String, Vec<u8>)>,
    /// The same as events.
    summaries: BTreeSet<(u32, u32)>,
    releases: Vec<ModelEvent>,
    /// Whether the end of the run is among them.
    is_over: bool,
    /// V_i and v_i, by row: sums over the list, in its order.
    sums: Vec<Vec<f64>>,
    /// The sums that the running episode's model is made of.
    released_sums: Vec<Vec<f64>>,
    /// V̂_i and v̂_i as bits, by the episode that they were released for.
    noisy: BTreeMap<u32, Vec<u64>>,
    nonces: BTreeSet<(u32, Vec<u8>)>,
    terms: RunTerms,
    wrong: Option<Wrong>,
    /// Summaries and models that were checked.
    pub checked: u64,
}

/// What a run agrees on.
pub struct RunTerms {
    /// The agents, by row.
    pub agents: Vec<u32>,
    /// W.
    pub window: u32,
    /// K.
    pub episodes: u32,
    /// What may count.
    pub admission: Admission,
    /// How streams are private, if they are.
    pub plan: Option<Plan>,
}

impl Oracle {
    /// A run with these devices, some of them sealed.
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
            wrong: None,
            checked: 0,
        }
    }

    /// A summary was made with its agent's key.
    pub fn made(&mut self, agent: u32, episode: u32, values: Values) {
        self.made.insert((agent, episode, values));
    }

    /// The store has promised to hold events.
    fn promised(&mut self, events: &[Vec<u8>]) {
        for bytes in events {
            if let Err(wrong) = self.take(bytes) {
                self.wrong.get_or_insert(wrong);
            }
            self.stored.push(bytes.clone());
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        let event = Event::from_bytes(bytes, D).ok_or("what was stored is no event")?;
        if self.is_over {
            return Err(format!("after the end {event:?} is stored"));
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
                    return Err(format!("agent {agent} counts twice in episode {episode}"));
                }
                let values = gram.iter().chain(feature_sum).map(|value| value.to_bits());
                let bits = [steps, reward_sum.to_bits()].into_iter().chain(values);
                if !self.made.contains(&(agent, episode, bits.collect())) {
                    return Err(format!("agent {agent} did not make what is stored of episode {episode}"));
                }
                self.add(agent, gram, feature_sum);
            }
            Event::Model(release) => {
                if release.episode != self.releases.len() as u32 + 1 {
                    return Err(format!("release {} comes after {} others", release.episode, self.releases.len()));
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

    /// Everything that was wrong so far.
    pub fn verdict(&mut self) -> Result<(), Wrong> {
        self.wrong.take().map_or(Ok(()), Err)
    }

    /// A frame leaves the service.
    pub fn sent(&mut self, outgoing: &Outgoing) -> Result<(), Wrong> {
        self.verdict()?;
        let mut frame = outgoing.frame.clone();
        let (_, agent) = claimed_address(&frame).ok_or("a frame without an address is sent")?;
        let channel = self.channels.get(&agent).ok_or("a frame for nobody is sent")?;
        let sealed = frame[0] & 0x80 != 0;
        if sealed && !self.nonces.insert((agent, frame[16..28].to_vec())) {
            return Err(format!("a nonce for agent {agent} is used twice"));
        }
        let message = channel.decode(&mut frame);
        self.checked += 1;
        match message {
            Ok(Message::Ack { episode }) if !self.summaries.contains(&(agent, episode)) => {
                Err(format!("agent {agent} hears that episode {episode} is safe, and it is not stored"))
            }
            Ok(Message::Model(model)) => {
                let stored = self.releases.get((model.episode as usize).wrapping_sub(1));
                match stored {
                    None => Err(format!("the model of episode {} is sent, and it is not stored", model.episode)),
                    Some(stored) if !same(stored, &ModelEvent::of(&model)) => {
                        Err(format!("the model of episode {} is sent with other bytes than stored", model.episode))
                    }
                    Some(_) => Ok(()),
                }
            }
            Ok(Message::Ack { .. } | Message::Nack { .. }) => Ok(()),
            other => Err(format!("agent {agent} is sent {other:?}")),
        }
    }

    /// A store was opened again: it must hold what was promised, and of what was under way all or nothing.
    pub fn reopened(&mut self, store: &File) -> Result<(), Wrong> {
        let mut found = Vec::new();
        store.replay(&mut |bytes| found.push(bytes.to_vec())).map_err(|error| error.to_string())?;
        let mut values = BTreeMap::new();
        for name in self.values.keys().chain(self.value_in_flight.iter().map(|(name, _)| name)) {
            if let Some(value) = store.value(name).map_err(|error| error.to_string())? {
                values.insert(name.clone(), value);
            }
        }
        // All was read: from here on a difference is the store's doing.
        let under_way = std::mem::take(&mut self.in_flight);
        let (kept, more) = found.split_at(self.stored.len().min(found.len()));
        if kept != self.stored || !(more.is_empty() || more == under_way) {
            let (there, promised) = (found.len(), self.stored.len());
            return Err(format!("{there} events are there, {promised} were promised, {} under way", under_way.len()));
        }
        self.promised(more);
        let mut changed = self.values.clone();
        changed.extend(self.value_in_flight.take());
        if values != self.values && values != changed {
            return Err(format!("the values are {values:?}, not {:?}", self.values));
        }
        self.values = values;
        self.verdict()
    }

    /// The service has stored all that it had to.
    pub fn settled(&mut self, service: &StateMachine) -> Result<(), Wrong> {
        self.verdict()?;
        if service.is_finished() != self.is_over {
            return Err("the service and its store do not agree whether the run is over".into());
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
                    return Err("the sums are not those of the list".into());
                }
            }
            AnyController::Private(_) if !service.is_finished() => self.check_noise(&rows)?,
            AnyController::Private(_) => {}
        }
        self.check_model(service)
    }

    /// The streams of a release are those of the first time, and near their sums.
    fn check_noise(&mut self, rows: &[Vec<f64>]) -> Result<(), Wrong> {
        let (Some(plan), episode @ 1..) = (&self.terms.plan, self.releases.len() as u32) else { return Ok(()) };
        let bits: Vec<u64> = rows.iter().flatten().map(|x| x.to_bits()).collect();
        let first = self.noisy.entry(episode).or_insert_with(|| bits.clone());
        if *first != bits {
            return Err(format!("the noise of release {episode} is another than before"));
        }
        let (agents, groups) = (self.terms.agents.len(), rows.len());
        let size = |group: usize| agents / groups + usize::from(group < agents % groups);
        let noise = if episode > 1 { plan.noise().release_sigma(episode - 1) } else { 0.0 };
        // Truncation to the grid takes less than a step from each coordinate of each message.
        let truncation = plan.step() * f64::from(episode) * f64::from(self.terms.window + 1);
        for coordinate in 0..packed_len(D) + D {
            let exact = |row: &Vec<f64>| row[coordinate];
            let near = |released: f64, exact: f64, units: f64| {
                // Ten deviations: in 10^9 comparisons, one beyond has probability 10^-14.
                (released - exact).abs() <= 10.0 * noise * units.sqrt() + truncation * agents as f64
            };
            let alone = groups == agents
                && !rows.iter().zip(&self.released_sums).all(|(row, sums)| near(exact(row), exact(sums), 1.0));
            let total: f64 = rows.iter().enumerate().map(|(group, row)| exact(row) * size(group) as f64).sum();
            if alone || !near(total, self.released_sums.iter().map(exact).sum(), groups as f64) {
                return Err(format!("release {episode} is farther from its sums than noise can be"));
            }
        }
        Ok(())
    }

    /// The model solves its equation: Λ = G + λI and Λθ = b, for what the rule says of G, λ and b.
    fn check_model(&self, service: &StateMachine) -> Result<(), Wrong> {
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

    /// A store in memory with what was promised: from it, a service must become the same again.
    pub fn copy(&self) -> Result<Memory, Wrong> {
        let mut memory = Memory::default();
        memory.append(&self.stored).map_err(|error| error.to_string())?;
        for (name, value) in &self.values {
            memory.set_value(name, value).map_err(|error| error.to_string())?;
        }
        Ok(memory)
    }

    /// How many releases there were, and how many summaries.
    pub fn counts(&self) -> (usize, usize) {
        (self.releases.len(), self.summaries.len())
    }
}

/// Whether two releases have the same bits.
fn same(one: &ModelEvent, other: &ModelEvent) -> bool {
    Event::Model(one.clone()).to_bytes() == Event::Model(other.clone()).to_bytes()
}

/// A store that the oracle watches.
pub struct Watched<'a> {
    /// The store.
    pub store: &'a mut File,
    /// Who watches.
    pub oracle: &'a mut Oracle,
}

impl Store for Watched<'_> {
    fn append(&mut self, events: &[Vec<u8>]) -> Result<(), StoreError> {
        let outcome = self.store.append(events);
        match outcome {
            Ok(()) => self.oracle.promised(events),
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
