//! Estimation rules: from the released streams to the next model (Algorithm 1, line 3).

use fedbandit_core::{Model, Rewards, VALUE_LIMIT, packed_len};
use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

use super::continued::PriorUse;
use super::schedule::{Evidence, Schedule, Solution};
use super::streams::Streams;
use crate::aggregate::{Aggregate, AggregateError, Aggregator, Groups, WarmStart};
use crate::math::symmetric;

/// Estimation rule: computes θ_k, Λ_k and β_k from all (V̂_i, v̂_i).
pub trait Rule {
    /// Returns the estimate for episode k.
    ///
    /// # Errors
    /// The rule is not defined for this number of units and of corrupted ones. This depends on the configuration only,
    /// not on messages.
    fn estimate(&mut self, streams: &Streams, episode: u32) -> Result<Estimate, AggregateError>;

    /// Returns the state from which the next estimate starts, if it depends on more than its arguments.
    fn warm_start(&self) -> WarmStart {
        WarmStart::default()
    }

    /// Restores the state of [`warm_start`](Self::warm_start): the next estimate has the same bits as that of the saved rule.
    fn set_warm_start(&mut self, _start: WarmStart) {}
}

impl<R: Rule + ?Sized> Rule for Box<R> {
    fn estimate(&mut self, streams: &Streams, episode: u32) -> Result<Estimate, AggregateError> {
        (**self).estimate(streams, episode)
    }

    fn warm_start(&self) -> WarmStart {
        (**self).warm_start()
    }

    fn set_warm_start(&mut self, start: WarmStart) {
        (**self).set_warm_start(start);
    }
}

/// Estimate of a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// θ_k, Λ_k and β_k. `None` if no device would accept them, e.g. if huge messages reach a rule that is not robust.
    pub parameters: Option<ModelParameters>,
    /// λ_k of the schedule.
    pub lambda: f64,
    /// Number of eigenvalues of Λ_k that were raised.
    pub raised: usize,
    /// Estimated centre of the honest V̂_i, in the scaled packing of [`symmetric`].
    pub gram: Aggregate,
    /// Estimated centre of the honest v̂_i.
    pub feature_sum: Aggregate,
    /// Part of the prior model, in a run that continues another.
    pub prior: Option<PriorUse>,
}

/// θ_k, Λ_k and β_k in f32, with values that [`Agent::begin`](fedbandit_core::Agent::begin) accepts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelParameters {
    theta: Vec<f32>,
    design: Vec<f32>,
    beta: f32,
}

impl ModelParameters {
    /// Rounds to f32. Returns `None` if a value is out of a device's range or Λ is not safely positive definite
    /// ([`symmetric::is_usable`]).
    pub fn new(theta: &DVector<f64>, design: &DMatrix<f64>, beta: f64) -> Option<Self> {
        if !(symmetric::is_usable(design) && beta >= 0.0) {
            return None;
        }
        let theta = theta.iter().copied().map(in_range).collect::<Option<_>>()?;
        let design = symmetric::pack(design).map(in_range).collect::<Option<_>>()?;
        Some(Self { theta, design, beta: in_range(beta)? })
    }

    /// Returns θ_k.
    pub fn theta(&self) -> &[f32] {
        &self.theta
    }

    /// Returns Λ_k as its packed upper triangle.
    pub fn design(&self) -> &[f32] {
        &self.design
    }

    /// Returns β_k.
    pub fn beta(&self) -> f32 {
        self.beta
    }

    /// Returns d, if the number of values fits it.
    pub(crate) fn dimension(&self) -> Option<usize> {
        let d = self.theta.len();
        (self.design.len() == packed_len(d)).then_some(d)
    }

    /// Returns the broadcast of an episode.
    pub fn model(&self, episode: u32, episode_len: u32, rewards: Rewards) -> Model<'_> {
        let (theta, design) = (self.theta.as_slice().into(), self.design.as_slice().into());
        Model { episode, episode_len, beta: self.beta, rewards, theta, design }
    }
}

/// Rounds to f32, if the value is within the range of a model.
fn in_range(value: f64) -> Option<f32> {
    Some(value as f32).filter(|value| value.abs() <= VALUE_LIMIT)
}

/// The paper's rule: Λ_k = Agg(V̂_i) + λ_k·I, b_k = Agg(v̂_i) and θ_k = Λ_k⁻¹·b_k, where Gram matrices and feature sums
/// are aggregated separately.
///
/// If λ_k ≥ 2‖E_k‖₂ bounds the aggregation error, then Λ_k ⪰ λ_k/2·I, as in the proof of Lemma 12 (N₀Λ_k − W_k ⪰
/// N₀λ_k/2·I). A Λ_k that a device could not factorise is therefore repaired by raising its eigenvalues to λ_k/2, or
/// further if f32 requires it ([`symmetric::raise_eigenvalues`]). [`Estimate::raised`] counts them.
#[derive(Clone, Debug)]
pub struct PaperRule<A, S> {
    gram: A,
    feature_sum: A,
    schedule: S,
}

impl<A: Aggregator, S: Schedule> PaperRule<A, S> {
    /// Creates the rule from an aggregator for the V̂_i, one for the v̂_i, and a schedule.
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
        Ok(Estimate { parameters, lambda, raised: raised.unwrap_or(0), gram, feature_sum, prior: None })
    }

    fn warm_start(&self) -> WarmStart {
        WarmStart::of_parts([self.gram.warm_start(), self.feature_sum.warm_start()])
    }

    fn set_warm_start(&mut self, start: WarmStart) {
        let [gram, feature_sum] = start.into_parts();
        self.gram.set_warm_start(gram);
        self.feature_sum.set_warm_start(feature_sum);
    }
}

/// Rule applied to the means of groups of agents. With [`PaperRule`] and the geometric median it is that of
/// Byzantine-UCB-DP-MoM. The schedule sees groups as its units.
#[derive(Clone, Debug)]
pub struct GroupedRule<R> {
    /// Groups, drawn before the first message.
    pub groups: Groups,
    /// Rule for the means.
    pub rule: R,
}

impl<R: Rule> Rule for GroupedRule<R> {
    fn estimate(&mut self, streams: &Streams, episode: u32) -> Result<Estimate, AggregateError> {
        let gram = self.groups.means(&streams.gram)?;
        let feature_sum = self.groups.means(&streams.feature_sum)?;
        self.rule.estimate(&Streams { gram, feature_sum }, episode)
    }

    fn warm_start(&self) -> WarmStart {
        self.rule.warm_start()
    }

    fn set_warm_start(&mut self, start: WarmStart) {
        self.rule.set_warm_start(start);
    }
}
