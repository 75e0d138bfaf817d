//! Lemmas of `docs/theory.md`, section 8, in f64: identities and inequalities on random and on extreme instances, probabilities by
//! enumeration of all noises, and the numbers that the section states.

use nalgebra::{SMatrix, SVector};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

const LAMBDA: f64 = 0.1;
const WEIGHTS: [f64; 5] = [0.0, 0.1, 0.5, 0.9, 1.0];
const R: f64 = 0.5;

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

    fn vector<const D: usize>(&mut self) -> Vector<D> {
        Vector::from_fn(|_, _| self.uniform())
    }

    /// A vector in the unit ball, longer in some directions than in others.
    fn action<const D: usize>(&mut self) -> Vector<D> {
        let x = Vector::<D>::from_fn(|i, _| self.uniform() / (1.0 + i as f64));
        x / x.norm().max(1.0)
    }

    /// A positive semidefinite matrix with eigenvalues of different magnitudes.
    fn semidefinite<const D: usize>(&mut self, magnitude: f64) -> Matrix<D> {
        (0..D).map(|_| self.vector::<D>() * 10.0_f64.powf(magnitude * self.uniform())).map(|x| x * x.transpose()).sum()
    }
}

fn solve<const D: usize>(matrix: &Matrix<D>, vector: &Vector<D>) -> Vector<D> {
    matrix.cholesky().unwrap().solve(vector)
}

fn norm_squared<const D: usize>(matrix: &Matrix<D>, vector: &Vector<D>) -> f64 {
    vector.dot(&(matrix * vector))
}

/// Two ellipsoids ‖θ − θ_g‖_A ≤ 1 and ‖θ − θ_l‖_B ≤ 1, for θ_l = 0 and θ_g = Δ.
struct Pair<const D: usize> {
    a: Matrix<D>,
    b: Matrix<D>,
    delta: Vector<D>,
}

impl<const D: usize> Pair<D> {
    fn mixture(&self, w: f64) -> Matrix<D> {
        self.a * w + self.b * (1.0 - w)
    }

    /// θ_w
    fn centre(&self, w: f64) -> Vector<D> {
        solve(&self.mixture(w), &(self.a * self.delta * w))
    }

    fn kappa(&self, w: f64) -> f64 {
        w * (1.0 - w) * (self.a * self.delta).dot(&solve(&self.mixture(w), &(self.b * self.delta)))
    }

    /// ‖θ − θ_g‖²_A and ‖θ − θ_l‖²_B
    fn distances(&self, theta: &Vector<D>) -> (f64, f64) {
        (norm_squared(&self.a, &(theta - self.delta)), norm_squared(&self.b, theta))
    }
}

/// Lemma 13 and Lemma 14. κ′(w) is the difference of the two distances at θ_w. At its root both distances are max κ, so max κ is
/// also min max(f, h), and the ellipsoids meet if and only if it is at most 1.
#[test]
fn kappa_completes_the_square_and_decides_disjointness() {
    let mut draws = Draws::new(1);
    let mut disjoint = 0;
    for case in 0..1_000 {
        let definite = |draws: &mut Draws| draws.semidefinite::<4>(1.0) + Matrix::identity() * 0.01;
        let pair = Pair { a: definite(&mut draws), b: definite(&mut draws), delta: draws.vector() };
        let kappas: Vec<f64> = (0..=20).map(|i| pair.kappa(f64::from(i) / 20.0)).collect();
        let tolerance = 1e-9 * (1.0 + kappas.iter().fold(0.0, |most: f64, kappa| most.max(*kappa)));
        for (i, kappa) in kappas.iter().enumerate() {
            let (w, theta) = (i as f64 / 20.0, draws.vector() * 2.0);
            let (f, h) = pair.distances(&theta);
            let completed = norm_squared(&pair.mixture(w), &(theta - pair.centre(w))) + kappa;
            let error = w * f + (1.0 - w) * h - completed;
            assert!(error.abs() < tolerance + 1e-9 * (f + h), "case {case}, weight {w}: {error}");
        }
        assert!(kappas.iter().all(|kappa| *kappa >= -tolerance) && kappas[0] == 0.0 && kappas[20] == 0.0);
        assert!(kappas.windows(3).all(|k| k[0] + k[2] <= 2.0 * k[1] + tolerance), "case {case}: not concave");
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..60 {
            let w = 0.5 * (low + high);
            let (f, h) = pair.distances(&pair.centre(w));
            if f > h { low = w } else { high = w }
        }
        let (most, (f, h)) = (pair.kappa(low), pair.distances(&pair.centre(low)));
        assert!((f - most).abs() + (h - most).abs() < 1e-6 * (1.0 + most), "case {case}: {f} and {h} at κ = {most}");
        assert!(kappas.iter().all(|kappa| *kappa <= most + tolerance));
        disjoint += u32::from(most > 1.0);
    }
    assert!((100..900).contains(&disjoint), "{disjoint} disjoint pairs");
}

