//! Step 4: the width is an ellipsoid around θ, in the coordinates of the z_i: the sum of four (see `outer_sum`). What liars can do that C does
//! not show, ε/(1 − ε)·(C − (1 − ε)γR²(I − λL⁻¹L⁻ᵀ))₊, where ε is their share of the weight that is left and
//! γ = (1 − √(d/((1 − a)n)))₊² times what the filter left of the honest units' variance; their noise and by how far the filter moved
//! their mean, a ball of radius R′((√d + 2)/√((1 − a)n) + what it moved); the bias, λ²S²L⁻¹L⁻ᵀ; and m − λL⁻¹θ, where that is not 0
//! yet. What the filter did to honest units follows from what it took (see `toll`). The four bound L⁻¹(V̄ + λI)(θ* − θ), where V̄
//! is the honest units' mean with weights. For V̄ + λI stands what the filter's last weights make of all units, divided by 1 − a, which is no less
//! if liars have no more than a of the weight; along each of its axes, if half of the V̂_i are not within 1 of their median, the mean without
//! the share a that claims most, which is no more; and Λ where it is less, or with privacy.
//!
//! If a share ε of the weight is at distance t from the rest, C along that direction is at least (1 − ε) of the honest units'
//! variance, plus ε(1 − ε)t², and the mean has moved by εt: the covariance that the filter has just made small bounds what was
//! done to the mean.

use nalgebra::{DMatrix, DVector};

use super::filter::{Cloud, limit};
use super::gram::Metric;
use super::matrices::{outer_sum, positive_part, symmetrised};
use super::{Assumptions, Centre, Solution, Whitened, kernel};
use crate::algorithm::Streams;
use crate::algorithm::kappa;
use crate::math::normal;
use crate::math::symmetric;

/// How far beyond its root mean square the noise of a mean is allowed for, in deviations of one coordinate.
const TAIL: f64 = 2.0;

/// How many of its deviations the median along a direction is taken to be beyond where liars alone move it.
const UNLUCKY: f64 = 1.0;

/// How little of Λ the units that are left are taken to have explored.
const THINNEST: f64 = 0.05;

impl Whitened {
    /// P in the coordinates of the z_i.
    pub(super) fn width(&self, metric: &Metric, solution: &Solution, units: f64) -> DMatrix<f64> {
        let Assumptions { corruption: a, noise, theta_bound, .. } = self.assumptions;
        let Metric { inverse, lambda, .. } = metric;
        let Solution { cloud, rest, .. } = solution;
        let (d, rows) = (inverse.d as f64, inverse.matrix());
        let prior = symmetrised(&rows * rows.transpose() * *lambda);
        let bias = &prior * (lambda * theta_bound.powi(2));
        let ball = |radius: f64| DMatrix::from_diagonal_element(inverse.d, inverse.d, radius * radius);
        if self.centre == Centre::Median {
            return outer_sum(&[ball(noise * d.sqrt() * (kappa(a) + 1.0 / units.sqrt())), bias]);
        }
        let honest = (1.0 - a) * units;
        let edge = (1.0 - (d / honest).sqrt()).max(0.0).powi(2);
        let Toll { liars, shift, variance } = toll(a, units, d, cloud);
        let shown = (ball(1.0) - prior) * ((1.0 - liars) * edge * variance * noise * noise);
        let hidden = positive_part(&symmetrised(&cloud.spread - shown)) * (liars / (1.0 - liars));
        let rest = rest * rest.transpose();
        outer_sum(&[hidden, ball(cloud.noise * ((d.sqrt() + TAIL) / honest.sqrt() + shift)), bias, rest])
    }

    /// The mean of the V̂_i with the filter's last weights, which are not all 0, plus λI.
    pub(super) fn explored(&self, streams: &Streams, lambda: f64) -> DMatrix<f64> {
        let weights = &self.residuals.weights;
        let total: f64 = weights.iter().sum();
        let mut mean = vec![0.0; streams.gram.dimension()];
        for (gram, weight) in streams.gram.rows().zip(weights) {
            mean.iter_mut().zip(gram).for_each(|(mean, value)| *mean += weight / total * value);
        }
        symmetric::shifted(&symmetric::matrix(&mean, streams.dimension()), lambda)
    }

