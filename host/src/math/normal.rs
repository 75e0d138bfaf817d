//! Quantiles and truncated moments of the normal distribution.

use std::f64::consts::PI;

fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / (2.0 * PI).sqrt()
}

/// 1 − Φ(x) for x ≥ 0, to six digits (Abramowitz and Stegun, 26.2.17).
fn upper_tail(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x);
    let coefficients = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let sum = coefficients.iter().rev().fold(0.0, |sum, c| (sum + c) * t);
    density(x) * sum
}

/// Φ.
pub(crate) fn distribution(x: f64) -> f64 {
    if x < 0.0 { upper_tail(-x) } else { 1.0 - upper_tail(x) }
}

/// Φ⁻¹, by bisection of Φ.
pub(crate) fn quantile(probability: f64) -> f64 {
    let tail = probability.min(1.0 - probability);
    let (mut low, mut high) = (0.0, 40.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        *if upper_tail(middle) > tail { &mut low } else { &mut high } = middle;
    }
    if probability < 0.5 { -low } else { low }
}

/// Returns total weight, mean and variance of a standard normal variable whose weight at x is e^(−c(x − b)²).
///
/// The product of the density and this weight is a multiple of a normal density. With k = 1 + 2c,
///
/// ```text
/// weight = e^(−cb²/k)/√k,   mean = 2cb/k,   variance = 1/k.
/// ```
pub(crate) fn lowered(c: f64, b: f64) -> (f64, f64, f64) {
    let k = 1.0 + 2.0 * c;
    ((-c * b * b / k).exp() / k.sqrt(), 2.0 * c * b / k, 1.0 / k)
}

/// Largest shift of a median by a corrupted share a, while the other numbers are `honest` standard normal ones.
///
/// It is Φ⁻¹(p) with p = 1/(2(1 − a)), plus a margin of `deviations` standard deviations of that sample quantile.
pub(crate) fn median_shift(a: f64, honest: f64, deviations: f64) -> f64 {
    let share = 0.5 / (1.0 - a);
    let shift = quantile(share);
    shift + deviations * (share * (1.0 - share) / honest).sqrt() / density(shift)
}

/// Quantile of χ² with `freedom` degrees of freedom at the probability Φ(z), by the Wilson–Hilferty approximation.
pub(crate) fn chi_squared(freedom: f64, z: f64) -> f64 {
    let variance = 2.0 / (9.0 * freedom);
    freedom * (1.0 - variance + z * variance.sqrt()).max(0.0).powi(3)
}

/// Median length of d-dimensional vectors, where a share 1 − a is standard normal and all others are longer.
///
/// It is the 1/(2(1 − a)) quantile of the normal ones.
pub(crate) fn median_length(d: f64, a: f64) -> f64 {
    chi_squared(d, quantile(0.5 / (1.0 - a))).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_matches_tables() {
        for (probability, expected) in [(0.5, 0.0), (0.975, 1.959_964), (0.7, 0.524_401), (0.1, -1.281_552)] {
            assert!((quantile(probability) - expected).abs() < 1e-5, "{probability}");
            assert!((distribution(expected) - probability).abs() < 1e-6, "{probability}");
        }
    }

    /// The reference sums the weighted density over a fine grid.
    #[test]
    fn lowered_matches_numerical_integration() {
        for (c, b) in [(0.0, 1.0), (0.01, 0.57), (0.2, 0.57), (0.5, 1.34), (20.0, 1.34), (0.5, 0.0)] {
            let grid = (-120_000..120_000).map(|k| (f64::from(k) + 0.5) * 1e-4);
            let left = grid.map(|x| (x, (-c * (x - b) * (x - b)).exp() * density(x) * 1e-4));
            let [weight, first, second] =
                left.fold([0.0; 3], |[w, wx, wxx], (x, weight)| [w + weight, wx + x * weight, wxx + x * x * weight]);
            let mean = first / weight;
            let (expected, found) = ([weight, mean, second / weight - mean * mean], lowered(c, b));
            let apart = expected.into_iter().zip([found.0, found.1, found.2]).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f64::max) < 1e-6, "{c}, {b}: {found:?} for {expected:?}");
        }
    }

    /// The reference integrates the density of the length. The approximation is worst for small d: at d = 2 the exact share
    /// is 0.5046.
    #[test]
    fn median_length_matches_numerical_integration() {
        for (d, a) in [(2, 0.0), (4, 0.3), (8, 0.0), (8, 0.3), (8, 0.45), (32, 0.3)] {
            let density = |x: f64| x.powi(d - 1) * (-x * x / 2.0).exp();
            let lengths = || (0..200_000).map(|k| (f64::from(k) + 0.5) * 1e-4);
            let share = lengths().take_while(|x| *x < median_length(d.into(), a)).map(density).sum::<f64>()
                / lengths().map(density).sum::<f64>();
            assert!((share - 0.5 / (1.0 - a)).abs() < 5e-3, "{d}, {a}: {share}");
        }
    }
}
