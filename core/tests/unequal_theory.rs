//! Lemmas of `docs/theory.md`, section 9, in f64: identities and inequalities on random and on extreme instances, two worlds that send
//! the same messages, exact distributions of counts, and the numbers that the section states.

use nalgebra::{SMatrix, SVector};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

const LAMBDA: f64 = 0.1;
const R: f64 = 0.5;
const S: f64 = 1.0;

type Matrix<const D: usize> = SMatrix<f64, D, D>;
type Vector<const D: usize> = SVector<f64, D>;

/// Random numbers for tests.
struct Draws(Pcg64);

impl Draws {
    fn new(seed: u64) -> Self {
        Self(Pcg64::seed_from_u64(seed))
    }

    /// Uniform in [−1, 1].
    fn uniform(&mut self) -> f64 {
        f64::from(self.0.next_u32()) / 2_147_483_648.0 - 1.0
    }

    /// Uniform in [0, 1).
    fn share(&mut self) -> f64 {
        f64::from(self.0.next_u32()) / 4_294_967_296.0
    }

    /// Standard normal, by the method of Box and Muller.
    fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.share()).ln()).sqrt() * (std::f64::consts::TAU * self.share()).cos()
    }

    fn vector<const D: usize>(&mut self) -> Vector<D> {
        Vector::from_fn(|_, _| self.uniform())
    }

    /// A positive semidefinite matrix of the given rank, with eigenvalues of different magnitudes.
    fn semidefinite<const D: usize>(&mut self, rank: usize, magnitude: f64) -> Matrix<D> {
        let factors = (0..rank).map(|_| self.vector::<D>() * 10.0_f64.powf(magnitude * self.uniform()));
        factors.map(|x| x * x.transpose()).sum()
    }
}

/// C:V
fn parallel_sum<const D: usize>(c: &Matrix<D>, v: &Matrix<D>) -> Matrix<D> {
    let sum = c - c * (c + v).cholesky().unwrap().solve(c);
    (sum + sum.transpose()) * 0.5
}

fn norm<const D: usize>(matrix: &Matrix<D>, vector: &Vector<D>) -> f64 {
    vector.dot(&(matrix * vector)).max(0.0).sqrt()
}

fn regularised<const D: usize>(gram: &Matrix<D>) -> Matrix<D> {
    gram + Matrix::identity() * LAMBDA
}

/// M_i and θ_i of one agent.
struct Vote<const D: usize> {
    matrix: Matrix<D>,
    estimate: Vector<D>,
}

/// F(θ)
fn objective<const D: usize>(votes: &[Vote<D>], theta: &Vector<D>) -> f64 {
    votes.iter().map(|vote| norm(&vote.matrix, &(vote.estimate - theta))).sum()
}

/// Minimises F by iterated reweighting, with a smoothing that falls to 1e-12, and compares the result with all θ_i.
fn minimise<const D: usize>(votes: &[Vote<D>]) -> Vector<D> {
    let mut theta = Vector::<D>::zeros();
    for turn in 0..3_000 {
        let smoothing = 10.0_f64.powf(-12.0 * (f64::from(turn) / 2_000.0).min(1.0));
        let (mut matrix, mut vector) = (Matrix::<D>::zeros(), Vector::<D>::zeros());
        for vote in votes {
            let weight = 1.0 / norm(&vote.matrix, &(vote.estimate - theta)).hypot(smoothing);
            matrix += vote.matrix * weight;
            vector += vote.matrix * vote.estimate * weight;
        }
        let Some(factor) = matrix.cholesky() else { break };
        theta = factor.solve(&vector);
    }
    let points = votes.iter().map(|vote| vote.estimate).chain([theta]);
    points.min_by(|a, b| objective(votes, a).total_cmp(&objective(votes, b))).unwrap()
}

