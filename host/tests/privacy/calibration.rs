//! Privacy calibration against published values, dense matrices and brute force.

use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

use crate::normal;
use crate::random::Random;
use fedbandit::algorithm::{Admission, Level};
use fedbandit::math::symmetric;
use fedbandit::privacy::calibration::{
    Blt, Budget, BudgetError, Fleet, Mechanism, Noise, NoiseBound, delta, levels, paper_bound, sensitivity, truncated,
};
use nalgebra::{DMatrix, DVector};

const NU: f64 = 1e-6;
const MUS: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 8.0];
const MECHANISMS: [Mechanism; 3] = [Mechanism::Tree, Mechanism::Honaker, Mechanism::Blt];
/// Δ/L without tolerance, at the paper's level.
const PAPER: f64 = 2.0 * SQRT_2;
/// Δ/L without tolerance, at the strict level.
const STRICT: f64 = 3.0 * FRAC_1_SQRT_2;

fn budget(mu: f64) -> Budget {
    Budget::new(mu, NU).unwrap()
}

fn noise(mu: f64, mechanism: Mechanism, sensitivity: f64, episodes: u32) -> Noise {
    Noise::new(budget(mu), mechanism, sensitivity, episodes)
}

fn worst(noise: &Noise) -> f64 {
    noise.release_sigma(noise.worst_release())
}

/// Asserts that a value rounds to the printed one, which has `decimals` decimals.
fn assert_printed(value: f64, table: f64, decimals: i32) {
    let unit = 10.0_f64.powi(-decimals);
    assert!((value - table).abs() <= 0.5001 * unit, "{value} does not round to {table}");
}

// --- single Gaussian -------------------------------------------------------------------------------------------------

/// Exact δ of one Gaussian with σ = c·Δ (Balle and Wang 2018): Φ(−a) − e^μ·Φ(−b) with a, b = μc ∓ 1/(2c).
///
/// Since e^μ·φ(b) = φ(a), it equals φ(a)·(M(a) − M(b)) with Mills' ratio M, which does not underflow.
fn analytic_delta(mu: f64, c: f64) -> f64 {
    let (a, b) = (mu * c - 0.5 / c, mu * c + 0.5 / c);
    normal::density(a) * (normal::mills(a) - normal::mills(b))
}

/// Smallest c for which that δ is at most ν.
fn analytic(mu: f64, nu: f64) -> f64 {
    let (mut low, mut high) = (1e-3, 1e6);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        *if analytic_delta(mu, middle) > nu { &mut low } else { &mut high } = middle;
    }
    high
}

#[test]
fn single_gaussian_matches_published_noise() {
    let zcdp = [8.6766, 4.5309, 2.3816, 1.2678, 0.6893];
    let exact = [8.0576, 4.2247, 2.2305, 1.1935, 0.6529];
    let rho = [0.0066415, 0.0243560, 0.0881527, 0.311065, 1.052358];
    for (i, mu) in MUS.into_iter().enumerate() {
        assert_printed(noise(mu, Mechanism::Tree, 1.0, 2).node_sigma(), zcdp[i], 4);
        assert_printed(analytic(mu, NU), exact[i], 4);
        assert_printed(budget(mu).rho(), rho[i], if mu < 4.0 { 7 } else { 6 });
    }
}

#[test]
fn rho_meets_the_budget_tightly() {
    for mu in [1e-6, 1e-3, 0.1, 1.0, 8.0, 64.0, 1e4] {
        for nu in [1e-300, 1e-30, 1e-9, 1e-6, 1e-3, 0.5, 0.999] {
            let rho = Budget::new(mu, nu).unwrap().rho();
            assert!(delta(rho, mu) <= nu);
            assert!(delta(rho * (1.0 + 1e-9), mu) > nu, "μ = {mu}, ν = {nu}: ρ = {rho}");
        }
    }
}

/// Every order gives an upper bound; [`delta`] is the smallest.
#[test]
fn delta_is_minimum_over_all_orders() {
    for (rho, mu) in [(0.0066, 0.5), (0.0244, 1.0), (1.05, 8.0), (30.0, 20.0), (1e-4, 1e-3)] {
        let at = |a: f64| ((a - 1.0) * (a * rho - mu) + a * (1.0 - 1.0 / a).ln() - (a - 1.0).ln()).exp();
        let least = (-4000..4000).map(|i| at(1.0 + (f64::from(i) * 0.005).exp())).fold(1.0, f64::min);
        assert!((delta(rho, mu) / least - 1.0).abs() < 1e-4, "δ = {}, least over orders {least}", delta(rho, mu));
    }
}