/// b_w² of Lemma 15.
fn width_factor_squared(d: usize, w: f64) -> f64 {
    let spread = (d - 1) as f64 / LAMBDA;
    if w < 1.0 {
        return (1.0 + spread).min(1.0 / (1.0 - w));
    }
    let w_1 = WEIGHTS[3];
    let y = spread / (1.0 + w_1.sqrt()).powi(2);
    let half = 0.5 * (1.0 + (1.0 - w_1) * y);
    half + (half * half + w_1 * y).sqrt()
}

fn width_factor(d: usize) -> f64 {
    WEIGHTS.iter().map(|w| width_factor_squared(d, *w)).fold(1.0, f64::max).sqrt()
}

/// Fusion of a model with own data, in units of β_l.
struct Fusion {
    /// Cost of each weight, relative to the smallest.
    costs: [f64; 5],
    /// Largest ω_w(x)²/ω_l(x)² of each weight.
    ratios: [f64; 5],
}

impl Fusion {
    /// `relative` is A in coordinates with B = I. `None` if an ellipsoid is found disjoint.
    fn new(gram: &Matrix<8>, relative: &Matrix<8>, delta: &Vector<8>) -> Option<Self> {
        let b = gram + Matrix::identity() * LAMBDA;
        let factor = b.cholesky().unwrap().l();
        let pair = Pair { a: factor * relative * factor.transpose(), b, delta: *delta };
        let kappas = WEIGHTS.map(|w| pair.kappa(w));
        if kappas.iter().any(|kappa| *kappa > 1.0) {
            return None;
        }
        let radius_squared = |i: usize| (1.0 - kappas[i]).max(1e-3);
        let costs = std::array::from_fn(|i| {
            let inverse = pair.mixture(WEIGHTS[i]).try_inverse().unwrap();
            radius_squared(i) * (inverse * (gram + Matrix::identity())).trace()
        });
        // The mixture is wA + (1 − w)I in these coordinates.
        let least = relative.symmetric_eigenvalues().min();
        let ratios = std::array::from_fn(|i| radius_squared(i) / (WEIGHTS[i] * least + 1.0 - WEIGHTS[i]));
        let smallest = costs.iter().copied().fold(f64::MAX, f64::min);
        Some(Self { costs: costs.map(|cost: f64| cost / smallest), ratios })
    }

    /// How close Lemma 15 is for a weight: up to 1 if the weight is chosen, and below 0 otherwise.
    fn closeness(&self, i: usize) -> f64 {
        if self.costs[i] > 1.0 { 1.0 - self.costs[i] } else { self.ratios[i] / width_factor_squared(8, WEIGHTS[i]) }
    }
}

