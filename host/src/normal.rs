//! The normal distribution.

use std::f64::consts::PI;

fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / (2.0 * PI).sqrt()
}

/// Φ⁻¹, by bisection of a sum for Φ that is good to six digits (Abramowitz and Stegun, 26.2.17).
pub(crate) fn quantile(probability: f64) -> f64 {
    let upper_tail = |x: f64| {
        let t = 1.0 / (1.0 + 0.231_641_9 * x);
        let coefficients = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
        let sum = coefficients.iter().rev().fold(0.0, |sum, c| (sum + c) * t);
        density(x) * sum
    };
    let tail = probability.min(1.0 - probability);
    let (mut low, mut high) = (0.0, 40.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        *if upper_tail(middle) > tail { &mut low } else { &mut high } = middle;
    }
    if probability < 0.5 { -low } else { low }
}

/// The variance of a normal variable of variance 1 that is left when a share of its weight is taken where it is farthest from the mean:
/// 1 − 2cφ(c)/(1 − η) for the c beyond which the share η lies.
pub(crate) fn trimmed_variance(share: f64) -> f64 {
    let edge = quantile(1.0 - share / 2.0);
    1.0 - 2.0 * edge * density(edge) / (1.0 - share)
}

/// The median length of vectors of which a share 1 − a has a standard normal distribution in d dimensions and all others are longer: the
/// 1/(2(1 − a)) quantile of the former, by Wilson and Hilferty's approximation of χ².
pub(crate) fn median_length(d: f64, a: f64) -> f64 {
    let variance = 2.0 / (9.0 * d);
    (d * (1.0 - variance + quantile(0.5 / (1.0 - a)) * variance.sqrt()).powi(3)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against tables of the normal distribution.
    #[test]
    fn quantiles() {
        for (probability, expected) in [(0.5, 0.0), (0.975, 1.959_964), (0.7, 0.524_401), (0.1, -1.281_552)] {
            assert!((quantile(probability) - expected).abs() < 1e-5, "{probability}");
        }
    }

    /// Against the integral, by the midpoint rule.
    #[test]
    fn trimmed_variances() {
        for share in [0.0, 0.01, 0.1, 0.3, 0.6, 0.9] {
            let edge = quantile(1.0 - share / 2.0);
            let step = edge.min(12.0) / 1e5;
            let second: f64 = (0..100_000).map(|k| (f64::from(k) + 0.5) * step).map(|x| x * x * density(x)).sum();
            let expected = 2.0 * second * step / (1.0 - share);
            assert!((trimmed_variance(share) - expected).abs() < 1e-5, "{share}: {}", trimmed_variance(share));
        }
    }

    /// Against the integral of the density of the length. The approximation is worst where d is small: at d = 2 the exact share is 0.5046.
    #[test]
    fn median_lengths() {
        for (d, a) in [(2, 0.0), (4, 0.3), (8, 0.0), (8, 0.3), (8, 0.45), (32, 0.3)] {
            let density = |x: f64| x.powi(d - 1) * (-x * x / 2.0).exp();
            let lengths = || (0..200_000).map(|k| (f64::from(k) + 0.5) * 1e-4);
            let share = lengths().take_while(|x| *x < median_length(d.into(), a)).map(density).sum::<f64>()
                / lengths().map(density).sum::<f64>();
            assert!((share - 0.5 / (1.0 - a)).abs() < 5e-3, "{d}, {a}: {share}");
        }
    }
}
