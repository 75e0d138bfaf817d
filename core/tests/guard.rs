//! The guarded agent against the definitions of its formulas in f64, and its guarantees by simulation.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use fedbandit_core::{Agent, Guard, GuardedAgent, Model, ModelError, Prior, Rewards, packed_len};
use nalgebra::{SMatrix, SVector};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

const D: usize = 4;
const T: usize = packed_len(D);
const GUARD: Guard = Guard { noise: 0.5, theta_norm: 1.0, max_episode_len: 65_536, half_life: None };
const LAMBDA: f64 = 0.1;
const NOISE: f64 = 0.5;

type Matrix = SMatrix<f64, D, D>;
type Vector = SVector<f64, D>;
type Guarded = GuardedAgent<D, T>;

fn guarded(episode_len: u32) -> Guarded {
    Guarded::new(&Prior::new(1.0, 1.0, episode_len, Rewards::Unbounded), GUARD).unwrap()
}

/// Random numbers for tests.
struct Draws(Pcg64);

impl Draws {
    /// Uniform in [−1, 1].
    fn uniform(&mut self) -> f64 {
        f64::from(self.0.next_u32()) / 2_147_483_648.0 - 1.0
    }

    /// Nearly normal, with deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| 0.5 * self.uniform()).sum()
    }

    /// A vector in the unit ball, rounded to f32.
    fn action(&mut self) -> [f32; D] {
        let x = Vector::from_fn(|i, _| self.uniform() / (1.0 + i as f64));
        (x / (1.0 + x.norm())).map(|entry| entry as f32).into()
    }

    fn theta(&mut self) -> Vector {
        let theta = Vector::from_fn(|_, _| self.normal());
        theta / theta.norm()
    }
}

fn wide(x: &[f32; D]) -> Vector {
    Vector::from_fn(|i, _| f64::from(x[i]))
}

/// A confidence ellipsoid ‖θ − centre‖_design ≤ radius.
#[derive(Clone, Copy, Debug)]
struct Ellipsoid {
    centre: Vector,
    design: Matrix,
    radius: f64,
}

impl Ellipsoid {
    fn distance(&self, theta: &Vector) -> f64 {
        let error = theta - self.centre;
        error.dot(&(self.design * error)).max(0.0).sqrt() / self.radius
    }

    /// max ⟨x, θ⟩ over the ellipsoid.
    fn score(&self, x: &Vector) -> f64 {
        let width = x.dot(&self.design.cholesky().unwrap().solve(x)).sqrt();
        x.dot(&self.centre) + self.radius * width
    }

    /// The fused ellipsoid of weight w and κ: completing the square of w·‖θ − θ_g‖²_A + (1 − w)·‖θ − θ_l‖²_B ≤ 1.
    fn fused(&self, own: &Self, w: f64) -> (Self, f64) {
        let (a, b) = (self.design / self.radius.powi(2), own.design / own.radius.powi(2));
        let c = a * w + b * (1.0 - w);
        let centre = c.cholesky().unwrap().solve(&(a * self.centre * w + b * own.centre * (1.0 - w)));
        let at_centre = w * (self.centre - centre).dot(&(a * (self.centre - centre)))
            + (1.0 - w) * (own.centre - centre).dot(&(b * (own.centre - centre)));
        (Self { centre, design: c, radius: (1.0 - at_centre).max(1e-3).sqrt() }, at_centre)
    }
}

/// A device's own data, and the ellipsoid that follows from them.
#[derive(Clone, Copy, Debug, Default)]
struct OwnData {
    gram: Matrix,
    sum: Vector,
}

impl OwnData {
    fn ellipsoid(&self) -> Ellipsoid {
        let design = self.gram + Matrix::identity() * LAMBDA;
        let log_det = (design / LAMBDA).determinant().ln();
        let radius = 0.5 * (log_det + 2.0 * 10.0_f64.ln()).sqrt() + LAMBDA.sqrt();
        Ellipsoid { centre: design.cholesky().unwrap().solve(&self.sum), design, radius }
    }
}

/// The gate's limit of ‖θ_g − θ_l‖²_Λ_l: R²(d + 2√(d·ln 100) + 2·ln 100).
fn gate(d: f64) -> f64 {
    let level = 100.0_f64.ln();
    NOISE.powi(2) * (d + 2.0 * (d * level).sqrt() + 2.0 * level)
}

/// The point towards a target whose deviation from the own estimate is `share` times the gate's limit, or the target if it is closer.
fn towards(target: &Vector, local: &Ellipsoid, share: f64) -> Vector {
    let away = target - local.centre;
    let deviation = away.dot(&(local.design * away));
    local.centre + away * (share * gate(D as f64) / deviation).sqrt().min(1.0)
}

