//! The controller: broadcasts a model, receives summaries, computes the next model (Algorithm 1).

use std::collections::BTreeMap;

use fedbandit_core::Model;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::admission::{Admission, AdmissionError, Fault, Level, pack_symmetric};
use super::continued::PriorUse;
use super::controller_config::{ControllerConfig, MAX_WINDOW};
use super::rule::{Estimate, ModelParameters, Rule};
use super::streams::{AgentId, Privatise, Streams};
use crate::aggregate::{AggregateError, Points, ShapeError, WarmStart, distance, lower_median};

/// The controller of one run: a pure state machine without clock, random numbers or IO.
///
/// While a [`model`](Self::model) is in force, summaries are [received](Self::receive). When the caller
/// [closes](Self::close_episode) the episode, the next model is computed from them. Each (agent, episode) has one slot, which
/// the first message takes. A malformed or missing message counts as zero. Defects of received messages are not errors: they
/// are counted as [`Fault`]s.
///
/// `Debug` is not implemented, since it would show what agents sent.
///
/// ```
/// use fedbandit::aggregate::{GeometricMedian, Tolerance};
/// use fedbandit::algorithm::{AgentId, Controller, ControllerConfig, Episodes, Level, NoPrivacy, PaperRule};
///
/// let config = ControllerConfig::new(1, Episodes::new(256, 64, 64)?, Level::Strict);
/// let median = GeometricMedian::new(Tolerance::Absolute(1e-6));
/// let rule = PaperRule::new(median.clone(), median, |_| (1.0, 0.5));
/// let mut controller = Controller::new(config, [1, 2, 3].map(AgentId), rule, NoPrivacy::new)?;
/// while let Some(model) = controller.model() {
///     let episode = model.episode;
///     for agent in [1, 2, 3].map(AgentId) {
///         controller.receive(agent, episode, [64.0], [32.0]).unwrap();
///     }
///     controller.close_episode()?;
/// }
/// // The fourth and last model is computed from three episodes.
/// assert!((controller.estimate().gram.point[0] - 192.0).abs() < 1e-3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Controller<P, R> {
    config: ControllerConfig,
    enrolled: Vec<AgentId>,
    /// Number of agents that the run began with.
    initial: usize,
    /// Position of each agent in `enrolled` and `records`.
    rows: BTreeMap<AgentId, usize>,
    records: Vec<AgentRecord>,
    /// Admission checks, indexed by the number of times the episode length has doubled.
    admissions: Vec<Admission>,
    /// k; K + 1 when the run is over.
    episode: u32,
    privatise: P,
    rule: R,
    parameters: ModelParameters,
    estimate: Estimate,
    /// Distances of the [`Deviation`]s by unit: those of Gram matrices, then those of feature sums. NaN for a unit that was
    /// enrolled after the estimate.
    radii: [Vec<f64>; 2],
    counts: Counts,
}

/// Error returned by [`Controller::new`].
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SetupError {
    /// An agent is enrolled twice.
    #[error("agent {} is enrolled twice", .0.0)]
    EnrolledTwice(AgentId),
    /// W is above [`MAX_WINDOW`].
    #[error("late summaries can be accepted for at most {MAX_WINDOW} episodes, got {0}")]
    Window(u32),
    /// Private streams cannot forget: the sensitivity of sums whose weights change is not bounded here.
    #[error("sums of a private run cannot have a half-life")]
    PrivateHalfLife,
    /// The admission checks cannot be created.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The dimension is 0.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The rule is not defined for this number of units.
    #[error(transparent)]
    Rule(#[from] AggregateError),
    /// λ_1 or β_1 is out of a device's range.
    #[error("schedule gives a first model that no device accepts: lambda must be positive and beta not negative")]
    FirstModel,
}

/// Number of occurrences of each fault.
pub type Faults = BTreeMap<Fault, u64>;

/// Events of a run so far. The numbers are exact: with privacy, they are for the operator only and not covered by the
/// privacy guarantee.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Faults of all senders.
    pub faults: Faults,
    /// Models whose Λ was repaired ([`Estimate::raised`]).
    pub repaired: u64,
    /// Episodes that kept the previous parameters, because no device would have accepted the new ones.
    pub kept: u64,
    /// Models that ignored the prior model, because it contradicted the rule's own ([`PriorUse::Contradicted`]).
    pub contradicted: u64,
}