#[test]
fn zcdp_noise_exceeds_exact_gaussian_by_five_to_nine_percent() {
    for mu in MUS {
        let ratio = noise(mu, Mechanism::Tree, 1.0, 2).node_sigma() / analytic(mu, NU);
        assert!((1.05..1.09).contains(&ratio), "μ = {mu}: {ratio}");
        for nu in [1e-10, 1e-8, 1e-4, 1e-2] {
            let sigma = (0.5 / Budget::new(mu, nu).unwrap().rho()).sqrt();
            assert!(analytic_delta(mu, sigma) <= nu, "μ = {mu}, ν = {nu}: noise is below the exact requirement");
        }
    }
}

#[test]
fn noise_grows_with_privacy_and_episodes() {
    for pair in [1e-6, 1e-3, 0.1, 0.5, 1.0, 2.0, 8.0, 100.0].windows(2) {
        assert!(Budget::new(pair[0], NU).unwrap().rho() < Budget::new(pair[1], NU).unwrap().rho());
    }
    for pair in [1e-100, 1e-20, 1e-6, 1e-3, 0.1, 0.9].windows(2) {
        assert!(Budget::new(1.0, pair[0]).unwrap().rho() < Budget::new(1.0, pair[1]).unwrap().rho());
    }
    for mechanism in MECHANISMS {
        for episodes in 1..600 {
            let [less, more] = [episodes, episodes + 1].map(|episodes| noise(1.0, mechanism, 1.0, episodes));
            assert!(worst(&less) <= worst(&more), "{mechanism}, K = {episodes}");
        }
    }
}

#[test]
fn mu_grows_with_number_of_messages() {
    for (mu, r, expected) in [(1.0, 1, 1.0), (1.0, 2, 2.11), (1.0, 10, 13.16), (4.0, 2, 8.82)] {
        assert_printed(budget(mu).mu_for_messages(r), expected, 2);
    }
    // The exact accounting of one Gaussian gives slightly less.
    let two = budget(1.0).mu_for_messages(2);
    assert!(analytic_delta(two, 0.5 * noise(1.0, Mechanism::Tree, 1.0, 2).node_sigma()) <= NU);
}

#[test]
fn invalid_budget_is_rejected() {
    for mu in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(Budget::new(mu, NU), Err(BudgetError::Mu(_))));
    }
    for nu in [0.0, -1.0, 1.0, 2.0, f64::NAN] {
        assert!(matches!(Budget::new(1.0, nu), Err(BudgetError::Nu(_))));
    }
    assert_eq!(Budget::new(1e-300, 1e-300), Err(BudgetError::OutOfReach(1e-300, 1e-300)));
    assert!(Budget::new(1e300, 0.5).is_ok_and(|budget| budget.rho() > 0.0));
}

// --- sensitivity -----------------------------------------------------------------------------------------------------

#[test]
fn tolerance_is_small_part_of_sensitivity() {
    for (length, dimension, most) in [(1, 1, 1e-5), (64, 10, 5e-5), (1024, 50, 6e-4), (65_536, 255, 0.02)] {
        for (level, plain) in [(Level::Paper, PAPER), (Level::Strict, STRICT)] {
            let ratio = sensitivity(level, length, dimension) / (plain * f64::from(length));
            assert!(ratio > 1.0 && ratio < 1.0 + most, "L = {length}, D = {dimension}: {ratio}");
        }
    }
}

impl Random {
    fn vector(&mut self, dimension: usize) -> DVector<f64> {
        DVector::from_fn(dimension, |_, _| self.symmetric()).normalize()
    }
}

/// Packed triangle of U, and u.
#[derive(Clone)]
struct Message(Vec<f64>, Vec<f64>);

impl Message {
    fn new(gram: &DMatrix<f64>, feature_sum: &DVector<f64>) -> Self {
        Self(symmetric::pack(gram).collect(), feature_sum.as_slice().to_vec())
    }