/// Lemma 23, part 1.
#[test]
fn parallel_sum_of_definite_matrices_is_below_both_and_monotone() {
    let mut draws = Draws::new(1);
    for case in 0..1_000 {
        let c = draws.semidefinite::<4>(4, 1.0) + Matrix::identity() * 0.01;
        let v = regularised(&draws.semidefinite::<4>(case % 5, 1.0));
        let sum = parallel_sum(&c, &v);
        let harmonic = (c.try_inverse().unwrap() + v.try_inverse().unwrap()).try_inverse().unwrap();
        let tolerance = 1e-9 * (c.norm() + v.norm());
        assert!((sum - harmonic).norm() < tolerance, "case {case}: {sum} is not {harmonic}");
        assert!(sum.symmetric_eigenvalues().min() > 0.0, "case {case}: not definite");
        let more = draws.semidefinite::<4>(2, 0.5);
        for larger in [c, v, parallel_sum(&(c + more), &v), parallel_sum(&c, &(v + more))] {
            assert!((larger - sum).symmetric_eigenvalues().min() > -tolerance, "case {case}");
        }
    }
}

/// Lemma 23, part 2.
#[test]
fn capped_residual_in_both_forms_is_equal() {
    let mut draws = Draws::new(2);
    for case in 0..1_000 {
        let c = draws.semidefinite::<4>(4, 1.0) + Matrix::identity() * 0.01;
        let v = regularised(&draws.semidefinite::<4>(case % 5, 1.0));
        let (sum, theta) = (draws.vector::<4>() * 10.0, draws.vector::<4>());
        let first = norm(&parallel_sum(&c, &v), &(v.cholesky().unwrap().solve(&sum) - theta));
        let l = c.cholesky().unwrap().l();
        let inverse = l.try_inverse().unwrap();
        let b = (Matrix::identity() + inverse * v * inverse.transpose()).try_inverse().unwrap();
        let d = Matrix::identity() - b;
        let residual = b * inverse * sum - d * l.transpose() * theta;
        let second = norm(&d.try_inverse().unwrap(), &residual);
        assert!((first - second).abs() < 1e-6 * (1.0 + first), "case {case}: {first} and {second}");
    }
}

/// A fleet with honest agents that differ in exploration, and corrupted ones with arbitrary claims.
struct Fleet {
    /// Honest agents come first.
    votes: Vec<Vote<2>>,
    honest: usize,
    cap: Matrix<2>,
    theta: Vector<2>,
}

impl Fleet {
    fn new(draws: &mut Draws, honest: usize, corrupted: usize) -> Self {
        let (theta, lie) = (draws.vector::<2>() * 0.7, draws.vector::<2>() * 10.0_f64.powf(2.0 * draws.uniform()));
        let cap = draws.semidefinite::<2>(2, 1.0) + Matrix::identity() * 0.01;
        let claim = draws.semidefinite::<2>(2, 2.0);
        let mut votes = Vec::new();
        for i in 0..honest + corrupted {
            let is_honest = i < honest;
            // Rank 0 is an absent device, rank 1 one that has explored a single direction.
            let rank = draws.0.next_u32() as usize % 4;
            let gram = if is_honest || i % 2 == 0 { draws.semidefinite::<2>(rank, 1.0) } else { claim };
            let noise = draws.vector::<2>() * 0.1;
            let sum = if is_honest { gram * (theta + noise) } else { regularised(&gram) * (lie + noise) };
            let design = regularised(&gram);
            let estimate = design.cholesky().unwrap().solve(&sum);
            votes.push(Vote { matrix: parallel_sum(&cap, &design), estimate });
        }
        Self { votes, honest, cap, theta }
    }

    /// Σ_H‖M^½u‖ and the sum over all others.
    fn sides(&self, u: &Vector<2>) -> (f64, f64) {
        let sum = |votes: &[Vote<2>]| votes.iter().map(|vote| norm(&vote.matrix, u)).sum();
        let (honest, corrupted) = self.votes.split_at(self.honest);
        (sum(honest), sum(corrupted))
    }

    /// Σ_H a_i
    fn deviation(&self) -> f64 {
        objective(&self.votes[..self.honest], &self.theta)
    }
}

