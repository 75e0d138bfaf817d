//! Admission against eigenvalues computed by nalgebra, and against honest devices with extreme inputs.

use fedbandit::algorithm::{Admission, AdmissionError, EpisodeLenError, Fault, Level, pack_symmetric};
use fedbandit_core::{Action, Agent, MAX_EPISODE_LEN, Prior, Rewards, norm_squared_limit, project, rounding};
use nalgebra::{DMatrix, DVector};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::uniform::uniform;

fn direction<const D: usize>(rng: &mut Pcg64) -> Action<D> {
    project(&(Action::from_fn(|_, _| uniform(rng) as f32 - 0.5) * 1e6))
}

/// Scales an action to the largest norm that an agent accepts.
fn longest<const D: usize>(x: Action<D>) -> Action<D> {
    let agent = Agent::<D>::new(&prior(1)).unwrap();
    let mut scale = norm_squared_limit(D).sqrt();
    while agent.score(&(x * scale)).is_err() {
        scale = scale.next_down();
    }
    x * scale
}

fn prior(episode_len: u32) -> Prior {
    Prior { lambda: 1.0, beta: 1.0, episode_len, rewards: Rewards::Clipped }
}

/// Sequences of actions that strain the sums of an episode.
const PLANS: [&str; 7] = ["repeated", "longest", "random", "falling", "rising", "mixed", "two arms"];

fn step<const D: usize>(plan: &str, arms: &[Action<D>; 3], t: u32, steps: u32, rng: &mut Pcg64) -> Action<D> {
    match plan {
        "repeated" => arms[0],
        "longest" => arms[2],
        "random" => direction(rng),
        // Large terms first, then terms that vanish against a large sum; and the reverse.
        "falling" => direction(rng) * 0.5_f32.powi((t * 20 / steps) as i32),
        "rising" => direction(rng) * 0.5_f32.powi(20 - (t * 20 / steps) as i32),
        "mixed" => direction::<D>(rng).map(|x| x * 10.0_f32.powi(-(uniform(rng) * 30.0) as i32)),
        _ => arms[usize::from(t.is_multiple_of(7))],
    }
}

/// Returns a reward at its bound: constant, alternating, with the sign of a coordinate, or random.
fn reward<const D: usize>(kind: u32, x: &Action<D>, t: u32, rng: &mut Pcg64) -> f32 {
    match kind {
        0 => 1.0,
        1 => [1.0, -1.0][t as usize % 2],
        2 => x[0].signum(),
        _ => [1.0, -1.0][rng.next_u32() as usize % 2],
    }
}

fn check_honest_summaries<const D: usize>(lengths: &[u32], largest: &mut f64) {
    for (seed, &length) in lengths.iter().enumerate() {
        let levels =
            [Level::Paper, Level::Strict].map(|level| Admission::new(level, D, length, Some(1.0), true).unwrap());
        for plan in PLANS {
            for kind in 0..4 {
                let mut rng = Pcg64::seed_from_u64(seed as u64 * 8 + u64::from(kind));
                let arm = direction(&mut rng);
                let arms = [arm, direction(&mut rng), longest(arm)];
                let mut agent = Agent::<D>::new(&prior(length)).unwrap();
                let mut exact = DMatrix::zeros(D, D);
                for t in 0..length {
                    let x = step(plan, &arms, t, length, &mut rng);
                    agent.record(&x, reward(kind, &x, t, &mut rng)).unwrap();
                    let x = DVector::from_iterator(D, x.iter().map(|x| f64::from(*x)));
                    exact.ger(1.0, &x, &x, 1.0);
                }
                let summary = agent.finish();
                let gram: Vec<f64> = summary.gram().map(f64::from).collect();
                let feature_sum = summary.feature_sum().map(f64::from);
                for admission in &levels {
                    let outcome = admission.check(&gram, &feature_sum);
                    assert_eq!(outcome, Ok(()), "D {D}, L {length}, {plan}, rewards {kind}");
                }
                let error = (unpack(&gram, D) - exact).norm() / f64::from(length);
                *largest = largest.max(error / rounding::sums(length, D));
            }
        }
    }
}