/// Runs an episode with random actions and rewards of a parameter.
fn run_episode(agent: &mut Guarded, own: &mut OwnData, theta: &Vector, draws: &mut Draws) {
    for _ in 0..agent.episode_len() {
        let x = draws.action();
        let reward = (wide(&x).dot(theta) + 0.5 * draws.normal()) as f32;
        agent.record(&x, reward).unwrap();
        own.gram += wide(&x) * wide(&x).transpose();
        own.sum += wide(&x) * f64::from(reward);
    }
    agent.finish();
}

/// A model in f32, with its ellipsoid.
fn model_of(centre: &Vector, design: &Matrix, beta: f64) -> ([f32; D], [f32; T], f32, Ellipsoid) {
    let theta: [f32; D] = centre.map(|entry| entry as f32).into();
    let mut packed = [0.0; T];
    let places = (0..D).flat_map(|i| (i..D).map(move |j| (i, j)));
    packed.iter_mut().zip(places).for_each(|(entry, (i, j))| *entry = design[(i, j)] as f32);
    let (beta, design) = (beta as f32, design.map(|entry| f64::from(entry as f32)));
    (theta, packed, beta, Ellipsoid { centre: wide(&theta), design, radius: f64::from(beta) })
}

/// Weights that the agent tries.
const WEIGHTS: [f64; 5] = [0.0, 0.1, 0.5, 0.9, 1.0];

/// The agent's scores are those of the fused ellipsoid with the smallest (1 − κ)·tr(Λ_c⁻¹(V + I)), or of the own one if some κ
/// exceeds 1 or the model is beyond the gate.
#[test]
fn model_is_fused_as_defined() {
    let mut draws = Draws(Pcg64::seed_from_u64(1));
    let mut chosen: BTreeMap<String, u32> = BTreeMap::new();
    let mut only_gate = 0;
    for case in 0..3_000_u32 {
        let truth = draws.theta();
        let (mut agent, mut own) = (guarded(16), OwnData::default());
        (0..case % 12).for_each(|_| run_episode(&mut agent, &mut own, &truth, &mut draws));
        let mut design = Matrix::identity();
        for _ in 0..10 + case % 400 {
            let x = wide(&draws.action());
            design += x * x.transpose();
        }
        let shift = Vector::from_fn(|_, _| draws.normal()) * [0.02, 0.2, 1.0][case as usize % 3];
        let (theta, packed, beta, global) = model_of(&(truth + shift), &design, 10.0_f64.powf(draws.uniform()));
        agent.begin(&Model::new(20, 16, beta, Rewards::Unbounded, &theta, &packed)).unwrap();

        let local = own.ellipsoid();
        let fusions: Vec<(f64, Ellipsoid, f64, f64)> = WEIGHTS
            .iter()
            .map(|w| {
                let (fused, kappa) = global.fused(&local, *w);
                let used = own.gram + Matrix::identity();
                let cost = fused.radius.powi(2) * (fused.design.try_inverse().unwrap() * used).trace();
                (*w, fused, kappa, cost)
            })
            .collect();
        let least = fusions.iter().map(|(.., cost)| *cost).fold(f64::MAX, f64::min);
        let most = fusions.iter().map(|(_, _, kappa, _)| *kappa).fold(0.0, f64::max);
        // Near a tie, rounding may decide.
        let mut candidates: Vec<(f64, Ellipsoid)> =
            fusions.iter().filter(|(.., cost)| *cost <= least * 1.0001).map(|(w, fused, ..)| (*w, *fused)).collect();
        let shift = global.centre - local.centre;
        let deviation = shift.dot(&(local.design * shift)) / gate(D as f64);
        if most > 0.9999 || deviation > 0.9999 {
            candidates = if most > 1.0001 || deviation > 1.0001 { vec![] } else { candidates };
            candidates.push((0.0, local));
        }
        let actions: Vec<[f32; D]> = (0..8).map(|_| draws.action()).collect();
        let error = |fused: &Ellipsoid| {
            let errors = actions.iter().map(|x| {
                let expected = fused.score(&wide(x));
                (f64::from(agent.score(x).unwrap()) - expected).abs() / (fused.radius * wide(x).norm() + expected.abs())
            });
            errors.fold(0.0, f64::max)
        };
        let found = candidates.iter().find(|(_, fused)| error(fused) < 2e-3);
        let Some((weight, _)) = found else {
            let errors: Vec<_> = candidates.iter().map(|(w, fused)| (*w, error(fused))).collect();
            panic!("case {case}: κ up to {most}, {deviation} of the gate, errors by weight {errors:?}");
        };
        assert_eq!(agent.follows_controller(), *weight > 0.0, "case {case}");
        *chosen.entry(format!("{weight}")).or_default() += 1;
        only_gate += u32::from(deviation > 1.0001 && most < 0.9999 && fusions[0].3 > least);
    }
    assert!(chosen.len() == WEIGHTS.len() && chosen.values().all(|count| *count > 20), "{chosen:?}");
    assert!((100..2_900).contains(&only_gate), "{only_gate} models rejected by the gate alone");
}

