//! Rules in whitened coordinates: a spectral filter with a width for each direction. They go beyond the paper.
//!
//! The paper's rule takes medians of the V̂_i and v̂_i in the original coordinates. Rarely explored directions then have
//! the same error as all others, and the width does not shrink with the number of agents. Whitened rules compare Gram
//! matrices relative to each other, and agents by their residuals v̂_i − V̂_iθ in units of noise. docs/theory.md states
//! what is proven and what is open.
//!
//! [`Whitened`] is for agents that explore alike, [`Capped`] for agents that explore different directions or are absent.
//! [`Exploration`] tells along which directions no rule can learn.

mod capped;
mod exploration;
mod filter;
mod gram;
mod kernel;
mod matrices;
mod noise;
mod width;

pub use capped::Capped;
pub use exploration::{Direction, Exploration, Identifiability};
use nalgebra::{DMatrix, DVector};

use crate::aggregate::{Aggregate, AggregateError, Aggregator, Tolerance, WarmStart, certify};
use crate::algorithm::Streams;
use crate::algorithm::{Estimate, ModelParameters, Rule};
use crate::algorithm::{StreamNoise, kappa};
use crate::math::symmetric;
use filter::{Cloud, Residuals};
use gram::{ALIKE, Grams, Metric};
use matrices::symmetrised;

/// Location estimator that [`Whitened`] applies to whitened points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Centre {
    /// Spectral filter, with a width for each direction.
    Filter,
    /// Mean, with the width of the filter: the baseline for a fleet of honest agents. One corrupted unit can move it
    /// anywhere.
    Mean,
}

/// Known bounds that [`Whitened`] and [`Capped`] depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumptions {
    /// a < 1/2, the share of units that may be corrupted.
    pub corruption: f64,
    /// R > 0: the noise of rewards is R-sub-Gaussian.
    pub noise: f64,
    /// S ≥ ‖θ*‖₂.
    pub theta_bound: f64,
    /// Privacy noise of the streams, if any.
    pub stream_noise: Option<StreamNoise>,
    /// True if the streams have a half-life, so that old messages have smaller weights.
    pub forgetting: bool,
}

/// The rule `whitened-filter`, for n units of which a share a may be corrupted.
///
/// 1. *Metric* (`gram.rs`). G is a geometric median of the V̂_i in which all directions count alike, and
///
///    ```text
///    Λ = G + λI = LLᵀ.
///    ```
///
/// 2. *Iteration.* From θ = 0, at most [`ROUNDS`] times:
///
///    ```text
///    z_i = L⁻¹(v̂_i − V̂_iθ),   m = centre(z_1, …, z_n),   s = Lm − λθ,   θ ← θ + M⁻¹s.
///    ```
///
///    In the first round the centre is the geometric median and M = Λ. From the second round on the centre is the
///    filter of step 3. M is then V̄_w + λI, with the weighted mean V̄_w of the V̂_i: if the weights stay the same, one
///    such round reaches the fixed point. M stays Λ unless half of the V̂_i are within 1 of G in the coordinates of Λ.
///
///    Done when sᵀM⁻¹s ≤ (R/100)², or before a step that would increase ‖L⁻¹s‖: rounds need not contract if agents
///    explore very different directions.
/// 3. *Filter* (`filter.rs`). Lowers weights along the direction of largest variance until noise explains that
///    variance; m is the weighted mean.
/// 4. *Width* (`width.rs`). An ellipsoid P around θ covers undetected corruption, noise, bias and the remaining s.
///    It is broadcast as Λ = P⁻¹ with β = 1: the agent's β‖x‖_{Λ⁻¹} is √(xᵀPx), so devices need no change.
///
/// The result depends on the streams alone, up to the tolerance of the medians; earlier episodes only provide their
/// starting points.
#[derive(Debug)]
pub struct Whitened {
    centre: Centre,
    assumptions: Assumptions,
    grams: Grams,
    residuals: Residuals,
}

/// λ without privacy.
pub const LAMBDA: f64 = 0.1;

/// Maximum number of rounds in step 2.
pub const ROUNDS: usize = 6;

/// Tolerance of medians that enter the result.
const FINE: Tolerance = Tolerance::Relative(1e-6);

/// Rows per parallel task.
const CHUNK: usize = 256;

/// Result of step 2.
struct Solution {
    theta: DVector<f64>,
    /// Moments of the z_i in the last round.
    cloud: Cloud,
    /// V̄_w + λI, if the centre has weights.
    explored: Option<DMatrix<f64>>,
    /// m − λL⁻¹θ at the final θ for unchanged weights: 0 at the fixed point.
    rest: DVector<f64>,
}

impl Whitened {
    /// Creates the rule. The fields of [`Assumptions`] document their valid ranges.
    pub fn new(centre: Centre, assumptions: Assumptions) -> Self {
        Self { centre, assumptions, grams: Grams::new(), residuals: Residuals::new() }
    }

    /// Returns λ and ν²(1 + S²)/R², with ν = ‖h‖₂/√d for the bound on the privacy noise h of one unit.
    ///
    /// The second number is the variance that this noise adds to a residual, in units of R². λ covers the error that it
    /// causes in the median of the Gram matrices: λ = max{[`LAMBDA`], κ‖H‖_F + ‖H‖₂/√n}.
    fn priors(&self, episode: u32, units: usize, dimension: usize) -> (f64, f64) {
        let Assumptions { noise, theta_bound, stream_noise, .. } = self.assumptions;
        let Some(stream_noise) = stream_noise else { return (LAMBDA, 0.0) };
        let one = stream_noise.of_mean(episode, 1.0);
        let added = one.vector.powi(2) * (1.0 + theta_bound.powi(2)) / (dimension as f64 * noise.powi(2));
        (LAMBDA.max(kappa(self.assumptions.corruption) * one.frobenius + one.spectral / (units as f64).sqrt()), added)
    }

