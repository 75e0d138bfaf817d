//! Directions that too few units have explored, against the definition and brute force.

use fedbandit::algorithm::Streams;
use fedbandit::robust::{Assumptions, Exploration, Identifiability};
use nalgebra::{DMatrix, DVector};
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::SeedableRng;

use crate::uniform::{below, uniform};

const R: f64 = 0.5;
const S: f64 = 1.0;

fn assumptions(corruption: f64) -> Assumptions {
    Assumptions { corruption, noise: R, theta_bound: S, stream_noise: None, forgetting: false }
}

fn streams(grams: &[DMatrix<f64>]) -> Streams {
    let d = grams[0].nrows();
    let mut streams = Streams::zeros(grams.len(), d).unwrap();
    for (unit, gram) in grams.iter().enumerate() {
        let packed: Vec<f64> = (0..d).flat_map(|i| (i..d).map(move |j| (i, j))).map(|at| gram[at]).collect();
        streams.add(unit, &packed, &vec![0.0; d]);
    }
    streams
}

fn explore(grams: &[DMatrix<f64>], corruption: f64) -> Exploration {
    Exploration::new(&streams(grams), grams.len(), &assumptions(corruption)).unwrap()
}

/// m(u) by the definition, where e_i is a function of z = S√(uᵀV̂_iu)/R.
fn explorers(grams: &[DMatrix<f64>], u: &DVector<f64>, degree: fn(f64) -> f64) -> f64 {
    let information = |gram: &DMatrix<f64>| {
        let v = u.dot(&(gram * u));
        if v > gram.trace() * f64::from(f32::EPSILON) { v } else { 0.0 }
    };
    grams.iter().map(|gram| degree(S * information(gram).sqrt() / R)).sum()
}

/// 2Φ(z) − 1, integrated by Simpson's rule.
fn integrated(z: f64) -> f64 {
    let (steps, end) = (200, z.min(8.0));
    let density = |k: i32| (-(end * f64::from(k) / f64::from(steps)).powi(2) / 2.0).exp();
    let weight = |k: i32| if k == 0 || k == steps { 1.0 } else { f64::from(2 + 2 * (k % 2)) };
    let sum: f64 = (0..=steps).map(|k| weight(k) * density(k)).sum();
    2.0 * sum * end / f64::from(3 * steps) / (2.0 * std::f64::consts::PI).sqrt()
}

/// 2Φ(z) − 1 as an error function.
fn by_error_function(z: f64) -> f64 {
    libm::erf(z / std::f64::consts::SQRT_2)
}

struct Random(Pcg64);

impl Random {
    fn vector(&mut self, d: usize) -> DVector<f64> {
        DVector::from_fn(d, |_, _| StandardNormal.sample(&mut self.0))
    }

    fn rotation(&mut self, d: usize) -> DMatrix<f64> {
        DMatrix::from_columns(&(0..d).map(|_| self.vector(d)).collect::<Vec<_>>()).qr().q()
    }

    /// Gram matrices of units that explore the axes of a rotation: the j-th axis with probability `shares[j]`, and else with
    /// actions that are a hundred times smaller.
    fn fleet(&mut self, n: usize, rotation: &DMatrix<f64>, shares: &[f64]) -> Vec<DMatrix<f64>> {
        let d = shares.len();
        let mut unit = || {
            let scales = DVector::from_fn(d, |j, _| if uniform(&mut self.0) < shares[j] { 1.0 } else { 0.01 });
            let steps = 1 + below(&mut self.0, 80);
            let actions = (0..steps).map(|_| rotation * self.vector(d).normalize().component_mul(&scales));
            actions.fold(DMatrix::zeros(d, d), |gram, x| gram + &x * x.transpose())
        };
        (0..n).map(|_| unit()).collect()
    }
}

/// Directions are orthonormal, their explorers and states are true by definition, and the list ends with the first
/// identifiable one.
#[test]
fn reported_counts_match_their_definition() {
    for seed in 0..60 {
        let mut random = Random(Pcg64::seed_from_u64(seed));
        let (n, d) = (1 + below(&mut random.0, 300), 1 + below(&mut random.0, 12));
        let shares: Vec<f64> = (0..d).map(|_| uniform(&mut random.0)).collect();
        let rotation = random.rotation(d);
        let grams = random.fleet(n, &rotation, &shares);
        let corruption = 0.49 * uniform(&mut random.0);
        let found = explore(&grams, corruption);
        let f = (corruption * n as f64).floor();
        assert_eq!((found.units, found.corrupted as f64), (n, f), "seed {seed}");
        for (feature, m) in found.features.iter().enumerate() {
            let axis = DVector::from_fn(d, |row, _| f64::from(u8::from(row == feature)));
            assert!(
                (m - explorers(&grams, &axis, integrated)).abs() < 1e-6 * n as f64,
                "seed {seed}, feature {feature}"
            );
        }
        let vectors: Vec<_> = found.directions.iter().map(|found| DVector::from_vec(found.vector.clone())).collect();
        for (i, (direction, u)) in found.directions.iter().zip(&vectors).enumerate() {
            let m = explorers(&grams, u, integrated);
            assert!((direction.explorers - m).abs() < 1e-6 * n as f64, "seed {seed}: {} for {m}", direction.explorers);
            let expected = match direction.explorers {
                m if m <= f.max(0.5) => Identifiability::NotIdentifiable,
                m if m <= f + f.max(0.5) => Identifiability::Uncertain,
                _ => Identifiability::Identifiable,
            };
            assert_eq!(direction.state, expected, "seed {seed}: {m} of {n}, f = {f}");
            assert!(
                expected != Identifiability::Identifiable || i + 1 == vectors.len(),
                "seed {seed}: {i} is not the last"
            );
            for (j, other) in vectors.iter().enumerate() {
                let product = f64::from(u8::from(i == j));
                assert!((u.dot(other) - product).abs() < 1e-9, "seed {seed}: {i} and {j}");
            }
        }
        let least = found.features.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(found.directions[0].explorers <= least, "seed {seed}: a feature has fewer explorers");
    }
}