/// Every parameter in both ellipsoids is in the fused one: no score is below what such a parameter promises.
#[test]
fn fused_ellipsoid_contains_the_intersection() {
    let mut draws = Draws(Pcg64::seed_from_u64(2));
    let mut checked = 0;
    for case in 0..2_000_u32 {
        let truth = draws.theta();
        let (mut agent, mut own) = (guarded(16), OwnData::default());
        (0..case % 10).for_each(|_| run_episode(&mut agent, &mut own, &truth, &mut draws));
        let design = Matrix::from_diagonal(&Vector::from_fn(|_, _| 10.0_f64.powf(1.5 + 1.5 * draws.uniform())));
        let shift = Vector::from_fn(|_, _| draws.normal()) * 0.3;
        let (theta, packed, beta, global) = model_of(&(truth + shift), &design, 1.0);
        agent.begin(&Model::new(20, 16, beta, Rewards::Unbounded, &theta, &packed)).unwrap();
        if !agent.follows_controller() {
            continue;
        }
        let local = own.ellipsoid();
        for _ in 0..40 {
            let towards = Vector::from_fn(|_, _| draws.normal());
            let theta = global.centre + (local.centre - global.centre) * draws.uniform().abs() + towards * 0.1;
            if global.distance(&theta) > 1.0 || local.distance(&theta) > 1.0 {
                continue;
            }
            checked += 1;
            for _ in 0..4 {
                let x = draws.action();
                let (promised, score) = (wide(&x).dot(&theta), f64::from(agent.score(&x).unwrap()));
                assert!(score >= promised - 1e-3, "case {case}: {score} < {promised}");
            }
        }
    }
    assert!(checked > 5_000, "{checked} parameters");
}

/// A controller that tells the truth raises an alarm with probability at most δ = 10⁻⁵ per start of the test, which starts again
/// whenever ℓ falls to 0: at most 40 times here, so in 4·10⁻⁴ of the runs. In 500 runs, 6 alarms have a probability below 10⁻⁶.
///
/// These actions do not depend on rewards. So at each time ‖θ_l − θ*‖_Λ_l exceeds R√q + S√λ with probability at most exp(−y), for
/// q = d + 2√(d·y) + 2y. With the gate at R√q + S√λ, y = 2.80 and exp(−y) = 0.061 for d = 4.
#[test]
fn true_model_seldom_raises_an_alarm() {
    let mut draws = Draws(Pcg64::seed_from_u64(3));
    let (mut alarms, mut rejected) = (0, 0);
    for _ in 0..500 {
        let truth = draws.theta();
        let (mut agent, mut own) = (guarded(16), OwnData::default());
        for episode in 1..=40 {
            let (theta, packed, beta, _) = model_of(&truth, &(Matrix::identity() * 1e4), 1.0);
            agent.begin(&Model::new(episode, 16, beta, Rewards::Unbounded, &theta, &packed)).unwrap();
            rejected += u32::from(!agent.follows_controller() && !agent.ignores_models());
            run_episode(&mut agent, &mut own, &truth, &mut draws);
        }
        alarms += u32::from(agent.alarms() > 0);
    }
    assert!(alarms < 6, "{alarms} alarms");
    let d = D as f64;
    let limit = ((gate(d).sqrt() - LAMBDA.sqrt()) / NOISE).powi(2);
    let level = (0.5 * ((2.0 * limit - d).sqrt() - d.sqrt())).powi(2);
    let rate = f64::from(rejected) / 20_000.0;
    assert!((level - 2.80).abs() < 0.01 && rate < (-level).exp(), "{rate} rejected, level {level}");
}

/// A controller whose model contradicts the rewards is ignored, for longer and longer.
#[test]
fn false_model_raises_alarms_and_is_ignored() {
    let mut draws = Draws(Pcg64::seed_from_u64(4));
    let truth = draws.theta();
    let (mut agent, mut own) = (guarded(64), OwnData::default());
    let mut followed = Vec::new();
    for episode in 1..=300 {
        // Just within the gate, so that only the test can find it.
        let lie = towards(&-truth, &own.ellipsoid(), 0.9);
        let (theta, packed, beta, _) = model_of(&lie, &(Matrix::identity() * 1e5), 1.0);
        agent.begin(&Model::new(episode, 64, beta, Rewards::Unbounded, &theta, &packed)).unwrap();
        followed.push(agent.follows_controller());
        run_episode(&mut agent, &mut own, &truth, &mut draws);
    }
    assert!(agent.alarms() >= 3, "{} alarms", agent.alarms());
    let ignored: Vec<usize> = followed.chunk_by(|a, b| a == b).filter(|run| !run[0]).map(<[bool]>::len).collect();
    assert_eq!(ignored[..3], [16, 32, 64], "episodes of 64 steps in which models are ignored");
}