    /// Message of L steps with the same action and reward.
    fn constant(length: f64, action: &DVector<f64>, reward: f64) -> Self {
        Self::new(&(action * action.transpose() * length), &(action * (length * reward)))
    }

    /// Scales the message to the largest size that is admitted, by bisection.
    fn stretched(self, admission: &Admission) -> Self {
        let scaled = |f: f64| Self(self.0.iter().map(|x| x * f).collect(), self.1.iter().map(|x| x * f).collect());
        let (mut low, mut high) = (0.0, 4.0);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            let Self(gram, feature_sum) = scaled(middle);
            *if admission.check(&gram, &feature_sum).is_ok() { &mut low } else { &mut high } = middle;
        }
        scaled(low)
    }

    fn distance(&self, other: &Self) -> f64 {
        let scaled = |Self(gram, sum): &Self| -> Vec<_> {
            symmetric::scaled(gram, sum.len()).chain(sum.iter().copied()).collect()
        };
        scaled(self).iter().zip(scaled(other)).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    }
}

/// Returns honest messages, rank-one extremes, and borderline ones: shifted below zero or with u outside U's range.
fn messages(length: f64, dimension: usize, random: &mut Random) -> Vec<Message> {
    let a = random.vector(dimension);
    let b = random.vector(dimension);
    let gram = |x: &DVector<f64>, y: &DVector<f64>, share: f64| {
        (x * x.transpose() * share + y * y.transpose() * (1.0 - share)) * length
    };
    let share = random.symmetric().abs();
    let shift = DMatrix::from_diagonal_element(dimension, dimension, length * 1e-6);
    let shifted = gram(&a, &b, 1.0) - &shift;
    vec![
        Message::constant(length, &a, 1.0),
        Message::constant(length, &a, -1.0),
        Message::constant(length, &a, random.symmetric()),
        Message::new(&gram(&a, &b, share), &((&a * share + &b * (1.0 - share)) * length)),
        Message::new(&gram(&a, &b, share), &((&a * share - &b * (1.0 - share)) * length)),
        Message::new(&shifted, &(&a * length)),
        Message::new(&shifted, &(&a * length + &b * (length * 1e-3))),
        Message::new(&(-gram(&a, &b, 1.0)), &(&b * length)),
        Message::new(&DMatrix::zeros(dimension, dimension), &DVector::zeros(dimension)),
    ]
}

#[test]
fn admitted_messages_differ_by_at_most_the_sensitivity() {
    let mut random = Random::new(1);
    for (length, dimension) in [(1, 1), (1, 2), (64, 2), (64, 5), (65_536, 2), (65_536, 8)] {
        for level in [Level::Paper, Level::Strict] {
            let admission = Admission::new(level, dimension, length, Some(1.0), true).unwrap();
            let most = sensitivity(level, length, dimension);
            let mut seen = Vec::new();
            for _ in 0..40 {
                let all = messages(length.into(), dimension, &mut random);
                seen.extend(all.into_iter().map(|message| message.stretched(&admission)));
            }
            assert!(seen.iter().all(|Message(gram, sum)| admission.check(gram, sum).is_ok()));
            let pairs = seen.iter().flat_map(|a| seen.iter().map(|b| a.distance(b)));
            let farthest = pairs.fold(0.0, f64::max);
            assert!(farthest <= most, "{level:?}, L = {length}, D = {dimension}: {farthest} > {most}");
            assert!(dimension == 1 || farthest > 0.95 * most, "{level:?}, L = {length}: {farthest} of {most}");
        }
    }
}

#[test]
fn extreme_pairs_reach_the_sensitivity() {
    let (length, a) = (64, DVector::from_vec(vec![1.0, 0.0]));
    let b = DVector::from_vec(vec![-0.5, 0.75_f64.sqrt()]);
    let [x, y] = [&a, &b].map(|action| Message::constant(64.0, action, 1.0));
    let Message(gram, sum) = &x;
    let negative = Message(gram.iter().map(|x| -x).collect(), sum.iter().map(|x| -x).collect());
    for (level, message, plain) in [(Level::Strict, &y, STRICT), (Level::Paper, &negative, PAPER)] {
        let admission = Admission::new(level, 2, length, Some(1.0), true).unwrap();
        assert!([&x, message].iter().all(|Message(gram, sum)| admission.check(gram, sum).is_ok()));
        assert!((x.distance(message) / (64.0 * plain) - 1.0).abs() < 1e-12);
    }
}

