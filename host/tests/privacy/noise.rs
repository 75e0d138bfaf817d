//! Noise of private runs: its distribution and its dependence on key, run and configuration.

use crate::normal;
use chacha20::ChaCha20Rng;
use chacha20::rand_core::SeedableRng;
use fedbandit::algorithm::{ControllerConfig, Episodes, Level, Privatise};
use fedbandit::privacy::calibration::{Budget, Mechanism};
use fedbandit::privacy::gaussian::{DiscreteGaussian, MAX_SIGMA};
use fedbandit::privacy::key::{NoiseKey, STORED_LEN};
use fedbandit::privacy::{Plan, Private, RunKey, Seed};

// --- sampler ---------------------------------------------------------------------------------------------------------

fn samples(sigma: u64, n: usize) -> impl Iterator<Item = i64> {
    let mut rng = ChaCha20Rng::from_seed([7; 32]);
    let gaussian = DiscreteGaussian::new(sigma).unwrap();
    (0..n).map(move |_| gaussian.sample(&mut rng))
}

/// Value that χ² exceeds with probability 10⁻⁷ (Wilson and Hilferty: its cube root is almost normal).
fn chi_squared_limit(df: f64) -> f64 {
    let variance = 2.0 / (9.0 * df);
    df * (1.0 - variance + 5.2 * variance.sqrt()).powi(3)
}

#[test]
fn sample_frequencies_match_discrete_gaussian() {
    const N: usize = 400_000;
    for sigma in [1, 2, 3, 10] {
        let weight = |z: i64| (-(z * z) as f64 / (2.0 * (sigma * sigma) as f64)).exp();
        let total: f64 = (-20 * sigma..=20 * sigma).map(weight).sum();
        let mut counts = std::collections::BTreeMap::<i64, f64>::new();
        samples(sigma as u64, N).for_each(|z| *counts.entry(z).or_default() += 1.0);
        let radius = (3.5 * sigma as f64) as i64;
        let cells = (-radius..=radius).map(|z| (N as f64 * weight(z) / total, counts.remove(&z).unwrap_or(0.0)));
        let mut cells: Vec<_> = cells.collect();
        let inside: f64 = cells.iter().map(|(expected, _)| expected).sum();
        cells.push((N as f64 - inside, counts.values().sum()));
        let chi: f64 = cells.iter().map(|(expected, seen)| (seen - expected).powi(2) / expected).sum();
        let df = (cells.len() - 1) as f64;
        assert!(chi < chi_squared_limit(df), "σ = {sigma}: χ² = {chi} with {df} degrees of freedom");
    }
}

/// Bounds on the noise are derived for a continuous Gaussian. Rounded to integers, it differs from the discrete one by
/// less than 1/(16σ²) in total variation.
#[test]
fn discrete_gaussian_is_close_to_rounded_gaussian() {
    for sigma in [2_i32, 3, 10, 50] {
        let (s, radius) = (f64::from(sigma), 12 * sigma);
        let weight = |z: i32| (-f64::from(z * z) / (2.0 * s * s)).exp();
        let total: f64 = (-radius..=radius).map(weight).sum();
        let below = |x: f64| normal::probability(x / s);
        let rounded = |z: i32| below(f64::from(z) + 0.5) - below(f64::from(z) - 0.5);
        let variation = (-radius..=radius).map(|z| (weight(z) / total - rounded(z)).abs()).sum::<f64>() / 2.0;
        assert!((0.25..1.0).contains(&(variation * 16.0 * s * s)), "σ = {sigma}: total variation {variation}");
    }
}

type Moment = fn(f64) -> f64;

/// At large σ the moments are those of the normal distribution. Six deviations have probability 2·10⁻⁹; 18 checks.
#[test]
fn sample_moments_match_normal_at_large_sigma() {
    const N: usize = 400_000;
    for sigma in [1 << 24, (1 << 25) - 1, MAX_SIGMA] {
        let mean = |f: Moment| samples(sigma, N).map(|z| f(z as f64 / sigma as f64)).sum::<f64>() / N as f64;
        // Function, expected mean, variance of one term.
        let moments: [(Moment, f64, f64); 6] = [
            (|z| z, 0.0, 1.0),
            (|z| z.powi(2), 1.0, 2.0),
            (|z| z.powi(3), 0.0, 15.0),
            (|z| z.powi(4), 3.0, 96.0),
            (|z| f64::from(z.abs() < 0.674_489_750_196_081_7), 0.5, 0.25),
            (|z| f64::from(z > 2.326_347_874_040_840_8), 0.01, 0.0099),
        ];
        for (i, (f, expected, variance)) in moments.into_iter().enumerate() {
            let error = (mean(f) - expected) / (variance / N as f64).sqrt();
            assert!(error.abs() < 6.0, "σ = {sigma}, moment {i}: off by {error} deviations");
        }
    }
}

/// Distribution of the noise modulo 16.
#[test]
fn low_bits_of_samples_are_uniform() {
    const N: usize = 160_000;
    let mut counts = [0.0; 16];
    samples(1 << 24, N).for_each(|z| counts[z.rem_euclid(16) as usize] += 1.0);
    let expected = N as f64 / 16.0;
    let chi: f64 = counts.iter().map(|seen| (seen - expected).powi(2) / expected).sum();
    assert!(chi < chi_squared_limit(15.0), "χ² = {chi} with 15 degrees of freedom");
}

