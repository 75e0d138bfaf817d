//! Simulated environments: decision sets and rewards.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use fedbandit_core::Action;
use nalgebra::{DMatrix, DVector};
use rand_distr::{Distribution, Exp1, StandardNormal};
use rand_pcg::Pcg64;

use super::config::SimulationConfig;
use super::replay::{Log, Logs};
use crate::config::{ConfigError, RewardKind, RunConfig};
use crate::math::rng::{Purpose, below, generator, uniform};
use crate::math::symmetric;
use crate::names::{UnknownName, serde_as_text};

/// Distribution of decision sets, and motion of θ*, by name. θ* is constant unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Environment {
    /// Actions uniform in the unit ball, drawn anew for each agent and step.
    #[default]
    Ball,
    /// As `Ball`, with the second half of the coordinates scaled by 0.2: directions that are rarely explored.
    Skew,
    /// The d unit vectors at each step: the multi-armed bandit.
    FixedArms,
    /// As `Ball`, with one set per step for all agents (σ = 0).
    Shared,
    /// As `Ball`, with coordinates scaled by 0.2 + 0.8·cos²(π(2t/T + j/d)): the distribution P_t of decision sets changes with
    /// t, and θ* is constant.
    Drifting,
    /// As `Ball`, with a θ*_t that turns on the sphere of radius S by the same angle at each step, 90° in 4,096
    /// steps. After each quarter turn it continues along a new great circle, drawn uniformly. The distribution of decision sets
    /// is constant. Regret is relative to the best action under θ*_t.
    DriftingTheta,
    /// As `Ball`, with coordinates scaled by 0.2 + 0.8·cos²(π(gi + j/d)) for agent i, where g = (√5 − 1)/2: agents explore
    /// different directions.
    Unequal,
    /// Two populations: as `Ball`, with coordinates scaled by 0.1. Agents with an even number have the second half scaled (j ≥ d/2,
    /// counted from 0), those with an odd number the first half (j < d/2). For odd d, the first half is the larger one.
    Mixture,
    /// Steps of a log, drawn uniformly. If the log has devices, agent i draws from those of device i modulo their number.
    Replay(PathBuf),
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ball => f.pad("ball"),
            Self::Skew => f.pad("skew"),
            Self::FixedArms => f.pad("fixed-arms"),
            Self::Shared => f.pad("shared"),
            Self::Drifting => f.pad("drifting"),
            Self::DriftingTheta => f.pad("drifting-theta"),
            Self::Unequal => f.pad("unequal"),
            Self::Mixture => f.pad("mixture"),
            Self::Replay(file) => write!(f, "replay:{}", file.display()),
        }
    }
}

serde_as_text!(Environment);

impl FromStr for Environment {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let plain = [
            Self::Ball,
            Self::Skew,
            Self::FixedArms,
            Self::Shared,
            Self::Drifting,
            Self::DriftingTheta,
            Self::Unequal,
            Self::Mixture,
        ];
        let known = ["ball", "skew", "fixed-arms", "shared", "drifting", "drifting-theta", "unequal", "mixture"];
        if let Some(file) = name.strip_prefix("replay:").filter(|file| !file.is_empty()) {
            return Ok(Self::Replay(file.into()));
        }
        let at = known.iter().position(|known| *known == name);
        let unknown = || UnknownName::new("environment", name, known.into_iter().chain(["replay:FILE"]));
        at.map(|at| plain[at].clone()).ok_or_else(unknown)
    }
}

/// Number of steps in which θ* turns by 90° in [`Environment::DriftingTheta`].
const QUARTER_TURN: u32 = 4096;

impl Environment {
    /// Checks that the environment exists with the dimension and the rewards of a run.
    ///
    /// # Errors
    /// d = 1, where θ* cannot turn and populations cannot differ, or simulated rewards of an unknown noise level.
    pub(super) fn check(&self, run: &RunConfig) -> Result<(), ConfigError> {
        if matches!(self, Self::DriftingTheta | Self::Mixture) && run.dim < 2 {
            return Err(ConfigError::new("dim", format!("{self} needs at least 2 dimensions, got {}", run.dim)));
        }
        if let (RewardKind::Auto(_), false) = (run.rewards, matches!(self, Self::Replay(_))) {
            let reason = format!(
                "{self} needs a known noise level, got {}; use gaussian:R or bounded. What the rule of a simulation knows of it is \
                 assumed-rewards",
                run.rewards
            );
            return Err(ConfigError::new("rewards", reason));
        }
        Ok(())
    }
}