/// Random ascent from random pairs, for the diameter of the strict set without tolerance.
#[test]
fn maximisation_finds_strict_sensitivity() {
    let mut random = Random::new(2);
    let distance =
        |a: &DVector<f64>, b: &DVector<f64>| Message::constant(1.0, a, 1.0).distance(&Message::constant(1.0, b, 1.0));
    let inside = |x: DVector<f64>| if x.norm() > 1.0 { x.normalize() } else { x };
    for dimension in [2, 3, 6] {
        let mut best = 0.0_f64;
        for _ in 0..20 {
            let [mut a, mut b] = [0; 2].map(|_| random.vector(dimension) * random.symmetric().abs());
            let mut step = 0.5;
            while step > 1e-7 {
                let [c, d] = [&a, &b].map(|x| inside(x + random.vector(dimension) * step));
                if distance(&c, &d) > distance(&a, &b) { (a, b) = (c, d) } else { step *= 0.97 }
            }
            best = best.max(distance(&a, &b));
        }
        assert!(best <= STRICT + 1e-12 && best > STRICT - 1e-4, "D = {dimension}: {best}");
    }
}

#[test]
fn truncated_sensitivity_bounds_truncated_distances() {
    let mut random = Random::new(3);
    let grid = 0.125;
    for _ in 0..10_000 {
        let [a, b]: [[f64; 5]; 2] = [0; 2].map(|_| [0; 5].map(|_| random.symmetric()));
        let distance = |f: fn(f64) -> f64| a.iter().zip(&b).map(|(a, b)| (f(*a) - f(*b)).powi(2)).sum::<f64>().sqrt();
        assert!(distance(|x| (x / 0.125).trunc() * 0.125) <= truncated(distance(|x| x), grid, 2));
    }
}

// --- mechanisms ------------------------------------------------------------------------------------------------------

#[test]
fn levels_count_only_released_sums() {
    let expected = [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (32, 5), (33, 6), (1024, 10), (4096, 12)];
    for (episodes, m) in expected {
        assert_eq!(levels(episodes), m, "K = {episodes}");
    }
    for mechanism in MECHANISMS {
        let nothing = noise(1.0, mechanism, 1.0, 1);
        assert_eq!((nothing.node_sigma(), worst(&nothing)), (0.0, 0.0));
        assert!((noise(1.0, mechanism, 1.0, 2).node_sigma() - 4.5309).abs() < 1e-4);
    }
}

/// The table assumes ⌈log₂ K⌉ + 1 levels, the number for one more episode.
#[test]
fn node_noise_matches_published_table() {
    let episodes = [33, 257, 1025, 4097];
    let paper = [
        [60.11, 73.62, 81.39, 88.48],
        [31.39, 38.45, 42.50, 46.21],
        [16.50, 20.21, 22.34, 24.29],
        [8.78, 10.76, 11.89, 12.93],
        [4.78, 5.85, 6.47, 7.03],
    ];
    let strict = [
        [45.09, 55.22, 61.05, 66.36],
        [23.54, 28.83, 31.88, 34.65],
        [12.38, 15.16, 16.76, 18.22],
        [6.59, 8.07, 8.92, 9.70],
        [3.58, 4.39, 4.85, 5.27],
    ];
    let exact = [
        [55.82, 68.37, 75.59, 82.17],
        [29.27, 35.85, 39.63, 43.08],
        [15.45, 18.93, 20.92, 22.75],
        [8.27, 10.13, 11.20, 12.17],
        [4.52, 5.54, 6.13, 6.66],
    ];
    for (i, mu) in MUS.into_iter().enumerate() {
        for (j, episodes) in episodes.into_iter().enumerate() {
            assert_printed(noise(mu, Mechanism::Tree, PAPER, episodes).node_sigma(), paper[i][j], 2);
            assert_printed(noise(mu, Mechanism::Tree, STRICT, episodes).node_sigma(), strict[i][j], 2);
            assert_printed(PAPER * f64::from(levels(episodes)).sqrt() * analytic(mu, NU), exact[i][j], 2);
        }
    }
}

