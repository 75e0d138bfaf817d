//! The guarded agent against the definitions of its formulas in f64, and its guarantees by simulation.

use std::collections::BTreeMap;

use fedbandit_core::{Agent, Guard, GuardedAgent, Model, ModelError, Prior, Rewards, packed_len};
use nalgebra::{SMatrix, SVector};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

const D: usize = 4;
const T: usize = packed_len(D);
const GUARD: Guard = Guard { noise: 0.5, theta_norm: 1.0, max_episode_len: 65_536 };
const LAMBDA: f64 = 0.1;

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
/// exceeds 1.
#[test]
fn model_is_fused_as_defined() {
    let mut draws = Draws(Pcg64::seed_from_u64(1));
    let mut chosen: BTreeMap<String, u32> = BTreeMap::new();
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
        if most > 0.9999 {
            candidates = if most > 1.0001 { vec![] } else { candidates };
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
            panic!("case {case}: κ up to {most}, errors by weight {errors:?}");
        };
        assert_eq!(agent.follows_controller(), *weight > 0.0, "case {case}");
        *chosen.entry(format!("{weight}")).or_default() += 1;
    }
    assert!(chosen.len() == WEIGHTS.len() && chosen.values().all(|count| *count > 20), "{chosen:?}");
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
#[test]
fn true_model_seldom_raises_an_alarm() {
    let mut draws = Draws(Pcg64::seed_from_u64(3));
    let mut alarms = 0;
    for _ in 0..500 {
        let truth = draws.theta();
        let (mut agent, mut own) = (guarded(16), OwnData::default());
        for episode in 1..=40 {
            let (theta, packed, beta, _) = model_of(&truth, &(Matrix::identity() * 1e4), 1.0);
            agent.begin(&Model::new(episode, 16, beta, Rewards::Unbounded, &theta, &packed)).unwrap();
            run_episode(&mut agent, &mut own, &truth, &mut draws);
        }
        alarms += u32::from(agent.alarms() > 0);
    }
    assert!(alarms < 6, "{alarms} alarms");
}

/// A controller whose model contradicts the rewards is ignored, for longer and longer.
#[test]
fn false_model_raises_alarms_and_is_ignored() {
    let mut draws = Draws(Pcg64::seed_from_u64(4));
    let truth = draws.theta();
    let (mut agent, mut own) = (guarded(64), OwnData::default());
    let mut followed = Vec::new();
    for episode in 1..=300 {
        // Just consistent with the own data, so that only the test can find it.
        let local = own.ellipsoid();
        let away = -truth - local.centre;
        let lie = local.centre + away * (0.9 / local.distance(&-truth).max(0.9));
        let (theta, packed, beta, _) = model_of(&lie, &(Matrix::identity() * 1e5), 1.0);
        agent.begin(&Model::new(episode, 64, beta, Rewards::Unbounded, &theta, &packed)).unwrap();
        followed.push(agent.follows_controller());
        run_episode(&mut agent, &mut own, &truth, &mut draws);
    }
    assert!(agent.alarms() >= 3, "{} alarms", agent.alarms());
    let ignored: Vec<usize> = followed.chunk_by(|a, b| a == b).filter(|run| !run[0]).map(<[bool]>::len).collect();
    assert_eq!(ignored[..3], [8, 16, 32], "episodes of 64 steps in which models are ignored");
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
            let local = own.ellipsoid();
            let lie = local.centre + (-truth - local.centre) * (0.9 / local.distance(&-truth).max(0.9));
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
        let local = own.ellipsoid();
        let lie = local.centre + (-truth - local.centre) * (0.9 / local.distance(&-truth));
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
    // A narrow model within the own ellipsoid that prefers other actions.
    let local = own.ellipsoid();
    let lie = local.centre + (-truth - local.centre) * (0.8 / local.distance(&-truth));
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

/// An agent without guard and one with it cost the same within an episode: they hold the same state.
#[test]
fn guard_adds_the_announced_memory() {
    let guarded = size_of::<GuardedAgent<8, { packed_len(8) }>>() - size_of::<Agent<8>>();
    assert_eq!(guarded, 4 * (36 + 8) + 24);
    assert!(guarded <= 220);
    assert!(size_of::<GuardedAgent<16, { packed_len(16) }>>() - size_of::<Agent<16>>() <= 700);
    assert!(size_of::<GuardedAgent<32, { packed_len(32) }>>() - size_of::<Agent<32>>() <= 2_400);
}
