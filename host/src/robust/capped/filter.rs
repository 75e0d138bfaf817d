//! Start and spectral filter (steps 3 and 4 of [`Capped`](super::Capped)).

use std::cmp::Ordering;

use nalgebra::{DMatrix, DVector};

use super::super::filter::{edge, limit};
use super::super::kernel;
use super::super::matrices::{largest_eigenpair, symmetrised};
use super::units::{Units, along, weighted};
use crate::algorithm::kappa;
use crate::math::symmetric;

/// Smoothing of distances at 0, in units of R.
const SMOOTHING: f64 = 0.1;

/// Movement of φ at which the start has converged, in units of R.
const CONVERGED: f64 = 0.01;

/// Maximum number of iterations of the start.
const START_ROUNDS: usize = 60;

/// Least expected second moment along a direction, in units of R². Where no unit claims information, rounding remains.
pub(super) const LEAST_NOISE: f64 = 0.002;

/// Maximum number of directions, and of turns along one direction.
const MAX_PASSES: usize = 100;

/// Weighted fit of the units.
pub(super) struct Fit {
    /// φ = (Σw_iD_i)⁻¹Σw_ib_i.
    pub(super) phi: DVector<f64>,
    pub(super) weights: Vec<f64>,
    pub(super) weight: f64,
    /// E, the second moment of residuals that noise explains.
    pub(super) expected: DMatrix<f64>,
    /// K = E^{−1/2}(Σw_iz_iz_iᵀ/Σw_i)E^{−1/2}.
    pub(super) relative: DMatrix<f64>,
    /// Weight that the filter removed after the gate.
    pub(super) taken: f64,
}

/// Returns φ⁰ = argmin Σ‖D_i^{−1/2}(b_i − D_iφ)‖, by iteratively reweighted least squares.
pub(super) fn start(units: &Units, noise: f64) -> Option<DVector<f64>> {
    let mut phi = DVector::zeros(units.d);
    for _ in 0..START_ROUNDS {
        let smoothed = |square: f64| 1.0 / (square + (SMOOTHING * noise).powi(2)).sqrt();
        let weights: Vec<f64> = units.distances_squared(&phi).into_iter().map(smoothed).collect();
        let next = solution(units, &weights)?;
        let moved = (&next - &phi).norm();
        phi = next;
        if moved < CONVERGED * noise {
            break;
        }
    }
    Some(phi)
}

fn solution(units: &Units, weights: &[f64]) -> Option<DVector<f64>> {
    Some(units.total(weights).cholesky()?.solve(&DVector::from_vec(kernel::weighted_sum(&units.sums, weights))))
}

fn fit(units: &Units, weights: &[f64], near: f64, noise: f64) -> Option<Fit> {
    let weight: f64 = weights.iter().sum();
    let phi = solution(units, weights)?;
    let (_, _, squares) = kernel::moments(&units.residuals(&phi), weights, &vec![0.0; units.d]);
    let squares: Vec<f64> = symmetric::scaled(&squares, units.d).collect();
    let expected = weighted(&units.noise, weights, units.d) * (noise * noise / weight);
    let expected = symmetric::shifted(&expected, LEAST_NOISE * noise * noise);
    let root = power(&expected, -0.5);
    let relative = symmetrised(&root * symmetric::matrix(&squares, units.d) * &root / weight);
    Some(Fit { phi, weights: weights.to_vec(), weight, expected, relative, taken: near - weight })
}

/// Returns A^x for a positive definite A.
pub(super) fn power(matrix: &DMatrix<f64>, exponent: f64) -> DMatrix<f64> {
    let mut power = DMatrix::zeros(matrix.nrows(), matrix.ncols());
    for (value, q) in symmetric::eigenpairs(matrix) {
        power.ger(value.max(f64::MIN_POSITIVE).powf(exponent), &q, &q, 1.0);
    }
    power
}

/// Returns weight 1 for units that are as close to φ⁰ as honest ones, and 0 for others. `reach` bounds the noise of
/// D_i^{−1/2}z_i along any direction, and is R without privacy.
pub(super) fn gate(units: &Units, start: &DVector<f64>, a: f64, reach: f64) -> Vec<f64> {
    let (d, n) = (units.d as f64, units.len() as f64);
    let far = reach * ((1.0 + kappa(a)) * d.sqrt() + (2.0 * (10.0 * n).ln()).sqrt());
    let inside = |square: f64| f64::from(square <= far * far);
    units.distances_squared(start).into_iter().map(inside).collect()
}

/// Runs the filter, from the weights of the gate.
pub(super) fn filter(units: &Units, gate: &[f64], a: f64, noise: f64) -> Option<Fit> {
    let (d, n) = (units.d as f64, units.len() as f64);
    let mut weights = gate.to_vec();
    let near: f64 = weights.iter().sum();
    let least = (n * (1.0 - 2.0 * a)).max(n / 4.0).min(near / 2.0);
    let mut best: Option<(f64, Fit)> = None;
    for _ in 0..MAX_PASSES {
        let fit = fit(units, &weights, near, noise)?;
        let (value, direction) = largest_eigenpair(&fit.relative);
        if value <= limit(d, fit.weight) {
            return Some(fit);
        }
        let second = largest_eigenpair(&(&fit.relative - &direction * direction.transpose() * value)).0;
        let line = Line::new(units, &fit, &(power(&fit.expected, -0.5) * direction), noise);
        let relative = value / edge(d, fit.weight);
        if best.as_ref().is_none_or(|(least, _)| relative < *least) {
            best = Some((relative, fit));
        }
        if !line.lower(&mut weights, |weight| limit(d, weight).max(second), least) {
            break;
        }
    }
    best.map(|(_, fit)| fit)
}

