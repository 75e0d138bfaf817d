//! Spectral filter over the whitened residuals z_1, …, z_n (step 3 of [`Whitened`](super::Whitened)).
//!
//! 1. *Scale.* With the geometric median m₀ of the z_i, and ℓ(d, a) of [`normal::median_length`],
//!
//!    ```text
//!    R′ = max{R, med_i ‖z_i − m₀‖/ℓ(d, a)}.
//!    ```
//!
//!    ℓ is the median length of standard normal units while corrupted ones are far away. R′ exceeds R where honest
//!    units differ by what they have explored, and where corrupted units move m₀.
//! 2. *Gate.* With κ = a/√(1 − 2a) for the effect of corrupted units on m₀,
//!
//!    ```text
//!    w_i = 1 if ‖z_i − m₀‖ ≤ R′((1 + κ)√d + √(2·ln 10n)), else 0.
//!    ```
//!
//! 3. *Filter.* Let C be the covariance of the z_i with weights w, q its first eigenvector, and W = Σw_i. While
//!    λ_max(C) > 1.1(1 + √(d/W))²R′²:
//!
//!    ```text
//!    s_i = (qᵀz_i − med_j qᵀz_j)²,   w_i ← w_i(1 − s_i/max_{w_j > 0} s_j),
//!    ```
//!
//!    repeated with the same q until the variance along q is at most this limit or the second eigenvalue of C.
//! 4. *Stop* where W would fall below max(n(1 − 2a), n/4), or after [`MAX_PASSES`]. The result then has the weights with
//!    the smallest λ_max(C)/(1 + √(d/W))².
//!
//! Scores are measured from the median, not from the mean. Near a = 1/2 the mean lies between corrupted and honest
//! units, and the filter would take more weight from honest ones (docs/theory.md, *Scores from the median*).

use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;

use super::matrices::{Inverse, largest_eigenpair};
use super::{CHUNK, FINE, kernel};
use crate::aggregate::{AggregateError, Aggregator, GeometricMedian, Points, distance, lower_median, median};
use crate::algorithm::Streams;
use crate::algorithm::kappa;
use crate::math::normal;
use crate::math::symmetric;

/// Maximum number of directions, and of turns along one direction.
const MAX_PASSES: usize = 100;

/// Limit of the filter, in units of [`edge`].
const SLACK: f64 = 1.1;

/// The z_i and their weights.
#[derive(Debug)]
pub(super) struct Residuals {
    pub(super) residuals: Vec<f64>,
    pub(super) weights: Vec<f64>,
    /// Distances from the geometric median, later deviations along a direction.
    deviations: Vec<f64>,
    pub(super) centre: GeometricMedian,
}

impl Residuals {
    pub(super) fn new() -> Self {
        let [residuals, weights, deviations] = [const { Vec::new() }; 3];
        Self { residuals, weights, deviations, centre: GeometricMedian::new(FINE) }
    }

