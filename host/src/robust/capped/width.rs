//! Width of the estimate (step 5 of [`Capped`](super::Capped)).
//!
//! As Σw_i(b_i − D_iφ) = 0, with sums over honest units
//!
//! ```text
//! J(φ* − φ) = −Ξ + λ·Σw_i(I − D_i)L⁻¹θ* − ζ,   J = Σw_iD_i.
//! ```
//!
//! Ξ is the sum of noise, and ζ = Σw_i(b_i − D_iφ) over corrupted units. Each axis q has bounds of its own, because few units may have
//! explored it, and corrupted ones may claim more of it than others:
//!
//! 1. *Claims* c_i = qᵀD_iq. Let a′ be the share of the ⌊an⌋ largest claims in all, and n′ = (Σc)²/Σc² the number of units that
//!    claim. For these, [`filter_effect`] returns the share ε of corrupted units in the remaining weight W′ = n′·Σwc/Σc.
//! 2. *Kept units* are all but a weight εW′ with the largest claims. Their claims are at most J, and their noise is compared with
//!    it: noise and claims of the same units are large together.
//! 3. *Undetected corruption.* Let Z = Σw(qᵀz)² over all units, of which honest noise has Z_H. Then
//!
//!    ```text
//!    (qᵀζ)² ≤ ε(1 − ε)W′·(Z − Z_H).
//!    ```
//!
//!    *Proof*, if corrupted units have a weight of at most εW′, and honest ones (Σwc)²/Σwc² ≥ (1 − ε)W′. With m = qᵀζ, corrupted
//!    units have Σw(qᵀz)² ≥ m²/(εW′) by the Cauchy–Schwarz inequality. The residuals of honest ones sum to −m, up to noise, and are
//!    proportional to their claims. So their squares exceed noise by m²Σwc²/(Σwc)² ≤ m²/((1 − ε)W′), and the sum of both lower bounds
//!    is m²/(ε(1 − ε)W′). ∎

use std::borrow::Cow;

use nalgebra::{DMatrix, DVector};

use super::super::Assumptions;
use super::super::matrices::{largest_eigenpair, outer_sum, positive_part, symmetrised};
use super::super::width::{FilterEffect, TAIL, filter_effect};
use super::filter::{Fit, LEAST_NOISE, power, weighted_select};
use super::sums::{dot, sum};
use super::units::{Frame, Units};
use crate::math::symmetric;

/// Least sum of claims along an axis, relative to the weight of all units, that the width assumes.
const LEAST_INFORMATION: f64 = 1e-4;

/// Largest share of claims that corrupted units are assumed to have along an axis.
const LARGEST_SHARE: f64 = 0.49;

/// Value that keeps a matrix positive definite in spite of rounding.
const ROUNDING: f64 = 1e-9;

/// Maximum number of turns in the search for an axis with the least information.
const TURNS: usize = 4;

/// Input of the width.
pub(super) struct Problem<'a> {
    pub(super) units: &'a Units,
    pub(super) frame: &'a Frame,
    pub(super) fit: &'a Fit,
    /// Weights before the filter.
    pub(super) gate: &'a [f64],
    /// Orthonormal axes, from [`axes`].
    pub(super) axes: &'a [DVector<f64>],
}

