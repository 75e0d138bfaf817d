//! Symmetric matrices: packings against their definition, and the repair of Λ.
//!
//! Repairs are checked by eigenvalues and by a device that has to factorise the result.

use fedbandit::math::symmetric::{is_usable, matrix, pack, raise_eigenvalues, scaled, unscaled};
use fedbandit_core::{Agent, Model, Prior, Rewards, VALUE_LIMIT};
use nalgebra::{DMatrix, DVector};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::SeedableRng;

use crate::uniform::uniform;

fn random(dimension: usize, rng: &mut Pcg64) -> DMatrix<f64> {
    DMatrix::from_fn(dimension, dimension, |_, _| 2.0 * uniform(rng) - 1.0)
}

/// Returns a matrix with these eigenvalues, in a random basis.
fn with_eigenvalues(values: &[f64], rng: &mut Pcg64) -> DMatrix<f64> {
    let basis = random(values.len(), rng).qr().q();
    let matrix = &basis * DMatrix::from_diagonal(&DVector::from_column_slice(values)) * basis.transpose();
    (&matrix + matrix.transpose()) / 2.0
}

/// Returns true if a device accepts this Λ.
fn device_accepts<const D: usize>(design: &DMatrix<f64>) -> bool {
    let design: Vec<f32> = pack(design).map(|value| value as f32).collect();
    let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 1, rewards: Rewards::Unbounded };
    let (theta, design) = ((&[0.0; D]).into(), design.as_slice().into());
    let model = Model { episode: 1, episode_len: 1, beta: 1.0, rewards: Rewards::Unbounded, theta, design };
    Agent::<D>::new(&prior).unwrap().begin(&model).is_ok()
}

#[test]
fn scaled_packing_keeps_frobenius_norm() {
    let mut rng = Pcg64::seed_from_u64(1);
    for dimension in 1..12 {
        let full = random(dimension, &mut rng);
        let full = &full + full.transpose();
        let packed: Vec<_> = pack(&full).collect();
        let packing: Vec<_> = scaled(&packed, dimension).collect();
        let norm = packing.iter().map(|value| value * value).sum::<f64>().sqrt();
        assert!((norm - full.norm()).abs() < 1e-14 * norm);
        assert!((matrix(&packing, dimension) - &full).amax() < 1e-15);
        assert!(unscaled(&packing, dimension).zip(&packed).all(|(a, b)| (a - b).abs() < 1e-15));
    }
    let packed = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    assert_eq!(
        pack(&DMatrix::from_row_slice(3, 3, &[1.0, 2.0, 3.0, 2.0, 4.0, 5.0, 3.0, 5.0, 6.0])).collect::<Vec<_>>(),
        packed
    );
}

/// (D + 4)·2⁻²³·tr Λ.
fn margin(dimension: usize, trace: f64) -> f64 {
    (dimension as f64 + 4.0) * trace / 8_388_608.0
}

/// Counts usable and device-accepted matrices among 200 whose smallest eigenvalue is `times` the margin.
fn near_the_margin<const D: usize>(times: f64, seed: u64) -> (usize, usize) {
    let mut rng = Pcg64::seed_from_u64(seed);
    let (mut usable, mut accepted) = (0, 0);
    for round in 0..200 {
        // Eigenvalues all large, one large, or falling over nine decades; at any magnitude.
        let size = 10.0_f64.powf(18.0 * uniform(&mut rng) - 2.0);
        let falling = |rng: &mut Pcg64| size * 10.0_f64.powf(-9.0 * uniform(rng));
        let mut values: Vec<_> = match round % 3 {
            0 => vec![size; D],
            1 => [size].into_iter().chain(vec![0.0; D - 1]).collect(),
            _ => (0..D).map(|_| falling(&mut rng)).collect(),
        };
        values[D - 1] = 0.0;
        let least = times * margin(D, values.iter().sum());
        values.iter_mut().for_each(|value| *value = value.max(least));
        let design = with_eigenvalues(&values, &mut rng);
        let (passes, accepts) = (is_usable(&design), device_accepts::<D>(&design));
        assert!(accepts || !passes, "D = {D}: device rejects a usable matrix with eigenvalues {values:?}");
        usable += usize::from(passes);
        accepted += usize::from(accepts);
    }
    (usable, accepted)
}