/// Inequality (L) of Theorem 7, for the minimiser and for all other points that are no worse than θ*.
#[test]
fn minimiser_with_arbitrary_liars_satisfies_the_inequality() {
    let mut draws = Draws::new(3);
    let mut most = 0.0_f64;
    for case in 0..300 {
        let fleet = Fleet::new(&mut draws, 3 + case % 7, case % 6);
        let limit = objective(&fleet.votes, &fleet.theta);
        let best = minimise(&fleet.votes);
        let least = objective(&fleet.votes, &best);
        assert!(least <= limit, "case {case}: the minimiser is worse than θ*");
        for _ in 0..20 {
            let near = best + draws.vector::<2>() * 10.0_f64.powf(-4.0 * draws.share());
            assert!(least <= objective(&fleet.votes, &near) + 1e-9 * (1.0 + limit), "case {case}: not a minimiser");
        }
        for j in 0..=20 {
            let theta = best + draws.vector::<2>() * (0.1 * f64::from(j));
            let excess = (objective(&fleet.votes, &theta) - limit).max(0.0);
            let (honest, corrupted) = fleet.sides(&(theta - fleet.theta));
            let bound = 2.0 * fleet.deviation() + excess;
            assert!(honest - corrupted <= bound * (1.0 + 1e-9), "case {case}: {honest} - {corrupted} > {bound}");
            most = most.max((honest - corrupted) / bound);
        }
    }
    assert!(most > 0.4, "the inequality is never close: {most}");
}

/// The example after Theorem 7: the constant 2 in (L) cannot be improved.
#[test]
fn inequality_with_one_heavy_agent_is_attained() {
    let vote = |weight: f64, at: f64| Vote { matrix: Matrix::<1>::new(weight * weight), estimate: Vector::from([at]) };
    let votes: Vec<Vote<1>> = [vote(1.0, 0.3)].into_iter().chain((0..10).map(|_| vote(0.0999, 0.0))).collect();
    let e = minimise(&votes);
    let (left, right) =
        (votes.iter().map(|vote| norm(&vote.matrix, &e)).sum::<f64>(), 2.0 * objective(&votes, &[0.0].into()));
    assert!((0.999..=1.0).contains(&(left / right)), "{left} and {right}");
}

/// Sums of all but the f largest values, and of the f largest.
fn rest_and_top(mut values: Vec<f64>, f: usize) -> (f64, f64) {
    values.sort_by(|a, b| b.total_cmp(a));
    (values[f..].iter().sum(), values[..f].iter().sum())
}

/// Corollary of Theorem 7 in two dimensions, where all directions can be checked, with Σ_H a_i in place of |H|ρ.
#[test]
fn error_under_the_checked_condition_is_bounded() {
    let mut draws = Draws::new(4);
    let (mut checked, mut most) = (0, 0.0_f64);
    for case in 0..1_000 {
        let (honest, f) = (6 + case % 6, 1 + case % 2);
        let fleet = Fleet::new(&mut draws, honest, f);
        let directions = (0..720).map(|i| (f64::from(i) * std::f64::consts::PI / 720.0).sin_cos());
        let ratio = directions.fold(f64::INFINITY, |least, (sin, cos)| {
            let u = Vector::from([cos, sin]);
            let (rest, top) = rest_and_top(fleet.votes.iter().map(|vote| norm(&vote.matrix, &u)).collect(), f);
            let (good, bad) = fleet.sides(&u);
            assert!(good / bad >= rest / top * (1.0 - 1e-9), "case {case}: the condition does not imply that on H");
            least.min(rest / top)
        });
        // A margin for directions between the 720.
        let c = ratio * 0.98 - 1.0;
        if c < 0.02 {
            continue;
        }
        checked += 1;
        let e = minimise(&fleet.votes) - fleet.theta;
        let (good, bad) = fleet.sides(&e);
        let deviation = fleet.deviation();
        assert!(good <= 2.0 * (1.0 + 1.0 / c) * deviation, "case {case}");
        assert!(good + bad <= 2.0 * (1.0 + 2.0 / c) * deviation, "case {case}");
        let inverse = fleet.cap.cholesky().unwrap().l().try_inverse().unwrap();
        let total: Matrix<2> = fleet.votes.iter().map(|vote| vote.matrix).sum();
        let t_n = (inverse * total * inverse.transpose()).symmetric_eigenvalues().min();
        let (error, bound) = (norm(&fleet.cap, &e), 2.0 * (1.0 + 2.0 / c) * deviation / t_n);
        assert!(error <= bound, "case {case}: {error} > {bound}");
        most = most.max(error / bound);
    }
    assert!(checked > 100 && most > 0.02, "{checked} cases, closest {most}");
}