    /// Runs step 2.
    fn solve(&mut self, streams: &Streams, metric: &Metric, alike: bool) -> Result<Solution, AggregateError> {
        let Metric { factor, inverse, design, lambda } = metric;
        let Assumptions { corruption, noise, .. } = self.assumptions;
        let d = streams.dimension();
        let zero = DVector::zeros(d);
        let mut solution = Solution { theta: zero.clone(), cloud: Cloud::at(zero.clone()), explored: None, rest: zero };
        for round in 0..ROUNDS {
            let theta = &mut solution.theta;
            self.residuals.at(streams, inverse, theta);
            let cloud = match self.centre {
                Centre::Mean => self.residuals.mean(d, noise),
                Centre::Filter if round > 0 => self.residuals.filtered(d, corruption, noise)?,
                Centre::Filter => Cloud::at(self.residuals.median(d)?),
            };
            let step = factor * &cloud.mean - &*theta * *lambda;
            let explored = (cloud.weight > 0.0).then(|| self.explored(streams, *lambda));
            let own = explored.clone().filter(|_| alike).and_then(DMatrix::cholesky);
            let moved = own.as_ref().unwrap_or(design).solve(&step);
            let mut leads_away = false;
            if let Some(explored) = &explored {
                let [before, after] = [step.clone(), &step - explored * &moved].map(|rest| inverse.matrix() * rest);
                leads_away = !(after.norm() <= before.norm());
                solution.rest = if leads_away { before } else { after };
            }
            (solution.cloud, solution.explored) = (cloud, explored);
            if leads_away {
                break;
            }
            *theta += &moved;
            if round > 0 && moved.dot(&step) <= (0.01 * noise).powi(2) {
                break;
            }
        }
        Ok(solution)
    }

    /// Runs steps 2 to 4. Returns θ, its parameters and the number of raised eigenvalues, or `None` if no device could
    /// use the parameters.
    fn parameters(
        &mut self,
        streams: &Streams,
        metric: &Metric,
        dispersion: f64,
    ) -> Result<Option<(DVector<f64>, ModelParameters, usize)>, AggregateError> {
        let alike = dispersion <= ALIKE;
        let solution = self.solve(streams, metric, alike)?;
        // Relative error of Λ that corrupted units may cause. With privacy, λ covers it, and thinly explored directions.
        let private = self.assumptions.stream_noise.is_some();
        let error = if private { 0.0 } else { kappa(self.assumptions.corruption) * dispersion };
        let width = self.width(metric, &solution, streams.gram.len() as f64) * (1.0 + error).powi(2);
        let width = match &solution.explored {
            Some(explored) if !private => {
                let inverse = self.inverse_exploration(streams, metric, explored, alike);
                symmetrised(&inverse * width * &inverse)
            }
            _ => width,
        };
        let theta = solution.theta;
        let usable = || {
            // The width bounds L⁻¹Λ(θ* − θ), so P⁻¹ = (L⁻¹Λ)ᵀ·width⁻¹·L⁻¹Λ.
            let back = metric.factor.solve_lower_triangular(&metric.design.l_dirty().lower_triangle())?;
            let back = back * metric.design.l_dirty().lower_triangle().transpose();
            let design = symmetrised(back.tr_mul(&(width.cholesky()?.inverse() * &back)));
            let (design, raised) = symmetric::raise_eigenvalues(design, 0.0)?;
            Some((theta.clone(), ModelParameters::new(&theta, &design, 1.0)?, raised))
        };
        Ok(usable())
    }
}

impl Rule for Whitened {
    fn estimate(&mut self, streams: &Streams, episode: u32) -> Result<Estimate, AggregateError> {
        let (d, units) = (streams.dimension(), streams.gram.len());
        if units == 0 {
            return Err(AggregateError::Empty);
        }
        let (lambda, added) = self.priors(episode, units, d);
        let (gram, dispersion) = self.grams.centre(self.centre, streams, lambda + added)?;
        let mut sum = vec![0.0; d];
        let (mut parameters, mut raised) = (None, 0);
        if let Some((metric, repaired)) = Metric::new(&gram, lambda, added) {
            raised = repaired;
            if let Some((theta, found, more)) = self.parameters(streams, &metric, dispersion)? {
                let factor = metric.design.l_dirty().lower_triangle();
                sum = (&factor * factor.tr_mul(&theta)).as_slice().to_vec();
                (parameters, raised) = (Some(found), raised + more);
            }
        }
        let packed: Vec<f64> = symmetric::pack(&gram).collect();
        let packed = symmetric::scaled(&packed, d).collect();
        let gram: Aggregate = certify(&streams.gram, packed);
        let feature_sum = certify(&streams.feature_sum, sum);
        Ok(Estimate { parameters, lambda, raised, gram, feature_sum, prior: None })
    }

    fn warm_start(&self) -> WarmStart {
        let Grams { raw, relative, .. } = &self.grams;
        WarmStart::of_parts([raw.warm_start(), relative.warm_start(), self.residuals.centre.warm_start()])
    }

    fn set_warm_start(&mut self, start: WarmStart) {
        let [raw, relative, centre] = start.into_parts();
        self.grams.raw.set_warm_start(raw);
        self.grams.relative.set_warm_start(relative);
        self.residuals.centre.set_warm_start(centre);
    }
}
