//! The controller: one episode after the other, a model out and summaries in (Algorithm 1).

use std::collections::BTreeMap;

use fedbandit_core::{Model, Rewards};
use thiserror::Error;

use super::admission::{Admission, AdmissionError, Fault, Level, pack_symmetric};
use super::episodes::{DOUBLINGS, Episodes};
use super::rule::{Estimate, ModelParameters, Rule};
use super::streams::{AgentId, Privatise, Streams};
use crate::aggregate::{AggregateError, Points, ShapeError, distance, lower_median};

/// The controller of one run: a pure state machine without clock, random numbers or IO.
///
/// While a [`model`](Self::model) is in force, summaries are [`received`](Self::receive); when the caller
/// [closes](Self::close_episode) the episode, the next model follows from them. Each (agent, episode) has one slot, and
/// the first message takes it: a malformed one counts as zero, and one that never comes does too. Nothing that is
/// received is an error; what is wrong with it is counted.
///
/// It has no `Debug`, which would show what agents sent.
///
/// ```
/// use fedbandit::algorithm::Level;
/// use fedbandit::aggregate::{GeometricMedian, Tolerance};
/// use fedbandit::algorithm::Controller;
/// use fedbandit::algorithm::PaperRule;
/// use fedbandit::algorithm::{Episodes, ControllerConfig};
/// use fedbandit::algorithm::{AgentId, NoPrivacy};
///
/// let setting = ControllerConfig {
///     dimension: 1,
///     episodes: Episodes::new(256, 64, 64)?,
///     level: Level::Strict,
///     reward_bound: None,
///     window: 0,
/// };
/// let median = GeometricMedian::new(Tolerance::Absolute(1e-6));
/// let rule = PaperRule::new(median.clone(), median, |_| (1.0, 0.5));
/// let mut controller = Controller::new(setting, [1, 2, 3].map(AgentId), rule, NoPrivacy::new)?;
/// while let Some(model) = controller.model() {
///     let episode = model.episode;
///     for agent in [1, 2, 3].map(AgentId) {
///         controller.receive(agent, episode, [64.0], [32.0]).unwrap();
///     }
///     controller.close_episode()?;
/// }
/// // The fourth and last model is made of three episodes.
/// assert!((controller.estimate().gram.point[0] - 192.0).abs() < 1e-3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Controller<P, R> {
    setting: ControllerConfig,
    enrolled: Vec<AgentId>,
    rows: BTreeMap<AgentId, usize>,
    slots: Vec<Slots>,
    /// By how often lengths have doubled.
    admissions: Vec<Admission>,
    /// k; K + 1 when the run is over.
    episode: u32,
    privatise: P,
    rule: R,
    parameters: ModelParameters,
    estimate: Estimate,
    /// See [`Deviation`].
    radii: [Vec<f64>; 2],
    counts: Counts,
}

/// What a run agrees on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerConfig {
    /// D, from 1 to 255.
    pub dimension: u8,
    /// K and the L_k.
    pub episodes: Episodes,
    /// How much of a summary is checked.
    pub level: Level,
    /// |r| ≤ r_max, if such a bound is declared. Devices clip rewards to [−1, 1] where it is at most 1.
    pub reward_bound: Option<f64>,
    /// W, for how many episodes after its own a summary is still taken: up to [`MAX_WINDOW`]. It then counts from the
    /// next model on.
    pub window: u32,
}

impl ControllerConfig {
    /// The checks of an episode.
    pub(crate) fn admission(&self, episode: u32, private: bool) -> Result<Admission, AdmissionError> {
        Admission::new(self.level, self.dimension.into(), self.episodes.length(episode), self.reward_bound, private)
    }

    /// The checks by [how often lengths have doubled](Episodes::doublings).
    pub(crate) fn admissions(&self, private: bool) -> Result<Vec<Admission>, AdmissionError> {
        let starts = self.episodes.starts();
        (starts..=starts + DOUBLINGS).map(|episode| self.admission(episode, private)).collect()
    }

    /// What devices do with rewards.
    pub(crate) fn rewards(&self) -> Rewards {
        if self.reward_bound.is_some_and(|bound| bound <= 1.0) { Rewards::Clipped } else { Rewards::Unbounded }
    }
}

/// The largest W.
pub const MAX_WINDOW: u32 = 63;

/// Why a run cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Somebody is enrolled twice.
    #[error("agent {} is enrolled twice", .0.0)]
    EnrolledTwice(AgentId),
    /// W must be at most [`MAX_WINDOW`].
    #[error("summaries cannot be taken for {0} episodes, only up to {MAX_WINDOW}")]
    Window(u32),
    /// Nothing that admission could check by.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The dimension is 0.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The rule is not defined for this number of units; none at all, for one.
    #[error(transparent)]
    Rule(#[from] AggregateError),
    /// λ_1 or β_1 is not what a device can use.
    #[error("the schedule gives no usable first model")]
    FirstModel,
}

/// How often each fault occurred.
pub type Faults = BTreeMap<Fault, u64>;