    /// Computes all z_i at θ.
    pub(super) fn at(&mut self, streams: &Streams, inverse: &Inverse, theta: &DVector<f64>) {
        let (d, p) = (theta.len(), streams.gram.dimension());
        self.residuals.resize(streams.feature_sum.values().len(), 0.0);
        let rows = streams.gram.values().par_chunks(CHUNK * p).zip(streams.feature_sum.values().par_chunks(CHUNK * d));
        rows.zip(self.residuals.par_chunks_mut(CHUNK * d)).for_each(|((grams, sums), residuals)| {
            kernel::residuals(grams, sums, residuals, inverse, theta.as_slice());
        });
        // Overflow counts as 0, like every value that is not finite.
        self.residuals.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = 0.0);
    }

    /// Returns the geometric median of the z_i.
    pub(super) fn median(&mut self, d: usize) -> Result<DVector<f64>, AggregateError> {
        let Ok(points) = Points::new(&self.residuals[..], d) else { return Err(AggregateError::Empty) };
        Ok(self.centre.aggregate(&points)?.point.into())
    }

    /// Returns the moments of the z_i with equal weights.
    pub(super) fn mean(&mut self, d: usize, noise: f64) -> Cloud {
        let n = self.residuals.len() / d;
        self.weights.resize(n, 1.0);
        self.weighted(&vec![0.0; d], n as f64, noise)
    }

    /// Returns the weighted moments of the z_i. A nearby origin avoids cancellation.
    fn weighted(&self, origin: &[f64], near: f64, noise: f64) -> Cloud {
        let d = origin.len();
        let (weight, sum, squares) = kernel::moments(&self.residuals, &self.weights, origin);
        let offset = DVector::from_vec(sum) / weight;
        let squares: Vec<f64> = symmetric::scaled(&squares, d).collect();
        let spread = symmetric::matrix(&squares, d) / weight - &offset * offset.transpose();
        Cloud { mean: DVector::from_column_slice(origin) + offset, spread, weight, noise, taken: near - weight }
    }

    /// Runs the filter. Returns the moments of the z_i with the final weights.
    pub(super) fn filtered(&mut self, d: usize, a: f64, noise: f64) -> Result<Cloud, AggregateError> {
        let centre = self.median(d)?;
        let n = self.residuals.len() as f64 / d as f64;
        self.deviations.clear();
        self.deviations.extend(self.residuals.chunks_exact(d).map(|row| distance(row, centre.as_slice())));
        let noise = noise.max(lower_median(self.deviations.clone()) / normal::median_length(d as f64, a));
        let far = noise * ((1.0 + kappa(a)) * (d as f64).sqrt() + (2.0 * (10.0 * n).ln()).sqrt());
        self.weights.clear();
        self.weights.extend(self.deviations.iter().map(|distance| f64::from(*distance <= far)));
        let near: f64 = self.weights.iter().sum();
        let least = (n * (1.0 - 2.0 * a)).max(n / 4.0);
        let limit = |weight: f64| limit(d as f64, weight) * noise * noise;
        let mut best: Option<(f64, Cloud, Vec<f64>)> = None;
        for _ in 0..MAX_PASSES {
            let cloud = self.weighted(centre.as_slice(), near, noise);
            let (value, direction) = largest_eigenpair(&cloud.spread);
            if value <= limit(cloud.weight) {
                return Ok(cloud);
            }
            kernel::along(&self.residuals, direction.as_slice(), &mut self.deviations);
            let middle = median(&mut self.deviations.clone());
            self.deviations.iter_mut().for_each(|deviation| *deviation -= middle);
            let second = largest_eigenpair(&(&cloud.spread - &direction * direction.transpose() * value)).0;
            let relative = value / edge(d as f64, cloud.weight);
            if best.as_ref().is_none_or(|(least, ..)| relative < *least) {
                best = Some((relative, cloud, self.weights.clone()));
            }
            if !lower_weights(&self.deviations, &mut self.weights, |weight| limit(weight).max(second), least) {
                break;
            }
        }
        let (_, cloud, weights) = best.ok_or(AggregateError::Empty)?;
        self.weights = weights;
        Ok(cloud)
    }
}

/// Weighted moments of the z_i.
pub(super) struct Cloud {
    pub(super) mean: DVector<f64>,
    pub(super) spread: DMatrix<f64>,
    pub(super) weight: f64,
    /// R′.
    pub(super) noise: f64,
    /// Weight that the filter removed after the gate.
    pub(super) taken: f64,
}

impl Cloud {
    /// Returns a centre without weights.
    pub(super) fn at(mean: DVector<f64>) -> Self {
        Self { spread: DMatrix::zeros(mean.len(), mean.len()), mean, weight: 0.0, noise: 0.0, taken: 0.0 }
    }
}

/// Largest eigenvalue of C that the filter accepts, in units of R′².
pub(super) fn limit(d: f64, weight: f64) -> f64 {
    SLACK * edge(d, weight)
}

/// Largest eigenvalue of the sample covariance of `weight` standard normal vectors, to leading order.
pub(super) fn edge(d: f64, weight: f64) -> f64 {
    (1.0 + (d / weight).sqrt()).powi(2)
}

/// Lowers the weights of numbers, most for those farthest from 0, until their variance is at most `limit(W)`.
///
/// Stops before a turn that would leave less than `least`. Returns whether any weight was lowered.
fn lower_weights(numbers: &[f64], weights: &mut [f64], limit: impl Fn(f64) -> f64, least: f64) -> bool {
    let mut line = kernel::lower(numbers, weights, f64::INFINITY);
    for turn in 0..MAX_PASSES {
        // Σw(1 − s/max s).
        let left = line.weight * (1.0 - line.square / line.farthest);
        if (turn > 0 && line.variance <= limit(line.weight)) || !(left >= least) {
            return turn > 0;
        }
        line = kernel::lower(numbers, weights, line.farthest);
    }
    true
}
