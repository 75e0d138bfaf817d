//! Schedules against numbers computed separately, and against their definition with full matrices.

use std::num::NonZeroU32;

use fedbandit::aggregate::Points;
use fedbandit::algorithm::{
    Calibrated, Episodes, Evidence, Forgetting, Inexact, Problem, Schedule, SoloSchedule, Solution, StreamNoise,
    Streams, Theorem, TheoremNumber, beta_theorem_1, beta_theorem_2, beta_theorem_3, lambda_theorem_1,
    lambda_theorem_2, lambda_theorem_3,
};
use fedbandit::math::symmetric;
use fedbandit::privacy::calibration::{Budget, Fleet, Mechanism, Noise, NoiseBound, paper_bound};
use nalgebra::{DMatrix, DVector};

/// N, T, d, α, σ, R, δ; L, k; B·L·√d, B·L, ε; then ι, C_α, λ and β of the three theorems and their two L, from a separate
/// calculation.
type Case = ([f64; 7], (u32, u32), [f64; 3], [f64; 10]);

const CASES: [Case; 3] = [
    (
        [20.0, 1e4, 8.0, 0.3, 1.0, 0.5, 0.1],
        (100, 100),
        [500.0, 200.0, 0.25],
        [19.360688, 3.5, 12320.21891, 1178.898072, 15821.96891, 1282.413476, 34850.28256, 1939.905537, 2311.0, 362.0],
    ),
    (
        [100.0, 4096.0, 4.0, 0.0, 0.0, 1.0, 0.05],
        (64, 1),
        [0.0, 0.0, 0.0],
        [20.77069889, 2.0, 64.0, 49.82299529, 64.0, 49.82299529, 64.0, 49.82299529, 584.0, 1.0],
    ),
    (
        [50.0, 1e5, 10.0, 0.1, 2.0, 0.5, 0.05],
        (316, 7),
        [1e4, 3e3, 1e-3],
        [
            23.27271101,
            2.25,
            8168.053062,
            1024.925109,
            53168.05756,
            2283.742717,
            98367.76034,
            3122.99487,
            8582.0,
            1207.0,
        ],
    ),
];

fn close(actual: f64, expected: f64) {
    assert!((actual / expected - 1.0).abs() < 1e-8, "got {actual}, expected {expected}");
}

#[test]
fn theorems_match_separate_calculation() {
    for ([agents, horizon, dimension, corruption, sigma, noise, delta], (length, k), inexact, expected) in CASES {
        let problem = Problem {
            agents: agents as usize,
            horizon: horizon as u32,
            dimension: dimension as usize,
            corruption,
            sigma,
            noise,
            delta,
        };
        let [gram_noise, feature_noise, epsilon] = inexact;
        let inexact = Inexact { gram_noise, feature_noise, epsilon };
        let lambdas = [
            lambda_theorem_1(&problem, length, k),
            lambda_theorem_2(&problem, length, k, &inexact),
            lambda_theorem_3(&problem, length, k, &inexact),
        ];
        let betas = [
            beta_theorem_1(&problem, length, k, lambdas[0]),
            beta_theorem_2(&problem, length, k, lambdas[1], &inexact),
            beta_theorem_3(&problem, length, k, lambdas[2], &inexact),
        ];
        close(problem.iota(), expected[0]);
        close(problem.c_alpha(), expected[1]);
        for i in 0..3 {
            close(lambdas[i], expected[2 + 2 * i]);
            close(betas[i], expected[3 + 2 * i]);
        }
        close(problem.episode_len().into(), expected[8]);
        close(problem.episode_len_of_means().into(), expected[9]);
        // The schedule of each theorem uses these formulas.
        let streams = Streams::zeros(1, 1).unwrap();
        let evidence = Evidence { episode: k, streams: &streams, gram: &[0.0], feature_sum: &[0.0] };
        for (i, number) in [TheoremNumber::One, TheoremNumber::Two, TheoremNumber::Three].into_iter().enumerate() {
            let schedule = Theorem { number, problem, episode_len: length, inexact };
            let (design, theta) = (DMatrix::identity(1, 1), DVector::zeros(1));
            let solution = Solution { lambda: lambdas[i], design: &design, theta: &theta };
            assert_eq!(schedule.lambda(&evidence), lambdas[i]);
            assert_eq!(schedule.beta(&evidence, &solution), betas[i]);
        }
    }
}