/// A model beyond the gate is not followed, raises no alarm and is forgotten with its episode.
#[test]
fn gate_raises_no_alarm() {
    let mut draws = Draws(Pcg64::seed_from_u64(13));
    let truth = draws.theta();
    let (mut agent, mut own) = (guarded(16), OwnData::default());
    (0..8).for_each(|_| run_episode(&mut agent, &mut own, &truth, &mut draws));
    for episode in 9..=200 {
        let local = own.ellipsoid();
        for (share, is_followed) in [(1.01, false), (0.99, true), (1.01, false)] {
            let lie = towards(&(truth * -20.0), &local, share);
            let (theta, packed, beta, _) = model_of(&lie, &(Matrix::identity() * 1e5), 1.0);
            agent.begin(&Model::new(episode, 16, beta, Rewards::Unbounded, &theta, &packed)).unwrap();
            assert_eq!(agent.follows_controller(), is_followed, "episode {episode}, {share} of the gate");
        }
        let before = agent.test_state();
        run_episode(&mut agent, &mut own, &truth, &mut draws);
        assert_eq!(agent.test_state(), before);
        assert!(agent.alarms() == 0 && !agent.ignores_models());
    }
}

/// After a followed episode ℓ is max(0, ℓ + Σ(r − ⟨x,θ_c⟩)² − Σ(r − ⟨x,θ_l⟩)²), or 0 with an alarm if that exceeds the threshold. The
/// threshold is 2R² ln(1/δ), and half of it, a quarter and an eighth after one, two, and three or more alarms. Other episodes leave ℓ
/// unchanged. The saved state contains it.
#[test]
fn prediction_test_sums_the_excess_loss_of_followed_episodes() {
    const LEN: u32 = 64;
    let mut draws = Draws(Pcg64::seed_from_u64(12));
    let limits = [1.0, 2.0, 4.0, 8.0, 8.0].map(|divisor| 2.0 * NOISE.powi(2) * 1e5_f64.ln() / divisor);
    let level_of = |agent: &Guarded| {
        let mut saved = [0; Guarded::SAVED_LEN];
        agent.save(&mut saved).unwrap();
        f64::from(f32::from_le_bytes(*saved[Agent::<D>::SAVED_LEN..].first_chunk().unwrap()))
    };
    let (mut raised, mut floored, mut ignored) = ([0; 5], 0, 0);
    for case in 0..40 {
        let truth = draws.theta();
        let (mut agent, mut own) = (guarded(LEN), OwnData::default());
        for episode in 1..=400 {
            let ellipsoid = own.ellipsoid();
            let local = ellipsoid.centre;
            let target = if case % 2 == 0 { truth + draws.theta() } else { -truth };
            let lie = towards(&target, &ellipsoid, 1.1 * draws.uniform().abs());
            let (theta, packed, beta, _) = model_of(&lie, &(Matrix::identity() * 300.0), 1.0);
            agent.begin(&Model::new(episode, LEN, beta, Rewards::Unbounded, &theta, &packed)).unwrap();
            let (follows, fused, before) = (agent.follows_controller(), wide(agent.theta()), level_of(&agent));
            let (mut level, alarms) = (before, usize::from(agent.alarms()));
            let limit = limits[alarms.min(4)];
            for _ in 0..LEN {
                let x = draws.action();
                let reward = (wide(&x).dot(&truth) + 0.5 * draws.normal()) as f32;
                agent.record(&x, reward).unwrap();
                own.gram += wide(&x) * wide(&x).transpose();
                own.sum += wide(&x) * f64::from(reward);
                let loss = |theta: &Vector| (f64::from(reward) - wide(&x).dot(theta)).powi(2);
                level += if follows { loss(&fused) - loss(&local) } else { 0.0 };
            }
            agent.finish();
            let (found, alarm) = (level_of(&agent), usize::from(agent.alarms()) > alarms);
            ignored += u32::from(!follows);
            floored += u32::from(level < 0.0);
            raised[alarms.min(4)] += u32::from(alarm);
            assert!((level - limit).abs() < 5e-3 || alarm == (level > limit), "case {case}: {level}");
            let expected = if alarm { 0.0 } else { level.max(0.0) };
            assert!((found - expected).abs() < 5e-3, "case {case}, episode {episode}: {found} is not {expected}");
        }
    }
    assert!(
        raised.iter().all(|count| *count > 5) && floored > 100 && ignored > 100,
        "{raised:?} alarms, {floored} floors, {ignored} not followed"
    );
}

