//! Rule of a run that continues an earlier one: its estimates are fused with the earlier run's last model.
//!
//! docs/theory.md, section 10, proves the formulas. They need sums, products, quotients and square roots only, so every
//! machine computes the same bits.

use fedbandit_core::{VALUE_LIMIT, packed_len};
use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::rule::{Estimate, ModelParameters, Rule};
use super::streams::Streams;
use crate::aggregate::{AggregateError, WarmStart};
use crate::math::symmetric;

/// Last released model of an earlier run, with a discount ρ: θ* is in {θ: ‖θ − θ_0‖_Λ_0 ≤ β_0/√ρ}.
///
/// ρ < 1 allows θ* to have moved since, by up to β_0(1/√ρ − 1) in the norm of Λ_0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked", into = "Unchecked")]
pub struct PriorModel {
    theta: Vec<f32>,
    /// Λ_0 packed.
    design: Vec<f32>,
    beta: f32,
    discount: f64,
}

/// Error returned by [`PriorModel::new`].
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PriorError {
    /// ρ is not in (0, 1], or so small that β_0/√ρ exceeds the range of a model.
    #[error("the discount must be above 0, at most 1, and leave the width {1} in range, got {0}")]
    Discount(f64, f32),
    /// β_0 is not positive: the model would claim certainty, which no data could correct.
    #[error("the width of a prior model must be positive, got {0}")]
    Width(f32),
    /// θ_0 has no value, or Λ_0 has another dimension.
    #[error("theta has {0} values and the packed design {1}, which belong to no common dimension")]
    Shape(usize, usize),
    /// A value is out of the range of a model, or Λ_0 is not positive definite.
    #[error("the prior model is out of range, or its design is not positive definite")]
    Values,
}

/// A [`PriorModel`] as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    discount: f64,
    beta: f32,
    theta: Vec<f32>,
    design: Vec<f32>,
}

impl TryFrom<Unchecked> for PriorModel {
    type Error = PriorError;

    fn try_from(Unchecked { discount, beta, theta, design }: Unchecked) -> Result<Self, PriorError> {
        Self::new(theta, design, beta, discount)
    }
}

impl From<PriorModel> for Unchecked {
    fn from(PriorModel { theta, design, beta, discount }: PriorModel) -> Self {
        Self { discount, beta, theta, design }
    }
}

/// Part that the prior model has in an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum PriorUse {
    /// The model is the fusion with this weight w of the prior model: 1 if it is the prior model, 0 if it is the rule's own.
    Fused(f64),
    /// The prior model and the rule's own have no θ in common, so the model is the rule's own.
    Contradicted,
}

impl PriorModel {
    /// Creates a prior from θ_0, the packed upper triangle of Λ_0, β_0 and ρ.
    ///
    /// # Errors
    /// See [`PriorError`].
    pub fn new(theta: Vec<f32>, design: Vec<f32>, beta: f32, discount: f64) -> Result<Self, PriorError> {
        if theta.is_empty() || design.len() != packed_len(theta.len()) {
            return Err(PriorError::Shape(theta.len(), design.len()));
        }
        if !(beta > 0.0) {
            return Err(PriorError::Width(beta));
        }
        let prior = Self { theta, design, beta, discount };
        let in_range = |value: &f32| value.abs() <= VALUE_LIMIT;
        if !prior.theta.iter().chain(&prior.design).chain([&beta]).all(in_range) {
            return Err(PriorError::Values);
        }
        if !(discount > 0.0 && discount <= 1.0 && prior.width() <= f64::from(VALUE_LIMIT)) {
            return Err(PriorError::Discount(discount, beta));
        }
        prior.ellipsoid().design.cholesky().ok_or(PriorError::Values)?;
        Ok(prior)
    }

    /// Returns D.
    pub fn dimension(&self) -> usize {
        self.theta.len()
    }

    /// Returns ρ.
    pub fn discount(&self) -> f64 {
        self.discount
    }

    /// Returns β_0/√ρ.
    fn width(&self) -> f64 {
        f64::from(self.beta) / self.discount.sqrt()
    }