/// Theorems 2 and 3 with the paper's B, against numbers computed from the paper independently of this code.
#[test]
fn private_theorems_match_independent_numbers() {
    let problem =
        Problem { agents: 100, horizon: 4096, dimension: 4, corruption: 0.1, sigma: 1.0, noise: 1.0, delta: 0.1 };
    let (length, k) = (8, 512);
    let b = paper_bound(Budget::new(1.0, 1e-6).unwrap(), 100, 4096.0, 4, 0.1);
    near(b, 323443.22, 0.005);
    let scale = b * f64::from(length);
    let inexact = Inexact { gram_noise: scale * 4.0_f64.sqrt(), feature_noise: scale, epsilon: 1e-3 };
    let lambda = lambda_theorem_2(&problem, length, k, &inexact);
    near(lambda, 23293073.95, 0.005);
    near(beta_theorem_2(&problem, length, k, lambda, &inexact), 30167.97, 0.005);
    let lambda = lambda_theorem_3(&problem, length, k, &inexact);
    near(lambda, 41412340.25, 0.005);
    near(beta_theorem_3(&problem, length, k, lambda, &inexact), 40225.21, 0.005);
}

/// λ and β of the last episode by Theorem 1 with its L, against numbers computed independently of this code.
#[test]
fn theorem_1_matches_independent_numbers() {
    for (horizon, lambda, beta) in [(1_000, 2266.15, 489.00), (10_000, 7237.3, 893.46), (100_000, 23733.4, 1629.78)] {
        let problem =
            Problem { agents: 20, horizon, dimension: 8, corruption: 0.0, sigma: 1.0, noise: 0.5, delta: 0.1 };
        let length = problem.episode_len();
        let k = horizon.div_ceil(length);
        let actual = lambda_theorem_1(&problem, length, k);
        near(actual, lambda, 0.05);
        near(beta_theorem_1(&problem, length, k, actual), beta, 0.005);
    }
}

/// Compares up to the last digit of the expected number.
fn near(actual: f64, expected: f64, half_digit: f64) {
    assert!((actual - expected).abs() <= half_digit, "got {actual}, expected {expected}");
}