/// Lemma 15 on random instances, and on instances that a random search changes until they are extreme.
#[test]
fn fused_width_is_at_most_the_proven_multiple_of_the_local_one() {
    let mut draws = Draws::new(2);
    for case in 0..1_000 {
        let gram = draws.semidefinite::<8>(3.0);
        let relative = draws.semidefinite(1.5) + Matrix::identity() * 10.0_f64.powf(draws.uniform() * 2.0);
        let delta = draws.vector() * 10.0_f64.powf(draws.uniform());
        let Some(fusion) = Fusion::new(&gram, &relative, &delta) else { continue };
        (1..5).for_each(|i| assert!(fusion.closeness(i) < 1.0 + 1e-9, "case {case}, weight {}", WEIGHTS[i]));
    }
    for (i, w) in WEIGHTS.iter().enumerate().skip(1) {
        let mut at = draws.vector::<24>() * 0.1;
        let mut most = f64::MIN;
        for step in 0..2_000 {
            let mut next = at;
            if step % 2 == 1 {
                next[draws.0.next_u32() as usize % 24] += draws.uniform();
            } else if step > 0 {
                next += draws.vector::<24>() * 10.0_f64.powf(1.5 * draws.uniform() - 1.5);
            }
            let part = |start: usize| Vector::<8>::from_fn(|i, _| next[start + i]);
            let [gram, relative] = [part(0) * 4.0, part(8)].map(|p| Matrix::from_diagonal(&p.map(f64::exp)));
            let Some(fusion) = Fusion::new(&gram, &relative, &(part(16) * 0.2)) else { continue };
            let closeness = fusion.closeness(i);
            assert!(closeness < 1.0 + 1e-9, "step {step}, weight {w}: {closeness}");
            if closeness >= most {
                (most, at) = (closeness, next);
            }
        }
        assert!(most > 0.9, "weight {w}: the search reached {most}");
    }
}

/// Lemma 15 is exact for weights 0.9 and 1: one explored direction, and A that is small there and larger than B elsewhere.
#[test]
fn fused_width_attains_the_proven_multiple() {
    let gram = Matrix::<8>::from_diagonal(&Vector::from_fn(|i, _| if i == 0 { 1e9 } else { 0.0 }));
    for (i, other, a_1) in [(4, 0.9, 1.0 / width_factor_squared(8, 1.0) + 1e-6), (3, 0.5, 1e-9)] {
        let a = 1.0 + 1.0 / f64::sqrt(WEIGHTS[i] * other);
        let relative = Matrix::from_diagonal(&Vector::from_fn(|i, _| if i == 0 { a_1 } else { a }));
        let closeness = Fusion::new(&gram, &relative, &Vector::zeros()).unwrap().closeness(i);
        assert!((0.9999..1.0 + 1e-9).contains(&closeness), "weight {}: {closeness}", WEIGHTS[i]);
    }
}

/// Γ of Lemma 16, for a total weight of the steps.
fn potential(d: f64, weight: f64) -> f64 {
    d * (1.0 + weight / (d * LAMBDA)).log2()
}

/// Lemma 16, and its form with a half-life.
#[test]
fn bad_episodes_and_widths_are_bounded_by_the_determinant() {
    let mut draws = Draws::new(3);
    for case in 0..300 {
        let half_life = if case % 2 == 0 { f64::INFINITY } else { 10.0_f64.powf(2.0 + draws.uniform()) };
        let (mut gram, mut steps, mut sum, mut weight) = (Matrix::<4>::zeros(), 0, 0.0, 0.0);
        let log_det = |gram: &Matrix<4>| (gram / LAMBDA + Matrix::identity()).determinant().log2();
        for _ in 0..40 {
            let inverse = (gram + Matrix::identity() * LAMBDA).try_inverse().unwrap();
            let len = 1 + draws.0.next_u32() % [2, 16, 64][case % 3];
            let scale = draws.uniform().powi(4);
            let actions: Vec<Vector<4>> = (0..len).map(|_| draws.action() * scale).collect();
            let added: Matrix<4> = actions.iter().map(|x| x * x.transpose()).sum();
            let is_bad = log_det(&(gram + added)) > log_det(&gram) + 1.0;
            sum += if is_bad { 1.0 } else { actions.iter().map(|x| norm_squared(&inverse, x)).sum() };
            let retention = (-f64::from(len) / half_life).exp2();
            (gram, steps, weight) = (gram * retention + added, steps + len, weight * retention + f64::from(len));
        }
        let forgotten = 4.0 * f64::from(steps) / half_life;
        let bound = log_det(&gram) + forgotten;
        assert!(
            sum <= bound + 1e-9 && bound <= potential(4.0, weight) + forgotten + 1e-9,
            "case {case}: {sum}, {bound}"
        );
    }
}

/// E[f(η)] for normal η with deviation R, by the trapezoidal rule; exact to rounding for integrands like these.
fn normal_mean(f: impl Fn(f64) -> f64) -> f64 {
    let step = 0.02 * R;
    let terms = (-2_000..=2_000).map(|i| f64::from(i) * step).map(|eta| f(eta) * (-0.5 * (eta / R).powi(2)).exp());
    terms.sum::<f64>() * step / (R * std::f64::consts::TAU.sqrt())
}