fn unpack(packed: &[f64], dimension: usize) -> DMatrix<f64> {
    let mut values = packed.iter();
    let mut matrix = DMatrix::zeros(dimension, dimension);
    for i in 0..dimension {
        for j in i..dimension {
            matrix[(i, j)] = *values.next().unwrap();
            matrix[(j, i)] = matrix[(i, j)];
        }
    }
    matrix
}

#[test]
fn honest_summaries_pass() {
    let mut largest = 0.0;
    check_honest_summaries::<1>(&[1, 2, 64, 4_096, 50_000, MAX_EPISODE_LEN], &mut largest);
    check_honest_summaries::<2>(&[1, 3, 100, 1_000, MAX_EPISODE_LEN], &mut largest);
    check_honest_summaries::<4>(&[1, 5, 64, 10_000, MAX_EPISODE_LEN], &mut largest);
    check_honest_summaries::<8>(&[1, 7, 64, 1_024, 30_000, MAX_EPISODE_LEN], &mut largest);
    check_honest_summaries::<16>(&[1, 64, 4_096], &mut largest);
    check_honest_summaries::<32>(&[1, 64, 1_000], &mut largest);
    assert!((0.1..1.0).contains(&largest), "largest rounding error is {largest} of its bound");
}

/// Evaluates the strict checks by their definition, without tolerance. Returns the margin as well.
fn strict_checks(gram: &[f64], feature_sum: &[f64], length: f64, bound: Option<f64>) -> (Result<(), Fault>, f64) {
    let dimension = feature_sum.len();
    let matrix = unpack(gram, dimension);
    let u = DVector::from_column_slice(feature_sum);
    let smallest = |matrix: DMatrix<f64>| matrix.symmetric_eigenvalues().min();
    let trace = length - matrix.trace();
    let definite = smallest(matrix.clone());
    let consistent =
        bound.map_or(f64::INFINITY, |r| smallest(matrix * (r * r * length) - &u * u.transpose()) / (r * r * length));
    let outcome = match (trace < 0.0, definite < 0.0, consistent < 0.0) {
        (true, ..) => Err(Fault::Norm),
        (_, true, _) => Err(Fault::NotPositiveSemidefinite),
        (.., true) => Err(Fault::Inconsistent),
        _ => Ok(()),
    };
    (outcome, trace.abs().min(definite.abs()).min(consistent.abs()) / length)
}

#[test]
fn strict_admission_matches_its_definition() {
    const LENGTH: u32 = 64;
    let mut rng = Pcg64::seed_from_u64(9);
    let mut seen = [0; 4];
    for trial in 0..20_000 {
        let dimension = 1 + trial % 6;
        let bound = [None, Some(1.0), Some(0.3)][trial % 3];
        let admission = Admission::new(Level::Strict, dimension, LENGTH, bound, false).unwrap();
        let root = DMatrix::from_fn(dimension, dimension, |_, _| uniform(&mut rng) - 0.5);
        let mut matrix = &root * root.transpose();
        matrix *= 80.0 * uniform(&mut rng) / matrix.trace();
        matrix -= DMatrix::identity(dimension, dimension) * ((uniform(&mut rng) - 0.7).max(0.0) * 2.0);
        let u: Vec<f64> = (0..dimension).map(|_| (uniform(&mut rng) - 0.5) * 60.0 * uniform(&mut rng)).collect();
        let gram = pack_symmetric(matrix.as_slice(), dimension).unwrap_or_else(|_| {
            let symmetric = (&matrix + matrix.transpose()) * 0.5;
            pack_symmetric(symmetric.as_slice(), dimension).unwrap()
        });
        let (expected, margin) = strict_checks(&gram, &u, LENGTH.into(), bound);
        if margin < 10.0 * rounding::sums(LENGTH, dimension) {
            continue; // within the tolerance for rounding
        }
        assert_eq!(admission.check(&gram, &u), expected, "{gram:?} {u:?} {bound:?}");
        seen[match expected {
            Ok(()) => 0,
            Err(Fault::Norm) => 1,
            Err(Fault::NotPositiveSemidefinite) => 2,
            _ => 3,
        }] += 1;
    }
    assert!(seen.iter().all(|count| *count > 500), "{seen:?}");
}

