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

/// Mean and variance of a standard normal variable after its weight at x was lowered to e^(−c(x − b)²), for the c at which a share of the
/// weight is taken.
///
/// It is normal again: with k = 1 + 2c the mean is 2cb/k, the variance 1/k, and e^(−cb²/k)/√k of the weight is left. Lowering weights
/// by factors 1 − (x − b)²/s, again and again, is about that.
pub(crate) fn lowered(share: f64, b: f64) -> (f64, f64) {
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..80 {
        let c = f64::midpoint(low, high);
        let k = 1.0 + 2.0 * c;
        *if (-c * b * b / k).exp() / k.sqrt() > 1.0 - share { &mut low } else { &mut high } = c;
    }
    let k = 1.0 + 2.0 * low;
    (2.0 * low * b / k, 1.0 / k)
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

    /// Against sums over a fine grid of what is left of the density.
    #[test]
    fn lowered_weights() {
        for (share, b) in [(0.0, 1.0), (0.01, 0.57), (0.2, 0.57), (0.5, 1.34), (0.9, 1.34), (0.5, 0.0)] {
            let (mean, variance) = lowered(share, b);
            let c = (1.0 / variance - 1.0) / 2.0;
            let left = (-120_000..120_000)
                .map(|k| (f64::from(k) + 0.5) * 1e-4)
                .map(|x| (x, (-c * (x - b).powi(2)).exp() * density(x)));
            let sums =
                left.fold([0.0; 3], |[w, wx, wxx], (x, weight)| [w + weight, wx + x * weight, wxx + x * x * weight]);
            let [weight, first, second] = sums.map(|sum| sum * 1e-4);
            assert!((weight - (1.0 - share)).abs() < 1e-6, "{share}, {b}: {weight} is left");
            assert!((first / weight - mean).abs() < 1e-6, "{share}, {b}: mean {mean}");
            assert!((second / weight - mean * mean - variance).abs() < 1e-6, "{share}, {b}: variance {variance}");
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