impl Counts {
    /// Counts what became of an estimate.
    fn add(&mut self, estimate: &Estimate) {
        self.repaired += u64::from(estimate.raised > 0);
        self.kept += u64::from(estimate.parameters.is_none());
        self.contradicted += u64::from(estimate.prior == Some(PriorUse::Contradicted));
    }
}

/// State of a [`Controller`], from which [`Controller::restore`] continues with the same bits. It contains all sums, but no
/// key.
#[derive(Serialize, Deserialize)]
pub struct SavedController<S> {
    /// Agents enrolled since the run began.
    joined: Vec<AgentId>,
    records: Vec<AgentRecord>,
    episode: u32,
    sums: S,
    warm_start: WarmStart,
    parameters: ModelParameters,
    estimate: Estimate,
    radii: [Vec<f64>; 2],
    counts: Counts,
}

/// Error returned by [`Controller::enroll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnrollError {
    /// The agent is enrolled.
    #[error("agent {} is enrolled already", .0.0)]
    Enrolled(AgentId),
    /// The units of private streams are fixed before the first message.
    #[error("agents of a private run are fixed when it begins")]
    Fixed,
}

/// A closed episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedEpisode {
    /// k.
    pub episode: u32,
    /// Number of agents that sent nothing for it.
    pub missing: usize,
}

/// Distance of a unit's streams from the centres of the estimate, in median radii.
///
/// One median radius is the distance of the ⌈n/2⌉-th nearest of n units. Fewer than half of the units, if corrupted, cannot
/// make it larger than the largest honest distance. A unit at the centre has 0; if half of the units are there, all others
/// have ∞.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deviation<U> {
    /// The unit.
    pub unit: U,
    /// ‖V̂_i − Agg(V̂)‖_F over its median.
    pub gram: f64,
    /// ‖v̂_i − Agg(v̂)‖₂ over its median.
    pub feature_sum: f64,
}

/// Per-agent bookkeeping: received episodes and counted faults.
#[derive(Clone, Default, Serialize, Deserialize)]
struct AgentRecord {
    /// Bit j is set once the message of episode k − j was received. 64 episodes are kept, whatever the window.
    received: u64,
    /// True once the agent is excluded ([`Level::Drop`]).
    excluded: bool,
    faults: Faults,
}

impl AgentRecord {
    /// Returns true if nothing was received for the running episode.
    fn is_missing(&self) -> bool {
        self.received & 1 == 0
    }
}

impl<P: Privatise, R: Rule> Controller<P, R> {
    /// Starts a run with N enrolled agents, whether they ever send or not. `privatise` is called with N and D.
    ///
    /// The model of episode 1 is the rule's estimate for sums of zero (lines 1 to 3).
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn new<E: Into<SetupError>>(
        config: ControllerConfig,
        enrolled: impl IntoIterator<Item = AgentId>,
        mut rule: R,
        privatise: impl FnOnce(usize, usize) -> Result<P, E>,
    ) -> Result<Self, SetupError> {
        if config.window > MAX_WINDOW {
            return Err(SetupError::Window(config.window));
        }
        if P::PRIVATE && config.half_life.is_some() {
            return Err(SetupError::PrivateHalfLife);
        }
        let enrolled: Vec<_> = enrolled.into_iter().collect();
        let rows = index(&enrolled)?;
        let admissions = config.admissions(P::PRIVATE)?;
        let mut privatise = privatise(enrolled.len(), config.dimension.into()).map_err(E::into)?;
        let (estimate, radii) = estimate(&mut rule, &mut privatise, 1)?;
        let parameters = estimate.parameters.clone().ok_or(SetupError::FirstModel)?;
        let records = vec![AgentRecord::default(); enrolled.len()];
        let mut counts = Counts::default();
        counts.add(&estimate);
        Ok(Self {
            config,
            initial: enrolled.len(),
            enrolled,
            rows,
            records,
            admissions,
            episode: 1,
            privatise,
            rule,
            parameters,
            estimate,
            radii,
            counts,
        })
    }

    /// Enrolls an agent while the run goes on. It begins with empty sums, and may report for all episodes that are open.
    ///
    /// The rule must take an agent without data for what it is ([`Rule`] of an absent agent); the paper's rules take it for a
    /// corrupted one.
    ///
    /// # Errors
    /// The agent is enrolled, or the streams are private.
    pub fn enroll(&mut self, agent: AgentId) -> Result<(), EnrollError> {
        if self.rows.contains_key(&agent) {
            return Err(EnrollError::Enrolled(agent));
        }
        if !self.privatise.enroll() {
            return Err(EnrollError::Fixed);
        }
        self.rows.insert(agent, self.enrolled.len());
        self.enrolled.push(agent);
        self.records.push(AgentRecord::default());
        self.radii.iter_mut().for_each(|radii| radii.push(f64::NAN));
        Ok(())
    }