/// Relative to a tree with ⌈log₂ K⌉ + 1 levels.
#[test]
fn mechanism_ratios_match_published_table() {
    let ratios = [(256, 0.943, 0.730, 0.334), (1024, 0.953, 0.726, 0.313), (4096, 0.961, 0.723, 0.299)];
    for (episodes, tree, honaker, blt) in ratios {
        let full = noise(1.0, Mechanism::Tree, 1.0, episodes + 1).node_sigma() * f64::from(episodes.ilog2()).sqrt();
        assert_printed(worst(&noise(1.0, Mechanism::Tree, 1.0, episodes)) / full, tree, 3);
        assert_printed(worst(&noise(1.0, Mechanism::Honaker, 1.0, episodes)) / full, honaker, 3);
        // The table has K releases; here there are K − 1.
        assert!((worst(&noise(1.0, Mechanism::Blt, 1.0, episodes)) / full - blt).abs() < 1e-3);
    }
    let published_sigma =
        [(1.0, 256, 108.7, 79.4, 36.3), (1.0, 4096, 160.1, 115.8, 47.8), (4.0, 1024, 37.6, 27.3, 11.8)];
    for (mu, episodes, tree, honaker, blt) in published_sigma {
        let full = noise(mu, Mechanism::Tree, PAPER, episodes + 1).node_sigma() * f64::from(episodes.ilog2()).sqrt();
        assert_printed(full, tree, 1);
        assert_printed(worst(&noise(mu, Mechanism::Honaker, PAPER, episodes)), honaker, 1);
        assert!((worst(&noise(mu, Mechanism::Blt, PAPER, episodes)) / blt - 1.0).abs() < 5e-3);
    }
}

/// Lower triangular matrix of ones.
fn prefix_sums(n: usize) -> DMatrix<f64> {
    DMatrix::from_fn(n, n, |i, j| if j <= i { 1.0 } else { 0.0 })
}

/// Level and end of each node that is ever complete over n leaves.
fn nodes(n: usize) -> Vec<(usize, usize)> {
    let at = |level: usize| (1..=n >> level).map(move |index| (level, index << level));
    (0..usize::BITS as usize).take_while(|level| n >> level > 0).flat_map(at).collect()
}

/// C of the tree: the leaves summed by each node.
fn tree_encoder(n: usize) -> DMatrix<f64> {
    let nodes = nodes(n);
    DMatrix::from_fn(nodes.len(), n, |i, leaf| {
        let (level, end) = nodes[i];
        f64::from(leaf < end && leaf + (1 << level) >= end)
    })
}

/// B of the plain tree: the nodes given by the binary digits of k.
fn tree_decoder(n: usize) -> DMatrix<f64> {
    let nodes = nodes(n);
    DMatrix::from_fn(n, nodes.len(), |i, node| {
        let (level, end) = nodes[node];
        let k = i + 1;
        f64::from(k >> level & 1 == 1 && end == k >> level << level)
    })
}

/// B of Honaker's estimate: each of those nodes by least squares over its subtree.
fn honaker_decoder(n: usize) -> DMatrix<f64> {
    let (nodes, encoder, plain) = (nodes(n), tree_encoder(n), tree_decoder(n));
    let below = |(level, end): (usize, usize), (l, e): (usize, usize)| l <= level && e <= end && e + (1 << level) > end;
    let mut estimates = DMatrix::zeros(nodes.len(), nodes.len());
    for (i, node) in nodes.iter().enumerate() {
        let subtree: Vec<_> = (0..nodes.len()).filter(|j| below(*node, nodes[*j])).collect();
        let leaves: Vec<_> = (node.1 - (1 << node.0)..node.1).collect();
        let c = encoder.select_rows(&subtree).select_columns(&leaves);
        let sum = (c.transpose() * &c).try_inverse().unwrap() * c.transpose();
        for (j, weight) in subtree.iter().zip(sum.row_sum().iter()) {
            estimates[(i, *j)] = *weight;
        }
    }
    plain * estimates
}