    /// The inverse of what the units that are left have explored, in the coordinates of the z_i: I where that is no less than Λ.
    pub(super) fn thinned(
        &self,
        streams: &Streams,
        metric: &Metric,
        explored: &DMatrix<f64>,
        alike: bool,
    ) -> DMatrix<f64> {
        let rows = metric.inverse.matrix();
        let mut thin = explored * 0.0;
        for (value, vector) in symmetric::eigenpairs(&symmetrised(&rows * explored * rows.transpose())) {
            let value = match alike {
                true => value / (1.0 - self.assumptions.corruption),
                false => self.explored_at_least(streams, &rows.tr_mul(&vector), metric.lambda),
            };
            thin.ger(1.0 / value.clamp(THINNEST, 1.0), &vector, &vector, 1.0);
        }
        thin
    }

    /// The mean of uᵀV̂_iu with the filter's last weights over all but that share a of them where it is most, plus λ‖u‖². If liars have no
    /// more than that share, it is at most that of the honest units, whatever they claim.
    fn explored_at_least(&self, streams: &Streams, u: &DVector<f64>, lambda: f64) -> f64 {
        let outer: Vec<f64> = symmetric::pack(&(u * u.transpose())).collect();
        let outer: Vec<f64> = symmetric::scaled(&outer, u.len()).collect();
        let mut claims = vec![0.0; streams.gram.len()];
        kernel::along(streams.gram.values(), &outer, &mut claims);
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

/// What a filter did to honest units that are normal along a direction with variance 1, where liars stand as far away as goes unseen.
struct Toll {
    /// The share of liars in the weight that is left.
    liars: f64,
    /// The mean of honest units, and their variance.
    shift: f64,
    variance: f64,
}

/// Weights went down by factors 1 − s/max s, for the squared distance s from a median that liars have moved, as far as they can, by b.
/// That is about e^(−cs), with the c at which as much was taken as it was.
fn toll(a: f64, units: f64, d: f64, cloud: &Cloud) -> Toll {
    let b = normal::median_shift(a, (1.0 - a) * units, UNLUCKY);
    let away = (unseen(a, d, units) - b).max(0.0);
    let after = |c: f64| {
        let (left, shift, variance) = normal::lowered(c, b);
        // Without liars they are infinitely far away.
        let (honest, liars) = ((1.0 - a) * left, if a > 0.0 { a * (-c * away * away).exp() } else { 0.0 });
        (honest + liars, Toll { liars: liars / (honest + liars), shift, variance })
    };
    let (mut low, mut high) = (0.0, 1e3);
    for _ in 0..60 {
        let c = f64::midpoint(low, high);
        *if after(c).0 > 1.0 - cloud.taken / units { &mut low } else { &mut high } = c;
    }
    after(low).1
}

/// How far from honest units liars of a share a go unseen, all at one point: the variance along that direction is 1 − a + a(1 − a)t².
fn unseen(a: f64, d: f64, weight: f64) -> f64 {
    ((limit(d, weight) - (1.0 - a)) / (a * (1.0 - a))).sqrt()
}

#[cfg(test)]
#[expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "the noise of a test")]
mod tests {
    use super::super::filter::Residuals;
    use super::*;
    use rand_distr::{Distribution, StandardNormal};
    use rand_pcg::Pcg64;
    use rand_pcg::rand_core::SeedableRng;

    /// What the filter did to honest units, against what is computed of it, with liars a little farther away than goes unseen.
    #[test]
    fn tolls() {
        let (units, d) = (2000_usize, 8_usize);
        for (a, farther) in [(0.1, 1.1), (0.3, 1.05), (0.3, 1.2), (0.4, 1.1), (0.45, 1.05), (0.45, 1.1)] {
            let mut all = Residuals::new();
            let mut rng = Pcg64::seed_from_u64(7);
            all.residuals = (0..units * d).map(|_| StandardNormal.sample(&mut rng)).collect();
            let liars = (a * units as f64) as usize;
            let t = farther * unseen(a, d as f64, units as f64);
            let point: Vec<f64> = (0..d).map(|i| if i == 0 { t } else { 0.0 }).collect();
            all.residuals.chunks_exact_mut(d).take(liars).for_each(|row| row.copy_from_slice(&point));
            let cloud = all.filtered(d, a, 1.0).unwrap();
            let toll = toll(a, units as f64, d as f64, &cloud);
            let [lies, honest] =
                [&all.weights[..liars], &all.weights[liars..]].map(|weights| weights.iter().sum::<f64>());
            let along = all.residuals.chunks_exact(d).map(|row| row[0]).zip(&all.weights).skip(liars);
            let shift = along.map(|(x, weight)| x * weight).sum::<f64>() / honest;
            // Never less than it was, and not much more.
            for (was, computed) in [(lies / (lies + honest), toll.liars), (shift, toll.shift)] {
                assert!((was..was + 0.06).contains(&computed), "{a}, {farther}: {computed} for {was}");
            }
        }
    }
}
