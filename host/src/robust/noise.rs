//! Estimate of the noise level R, for rewards of an unknown one.
//!
//! A unit with the sums V and v, V + λI = LLᵀ, has the distance q = ‖L⁻¹(v − Vθ)‖². At θ*, q/R² of an honest unit with Gaussian
//! noise is Σa_jχ²₁, where a_j are the eigenvalues of A = I − λ(V + λI)⁻¹. With g = tr A²/tr A and h = (tr A)²/tr A², gχ²_h has
//! the same mean and variance (Satterthwaite). F⁻¹(v) is its quantile.
//!
//! Of m units with tr A ≥ ½ at most f are corrupted. With k = ⌈m/2⌉ and v = (k − f)/(m − f + 1), the estimate is
//!
//! ```text
//! R̂² = the k-th smallest of q_i/F_i⁻¹(v),   v > 0.
//! ```
//!
//! If v ≤ 0, corrupted units may be a majority of those with information, and R̂ is the declared upper bound, which it never
//! exceeds. The distribution of q/R² does not depend on how much a unit has explored, so R̂ is as precise after the first episodes
//! as later.
//!
//! **Lemma.** Let θ be fixed, let honest units be independent, with Gaussian noise, and let q_i/R² at θ* have the law of gχ²_h. It
//! has if V_i ≫ λI and actions do not depend on rewards; otherwise this is an approximation.
//!
//! 1. *Against liars near θ.* P(R̂ < xR) ≤ P(Bin(m − f, p) ≥ k − f), where p = max_i P(gχ²_h ≤ x²F_i⁻¹(v)), for every θ. With
//!    x = 1, p = v: even if f corrupted units are at distance 0, the expected number of honest q_i below R²F_i⁻¹(v) is
//!    v(m − f) < k − f.
//! 2. *Against liars far from θ.* At θ = θ*, P(R̂ > xR) ≤ P(Bin(m − f, p) < k), where p = min_i P(gχ²_h ≤ x²F_i⁻¹(v)).
//!
//! *Proof.* q_i/F_i⁻¹(v) ≤ x²R² has at θ* the probability P(gχ²_h ≤ x²F_i⁻¹(v)). At another θ it has a smaller one: a ball
//! around 0 has the most mass of a centred normal distribution that is not shifted (Anderson 1955). R̂ < xR needs k units below
//! x²R², of which k − f are honest. R̂ > xR needs fewer than k, and therefore fewer than k honest ones. ∎
//!
//! For many units, R̂/R is between 1 and √(F⁻¹(k/(m − f))/F⁻¹(v)). For f = 0.3m, the latter is 1.93 for d = 2, 1.54 for d = 4,
//! 1.34 for d = 8 and 1.23 for d = 16. Without corrupted units R̂/R is 1.17 for d = 8, since such units are allowed for. An error
//! of θ increases R̂ further. At most, R̂² is the k-th smallest of (√q_i + ‖V_i^½(θ − θ*)‖)²/F_i⁻¹(v), with q_i at θ*.

use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;

use crate::algorithm::Streams;
use crate::math::{normal, symmetric};

/// λ of distances.
const LAMBDA: f64 = 0.03;

/// Least tr A of units that count: a unit without information has no noise.
const LEAST_FREEDOM: f64 = 0.5;

/// Least estimate relative to the upper bound, so that it is positive for rewards without noise.
const LEAST: f64 = 1e-3;

/// Returns R̂ ≤ `bound` at θ, for at most f corrupted units.
pub(super) fn estimate(streams: &Streams, theta: &DVector<f64>, f: usize, bound: f64) -> f64 {
    let rows: Vec<(&[f64], &[f64])> = streams.gram.rows().zip(streams.feature_sum.rows()).collect();
    let distances: Vec<Distance> = rows.par_iter().filter_map(|(gram, sum)| Distance::new(gram, sum, theta)).collect();
    quantile(&distances, f).map_or(bound, |noise| noise.min(bound).max(LEAST * bound))
}

/// Distance q of a unit, with g and h.
struct Distance {
    square: f64,
    scale: f64,
    freedom: f64,
}

impl Distance {
    /// `None` for a unit without information.
    fn new(gram: &[f64], sum: &[f64], theta: &DVector<f64>) -> Option<Self> {
        let d = theta.len();
        let gram = symmetric::matrix(gram, d);
        let factor = symmetric::shifted(&gram, LAMBDA).cholesky()?.l();
        let residual = DVector::from_column_slice(sum) - gram * theta;
        let square = factor.solve_lower_triangular(&residual)?.norm_squared();
        let inverse = factor.solve_lower_triangular(&DMatrix::identity(d, d))?;
        let trace = d as f64 - LAMBDA * inverse.norm_squared();
        // tr A² = tr A − tr λ(V + λI)⁻¹ + tr λ²(V + λI)⁻².
        let of_square = 2.0 * trace - d as f64 + (LAMBDA * (&inverse * inverse.transpose())).norm_squared();
        let counts = trace >= LEAST_FREEDOM && of_square > 0.0;
        counts.then(|| Self { square, scale: of_square / trace, freedom: trace * trace / of_square })
    }
}