/// Returns the ellipsoid of φ* − φ.
pub(super) fn width(problem: &Problem<'_>, a: f64, assumptions: &Assumptions) -> DMatrix<f64> {
    let Problem { units, frame, fit, axes, .. } = *problem;
    let Assumptions { theta_bound, forgetting, .. } = *assumptions;
    let d = units.d as f64;
    // Diagonals in the basis of the axes: factors of the ellipsoids of ζ, Ξ and the bias, and the share of Z that noise shows.
    let [mut hidden, mut spread, mut bias, mut shown] = [(); 4].map(|()| DMatrix::zeros(units.d, units.d));
    let along = units.claims_along(axes).into_iter().zip(units.noise_along(axes));
    for (q, (claims, noise)) in axes.iter().zip(along) {
        let claims = Claims::new(problem, claims, a);
        let FilterEffect { liars, shift, variance } = claims.effect;
        let honest = (1.0 - liars) * claims.remaining;
        let kept = keep_smallest(&claims.claims, &fit.weights, liars * claims.remaining);
        let kept_weight = sum(&kept);
        let known = dot(&kept, &claims.claims);
        let informed = known + LEAST_INFORMATION * kept_weight;
        let variance_of = |weights: &[f64]| dot(weights, &noise) + LEAST_NOISE * sum(weights);
        let kept_noise = variance_of(&kept) / variance_of(&fit.weights);
        let edge = if forgetting { 0.0 } else { (1.0 - (d / honest).sqrt()).max(0.0).powi(2) };
        let add = |to: &mut DMatrix<f64>, value: f64| to.ger(value, q, q, 1.0);
        add(&mut shown, edge * variance * kept_noise);
        add(&mut hidden, (liars * honest * fit.weight).sqrt() / informed);
        add(&mut spread, (d.sqrt() + TAIL + shift * honest.sqrt()) * (kept_noise * fit.weight).sqrt() / informed);
        add(&mut bias, (kept_weight - known) / informed);
    }
    let root = power(&fit.expected, 0.5);
    let undetected = symmetrised(&root * positive_part(&symmetrised(&fit.relative - shown)) * &root);
    let congruent = |factor: &DMatrix<f64>, matrix: &DMatrix<f64>| symmetrised(factor * matrix * factor);
    let prior = &frame.unit * (frame.lambda * theta_bound).powi(2);
    outer_sum(&[congruent(&hidden, &undetected), congruent(&spread, &fit.expected), congruent(&bias, &prior)])
}

/// Claims along an axis.
struct Claims {
    claims: Vec<f64>,
    /// Effect of the filter on the units that claim.
    effect: FilterEffect,
    /// W′.
    remaining: f64,
}

impl Claims {
    fn new(problem: &Problem<'_>, claims: Vec<f64>, a: f64) -> Self {
        let total = sum(&claims).max(f64::MIN_POSITIVE);
        let alike = total * total / dot(&claims, &claims).max(f64::MIN_POSITIVE);
        let largest = largest_sum(&claims, (a * claims.len() as f64).floor() as usize);
        let share = (largest / total).clamp(a, LARGEST_SHARE);
        let [near, left] = [problem.gate, &problem.fit.weights].map(|weights| dot(weights, &claims));
        let taken = (1.0 - left / near.max(f64::MIN_POSITIVE)) * alike;
        let effect = filter_effect(share, alike, problem.units.d as f64, taken);
        Self { claims, effect, remaining: alike * left / total }
    }
}

/// Returns the sum of the largest numbers.
fn largest_sum(numbers: &[f64], count: usize) -> f64 {
    let mut numbers = numbers.to_vec();
    if 0 < count && count < numbers.len() {
        numbers.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
    }
    sum(&numbers[..count])
}

/// Returns the weights without a part of them at the units with the largest claims.
fn keep_smallest(claims: &[f64], weights: &[f64], dropped: f64) -> Vec<f64> {
    let mut pairs: Vec<(f64, f64)> = claims.iter().copied().zip(weights.iter().copied()).collect();
    let (place, _) = weighted_select(&mut pairs, |a, b| b.0.total_cmp(&a.0), |(_, weight)| *weight, dropped);
    let Some((limit, _)) = pairs.get(place) else { return vec![0.0; weights.len()] };
    let smaller = claims.iter().zip(weights).map(|(claim, weight)| if claim > limit { 0.0 } else { *weight });
    let mut kept: Vec<f64> = smaller.collect();
    let mut left = dropped - (sum(weights) - sum(&kept));
    for (kept, _) in kept.iter_mut().zip(claims).filter(|(_, claim)| *claim == limit) {
        let removed = kept.min(left.max(0.0));
        *kept -= removed;
        left -= removed;
    }
    kept
}

