//! Whitened rules against a literal implementation of their definition, and their guarantees.

use fedbandit::algorithm::{
    Admission, AdmissionError, AgentId, Controller, ControllerConfig, Episodes, Estimate, Fault, Level, NoPrivacy,
    Rule, Streams,
};
use fedbandit::config::{AggregatorName, RewardKind, RunConfig};
use fedbandit::robust::{Assumptions, Centre, Whitened};
use fedbandit::simulation::{Attack, Environment, Logs, SimulationConfig, simulate};
use nalgebra::{DMatrix, DVector};
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::SeedableRng;

const R: f64 = 0.5;

fn assumptions(corruption: f64) -> Assumptions {
    Assumptions { corruption, noise: R, theta_bound: 1.0, stream_noise: None, forgetting: false }
}

/// Sums over an agent's observations.
#[derive(Clone)]
struct Observed {
    gram: DMatrix<f64>,
    sum: DVector<f64>,
}

fn normal(d: usize, rng: &mut Pcg64) -> DVector<f64> {
    DVector::from_fn(d, |_, _| StandardNormal.sample(rng))
}

/// Simulates n honest agents: `steps` actions on the unit sphere, rewards by `theta`, then actions mapped by `stretch`.
fn agents(n: usize, steps: usize, theta: &DVector<f64>, stretch: &DMatrix<f64>, seed: u64) -> Vec<Observed> {
    let (d, mut rng) = (theta.len(), Pcg64::seed_from_u64(seed));
    let mut one = || {
        let mut observed = Observed { gram: DMatrix::zeros(d, d), sum: DVector::zeros(d) };
        for _ in 0..steps {
            let x = normal(d, &mut rng).normalize();
            let noise: f64 = StandardNormal.sample(&mut rng);
            let reward = x.dot(theta) + R * noise;
            let x = stretch * x;
            observed.gram += &x * x.transpose();
            observed.sum += x * reward;
        }
        observed
    };
    (0..n).map(|_| one()).collect()
}

fn streams(agents: &[Observed]) -> Streams {
    let d = agents[0].sum.len();
    let mut streams = Streams::zeros(agents.len(), d).unwrap();
    for (row, observed) in agents.iter().enumerate() {
        let packed: Vec<f64> = (0..d).flat_map(|i| (i..d).map(move |j| (i, j))).map(|at| observed.gram[at]).collect();
        streams.add(row, &packed, observed.sum.as_slice());
    }
    streams
}

fn estimate(centre: Centre, corruption: f64, agents: &[Observed]) -> Estimate {
    Whitened::new(centre, assumptions(corruption)).estimate(&streams(agents), 2).unwrap()
}

/// Returns θ and Λ as broadcast.
fn broadcast(estimate: &Estimate) -> (DVector<f64>, DMatrix<f64>) {
    let parameters = estimate.parameters.as_ref().unwrap();
    assert_eq!(parameters.beta(), 1.0);
    let theta = DVector::from_iterator(parameters.theta().len(), parameters.theta().iter().copied().map(f64::from));
    let d = theta.len();
    let mut design = DMatrix::zeros(d, d);
    let places = (0..d).flat_map(|i| (i..d).map(move |j| (i, j)));
    for ((i, j), value) in places.zip(parameters.design()) {
        (design[(i, j)], design[(j, i)]) = (f64::from(*value), f64::from(*value));
    }
    (theta, design)
}

// --- the definition --------------------------------------------------------------------------------------------------

/// Raises a symmetric matrix to a power.
fn power(matrix: &DMatrix<f64>, exponent: f64) -> DMatrix<f64> {
    let eigen = matrix.clone().symmetric_eigen();
    let values = DMatrix::from_diagonal(&eigen.eigenvalues.map(|value| value.powf(exponent)));
    &eigen.eigenvectors * values * eigen.eigenvectors.transpose()
}