/// Lemma 24.
#[test]
fn squares_with_a_ratio_imply_the_ratio_of_roots() {
    let mut draws = Draws::new(5);
    for case in 0..10_000 {
        let values: Vec<f64> = (0..12).map(|_| draws.share().powi(1 + case % 4)).collect();
        let f = 1 + case as usize % 5;
        let (rest, top) = rest_and_top(values.clone(), f);
        let (rest_2, top_2) = rest_and_top(values.iter().map(|value| value * value).collect(), f);
        assert!(rest / top >= rest_2 / top_2 * (1.0 - 1e-12), "case {case}");
    }
}

/// Corollary *the limit is attained*: m explorers, the others absent, liars with the largest claims that the cap allows or with smaller ones.
#[test]
fn error_with_more_explorers_than_liars_falls_with_exploration() {
    let mut draws = Draws::new(6);
    for case in 0..200 {
        let (f, absent) = (1 + case % 5, case % 7);
        let m = f + 1 + case % 3;
        let v = 10.0_f64.powf(1.0 + (case % 4) as f64);
        let (mf, ff) = (m as f64, f as f64);
        let cap = Matrix::<2>::identity() * (v * (mf - ff) * (3.0 * mf + ff) / (mf + ff).powi(2));
        let theta = Vector::from([0.6, -0.5]);
        let (lie, claim) =
            (draws.vector::<2>() * 10.0_f64.powf(2.0 * draws.uniform()), 10.0_f64.powf(9.0 * draws.share()));
        let mut deviation = 0.0;
        let votes: Vec<Vote<2>> = (0..m + absent + f)
            .map(|i| {
                let information = if i < m {
                    v
                } else if i < m + absent {
                    0.0
                } else {
                    claim
                };
                let design = regularised(&(Matrix::identity() * information));
                let noise = draws.vector::<2>() * (R / information.max(1.0).sqrt());
                let at = if i < m + absent { (theta + noise) * (information / (information + LAMBDA)) } else { lie };
                deviation += if i < m + absent { norm(&design, &(at - theta)) } else { 0.0 };
                Vote { matrix: parallel_sum(&cap, &design), estimate: at }
            })
            .collect();
        let error = (minimise(&votes) - theta).norm();
        let factor = 4.0 * (mf + ff) / ((mf - ff).powf(1.5) * (3.0 * mf + ff).sqrt());
        assert!(error <= factor * deviation / v.sqrt(), "case {case}: {error}, {factor}, {deviation}, v = {v}");
    }
}

/// Existence of a cap, and the limit of the check where liars claim nothing.
#[test]
fn checked_ratio_with_silent_liars_is_as_stated() {
    let scalar = |c: f64, v: f64| (c * (v + LAMBDA) / (c + v + LAMBDA)).sqrt();
    for (n, f) in [(10, 3), (10, 4), (100, 30), (100, 45)] {
        let (nf, ff) = (f64::from(n), f64::from(f));
        for (gamma, v) in [(1e-3, 1.0), (0.1, 1e3), (10.0, 1e3), (1e3, 1e3), (1e6, 1e9)] {
            let (s_1, s_0) = (scalar(gamma, v), scalar(gamma, 0.0));
            let values = (0..n).map(|i| if i < f { s_0 } else { s_1 }).collect();
            let (rest, top) = rest_and_top(values, f as usize);
            let last = (LAMBDA / (v + LAMBDA) * (1.0 + v / (gamma + LAMBDA))).sqrt();
            assert!((rest / top - (nf - 2.0 * ff) / ff - last).abs() < 1e-9, "γ = {gamma}, v = {v}");
        }
        // The small cap holds whatever is claimed: at most γ for f agents, at least γλ/(γ + λ) for all others.
        let c = 0.9 * ((nf - ff) / ff - 1.0);
        let gamma = LAMBDA * (((nf - ff) / ((1.0 + c) * ff)).powi(2) - 1.0);
        let worst = (nf - ff) * scalar(gamma, 0.0) / (ff * gamma.sqrt());
        assert!(gamma > 0.0 && (worst - 1.0 - c).abs() < 1e-9, "N = {n}, f = {f}: {worst}");
    }
}