/// A lie that is replaced by the truth before the end of the episode is still judged, and so is one whose episode is cut short by
/// another run.
#[cfg(feature = "wire")]
#[test]
fn controller_cannot_withdraw_a_lie() {
    use fedbandit_core::Learner;
    for cut_short in [false, true] {
        let mut draws = Draws(Pcg64::seed_from_u64(10));
        let truth = draws.theta();
        let (mut agent, mut own) = (guarded(64), OwnData::default());
        for _ in 0..30 {
            let lie = towards(&-truth, &own.ellipsoid(), 0.9);
            for (centre, steps) in [(&lie, 63), (&truth, 1)] {
                let (theta, packed, beta, _) = model_of(centre, &(Matrix::identity() * 1e5), 1.0);
                agent.begin(&Model::new(agent.episode(), 64, beta, Rewards::Unbounded, &theta, &packed)).unwrap();
                for _ in 0..steps {
                    let x = draws.action();
                    let reward = (wide(&x).dot(&truth) + 0.5 * draws.normal()) as f32;
                    agent.record(&x, reward).unwrap();
                    own.gram += wide(&x) * wide(&x).transpose();
                    own.sum += wide(&x) * f64::from(reward);
                }
            }
            match cut_short {
                true => Learner::restart(&mut agent),
                false => _ = agent.finish(),
            }
            // Whatever was sent, the next episode starts with the own data.
            let (local, x) = (own.ellipsoid(), draws.action());
            assert!((f64::from(agent.score(&x).unwrap()) - local.score(&wide(&x))).abs() < 2e-3);
            assert!(!agent.follows_controller());
        }
        assert!(agent.alarms() > 0, "cut short: {cut_short}");
    }
}

/// Without models the agent acts on its own data: before the first one, and after an alarm.
#[test]
fn agent_without_controller_acts_on_own_data() {
    let mut draws = Draws(Pcg64::seed_from_u64(11));
    let truth = draws.theta();
    let (mut agent, mut own) = (guarded(64), OwnData::default());
    let assert_own = |agent: &Guarded, own: &OwnData, draws: &mut Draws| {
        let local = own.ellipsoid();
        for _ in 0..8 {
            let x = draws.action();
            let error = f64::from(agent.score(&x).unwrap()) - local.score(&wide(&x));
            assert!(error.abs() < 2e-3, "{error}");
        }
    };
    for _ in 0..4 {
        run_episode(&mut agent, &mut own, &truth, &mut draws);
        assert_own(&agent, &own, &mut draws);
    }
    let mut episodes = 0;
    while agent.alarms() == 0 {
        let lie = towards(&-truth, &own.ellipsoid(), 0.9);
        let (theta, packed, beta, _) = model_of(&lie, &(Matrix::identity() * 1e5), 1.0);
        agent.begin(&Model::new(agent.episode(), 64, beta, Rewards::Unbounded, &theta, &packed)).unwrap();
        run_episode(&mut agent, &mut own, &truth, &mut draws);
        episodes += 1;
        assert!(episodes < 1_000, "no alarm");
    }
    // No further model arrives.
    assert_own(&agent, &own, &mut draws);
    run_episode(&mut agent, &mut own, &truth, &mut draws);
    assert_own(&agent, &own, &mut draws);
    agent.forget();
    assert_eq!(agent.alarms(), 0);
    assert_own(&agent, &OwnData::default(), &mut draws);
    // A true model is no excuse to go on with it for ever.
    let (mut agent, mut own) = (guarded(64), OwnData::default());
    assert_own(&agent, &own, &mut draws);
    let (theta, packed, beta, _) = model_of(&truth, &(Matrix::identity() * 1e4), 1.0);
    agent.begin(&Model::new(1, 64, beta, Rewards::Unbounded, &theta, &packed)).unwrap();
    assert!(agent.follows_controller());
    run_episode(&mut agent, &mut own, &truth, &mut draws);
    assert_own(&agent, &own, &mut draws);
    run_episode(&mut agent, &mut own, &truth, &mut draws);
    assert_own(&agent, &own, &mut draws);
}

/// Own data with a half-life, by their definition: every step with the number of steps recorded since the end of its episode.
struct DecayingData {
    half_life: f64,
    steps: Vec<(Vector, f64, u32)>,
}

impl DecayingData {
    /// Runs an episode of `count` steps with random actions, and rewards of a parameter.
    fn run_episode(&mut self, agent: &mut Guarded, count: u32, theta: &Vector, draws: &mut Draws) {
        self.steps.iter_mut().for_each(|(.., age)| *age += count);
        for _ in 0..count {
            let x = draws.action();
            let reward = (wide(&x).dot(theta) + 0.5 * draws.normal()) as f32;
            agent.record(&x, reward).unwrap();
            self.steps.push((wide(&x), f64::from(reward), 0));
        }
        agent.finish();
    }

    fn own(&self) -> OwnData {
        let mut own = OwnData::default();
        for (x, reward, age) in &self.steps {
            let weight = (-f64::from(*age) / self.half_life).exp2();
            own.gram += x * x.transpose() * weight;
            own.sum += x * (reward * weight);
        }
        own
    }
}

