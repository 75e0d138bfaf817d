//! Policies to evaluate.

use fedbandit_core::{Agent, Prior, Rewards, packed_len};
use nalgebra::{DMatrix, DVector};

use super::choice_log::ChoiceLog;
use crate::aggregate::Mean;
use crate::algorithm::{Episodes, PaperRule, Rule, SoloSchedule, Streams};
use crate::names::named;
use crate::simulation::{DIMENSIONS, for_dimensions};

/// Policy to evaluate, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Each available action with the same probability.
    Uniform,
    /// The firmware's agent, learning alone with the widths and episodes of `solo` in a simulation. Both R and S are the root mean
    /// square of the logged rewards.
    LinUcb,
    /// The action with the largest reward predicted by ridge regression; ties go to the first.
    Greedy,
}

named!(Policy, "policy", Uniform = "uniform", LinUcb = "linucb", Greedy = "greedy");

/// Returns θ of ridge regression with λ = 1 on the chosen actions of some events.
pub(super) fn ridge(log: &ChoiceLog, events: impl Iterator<Item = usize>) -> Vec<f64> {
    let d = log.dimension();
    let (mut gram, mut sum) = (DMatrix::<f64>::identity(d, d), DVector::<f64>::zeros(d));
    for index in events {
        let event = &log.events()[index];
        let x = DVector::from_vec(log.row(index, event.chosen)).cast::<f64>();
        gram.ger(1.0, &x, &x, 1.0);
        sum.axpy(event.reward, &x, 1.0);
    }
    let solved = gram.cholesky().map(|factor| factor.solve(&sum));
    solved.expect("I plus a Gram matrix is positive definite").as_slice().to_vec()
}

/// Returns ⟨x, θ⟩.
pub(super) fn predict(theta: &[f64], x: &[f32]) -> f64 {
    theta.iter().zip(x).map(|(theta, x)| theta * f64::from(*x)).sum()
}

/// Returns the position of the row with the largest predicted reward; ties go to the first.
pub(super) fn greedy(theta: &[f64], rows: &[f32]) -> usize {
    let mut best = (0, f64::NEG_INFINITY);
    for (index, x) in rows.chunks_exact(theta.len()).enumerate() {
        let value = predict(theta, x);
        if value > best.1 {
            best = (index, value);
        }
    }
    best.0
}

/// Agent of the firmware that learns alone, for rows of some dimension.
pub(super) trait Learner {
    /// Chooses one of the rows.
    fn select(&self, rows: &[f32]) -> usize;

    /// Learns the reward of a row.
    fn record(&mut self, x: &[f32], reward: f64);
}

struct Solo<const D: usize> {
    agent: Agent<D>,
    rule: PaperRule<Mean, SoloSchedule>,
    sums: Streams,
    episodes: Episodes,
}

/// Longest and first episode of the learner, the defaults of a simulation.
const EPISODE_LEN: u32 = 64;
const FIRST_EPISODE: u32 = 4;

impl<const D: usize> Solo<D> {
    fn new(scale: f64) -> Self {
        let prior = Prior::new(1.0, 1.0, FIRST_EPISODE, Rewards::Unbounded);
        let schedule = SoloSchedule { noise: scale, theta_bound: scale, delta: 0.1 };
        let mut solo = Self {
            agent: Agent::new(&prior).expect("a valid prior"),
            rule: PaperRule::new(Mean, Mean, schedule),
            sums: Streams::zeros(1, D).expect("a positive dimension"),
            episodes: Episodes::new(u32::MAX, FIRST_EPISODE, EPISODE_LEN).expect("valid lengths"),
        };
        solo.begin();
        solo
    }

    /// Begins an episode with a model of all steps before it. If that is out of range, the last valid one stays in use.
    fn begin(&mut self) {
        let episode = self.agent.episode();
        let estimate = self.rule.estimate(&self.sums, episode).expect("a mean of one unit");
        if let Some(parameters) = estimate.parameters {
            let model = parameters.model(episode, self.episodes.length(episode), Rewards::Unbounded);
            self.agent.begin(&model).expect("model parameters are valid");
        }
    }
}

impl<const D: usize> Learner for Solo<D> {
    fn select(&self, rows: &[f32]) -> usize {
        self.agent.select(rows.as_chunks::<D>().0).expect("actions in the unit ball").index
    }

    fn record(&mut self, x: &[f32], reward: f64) {
        let x: [f32; D] = std::array::from_fn(|j| x[j]);
        self.agent.record(&x, reward as f32).expect("an episode has room for its steps");
        if self.agent.steps() == self.agent.episode_len() {
            let summary = self.agent.finish();
            let gram: Vec<f64> = summary.gram().map(f64::from).collect();
            let feature_sum: Vec<f64> = summary.feature_sum().iter().copied().map(f64::from).collect();
            debug_assert_eq!(gram.len(), packed_len(D));
            self.sums.add(0, &gram, &feature_sum);
            self.begin();
        }
    }
}

/// Creates a learner for rewards of some scale.
pub(super) fn learner(dimension: usize, scale: f64) -> Box<dyn Learner> {
    macro_rules! by_dimension {
        ($($d:literal)*) => {
            match dimension {
                $($d => Box::new(Solo::<$d>::new(scale)),)*
                other => unreachable!("dimension {other} is not one of {DIMENSIONS:?}"),
            }
        };
    }
    for_dimensions!(by_dimension)
}