/// Returns R̂ without its bounds; `None` if v ≤ 0.
fn quantile(distances: &[Distance], f: usize) -> Option<f64> {
    let (m, k) = (distances.len(), distances.len().div_ceil(2));
    if k <= f {
        return None;
    }
    let z = normal::quantile((k - f) as f64 / (m - f + 1) as f64);
    let level = |Distance { square, scale, freedom }: &Distance| {
        square / (scale * normal::chi_squared(*freedom, z)).max(f64::MIN_POSITIVE)
    };
    let mut levels: Vec<f64> = distances.iter().map(level).collect();
    let (_, level, _) = levels.select_nth_unstable_by(k - 1, f64::total_cmp);
    Some(level.sqrt())
}

#[cfg(test)]
#[expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "test data need no cryptographic generator")]
mod tests {
    use rand_distr::{Distribution, StandardNormal};
    use rand_pcg::Pcg64;
    use rand_pcg::rand_core::SeedableRng;

    use super::*;

    const R: f64 = 0.5;
    const BOUND: f64 = 10.0;

    /// P(χ²_d ≤ x) for an even d, in closed form.
    fn chi_squared(x: f64, d: usize) -> f64 {
        let terms = (1..d / 2).scan(1.0, |term, j| {
            *term *= x / 2.0 / j as f64;
            Some(*term)
        });
        1.0 - (-x / 2.0).exp() * (1.0 + terms.sum::<f64>())
    }

    /// The p-quantile of χ²_d, by bisection.
    fn chi_squared_quantile(p: f64, d: usize) -> f64 {
        let (mut low, mut high) = (0.0, 200.0);
        for _ in 0..100 {
            let middle = f64::midpoint(low, high);
            *if chi_squared(middle, d) < p { &mut low } else { &mut high } = middle;
        }
        low
    }

    /// P(Bin(n, p) ≥ k), as a sum of exponentials of logarithms.
    fn upper_tail(n: usize, p: f64, k: usize) -> f64 {
        let mut log_choose = 0.0;
        let mut tail = 0.0;
        for j in 0..=n {
            if j >= k {
                tail += (log_choose + j as f64 * p.ln() + (n - j) as f64 * (1.0 - p).ln()).exp();
            }
            log_choose += ((n - j) as f64 / (j + 1) as f64).ln();
        }
        tail
    }

    fn normal_vector(rng: &mut Pcg64, d: usize) -> DVector<f64> {
        DVector::from_fn(d, |_, _| StandardNormal.sample(rng))
    }

    fn truth(d: usize) -> DVector<f64> {
        DVector::from_element(d, 0.3)
    }

    /// n units at θ*: f at `liars`·(1, …, 1) from V_iθ*, and honest ones with Gaussian noise. V_i has eigenvalues from 50 to 5,000, so
    /// that λ does not matter.
    fn fleet(seed: u64, (n, f, d): (usize, usize, usize), liars: f64) -> Streams {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut streams = Streams::zeros(n, d).unwrap();
        for i in 0..n {
            let axes = DMatrix::from_columns(&(0..d).map(|_| normal_vector(&mut rng, d)).collect::<Vec<_>>()).qr().q();
            let eigenvalues = DVector::from_fn(d, |j, _| 50.0 * 100.0_f64.powf(((i + j) % d) as f64 / d as f64));
            let gram = &axes * DMatrix::from_diagonal(&eigenvalues) * axes.transpose();
            let noise = match i < f {
                true => DVector::from_element(d, liars),
                false => &axes * eigenvalues.map(f64::sqrt).component_mul(&normal_vector(&mut rng, d)) * R,
            };
            let sum = &gram * truth(d) + noise;
            streams.add(i, &symmetric::pack(&gram).collect::<Vec<_>>(), sum.as_slice());
        }
        streams
    }

