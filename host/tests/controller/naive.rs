//! Naive implementation of Algorithm 1: full matrices, line by line, and aggregators by their definition.

use std::collections::{BTreeMap, BTreeSet};

use fedbandit::algorithm::{ControllerConfig, Fault, Level};
use nalgebra::{DMatrix, DVector};

use super::random::Random;
use super::uniform::below;

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        below(&mut self.0, n)
    }

    pub(crate) fn action(&mut self, dimension: usize) -> DVector<f64> {
        let x = DVector::from_fn(dimension, |_, _| self.symmetric());
        let norm = x.norm();
        if norm > 1.0 { x / norm } else { x }
    }
}

/// Returns λ_k.
pub(crate) fn lambda(episode: u32) -> f64 {
    0.5 * f64::from(episode).sqrt()
}

/// Returns β_k.
pub(crate) fn beta(episode: u32) -> f64 {
    0.1 * f64::from(episode)
}

// --- messages -------------------------------------------------------------------------------------------------------

/// Kind of a message: honest, or its defect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Honest,
    WrongDimension,
    NonFinite,
    Asymmetric,
    TooLarge,
    Indefinite,
    Inconsistent,
}

pub(crate) const KINDS: [Kind; 7] = [
    Kind::Honest,
    Kind::WrongDimension,
    Kind::NonFinite,
    Kind::Asymmetric,
    Kind::TooLarge,
    Kind::Indefinite,
    Kind::Inconsistent,
];

pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) gram: DMatrix<f64>,
    pub(crate) feature_sum: DVector<f64>,
}

impl Message {
    pub(crate) fn new(kind: Kind, dimension: usize, length: u32, random: &mut Random) -> Self {
        let dimension = if kind == Kind::WrongDimension { dimension + 1 } else { dimension };
        let (mut gram, mut feature_sum) = (DMatrix::zeros(dimension, dimension), DVector::zeros(dimension));
        // Lines 6 to 11. A device may record fewer than L steps.
        for _ in 0..random.below(length as usize + 1) {
            let (x, r) = (random.action(dimension), random.symmetric());
            gram += &x * x.transpose();
            feature_sum += x * r;
        }
        let length = f64::from(length);
        match kind {
            Kind::Honest | Kind::WrongDimension => {}
            Kind::NonFinite if random.below(2) == 0 => feature_sum[0] = f64::INFINITY,
            Kind::NonFinite => gram[(1, 1)] = f64::NAN,
            Kind::Asymmetric => gram[(0, 1)] += 1e-9,
            Kind::TooLarge => gram += DMatrix::from_diagonal_element(dimension, dimension, length),
            Kind::Indefinite => gram -= DMatrix::from_diagonal_element(dimension, dimension, 2.0 * length),
            Kind::Inconsistent => (gram, feature_sum) = (gram * 0.0, DVector::from_element(dimension, length)),
        }
        Self { kind, gram, feature_sum }
    }

    fn fault(&self, config: &ControllerConfig) -> Option<Fault> {
        let strict = config.level == Level::Strict;
        match self.kind {
            Kind::WrongDimension => Some(Fault::WrongDimension),
            Kind::NonFinite => Some(Fault::NonFinite),
            Kind::Asymmetric => Some(Fault::Asymmetric),
            Kind::TooLarge if strict => Some(Fault::Norm),
            Kind::Indefinite if strict => Some(Fault::NotPositiveSemidefinite),
            Kind::Inconsistent if strict && config.reward_bound.is_some() => Some(Fault::Inconsistent),
            _ => None,
        }
    }
}

// --- the controller -------------------------------------------------------------------------------------------------

/// A message that counts: its episode, U and u.
type Counted = (u32, DMatrix<f64>, DVector<f64>);

pub(crate) struct Naive {
    pub(crate) config: ControllerConfig,
    pub(crate) k: u32,
    /// Counted messages of each agent, with their episodes.
    messages: Vec<Vec<Counted>>,
    /// Received messages by agent and episode.
    sent: BTreeSet<(usize, u32)>,
    pub(crate) faults: BTreeMap<Fault, u64>,
    pub(crate) repaired: u64,
}

impl Naive {
    /// Line 1.
    pub(crate) fn new(config: ControllerConfig, agents: usize) -> Self {
        let messages = vec![Vec::new(); agents];
        Self { config, k: 1, messages, sent: BTreeSet::new(), faults: BTreeMap::new(), repaired: 0 }
    }

    /// Returns V_i and v_i for the model of episode k: the sum of all messages, or with a half-life H their sum with the weights
    /// 2^(−h/H), where h is the number of steps from the end of a message's episode to the model.
    pub(crate) fn sums(&self) -> Vec<(DMatrix<f64>, DVector<f64>)> {
        let d = self.config.dimension.into();
        let sum = |messages: &Vec<Counted>| {
            let zero = (DMatrix::zeros(d, d), DVector::zeros(d));
            messages.iter().fold(zero, |(gram, sum), (episode, u, v)| {
                let weight = self.weight(*episode);
                (gram + u * weight, sum + v * weight)
            })
        };
        self.messages.iter().map(sum).collect()
    }

    fn weight(&self, episode: u32) -> f64 {
        let Some(half_life) = self.config.half_life else { return 1.0 };
        let age: u32 = (episode + 1..self.k).map(|later| self.config.episodes.length(later)).sum();
        0.5_f64.powf(f64::from(age) / f64::from(half_life.get()))
    }