/// With a half-life, an agent scores by the ellipsoid of its weighted steps, also after it was restored. Episodes without steps
/// change nothing.
#[test]
fn half_life_weights_own_data_as_defined() {
    let mut draws = Draws(Pcg64::seed_from_u64(12));
    for (case, half_life) in [1, 3, 20, 64, 500, 1_000_000].into_iter().cycle().take(120).enumerate() {
        let truth = draws.theta();
        let guard = Guard { half_life: NonZeroU32::new(half_life), ..GUARD };
        let mut agent = Guarded::new(&Prior::new(1.0, 1.0, 64, Rewards::Unbounded), guard).unwrap();
        let mut data = DecayingData { half_life: half_life.into(), steps: Vec::new() };
        for episode in 0..25 {
            let count = draws.0.next_u32() % 65;
            data.run_episode(&mut agent, count, &truth, &mut draws);
            if episode % 5 == 4 {
                let mut saved = [0; Guarded::SAVED_LEN];
                agent.save(&mut saved).unwrap();
                let restored = Guarded::restore(&saved, guard).unwrap();
                assert_eq!(restored, agent);
                agent = restored;
            }
            let local = data.own().ellipsoid();
            for _ in 0..4 {
                let x = draws.action();
                let (score, expected) = (f64::from(agent.score(&x).unwrap()), local.score(&wide(&x)));
                assert!((score - expected).abs() < 2e-3, "case {case}, H = {half_life}: {score}, expected {expected}");
            }
        }
    }
}

/// After θ* was replaced by −θ*, an agent with a half-life learns the new one. Without, the old data outweigh the new ones.
#[test]
fn half_life_follows_a_changed_parameter() {
    let error_after_change = |half_life| {
        let mut draws = Draws(Pcg64::seed_from_u64(13));
        let truth = Vector::from([0.6, -0.8, 0.0, 0.0]);
        let guard = Guard { half_life: NonZeroU32::new(half_life), ..GUARD };
        let mut agent = Guarded::new(&Prior::new(1.0, 1.0, 64, Rewards::Unbounded), guard).unwrap();
        let mut own = OwnData::default();
        (0..64).for_each(|_| run_episode(&mut agent, &mut own, &truth, &mut draws));
        (0..32).for_each(|_| run_episode(&mut agent, &mut own, &-truth, &mut draws));
        let (forwards, backwards) = (Vector::from([0.6, -0.8, 0.0, 0.0]), Vector::from([-0.6, 0.8, 0.0, 0.0]));
        let score = |x: &Vector| f64::from(agent.score(&<[f32; D]>::from(x.map(|entry| entry as f32))).unwrap());
        // The width is the same in both directions.
        (score(&forwards) - score(&backwards)) / 2.0 + 1.0
    };
    let (with, without) = (error_after_change(256), error_after_change(0));
    assert!(with.abs() < 0.3 && without > 1.0, "{with} with a half-life, {without} without");
}

/// Weights so small that they round to 0, and the longest episodes, leave finite scores.
#[test]
fn shortest_half_life_gives_finite_scores() {
    let mut draws = Draws(Pcg64::seed_from_u64(14));
    let guard = Guard { half_life: NonZeroU32::new(1), ..GUARD };
    let mut agent = Guarded::new(&Prior::new(1.0, 1.0, 65_536, Rewards::Unbounded), guard).unwrap();
    for count in [65_536, 1, 0, 200, 100, 1] {
        for _ in 0..count {
            agent.record(&draws.action(), 1e12 * draws.uniform() as f32).unwrap();
        }
        agent.finish();
        assert!(agent.score(&draws.action()).unwrap().is_finite());
    }
}