/// Returns the largest eigenvalue and its eigenvector.
fn top(matrix: &DMatrix<f64>) -> (f64, DVector<f64>) {
    let eigen = matrix.clone().symmetric_eigen();
    let index = eigen.eigenvalues.imax();
    (eigen.eigenvalues[index], eigen.eigenvectors.column(index).into_owned())
}

/// Geometric median by Weiszfeld's algorithm from the mean, for point sets whose median is not one of the points.
fn median(points: &[DMatrix<f64>]) -> DMatrix<f64> {
    let mut z = points.iter().sum::<DMatrix<f64>>() / points.len() as f64;
    for _ in 0..3000 {
        let weights: Vec<f64> = points.iter().map(|point| 1.0 / (point - &z).norm().max(1e-12)).collect();
        z = points.iter().zip(&weights).map(|(point, weight)| point * *weight).sum::<DMatrix<f64>>()
            / weights.iter().sum::<f64>();
    }
    z
}

fn median_distance(points: &[DMatrix<f64>], centre: &DMatrix<f64>) -> f64 {
    let mut distances: Vec<f64> = points.iter().map(|point| (point - centre).norm()).collect();
    distances.sort_by(f64::total_cmp);
    distances[(points.len() - 1) / 2]
}

fn weighted(points: &[DMatrix<f64>], weights: &[f64]) -> DMatrix<f64> {
    points.iter().zip(weights).map(|(point, weight)| point * *weight).sum::<DMatrix<f64>>()
        / weights.iter().sum::<f64>()
}

/// Total weight, weighted mean and weighted covariance.
fn moments(z: &[DMatrix<f64>], w: &[f64]) -> (f64, DMatrix<f64>, DMatrix<f64>) {
    let total: f64 = w.iter().sum();
    let mean = weighted(z, w);
    let spread = z.iter().zip(w).map(|(z, w)| (z - &mean) * (z - &mean).transpose() * *w).sum::<DMatrix<f64>>() / total;
    (total, mean, spread)
}

/// Weight, mean and variance of a standard normal distribution weighted by e^(−c(x − b)²), by summation.
fn reweighted(c: f64, b: f64) -> [f64; 3] {
    let grid = (-1600..1600).map(|k| (f64::from(k) + 0.5) * 5e-3);
    let weights = grid.map(|x| (x, (-x * x / 2.0 - c * (x - b).powi(2)).exp() * 5e-3 / std::f64::consts::TAU.sqrt()));
    let [weight, first, second] =
        weights.fold([0.0; 3], |[w, wx, wxx], (x, weight)| [w + weight, wx + x * weight, wxx + x * x * weight]);
    [weight, first / weight, second / weight - (first / weight).powi(2)]
}

