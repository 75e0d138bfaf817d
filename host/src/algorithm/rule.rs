//! From the released streams to the next model (Algorithm 1, line 3).

use fedbandit_core::{Model, Rewards, VALUE_LIMIT};
use nalgebra::{DMatrix, DVector};

use crate::aggregate::{Aggregate, AggregateError, Aggregator, Groups};
use crate::algorithm::Streams;
use crate::algorithm::{Evidence, Schedule, Solution};
use crate::math::symmetric;

/// How the controller estimates: it sees all (V̂_i, v̂_i) and answers with θ_k, Λ_k and β_k.
pub trait Rule {
    /// The estimate for episode k.
    ///
    /// # Errors
    /// The rule is not defined for so many units with so many of them corrupted. That is known before the first
    /// message.
    fn estimate(&mut self, streams: &Streams, episode: u32) -> Result<Estimate, AggregateError>;
}

impl<R: Rule + ?Sized> Rule for Box<R> {
    fn estimate(&mut self, streams: &Streams, episode: u32) -> Result<Estimate, AggregateError> {
        (**self).estimate(streams, episode)
    }
}

/// What a rule made of the streams, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// θ_k, Λ_k and β_k; none if a device could not use them, as when a rule that is not robust met huge messages.
    pub parameters: Option<ModelParameters>,
    /// λ_k as the schedule gave it.
    pub lambda: f64,
    /// How many eigenvalues of Λ_k had to be raised.
    pub raised: usize,
    /// Where the rule sees the honest V̂_i, in the scaled packing of [`symmetric`].
    pub gram: Aggregate,
    /// Where the rule sees the honest v̂_i.
    pub feature_sum: Aggregate,
}

/// θ_k, Λ_k and β_k as a device takes them: [`Agent::begin`](fedbandit_core::Agent::begin) refuses none for its values.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelParameters {
    theta: Vec<f32>,
    design: Vec<f32>,
    beta: f32,
}

impl ModelParameters {
    /// Rounds to f32; none if a value is out of a device's range or Λ not safely positive definite
    /// ([`symmetric::is_usable`]).
    pub fn new(theta: &DVector<f64>, design: &DMatrix<f64>, beta: f64) -> Option<Self> {
        if !(symmetric::is_usable(design) && beta >= 0.0) {
            return None;
        }
        let theta = theta.iter().copied().map(in_range).collect::<Option<_>>()?;
        let design = symmetric::pack(design).map(in_range).collect::<Option<_>>()?;
        Some(Self { theta, design, beta: in_range(beta)? })
    }

    /// θ_k.
    pub fn theta(&self) -> &[f32] {
        &self.theta
    }

    /// Λ_k as its packed upper triangle.
    pub fn design(&self) -> &[f32] {
        &self.design
    }

    /// β_k.
    pub fn beta(&self) -> f32 {
        self.beta
    }

    /// The broadcast of an episode.
    pub fn model(&self, episode: u32, episode_len: u32, rewards: Rewards) -> Model<'_> {
        let (theta, design) = (self.theta.as_slice().into(), self.design.as_slice().into());
        Model { episode, episode_len, beta: self.beta, rewards, theta, design }
    }
}

/// The value in f32, if it is finite and a model may carry it.
fn in_range(value: f64) -> Option<f32> {
    Some(value as f32).filter(|value| value.abs() <= VALUE_LIMIT)
}

/// The paper's rule: Λ_k = Agg(V̂_i) + λ_k·I, b_k = Agg(v̂_i) and θ_k = Λ_k⁻¹·b_k, where Gram matrices and feature sums
/// are aggregated separately.
///
/// Where λ_k ≥ 2‖E_k‖₂ bounds the aggregation error, Λ_k ⪰ λ_k/2·I, as the proof of Lemma 12 has it (N₀Λ_k − W_k ⪰
/// N₀λ_k/2·I). A Λ_k that a device could not factorise is therefore repaired by raising its eigenvalues to λ_k/2, or
/// further if f32 needs it ([`symmetric::raise_eigenvalues`]). [`Estimate::raised`] tells.
#[derive(Clone, Debug)]
pub struct PaperRule<A, S> {
    gram: A,
    feature_sum: A,
    schedule: S,
}

impl<A: Aggregator, S: Schedule> PaperRule<A, S> {
    /// An oracle for the V̂_i, one for the v̂_i, and the schedule.
    pub fn new(gram: A, feature_sum: A, schedule: S) -> Self {
        Self { gram, feature_sum, schedule }
    }

    fn solve(&self, evidence: &Evidence<'_>, lambda: f64) -> Option<(ModelParameters, usize)> {
        let dimension = evidence.feature_sum.len();
        let lambda = Some(lambda).filter(|lambda| *lambda > 0.0)?;
        let design = symmetric::shifted(&symmetric::matrix(evidence.gram, dimension), lambda);
        let (design, raised) = symmetric::raise_eigenvalues(design, lambda / 2.0)?;
        let theta = design.clone().cholesky()?.solve(&DVector::from_column_slice(evidence.feature_sum));
        let beta = self.schedule.beta(evidence, &Solution { lambda, design: &design, theta: &theta });
        Some((ModelParameters::new(&theta, &design, beta)?, raised))
    }
}

impl<A: Aggregator, S: Schedule> Rule for PaperRule<A, S> {
    fn estimate(&mut self, streams: &Streams, episode: u32) -> Result<Estimate, AggregateError> {
        let gram = self.gram.aggregate(&streams.gram)?;
        let feature_sum = self.feature_sum.aggregate(&streams.feature_sum)?;
        let evidence = Evidence { episode, streams, gram: &gram.point, feature_sum: &feature_sum.point };
        let lambda = self.schedule.lambda(&evidence);
        let (parameters, raised) = self.solve(&evidence, lambda).unzip();
        Ok(Estimate { parameters, lambda, raised: raised.unwrap_or(0), gram, feature_sum })
    }
}

/// A rule on the means of groups of agents: with [`PaperRule`] and the geometric median, the oracle of
/// Byzantine-UCB-DP-MoM. Its schedule sees the groups, not the agents.
#[derive(Clone, Debug)]
pub struct GroupedRule<R> {
    /// Drawn before the first message.
    pub groups: Groups,
    /// What is done with the means.
    pub rule: R,
}

impl<R: Rule> Rule for GroupedRule<R> {
    fn estimate(&mut self, streams: &Streams, episode: u32) -> Result<Estimate, AggregateError> {
        let gram = self.groups.means(&streams.gram)?;
        let feature_sum = self.groups.means(&streams.feature_sum)?;
        self.rule.estimate(&Streams { gram, feature_sum }, episode)
    }
}