/// Returns orthonormal axes, of which each has, among directions orthogonal to those before, about the smallest mean of claims without
/// the units with the largest ones.
///
/// The search alternates between the eigenvector of the smallest eigenvalue of ΣwD and the weights that are kept along it.
pub(super) fn axes(units: &Units, fit: &Fit, a: f64) -> Vec<DVector<f64>> {
    let (d, n) = (units.d, units.len() as f64);
    let dropped = filter_effect(a, n, d as f64, fit.taken).liars * fit.weight;
    let mut axes = Vec::with_capacity(d);
    let mut remaining = DMatrix::<f64>::identity(d, d);
    let mean = |kept: &[f64]| units.total(kept) / sum(kept);
    let all = mean(&fit.weights);
    for _ in 0..d {
        let mut mean_kept = Cow::Borrowed(&all);
        let mut smallest: Option<(f64, DVector<f64>)> = None;
        for _ in 0..TURNS {
            let q = (&remaining * least_known(&remaining, &mean_kept)).normalize();
            let claims = units.claims(&q);
            let kept = keep_smallest(&claims, &fit.weights, dropped);
            let value = dot(&kept, &claims) / sum(&kept);
            if smallest.as_ref().is_some_and(|(least, _)| value >= least - 1e-4) {
                break;
            }
            smallest = Some((value, q));
            mean_kept = Cow::Owned(mean(&kept));
        }
        let Some((_, q)) = smallest else { break };
        remaining -= &q * q.transpose();
        axes.push(q);
    }
    axes
}

/// Returns a direction of the projection `remaining` along which a matrix has about the smallest value.
fn least_known(remaining: &DMatrix<f64>, matrix: &DMatrix<f64>) -> DVector<f64> {
    let d = remaining.nrows();
    // Other directions have a larger value than any of the projection, as information is at most I.
    let done = (DMatrix::identity(d, d) - remaining) * 10.0;
    let relative = symmetrised(remaining * matrix * remaining + done);
    match symmetric::shifted(&relative, ROUNDING).cholesky() {
        Some(factors) => largest_eigenpair(&symmetrised(factors.inverse())).1,
        None => DVector::zeros(d),
    }
}

#[cfg(test)]
mod tests {
    use super::super::units::tests::Draws;
    use super::*;

    /// The definition: units in the order of their claims lose weight until the given one is gone.
    #[test]
    fn keep_smallest_drops_weight_from_largest_claims() {
        let mut draws = Draws::new(3);
        for n in [1, 2, 3, 10, 101] {
            // Many equal claims, and some weights of 0.
            let claims: Vec<f64> = draws.vector(n).iter().map(|claim| (claim * 3.0).round()).collect();
            let weights: Vec<f64> = draws.vector(n).iter().map(|weight| weight.clamp(0.0, 1.0)).collect();
            let total: f64 = weights.iter().sum();
            for dropped in [0.0, 0.3, total / 2.0, total - 0.1, total + 1.0] {
                let mut order: Vec<usize> = (0..n).collect();
                order.sort_by(|a, b| claims[*b].total_cmp(&claims[*a]));
                let (mut expected, mut left) = (weights.clone(), dropped.max(0.0));
                for unit in order {
                    let removed = expected[unit].min(left);
                    expected[unit] -= removed;
                    left -= removed;
                }
                let kept = keep_smallest(&claims, &weights, dropped);
                for (kept, expected) in kept.iter().zip(expected) {
                    assert!((kept - expected).abs() < 1e-12, "{kept} instead of {expected} of {n}, {dropped} dropped");
                }
            }
        }
    }

    /// The last direction that remains is found, whatever the matrix.
    #[test]
    fn least_known_direction_has_the_smallest_eigenvalue_of_the_projection() {
        let mut draws = Draws::new(4);
        let d = 6;
        let spread = DMatrix::from_columns(&(0..d).map(|_| draws.vector(d)).collect::<Vec<_>>());
        let information = &spread * spread.transpose() / (spread.norm() * spread.norm());
        let done = draws.vector(d).normalize();
        let remaining = DMatrix::identity(d, d) - &done * done.transpose();
        let q = least_known(&remaining, &information);
        let value = (&information * &q).dot(&q);
        for _ in 0..2_000 {
            let other = (&remaining * draws.vector(d)).normalize();
            assert!((&information * &other).dot(&other) > value - 1e-4);
        }
        assert!(q.dot(&done).abs() < 1e-6);
    }
}
