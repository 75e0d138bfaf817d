//! Beyond the paper: a rule in whitened coordinates, with a spectral filter and a width of its own.
//!
//! The paper's rule takes the median of the V̂_i and of the v̂_i in their own units. A direction that is rarely explored then
//! has an error as large as all others, and a width that does not shrink with the number of agents. Here Gram matrices are
//! compared relative to each other and agents by their residuals v̂_i − V̂_iθ, in units of their own noise. What is proven
//! of it and what is not stands in docs/theory.md.

mod filter;
mod gram;
mod kernel;
mod matrices;
mod width;

use nalgebra::{DMatrix, DVector};

use crate::aggregate::{Aggregate, AggregateError, Tolerance, certify};
use crate::algorithm::Streams;
use crate::algorithm::{Estimate, ModelParameters, Rule};
use crate::algorithm::{StreamNoise, kappa};
use crate::math::symmetric;
use filter::{Cloud, Residuals};
use gram::{ALIKE, Grams, Metric};
use matrices::symmetrised;

/// How [`Whitened`] finds the centre of whitened points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Centre {
    /// The spectral filter, and a width for each direction.
    Filter,
    /// The geometric median, and one width for all directions.
    Median,
    /// The mean, with the width of the filter: what the rule would do if it knew who is honest. One liar can move it anywhere.
    Mean,
    /// As `Filter`, with the relative medoid of the Gram matrices in place of their median. It takes the square of the number of units.
    Medoid,
}

/// What [`Whitened`] has to be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumptions {
    /// a: the share of units that may be corrupted, below 1/2.
    pub corruption: f64,
    /// R > 0: the reward's noise is R-sub-Gaussian.
    pub noise: f64,
    /// S ≥ ‖θ*‖₂.
    pub theta_bound: f64,
    /// What noise there is in a stream.
    pub stream_noise: Option<StreamNoise>,
}

/// The rules `whitened-filter` and `whitened-median`, for n units, a share a of which may be corrupted:
///
/// 1. Λ = G + λI = LLᵀ, where G is a geometric median of the V̂_i in which all directions count alike (`gram.rs`).
/// 2. From θ = 0, up to [`ROUNDS`] times: z_i = L⁻¹(v̂_i − V̂_iθ), m = centre(z_i), θ ← θ + Λ⁻¹(Lm − λθ). The centre is the geometric
///    median in the first round and the filter from then on, and then, if half of the V̂_i are within 1 of their median in the coordinates of
///    step 1, the mean of the V̂_i by its weights, plus λI, stands for Λ: if weights stay, one round is enough. Done when m moves θ by no
///    more than R/100 in the norm of that matrix, or when it would lead away, since agents may explore such different things that rounds do
///    not contract.
/// 3. The filter lowers the weights of units along the direction of the largest variance, until that is no more than noise explains, and takes the
///    mean of what is left (`filter.rs`).
/// 4. The width is an ellipsoid around θ, for what liars can do unseen, noise, the bias, and where θ has not arrived (`width.rs`). The agent's
///    √(xᵀPx) is its β‖x‖ in the norm of Λ⁻¹, with β = 1 and Λ = P⁻¹, so that nothing changes for devices.
///
/// The answer is a function of the streams, up to the tolerance of the medians: nothing else is kept from one episode to the next.
#[derive(Debug)]
pub struct Whitened {
    centre: Centre,
    assumptions: Assumptions,
    grams: Grams,
    residuals: Residuals,
}

/// λ without privacy.
pub const LAMBDA: f64 = 0.1;

/// How often θ is improved at most.
pub const ROUNDS: usize = 6;

const FINE: Tolerance = Tolerance::Relative(1e-6);

/// Rows that a thread takes at a time.
const CHUNK: usize = 256;

/// θ, and what it was made of.
struct Solution {
    theta: DVector<f64>,
    /// The z_i that are left.
    cloud: Cloud,
    /// What they have explored, with their weights, and λI.
    explored: Option<DMatrix<f64>>,
    /// m − λL⁻¹θ, if they kept their weights: 0 where θ has arrived.
    rest: DVector<f64>,
}

impl Whitened {
    /// The rule; see [`Assumptions`] for what makes sense.
    pub fn new(centre: Centre, assumptions: Assumptions) -> Self {
        Self { centre, assumptions, grams: Grams::new(), residuals: Residuals::new() }
    }

    /// λ and ν²(1 + S²)/R², where ν is the deviation of the noise in each coordinate of a release: that much it adds to the variance of
    /// a residual, in units of R². λ is such that Λ is not lost in the noise of its own median.
    fn priors(&self, episode: u32, units: usize, dimension: usize) -> (f64, f64) {
        let Assumptions { noise, theta_bound, stream_noise, .. } = self.assumptions;
        let Some(stream_noise) = stream_noise else { return (LAMBDA, 0.0) };
        let one = stream_noise.of_mean(episode, 1.0);
        let added = one.vector.powi(2) * (1.0 + theta_bound.powi(2)) / (dimension as f64 * noise.powi(2));
        (LAMBDA.max(kappa(self.assumptions.corruption) * one.frobenius + one.spectral / (units as f64).sqrt()), added)
    }

    /// Step 2.
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
                Centre::Filter | Centre::Medoid if round > 0 => self.residuals.filtered(d, corruption, noise)?,
                Centre::Filter | Centre::Medoid | Centre::Median => Cloud::at(self.residuals.median(d)?),
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

    /// θ and its parameters, if a device can use them, and how many eigenvalues were raised for that.
    fn parameters(
        &mut self,
        streams: &Streams,
        metric: &Metric,
        apart: f64,
    ) -> Result<Option<(DVector<f64>, ModelParameters, usize)>, AggregateError> {
        let alike = apart <= ALIKE;
        let solution = self.solve(streams, metric, alike)?;
        // By how much liars may have moved Λ, relative to itself. With privacy, λ allows for that, and for what few have explored.
        let private = self.assumptions.stream_noise.is_some();
        let moved = if private { 0.0 } else { kappa(self.assumptions.corruption) * apart };
        let width = self.width(metric, &solution, streams.gram.len() as f64) * (1.0 + moved).powi(2);
        let width = match &solution.explored {
            Some(explored) if !private => {
                let thin = self.thinned(streams, metric, explored, alike);
                symmetrised(&thin * width * &thin)
            }
            _ => width,
        };
        let theta = solution.theta;
        let usable = || {
            // P⁻¹ = (CCᵀ)⁻¹ in coordinates of the z_i; ΛL⁻ᵀ takes it to those of θ.
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
        let (gram, apart) = self.grams.centre(self.centre, streams, lambda + added)?;
        let mut sum = vec![0.0; d];
        let (mut parameters, mut raised) = (None, 0);
        if let Some((metric, repaired)) = Metric::new(&gram, lambda, added) {
            raised = repaired;
            if let Some((theta, found, more)) = self.parameters(streams, &metric, apart)? {
                let factor = metric.design.l_dirty().lower_triangle();
                sum = (&factor * factor.tr_mul(&theta)).as_slice().to_vec();
                (parameters, raised) = (Some(found), raised + more);
            }
        }
        let packed: Vec<f64> = symmetric::pack(&gram).collect();
        let packed = symmetric::scaled(&packed, d).collect();
        let gram: Aggregate = certify(&streams.gram, packed);
        Ok(Estimate { parameters, lambda, raised, gram, feature_sum: certify(&streams.feature_sum, sum) })
    }
}