/// A restarted run must reproduce the sampler's output. The expected values agree with a separate implementation in
/// rational arithmetic on the same stream.
#[test]
fn samples_of_a_seed_are_stable() {
    let first = |sigma| samples(sigma, 8).collect::<Vec<_>>();
    assert_eq!(first(1), [-1, 0, 1, -1, 0, 0, 0, 3]);
    assert_eq!(first(10), [-15, -11, 3, -21, -1, -2, -2, -5]);
    let large = [27_530_803, -19_589_903, 25_107_597, -22_166_319, -658_787, -4_082_817, -12_616_242, 2_292_279];
    assert_eq!(first(1 << 24), large);
    let odd = [-10_753_586, -7_622_075, 11_141_729, -63_110_309, -6_588_185, -13_007_514, -24_418_431, 20_693_774];
    assert_eq!(first((1 << 25) - 1), odd);
}

#[test]
fn sigma_out_of_range_is_rejected() {
    assert_eq!([0, MAX_SIGMA + 1].map(DiscreteGaussian::new), [None, None]);
}

// --- keys ------------------------------------------------------------------------------------------------------------

#[test]
fn stored_key_round_trips_and_rejects_corruption() {
    let key = RunKey::generate().unwrap();
    let stored = key.to_stored();
    assert_eq!(RunKey::from_stored(&stored[..]).unwrap().to_stored(), stored);
    assert_ne!(RunKey::generate().unwrap().to_stored(), stored);
    for i in 0..STORED_LEN {
        let mut corrupted = stored.clone();
        corrupted[i] ^= 1;
        assert!(RunKey::from_stored(&corrupted[..]).is_err());
        assert!(RunKey::from_stored(&stored[..i]).is_err());
    }
    assert!(RunKey::from_stored(&[0; STORED_LEN]).is_err(), "all-zero sector was accepted as a key");
    assert!(RunKey::from_stored(&[&stored[..], &[0]].concat()).is_err());
}

// --- dependence of the noise -----------------------------------------------------------------------------------------

fn plan(dimension: u8, mechanism: Mechanism, mu: f64, run: u64) -> Plan {
    let episodes = Episodes::new(8 * 5, 8, 8).unwrap();
    let config = ControllerConfig {
        dimension,
        episodes,
        level: Level::Strict,
        reward_bound: Some(1.0),
        window: 0,
        half_life: None,
    };
    Plan::new(&config, Budget::new(mu, 1e-6).unwrap(), mechanism, run).unwrap()
}

fn tree(run: u64) -> Plan {
    plan(4, Mechanism::Tree, 1.0, run)
}

/// Releases for episodes 2 to 5 without any message: all coordinates of all streams, in units of σ.
fn releases(plan: &Plan, key: impl NoiseKey, units: usize) -> [Vec<f64>; 4] {
    let mut private = Private::agents(plan.clone(), key, units).unwrap();
    let unit = plan.step() * plan.gaussian().sigma() as f64;
    [2, 3, 4, 5].map(|episode| {
        let streams = private.release(episode);
        let rows = streams.gram.rows().zip(streams.feature_sum.rows());
        rows.flat_map(|(gram, feature_sum)| [gram, feature_sum].concat()).map(|value| value / unit).collect()
    })
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// 56 variables (14 coordinates of four nodes) over 4,000 streams: 1,652 checks at 6.5 deviations, 10⁻¹⁰ each.
#[test]
fn noise_is_uncorrelated_across_streams_nodes_and_coordinates() {
    const UNITS: usize = 4_000;
    let [one, two, three, four] = releases(&tree(1), Seed(5), UNITS);
    let nodes = [one, two.clone(), difference(&three, &two), four];
    let coordinate = |node: &[f64], i: usize| node.iter().skip(i).step_by(14).copied().collect::<Vec<_>>();
    let variables: Vec<_> = nodes.iter().flat_map(|node| (0..14).map(|i| coordinate(node, i))).collect();
    let limit = 6.5 / (UNITS as f64).sqrt();
    for (i, a) in variables.iter().enumerate() {
        let variance = a.iter().map(|z| z * z).sum::<f64>() / UNITS as f64;
        assert!((variance - 1.0).abs() < limit * 2.0_f64.sqrt(), "variance {variance}, expected 1");
        for b in &variables[i + 1..] {
            assert!(correlation(a, b).abs() < limit);
        }
        assert!(correlation(&a[1..], &a[..UNITS - 1]).abs() < limit, "neighbouring streams are correlated");
    }
}

/// Runs that differ in exactly one input. 5.5 deviations have probability 4·10⁻⁸; six checks.
#[test]
fn noise_differs_for_another_key_run_or_configuration() {
    let [reference, ..] = releases(&tree(1), Seed(5), 100);
    let [again, ..] = releases(&tree(1), Seed(5), 100);
    assert_eq!(reference, again);
    let others = [
        releases(&tree(1), Seed(6), 100),
        releases(&tree(2), Seed(5), 100),
        releases(&plan(4, Mechanism::Tree, 1.0000001, 1), Seed(5), 100),
        releases(&plan(4, Mechanism::Honaker, 1.0, 1), Seed(5), 100),
        releases(&tree(1), Seed(5), 101),
        releases(&tree(1), RunKey::generate().unwrap(), 100),
    ];
    for [other, ..] in others {
        assert!(correlation(&reference, &other).abs() < 5.5 / 1400.0_f64.sqrt());
    }
}
