//! Scores and choices against their definition in f64, on models with condition numbers up to 10⁶.

mod common;

use common::{OwnedModel, PRIOR, Random, agent, pack, to_f64, unpack};
use fedbandit_core::{Action, ActionError, Agent, Prior, Rewards, SelectError, project, rounding};
use nalgebra::{Cholesky, DMatrix, DVector, Dyn};
use rand_pcg::{Pcg32, Pcg64, rand_core::SeedableRng};

/// A packed symmetric matrix with the given spectrum shape and condition number, in f32.
fn design(random: &mut Random, dimension: usize, shape: usize, condition: f64) -> Vec<f32> {
    let last = (dimension.max(2) - 1) as f64;
    let eigenvalues = DVector::from_fn(dimension, |i, _| match shape {
        0 | 3 => condition.powf(i as f64 / last),
        1 if i == 0 => 1.0,
        1 => condition,
        _ if i == 0 => condition,
        _ => 1.0,
    });
    let rotation = match shape {
        3 => DMatrix::identity(dimension, dimension),
        _ => DMatrix::from_fn(dimension, dimension, |_, _| random.normal()).qr().q(),
    };
    let scale = 10.0_f64.powf(2.0 * random.normal());
    pack(&(&rotation * DMatrix::from_diagonal(&(eigenvalues * scale)) * rotation.transpose()))
}

/// Returns ⟨x,θ⟩ + β√(xᵀΛ⁻¹x) and its second term, by nalgebra's Cholesky in f64.
fn exact_score<const D: usize>(model: &OwnedModel, factor: &Cholesky<f64, Dyn>, x: &Action<D>) -> (f64, f64) {
    let x = to_f64(x);
    let mean: f64 = x.iter().zip(&model.theta).map(|(x, theta)| x * f64::from(*theta)).sum();
    let width = x.dot(&factor.solve(&x)).sqrt() * f64::from(model.beta);
    (mean + width, width)
}

fn assert_scores_within_bound<const D: usize>(models: usize) {
    let mut random = Random::new(D as u64);
    let (mut used, mut worst) = (0, 0.0_f64);
    for trial in 0..models {
        let condition = 10.0_f64.powf(trial as f64 % 13.0 * 0.495);
        let mut model = OwnedModel::identity(D, 1);
        model.design = design(&mut random, D, trial % 4, condition);
        model.theta = (0..D).map(|_| random.normal() as f32).collect();
        model.beta = random.uniform() as f32 * 3.0;
        let lambda = unpack(model.design.iter().copied(), D);
        let eigen = lambda.clone().symmetric_eigen();
        let condition = eigen.eigenvalues.max() / eigen.eigenvalues.min();
        if !(1.0..=1e6).contains(&condition) {
            continue; // rounding to f32 moved it out of the bound's range
        }
        used += 1;
        let mut agent = agent::<D>();
        agent.begin(&model.view()).unwrap();
        let factor = lambda.cholesky().unwrap();
        let theta_norm = model.theta.iter().map(|t| f64::from(*t).powi(2)).sum::<f64>().sqrt();

        let mut decision_set: Vec<Action<D>> = (0..9).map(|_| random.action()).collect();
        let weakest = eigen.eigenvectors.column(eigen.eigenvalues.imin()).into_owned();
        decision_set.push(project(&Action::from_fn(|i, _| weakest[i] as f32)));
        let exact: Vec<_> = decision_set.iter().map(|x| exact_score(&model, &factor, x)).collect();
        let mut largest_bound = 0.0_f64;
        for (x, (exact, width)) in decision_set.iter().zip(&exact) {
            let bound = rounding::score(D, condition, theta_norm, *width);
            let error = (f64::from(agent.score(x).unwrap()) - exact).abs();
            assert!(error <= bound, "D {D}, condition {condition:e}: error {error:e}, bound {bound:e}");
            largest_bound = largest_bound.max(bound);
            worst = worst.max(error / bound);
        }
        let choice = agent.select(&decision_set).unwrap();
        let best = exact.iter().map(|(score, _)| *score).fold(f64::NEG_INFINITY, f64::max);
        assert!(exact[choice.index].0 >= best - 2.0 * largest_bound);
    }
    assert!(used * 10 >= models * 8, "only {used} of {models} models were in range");
    assert!(worst > 0.01, "bound is too loose: worst error is {worst} of it");
}

#[test]
fn score_error_is_within_bound() {
    assert_scores_within_bound::<1>(200);
    assert_scores_within_bound::<2>(1_000);
    assert_scores_within_bound::<4>(1_000);
    assert_scores_within_bound::<8>(1_000);
    assert_scores_within_bound::<16>(500);
    assert_scores_within_bound::<32>(200);
}

/// Compares `select` with the scores, on decision sets with equal, tiny and nearly equal actions.
fn assert_select_is_argmax<const D: usize>() {
    let mut random = Random::new(100 + D as u64);
    for trial in 0..400_usize {
        let mut model = OwnedModel::identity(D, 1);
        model.design = design(&mut random, D, trial % 4, 10.0_f64.powi(trial as i32 % 6));
        model.theta = (0..D).map(|_| random.normal() as f32).collect();
        model.beta = [0.0, 1e-30, 0.7, 40.0, 1e12][trial % 5];
        let mut agent = agent::<D>();
        agent.begin(&model.view()).unwrap();
        let mut decision_set: Vec<Action<D>> = (0..1 + trial % 41).map(|_| random.action()).collect();
        for i in 0..decision_set.len() {
            match (random.uniform() * 8.0) as u32 {
                0 => decision_set[i] = decision_set[i / 2],
                1 => decision_set[i] *= 1e-20,
                2 => decision_set[i] = decision_set[i / 2] * (1.0 - f32::EPSILON),
                _ => {}
            }
        }
        let scores: Vec<f32> = decision_set.iter().map(|x| agent.score(x).unwrap()).collect();
        let best = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = scores.iter().position(|score| *score == best).unwrap();
        for choice in [agent.select(&decision_set).unwrap(), agent.select_one_by_one(decision_set.iter()).unwrap()] {
            assert_eq!((choice.index, choice.score.to_bits()), (first, best.to_bits()), "D {D}, trial {trial}");
        }
        let random_tie = agent.select_random_ties(&decision_set, &mut Pcg32::seed_from_u64(1)).unwrap();
        assert_eq!((scores[random_tie.index].to_bits(), random_tie.score.to_bits()), (best.to_bits(), best.to_bits()));
    }
}

