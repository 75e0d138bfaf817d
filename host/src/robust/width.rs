//! Width of the estimate (step 4 of [`Whitened`]).
//!
//! Let μ, ξ̄ and V̄ be the means of the honest units' z_i, noise and V̂_i with the filter's weights, and m and C the mean
//! and covariance of all units. Then (docs/theory.md, *From the centre to θ\**)
//!
//! ```text
//! L⁻¹(V̄ + λI)(θ* − θ) = −(m − μ) − ξ̄ + λL⁻¹θ* + (m − λL⁻¹θ).
//! ```
//!
//! Each term has an ellipsoid, and [`outer_sum`] joins the four:
//!
//! 1. *Undetected corruption*, m − μ:
//!
//!    ```text
//!    ε/(1 − ε)·(C − (1 − ε)γR²(I − λL⁻¹L⁻ᵀ))₊
//!    ```
//!
//!    ε is the share of corrupted units in the weight, and γ = (1 − √(d/((1 − a)n)))₊² times the variance that the
//!    filter left of honest units. If streams have a half-life, γ = 0: with weights w ≤ 1 the noise of a unit has the
//!    covariance R²L⁻¹(Σw²xxᵀ)L⁻ᵀ, which is at most R²(I − λL⁻¹L⁻ᵀ), but has no lower bound along directions that were
//!    explored long ago.
//! 2. *Noise*, ξ̄, and the shift of the honest mean by the filter: a ball of radius R′((√d + 2)/√((1 − a)n) + shift).
//! 3. *Bias*, λL⁻¹θ*: λ²S²L⁻¹L⁻ᵀ.
//! 4. *Remainder*, r = m − λL⁻¹θ, which is 0 at the fixed point: rrᵀ.
//!
//! [`filter_effect`] computes ε, the variance and the shift from the weight that the filter removed.
//!
//! The unknown V̄ + λI is replaced by Λ with privacy. Otherwise its substitute is, along each axis of V̄_w + λI, at least
//! [`LEAST_EXPLORED`] of Λ, at most Λ, and between them:
//!
//! * (V̄_w + λI)/(1 − a), if half of the V̂_i are within [`ALIKE`](super::ALIKE) of G. It is at least V̄ + λI if corrupted
//!   units have at most a of the weight.
//! * The mean of all claims but the largest share a, otherwise. It is then at most the mean of honest claims.
//!
//! **Lemma** (term 1). Let corrupted units have a share ε of the weight, and let C_H be the covariance of the others. Then
//!
//! ```text
//! (m − μ)(m − μ)ᵀ ⪯ ε/(1 − ε)·(C − (1 − ε)C_H).
//! ```
//!
//! *Proof.* With Δ the difference of the two means, m − μ = εΔ and C ⪰ (1 − ε)C_H + ε(1 − ε)ΔΔᵀ. ∎

use nalgebra::{DMatrix, DVector};

use super::filter::limit;
use super::gram::Metric;
use super::matrices::{along, outer_sum, positive_part, symmetrised};
use super::{Assumptions, Solution, Whitened};
use crate::algorithm::Streams;
use crate::math::normal;
use crate::math::symmetric;

/// Margin for the noise of a mean beyond its root mean square, in standard deviations of one coordinate.
pub(super) const TAIL: f64 = 2.0;

/// Margin for the median along a direction beyond its shift by corrupted units, in its standard deviations.
const MEDIAN_MARGIN: f64 = 1.0;

/// Least exploration that remaining units are assumed to have in any direction, relative to Λ.
const LEAST_EXPLORED: f64 = 0.05;

impl Whitened {
    /// Returns the joint ellipsoid of the four terms, in the coordinates of the z_i.
    pub(super) fn width(&self, metric: &Metric, solution: &Solution, units: f64) -> DMatrix<f64> {
        let Assumptions { corruption: a, noise, theta_bound, forgetting, .. } = self.assumptions;
        let Metric { inverse, lambda, .. } = metric;
        let Solution { cloud, rest, .. } = solution;
        let (d, rows) = (inverse.d as f64, inverse.matrix());
        let prior = symmetrised(&rows * rows.transpose() * *lambda);
        let bias = &prior * (lambda * theta_bound.powi(2));
        let ball = |radius: f64| DMatrix::from_diagonal_element(inverse.d, inverse.d, radius * radius);
        let honest = (1.0 - a) * units;
        let edge = if forgetting { 0.0 } else { (1.0 - (d / honest).sqrt()).max(0.0).powi(2) };
        let FilterEffect { liars, shift, variance } = filter_effect(a, units, d, cloud.taken);
        let shown = (ball(1.0) - prior) * ((1.0 - liars) * edge * variance * noise * noise);
        let hidden = positive_part(&symmetrised(&cloud.spread - shown)) * (liars / (1.0 - liars));
        let rest = rest * rest.transpose();
        outer_sum(&[hidden, ball(cloud.noise * ((d.sqrt() + TAIL) / honest.sqrt() + shift)), bias, rest])
    }

    /// Returns V̄_w + λI for the filter's final weights, of which at least one must be positive.
    pub(super) fn explored(&self, streams: &Streams, lambda: f64) -> DMatrix<f64> {
        let weights = &self.residuals.weights;
        let total: f64 = weights.iter().sum();
        let mut mean = vec![0.0; streams.gram.dimension()];
        for (gram, weight) in streams.gram.rows().zip(weights) {
            mean.iter_mut().zip(gram).for_each(|(mean, value)| *mean += weight / total * value);
        }
        symmetric::shifted(&symmetric::matrix(&mean, streams.dimension()), lambda)
    }