    /// Returns the enrolled agents, in the order of their enrolment.
    pub fn enrolled(&self) -> &[AgentId] {
        &self.enrolled
    }

    /// Returns the state after everything handled so far.
    pub fn save(&self) -> SavedController<P::Saved> {
        SavedController {
            joined: self.enrolled[self.initial..].to_vec(),
            records: self.records.clone(),
            episode: self.episode,
            sums: self.privatise.save(),
            warm_start: self.rule.warm_start(),
            parameters: self.parameters.clone(),
            estimate: self.estimate.clone(),
            radii: self.radii.clone(),
            counts: self.counts.clone(),
        }
    }

    /// Restores a saved state in a controller that was created with the same arguments and has handled nothing yet. All
    /// further models have the same bits as those of the saved controller. Returns `None` if the state does not fit.
    pub fn restore(mut self, saved: SavedController<P::Saved>) -> Option<Self> {
        saved.joined.into_iter().try_for_each(|agent| self.enroll(agent)).ok()?;
        let fits = saved.records.len() == self.records.len()
            && saved.parameters.dimension() == Some(self.config.dimension.into())
            && (1..=self.config.episodes.count() + 1).contains(&saved.episode);
        if !(fits && self.privatise.restore(saved.sums)) {
            return None;
        }
        let units = self.privatise.streams().gram.len();
        saved.radii.iter().all(|radii| radii.len() == units).then_some(())?;
        self.rule.set_warm_start(saved.warm_start);
        let SavedController { records, episode, parameters, estimate, radii, counts, .. } = saved;
        Some(Self { records, episode, parameters, estimate, radii, counts, ..self })
    }