/// What happened in a run so far. The numbers are exact: with privacy, they are for the operator's eyes and not part of
/// the promise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults of all senders.
    pub faults: Faults,
    /// Models whose Λ was repaired ([`Estimate::raised`]).
    pub repaired: u64,
    /// Episodes that kept the parameters of the one before, since no device could have used the new ones.
    pub kept: u64,
}

/// An episode that was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedEpisode {
    /// k.
    pub episode: u32,
    /// How many agents had sent nothing for it.
    pub missing: usize,
}

/// How far a unit's streams are from the estimate's centres, in median radii.
///
/// 1 is the distance of the ⌈n/2⌉-th nearest of n units; fewer than half of them, if corrupted, cannot make that larger
/// than the largest honest one. A unit at the very centre has 0; if half of the units are there, all others have ∞.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deviation<U> {
    /// Who.
    pub unit: U,
    /// ‖V̂_i − Agg(V̂)‖_F over its median.
    pub gram: f64,
    /// ‖v̂_i − Agg(v̂)‖₂ over its median.
    pub feature_sum: f64,
}

/// What an agent has used up, and what it has done wrong.
#[derive(Clone, Default)]
struct Slots {
    /// Bit j: its message of episode k − j has come. What came is known for 64 episodes, whatever the window.
    taken: u64,
    /// Whether it is out for good.
    dropped: bool,
    faults: Faults,
}

impl<P: Privatise, R: Rule> Controller<P, R> {
    /// A run with these agents, N of them whether they ever send or not. `privatise` is given N and D.
    ///
    /// The model of episode 1 is the rule's for sums of zero (lines 1 to 3).
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn new<E: Into<SetupError>>(
        setting: ControllerConfig,
        enrolled: impl IntoIterator<Item = AgentId>,
        mut rule: R,
        privatise: impl FnOnce(usize, usize) -> Result<P, E>,
    ) -> Result<Self, SetupError> {
        if setting.window > MAX_WINDOW {
            return Err(SetupError::Window(setting.window));
        }
        let enrolled: Vec<_> = enrolled.into_iter().collect();
        let rows = index(&enrolled)?;
        let admissions = setting.admissions(P::PRIVATE)?;
        let mut privatise = privatise(enrolled.len(), setting.dimension.into()).map_err(E::into)?;
        let (estimate, radii) = consult(&mut rule, &mut privatise, 1)?;
        let parameters = estimate.parameters.clone().ok_or(SetupError::FirstModel)?;
        let slots = vec![Slots::default(); enrolled.len()];
        let counts = Counts { repaired: u64::from(estimate.raised > 0), ..Counts::default() };
        Ok(Self {
            setting,
            enrolled,
            rows,
            slots,
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

    /// The broadcast of the running episode (line 4); none when the run is over.
    pub fn model(&self) -> Option<Model<'_>> {
        let length = self.setting.episodes.length(self.episode);
        (!self.is_over()).then(|| self.parameters.model(self.episode, length, self.setting.rewards()))
    }

    fn is_over(&self) -> bool {
        self.episode > self.setting.episodes.count()
    }

    /// Takes an agent's summary in: U as its packed upper triangle, and u (lines 14 to 23). The caller vouches for the
    /// sender.
    ///
    /// A device's own [`EpisodeSummary`](fedbandit_core::EpisodeSummary) comes in as `summary.gram()` and
    /// `*summary.feature_sum()`, a decoded frame as `summary.gram.iter()` and `summary.feature_sum.iter()`.
    ///
    /// # Errors
    /// The summary counts as zero, and why. That is its sender's doing and is counted; no need to stop.
    pub fn receive(
        &mut self,
        agent: AgentId,
        episode: u32,
        gram: impl IntoIterator<Item: Into<f64>>,
        feature_sum: impl IntoIterator<Item: Into<f64>>,
    ) -> Result<(), Fault> {
        let gram = gram.into_iter().map(Into::into).collect();
        self.take(agent, episode, Ok(gram), &feature_sum.into_iter().map(Into::into).collect::<Vec<_>>())
    }

    /// [`receive`](Self::receive) for a full matrix U, which may turn out not to be symmetric.
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
        self.take(agent, episode, pack_symmetric(gram, self.setting.dimension.into()), feature_sum)
    }

    fn take(
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
                if self.setting.level == Level::Drop && fault.is_a_lie() {
                    self.slots[row].dropped = true;
                    self.privatise.drop_agent(row);
                }
                *self.slots[row].faults.entry(fault).or_default() += 1;
            }
        }
        outcome
    }

    fn admit(
        &mut self,
        row: usize,
        episode: u32,
        gram: Result<Vec<f64>, Fault>,
        feature_sum: &[f64],
    ) -> Result<(), Fault> {
        self.take_slot(row, episode)?;
        if self.slots[row].dropped {
            return Err(Fault::Dropped);
        }
        let gram = gram?;
        let doublings = self.setting.episodes.doublings(episode);
        self.admissions[doublings as usize].check(&gram, feature_sum)?;
        self.privatise.add(row, episode, &gram, feature_sum);
        Ok(())
    }

    fn take_slot(&mut self, row: usize, episode: u32) -> Result<(), Fault> {
        let age = self.free_slot(row, episode)?;
        self.slots[row].taken |= 1 << age;
        Ok(())
    }

    /// The age of an episode of which a message would be taken.
    fn free_slot(&self, row: usize, episode: u32) -> Result<u32, Fault> {
        let age = self.episode.checked_sub(episode).filter(|_| episode > 0).ok_or(Fault::WrongEpisode)?;
        let taken = self.slots[row].taken.checked_shr(age).is_some_and(|taken| taken & 1 == 1);
        if taken {
            return Err(Fault::Duplicate);
        }
        let is_open = age <= self.setting.window && !self.is_over();
        if is_open { Ok(age) } else { Err(Fault::WrongEpisode) }
    }

    /// Whether an agent's message of an episode could still be taken. Nothing is counted.
    ///
    /// # Errors
    /// The agent is not enrolled, the episode is not open, or its message came before.
    pub fn expects(&self, agent: AgentId, episode: u32) -> Result<(), Fault> {
        let row = self.rows.get(&agent).ok_or(Fault::UnknownAgent)?;
        self.free_slot(*row, episode).map(drop)
    }

    /// How many agents have sent nothing for the running episode. With privacy, do not close on it: when a model comes
    /// would then tell who sent.
    pub fn missing(&self) -> usize {
        self.slots.iter().filter(|slots| slots.taken & 1 == 0).count()
    }

    /// Ends the running episode and computes the next model, if there is a next episode (line 3). None when the run was
    /// over before.
    ///
    /// # Errors
    /// The rule's. The episode then goes on.
    pub fn close_episode(&mut self) -> Result<Option<ClosedEpisode>, AggregateError> {
        if self.is_over() {
            return Ok(None);
        }
        let closed = ClosedEpisode { episode: self.episode, missing: self.missing() };
        if self.episode < self.setting.episodes.count() {
            (self.estimate, self.radii) = consult(&mut self.rule, &mut self.privatise, self.episode + 1)?;
            self.counts.repaired += u64::from(self.estimate.raised > 0);
            match &self.estimate.parameters {
                Some(parameters) => self.parameters = parameters.clone(),
                None => self.counts.kept += 1,
            }
        }
        self.episode += 1;
        self.slots.iter_mut().for_each(|slots| slots.taken <<= 1);
        Ok(Some(closed))
    }

    /// What the rule said last.
    pub fn estimate(&self) -> &Estimate {
        &self.estimate
    }

    /// V̂_i and v̂_i as they were released last; without privacy the sums as they are.
    pub fn streams(&self) -> &Streams {
        self.privatise.streams()
    }

    /// What happened so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// How far from the centre each unit was when the rule was last asked. It is computed from what was released, and
    /// so no secret.
    pub fn deviations(&self) -> impl Iterator<Item = Deviation<P::Unit>> {
        let [gram, feature_sum] = &self.radii;
        gram.iter().zip(feature_sum).enumerate().map(|(row, (&gram, &feature_sum))| Deviation {
            unit: self.privatise.unit(row, &self.enrolled),
            gram,
            feature_sum,
        })
    }
}