    /// Returns the inverse of the substitute for V̄ + λI, in the coordinates of the z_i: I where that is at least Λ.
    pub(super) fn inverse_exploration(
        &self,
        streams: &Streams,
        metric: &Metric,
        explored: &DMatrix<f64>,
        alike: bool,
    ) -> DMatrix<f64> {
        let rows = metric.inverse.matrix();
        let mut inverse = explored * 0.0;
        for (value, vector) in symmetric::eigenpairs(&symmetrised(&rows * explored * rows.transpose())) {
            let value = match alike {
                true => value / (1.0 - self.assumptions.corruption),
                false => self.trimmed_exploration(streams, &rows.tr_mul(&vector), metric.lambda),
            };
            inverse.ger(1.0 / value.clamp(LEAST_EXPLORED, 1.0), &vector, &vector, 1.0);
        }
        inverse
    }

    /// Returns the weighted mean of uᵀV̂_iu without the share a of the weight where it is largest, plus λ‖u‖².
    ///
    /// If corrupted units have at most a share a of the weight, the result is at most the mean of honest units.
    fn trimmed_exploration(&self, streams: &Streams, u: &DVector<f64>, lambda: f64) -> f64 {
        let claims = along(streams.gram.values(), u);
        let mut claims: Vec<(f64, f64)> = claims.into_iter().zip(self.residuals.weights.iter().copied()).collect();
        claims.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let all = (1.0 - self.assumptions.corruption) * self.residuals.weights.iter().sum::<f64>();
        let (mut left, mut sum) = (all, 0.0);
        for (claim, weight) in claims {
            let weight = weight.min(left);
            sum += weight * claim;
            left -= weight;
        }
        sum / all + lambda * u.norm_squared()
    }
}

/// Effect of the filter along a direction in which honest units are standard normal.
pub(super) struct FilterEffect {
    /// ε, the share of corrupted units in the remaining weight.
    pub(super) liars: f64,
    /// Mean of honest units.
    pub(super) shift: f64,
    /// Variance of honest units.
    pub(super) variance: f64,
}

/// Estimates the effect of the filter from the weight that it removed.
///
/// Corrupted units stand at [`detection_distance`] and have moved the median by b. The product of the factors
/// 1 − s/max s, for squared distances s from the median, is close to e^(−cs). The c that removes the observed weight is
/// found by bisection.
pub(super) fn filter_effect(a: f64, units: f64, d: f64, taken: f64) -> FilterEffect {
    let b = normal::median_shift(a, (1.0 - a) * units, MEDIAN_MARGIN);
    let away = (detection_distance(a, d, units) - b).max(0.0);
    let after = |c: f64| {
        let (left, shift, variance) = normal::lowered(c, b);
        // For a = 0 the distance is infinite.
        let (honest, liars) = ((1.0 - a) * left, if a > 0.0 { a * (-c * away * away).exp() } else { 0.0 });
        (honest + liars, FilterEffect { liars: liars / (honest + liars), shift, variance })
    };
    let (mut low, mut high) = (0.0, 1e3);
    for _ in 0..60 {
        let c = f64::midpoint(low, high);
        *if after(c).0 > 1.0 - taken / units { &mut low } else { &mut high } = c;
    }
    after(low).1
}

/// Distance t up to which a share a of corrupted units at one point goes undetected: 1 − a + a(1 − a)t² = `limit`.
fn detection_distance(a: f64, d: f64, weight: f64) -> f64 {
    ((limit(d, weight) - (1.0 - a)) / (a * (1.0 - a))).sqrt()
}

#[cfg(test)]
#[expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "test data need no cryptographic generator")]
mod tests {
    use super::super::filter::Residuals;
    use super::*;
    use rand_distr::{Distribution, StandardNormal};
    use rand_pcg::Pcg64;
    use rand_pcg::rand_core::SeedableRng;

    /// Corrupted units stand slightly beyond the detection distance.
    #[test]
    fn filter_effect_bounds_simulated_filter() {
        let (units, d) = (2000_usize, 8_usize);
        for (a, farther) in [(0.1, 1.1), (0.3, 1.05), (0.3, 1.2), (0.4, 1.1), (0.45, 1.05), (0.45, 1.1)] {
            let mut all = Residuals::new();
            let mut rng = Pcg64::seed_from_u64(7);
            all.residuals = (0..units * d).map(|_| StandardNormal.sample(&mut rng)).collect();
            let liars = (a * units as f64) as usize;
            let t = farther * detection_distance(a, d as f64, units as f64);
            let point: Vec<f64> = (0..d).map(|i| if i == 0 { t } else { 0.0 }).collect();
            all.residuals.chunks_exact_mut(d).take(liars).for_each(|row| row.copy_from_slice(&point));
            let cloud = all.filtered(d, a, 1.0).unwrap();
            let computed = filter_effect(a, units as f64, d as f64, cloud.taken);
            let [lies, honest] =
                [&all.weights[..liars], &all.weights[liars..]].map(|weights| weights.iter().sum::<f64>());
            let along = all.residuals.chunks_exact(d).map(|row| row[0]).zip(&all.weights).skip(liars);
            let shift = along.map(|(x, weight)| x * weight).sum::<f64>() / honest;
            // At least the true value, and at most 0.06 more.
            for (actual, bound) in [(lies / (lies + honest), computed.liars), (shift, computed.shift)] {
                let range = actual..actual + 0.06;
                assert!(range.contains(&bound), "a = {a}, distance × {farther}: {bound} outside {range:?}");
            }
        }
    }
}