/// The controller's view of a run, as bits: all sums after each episode, and the models.
type View = Vec<Vec<u64>>;

const AGENTS: usize = 9;
const EPISODES: usize = 8;

/// Runs nine agents with the actions of an optimistic learner. `used` is the parameter behind the rewards that an agent uses. Agents
/// from 6 on have arms orthogonal to the first axis, and other arms from episode `later` on. Returns the view, the estimate, and the
/// first episode in which such an agent explores the axis.
fn run(seed: u64, later: usize, used: impl Fn(usize) -> Vector<3>) -> (View, Vector<3>, usize) {
    let mut draws = Draws::new(seed);
    let mut sums = [(Matrix::<3>::zeros(), Vector::<3>::zeros()); AGENTS];
    let (mut view, mut model, mut first) = (View::new(), Vector::<3>::zeros(), EPISODES);
    for episode in 0..EPISODES {
        for (i, (gram, sum)) in sums.iter_mut().enumerate() {
            // An absent agent draws its random numbers as well, so that all runs share them.
            let is_present = draws.share() < 0.7;
            for _ in 0..4 {
                let mut arms: [Vector<3>; 4] = std::array::from_fn(|_| draws.vector() * 0.5);
                if i >= 6 && episode < later {
                    arms.iter_mut().for_each(|arm| arm[0] = 0.0);
                }
                let noise = R * draws.normal();
                if !is_present {
                    continue;
                }
                // Own rewards, the model and optimism all matter.
                let design = regularised(gram).cholesky().unwrap();
                let own = design.solve(sum);
                let score = |x: &Vector<3>| x.dot(&(own + model)) + x.dot(&design.solve(x)).sqrt();
                let x = arms.into_iter().max_by(|a, b| score(a).total_cmp(&score(b))).unwrap();
                if i >= 6 && x[0] != 0.0 {
                    first = first.min(episode);
                }
                *gram += x * x.transpose();
                *sum += x * (x.dot(&used(i)) + noise);
            }
        }
        // A robust rule as an example: coordinatewise medians of the agents' estimates.
        let estimates = sums.map(|(gram, sum)| regularised(&gram).cholesky().unwrap().solve(&sum));
        model = Vector::from_fn(|j, _| {
            let mut values = estimates.map(|estimate| estimate[j]);
            values.sort_by(f64::total_cmp);
            values[AGENTS / 2]
        });
        let numbers = sums.iter().flat_map(|(gram, sum)| gram.iter().chain(sum.iter()));
        view.push(numbers.chain(model.iter()).map(|number| number.to_bits()).collect());
    }
    (view, model, first)
}