/// What is known of single agents, where the streams are no secret.
///
/// A controller whose streams are private has none of this:
///
/// ```compile_fail,E0599
/// # use fedbandit::{controller::Controller, privacy::{Private, RunKey}, rule::Rule, streams::AgentId};
/// fn faults(controller: &Controller<Private<RunKey>, impl Rule>) {
///     controller.faults_of(AgentId(7));
/// }
/// ```
///
/// It tells of the streams that it released:
///
/// ```
/// # use fedbandit::{controller::Controller, privacy::{Private, RunKey, Stream}, rule::Rule};
/// fn farthest(controller: &Controller<Private<RunKey>, impl Rule>) -> Option<Stream> {
///     controller.deviations().max_by(|a, b| a.gram.total_cmp(&b.gram)).map(|deviation| deviation.unit)
/// }
/// ```
impl<P: Privatise<Unit = AgentId>, R: Rule> Controller<P, R> {
    /// An agent's faults; none if it is not enrolled.
    pub fn faults_of(&self, agent: AgentId) -> Option<&Faults> {
        const { assert!(!P::PRIVATE, "private streams cannot name agents") };
        self.rows.get(&agent).map(|row| &self.slots[*row].faults)
    }

    /// The agents that have sent nothing for the running episode.
    pub fn missing_agents(&self) -> impl Iterator<Item = AgentId> {
        const { assert!(!P::PRIVATE, "private streams cannot name agents") };
        let slots = self.enrolled.iter().zip(&self.slots);
        slots.filter(|(_, slots)| slots.taken & 1 == 0).map(|(agent, _)| *agent)
    }
}

/// The row of each agent.
fn index(enrolled: &[AgentId]) -> Result<BTreeMap<AgentId, usize>, SetupError> {
    let mut rows = BTreeMap::new();
    for (row, agent) in enrolled.iter().enumerate() {
        if rows.insert(*agent, row).is_some() {
            return Err(SetupError::EnrolledTwice(*agent));
        }
    }
    Ok(rows)
}

/// The rule's estimate for an episode, and how far from it the streams are.
fn consult<P: Privatise, R: Rule>(
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