/// Environment of one seed: its θ*, and the distribution of decision sets and rewards.
#[derive(Clone, Debug)]
pub(crate) struct World {
    /// θ*_t at t = 0, [`QUARTER_TURN`], …, as far as the run goes: each orthogonal to the one before. A single vector if θ* is
    /// constant.
    corners: Vec<DVector<f64>>,
    environment: Environment,
    rewards: RewardKind,
    arms: usize,
    horizon: u32,
    seed: u64,
    log: Option<Arc<Log>>,
}

/// Decision set of a step, with the expected reward of each action.
#[derive(Clone, Debug)]
pub(crate) struct Context<const D: usize> {
    pub(crate) arms: Vec<Action<D>>,
    /// Expected reward of each action; for a log, the logged reward.
    pub(crate) expected_rewards: Vec<f64>,
}

impl<const D: usize> Context<D> {
    pub(crate) const fn new() -> Self {
        Self { arms: Vec::new(), expected_rewards: Vec::new() }
    }

    /// Returns the expected reward of the best action and that of a uniformly random one.
    pub(crate) fn best_and_random(&self) -> (f64, f64) {
        let best = self.expected_rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (best, self.expected_rewards.iter().sum::<f64>() / self.expected_rewards.len() as f64)
    }
}

impl World {
    /// Creates the world of a seed, with θ* uniform on the sphere of radius S; for a log, θ* is the least-squares fit.
    ///
    /// # Errors
    /// The log to replay is not in `logs`, or the environment does not exist in this dimension.
    pub(crate) fn new(config: &SimulationConfig, logs: &Logs, seed: u64) -> Result<Self, ConfigError> {
        let log = match &config.environment {
            Environment::Replay(file) => {
                let missing = || ConfigError::new("environment", format!("log {} is not loaded", file.display()));
                Some(logs.get(file).ok_or_else(missing)?)
            }
            _ => None,
        };
        if let Some(log) = log.filter(|log| log.dimension() != config.run.dim) {
            let reason = format!("log has {} columns x_j, configured {}", log.dimension(), config.run.dim);
            return Err(ConfigError::new("dim", reason));
        }
        config.environment.check(&config.run)?;
        let mut rng = generator(seed, Purpose::World, 0);
        let mut normal = || DVector::<f64>::from_fn(config.run.dim, |_, _| StandardNormal.sample(&mut rng));
        let theta = normal().normalize() * config.run.theta_norm;
        let mut corners = vec![log.map_or(theta, |log| least_squares(log))];
        if config.environment == Environment::DriftingTheta {
            for turn in 0..config.run.steps.div_ceil(QUARTER_TURN) as usize {
                let (from, mut to) = (&corners[turn], normal());
                to -= from * (from.dot(&to) / from.norm_squared());
                corners.push(to.normalize() * config.run.theta_norm);
            }
        }
        Ok(Self {
            corners,
            environment: config.environment.clone(),
            rewards: config.run.rewards,
            arms: config.arms,
            horizon: config.run.steps,
            seed,
            log: log.cloned(),
        })
    }

    /// Returns true if rewards follow θ*, which is then not a fit.
    pub(crate) fn has_true_theta(&self) -> bool {
        self.log.is_none()
    }

    /// Returns d.
    pub(crate) fn dimension(&self) -> usize {
        self.corners[0].len()
    }

