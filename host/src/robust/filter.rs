//! Step 3: the filter weighs all z_i alike, but those not at all that are farther from their median than R′((1 + κ)√d + √(2 ln 10n)), with
//! κ = a/√(1 − 2a) for what liars can do to it. R′ is R, or more if their median distance is more than R and liars far away make it (see
//! `normal::median_length`): honest units differ by what they have explored, too, and liars move the median that distances are taken from. While
//! the largest eigenvalue of the weighted covariance C is above 1.1(1 + √(d/W))²R′², W being the sum of weights, weights go down along its
//! eigenvector: with s_i the squared distance there from the median of all units, w_i ← w_i(1 − s_i/max s), again until the variance there is no
//! more than that, or than the second eigenvalue was. (Around the mean, which lies between nearly half liars and the honest units, it would take
//! more of these; docs/theory.md compares the two.) If less than max(n(1 − 2a), n/4) of W would be left, or after [`PASSES`], the weights with the
//! least largest eigenvalue of C relative to (1 + √(d/W))² are taken, and their m and C.

use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;

use super::matrices::{Inverse, largest_eigenpair};
use super::{CHUNK, FINE, kernel};
use crate::aggregate::{AggregateError, Aggregator, GeometricMedian, Points, distance, lower_median, median};
use crate::algorithm::Streams;
use crate::algorithm::kappa;
use crate::math::normal;
use crate::math::symmetric;

/// How often a filter lowers weights at most.
const PASSES: usize = 100;

/// How far above the largest eigenvalue of noise alone the filter stops.
const SLACK: f64 = 1.1;

/// The z_i, and their weights.
#[derive(Debug)]
pub(super) struct Residuals {
    pub(super) residuals: Vec<f64>,
    pub(super) weights: Vec<f64>,
    /// From their median, or along a direction of the filter.
    deviations: Vec<f64>,
    centre: GeometricMedian,
}

impl Residuals {
    pub(super) fn new() -> Self {
        let [residuals, weights, deviations] = [const { Vec::new() }; 3];
        Self { residuals, weights, deviations, centre: GeometricMedian::new(FINE) }
    }

    /// All z_i at θ.
    pub(super) fn at(&mut self, streams: &Streams, inverse: &Inverse, theta: &DVector<f64>) {
        let (d, p) = (theta.len(), streams.gram.dimension());
        self.residuals.resize(streams.feature_sum.values().len(), 0.0);
        let rows = streams.gram.values().par_chunks(CHUNK * p).zip(streams.feature_sum.values().par_chunks(CHUNK * d));
        rows.zip(self.residuals.par_chunks_mut(CHUNK * d)).for_each(|((grams, sums), residuals)| {
            kernel::residuals(grams, sums, residuals, inverse, theta.as_slice());
        });
        // What overflowed counts as nothing, as everywhere.
        self.residuals.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = 0.0);
    }

    /// Their geometric median.
    pub(super) fn median(&mut self, d: usize) -> Result<DVector<f64>, AggregateError> {
        let Ok(points) = Points::new(&self.residuals[..], d) else { return Err(AggregateError::Empty) };
        Ok(self.centre.aggregate(&points)?.point.into())
    }

    /// The mean of all.
    pub(super) fn mean(&mut self, d: usize, noise: f64) -> Cloud {
        let n = self.residuals.len() / d;
        self.weights.resize(n, 1.0);
        self.weighted(&vec![0.0; d], n as f64, noise)
    }

    /// Weight, mean and covariance of the z_i with weights, computed around a point nearby, so that nothing cancels.
    fn weighted(&self, origin: &[f64], near: f64, noise: f64) -> Cloud {
        let d = origin.len();
        let (weight, sum, squares) = kernel::moments(&self.residuals, &self.weights, origin);
        let offset = DVector::from_vec(sum) / weight;
        let squares: Vec<f64> = symmetric::scaled(&squares, d).collect();
        let spread = symmetric::matrix(&squares, d) / weight - &offset * offset.transpose();
        Cloud { mean: DVector::from_column_slice(origin) + offset, spread, weight, noise, taken: near - weight }
    }

    /// Those that are left.
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
        for _ in 0..PASSES {
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
            if !lower(&self.deviations, &mut self.weights, |weight| limit(weight).max(second), least) {
                break;
            }
        }
        let (_, cloud, weights) = best.ok_or(AggregateError::Empty)?;
        self.weights = weights;
        Ok(cloud)
    }
}

/// Some of the z_i.
pub(super) struct Cloud {
    pub(super) mean: DVector<f64>,
    pub(super) spread: DMatrix<f64>,
    pub(super) weight: f64,
    /// R′.
    pub(super) noise: f64,
    /// What the filter took of the weight of those that are near.
    pub(super) taken: f64,
}

impl Cloud {
    /// A point of which nothing else is known.
    pub(super) fn at(mean: DVector<f64>) -> Self {
        Self { spread: DMatrix::zeros(mean.len(), mean.len()), mean, weight: 0.0, noise: 0.0, taken: 0.0 }
    }
}

/// The largest eigenvalue of a covariance, in units of R′², that the filter leaves as it is.
pub(super) fn limit(d: f64, weight: f64) -> f64 {
    SLACK * edge(d, weight)
}

/// The largest eigenvalue of the covariance of standard normal units, if they are many.
fn edge(d: f64, weight: f64) -> f64 {
    (1.0 + (d / weight).sqrt()).powi(2)
}

/// Lowers the weights of numbers, those of the farthest from 0 most, until their variance is at most what `limit` allows for the
/// weight that is left; whether any was lowered before less than `least` would have been left.
fn lower(numbers: &[f64], weights: &mut [f64], limit: impl Fn(f64) -> f64, least: f64) -> bool {
    let mut line = kernel::lower(numbers, weights, f64::INFINITY);
    for turn in 0..PASSES {
        // Σw(1 − s/max s).
        let left = line.weight * (1.0 - line.square / line.farthest);
        if (turn > 0 && line.variance <= limit(line.weight)) || !(left >= least) {
            return turn > 0;
        }
        line = kernel::lower(numbers, weights, line.farthest);
    }
    true
}