/// What a guard relies on does not come from a message: long episodes and another reward range are rejected.
#[test]
fn model_cannot_change_the_constants_of_the_guard() {
    let guard = Guard { max_episode_len: 64, ..GUARD };
    let mut agent = Guarded::new(&Prior::new(1.0, 1.0, 8, Rewards::Unbounded), guard).unwrap();
    let (theta, packed) = ([0.1; D], [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
    let mut begin = |length, rewards| agent.begin(&Model::new(1, length, 1.0, rewards, &theta, &packed));
    assert_eq!(begin(65, Rewards::Unbounded), Err(ModelError::EpisodeLen(65)));
    assert_eq!(begin(64, Rewards::Clipped), Err(ModelError::Rewards));
    assert_eq!(begin(64, Rewards::Unbounded), Ok(()));
}

#[test]
fn invalid_models_change_nothing() {
    let mut draws = Draws(Pcg64::seed_from_u64(5));
    let truth = draws.theta();
    let (mut agent, mut own) = (guarded(8), OwnData::default());
    (0..3).for_each(|_| run_episode(&mut agent, &mut own, &truth, &mut draws));
    let (theta, packed) = ([0.1; D], [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
    let before = agent.clone();
    let not_definite = [-1.0; T];
    for (theta, packed, beta, error) in [
        ([f32::NAN; D], packed, 1.0, ModelError::OutOfRange),
        (theta, [f32::INFINITY; T], 1.0, ModelError::OutOfRange),
        (theta, not_definite, 1.0, ModelError::NotPositiveDefinite { row: 0 }),
        (theta, packed, -1.0, ModelError::OutOfRange),
    ] {
        assert_eq!(agent.begin(&Model::new(9, 8, beta, Rewards::Unbounded, &theta, &packed)), Err(error));
        assert_eq!(agent, before);
    }
    for (noise, theta_norm) in [(0.0, 1.0), (f32::NAN, 1.0), (1.0, -1.0), (1.0, f32::INFINITY)] {
        let prior = Prior::new(1.0, 1.0, 8, Rewards::Unbounded);
        assert!(Guarded::new(&prior, Guard { noise, theta_norm, ..GUARD }).is_err());
    }
}

/// A guarded agent continues bit for bit after a reset. Damaged bytes are rejected.
#[test]
fn saved_agent_continues_bit_for_bit() {
    let mut draws = Draws(Pcg64::seed_from_u64(9));
    let truth = draws.theta();
    let (mut agent, mut own) = (guarded(16), OwnData::default());
    for episode in 1..=20 {
        let (theta, packed, beta, _) = model_of(&-truth, &(Matrix::identity() * f64::from(episode)), 1.0);
        agent.begin(&Model::new(agent.episode(), 16, beta, Rewards::Unbounded, &theta, &packed)).unwrap();
        run_episode(&mut agent, &mut own, &truth, &mut draws);
        agent.record(&draws.action(), 0.5).unwrap();
        let mut saved = [0; Guarded::SAVED_LEN];
        agent.save(&mut saved).unwrap();
        let restored = Guarded::restore(&saved, GUARD).unwrap();
        assert_eq!(restored, agent);
        agent = restored;
        agent.finish();
    }
    let mut saved = [0; Guarded::SAVED_LEN];
    agent.save(&mut saved).unwrap();
    for byte in 0..saved.len() {
        let mut damaged = saved;
        damaged[byte] ^= 1;
        assert!(Guarded::restore(&damaged, GUARD).is_err(), "byte {byte}");
    }
    assert!(agent.save(&mut saved[1..]).is_err() && Guarded::restore(&saved[1..], GUARD).is_err());
    assert!(Guarded::restore(&saved, Guard { noise: 0.0, ..GUARD }).is_err());
}

/// Hostile numbers, within the limits of a model and of rewards, never give a score that is not a number.
#[test]
fn extreme_models_and_rewards_give_finite_scores() {
    let mut draws = Draws(Pcg64::seed_from_u64(6));
    for case in 0..2_000 {
        let mut agent = guarded(4);
        for episode in 1..=6 {
            let magnitude = |draws: &mut Draws| 10.0_f32.powf(18.0 * draws.uniform() as f32);
            let theta: [f32; D] = std::array::from_fn(|_| draws.uniform() as f32 * magnitude(&mut draws));
            let mut packed = [0.0; T];
            for (entry, place) in packed.iter_mut().zip(0..) {
                *entry = if [0, 4, 7, 9].contains(&place) { magnitude(&mut draws) } else { 0.0 };
            }
            let beta = magnitude(&mut draws);
            let _ = agent.begin(&Model::new(episode, 4, beta, Rewards::Unbounded, &theta, &packed));
            for _ in 0..4 {
                let x = draws.action();
                let reward = draws.uniform() as f32 * 10.0_f32.powf(28.0 * draws.uniform().abs() as f32);
                agent.record(&x, if case % 2 == 0 { reward } else { 0.5 }).unwrap();
                assert!(agent.score(&x).unwrap().is_finite(), "case {case}");
            }
            agent.finish();
        }
    }
}

/// A device that repeats one action for millions of steps has a singular V, which f32 cannot factorise with λ = 0.1.
#[test]
fn own_data_stay_usable_after_millions_of_equal_steps() {
    let mut agent = guarded(65_536);
    let x = [0.6, 0.3, 0.5, 0.4];
    for episode in 1..=200 {
        for _ in 0..64 {
            agent.record(&x, 0.5).unwrap();
        }
        agent.finish();
        let packed = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0];
        agent.begin(&Model::new(episode + 1, 65_536, 0.5, Rewards::Unbounded, &[0.1; D], &packed)).unwrap();
        assert!(agent.score(&x).unwrap().is_finite());
    }
}

/// Scouts act as an agent with the own data alone, in the announced share of steps.
#[test]
fn scouts_use_own_data_in_their_share_of_steps() {
    let mut draws = Draws(Pcg64::seed_from_u64(7));
    let truth = draws.theta();
    let (mut agent, mut own) = (guarded(64), OwnData::default());
    (0..20).for_each(|_| run_episode(&mut agent, &mut own, &truth, &mut draws));
    // A narrow model within the gate that prefers other actions.
    let local = own.ellipsoid();
    let lie = towards(&-truth, &local, 0.9);
    let (theta, packed, beta, _) = model_of(&lie, &(Matrix::identity() * 1e4), 1.0);
    agent.begin(&Model::new(40, 64, beta, Rewards::Unbounded, &theta, &packed)).unwrap();
    assert!(agent.follows_controller());
    let (mut rng, mut differ, mut scouted) = (Pcg64::seed_from_u64(8), 0, 0);
    for _ in 0..6_000 {
        let actions: [[f32; D]; 6] = std::array::from_fn(|_| draws.action());
        let best = |score: &dyn Fn(&[f32; D]) -> f64| {
            (0..6).max_by(|a, b| score(&actions[*a]).total_cmp(&score(&actions[*b]))).unwrap()
        };
        let own_choice = best(&|x| local.score(&wide(x)));
        let followed = agent.select(&actions).unwrap().index;
        let choice = agent.select_or_scout(&actions, 0.25, &mut rng).unwrap().index;
        if own_choice != followed {
            differ += 1;
            scouted += u32::from(choice == own_choice);
            assert!(choice == own_choice || choice == followed);
        }
    }
    // A binomial deviation is below 0.5·√n.
    let expected = 0.25 * f64::from(differ);
    assert!(
        differ > 400 && (f64::from(scouted) - expected).abs() < 3.0 * f64::from(differ).sqrt(),
        "{scouted} of {differ}"
    );
}

/// Runs the instance of Theorem 3 of `docs/theory.md`: arms (1, 0) and (0, 1), θ* = (0, 1). Its controller agrees with the own estimate
/// about the first arm, and puts the second 0.05 below it and 0, or as far as the gate allows if `adapts`. Returns how often
/// each arm is chosen, and the agent.
fn mislead(adapts: bool, share: f32, episodes: u32) -> ([u32; 2], GuardedAgent<2, 3>) {
    const LEN: u32 = 32;
    let arms = [[1.0, 0.0], [0.0, 1.0_f32]];
    let prior = Prior::new(1.0, 1.0, LEN, Rewards::Unbounded);
    let mut agent = GuardedAgent::<2, 3>::new(&prior, GUARD).unwrap();
    let (mut draws, mut rng) = (Draws(Pcg64::seed_from_u64(14)), Pcg64::seed_from_u64(15));
    let (mut counts, mut chosen, mut sums) = ([LAMBDA; 2], [0; 2], [0.0; 2]);
    for episode in 1..=episodes {
        let own = [sums[0] / counts[0], sums[1] / counts[1]];
        let reach = if adapts { own[1] - (0.95 * gate(2.0) / counts[1]).sqrt() } else { f64::MIN };
        let theta = [own[0] as f32, (own[0].min(0.0) - 0.05).max(reach) as f32];
        agent.begin(&Model::new(episode, LEN, 1.0, Rewards::Unbounded, &theta, &[1e6, 0.0, 1e6])).unwrap();
        for _ in 0..LEN {
            let index = agent.select_or_scout(&arms, share, &mut rng).unwrap().index;
            chosen[index] += 1;
            agent.record(&arms[index], (index as f64 + NOISE * draws.normal()) as f32).unwrap();
        }
        // The controller knows what the device sends.
        let summary = agent.finish();
        let gram: Vec<f32> = summary.gram().collect();
        counts = [counts[0] + f64::from(gram[0]), counts[1] + f64::from(gram[2])];
        sums = [0, 1].map(|arm| sums[arm] + f64::from(summary.feature_sum()[arm]));
    }
    (chosen, agent)
}

/// Theorem 3: without scouts a controller keeps the agent on the worse arm, and no test notices. With scouts the agent finds the
/// better arm. The gate then rejects the same controller, and the test finds one that stays within the gate.
#[test]
fn misled_agent_needs_scouts_to_find_the_better_arm() {
    for adapts in [false, true] {
        let (chosen, agent) = mislead(adapts, 0.0, 512);
        assert_eq!((chosen, agent.alarms()), ([16_384, 0], 0));
        let (level, threshold) = agent.test_state();
        assert!(level < 1e-3 * threshold, "{level}");
        let (chosen, agent) = mislead(adapts, 1.0 / 16.0, 512);
        assert!(chosen[1] > 15_000, "{chosen:?}");
        assert_eq!(agent.alarms() > 0, adapts);
    }
}

/// An agent without guard and one with it cost the same within an episode: they hold the same state.
#[test]
fn guard_adds_the_announced_memory() {
    let guarded = size_of::<GuardedAgent<8, { packed_len(8) }>>() - size_of::<Agent<8>>();
    assert_eq!(guarded, 4 * (36 + 8) + 28);
    assert!(guarded <= 220);
    assert!(size_of::<GuardedAgent<16, { packed_len(16) }>>() - size_of::<Agent<16>>() <= 700);
    assert!(size_of::<GuardedAgent<32, { packed_len(32) }>>() - size_of::<Agent<32>>() <= 2_400);
}