    /// Returns θ*_t. After the last step of the run it continues along its last great circle.
    pub(crate) fn theta(&self, step: u32) -> Cow<'_, [f64]> {
        let turns = self.corners.len() - 1;
        let turn = ((step / QUARTER_TURN) as usize).min(turns.saturating_sub(1));
        match &self.corners[turn..] {
            [from, to, ..] => {
                let turned = f64::from(step) / f64::from(QUARTER_TURN) - turn as f64;
                let (sin, cos) = (std::f64::consts::FRAC_PI_2 * turned).sin_cos();
                from.iter().zip(to).map(|(from, to)| cos * from + sin * to).collect()
            }
            [constant] => constant.as_slice().into(),
            [] => unreachable!("a world has at least one corner"),
        }
    }

    /// Draws an agent's decision set of step t, counted from 0.
    pub(crate) fn draw<const D: usize>(&self, agent: u64, step: u32, rng: &mut Pcg64, context: &mut Context<D>) {
        context.arms.clear();
        context.expected_rewards.clear();
        let theta = &*self.theta(step);
        match &self.environment {
            Environment::Ball | Environment::DriftingTheta => self.draw_ball(context, theta, rng, |_| 1.0),
            Environment::Skew => self.draw_ball(context, theta, rng, |j| if j < D.div_ceil(2) { 1.0 } else { 0.2 }),
            Environment::Shared => {
                self.draw_ball(context, theta, &mut generator(self.seed, Purpose::Step, step.into()), |_| 1.0)
            }
            Environment::Drifting => {
                let scales = rotated_scales::<D>(2.0 * f64::from(step) / f64::from(self.horizon));
                self.draw_ball(context, theta, rng, |j| scales[j]);
            }
            Environment::Unequal => {
                let scales = rotated_scales::<D>((agent as f64 * GOLDEN_RATIO).fract());
                self.draw_ball(context, theta, rng, |j| scales[j]);
            }
            Environment::Mixture => {
                let is_scaled = |j| (j >= D.div_ceil(2)) == agent.is_multiple_of(2);
                self.draw_ball(context, theta, rng, |j| if is_scaled(j) { 0.1 } else { 1.0 });
            }
            Environment::FixedArms => {
                context.arms.extend((0..D).map(|j| Action::from_fn(|i, _| if i == j { 1.0 } else { 0.0 })));
                context.expected_rewards.extend(theta);
            }
            Environment::Replay(_) => {
                let log = self.log.as_ref().expect("a replay world has a log");
                let sets = log.sets_of(agent);
                for (x, reward) in log.set(sets[below(sets.len(), rng)]) {
                    context.arms.push(Action::from_fn(|j, _| x[j]));
                    context.expected_rewards.push(reward.into());
                }
            }
        }
    }

    /// Draws points uniform in the ball and scales their coordinates.
    ///
    /// With d normal numbers g and an exponential one E, g/√(‖g‖² + 2E) is uniform in the ball (Barthe, Guédon, Mendelson
    /// and Naor 2005).
    fn draw_ball<const D: usize>(
        &self,
        context: &mut Context<D>,
        theta: &[f64],
        rng: &mut Pcg64,
        scale: impl Fn(usize) -> f32,
    ) {
        for _ in 0..self.arms {
            let mut x = [0.0_f32; D];
            let mut squares = 0.0;
            for entry in &mut x {
                *entry = StandardNormal.sample(rng);
                squares += *entry * *entry;
            }
            let exponential: f32 = Exp1.sample(rng);
            let shrink = 1.0 / (squares + 2.0 * exponential).sqrt();
            for (j, entry) in x.iter_mut().enumerate() {
                *entry *= shrink * scale(j);
            }
            context.expected_rewards.push(x.iter().zip(theta).map(|(x, theta)| f64::from(*x) * theta).sum());
            context.arms.push(Action::from(x));
        }
    }

    /// Draws the reward of an action with expected reward `mean`. With `faked`, the parameter is −θ* (Proposition 1).
    pub(crate) fn reward(&self, mean: f64, faked: bool, rng: &mut Pcg64) -> f32 {
        let mean = if faked { -mean } else { mean };
        (match (self.log.is_some(), self.rewards) {
            (true, _) => mean,
            (false, RewardKind::Gaussian(noise) | RewardKind::Auto(noise)) => {
                let normal: f64 = StandardNormal.sample(rng);
                mean + noise * normal
            }
            (false, RewardKind::Bounded) if 2.0 * uniform(rng) < 1.0 + mean => 1.0,
            (false, RewardKind::Bounded) => -1.0,
        }) as f32
    }
}