/// Steps of the proofs of Lemmas 17 and 18, for normal noise and noise ±R. For normal noise they are exact at one ε_l.
#[test]
fn excess_loss_of_a_step_has_the_proven_exponential_moments() {
    let two = 2.0 * R * R;
    let z = |eta: f64, eps: f64, eps_l: f64| (eta - eps).powi(2) - (eta - eps_l).powi(2);
    let sign_mean = |f: &dyn Fn(f64) -> f64| 0.5 * (f(R) + f(-R));
    for i in -10..=10 {
        let eps = f64::from(i) / 10.0;
        for s in [0.1, 0.25, 0.5, 0.75] {
            let bound = (s * eps * eps / ((1.0 - s) * two)).exp();
            for j in -20..=20 {
                let f = |eta| (s * z(eta, eps, f64::from(j) / 10.0) / two).exp();
                let means = [normal_mean(f), sign_mean(&f)];
                assert!(means.iter().all(|mean| *mean <= bound * (1.0 + 1e-12)), "s = {s}, ε = {eps}: {means:?}");
            }
            let tight = normal_mean(|eta| (s * z(eta, eps, -s * eps / (1.0 - s)) / two).exp());
            assert!((tight / bound - 1.0).abs() < 1e-9, "s = {s}, ε = {eps}: {tight} is not {bound}");
        }
        for j in -20..=20 {
            let eps_l = f64::from(j) / 10.0;
            let true_model = |eta| (z(eta, 0.0, eps_l) / two).exp();
            assert!((normal_mean(true_model) - 1.0).abs() < 1e-9 && sign_mean(&true_model) <= 1.0 + 1e-12);
            let f = |eta| (-0.25 * z(eta, eps, eps_l) / two).exp();
            let bound = ((3.0 * eps_l * eps_l - eps * eps) / (8.0 * two)).exp();
            let means = [normal_mean(f), sign_mean(&f)];
            assert!(means.iter().all(|mean| *mean <= bound * (1.0 + 1e-12)), "ε = {eps}, ε_l = {eps_l}: {means:?}");
            assert!(eps_l != -eps || (means[0] / bound - 1.0).abs() < 1e-9);
        }
    }
}

/// Sums over an episode of a run.
#[derive(Clone, Copy, Default)]
struct Episode {
    /// ΣZ
    excess: f64,
    /// Σε²
    error: f64,
    /// Σε_l²
    local_error: f64,
}

const EPISODES: usize = 6;
const STEPS: u32 = 12;

/// All runs of six followed episodes of two steps with noise ±R. Actions depend on the rewards so far, and the controller's θ_c
/// on θ_l.
fn runs(theta: Vector<2>, controller: impl Fn(Vector<2>) -> Vector<2>) -> Vec<[Episode; EPISODES]> {
    let run = |noises: u32| {
        let (mut gram, mut sum, mut reward) = (Matrix::<2>::identity() * LAMBDA, Vector::zeros(), 0.0);
        let mut episodes = [Episode::default(); EPISODES];
        for (k, episode) in episodes.iter_mut().enumerate() {
            let local = solve(&gram, &sum);
            let fused = controller(local);
            for step in [2 * k, 2 * k + 1] {
                let x: Vector<2> =
                    if reward > 0.2 { [0.6, 0.8].into() } else { [0.1 * step as f64 - 0.4, -0.8].into() };
                reward = x.dot(&theta) + if noises >> step & 1 == 0 { R } else { -R };
                episode.excess += (reward - x.dot(&fused)).powi(2) - (reward - x.dot(&local)).powi(2);
                episode.error += x.dot(&(fused - theta)).powi(2);
                episode.local_error += x.dot(&(local - theta)).powi(2);
                gram += x * x.transpose();
                sum += x * reward;
            }
        }
        episodes
    };
    (0..1 << STEPS).map(run).collect()
}

/// Mean over equally likely runs.
fn mean(runs: &[[Episode; EPISODES]], f: impl Fn(&[Episode; EPISODES]) -> f64) -> f64 {
    runs.iter().map(f).sum::<f64>() / runs.len() as f64
}

