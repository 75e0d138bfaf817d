//! Simulated environments: decision sets and rewards.

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
use crate::config::{ConfigError, RewardKind};
use crate::math::rng::{Purpose, below, generator, uniform};
use crate::math::symmetric;
use crate::names::{UnknownName, serde_as_text};

/// Distribution of decision sets, by name.
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
    /// As `Ball`, with coordinates scaled by 0.2 + 0.8·cos²(π(2t/T + j/d)): the distribution P_t changes with t.
    Drifting,
    /// As `Ball`, with coordinates scaled by 0.2 + 0.8·cos²(π(gi + j/d)) for agent i, where g = (√5 − 1)/2: agents explore
    /// different directions.
    Unequal,
    /// Steps of a log, drawn uniformly.
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
            Self::Unequal => f.pad("unequal"),
            Self::Replay(file) => write!(f, "replay:{}", file.display()),
        }
    }
}

serde_as_text!(Environment);

impl FromStr for Environment {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let plain = [Self::Ball, Self::Skew, Self::FixedArms, Self::Shared, Self::Drifting, Self::Unequal];
        let known = ["ball", "skew", "fixed-arms", "shared", "drifting", "unequal"];
        if let Some(file) = name.strip_prefix("replay:").filter(|file| !file.is_empty()) {
            return Ok(Self::Replay(file.into()));
        }
        let at = known.iter().position(|known| *known == name);
        let unknown = || UnknownName::new("environment", name, known.into_iter().chain(["replay:FILE"]));
        at.map(|at| plain[at].clone()).ok_or_else(unknown)
    }
}

/// Environment of one seed: its θ*, and the distribution of decision sets and rewards.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) theta: Vec<f64>,
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
    /// The log to replay is not in `logs`, or has another dimension.
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
        let mut rng = generator(seed, Purpose::World, 0);
        let direction = DVector::<f64>::from_fn(config.run.dim, |_, _| StandardNormal.sample(&mut rng)).normalize();
        let theta = log.map_or_else(|| direction * config.run.theta_norm, |log| least_squares(log)).as_slice().to_vec();
        Ok(Self {
            theta,
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

    /// Draws an agent's decision set of step t, counted from 0.
    pub(crate) fn draw<const D: usize>(&self, agent: u64, step: u32, rng: &mut Pcg64, context: &mut Context<D>) {
        context.arms.clear();
        context.expected_rewards.clear();
        match &self.environment {
            Environment::Ball => self.draw_ball(context, rng, |_| 1.0),
            Environment::Skew => self.draw_ball(context, rng, |j| if j < D.div_ceil(2) { 1.0 } else { 0.2 }),
            Environment::Shared => {
                self.draw_ball(context, &mut generator(self.seed, Purpose::Step, step.into()), |_| 1.0)
            }
            Environment::Drifting => {
                let scales = rotated_scales::<D>(2.0 * f64::from(step) / f64::from(self.horizon));
                self.draw_ball(context, rng, |j| scales[j]);
            }
            Environment::Unequal => {
                let scales = rotated_scales::<D>((agent as f64 * GOLDEN_RATIO).fract());
                self.draw_ball(context, rng, |j| scales[j]);
            }
            Environment::FixedArms => {
                context.arms.extend((0..D).map(|j| Action::from_fn(|i, _| if i == j { 1.0 } else { 0.0 })));
                context.expected_rewards.extend(&self.theta);
            }
            Environment::Replay(_) => {
                let log = self.log.as_ref().expect("a replay world has a log");
                for (x, reward) in log.set(below(log.sets(), rng)) {
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
    fn draw_ball<const D: usize>(&self, context: &mut Context<D>, rng: &mut Pcg64, scale: impl Fn(usize) -> f32) {
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
            context.expected_rewards.push(x.iter().zip(&self.theta).map(|(x, theta)| f64::from(*x) * theta).sum());
            context.arms.push(Action::from(x));
        }
    }

    /// Draws the reward of an action with expected reward `mean`. With `faked`, the parameter is −θ* (Proposition 1).
    pub(crate) fn reward(&self, mean: f64, faked: bool, rng: &mut Pcg64) -> f32 {
        let mean = if faked { -mean } else { mean };
        (match (self.log.is_some(), self.rewards) {
            (true, _) => mean,
            (false, RewardKind::Gaussian(noise)) => {
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
    use super::*;
    use crate::config::RunConfig;

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

    #[test]
    fn least_squares_recovers_the_parameter_of_noiseless_rewards() {
        let text = "step,x_1,x_2,reward\n1,1,0,0.3\n1,0,1,-0.5\n2,0.6,0.8,-0.22\n2,0.5,-0.5,0.4\n";
        let theta = least_squares(&Log::parse(text, true).unwrap());
        assert!((theta[0] - 0.3).abs() < 1e-6 && (theta[1] + 0.5).abs() < 1e-6, "{theta}");
    }
}