#[test]
fn usable_matrix_is_accepted_by_device() {
    let above = [near_the_margin::<2>(1.01, 2), near_the_margin::<8>(1.01, 3), near_the_margin::<32>(1.01, 4)];
    assert_eq!(above, [(200, 200); 3]);
    let below = [near_the_margin::<2>(0.01, 5), near_the_margin::<8>(0.001, 6), near_the_margin::<32>(0.001, 7)];
    for (usable, accepted) in below {
        assert!(
            usable == 0 && accepted < 190,
            "far below the margin, {usable} of 200 are usable and {accepted} accepted"
        );
    }
    assert!(is_usable(&DMatrix::identity(255, 255)), "identity of the largest dimension is not usable");
    let tiny = |exponent: i32| DMatrix::from_diagonal_element(2, 2, 2.0_f64.powi(exponent));
    assert!(is_usable(&tiny(-57)) && device_accepts::<2>(&tiny(-57)));
    assert!(!is_usable(&tiny(-61)) && !device_accepts::<2>(&tiny(-61)));
}

#[test]
fn only_small_eigenvalues_are_raised() {
    let mut rng = Pcg64::seed_from_u64(8);
    for (values, floor, expected) in [
        // Indefinite: everything below the floor is raised to it.
        ([-5.0, 0.1, 0.9, 3.0], 0.5, [0.5, 0.5, 0.9, 3.0]),
        ([-9.0, -2.0, -1.0, -0.5], 0.5, [0.5; 4]),
        ([0.0; 4], 2.0, [2.0; 4]),
        // Definite by the margin: unchanged, whatever the floor.
        ([0.1, 0.2, 0.9, 3.0], 0.5, [0.1, 0.2, 0.9, 3.0]),
        // Too close to singular for f32: raised to twice the margin, 2·8·2⁻²³·(3 + 10⁶).
        ([-1.0, 1.0, 2.0, 1e6], 0.5, [1.907_354, 1.907_354, 2.0, 1e6]),
    ] {
        let before = with_eigenvalues(&values, &mut rng);
        let (after, raised) = raise_eigenvalues(before.clone(), floor).unwrap();
        let mut eigenvalues = after.clone().symmetric_eigenvalues().as_slice().to_vec();
        eigenvalues.sort_by(f64::total_cmp);
        for (got, expected) in eigenvalues.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-6 * expected, "{values:?}: {eigenvalues:?}");
        }
        assert_eq!(raised, values.iter().zip(expected).filter(|(before, after)| **before != *after).count());
        assert!(is_usable(&after) && device_accepts::<4>(&after));
        // Eigenvectors are unchanged: before and after commute.
        assert!((&before * &after - &after * &before).amax() < 1e-9 * after.norm() * before.norm().max(1.0));
    }
}

#[test]
fn matrix_in_range_is_repaired() {
    let mut rng = Pcg64::seed_from_u64(9);
    for round in 0..2000 {
        let dimension = 1 + round % 33;
        // Sparse, of one or of all magnitudes: hard cases for an eigenvalue solver.
        let density = [0.05, 0.3, 1.0][round % 3];
        let mut full = DMatrix::zeros(dimension, dimension);
        for i in 0..dimension {
            for j in 0..=i {
                if uniform(&mut rng) < density {
                    let size = if round % 2 == 0 { 1.0 } else { 2.0_f64.powf(160.0 * uniform(&mut rng) - 100.0) };
                    full[(i, j)] = if uniform(&mut rng) < 0.5 { size } else { -size };
                    full[(j, i)] = full[(i, j)];
                }
            }
        }
        let (after, _) = raise_eigenvalues(full.clone(), 0.5).expect("matrix in range was not repaired");
        assert!(is_usable(&after) || after.amax() > f64::from(VALUE_LIMIT), "{full}");
    }
    let largest = random(255, &mut rng);
    let (after, raised) = raise_eigenvalues(&largest + largest.transpose(), 0.5).unwrap();
    assert!(
        is_usable(&after) && (100..160).contains(&raised),
        "raised {raised} of 255 eigenvalues; about half should be negative"
    );
}

#[test]
fn matrix_out_of_range_is_not_repaired() {
    for bad in [1e19, -1e300, f64::MAX, f64::INFINITY, f64::NAN] {
        let mut design = DMatrix::identity(3, 3);
        design[(1, 2)] = bad;
        design[(2, 1)] = bad;
        assert!(!is_usable(&design) && raise_eigenvalues(design, 1.0).is_none(), "value {bad}");
    }
    assert!(!is_usable(&DMatrix::from_diagonal_element(3, 3, 1e19)), "positive definite matrix out of range is usable");
}