/// Returns arbitrary streams of five units in two dimensions, packed and as matrices.
fn streams() -> (Streams, Vec<DMatrix<f64>>, Vec<DVector<f64>>) {
    let grams: Vec<DMatrix<f64>> = (0..5)
        .map(|i| {
            let i = f64::from(i);
            DMatrix::from_row_slice(2, 2, &[9.0 + i, 1.0 - i, 1.0 - i, 7.0 + (i * i) / 3.0])
        })
        .collect();
    let sums: Vec<DVector<f64>> =
        (0..5).map(|i| DVector::from_vec(vec![3.0 + f64::from(i), 2.0 - f64::from(i * i)])).collect();
    let mut streams = Streams::zeros(5, 2).unwrap();
    for (i, (gram, sum)) in grams.iter().zip(&sums).enumerate() {
        streams.add(i, &symmetric::pack(gram).collect::<Vec<_>>(), sum.as_slice());
    }
    (streams, grams, sums)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

/// The definition in full matrices, for an arbitrary centre.
#[test]
fn calibrated_schedule_matches_its_definition() {
    let (streams, grams, sums) = streams();
    let centre = DMatrix::from_row_slice(2, 2, &[10.0, 0.5, 0.5, 8.0]);
    let b = DVector::from_vec(vec![4.0, 1.0]);
    let packed: Vec<f64> = symmetric::pack(&centre).collect();
    let scaled: Vec<f64> = symmetric::scaled(&packed, 2).collect();
    let evidence = Evidence { episode: 9, streams: &streams, gram: &scaled, feature_sum: b.as_slice() };
    let noise = StreamNoise {
        noise: Noise::new(Budget::new(2.0, 1e-6).unwrap(), Mechanism::Tree, 0.3, 64),
        fleet: Fleet { agents: 5, group_size: 1, dimension: 2, episode_len: 8, delta: 0.1 },
        bound: NoiseBound::Exact,
    };
    for (corruption, theta_bound, noise) in [(0.0, 1.0, None), (0.3, 2.0, None), (0.3, 1.5, Some(noise))] {
        let schedule = Calibrated { corruption, theta_bound, noise };
        let kappa = corruption / (1.0 - 2.0 * corruption).sqrt();
        // The mean of five releases of eight messages, with one tree node each; t for K = 64 and one stream.
        let sigma = noise.map_or(0.0, |noise| noise.noise.node_sigma()) / 5.0_f64.sqrt();
        let t = (2.0 * (16.0 * 64.0 / 0.1_f64).ln()).sqrt();
        let spread = median(grams.iter().map(|gram| (gram - &centre).norm()).collect());
        let lambda = (kappa * spread + (2.0 * spread / 15.0_f64.sqrt()).max(sigma * (2.0 + t))).max(1.0);
        close(schedule.lambda(&evidence), lambda);
        let design = &centre + DMatrix::identity(2, 2) * lambda;
        let theta = design.clone().try_inverse().unwrap() * &b;
        let residuals = grams.iter().zip(&sums).map(|(gram, sum)| {
            let (by_sum, by_gram) = (sum - &b, (gram - &centre) * &theta);
            by_sum.norm().max(by_gram.norm()).max((by_sum - by_gram).norm())
        });
        let spread = median(residuals.collect());
        let error =
            (spread / 5.0_f64.sqrt()).max((1.0 + theta_bound * theta_bound).sqrt() * sigma * (2.0_f64.sqrt() + t));
        let least = design.symmetric_eigenvalues().min();
        let beta = (theta_bound * lambda + kappa * spread + error) / least.sqrt();
        let solution = Solution { lambda, design: &design, theta: &theta };
        close(schedule.beta(&evidence, &solution), beta);
    }
}

/// Fewer than half of the streams, however far away, cannot raise λ above its largest honest value.
#[test]
fn corrupted_minority_cannot_inflate_lambda() {
    let (mut streams, ..) = streams();
    let centre = [9.0, 0.0, 8.0];
    let schedule = Calibrated { corruption: 0.3, theta_bound: 1.0, noise: None };
    let lambda =
        |streams: &Streams| schedule.lambda(&Evidence { episode: 2, streams, gram: &centre, feature_sum: &[1.0, 1.0] });
    let distances: Vec<f64> = streams.gram.rows().map(|row| fedbandit::aggregate::distance(row, &centre)).collect();
    let widest = distances.iter().copied().fold(0.0, f64::max);
    let most = widest * (0.3 / 0.4_f64.sqrt() + 2.0 / 15.0_f64.sqrt());
    streams.gram.add(3, [1e30, -1e30, 1e30]);
    streams.gram.add(4, [-1e200, 0.0, 1e200]);
    assert!(lambda(&streams) <= most);
}

#[test]
fn steps_before_an_episode_are_the_sum_of_lengths() {
    for (first, longest) in [(4, 64), (64, 64), (1, 65_536), (3, 50)] {
        let episodes = Episodes::new(1 << 20, first, longest).unwrap();
        let mut steps = 0;
        for k in 1..=60 {
            assert_eq!(episodes.steps_before(k), steps, "L_1 = {first}, L = {longest}, k = {k}");
            steps += u64::from(episodes.length(k));
        }
    }
}

#[test]
fn solo_schedule_matches_hand_calculation() {
    let schedule = SoloSchedule { noise: 0.5, theta_bound: 2.0, delta: 0.1 };
    let streams = Streams { gram: Points::zeros(1, 3).unwrap(), feature_sum: Points::zeros(1, 2).unwrap() };
    let evidence = Evidence { episode: 11, streams: &streams, gram: &[0.0; 3], feature_sum: &[0.0; 2] };
    let (design, theta) = (DMatrix::from_row_slice(2, 2, &[5.0, 1.0, 1.0, 2.0]), DVector::zeros(2));
    assert_eq!(schedule.lambda(&evidence), 1.0);
    // 0.5·√(ln 9 + 2·ln 10) + 2
    close(schedule.beta(&evidence, &Solution { lambda: 1.0, design: &design, theta: &theta }), 3.304070048284);
}

/// The weights by their definition, step by step.
#[test]
fn forgetting_matches_its_definition() {
    for (first, starts, longest) in [(4, 1, 64), (64, 1, 64), (1, 16, 4096), (3, 5, 50)] {
        let episodes = Episodes::with_starts(1 << 20, first, starts, longest).unwrap();
        for half_life in [1, 10, 64, 1000, 100_000] {
            let forgetting = Forgetting::new(episodes, NonZeroU32::new(half_life));
            let (mut weights, step): (Vec<f64>, _) = (Vec::new(), 0.5_f64.powf(1.0 / f64::from(half_life)));
            for k in 1..=80 {
                for (j, weight) in (1..).zip(&weights) {
                    assert!((forgetting.weight(j, k).unwrap() - weight).abs() < 1e-9);
                }
                let retention = forgetting.retention(k).unwrap();
                assert!((retention - 0.5_f64.powf(f64::from(episodes.length(k)) / f64::from(half_life))).abs() < 1e-12);
                // Each of the steps of episode k makes all others older by one.
                for _ in 0..episodes.length(k) {
                    weights.iter_mut().for_each(|weight| *weight *= step);
                }
                weights.push(1.0);
            }
        }
        let all = Forgetting::new(episodes, None);
        assert_eq!((all.weight(3, 9), all.retention(3)), (None, None));
    }
}