/// Theorem 5, parts 1 and 2: N = 9, f = 3, explorers A = 0..3 and B = 3..6.
#[test]
fn two_worlds_with_few_explorers_send_identical_messages() {
    let w = Vector::from([0.0, 0.3, -0.4]);
    let half = Vector::from([(S * S - w.norm_squared()).sqrt(), 0.0, 0.0]);
    let (theta_1, theta_2) = (w - half, w + half);
    assert!((theta_1.norm() - S).abs() < 1e-12 && (theta_2.norm() - S).abs() < 1e-12);
    let (mut explored, mut differing) = (0, 0);
    for seed in 0..100 {
        for later in [EPISODES, 4] {
            // World 1 has θ₁ and corrupts B, world 2 has θ₂ and corrupts A.
            let (view_1, estimate_1, first_1) =
                run(seed, later, |i| if (3..6).contains(&i) { theta_2 } else { theta_1 });
            let (view_2, estimate_2, first_2) = run(seed, later, |i| if i < 3 { theta_1 } else { theta_2 });
            assert_eq!(first_1, first_2, "seed {seed}");
            assert!(view_1[..first_1] == view_2[..first_2], "seed {seed}: views differ before episode {first_1}");
            if later == EPISODES {
                assert_eq!((first_1, estimate_1), (EPISODES, estimate_2));
                let errors = [estimate_1 - theta_1, estimate_2 - theta_2].map(|error| error[0].abs());
                assert!(errors[0] + errors[1] >= 2.0 * half[0] - 1e-12, "seed {seed}: {errors:?}");
            } else {
                explored += u32::from(first_1 == 4);
                differing += u32::from(view_1[4..] != view_2[4..]);
            }
        }
    }
    assert!(explored > 90 && differing > 90, "{explored} and {differing} of 100 runs");
}

/// Theorem 5, part 3: each honest agent knows θ* along one direction only, and three liars agree with each other.
#[test]
fn consistent_parameter_without_noise_is_unique() {
    let mut draws = Draws::new(7);
    for case in 0..200 {
        // Five of eight agents are honest, and no two have orthogonal complements in common: m_u is at least 4.
        let (theta, lie) = (draws.vector::<2>(), draws.vector::<2>());
        let actions: [Vector<2>; 8] = std::array::from_fn(|_| draws.vector());
        let rewards: [f64; 8] = std::array::from_fn(|i| actions[i].dot(if i < 5 { &theta } else { &lie }));
        for i in 0..8 {
            for j in 0..i {
                let Some(inverse) = Matrix::from_rows(&[actions[i].transpose(), actions[j].transpose()]).try_inverse()
                else {
                    continue;
                };
                // With lines that are nearly parallel the candidate is imprecise, and so are all residuals.
                let candidate = inverse * Vector::from([rewards[i], rewards[j]]);
                let tolerance = 1e-10 * (1.0 + inverse.norm());
                let consistent =
                    (0..8).filter(|k| (rewards[*k] - actions[*k].dot(&candidate)).abs() < tolerance).count();
                assert_eq!(consistent >= 5, (candidate - theta).norm() < 1e-9 * (1.0 + inverse.norm()), "case {case}");
            }
        }
    }
}

/// Φ
fn normal_cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

/// Φ⁻¹ by bisection.
fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..200 {
        let x = 0.5 * (low + high);
        if normal_cdf(x) < p { low = x } else { high = x }
    }
    low
}

/// The density of N(mean, 1).
fn density(x: f64, mean: f64) -> f64 {
    (-0.5 * (x - mean).powi(2)).exp() / std::f64::consts::TAU.sqrt()
}

/// Midpoint rule on [−20, 20]².
fn integral(f: impl Fn(f64, f64) -> f64) -> f64 {
    let points = || (0..1_000).map(|i| (f64::from(i) + 0.5) * 0.04 - 20.0);
    points().map(|x| points().map(|y| f(x, y)).sum::<f64>()).sum::<f64>() * 0.04 * 0.04
}

