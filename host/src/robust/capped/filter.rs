//! Start and spectral filter (steps 3 and 4 of [`Capped`](super::Capped)).

use std::cmp::Ordering;

use nalgebra::{DMatrix, DVector};

use super::super::filter::{edge, limit};
use super::super::kernel::lower;
use super::super::matrices::{largest_eigenpair, symmetrised};
use super::sums::{dot, sum};
use super::units::Units;
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
    Some(units.total(weights).cholesky()?.solve(&units.total_sum(weights)))
}

fn fit(units: &Units, weights: &[f64], near: f64, noise: f64) -> Option<Fit> {
    let weight = sum(weights);
    let phi = solution(units, weights)?;
    let expected = units.total_noise(weights) * (noise * noise / weight);
    let expected = symmetric::shifted(&expected, LEAST_NOISE * noise * noise);
    let root = power(&expected, -0.5);
    let relative = symmetrised(&root * units.total_square(&phi, weights) * &root / weight);
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
    let near = sum(&weights);
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
        let mut deviations = units.residuals_along(q, &fit.phi);
        let claims: Vec<f64> = units.claims(q).into_iter().map(|claim| claim / square).collect();
        let variance = |variance: f64| noise * noise * (variance + LEAST_NOISE * square);
        let variances = units.noise_along(std::slice::from_ref(q)).swap_remove(0).into_iter().map(variance).collect();
        let slopes = deviations.iter().zip(&claims).filter(|(_, claim)| **claim > 1e-9);
        let slope = weighted_median(slopes.map(|(deviation, claim)| (deviation / claim, *claim)).collect());
        deviations.iter_mut().zip(&claims).for_each(|(deviation, claim)| *deviation -= slope * claim);
        Self { deviations, claims, variances }
    }

    /// Lowers weights, most for units farthest from the centre, until the variance along q is at most `limit(W)` times the
    /// expected one. Stops before a turn that would leave less than `least`. Returns whether any weight was lowered.
    fn lower(&self, weights: &mut [f64], limit: impl Fn(f64) -> f64, least: f64) -> bool {
        let mut line = lower(&self.deviations, weights, f64::INFINITY);
        let terms = || self.deviations.iter().zip(&self.claims);
        let squares: Vec<f64> = self.claims.iter().map(|claim| claim * claim).collect();
        let products: Vec<f64> = terms().map(|(deviation, claim)| deviation * claim).collect();
        for turn in 0..MAX_PASSES {
            let slope = dot(weights, &self.deviations) / dot(weights, &self.claims).max(1e-12);
            // Σw(y − s·c)² for deviations y, claims c and the slope s.
            let square = line.square * line.weight;
            let variance = square - slope * (2.0 * dot(weights, &products) - slope * dot(weights, &squares));
            let left = line.weight - square / line.farthest;
            let explained = variance <= limit(line.weight) * dot(weights, &self.variances);
            if (turn > 0 && explained) || !(left >= least) {
                return turn > 0;
            }
            line = lower(&self.deviations, weights, line.farthest);
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
    let mut total: f64 = items.iter().map(&weight).sum();
    let mut even = false;
    while start < end {
        // Where the place is if weights are equal. Every other turn halves the range, whatever they are.
        let guess = (left / total * (end - start) as f64) as usize;
        let middle = if even { usize::midpoint(start, end) } else { start + guess.min(end - start - 1) };
        items[start..end].select_nth_unstable_by(middle - start, &order);
        let before: f64 = items[start..middle].iter().map(&weight).sum();
        let own = weight(&items[middle]);
        if before >= left {
            (end, total) = (middle, before);
        } else if before + own >= left {
            return (middle, left - before);
        } else {
            (start, left, total) = (middle + 1, left - before - own, total - before - own);
        }
        even = !even;
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