    /// Returns the broadcast of the running episode (line 4), or `None` when the run is over.
    pub fn model(&self) -> Option<Model<'_>> {
        let length = self.config.episodes.length(self.episode);
        (!self.is_over()).then(|| self.parameters.model(self.episode, length, self.config.rewards()))
    }

    fn is_over(&self) -> bool {
        self.episode > self.config.episodes.count()
    }

    /// Handles an agent's summary: U as its packed upper triangle, and u (lines 14 to 23). The caller has authenticated the
    /// sender.
    ///
    /// Pass a device's own [`EpisodeSummary`](fedbandit_core::EpisodeSummary) as `summary.gram()` and
    /// `*summary.feature_sum()`, a decoded frame as `summary.gram.iter()` and `summary.feature_sum.iter()`.
    ///
    /// # Errors
    /// The reason why the summary counts as zero. It is attributed to the sender and counted; the run continues.
    pub fn receive(
        &mut self,
        agent: AgentId,
        episode: u32,
        gram: impl IntoIterator<Item: Into<f64>>,
        feature_sum: impl IntoIterator<Item: Into<f64>>,
    ) -> Result<(), Fault> {
        let gram = gram.into_iter().map(Into::into).collect();
        self.handle(agent, episode, Ok(gram), &feature_sum.into_iter().map(Into::into).collect::<Vec<_>>())
    }

    /// As [`receive`](Self::receive), for a full matrix U, which may be asymmetric.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_matrix(
        &mut self,
        agent: AgentId,
        episode: u32,
        gram: &[f64],
        feature_sum: &[f64],
    ) -> Result<(), Fault> {
        self.handle(agent, episode, pack_symmetric(gram, self.config.dimension.into()), feature_sum)
    }

    /// Admits a summary, or counts its fault.
    fn handle(
        &mut self,
        agent: AgentId,
        episode: u32,
        gram: Result<Vec<f64>, Fault>,
        feature_sum: &[f64],
    ) -> Result<(), Fault> {
        let row = self.rows.get(&agent).copied();
        let outcome = row.ok_or(Fault::UnknownAgent).and_then(|row| self.admit(row, episode, gram, feature_sum));
        if let Err(fault) = outcome {
            *self.counts.faults.entry(fault).or_default() += 1;
            if let Some(row) = row {
                if self.config.level == Level::Drop && fault.proves_corruption() {
                    self.records[row].excluded = true;
                    self.drop_agent(row);
                }
                *self.records[row].faults.entry(fault).or_default() += 1;
            }
        }
        outcome
    }

    /// Removes an agent from all further releases, and its row from the deviations.
    fn drop_agent(&mut self, agent: usize) {
        if let Some(row) = self.privatise.drop_agent(agent) {
            for radii in &mut self.radii {
                radii.swap_remove(row);
            }
        }
    }

    fn admit(
        &mut self,
        row: usize,
        episode: u32,
        gram: Result<Vec<f64>, Fault>,
        feature_sum: &[f64],
    ) -> Result<(), Fault> {
        let age = self.free_slot(row, episode)?;
        self.records[row].received |= 1 << age;
        self.check_content(row, episode, gram.as_deref().map_err(|fault| *fault), feature_sum)?;
        let (mut gram, mut feature_sum) = (gram?, feature_sum.to_vec());
        if let Some(weight) = self.config.forgetting().weight(episode, self.episode + 1) {
            // The sums have lost this weight since the end of the episode.
            gram.iter_mut().chain(&mut feature_sum).for_each(|value| *value *= weight);
        }
        self.privatise.add(row, episode, &gram, &feature_sum);
        Ok(())
    }

    fn check_content(
        &self,
        row: usize,
        episode: u32,
        gram: Result<&[f64], Fault>,
        feature_sum: &[f64],
    ) -> Result<(), Fault> {
        if self.records[row].excluded {
            return Err(Fault::Dropped);
        }
        let doublings = self.config.episodes.doublings(episode);
        self.admissions[doublings as usize].check(gram?, feature_sum)
    }

    /// Judges the content of a summary whose slot is taken, so that its sender can be told again if it counts. Counts
    /// nothing.
    ///
    /// # Errors
    /// The fault that [`receive`](Self::receive) found in a summary with this content.
    pub fn judge(
        &self,
        agent: AgentId,
        episode: u32,
        gram: impl IntoIterator<Item: Into<f64>>,
        feature_sum: impl IntoIterator<Item: Into<f64>>,
    ) -> Result<(), Fault> {
        let row = self.rows.get(&agent).ok_or(Fault::UnknownAgent)?;
        let [gram, feature_sum]: [Vec<f64>; 2] =
            [gram.into_iter().map(Into::into).collect(), feature_sum.into_iter().map(Into::into).collect()];
        self.check_content(*row, episode, Ok(&gram), &feature_sum)
    }

    /// Returns the age of an episode whose message can still be received.
    fn free_slot(&self, row: usize, episode: u32) -> Result<u32, Fault> {
        let age = self.episode.checked_sub(episode).filter(|_| episode > 0).ok_or(Fault::WrongEpisode)?;
        let received = self.records[row].received.checked_shr(age).is_some_and(|received| received & 1 == 1);
        if received {
            return Err(Fault::Duplicate);
        }
        let is_open = age <= self.config.window && !self.is_over();
        if is_open { Ok(age) } else { Err(Fault::WrongEpisode) }
    }

    /// Checks whether an agent's message of an episode can still be received. Counts nothing.
    ///
    /// # Errors
    /// The agent is not enrolled, the episode is not open, or its message was received before.
    pub fn expects(&self, agent: AgentId, episode: u32) -> Result<(), Fault> {
        let row = self.rows.get(&agent).ok_or(Fault::UnknownAgent)?;
        self.free_slot(*row, episode).map(drop)
    }

    /// Returns the number of agents that have sent nothing for the running episode. With privacy, do not close an episode
    /// because of it: the time of a model would reveal who sent.
    pub fn missing(&self) -> usize {
        self.records.iter().filter(|record| record.is_missing()).count()
    }

    /// Ends the running episode and, unless it was the last, computes the next model (line 3). Returns `None` if the run was
    /// over before.
    ///
    /// With a half-life the sums are then reduced by the length of the next episode, so that its summaries count fully.
    ///
    /// # Errors
    /// The rule's error. The episode then remains open.
    pub fn close_episode(&mut self) -> Result<Option<ClosedEpisode>, AggregateError> {
        if self.is_over() {
            return Ok(None);
        }
        let closed = ClosedEpisode { episode: self.episode, missing: self.missing() };
        if self.episode < self.config.episodes.count() {
            (self.estimate, self.radii) = estimate(&mut self.rule, &mut self.privatise, self.episode + 1)?;
            self.counts.add(&self.estimate);
            if let Some(parameters) = &self.estimate.parameters {
                self.parameters = parameters.clone();
            }
        }
        self.episode += 1;
        if let Some(retention) = self.config.forgetting().retention(self.episode).filter(|_| !self.is_over()) {
            self.privatise.decay(retention);
        }
        self.records.iter_mut().for_each(|record| record.received <<= 1);
        Ok(Some(closed))
    }

    /// Returns the rule's latest estimate.
    pub fn estimate(&self) -> &Estimate {
        &self.estimate
    }

    /// Returns V̂_i and v̂_i as released last; without privacy, the current sums. With a half-life these have the weights of the
    /// model that follows the running episode.
    pub fn streams(&self) -> &Streams {
        self.privatise.streams()
    }

    /// Returns the counts of the run so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the deviation of each unit at the latest estimate. It is computed from released streams, and so covered by
    /// the privacy guarantee.
    pub fn deviations(&self) -> impl Iterator<Item = Deviation<P::Unit>> {
        (0..self.radii[0].len()).filter_map(|row| self.deviation(row))
    }

    /// Returns the deviation of a unit; none if it was enrolled after the estimate.
    fn deviation(&self, row: usize) -> Option<Deviation<P::Unit>> {
        let [gram, feature_sum] = [self.radii[0].get(row)?, self.radii[1].get(row)?];
        let unit = self.privatise.unit(row, &self.enrolled);
        (!gram.is_nan()).then_some(Deviation { unit, gram: *gram, feature_sum: *feature_sum })
    }
}

