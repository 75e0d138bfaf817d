//! Privatising function Pri (Algorithm 1, line 20).

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::blt::Filter;
use super::calibration::{Blt, Mechanism};
use super::grid::{Plan, accumulate};
use super::key::{Node, NoiseKey, Scope};
use super::tree::{Estimator, Tree};
use crate::aggregate::{AggregateError, Groups};
use crate::algorithm::SetupError;
use crate::algorithm::{AgentId, Privatise, Streams};
use fedbandit_core::packed_len;

/// Streams that are (μ, ν)-private with respect to single messages, according to a [`Plan`].
///
/// A unit is an agent or a group. A *leaf* is the sum of the messages of a unit between two releases. Each message is in
/// one leaf, whatever its episode.
///
/// * The release for episode k = 2, …, K consists of the first k − 1 leaves and the noise of the plan's mechanism.
/// * The release for k = 1 is 0 without noise.
/// * Messages after the last release are never released.
/// * A release is made once. A repeated request, or one beyond K, returns the last release.
///
/// A group is released as its noisy *sum*, divided by its size. This is as private as noise on each agent, since a message
/// is in one group and moves its sum by at most Δ. The mean has √|G| times less noise. The divisor is fixed, and a missing
/// message counts as 0. Groups must be drawn before the first message.
///
/// `Debug` is not implemented, because it would show messages.
///
/// ```
/// use fedbandit::algorithm::Level;
/// use fedbandit::aggregate::{GeometricMedian, Tolerance};
/// use fedbandit::algorithm::Controller;
/// use fedbandit::privacy::calibration::{Budget, Mechanism, NoiseBound};
/// use fedbandit::privacy::{Plan, Private, RunKey};
/// use fedbandit::algorithm::PaperRule;
/// use fedbandit::algorithm::{Episodes, ControllerConfig};
/// use fedbandit::algorithm::AgentId;
///
/// let setting = ControllerConfig {
///     dimension: 1,
///     episodes: Episodes::new(256, 64, 64)?,
///     level: Level::Strict,
///     reward_bound: Some(1.0),
///     window: 0,
///     half_life: None,
/// };
/// let plan = Plan::new(&setting, Budget::new(4.0, 1e-6)?, Mechanism::Tree, 1)?;
/// let key = RunKey::generate()?;
/// let median = GeometricMedian::new(Tolerance::Relative(1e-6));
/// // λ_k from how large the noise of episode k can be, for three agents.
/// let (bounds, fleet) = (plan.clone(), plan.fleet(3, 1, 0.05));
/// let lambda = move |k| 64.0 + 2.0 * bounds.noise_norms(NoiseBound::Exact, &fleet, k).frobenius;
/// let rule = PaperRule::new(median.clone(), median, move |k| (lambda(k), 0.5));
/// let mut controller =
///     Controller::new(setting, [1, 2, 3].map(AgentId), rule, |agents, _| Private::agents(plan, key, agents))?;
/// controller.receive(AgentId(1), 1, [64.0], [32.0]).unwrap();
/// controller.close_episode()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Private<K> {
    plan: Plan,
    key: K,
    scope: Scope,
    /// Unit of each agent.
    unit_of: Vec<usize>,
    units: Vec<Unit>,
    /// Last episode with a release.
    episode: u32,
    streams: Streams,
}

/// Index of a released stream. It is as private as the model and does not identify an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub usize);

#[derive(Clone, Serialize, Deserialize)]
struct Unit {
    size: usize,
    leaf: Vec<i64>,
    sums: Sums,
}

/// Completed leaves, by mechanism.
#[derive(Clone, Serialize, Deserialize)]
enum Sums {
    Tree(Tree),
    Blt(Filter),
}

impl<K: NoiseKey> Private<K> {
    /// Creates one stream per agent (Byzantine-UCB-DP).
    ///
    /// # Errors
    /// Never fails with a valid [`Plan`].
    pub fn agents(plan: Plan, key: K, agents: usize) -> Result<Self, SetupError> {
        Self::new(plan, key, (0..agents).collect(), (0..agents).map(|_| 1))
    }

    /// Creates one stream per group of agents (Byzantine-UCB-DP-MoM).
    ///
    /// # Errors
    /// The groups were drawn for a different number of agents.
    pub fn groups(plan: Plan, key: K, agents: usize, groups: &Groups) -> Result<Self, SetupError> {
        let grouped = groups.sizes().sum();
        if grouped != agents {
            return Err(AggregateError::WrongNumber { expected: grouped, actual: agents }.into());
        }
        Self::new(plan, key, (0..agents).map(|agent| groups.group_of(agent)).collect(), groups.sizes())
    }