/// Remaining share of corrupted agents, and mean and variance of the honest ones, after removing weight `taken` of n.
///
/// Worst case: the median is displaced by the corrupted agents plus one standard deviation, and they sit just below the
/// filter's threshold.
fn filter_bias(a: f64, n: f64, taken: f64, limit: f64) -> [f64; 3] {
    let (share, far) = (0.5 / (1.0 - a), mixture_median(a));
    let density = (-far * far / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let b = far + (share * (1.0 - share) / ((1.0 - a) * n)).sqrt() / density;
    let away = (((limit - 1.0 + a) / (a * (1.0 - a))).sqrt() - b).max(0.0);
    let mut c = 0.0;
    loop {
        let [left, mean, variance] = reweighted(c, b);
        let (honest, corrupted) = ((1.0 - a) * left, a * (-c * away * away).exp());
        if honest + corrupted <= 1.0 - taken / n {
            return [corrupted / (honest + corrupted), mean, variance];
        }
        c += 5e-4;
    }
}

/// Result of the filter.
struct Found {
    mean: DMatrix<f64>,
    spread: DMatrix<f64>,
    taken: f64,
    noise: f64,
    weights: Vec<f64>,
}

fn filter(z: &[DMatrix<f64>], a: f64) -> Found {
    let (n, d) = (z.len() as f64, z[0].len() as f64);
    let centre = median(z);
    let distances: Vec<f64> = z.iter().map(|z| (z - &centre).norm()).collect();
    let mut sorted = distances.clone();
    sorted.sort_by(f64::total_cmp);
    let noise = R.max(sorted[(z.len() - 1) / 2] / mixture_median_norm(z[0].len(), a));
    let kappa = a / (1.0 - 2.0 * a).sqrt();
    let far = noise * ((1.0 + kappa) * d.sqrt() + (2.0 * (10.0 * n).ln()).sqrt());
    let mut w: Vec<f64> = distances.iter().map(|distance| f64::from(*distance <= far)).collect();
    let near: f64 = w.iter().sum();
    let least = (n * (1.0 - 2.0 * a)).max(n / 4.0);
    let edge = |total: f64| (1.0 + (d / total).sqrt()).powi(2);
    let mut visited: Vec<(f64, Found)> = Vec::new();
    loop {
        let (total, mean, spread) = moments(z, &w);
        let (value, q) = top(&spread);
        let found = |mean, spread, taken, weights| Found { mean, spread, taken, noise, weights };
        if value <= 1.1 * edge(total) * noise * noise {
            return found(mean, spread, near - total, w);
        }
        let second = top(&(&spread - &q * q.transpose() * value)).0;
        visited.push((value / edge(total), found(mean, spread, near - total, w.clone())));
        let mut along: Vec<f64> = z.iter().map(|z| z.dot(&q)).collect();
        along.sort_by(f64::total_cmp);
        let middle = f64::midpoint(along[(z.len() - 1) / 2], along[z.len() / 2]);
        for turn in 0.. {
            let (total, _, spread) = moments(z, &w);
            let variance = (&spread * &q).dot(&q);
            if turn > 0 && variance <= second.max(1.1 * edge(total) * noise * noise) {
                break;
            }
            let s: Vec<f64> = z.iter().map(|z| (z.dot(&q) - middle).powi(2)).collect();
            let most = s.iter().zip(&w).filter(|(_, w)| **w > 0.0).map(|(s, _)| *s).fold(0.0, f64::max);
            let lower: Vec<f64> = w.iter().zip(&s).map(|(w, s)| w * (1.0 - s / most).max(0.0)).collect();
            if lower.iter().sum::<f64>() < least && turn == 0 {
                return visited.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap().1;
            }
            if lower.iter().sum::<f64>() < least {
                break;
            }
            w = lower;
        }
    }
}

/// Median of a mixture: a share 1 − a standard normal, the rest far above. Computed by summation.
fn mixture_median(a: f64) -> f64 {
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (mut quantile, mut below) = (0.0, 0.5);
    while below < 0.5 / (1.0 - a) {
        below += density(quantile + 5e-7) * 1e-6;
        quantile += 1e-6;
    }
    quantile
}

/// Median norm of a mixture: a share 1 − a standard normal in d dimensions, the rest far away.
///
/// The cube root of χ² is taken as normal (Wilson and Hilferty).
fn mixture_median_norm(d: usize, a: f64) -> f64 {
    let unit = 2.0 / (9.0 * d as f64);
    (d as f64 * (1.0 - unit + mixture_median(a) * unit.sqrt()).powi(3)).sqrt()
}

fn outer(parts: [DMatrix<f64>; 4]) -> DMatrix<f64> {
    let extents = parts.clone().map(|part| top(&part).0.max(0.0).sqrt());
    let total: f64 = extents.iter().sum();
    parts.iter().zip(extents).filter(|(_, t)| *t > 0.0).map(|(part, t)| part * (total / t)).sum()
}

/// θ and P of `whitened-filter`, with symmetric square roots in place of the rule's Cholesky factors.
fn naive(agents: &[Observed], a: f64) -> (DVector<f64>, DMatrix<f64>) {
    let (n, d, lambda) = (agents.len() as f64, agents[0].sum.len(), 0.1);
    let identity = DMatrix::<f64>::identity(d, d);
    let grams: Vec<DMatrix<f64>> = agents.iter().map(|observed| observed.gram.clone()).collect();
    let relative = |root: &DMatrix<f64>| -> Vec<DMatrix<f64>> { grams.iter().map(|gram| root * gram * root).collect() };
    let mut gram = median(&grams);
    let mut apart = 0.0;
    for _ in 0..2 {
        let design = &gram + &identity * lambda;
        let relative = relative(&power(&design, -0.5));
        let centre = median(&relative);
        apart = median_distance(&relative, &centre);
        let moved = &centre - power(&design, -0.5) * &gram * power(&design, -0.5);
        gram = power(&design, 0.5) * centre * power(&design, 0.5);
        if moved.norm() <= 0.01 {
            break;
        }
    }
    let design = &gram + &identity * lambda;
    let root = power(&design, -0.5);
    let mut theta = DVector::zeros(d);
    let (mut last, mut rest) = (None, DVector::zeros(d));
    for round in 0..6 {
        let z: Vec<DMatrix<f64>> = agents
            .iter()
            .map(|observed| &root * (&observed.sum - &observed.gram * &theta))
            .map(|z| DMatrix::from_column_slice(d, 1, z.as_slice()))
            .collect();
        let found = (round > 0).then(|| filter(&z, a));
        let mean = found.as_ref().map_or_else(|| median(&z), |found| found.mean.clone());
        let explored = found.as_ref().map(|found| weighted(&grams, &found.weights) + &identity * lambda);
        last = found;
        let step = power(&design, 0.5) * (mean.column(0) - &root * &theta * lambda);
        let own = explored.clone().filter(|_| apart <= 1.0).unwrap_or_else(|| design.clone());
        let moved = own.cholesky().unwrap().solve(&step);
        if let Some(explored) = explored {
            rest = &root * (&step - explored * &moved);
            if rest.norm() > (&root * &step).norm() {
                rest = &root * step;
                break;
            }
        }
        theta += &moved;
        if round > 0 && moved.dot(&step).sqrt() <= 0.01 * R {
            break;
        }
    }
    let honest = (1.0 - a) * n;
    let edge = (1.0 - (d as f64 / honest).sqrt()).max(0.0).powi(2);
    let prior = &root * &root * lambda;
    let Found { spread, taken, noise, weights, .. } = last.unwrap();
    let [corrupted, shift, left] = filter_bias(a, n, taken, 1.1 * (1.0 + (d as f64 / n).sqrt()).powi(2));
    let hidden = (&spread - (&identity - &prior) * ((1.0 - corrupted) * edge * left * R * R)).symmetric_eigen();
    let positive =
        DMatrix::from_diagonal(&hidden.eigenvalues.map(|value| value.max(0.0) * corrupted / (1.0 - corrupted)));
    let hidden = &hidden.eigenvectors * positive * hidden.eigenvectors.transpose();
    let noise = &identity * (noise * (((d as f64).sqrt() + 2.0) / honest.sqrt() + shift)).powi(2);
    let moved = a / (1.0 - 2.0 * a).sqrt() * apart;
    let width = outer([hidden, noise, prior * lambda, &rest * rest.transpose()]) * (1.0 + moved).powi(2);
    let explored = (&root * (weighted(&grams, &weights) + &identity * lambda) * &root).symmetric_eigen();
    let mut thin = DMatrix::zeros(d, d);
    for (value, vector) in explored.eigenvalues.iter().zip(explored.eigenvectors.column_iter()) {
        let along = &root * vector;
        let mut claims: Vec<(f64, f64)> =
            grams.iter().map(|gram| (gram * &along).dot(&along)).zip(weights.iter().copied()).collect();
        claims.sort_by(|a, b| b.0.total_cmp(&a.0));
        // The share a with the largest claims is excluded.
        let (mut out, total) = (a * weights.iter().sum::<f64>(), (1.0 - a) * weights.iter().sum::<f64>());
        for (_, weight) in &mut claims {
            let less = weight.min(out);
            (*weight, out) = (*weight - less, out - less);
        }
        let least = claims.iter().map(|(claim, weight)| claim * weight).sum::<f64>() / total;
        let value = if apart > 1.0 { least + lambda * along.norm_squared() } else { value / (1.0 - a) };
        thin += vector * vector.transpose() / value.clamp(0.05, 1.0);
    }
    (theta, &root * &thin * width * thin * &root)
}

/// Simulates n agents in three dimensions, the first `corrupted` of which follow an attack plan. Returns θ* as well.
fn fleet(n: usize, corrupted: usize, plan: usize, seed: u64) -> (Vec<Observed>, DVector<f64>) {
    let mut rng = Pcg64::seed_from_u64(seed + 1000);
    let theta = normal(3, &mut rng).normalize();
    // With few steps, agents have explored different directions.
    let steps = if plan == 4 { 4 } else { 60 };
    let mut agents = agents(n, steps, &theta, &DMatrix::identity(3, 3), seed);
    let direction = normal(3, &mut rng).normalize();
    for (i, observed) in agents[..corrupted].iter_mut().enumerate() {
        match plan {
            0 => {}
            1 => observed.sum += &direction * 1000.0,
            2 => observed.sum += &direction * (3.0 * R * 20_f64.sqrt()),
            // More than the rule is designed for: once the first group is removed, the second has more variance than
            // the first had, and cannot be removed.
            5 => {
                let side = direction.cross(&theta).normalize() * if i % 2 == 0 { 5.0 } else { -5.0 };
                observed.gram *= 0.1;
                observed.sum =
                    &observed.gram * &theta + if i < 12 { &direction * 6.0 } else { side } * (R * 20_f64.sqrt());
            }
            _ => {
                observed.gram = &direction * direction.transpose() * steps as f64;
                observed.sum = &observed.gram * &theta * -1.0;
            }
        }
    }
    (agents, theta)
}

#[test]
fn whitened_filter_matches_its_definition() {
    // Seed 0 with few steps and many corrupted agents is ill-conditioned: changing a sum by 10⁻⁴ moves θ by 0.2.
    let cases = [(0.3, 10, 0), (0.45, 17, 1)].into_iter();
    let cases = cases.flat_map(|(a, corrupted, first)| (first..6).map(move |seed| (a, corrupted, seed)));
    let cases = cases.flat_map(|(a, corrupted, seed)| (0..5).map(move |plan| (40, a, corrupted, seed, plan)));
    let cases = cases.chain((0..3).map(|seed| (100, 0.1, 26, seed, 5)));
    for (n, a, corrupted, seed, plan) in cases {
        let (agents, _) = fleet(n, corrupted, plan, seed);
        let (theta, width) = naive(&agents, a);
        let (found, design) = broadcast(&estimate(Centre::Filter, a, &agents));
        let off = (&found - &theta).norm();
        assert!(off < 2e-3, "plan {plan}, seed {seed}, a = {a}: θ is off by {off}");
        // PΛ = I, up to the tolerance of the medians.
        let product = width * design - DMatrix::identity(3, 3);
        assert!(product.norm() < 0.03, "plan {plan}, seed {seed}, a = {a}: PΛ − I = {product}");
    }
}

#[test]
fn filter_with_zero_corruption_recovers_theta() {
    let (agents, theta) = fleet(60, 0, 0, 1);
    let (found, _) = broadcast(&estimate(Centre::Filter, 0.0, &agents));
    assert!((&found - &theta).norm() < 0.1, "found {found}, expected {theta}");
}

// --- properties ------------------------------------------------------------------------------------------------------

/// With nothing to remove, the filter equals the mean: the fixed point is independent of the median of Gram matrices.
#[test]
fn filter_of_honest_agents_equals_ridge_estimate() {
    for seed in 0..10 {
        let (agents, _) = fleet(60, 0, 0, seed);
        let (filter, design) = broadcast(&estimate(Centre::Filter, 0.3, &agents));
        let (mean, _) = broadcast(&estimate(Centre::Mean, 0.3, &agents));
        let gram =
            agents.iter().map(|observed| &observed.gram).sum::<DMatrix<f64>>() / 60.0 + DMatrix::identity(3, 3) * 0.1;
        let sum = agents.iter().map(|observed| &observed.sum).sum::<DVector<f64>>() / 60.0;
        let ridge = gram.clone().cholesky().unwrap().solve(&sum);
        let apart = |a: &DVector<f64>, b: &DVector<f64>| (a - b).dot(&(&gram * (a - b))).sqrt();
        assert!(apart(&mean, &ridge) < 0.02 * R && apart(&filter, &ridge) < 0.02 * R, "seed {seed}");
        assert!(design.cholesky().is_some());
    }
}

/// x ↦ Ax maps θ to A⁻ᵀθ and P to A⁻ᵀPA⁻¹, except for λ, which is negligible against 400 steps.
#[test]
fn filter_is_equivariant_under_linear_maps() {
    let stretch = DMatrix::from_row_slice(3, 3, &[1.0, 0.3, 0.0, 0.0, 0.5, 0.2, 0.0, 0.0, 2.0]);
    let theta = DVector::from_vec(vec![0.6, -0.64, 0.48]);
    for seed in 0..4 {
        let mut plain = agents(50, 400, &theta, &DMatrix::identity(3, 3), seed);
        let push = DVector::from_vec(vec![1.0, 1.0, -1.0]) * 15.0;
        plain[..12].iter_mut().for_each(|observed| observed.sum += &push);
        let stretched: Vec<Observed> = plain
            .iter()
            .map(|observed| Observed {
                gram: &stretch * &observed.gram * stretch.transpose(),
                sum: &stretch * &observed.sum,
            })
            .collect();
        let (one, one_design) = broadcast(&estimate(Centre::Filter, 0.3, &plain));
        let (two, two_design) = broadcast(&estimate(Centre::Filter, 0.3, &stretched));
        assert!((stretch.transpose() * two - one).norm() < 5e-3, "seed {seed}");
        let back = &stretch * &one_design * stretch.transpose();
        assert!((&two_design - &back).norm() < 0.03 * back.norm(), "seed {seed}");
    }
}

/// Two in five agents are corrupted, with sums arbitrarily far away.
#[test]
fn corrupted_minority_moves_theta_only_slightly() {
    for (seed, scale) in (0..5).flat_map(|seed| [1e1, 1e4, 1e9, 1e200].map(|scale| (seed, scale))) {
        let (mut agents, theta) = fleet(60, 0, 0, seed);
        let push = DVector::from_vec(vec![scale, -scale, scale]);
        for observed in &mut agents[..24] {
            observed.sum = push.clone();
            observed.gram = DMatrix::identity(3, 3) * 20.0;
        }
        let (found, _) = broadcast(&estimate(Centre::Filter, 0.45, &agents));
        // Honest errors are about R/√(20·36) = 0.02. The median may move by several deviations of one agent, 0.11 each.
        assert!((found - &theta).norm() < 0.5, "seed {seed}, scale {scale}");
    }
}

/// A broadcast model is finite for any input; otherwise there is none.
#[test]
fn model_from_hostile_values_is_finite() {
    let values = [f64::NAN, f64::INFINITY, -1e300, 1e300, 1e-300, -1.0, 0.0, 1.0, 1e150, 1e20];
    let mut rng = Pcg64::seed_from_u64(3);
    let mut pick = || values[(rand_pcg::rand_core::Rng::next_u32(&mut rng) as usize) % values.len()];
    let mut usable = 0;
    for case in 0..600 {
        let n = 1 + case % 7;
        let mut streams = Streams::zeros(n, 2).unwrap();
        for row in 0..n {
            streams.add(row, &[pick(), pick(), pick()], &[pick(), pick()]);
        }
        for centre in [Centre::Filter, Centre::Mean] {
            let estimate = Whitened::new(centre, assumptions(0.3)).estimate(&streams, 2).unwrap();
            let Some(parameters) = estimate.parameters else { continue };
            usable += 1;
            assert!(parameters.theta().iter().chain(parameters.design()).all(|value| value.is_finite()));
        }
    }
    assert!(usable > 50, "only {usable} models");
    let none = Streams::zeros(0, 2).unwrap();
    assert!(Whitened::new(Centre::Filter, assumptions(0.3)).estimate(&none, 2).is_err());
}

// --- exclusion -------------------------------------------------------------------------------------------------------

fn config(level: Level) -> ControllerConfig {
    ControllerConfig {
        dimension: 2,
        episodes: Episodes::new(80, 8, 8).unwrap(),
        level,
        reward_bound: None,
        window: 0,
        half_life: None,
    }
}

/// Runs five episodes. The third message of `corrupted` has a negative eigenvalue.
fn controller(agents: &[u32], corrupted: Option<u32>) -> Controller<NoPrivacy, Whitened> {
    let rule = Whitened::new(Centre::Filter, assumptions(0.3));
    let enrolled = agents.iter().copied().map(AgentId);
    let mut controller = Controller::new(config(Level::Drop), enrolled, rule, NoPrivacy::new).unwrap();
    for episode in 1..=5 {
        for agent in agents {
            let own = f64::from(*agent) / 10.0;
            let gram = [4.0 + own, 0.5, if Some(*agent) == corrupted && episode == 3 { -1.0 } else { 3.0 - own }];
            let taken = controller.receive(AgentId(*agent), episode, gram, [1.0 + own, -0.5]);
            let expected = match episode {
                3 if Some(*agent) == corrupted => Err(Fault::NotPositiveSemidefinite),
                4.. if Some(*agent) == corrupted => Err(Fault::Dropped),
                _ => Ok(()),
            };
            assert_eq!(taken, expected);
        }
        assert_eq!(controller.missing(), 0);
        controller.close_episode().unwrap();
    }
    controller
}

#[test]
fn excluded_agent_leaves_no_trace() {
    let with = controller(&[1, 2, 3, 4, 5], Some(2));
    let without = controller(&[1, 5, 3, 4], None);
    // Medians start from their previous values, so both runs agree only up to the tolerance.
    let ((theta, design), (other, other_design)) = (broadcast(with.estimate()), broadcast(without.estimate()));
    assert!((theta - other).norm() < 1e-4 && (&design - other_design).norm() < 1e-3 * design.norm());
    let units: Vec<AgentId> = with.deviations().map(|deviation| deviation.unit).collect();
    assert_eq!(units, [1, 5, 3, 4].map(AgentId));
}

#[test]
fn fault_of_only_agent_still_yields_a_model() {
    let rule = Whitened::new(Centre::Filter, assumptions(0.3));
    let mut controller = Controller::new(config(Level::Drop), [AgentId(7)], rule, NoPrivacy::new).unwrap();
    controller.receive(AgentId(7), 1, [f64::NAN; 3], [0.0; 2]).unwrap_err();
    controller.close_episode().unwrap();
    assert!(controller.model().is_some());
}

#[test]
fn drop_level_with_privacy_is_rejected() {
    let error = Admission::new(Level::Drop, 2, 8, Some(1.0), true).unwrap_err();
    assert_eq!(error, AdmissionError::PrivacyCannotDrop);
    let private = RunConfig {
        aggregator: AggregatorName::WhitenedFilter,
        rewards: RewardKind::Bounded,
        privacy: Some("4,1e-6".parse().unwrap()),
        ..RunConfig::default()
    };
    let check = |run| SimulationConfig { run, ..SimulationConfig::default() }.validate();
    check(private).unwrap();
    let dropping = RunConfig { admission: Some(Level::Drop), ..private };
    assert_eq!(
        check(dropping).unwrap_err().to_string(),
        "admission: drop is not available with privacy, since exclusions would reveal what a message contained; use strict"
    );
}

#[test]
fn invalid_configurations_are_reported() {
    let whitened = RunConfig { aggregator: AggregatorName::WhitenedFilter, ..RunConfig::default() };
    let message = |run| SimulationConfig { run, ..SimulationConfig::default() }.validate().unwrap_err().to_string();
    let silent = RunConfig { rewards: RewardKind::Gaussian(0.0), ..whitened };
    assert_eq!(
        message(silent),
        "rewards: whitened-filter needs a noise level R > 0 (e.g. gaussian:0.5) to tell noise from corruption"
    );
    let theorem = RunConfig { schedule: "theorem".parse().unwrap(), ..whitened };
    assert_eq!(message(theorem), "schedule: no theorem covers whitened-filter; use calibrated");
    let krum = RunConfig { aggregator: AggregatorName::Krum, admission: Some(Level::Drop), ..RunConfig::default() };
    assert_eq!(
        message(krum),
        "admission: krum needs a fixed number of agents, so that none can be dropped; use strict"
    );
}

// --- simulations -----------------------------------------------------------------------------------------------------

#[test]
fn optimal_attack_passes_admission() {
    let base = RunConfig { agents: 20, dim: 4, steps: 128, episode_len: Some(16), ..RunConfig::default() };
    for aggregator in [AggregatorName::WhitenedFilter, AggregatorName::GeometricMedian] {
        for rewards in [RewardKind::Gaussian(0.5), RewardKind::Bounded] {
            for attack in [Attack::Optimal, Attack::OptimalSleeper] {
                let run = RunConfig { aggregator, rewards, ..base };
                let config =
                    SimulationConfig { run, attack, environment: Environment::Skew, ..SimulationConfig::default() };
                let outcome = simulate(&config, &Logs::new(), 5, &|_| {}).unwrap();
                assert!(outcome.rejected.is_empty(), "{aggregator} under {attack} rejected {:?}", outcome.rejected);
            }
        }
    }
}

/// With 30 % corrupted agents, `optimal` beats `collude`, the strongest attack without search, against either rule.
/// Under it, the filter's regret is less than half of that of the paper's median.
#[test]
fn optimal_attack_harms_filter_less_than_median() {
    let total = |aggregator, attack| -> f64 {
        let run = RunConfig { agents: 40, dim: 4, steps: 512, aggregator, ..RunConfig::default() };
        let config = SimulationConfig { run, attack, environment: Environment::Skew, ..SimulationConfig::default() };
        let one = |seed| simulate(&config, &Logs::new(), seed, &|_| {}).unwrap();
        [61, 62].map(one).iter().map(|outcome| outcome.total).sum()
    };
    let (filter, median) = (AggregatorName::WhitenedFilter, AggregatorName::GeometricMedian);
    for aggregator in [filter, median] {
        assert!(total(aggregator, Attack::Optimal) > total(aggregator, Attack::Collude), "{aggregator}");
    }
    assert!(total(filter, Attack::Optimal) < 0.5 * total(median, Attack::Optimal));
}

/// The number of steps before episode k is the sum of the previous L, also with several initial episodes.
#[test]
fn steps_before_equals_sum_of_lengths() {
    for (horizon, first, starts, longest) in
        [(4096, 4, 16, 64), (100, 3, 5, 50), (7, 4, 3, 64), (64, 64, 9, 64), (1, 1, 1, 1)]
    {
        let episodes = Episodes::with_starts(horizon, first, starts, longest).unwrap();
        let mut before = 0;
        for k in 1..=episodes.count() {
            assert_eq!(episodes.steps_before(k), before);
            let expected = if k <= starts { first } else { longest.min(first << (k - starts).min(16)) };
            assert_eq!(episodes.length(k), expected.min(longest));
            before += u64::from(episodes.length(k));
        }
        assert!(
            before >= u64::from(horizon) && before - u64::from(episodes.length(episodes.count())) < u64::from(horizon)
        );
    }
    assert_eq!(Episodes::new(4096, 4, 64), Episodes::with_starts(4096, 4, 1, 64));
}