fn total(episodes: &[Episode], f: impl Fn(&Episode) -> f64) -> f64 {
    episodes.iter().map(f).sum()
}

/// Iterates over all intervals of consecutive episodes.
fn intervals(run: &[Episode; EPISODES]) -> impl Iterator<Item = &[Episode]> {
    (0..EPISODES).flat_map(move |first| (first + 1..=EPISODES).map(move |end| &run[first..end]))
}

/// Index of the first episode that raises an alarm. The floor is 0, or −∞ for the test without it.
fn first_alarm(run: &[Episode], limit: f64, floor: f64) -> Option<usize> {
    let mut level = 0.0_f64;
    run.iter().position(|episode| {
        level = (level + episode.excess).max(floor);
        level > limit
    })
}

/// Lemma 17 by enumeration.
#[test]
fn true_models_seldom_raise_alarms_in_all_runs() {
    let two = 2.0 * R * R;
    let theta = Vector::from([0.3, -0.6]);
    let truthful = runs(theta, |_| theta);
    assert!(mean(&truthful, |run| (total(run, |e| e.excess) / two).exp()) <= 1.0 + 1e-12);
    let mut alarms = 0;
    for level in [0.5_f64, 0.2, 0.05, 0.01] {
        let limit = two * (1.0 / level).ln();
        let rate = |floor| mean(&truthful, |run| f64::from(first_alarm(run, limit, floor).is_some()));
        let (without, with) = (rate(f64::NEG_INFINITY), rate(0.0));
        assert!(
            without <= level && with <= level * EPISODES as f64 && without <= with,
            "{without} and {with} at {level}"
        );
        alarms += u32::from(without > 0.0);
    }
    assert!(alarms > 1, "no alarm in any run");
    // Imprecise models, that err most where the local one errs in the opposite direction.
    for (s, share) in [(0.25, 0.3), (0.5, 0.5), (0.8, 0.2), (0.8, 0.9)] {
        let imprecise = runs(theta, |local| theta + Vector::from([-0.1, 0.1]) - (local - theta) * share);
        let exponent = |e: &Episode| s * (e.excess - e.error / (1.0 - s)) / two;
        for first in 0..EPISODES {
            let moment = mean(&imprecise, |run| total(&run[first..], exponent).exp());
            assert!(moment <= 1.0 + 1e-12, "s = {s}: {moment}");
        }
    }
}

/// Lemma 18 by enumeration, for controllers that lie more or less.
#[test]
fn quiet_test_bounds_the_error_in_all_runs() {
    let two = 2.0 * R * R;
    let theta = Vector::from([0.3, -0.6]);
    for lie in [-2.0, -1.0, -0.3, 0.0, 0.5, 1.0] {
        let runs = runs(theta, |local| theta + (local - theta) * lie + Vector::from([0.3, 0.2]));
        let exponent = |e: &Episode| (-2.0 * e.excess - 3.0 * e.local_error + e.error) / (8.0 * two);
        for first in 0..EPISODES {
            assert!(mean(&runs, |run| total(&run[first..], exponent).exp()) <= 1.0 + 1e-12, "lie {lie}");
        }
        for level in [0.5_f64, 0.1, 0.01] {
            let slack = 16.0 * R * R * (EPISODES as f64 / level).ln();
            let exceeds = |e: &[Episode]| {
                total(e, |e| e.error) > 2.0 * total(e, |e| e.excess) + 3.0 * total(e, |e| e.local_error) + slack
            };
            assert!(mean(&runs, |run| f64::from(intervals(run).any(exceeds))) <= level, "lie {lie}");
        }
        // Without an alarm, the excess of every interval is within the limit.
        for limit in [0.1, 1.0, 5.0] {
            for run in runs.iter().filter(|run| first_alarm(*run, limit, 0.0).is_none()) {
                assert!(intervals(run).all(|interval| total(interval, |e| e.excess) <= limit + 1e-12));
            }
        }
    }
}

/// d + 2√(d·z) + 2z; ν is the value at z = ln(1/δ_d).
fn gate(d: f64, z: f64) -> f64 {
    d + 2.0 * (d * z).sqrt() + 2.0 * z
}