/// C of a BLT.
fn blt_encoder(blt: &Blt, n: usize) -> DMatrix<f64> {
    let terms = |i: i32| blt.omega().iter().zip(blt.theta).map(|(omega, theta)| omega * theta.powi(i - 1)).sum::<f64>();
    DMatrix::from_fn(n, n, |i, j| match i.checked_sub(j) {
        None => 0.0,
        Some(0) => 1.0,
        Some(difference) => terms(difference as i32),
    })
}

#[test]
fn noise_matches_dense_factorisations() {
    for episodes in 2..=64_u32 {
        let n = episodes as usize - 1;
        let blt = blt_encoder(&Blt::for_episodes(episodes), n);
        let factors = [
            (tree_decoder(n), tree_encoder(n)),
            (honaker_decoder(n), tree_encoder(n)),
            (prefix_sums(n) * blt.clone().try_inverse().unwrap(), blt),
        ];
        for (mechanism, (b, c)) in MECHANISMS.into_iter().zip(factors) {
            assert!(
                (&b * &c - prefix_sums(n)).amax() < 1e-9,
                "{mechanism}, K = {episodes}: BC is not the matrix of prefix sums"
            );
            let column = c.column_iter().map(|column| column.norm()).fold(0.0, f64::max);
            let noise = noise(1.0, mechanism, 1.0, episodes);
            let sigma = column / (2.0 * budget(1.0).rho()).sqrt();
            let ratio = noise.node_sigma() / sigma;
            assert!((1.0..1.0 + 1e-8).contains(&ratio), "{mechanism}, K = {episodes}: {ratio}");
            for (k, row) in (1..).zip(b.row_iter()) {
                let ratio = noise.release_sigma(k) / (sigma * row.norm());
                assert!((ratio - 1.0).abs() < 1e-8, "{mechanism}, K = {episodes}, k = {k}: {ratio}");
                assert!(noise.release_sigma(k) <= worst(&noise));
            }
        }
    }
}

#[test]
fn blt_inverse_is_blt_with_swapped_parameters() {
    for episodes in [2, 256, 1024, 4096, 1 << 14, 1 << 16, 1 << 20, u32::MAX] {
        let blt = Blt::for_episodes(episodes);
        let inverse = Blt { theta: blt.theta_hat, theta_hat: blt.theta };
        assert_eq!(inverse.omega(), blt.omega_hat());
        let product = blt_encoder(&blt, 64) * blt_encoder(&inverse, 64);
        assert!((product - DMatrix::identity(64, 64)).amax() < 1e-12);
        assert!(blt.omega().iter().all(|omega| *omega > 0.0));
    }
}

/// For the best Toeplitz factors, the squared norms of B and C are both Σ_i binom(2i, i)²/16^i. So is their product of
/// norms, the worst release.
#[test]
fn blt_is_close_to_best_toeplitz_matrix() {
    for (episodes, most) in [(16, 1.001), (256, 1.001), (512, 1.002), (4096, 1.006), (1 << 14, 1.02), (1 << 20, 1.06)] {
        let best = (1..episodes - 1).scan(1.0, |c, i| {
            *c *= (f64::from(i) - 0.5) / f64::from(i);
            Some(*c * *c)
        });
        let best = 1.0 + best.sum::<f64>();
        let noise = Noise::new(Budget::new(1.0, NU).unwrap(), Mechanism::Blt, 1.0, episodes);
        let ratio = worst(&noise) * (2.0 * budget(1.0).rho()).sqrt() / best;
        assert!((1.0 - 1e-6..most).contains(&ratio), "K = {episodes}: {ratio}");
    }
}

#[test]
fn mechanism_names_round_trip() {
    for mechanism in MECHANISMS {
        assert_eq!(mechanism.to_string().parse(), Ok(mechanism));
    }
    let error = "Tree".parse::<Mechanism>().unwrap_err().to_string();
    assert_eq!(error, "unknown mechanism 'Tree'; expected one of tree, honaker, blt");
}

// --- noise bounds ----------------------------------------------------------------------------------------------------