/// All directions of the plane. The fewest explorers are those along one of two axes, or nearly so.
#[test]
fn least_explored_direction_of_the_plane_matches_brute_force() {
    for seed in 100..140 {
        let mut random = Random(Pcg64::seed_from_u64(seed));
        let rotation = random.rotation(2);
        let shares = [uniform(&mut random.0), uniform(&mut random.0)];
        let grams = random.fleet(60, &rotation, &shares);
        let angles = (0..4_000).map(|k| f64::from(k) * std::f64::consts::PI / 4_000.0);
        let truth = angles
            .map(|angle| explorers(&grams, &DVector::from_vec(vec![angle.cos(), angle.sin()]), by_error_function));
        let truth = truth.fold(f64::INFINITY, f64::min);
        let found = explore(&grams, 0.3).directions[0].explorers;
        // The margin of axes is 0.12 explorers; the grid is finer than that.
        assert!(found > truth - 0.1 && found < truth + 0.25, "seed {seed}: {found}, brute force {truth}");
    }
}

/// 50 units, f = 10. The given number of units explored feature 3; all explored the others.
#[test]
fn states_change_above_f_and_above_twice_f() {
    for (explorers, state) in [
        (0, Identifiability::NotIdentifiable),
        (10, Identifiability::NotIdentifiable),
        (11, Identifiability::Uncertain),
        (20, Identifiability::Uncertain),
        (21, Identifiability::Identifiable),
    ] {
        let mut gram = DMatrix::identity(4, 4) * 100.0;
        let known = gram.clone();
        gram[(2, 2)] = 0.0;
        let mut grams = vec![gram; 50];
        grams[..explorers].fill(known);
        let found = explore(&grams, 0.2);
        let direction = &found.directions[0];
        assert_eq!((direction.name.as_str(), direction.state), ("feature 3", state), "{explorers} explorers");
        assert!((direction.explorers - explorers as f64).abs() < 1e-9, "{explorers}: {}", direction.explorers);
        assert_eq!((found.limit, found.needed), (10.0, 20.0));
    }
}

/// 300 of 1,000 units claim a huge amount of information along the only direction that honest units have not explored.
#[test]
fn false_claims_do_not_hide_an_unexplored_direction() {
    for seed in 200..220 {
        let mut random = Random(Pcg64::seed_from_u64(seed));
        let rotation = random.rotation(6);
        let mut grams = random.fleet(1_000, &rotation, &[0.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let q = rotation.column(0).into_owned();
        (0..1_000).filter(|unit| unit % 10 < 3).for_each(|unit| grams[unit] = &q * q.transpose() * 1e6);
        let found = explore(&grams, 0.3);
        let direction = &found.directions[0];
        assert_eq!(direction.state, Identifiability::Uncertain, "seed {seed}: {direction:?}");
        let cosine = q.dot(&DVector::from_vec(direction.vector.clone())).abs();
        assert!(cosine > 0.99, "seed {seed}: {cosine}");
    }
}

#[test]
fn unit_that_was_excluded_is_no_longer_among_the_corrupted() {
    let grams = vec![DMatrix::identity(2, 2) * 100.0; 18];
    let found = Exploration::new(&streams(&grams), 20, &assumptions(0.3)).unwrap();
    assert_eq!((found.units, found.corrupted, found.limit, found.needed), (18, 4, 4.0, 8.0));
}

/// Before the first episode has closed, nobody has explored anything.
#[test]
fn without_data_no_direction_is_identifiable() {
    for corruption in [0.0, 0.3] {
        let found = explore(&vec![DMatrix::zeros(12, 12); 5], corruption);
        assert_eq!((found.count(Identifiability::NotIdentifiable), found.directions.len()), (8, 8));
        assert_eq!(found.directions[7].name, "feature 8");
        assert_eq!(found.features, [0.0; 12]);
    }
}

/// Without noise any data are enough. A matrix that no honest unit sends must not stop the controller.
#[test]
fn extreme_values_are_counted_without_panic() {
    let noiseless = Assumptions { noise: 0.0, ..assumptions(0.3) };
    let grams = vec![DMatrix::identity(3, 3) * 1e-3; 10];
    let found = Exploration::new(&streams(&grams), 10, &noiseless).unwrap();
    assert_eq!(found.directions[0].explorers, 10.0);
    for value in [1e-300, 1e15, 1e300, -1.0, -1e300] {
        let mut grams = vec![DMatrix::identity(3, 3) * 100.0; 10];
        grams[0].fill(value);
        let found = explore(&grams, 0.3);
        assert!(found.directions[0].explorers >= 9.0 - 1e-6, "{value}: {:?}", found.directions);
    }
}