    fn new(
        plan: Plan,
        key: K,
        unit_of: Vec<usize>,
        sizes: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Self, SetupError> {
        let scope = Scope { digest: plan.digest(&unit_of), gaussian: plan.gaussian() };
        let streams = Streams::zeros(sizes.len(), plan.dimension())?;
        let units = sizes.map(|size| Unit::new(&plan, size)).collect();
        Ok(Self { plan, key, scope, unit_of, units, episode: 1, streams })
    }

    /// Closes the leaf of every unit, in parallel. Units are independent, so their order is irrelevant.
    fn close_leaves(&mut self) {
        let Self { key, scope, .. } = self;
        self.units.par_iter_mut().enumerate().for_each(|(row, unit)| unit.close_leaf(row, key, scope));
        self.episode += 1;
    }

    fn released(&self) -> Streams {
        let mut streams = Streams::zeros(self.units.len(), self.plan.dimension()).expect("a plan has a dimension");
        for (row, unit) in self.units.iter().enumerate() {
            let mean = unit.mean(&self.plan);
            let (gram, feature_sum) = mean.split_at(packed_len(self.plan.dimension()));
            streams.gram.add(row, gram.iter().copied());
            streams.feature_sum.add(row, feature_sum.iter().copied());
        }
        streams
    }
}

impl<K: NoiseKey> Privatise for Private<K> {
    type Unit = Stream;

    const PRIVATE: bool = true;

    fn add(&mut self, agent: usize, _episode: u32, gram: &[f64], feature_sum: &[f64]) {
        if let Some(message) = self.plan.quantise(gram, feature_sum) {
            accumulate(&mut self.units[self.unit_of[agent]].leaf, &message);
        }
    }

    fn release(&mut self, episode: u32) -> &Streams {
        let due = episode.min(self.plan.episodes());
        if self.episode < due {
            (self.episode..due).for_each(|_| self.close_leaves());
            self.streams = self.released();
        }
        &self.streams
    }

    fn streams(&self) -> &Streams {
        &self.streams
    }

    fn unit(&self, row: usize, _enrolled: &[AgentId]) -> Stream {
        Stream(row)
    }

    type Saved = SavedUnits;

    fn save(&self) -> SavedUnits {
        SavedUnits { episode: self.episode, units: self.units.clone() }
    }

    fn restore(&mut self, saved: SavedUnits) -> bool {
        let SavedUnits { episode, units } = saved;
        let fits = units.len() == self.units.len()
            && (1..=self.plan.episodes().max(1)).contains(&episode)
            && units.iter().zip(&self.units).all(|(unit, own)| unit.fits(own, &self.plan, episode - 1));
        if fits {
            (self.episode, self.units) = (episode, units);
            self.streams = self.released();
        }
        fits
    }
}

/// Saved sums of [`Private`] streams: leaves, open nodes with their noisy values, and the episode of the latest release. Noise
/// that was released is kept, so that it is not even computed a second time.
#[derive(Serialize, Deserialize)]
pub struct SavedUnits {
    episode: u32,
    units: Vec<Unit>,
}

impl Unit {
    fn new(plan: &Plan, size: usize) -> Self {
        let sums = match plan.mechanism() {
            Mechanism::Tree => Sums::Tree(Tree::new(Estimator::Node)),
            Mechanism::Honaker => Sums::Tree(Tree::new(Estimator::Honaker)),
            Mechanism::Blt => Sums::Blt(Filter::new(&Blt::for_episodes(plan.episodes()), plan.coordinates())),
        };
        Self { size, leaf: vec![0; plan.coordinates()], sums }
    }

    /// Returns true if this saved unit can take the place of one that was created by the same plan.
    fn fits(&self, own: &Self, plan: &Plan, leaves: u32) -> bool {
        self.size == own.size
            && self.leaf.len() == plan.coordinates()
            && match (&self.sums, &own.sums) {
                (Sums::Tree(saved), Sums::Tree(own)) => saved.fits(own, plan.coordinates(), leaves),
                (Sums::Blt(saved), Sums::Blt(own)) => saved.fits(own, leaves),
                _ => false,
            }
    }

    fn close_leaf(&mut self, row: usize, key: &impl NoiseKey, scope: &Scope) {
        let noise = |level, index, sum: &mut [i64]| key.add_noise(scope, Node { unit: row as u64, level, index }, sum);
        match &mut self.sums {
            Sums::Tree(tree) => tree.push(&self.leaf, noise),
            Sums::Blt(filter) => filter.push(&self.leaf, noise),
        }
        self.leaf.fill(0);
    }

    fn mean(&self, plan: &Plan) -> Vec<f64> {
        let mut values = match &self.sums {
            Sums::Tree(tree) => tree.prefix(plan.coordinates()),
            Sums::Blt(filter) => filter.prefix(),
        };
        values.iter_mut().for_each(|value| *value = *value * plan.step() / self.size as f64);
        values
    }
}