    /// The lemma with exact quantiles. The false-alarm probability of each gate is a binomial tail, below 10⁻⁶.
    #[test]
    fn estimate_is_within_the_bounds_of_the_lemma_whatever_liars_do() {
        let n = 1000;
        for (seed, d, low, high) in [(1, 2, 0.8, 2.2), (2, 4, 0.85, 1.7), (3, 8, 0.9, 1.45), (4, 16, 0.93, 1.3)] {
            for f in [0, 300] {
                let (k, honest) = (n / 2, n - f);
                let exact = chi_squared_quantile((k - f) as f64 / (honest + 1) as f64, d);
                let below = |x: f64| chi_squared(x * x * exact, d);
                assert!(upper_tail(honest, below(low), k - f) < 1e-6, "d = {d}, {f} liars, {low}");
                assert!(1.0 - upper_tail(honest, below(high), k) < 1e-6, "d = {d}, {f} liars, {high}");
                for liars in [0.0, 1e6] {
                    let ratio = estimate(&fleet(seed, (n, f, d), liars), &truth(d), f, BOUND) / R;
                    assert!((low..=high).contains(&ratio), "d = {d}, {f} liars at {liars}: {ratio}");
                }
            }
        }
    }

    /// The limits that the module states for many units, by exact quantiles.
    #[test]
    fn limits_of_the_lemma_match_exact_quantiles() {
        for (d, limit) in [(2, 1.93), (4, 1.54), (8, 1.34), (16, 1.23)] {
            let [low, high] = [0.2 / 0.7, 0.5 / 0.7].map(|p| chi_squared_quantile(p, d));
            assert!(((high / low).sqrt() - limit).abs() < 0.006, "d = {d}: {}", (high / low).sqrt());
        }
        let middle = chi_squared_quantile(0.5, 8) / chi_squared_quantile(0.2 / 0.7, 8);
        assert!((middle.sqrt() - 1.17).abs() < 0.005);
    }

    /// P(Σa_jχ²₁ ≤ gF_h⁻¹(v)) is close to v also for little information: within 0.03 of 2/7. Six deviations of 100,000 draws are
    /// 0.0086, so a false alarm has a probability below 2·10⁻⁹ if the true error is below 0.021.
    #[test]
    fn quantile_is_accurate_for_little_information() {
        let mut rng = Pcg64::seed_from_u64(5);
        for grams in [vec![0.05, 0.1, 0.5, 2.0], vec![0.0, 0.0, 0.3, 3.0], vec![1.0; 8], vec![0.04, 0.0, 0.0, 0.0]] {
            let d = grams.len();
            let gram: Vec<f64> = symmetric::pack(&DMatrix::from_diagonal(&DVector::from_vec(grams.clone()))).collect();
            let gram: Vec<f64> = symmetric::scaled(&gram, d).collect();
            let distance = Distance::new(&gram, &vec![0.0; d], &DVector::zeros(d)).unwrap();
            let limit = distance.scale * normal::chi_squared(distance.freedom, normal::quantile(2.0 / 7.0));
            let square = |z: f64, v: f64| z * z * v / (v + LAMBDA);
            let draw = |rng: &mut Pcg64| -> f64 {
                normal_vector(rng, d).iter().zip(&grams).map(|(z, v)| square(*z, *v)).sum()
            };
            let below = (0..100_000).filter(|_| draw(&mut rng) <= limit).count() as f64 / 100_000.0;
            assert!((below - 2.0 / 7.0).abs() < 0.03, "{grams:?}: {below}");
        }
    }

    #[test]
    fn estimate_is_the_bound_without_an_honest_majority_of_informed_units() {
        let d = 4;
        let mut streams = fleet(6, (100, 0, d), 0.0);
        assert!(estimate(&streams, &truth(d), 49, BOUND) < 10.0 * R);
        assert_eq!(estimate(&streams, &truth(d), 50, BOUND), BOUND);
        assert_eq!(estimate(&streams, &truth(d), 30, 0.1), 0.1);
        // Absent units do not count: 40 remain, of which 30 may be corrupted.
        streams = streams.select(&(0..40).collect::<Vec<_>>()).unwrap();
        assert_eq!(estimate(&streams, &truth(d), 30, BOUND), BOUND);
        assert_eq!(estimate(&Streams::zeros(100, d).unwrap(), &truth(d), 0, BOUND), BOUND);
    }

    #[test]
    fn estimate_is_positive_and_finite_for_extreme_sums() {
        let d = 4;
        let exact = fleet(7, (10, 10, d), 0.0);
        let estimated = estimate(&exact, &truth(d), 0, BOUND);
        assert!(estimated > 0.0 && estimated < 0.011 * BOUND, "{estimated}");
        let huge = fleet(8, (10, 10, d), 1e200);
        assert_eq!(estimate(&huge, &truth(d), 3, BOUND), BOUND);
        let far = DVector::from_element(d, f64::INFINITY);
        assert_eq!(estimate(&exact, &far, 3, BOUND), BOUND);
    }
}