/// τ_i of two rewards in two dimensions, by quadrature; and the mixture of Theorem 6, part 1.
#[test]
fn total_variation_of_normal_rewards_is_as_stated() {
    let mut draws = Draws::new(8);
    for case in 0..4 {
        let actions = Matrix::<2>::from_fn(|_, _| draws.uniform());
        let u = draws.vector::<2>().normalize();
        let delta = 1.0 + 2.0 * draws.share();
        // Means of the rewards in units of R.
        let mean = actions * u * (delta / R);
        let tau = 2.0 * normal_cdf(delta * norm(&(actions.transpose() * actions), &u) / (2.0 * R)) - 1.0;
        let p = |x: f64, y: f64| density(x, 0.0) * density(y, 0.0);
        let q = |x: f64, y: f64| density(x, mean[0]) * density(y, mean[1]);
        let found = integral(|x, y| 0.5 * (p(x, y) - q(x, y)).abs());
        assert!((found - tau).abs() < 1e-3, "case {case}: {found} and {tau}");
        assert!((integral(|x, y| p(x, y).max(q(x, y))) - 1.0 - tau).abs() < 1e-3, "case {case}");
        let share = tau / (1.0 + tau);
        for _ in 0..100 {
            let (x, y) = (4.0 * draws.uniform(), 4.0 * draws.uniform());
            let mixture = |a: f64, b: f64| (1.0 - share) * a + share * (b - a).max(0.0) / tau;
            assert!((mixture(p(x, y), q(x, y)) - mixture(q(x, y), p(x, y))).abs() < 1e-15);
        }
    }
}

/// ℙ(X ≤ f) for independent variables with the given probabilities.
fn count_at_most(probabilities: &[f64], f: usize) -> f64 {
    let mut law = vec![1.0];
    for p in probabilities {
        law.push(0.0);
        for k in (0..law.len()).rev() {
            law[k] = law[k] * (1.0 - p) + if k > 0 { law[k - 1] * p } else { 0.0 };
        }
    }
    law.iter().take(f + 1).sum()
}

/// Lemma 22, and that it needs an integer.
#[test]
fn count_with_bounded_mean_is_seldom_above_the_limit() {
    let mut draws = Draws::new(9);
    let mut least = [1.0_f64; 2];
    for case in 0..5_000 {
        let n = 1 + case % 40;
        let raw: Vec<f64> = (0..n).map(|_| draws.share().powi(1 + (case % 3) as i32)).collect();
        let f = draws.0.next_u32() as usize % n;
        let margin = 3.0_f64.sqrt() / 2.0;
        let limits = [f as f64, ((f as f64 + 1.75).sqrt() - margin).powi(2)];
        for ((limit, bound), least) in limits.into_iter().zip([0.5, 0.75]).zip(&mut least) {
            // Clipping at 1 keeps the mean at most the limit.
            let scale = limit / raw.iter().sum::<f64>();
            let probabilities: Vec<f64> = raw.iter().map(|p| (p * scale).min(1.0)).collect();
            let found = count_at_most(&probabilities, f);
            assert!(found >= bound - 1e-12, "case {case}: {found} < {bound}");
            *least = least.min(found);
        }
    }
    // With n ≤ 40, half of the mass at the mean remains above 1/2: at least 0.06.
    assert!(least[0] < 0.58 && least[1] < 0.8, "the bounds are never close: {least:?}");
    // The reduction in the proof leads to these.
    for n in 1..60 {
        for k in 0..=n {
            assert!(count_at_most(&vec![k as f64 / n as f64; n], k) >= 0.5 - 1e-12, "{k} of {n}");
        }
    }
    assert!((count_at_most(&[0.45; 2], 0) - 0.3025).abs() < 1e-12);
}

/// √V_i and Σxr/√V_i of an agent in one dimension.
type Message = (f64, f64);

type Rule<'a> = &'a dyn Fn(&[Message]) -> f64;