/// Information about single agents, available only if the streams are not private:
///
/// ```compile_fail,E0599
/// # use fedbandit::algorithm::{AgentId, Controller, Rule};
/// # use fedbandit::privacy::{Private, RunKey};
/// fn faults(controller: &Controller<Private<RunKey>, impl Rule>) {
///     controller.faults_of(AgentId(7));
/// }
/// ```
///
/// A controller with private streams reports about the released streams instead:
///
/// ```
/// # use fedbandit::algorithm::{Controller, Rule};
/// # use fedbandit::privacy::{Private, RunKey, Stream};
/// fn farthest(controller: &Controller<Private<RunKey>, impl Rule>) -> Option<Stream> {
///     controller.deviations().max_by(|a, b| a.gram.total_cmp(&b.gram)).map(|deviation| deviation.unit)
/// }
/// ```
impl<P: Privatise<Unit = AgentId>, R: Rule> Controller<P, R> {
    /// Returns an agent's faults, or `None` if it is not enrolled.
    pub fn faults_of(&self, agent: AgentId) -> Option<&Faults> {
        const { assert!(!P::PRIVATE, "private streams cannot name agents") };
        self.rows.get(&agent).map(|row| &self.records[*row].faults)
    }

    /// Returns an agent's deviation at the latest estimate, or `None` if it was not part of that.
    pub fn deviation_of(&self, agent: AgentId) -> Option<Deviation<AgentId>> {
        const { assert!(!P::PRIVATE, "private streams cannot name agents") };
        self.deviation(self.privatise.row(*self.rows.get(&agent)?)?)
    }

    /// Returns the agents that have sent nothing for the running episode.
    pub fn missing_agents(&self) -> impl Iterator<Item = AgentId> {
        const { assert!(!P::PRIVATE, "private streams cannot name agents") };
        let records = self.enrolled.iter().zip(&self.records);
        records.filter(|(_, record)| record.is_missing()).map(|(agent, _)| *agent)
    }
}

/// Returns the row of each agent.
fn index(enrolled: &[AgentId]) -> Result<BTreeMap<AgentId, usize>, SetupError> {
    let mut rows = BTreeMap::new();
    for (row, agent) in enrolled.iter().enumerate() {
        if rows.insert(*agent, row).is_some() {
            return Err(SetupError::EnrolledTwice(*agent));
        }
    }
    Ok(rows)
}

/// Returns the rule's estimate for an episode, and the distances of the streams from it in median radii.
fn estimate<P: Privatise, R: Rule>(
    rule: &mut R,
    privatise: &mut P,
    episode: u32,
) -> Result<(Estimate, [Vec<f64>; 2]), AggregateError> {
    let streams = privatise.release(episode);
    let estimate = rule.estimate(streams, episode)?;
    let gram = in_median_radii(&streams.gram, &estimate.gram.point);
    let feature_sum = in_median_radii(&streams.feature_sum, &estimate.feature_sum.point);
    Ok((estimate, [gram, feature_sum]))
}

fn in_median_radii(points: &Points<'_>, centre: &[f64]) -> Vec<f64> {
    let distances: Vec<_> = points.rows().map(|row| distance(row, centre)).collect();
    let median = lower_median(distances.clone());
    distances.iter().map(|distance| if *distance == 0.0 { 0.0 } else { distance / median }).collect()
}