#[test]
fn each_defect_has_its_fault() {
    let strict = Admission::new(Level::Strict, 2, 64, Some(1.0), false).unwrap();
    let paper = Admission::new(Level::Paper, 2, 64, None, false).unwrap();
    let private = Admission::new(Level::Paper, 2, 64, Some(1.0), true).unwrap();
    let good = [30.0, 1.0, 20.0];
    assert_eq!(strict.check(&good[..2], &[0.0; 2]), Err(Fault::WrongDimension));
    assert_eq!(strict.check(&good, &[0.0; 3]), Err(Fault::WrongDimension));
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(paper.check(&[30.0, bad, 20.0], &[0.0; 2]), Err(Fault::NonFinite));
        assert_eq!(paper.check(&good, &[0.0, bad]), Err(Fault::NonFinite));
    }
    assert_eq!(paper.check(&[1e300, -1e300, -1e300], &[1e300; 2]), Ok(()));
    for admission in [&strict, &private] {
        assert_eq!(admission.check(&[1e300, -1e300, 1e300], &[0.0; 2]), Err(Fault::Norm));
    }
    assert_eq!(private.check(&good, &[64.0, 64.0]), Err(Fault::Norm));
    assert_eq!(private.check(&[45.0, 1.0, 45.3], &[0.0; 2]), Ok(()));
    assert_eq!(private.check(&[45.0, 1.0, 45.6], &[0.0; 2]), Err(Fault::Norm));
    assert_eq!(strict.check(&[32.0, 0.0, 33.0], &[0.0; 2]), Err(Fault::Norm));
    assert_eq!(strict.check(&[1.0, 2.0, 1.0], &[0.0; 2]), Err(Fault::NotPositiveSemidefinite));
    assert_eq!(strict.check(&[1.0, 1e300, 1.0], &[0.0; 2]), Err(Fault::NotPositiveSemidefinite));
    assert_eq!(strict.check(&[0.0, 0.0, 64.0], &[1.0, 0.0]), Err(Fault::Inconsistent));
    assert_eq!(strict.check(&[0.0; 3], &[0.0; 2]), Ok(()));
    assert_eq!(pack_symmetric(&[1.0, 2.0, 2.5, 4.0], 2), Err(Fault::Asymmetric));
    assert_eq!(pack_symmetric(&[1.0, 2.0, 2.0], 2), Err(Fault::WrongDimension));
    assert_eq!(pack_symmetric(&[1.0, 2.0, 2.0, 4.0], 2), Ok(vec![1.0, 2.0, 4.0]));
}

#[test]
fn invalid_settings_are_rejected() {
    let new = |length, bound, private| Admission::new(Level::Strict, 4, length, bound, private).map(|_| ());
    for length in [0, 65_537] {
        let error = EpisodeLenError { length, limit: MAX_EPISODE_LEN };
        assert_eq!(new(length, None, false), Err(AdmissionError::EpisodeLen(error)));
    }
    assert_eq!(new(64, Some(-1.0), false), Err(AdmissionError::RewardBound(-1.0)));
    assert_eq!(new(64, None, true), Err(AdmissionError::PrivacyNeedsBoundedRewards));
    assert_eq!(new(64, Some(2.0), true), Err(AdmissionError::PrivacyNeedsBoundedRewards));
    assert_eq!(new(64, Some(1.0), true), Ok(()));
}