    fn ellipsoid(&self) -> Ellipsoid {
        Ellipsoid::new(&self.theta, &self.design, self.width())
    }

    /// Fuses a model with the prior. Returns the part of the prior, and the fused model with the number of raised eigenvalues
    /// unless it is the given one.
    fn fuse(&self, own: &ModelParameters) -> (PriorUse, Option<(ModelParameters, usize)>) {
        let [prior, own] = [self.ellipsoid(), Ellipsoid::new(own.theta(), own.design(), f64::from(own.beta()))];
        // A width of 0 is a claim of certainty.
        let pencil = (own.beta > 0.0).then(|| Pencil::new(&prior, &own)).flatten();
        let Some(pencil) = pencil else { return (PriorUse::Fused(0.0), None) };
        if pencil.largest_gap() > 1.0 {
            return (PriorUse::Contradicted, None);
        }
        let weight = pencil.weight();
        let fused = match weight {
            0.0 => None,
            1.0 => ModelParameters::new(&prior.centre, &prior.design, prior.beta).map(|parameters| (parameters, 0)),
            _ => prior.mixed_with(&own, weight),
        };
        (PriorUse::Fused(if fused.is_some() { weight } else { 0.0 }), fused)
    }
}

/// {θ: ‖θ − centre‖_design ≤ β}
struct Ellipsoid {
    centre: DVector<f64>,
    design: DMatrix<f64>,
    beta: f64,
}

impl Ellipsoid {
    fn new(theta: &[f32], packed: &[f32], beta: f64) -> Self {
        let dimension = theta.len();
        let mut design = DMatrix::zeros(dimension, dimension);
        let mut rest = packed;
        for i in 0..dimension {
            let (row, below) = rest.split_at(dimension - i);
            for (j, value) in (i..).zip(row) {
                (design[(i, j)], design[(j, i)]) = (f64::from(*value), f64::from(*value));
            }
            rest = below;
        }
        Self { centre: DVector::from_iterator(dimension, theta.iter().copied().map(f64::from)), design, beta }
    }

    /// A = Λ/β²
    fn shape(&self) -> DMatrix<f64> {
        &self.design / self.beta.powi(2)
    }

    /// Returns the ellipsoid wA_0 + (1 − w)A_1, for 0 < w < 1, around its centre.
    ///
    /// It is scaled so that Λ = vΛ_0 + (1 − v)Λ_1 with v = w/β_0²/β⁻² and β⁻² = w/β_0² + (1 − w)/β_1². So Λ stays in range.
    fn mixed_with(&self, other: &Self, weight: f64) -> Option<(ModelParameters, usize)> {
        let (first, second) = (weight / self.beta.powi(2), (1.0 - weight) / other.beta.powi(2));
        let share = first / (first + second);
        let design = &self.design * share + &other.design * (1.0 - share);
        let (design, raised) = symmetric::raise_eigenvalues(design, 0.0)?;
        let pull = &self.design * (&self.centre - &other.centre) * share;
        let theta = &other.centre + design.clone().cholesky()?.solve(&pull);
        Some((ModelParameters::new(&theta, &design, (first + second).sqrt().recip())?, raised))
    }
}

/// Two ellipsoids in coordinates in which A_0 + A_1 = I and both are diagonal.
struct Pencil {
    /// t_i, the diagonal of A_0, from 0 to 1; 1 − t_i is that of A_1.
    shares: Vec<f64>,
    /// z_i², the squared coordinates of θ_0 − θ_1.
    squares: Vec<f64>,
}

impl Pencil {
    fn new(prior: &Ellipsoid, own: &Ellipsoid) -> Option<Self> {
        let (prior_shape, own_shape) = (prior.shape(), own.shape());
        let factor = (&prior_shape + own_shape).cholesky()?.unpack();
        let half = factor.solve_lower_triangular(&prior_shape)?.transpose();
        let whitened = factor.solve_lower_triangular(&half)?;
        let difference = factor.tr_mul(&(&prior.centre - &own.centre));
        let pairs = symmetric::eigenpairs(&whitened);
        let (shares, squares): (Vec<f64>, Vec<f64>) =
            pairs.iter().map(|(value, vector)| (value.clamp(0.0, 1.0), vector.dot(&difference).powi(2))).unzip();
        shares.iter().chain(&squares).all(|value| value.is_finite()).then_some(Self { shares, squares })
    }