/// Inequality (G): a fused centre is no farther from the own estimate than the model, in the norm of the own matrix.
#[test]
fn fused_centre_is_as_close_to_the_own_estimate_as_the_model() {
    let mut draws = Draws::new(5);
    for case in 0..1_000 {
        let definite = |draws: &mut Draws| draws.semidefinite::<4>(2.0) + Matrix::identity() * 0.01;
        let pair = Pair { a: definite(&mut draws), b: definite(&mut draws), delta: draws.vector() };
        let (_, limit) = pair.distances(&pair.delta);
        for w in WEIGHTS {
            let (_, distance) = pair.distances(&pair.centre(w));
            assert!(distance <= limit * (1.0 + 1e-9), "case {case}, weight {w}: {distance} > {limit}");
        }
    }
}

/// Exact models at the gate, by enumeration of all noises: for fixed actions, ‖Σxη‖²_Λ_l⁻¹ exceeds R²(d + 2√(dz) + 2z) with probability
/// at most e^(−z).
#[test]
fn noise_of_fixed_actions_seldom_exceeds_the_gate() {
    let mut draws = Draws::new(6);
    for case in 0..20 {
        let actions: Vec<Vector<2>> = (0..STEPS).map(|_| draws.action()).collect();
        let design = actions.iter().map(|x| x * x.transpose()).sum::<Matrix<2>>() + Matrix::identity() * LAMBDA;
        let deviations: Vec<f64> = (0_u32..1 << STEPS)
            .map(|noises| {
                let signed = actions.iter().enumerate().map(|(i, x)| if noises >> i & 1 == 0 { *x } else { -x });
                let sum: Vector<2> = signed.sum::<Vector<2>>() * R;
                sum.dot(&solve(&design, &sum))
            })
            .collect();
        for z in [0.1, 0.5, 1.0, 2.0, 4.0] {
            let exceed = deviations.iter().filter(|deviation| **deviation > R * R * gate(2.0, z)).count();
            assert!(exceed as f64 / deviations.len() as f64 <= (-z).exp(), "case {case}, z = {z}: {exceed}");
        }
    }
}