/// For N = 50, T = 10⁵, δ = 0.05 and ⌈log₂ K⌉ + 1 levels.
#[test]
fn noise_bounds_match_published_table() {
    let rows = [
        (10, 0.5, 897_827.0, [1290.0, 2080.0, 2635.0, 3210.0]),
        (10, 1.0, 448_913.0, [674.0, 1086.0, 1376.0, 1676.0]),
        (10, 2.0, 224_457.0, [354.0, 571.0, 723.0, 881.0]),
        (10, 4.0, 112_228.0, [189.0, 304.0, 385.0, 469.0]),
        (10, 8.0, 56_114.0, [103.0, 165.0, 209.0, 255.0]),
        (5, 1.0, 433_185.0, [582.0, 944.0, 1200.0, 1466.0]),
        (50, 1.0, 515_292.0, [1062.0, 1687.0, 2119.0, 2561.0]),
    ];
    for (dimension, mu, paper, exact) in rows {
        assert_printed(paper_bound(budget(mu), 50, 1e5, dimension, 0.05), paper, 0);
        for (episodes, exact) in [32, 256, 1024, 4096].into_iter().zip(exact) {
            let noise = noise(mu, Mechanism::Tree, PAPER, episodes);
            let fleet = Fleet { agents: 50, group_size: 1, dimension, episode_len: 1, delta: 0.05 };
            let bound = NoiseBound::Exact.norms(&noise, &fleet, noise.worst_release()).spectral;
            let m = f64::from(levels(episodes));
            assert_printed(bound * ((m + 1.0) / m).sqrt(), exact, 0);
        }
    }
}

#[test]
fn frobenius_bound_is_below_root_d_times_paper_bound() {
    let fleet = Fleet { agents: 50, group_size: 1, dimension: 10, episode_len: 1, delta: 0.05 };
    let b = paper_bound(budget(1.0), 50, 1e5, 10, 0.05);
    for (episodes, ratio) in [(32, 1612.0), (256, 1009.0), (1024, 801.0), (4096, 661.0)] {
        let noise = noise(1.0, Mechanism::Tree, PAPER, episodes);
        let m = f64::from(levels(episodes));
        let frobenius = NoiseBound::Exact.norms(&noise, &fleet, noise.worst_release()).frobenius;
        assert_printed(b * 10.0_f64.sqrt() / (frobenius * ((m + 1.0) / m).sqrt()), ratio, 0);
    }
}

#[test]
fn noise_bounds_depend_on_fleet() {
    let noise = noise(1.0, Mechanism::Tree, 64.0 * STRICT, 256);
    let single = Fleet { agents: 48, group_size: 1, dimension: 10, episode_len: 64, delta: 0.05 };
    let grouped = Fleet { group_size: 8, ..single };
    let six = Fleet { agents: 6, ..single };
    let [single_norms, grouped, six] = [single, grouped, six].map(|fleet| NoiseBound::Exact.norms(&noise, &fleet, 255));
    assert!((grouped.spectral * 8.0 / six.spectral - 1.0).abs() < 1e-12, "six groups of eight differ from six agents");
    assert!(single_norms.vector < single_norms.spectral && single_norms.spectral < single_norms.frobenius);
    assert!(NoiseBound::Exact.norms(&noise, &single, 128).vector < single_norms.vector);
    let paper = NoiseBound::Paper.norms(&noise, &single, 255);
    assert_eq!(paper.spectral, 64.0 * paper_bound(budget(1.0), 48, 64.0 * 256.0, 10, 0.05));
    assert_eq!((paper.vector, paper.frobenius), (paper.spectral, paper.spectral * 10.0_f64.sqrt()));
}

/// 20,000 matrices: E λ_max is below its part of the bound, and the tail is no heavier than assumed.
#[test]
fn sampled_noise_is_within_bounds() {
    let mut random = Random::new(4);
    let (d, runs) = (6, 20_000);
    let largest: Vec<_> = (0..runs)
        .map(|_| {
            let packed: Vec<_> = (0..d * (d + 1) / 2).map(|_| random.gaussian()).collect();
            symmetric::matrix(&packed, d).symmetric_eigenvalues().max()
        })
        .collect();
    let root = (2.0 * d as f64).sqrt();
    assert!(largest.iter().sum::<f64>() / f64::from(runs) < root);
    for t in [0.5, 1.0, 2.0] {
        let above = largest.iter().filter(|value| **value > root + t).count();
        assert!((above as f64) < f64::from(runs) * (-t * t / 2.0_f64).exp(), "t = {t}: {above}");
    }
}