/// Theorem 6, part 1, by simulation of both worlds for three rules.
#[test]
fn every_rule_errs_in_one_of_two_soft_worlds() {
    let mut draws = Draws::new(10);
    // 20 agents in one dimension with unequal exploration, in units of R; f = 5.
    let (f, roots): (usize, Vec<f64>) = (5, (0..20).map(|i| f64::from(i % 4)).collect());
    let tau = |root: f64, delta: f64| 2.0 * normal_cdf(0.5 * delta * root) - 1.0;
    let mean = |delta: f64| roots.iter().map(|root| tau(*root, delta)).map(|tau| tau / (1.0 + tau)).sum::<f64>();
    let (mut delta, mut high) = (0.0, 10.0);
    for _ in 0..60 {
        let middle = 0.5 * (delta + high);
        let mu = mean(middle);
        if mu + (3.0 * mu).sqrt() <= f as f64 + 1.0 { delta = middle } else { high = middle }
    }
    let median = |messages: &[Message]| {
        let mut ratios: Vec<(f64, f64)> = messages.iter().filter(|m| m.0 > 0.0).map(|m| (m.1 / m.0, m.0)).collect();
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let half = 0.5 * ratios.iter().map(|ratio| ratio.1).sum::<f64>();
        let mut sum = 0.0;
        ratios
            .iter()
            .find(|ratio| {
                sum += ratio.1;
                sum >= half
            })
            .unwrap()
            .0
    };
    let pooled = |messages: &[Message]| {
        messages.iter().map(|m| m.0 * m.1).sum::<f64>() / messages.iter().map(|m| m.0 * m.0).sum::<f64>()
    };
    let nearest = |messages: &[Message]| if median(messages) > 0.0 { 0.5 * delta } else { -0.5 * delta };
    let rules: [Rule<'_>; 3] = [&median, &pooled, &nearest];
    let mut errors = [[0_u32; 2]; 3];
    let runs = 20_000;
    for _ in 0..runs {
        for (world, sign) in [-1.0, 1.0].into_iter().enumerate() {
            let mut corrupted = 0;
            let messages: Vec<(f64, f64)> = roots
                .iter()
                .map(|root| {
                    let tau = tau(*root, delta);
                    let centre = 0.5 * sign * delta * root;
                    if draws.share() >= tau / (1.0 + tau) {
                        return (*root, centre + draws.normal());
                    }
                    corrupted += 1;
                    // A draw from (p′ − p)₊/τ: y from p′, accepted with probability (1 − p/p′)₊.
                    loop {
                        let y = -centre + draws.normal();
                        if draws.share() >= density(y, centre) / density(y, -centre) {
                            return (*root, y);
                        }
                    }
                })
                .collect();
            for (rule, errors) in rules.iter().zip(&mut errors) {
                let is_wrong = (rule(&messages) - 0.5 * sign * delta).abs() >= 0.5 * delta * (1.0 - 1e-9);
                errors[world] += u32::from(is_wrong && corrupted <= f);
            }
        }
    }
    for (rule, errors) in errors.iter().enumerate() {
        let sum = f64::from(errors[0] + errors[1]) / f64::from(runs);
        assert!(sum >= 0.5 - 0.02, "rule {rule}: {errors:?} of {runs}");
    }
}

/// The numbers of section 9 are those of its formulas.
#[test]
fn stated_numbers_are_as_documented() {
    let page = include_str!("../../docs/theory.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let limits: Vec<String> = [0.1, 0.2, 0.3, 0.45].map(|a| format!("{:.2}", a / (1.0 - a))).into();
    let row = |a: f64| {
        let cells = [1.0, 0.9, 0.75, 0.5, 0.25].map(|q| a / (q * (1.0 - a))).map(|share| {
            if share > 1.0 - 1e-9 { "–".into() } else { format!("{:.2}", normal_quantile(0.5 * (1.0 + share))) }
        });
        format!("| α = {a} | {} |", cells.join(" | "))
    };
    let mu = (31.75_f64.sqrt() - 3.0_f64.sqrt() / 2.0).powi(2) / 100.0;
    let known = normal_quantile(0.5 * (1.0 + mu / (1.0 - mu)));
    let two = 1.0 - normal_cdf(2.0_f64.sqrt() * normal_quantile(0.5 * 1.45));
    let texts = [0.1, 0.2, 0.3, 0.45].map(row).into_iter().chain([
        format!("| q must exceed | {} |", limits.join(" | ")),
        format!("and f = 30 give {known:.2}·R/√v."),
        format!("errs with probability {two:.2} in each world."),
        format!("μ = 0.9 and ℙ(X ≤ f) = {:.1}", count_at_most(&[0.45; 2], 0)),
    ]);
    for text in texts {
        assert!(page.contains(&text), "docs/theory.md does not contain: {text}");
    }
}