/// The numbers of section 8 are those of its formulas.
#[test]
fn size_of_the_bound_is_as_documented() {
    let (d, t, len, s, share, level): (f64, f64, f64, f64, f64, f64) = (8.0, 4096.0, 64.0, 1.0, 1.0 / 16.0, 0.05);
    let (e, b) = (std::f64::consts::E, width_factor(8));
    let beta = R * (d * (1.0 + t / (d * LAMBDA)).ln() + 2.0 * 10.0_f64.ln()).sqrt() + s * LAMBDA.sqrt();
    let bad = potential(d, t);
    let alarms = 1.0 + (1.0 + t / 1024.0).log2();
    let union = (t / len / level).ln();
    let limit = 2.0 * R * R * 1e5_f64.ln();
    let of_test = (alarms + bad + 1.0) * (2.0 * limit + 16.0 * R * R * union) + 3.0 * beta * beta * bad;
    let error = of_test.min((beta + R * gate(d, 100.0_f64.ln()).sqrt()).powi(2) * bad);
    let scouts = (e - 1.0) * share * t + (1.0 / level).ln();
    let bound = e / (e - 1.0) * scouts.sqrt() / share * (2.0 * beta * bad.sqrt() + error.sqrt())
        + b.max(2.0) * beta * (t * bad).sqrt()
        + (t * error).sqrt()
        + 2.0 * s * (len * (alarms + bad) + e / (e - 1.0) * (alarms + bad + 1.0) * union / share);
    let solo = 2.0 * beta * (t * bad).sqrt() + 2.0 * s * len * bad;
    // z of an exact model at the gate solves d + 2√(dz) + 2z = (√ν − S√λ/R)².
    let room = (gate(d, 100.0_f64.ln()).sqrt() - s * LAMBDA.sqrt() / R).powi(2);
    let rejected = (-(0.5 * ((2.0 * room - d).sqrt() - d.sqrt())).powi(2)).exp();
    let low = (LAMBDA / gate(d, 100.0_f64.ln())).sqrt();
    let page = include_str!("../../docs/theory.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let [bound, solo] = [bound, solo].map(|regret| regret / (2.0 * s * t));
    for text in [
        format!("With these weights, λ = 0.1 and d = 8, b = {b:.1}."),
        format!(
            "From d = 2 to {}, b = b_{{0.9}} = √10.",
            (1..99).filter(|d| width_factor(*d) < 10.0_f64.sqrt() + 1e-9).max().unwrap()
        ),
        format!("d = 8, R = 0.5 and S = 1, the bound is {rejected:.3}."),
        format!("For d = 8 this is the case below R = {low:.3}·S."),
        format!("It is then {bound:.0} times the trivial 2S·T."),
        format!("with the same λ, is {solo:.1} times 2S·T."),
    ] {
        assert!(page.contains(&text), "docs/theory.md does not contain: {text}");
    }
}

/// Lemma 20 by enumeration, at one time and with fixed weights. Its proof bounds 𝔼[exp(‖Σγxη‖²/2R²)·√(det λI/det Λ)] by 1, in the norm
/// of Λ̃⁻¹ and therefore in that of Λ_l⁻¹. By Markov's inequality this is coverage.
#[test]
fn discounted_noise_has_the_proven_exponential_moment() {
    for (lambda, half_life) in [(LAMBDA, 1.5_f64), (LAMBDA, 100.0), (10.0, 1.5), (10.0, 6.0), (10.0, 100.0)] {
        let moments = (0_u32..1 << STEPS).map(|noises| {
            let (mut gram, mut squared, mut sum) = (Matrix::<2>::zeros(), Matrix::<2>::zeros(), Vector::zeros());
            let mut noise = R;
            for step in 0..STEPS {
                // Actions depend on the last noise. Episodes have three steps.
                let x: Vector<2> = if noise > 0.0 { [0.6, 0.8].into() } else { [1.0, 0.0].into() };
                noise = if noises >> step & 1 == 0 { R } else { -R };
                let retention = if step % 3 == 0 { (-3.0 / half_life).exp2() } else { 1.0 };
                gram = gram * retention + x * x.transpose();
                squared = squared * retention.powi(2) + x * x.transpose();
                sum = sum * retention + x * noise;
            }
            [squared, gram].map(|matrix| {
                let design = matrix + Matrix::identity() * lambda;
                let exponent = sum.dot(&solve(&design, &sum)) / (2.0 * R * R);
                exponent.exp() / (design / lambda).determinant().sqrt()
            })
        });
        let [exact, local] =
            moments.fold([0.0; 2], |[a, b], [x, y]| [a + x, b + y]).map(|sum| sum / f64::from(1 << STEPS));
        assert!(local <= exact && exact <= 1.0 + 1e-12, "λ = {lambda}, half-life {half_life}: {exact} and {local}");
        assert!(lambda < 1.0 || exact > 0.9, "λ = {lambda}, half-life {half_life}: {exact} is far below 1");
    }
}

/// Lemma 21: the bias by drift, and its bound for a speed of drift.
#[test]
fn bias_by_drift_is_bounded_by_the_drift_within_memory() {
    let mut draws = Draws::new(4);
    for case in 0..200 {
        let half_life = 10.0_f64.powf(1.5 + 1.5 * draws.uniform());
        let (mut gram, mut bias, mut squares) = (Matrix::<4>::identity() * LAMBDA, Vector::<4>::zeros(), 0.0);
        let (direction, speed) = (draws.vector::<4>().normalize(), 0.01);
        // Nearly all actions along the drift give the largest bias.
        let spread = draws.uniform().abs();
        for age in 1..=500 {
            let weight = (-f64::from(age) / half_life).exp2();
            let x = (direction + draws.vector::<4>() * spread).normalize();
            let drift = direction * speed * f64::from(age);
            gram += x * x.transpose() * weight;
            bias += x * x.dot(&drift) * weight;
            squares += weight * x.dot(&drift).powi(2);
        }
        let found = bias.dot(&solve(&gram, &bias)).sqrt();
        let bound = speed * 2.0_f64.sqrt() * (half_life / std::f64::consts::LN_2).powf(1.5);
        assert!(found <= squares.sqrt() * (1.0 + 1e-9) && squares.sqrt() <= bound, "case {case}: {found}, {squares}");
        assert!(spread > 0.05 || found > 0.6 * squares.sqrt(), "case {case}: {found} is far below {}", squares.sqrt());
    }
}