/// Returns the scales 0.2 + 0.8·cos²(π(turn + j/d)).
fn rotated_scales<const D: usize>(turn: f64) -> [f32; D] {
    let angle = |j| std::f64::consts::PI * (turn + j as f64 / D as f64);
    std::array::from_fn(|j| (0.2 + 0.8 * angle(j).cos().powi(2)) as f32)
}

/// (√5 − 1)/2, whose multiples are spread evenly modulo 1.
const GOLDEN_RATIO: f64 = 0.618_033_988_749_894_9;

/// Returns θ with the least squared error, and almost 0 along directions that no action has.
fn least_squares(log: &Log) -> DVector<f64> {
    let mut gram = DMatrix::<f64>::zeros(log.dimension(), log.dimension());
    let mut sum = DVector::<f64>::zeros(log.dimension());
    for (x, reward) in (0..log.sets()).flat_map(|set| log.set(set)) {
        let x = DVector::from_iterator(x.len(), x.iter().copied().map(f64::from));
        gram.ger(1.0, &x, &x, 1.0);
        sum.axpy(f64::from(reward), &x, 1.0);
    }
    // Rounding may make an eigenvalue of 0 negative.
    let least = 1e-9 * (1.0 + gram.trace());
    let mut theta = DVector::zeros(log.dimension());
    for (value, vector) in symmetric::eigenpairs(&gram) {
        theta.axpy(vector.dot(&sum) / value.max(least), &vector, 1.0);
    }
    theta
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const DRAWS: usize = 20_000;
    const AGENT: u64 = 2;

    fn world(environment: Environment, arms: usize) -> World {
        let run = RunConfig { dim: 4, steps: 100, rewards: RewardKind::Bounded, ..RunConfig::default() };
        let config = SimulationConfig { run, arms, environment, ..SimulationConfig::default() };
        World::new(&config, &Logs::new(), 9).unwrap()
    }

    /// Draws 20,000 decision sets of one action each.
    fn draws(environment: Environment, step: u32) -> Vec<Action<4>> {
        let world = world(environment, 1);
        let mut rng = generator(9, Purpose::Agent, 0);
        let mut context = Context::new();
        let mut one = || {
            world.draw(AGENT, step, &mut rng, &mut context);
            context.arms[0]
        };
        (0..DRAWS).map(|_| one()).collect()
    }

    /// Returns the mean squares by coordinate.
    fn squares(draws: &[Action<4>]) -> [f64; 4] {
        std::array::from_fn(|j| draws.iter().map(|x| f64::from(x[j]).powi(2)).sum::<f64>() / draws.len() as f64)
    }

    /// The share within radius r is r⁴, and x_j² has mean 1/(d + 2) = 1/6. Six deviations of 20,000 draws: 0.0213 for a
    /// share, 0.0092 for a square (whose deviation is below 0.216); false alarm below 2·10⁻⁸ for all eight.
    #[test]
    fn ball_is_uniform() {
        let draws = draws(Environment::Ball, 0);
        for radius in [0.4_f32, 0.6, 0.8, 0.95] {
            let share = draws.iter().filter(|x| x.norm() <= radius).count() as f64 / DRAWS as f64;
            assert!((share - f64::from(radius).powi(4)).abs() < 0.0213, "{radius}: {share}");
        }
        assert!(squares(&draws).iter().all(|square| (square - 1.0 / 6.0).abs() < 0.0092), "{:?}", squares(&draws));
    }

    /// The deviations of `ball_is_uniform` apply after division by the known scales.
    #[test]
    fn scaled_environments_match_their_scales() {
        let scales = |environment, step, expected: [f64; 4]| {
            for (square, scale) in squares(&draws(environment, step)).iter().zip(expected) {
                assert!((square / (scale * scale) - 1.0 / 6.0).abs() < 0.0092, "{square} for {scale}");
            }
        };
        scales(Environment::Skew, 0, [1.0, 1.0, 0.2, 0.2]);
        // 0.2 + 0.8·cos² at angles of π(2t/T + j/4): t = 0 and t = T/4.
        scales(Environment::Drifting, 0, [1.0, 0.6, 0.2, 0.6]);
        scales(Environment::Drifting, 25, [0.2, 0.6, 1.0, 0.6]);
        // Agent 2: angles of π(2·0.618034 + j/4), which are 0.236068, 0.486068, 0.736068 and 0.986068 turns of π.
        scales(Environment::Unequal, 0, [0.634_970, 0.201_532, 0.565_030, 0.998_468]);
        scales(Environment::Mixture, 0, [1.0, 1.0, 0.1, 0.1]);
    }

    /// Draws of `ball` by the same generator, scaled by hand. In five dimensions j ≥ 5/2 means j = 3 and 4.
    #[test]
    fn mixture_scales_one_half_by_the_parity_of_the_agent() {
        fn assert_scales<const D: usize>(agent: u64, scales: [f32; D]) {
            let draw = |environment| {
                let run = RunConfig { dim: D, ..RunConfig::default() };
                let config = SimulationConfig { run, environment, arms: 3, ..SimulationConfig::default() };
                let mut context = Context::<D>::new();
                let world = World::new(&config, &Logs::new(), 9).unwrap();
                world.draw(agent, 0, &mut generator(9, Purpose::Agent, agent), &mut context);
                context.arms
            };
            for (ball, scaled) in draw(Environment::Ball).iter().zip(draw(Environment::Mixture)) {
                for (j, scale) in scales.into_iter().enumerate() {
                    assert!((scaled[j] - scale * ball[j]).abs() <= 1e-6 * ball[j].abs(), "agent {agent}, j = {j}");
                }
            }
        }
        assert_scales(0, [1.0, 0.1]);
        assert_scales(7, [0.1, 1.0]);
        assert_scales(4, [1.0, 1.0, 1.0, 0.1, 0.1]);
        assert_scales(3, [0.1, 0.1, 0.1, 1.0, 1.0]);
    }

    /// By definition: the norm is S, equal times have equal angles, and 4,096 steps are a right angle. Two quarter turns have
    /// different planes.
    #[test]
    fn drifting_theta_turns_at_constant_speed() {
        let run = RunConfig { dim: 4, steps: 10_000, theta_norm: 0.8, ..RunConfig::default() };
        let config =
            SimulationConfig { run, environment: Environment::DriftingTheta, arms: 3, ..SimulationConfig::default() };
        let world = World::new(&config, &Logs::new(), 9).unwrap();
        let theta = |step| DVector::from_column_slice(&world.theta(step));
        let cosine = |a, b| theta(a).dot(&theta(b)) / (theta(a).norm() * theta(b).norm());
        // 10,000 is beyond the second quarter turn, 20,000 beyond the end of the run.
        for start in [0, 1, 500, 4_000, 4_095, 4_096, 9_999, 10_000, 20_000] {
            assert!((theta(start).norm() - 0.8).abs() < 1e-12);
            let angle = cosine(start, start + 1).clamp(-1.0, 1.0).acos();
            assert!((angle - std::f64::consts::FRAC_PI_2 / 4096.0).abs() < 1e-9, "{angle} at step {start}");
        }
        for start in [0, 4096, 8192] {
            assert!(cosine(start, start + 4096).abs() < 1e-12);
            assert!((cosine(start, start + 2048) - 0.5_f64.sqrt()).abs() < 1e-12);
        }
        assert!(cosine(0, 8192).abs() < 0.99, "θ* comes back: {}", cosine(0, 8192));
        // Another environment of the same seed has the same first θ*, and the same decision sets.
        let ball = SimulationConfig { environment: Environment::Ball, ..config };
        let ball = World::new(&ball, &Logs::new(), 9).unwrap();
        assert_eq!((&*ball.theta(0), &*ball.theta(7_000)), (&*world.theta(0), &*world.theta(0)));
        let draw = |world: &World| {
            let mut context = Context::<4>::new();
            world.draw(AGENT, 7_000, &mut generator(9, Purpose::Agent, AGENT), &mut context);
            context
        };
        let (constant, drifting) = (draw(&ball), draw(&world));
        assert_eq!(constant.arms, drifting.arms);
        for (x, reward) in drifting.arms.iter().zip(&drifting.expected_rewards) {
            let expected: f64 = x.iter().zip(&theta(7_000)).map(|(x, theta)| f64::from(*x) * theta).sum();
            assert!((reward - expected).abs() < 1e-12);
        }
    }

    /// Six deviations of 20,000 rewards of ±1 are 0.0425; false alarm below 2·10⁻⁹ each.
    #[test]
    fn bounded_rewards_match_their_mean() {
        let world = world(Environment::Ball, 1);
        let mut rng = generator(9, Purpose::Agent, 1);
        for mean in [-1.0, -0.3, 0.0, 0.8, 1.0] {
            for faked in [false, true] {
                let rewards: Vec<f32> = (0..DRAWS).map(|_| world.reward(mean, faked, &mut rng)).collect();
                assert!(rewards.iter().all(|reward| reward.abs() == 1.0));
                let measured = rewards.iter().copied().map(f64::from).sum::<f64>() / DRAWS as f64;
                let expected = if faked { -mean } else { mean };
                assert!((measured - expected).abs() < 0.0425, "{measured} for {expected}");
            }
        }
    }

    #[test]
    fn shared_environment_gives_all_agents_one_set() {
        let set = |environment: Environment, agent, step| {
            let world = world(environment, 3);
            let mut context = Context::<4>::new();
            world.draw(agent, step, &mut generator(9, Purpose::Agent, agent), &mut context);
            context.arms
        };
        assert_eq!(set(Environment::Shared, 1, 5), set(Environment::Shared, 2, 5));
        assert_ne!(set(Environment::Shared, 1, 5), set(Environment::Shared, 1, 6));
        assert_ne!(set(Environment::Ball, 1, 5), set(Environment::Ball, 2, 5));
    }

    /// Rewards tell the sets apart. Without the column, each agent draws every set; the index is the first draw of its generator.
    #[test]
    fn replay_draws_from_the_rows_of_the_own_device() {
        let environment = Environment::Replay("log".into());
        let run = RunConfig { dim: 1, ..RunConfig::default() };
        let config = SimulationConfig { run, environment, ..SimulationConfig::default() };
        let drawn = |text: &str, agent| {
            let logs = Logs::from([("log".into(), Log::parse(text, false).unwrap().into())]);
            let world = World::new(&config, &logs, 9).unwrap();
            let (mut rng, mut context) = (generator(9, Purpose::Agent, agent), Context::<1>::new());
            let mut one = || {
                world.draw(agent, 0, &mut rng, &mut context);
                context.expected_rewards[0]
            };
            (0..100).map(|_| one()).collect::<Vec<f64>>()
        };
        let values = |drawn: Vec<f64>| drawn.into_iter().map(|reward| reward as u32).collect::<BTreeSet<_>>();
        let with = "step,device,x_1,reward\n1,7,0.1,1\n2,7,0.1,2\n3,4,0.1,3\n";
        assert_eq!(values(drawn(with, 0)), BTreeSet::from([1, 2]));
        assert_eq!(values(drawn(with, 1)), BTreeSet::from([3]));
        assert_eq!(values(drawn(with, 2)), BTreeSet::from([1, 2]));
        let without = "step,x_1,reward\n1,0.1,1\n2,0.1,2\n3,0.1,3\n";
        let mut rng = generator(9, Purpose::Agent, 1);
        let expected: Vec<f64> = (0..100).map(|_| 1.0 + below(3, &mut rng) as f64).collect();
        assert_eq!(drawn(without, 1), expected);
    }

    #[test]
    fn least_squares_recovers_the_parameter_of_noiseless_rewards() {
        let text = "step,x_1,x_2,reward\n1,1,0,0.3\n1,0,1,-0.5\n2,0.6,0.8,-0.22\n2,0.5,-0.5,0.4\n";
        let theta = least_squares(&Log::parse(text, true).unwrap());
        assert!((theta[0] - 0.3).abs() < 1e-6 && (theta[1] + 0.5).abs() < 1e-6, "{theta}");
    }
}
