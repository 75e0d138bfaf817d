//! The normal distribution, accurate far into its tails. Slow.

use std::f64::consts::PI;

use crate::random::Random;

/// φ(x).
pub(crate) fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / (2.0 * PI).sqrt()
}

/// Mills' ratio Φ(−x)/φ(x) = ∫₀^∞ exp(−xt − t²/2) dt by Simpson's rule; unlike Φ(−x), it never underflows.
pub(crate) fn mills(x: f64) -> f64 {
    let end = (x * x + 80.0).sqrt() - x;
    let steps = 4000;
    let h = end / f64::from(steps);
    let value = |i: i32| {
        let t = h * f64::from(i);
        (-x * t - t * t / 2.0).exp() * if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) }
    };
    (0..=steps).map(value).sum::<f64>() * h / 3.0
}

/// Φ(x).
pub(crate) fn probability(x: f64) -> f64 {
    if x > 0.0 { 1.0 - probability(-x) } else { density(x) * mills(-x) }
}

/// Φ⁻¹(p).
pub(crate) fn quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        *if probability(middle) < p { &mut low } else { &mut high } = middle;
    }
    low
}

impl Random {
    /// Returns a standard normal number by the Box–Muller transform.
    pub(crate) fn gaussian(&mut self) -> f64 {
        let mut uniform = || f64::midpoint(1.0, self.symmetric()).max(f64::EPSILON);
        (-2.0 * uniform().ln()).sqrt() * (2.0 * PI * uniform()).cos()
    }
}