    /// Returns the w in \[0, 1\] with the largest determinant of A(w) = wA_0 + (1 − w)A_1. Its logarithm is concave.
    fn weight(&self) -> f64 {
        let slope = |w: f64| self.shares.iter().map(|t| (2.0 * t - 1.0) / mixture(w, *t)).sum();
        if slope(1.0) >= 0.0 {
            1.0
        } else if slope(0.0) <= 0.0 {
            0.0
        } else {
            root(slope)
        }
    }

    /// Returns the maximum over w of the concave w(1 − w)·ΔᵀA_0A(w)⁻¹A_1Δ, Δ = θ_0 − θ_1. The ellipsoids are disjoint if and
    /// only if it exceeds 1.
    fn largest_gap(&self) -> f64 {
        let terms = || self.shares.iter().zip(&self.squares).map(|(t, square)| (*t, square * t * (1.0 - t)));
        let slope = |w: f64| {
            let slope = |(t, c): (f64, f64)| c * ((1.0 - w).powi(2) * (1.0 - t) - w * w * t) / mixture(w, t).powi(2);
            terms().map(slope).sum()
        };
        let w = root(slope);
        terms().map(|(t, c)| c * w * (1.0 - w) / mixture(w, t)).sum()
    }
}

/// wt + (1 − w)(1 − t)
fn mixture(w: f64, t: f64) -> f64 {
    w * t + (1.0 - w) * (1.0 - t)
}

/// Number of bisections. With more, the middle could be rounded to 1.
const BISECTIONS: usize = 50;

/// Returns the place in (0, 1) where a decreasing function changes its sign.
fn root(decreasing: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        *if decreasing(middle) > 0.0 { &mut low } else { &mut high } = middle;
    }
    f64::midpoint(low, high)
}

/// Rule of a run that continues an earlier one.
///
/// Each estimate of the run's own rule is fused with the [`PriorModel`]. Both state that θ* is in an ellipsoid. The fused
/// ellipsoid contains all θ that are in both, and its volume is at most that of the smaller one:
///
/// ```text
/// A_0 = ρΛ_0/β_0²,  A_1 = Λ_1/β_1²,
/// A = wA_0 + (1 − w)A_1,  θ = A⁻¹(wA_0θ_0 + (1 − w)A_1θ_1),  w = argmax det A.
/// ```
///
/// While the run has fewer data, w = 1 and its models are the prior model. Once the rule's own ellipsoid is much smaller, w = 0. If the
/// two have no θ in common, the prior is wrong: θ* has moved further than ρ allows, or the earlier run was attacked. The
/// model is then the rule's own, and [`Estimate::prior`] says so.
///
/// The result depends on the streams through the rule's estimate alone.
#[derive(Clone, Debug)]
pub struct Continued<R> {
    /// Rule of the run itself.
    pub rule: R,
    /// Last model of the earlier run. It must have the dimension of the streams.
    pub prior: PriorModel,
}

impl<R: Rule> Rule for Continued<R> {
    fn estimate(&mut self, streams: &Streams, episode: u32) -> Result<Estimate, AggregateError> {
        let mut estimate = self.rule.estimate(streams, episode)?;
        if let Some(own) = &estimate.parameters {
            let (prior, fused) = self.prior.fuse(own);
            estimate.prior = Some(prior);
            if let Some((parameters, raised)) = fused {
                (estimate.parameters, estimate.raised) = (Some(parameters), estimate.raised + raised);
            }
        }
        Ok(estimate)
    }

    fn warm_start(&self) -> WarmStart {
        self.rule.warm_start()
    }

    fn set_warm_start(&mut self, start: WarmStart) {
        self.rule.set_warm_start(start);
    }
}