/// Units along a direction q.
struct Line {
    /// qᵀz_i, relative to a robust centre.
    deviations: Vec<f64>,
    /// qᵀD_iq/‖q‖².
    claims: Vec<f64>,
    /// Variance of qᵀz_i that noise explains.
    variances: Vec<f64>,
}

impl Line {
    /// The centre is s·qᵀD_iq for the median s of qᵀz_i/qᵀD_iq with the weights qᵀD_iq.
    fn new(units: &Units, fit: &Fit, q: &DVector<f64>, noise: f64) -> Self {
        let square = q.norm_squared();
        let mut deviations = vec![0.0; units.len()];
        kernel::along(&units.residuals(&fit.phi), q.as_slice(), &mut deviations);
        let claims: Vec<f64> = units.claims(q).into_iter().map(|claim| claim / square).collect();
        let variance = |variance: f64| noise * noise * (variance + LEAST_NOISE * square);
        let variances = along(&units.noise, q).into_iter().map(variance).collect();
        let slopes = deviations.iter().zip(&claims).filter(|(_, claim)| **claim > 1e-9);
        let slope = weighted_median(slopes.map(|(deviation, claim)| (deviation / claim, *claim)).collect());
        deviations.iter_mut().zip(&claims).for_each(|(deviation, claim)| *deviation -= slope * claim);
        Self { deviations, claims, variances }
    }

    /// Lowers weights, most for units farthest from the centre, until the variance along q is at most `limit(W)` times the
    /// expected one. Stops before a turn that would leave less than `least`. Returns whether any weight was lowered.
    fn lower(&self, weights: &mut [f64], limit: impl Fn(f64) -> f64, least: f64) -> bool {
        let sum = |weights: &[f64], value: &dyn Fn(usize) -> f64| -> f64 {
            weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0).map(|(i, weight)| weight * value(i)).sum()
        };
        for turn in 0..MAX_PASSES {
            let total: f64 = weights.iter().sum();
            let slope = sum(weights, &|i| self.deviations[i]) / sum(weights, &|i| self.claims[i]).max(1e-12);
            let variance = sum(weights, &|i| (self.deviations[i] - slope * self.claims[i]).powi(2));
            let inside = self.deviations.iter().zip(&*weights).filter(|(_, weight)| **weight > 0.0);
            let farthest = inside.map(|(deviation, _)| deviation * deviation).fold(0.0, f64::max);
            let left = total - sum(weights, &|i| self.deviations[i].powi(2)) / farthest;
            let explained = variance <= limit(total) * sum(weights, &|i| self.variances[i]);
            if (turn > 0 && explained) || !(left >= least) {
                return turn > 0;
            }
            for (weight, deviation) in weights.iter_mut().zip(&self.deviations) {
                *weight *= (1.0 - deviation * deviation / farthest).max(0.0);
            }
        }
        true
    }
}

/// Returns the weighted lower median of (value, weight) pairs; 0 without any.
fn weighted_median(mut pairs: Vec<(f64, f64)>) -> f64 {
    let half = pairs.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let (place, _) = weighted_select(&mut pairs, |a, b| a.0.total_cmp(&b.0), |(_, weight)| *weight, half);
    pairs.get(place).map_or(0.0, |(value, _)| *value)
}

/// Reorders items so that those before the returned place come first, and weigh less than `target`, which they reach with the item at
/// the place. Also returns the weight by which they miss it.
pub(super) fn weighted_select<T>(
    items: &mut [T],
    order: impl Fn(&T, &T) -> Ordering,
    weight: impl Fn(&T) -> f64,
    target: f64,
) -> (usize, f64) {
    let (mut start, mut end, mut left) = (0, items.len(), target);
    while start < end {
        let middle = usize::midpoint(start, end);
        items[start..end].select_nth_unstable_by(middle - start, &order);
        let before: f64 = items[start..middle].iter().map(&weight).sum();
        let own = weight(&items[middle]);
        if before >= left {
            end = middle;
        } else if before + own >= left {
            return (middle, left - before);
        } else {
            (start, left) = (middle + 1, left - before - own);
        }
    }
    (start, left)
}

#[cfg(test)]
mod tests {
    use super::super::cap::Cap;
    use super::super::units::tests::Draws;
    use super::*;

    /// The objective is convex, so a point that no small step improves is its minimum.
    #[test]
    fn start_minimises_the_sum_of_distances() {
        let (n, d) = (50, 4);
        let mut draws = Draws::new(9);
        let mut streams = draws.fleet(n, d, |i| 10 + i);
        (0..15).for_each(|liar| streams.add(liar, &vec![0.0; streams.gram.dimension()], &vec![30.0; d]));
        let mut units = Units::default();
        let frame = Cap::default().apply(&mut units, &streams, 0.03, 0.3).unwrap();
        units.complete(&streams, &frame, 0.1);
        let objective = |phi: &DVector<f64>| {
            let smoothed = |square: f64| (square + (SMOOTHING * 0.5_f64).powi(2)).sqrt();
            units.distances_squared(phi).into_iter().map(smoothed).sum::<f64>()
        };
        let phi = start(&units, 0.5).unwrap();
        for _ in 0..200 {
            let step = draws.vector(d).normalize();
            assert!(objective(&(&phi + &step * 0.1)) > objective(&phi));
        }
    }

    #[test]
    fn weighted_median_has_half_of_the_weight_on_either_side() {
        assert_eq!(weighted_median(vec![]), 0.0);
        assert_eq!(weighted_median(vec![(3.0, 1.0), (1.0, 1.0), (2.0, 1.0)]), 2.0);
        assert_eq!(weighted_median(vec![(3.0, 5.0), (1.0, 1.0), (2.0, 1.0)]), 3.0);
    }
}