#[test]
fn select_returns_the_first_largest_score() {
    assert_select_is_argmax::<1>();
    assert_select_is_argmax::<3>();
    assert_select_is_argmax::<8>();
    assert_select_is_argmax::<16>();
    assert_select_is_argmax::<33>();
}

/// Draws among 5 tied actions 60,000 times. Each count is binomial with standard deviation 98; the limit of six of them
/// gives a false alarm rate below 2e-8. The seed is fixed besides.
#[test]
fn ties_are_equally_likely() {
    let agent = agent::<2>();
    let long = Action::from([0.6, 0.8]);
    let decision_set = [Action::zeros(), long, long, Action::from([0.1, 0.1]), long, long, long];
    let mut rng = Pcg64::seed_from_u64(5);
    let mut counts = [0_u32; 7];
    for _ in 0..60_000 {
        counts[agent.select_random_ties(&decision_set, &mut rng).unwrap().index] += 1;
    }
    for index in [1, 2, 4, 5, 6] {
        assert!(counts[index].abs_diff(12_000) < 600, "{counts:?}");
    }
    assert_eq!(counts[0] + counts[3], 0);
    assert_eq!(agent.select(&decision_set).unwrap().index, 1);
}

#[test]
fn invalid_action_is_reported_with_its_index() {
    let agent = agent::<4>();
    let good = Action::from([0.5; 4]);
    for (bad, reason) in [
        (Action::from([f32::NAN, 0.0, 0.0, 0.0]), ActionError::NotFinite),
        (Action::from([0.0, 0.0, f32::INFINITY, 0.0]), ActionError::NotFinite),
        (Action::from([0.0, f32::NEG_INFINITY, 0.0, 0.0]), ActionError::NotFinite),
        (Action::from([0.0, 0.0, 0.0, 1.001]), ActionError::NormAboveOne),
        (Action::from([f32::MAX; 4]), ActionError::NormAboveOne),
    ] {
        assert_eq!(agent.score(&bad), Err(reason));
        for index in 0..40 {
            let mut decision_set = [good; 40];
            decision_set[index] = bad;
            decision_set[39] = bad;
            let expected = Err(SelectError::Action { index, reason });
            assert_eq!(agent.select(&decision_set), expected);
            assert_eq!(agent.select_one_by_one(&decision_set), expected);
            assert_eq!(agent.select_random_ties(&decision_set, &mut Pcg32::seed_from_u64(1)), expected);
        }
    }
    let empty: [Action<4>; 0] = [];
    assert_eq!(agent.select(&empty), Err(SelectError::EmptyDecisionSet));
    assert_eq!(agent.select_one_by_one(&empty), Err(SelectError::EmptyDecisionSet));
}

/// Vectors normalised in f32 pass the norm check; so do projections, even of the largest floats.
#[test]
fn unit_vectors_and_projections_are_actions() {
    fn check<const D: usize>() {
        let agent = Agent::<D>::new(&PRIOR).unwrap();
        let mut random = Random::new(D as u64);
        for exponent in (-120..=120).chain(-3..3) {
            for _ in 0..40 {
                let x = Action::<D>::from_fn(|_, _| random.normal() as f32 * 2.0_f32.powi(exponent));
                let projected = project(&x);
                assert!(agent.score(&projected).is_ok(), "{x:?}");
                let norm = to_f64(&x).norm();
                if norm > 1.0 {
                    let (along, length) = (to_f64(&projected).dot(&to_f64(&x)) / norm, to_f64(&projected).norm());
                    assert!(
                        (along - 1.0).abs() < 1e-5 && (length - 1.0).abs() < 1e-5,
                        "projection changed the direction: {x:?}"
                    );
                } else if norm < 0.999 {
                    assert_eq!(projected, x);
                }
                if (1e-10..1e10).contains(&norm) {
                    let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
                    assert!(agent.score(&(x / norm)).is_ok(), "{x:?}");
                }
            }
        }
        assert!(agent.score(&project(&Action::repeat(f32::MAX))).is_ok());
        assert_eq!(agent.score(&project(&Action::repeat(f32::NAN))), Err(ActionError::NotFinite));
        assert_eq!(agent.score(&project(&Action::repeat(f32::INFINITY))), Err(ActionError::NotFinite));
    }
    check::<1>();
    check::<2>();
    check::<7>();
    check::<64>();
}

#[test]
fn longest_action_wins_before_the_first_model() {
    let prior = Prior { lambda: 4.0, beta: 3.0, rewards: Rewards::Clipped, episode_len: 5 };
    let agent = Agent::<2>::new(&prior).unwrap();
    let decision_set = [Action::from([0.3, 0.0]), Action::from([0.0, -0.9]), Action::from([0.5, 0.5])];
    let choice = agent.select(&decision_set).unwrap();
    assert_eq!(choice.index, 1);
    assert!((choice.score - 3.0 * 0.9 / 2.0).abs() < 1e-6);
    assert_eq!((agent.theta(), agent.episode(), agent.episode_len()), (&[0.0, 0.0], 1, 5));
}