    /// Returns the sum of the largest entries of an agent's weighted messages, to which rounding errors are relative.
    pub(crate) fn magnitude(&self, agent: usize) -> f64 {
        self.messages[agent].iter().map(|(episode, u, v)| self.weight(*episode) * u.amax().max(v.amax())).sum()
    }

    /// Lines 14 to 22 for the message of one agent.
    pub(crate) fn receive(&mut self, agent: Option<usize>, episode: u32, message: &Message) -> Result<(), Fault> {
        let outcome = self.check(agent, episode, message);
        match (outcome, agent) {
            // Line 22.
            (Ok(()), Some(agent)) => {
                self.messages[agent].push((episode, message.gram.clone(), message.feature_sum.clone()));
            }
            // Lines 16, 17 and 21: the message counts as zero.
            (Err(fault), _) => *self.faults.entry(fault).or_default() += 1,
            (Ok(()), None) => unreachable!(),
        }
        outcome
    }

    fn check(&mut self, agent: Option<usize>, episode: u32, message: &Message) -> Result<(), Fault> {
        let agent = agent.ok_or(Fault::UnknownAgent)?;
        if self.sent.contains(&(agent, episode)) && episode + 64 > self.k {
            return Err(Fault::Duplicate);
        }
        if episode == 0 || episode > self.k || episode + self.config.window < self.k {
            return Err(Fault::WrongEpisode);
        }
        self.sent.insert((agent, episode));
        message.fault(&self.config).map_or(Ok(()), Err)
    }

    pub(crate) fn missing(&self) -> usize {
        (0..self.messages.len()).filter(|agent| !self.sent.contains(&(*agent, self.k))).count()
    }

    /// Computes Λ_k and θ_k from the aggregates (line 3).
    pub(crate) fn solve(&mut self, gram: DMatrix<f64>, b: &DVector<f64>) -> (DMatrix<f64>, DVector<f64>) {
        let d = gram.nrows();
        let design = self.repair(gram + DMatrix::identity(d, d) * lambda(self.k));
        let theta = design.clone().cholesky().unwrap().inverse() * b;
        (design, theta)
    }

    /// Raises eigenvalues of Λ that are too small for f32. Not part of the paper.
    fn repair(&mut self, design: DMatrix<f64>) -> DMatrix<f64> {
        let share = (design.nrows() as f64 + 4.0) / 8_388_608.0;
        let mut eigen = design.clone().symmetric_eigen();
        if eigen.eigenvalues.min() > share * design.trace() {
            return design;
        }
        self.repaired += 1;
        let positive: f64 = eigen.eigenvalues.iter().map(|value| value.max(0.0)).sum();
        let floor = (lambda(self.k) / 2.0).max(2.0 * share * positive);
        eigen.eigenvalues.apply(|value| *value = value.max(floor));
        eigen.recompose()
    }
}

// --- Agg ------------------------------------------------------------------------------------------------------------

/// Check that a point is the aggregate of full matrices or vectors.
pub(crate) type IsAgg = fn(&[DVector<f64>], &DVector<f64>) -> bool;

pub(crate) fn is_mean(points: &[DVector<f64>], z: &DVector<f64>) -> bool {
    let mean = points.iter().sum::<DVector<f64>>() / points.len() as f64;
    (mean - z).norm() <= 1e-13 * spread(points)
}

/// Checks the definition: no point has a smaller mean distance.
pub(crate) fn is_median(points: &[DVector<f64>], z: &DVector<f64>) -> bool {
    let g = |z: &DVector<f64>| points.iter().map(|point| (point - z).norm()).sum::<f64>();
    g(z) <= g(&geometric_median(points)) + 1e-7 * spread(points)
}

fn spread(points: &[DVector<f64>]) -> f64 {
    points.iter().map(|point| point.norm()).sum()
}

pub(crate) fn geometric_median(points: &[DVector<f64>]) -> DVector<f64> {
    if let Some(point) = points.iter().find(|point| is_optimal(points, point)) {
        return point.clone();
    }
    // The minimum is not at a point. Weiszfeld's iteration finds it from a start that is lower than all points.
    let g = |z: &DVector<f64>| points.iter().map(|point| (point - z).norm()).sum::<f64>();
    let lowest = points.iter().min_by(|a, b| g(a).total_cmp(&g(b))).unwrap();
    let downhill = pull(points, lowest);
    let mut step = 1.0;
    while g(&(lowest + &downhill * step)) >= g(lowest) {
        step /= 2.0;
    }
    let mut z = lowest + downhill * step;
    for _ in 0..5_000 {
        let weight: f64 = points.iter().map(|point| 1.0 / (point - &z).norm()).sum();
        let step = pull(points, &z) / weight;
        z += &step;
        if step.norm() <= 1e-15 * z.norm() {
            break;
        }
    }
    z
}

/// Returns the sum of the unit vectors from z to the points elsewhere: −∂g, except for points at z.
fn pull(points: &[DVector<f64>], z: &DVector<f64>) -> DVector<f64> {
    points.iter().filter(|point| *point != z).map(|point| (point - z).normalize()).fold(z * 0.0, |sum, unit| sum + unit)
}

/// Checks 0 ∈ ∂g(z).
fn is_optimal(points: &[DVector<f64>], z: &DVector<f64>) -> bool {
    pull(points, z).norm() <= points.iter().filter(|point| *point == z).count() as f64
}
