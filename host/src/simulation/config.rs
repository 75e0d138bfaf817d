//! What is simulated.

use std::fmt;
use std::str::FromStr;

use fedbandit_core::MAX_EPISODE_LEN;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::attack::Attack;
use super::environment::{Environment, MAX_REWARD, RewardKind};
use super::fleet::DIMENSIONS;
use crate::admission::{Level, SettingError};
use crate::aggregate::corrupted;
use crate::names::{named, optional_text, text};
use crate::privacy::calibration::{Budget, Mechanism, NoiseBound};
use crate::schedule::Problem;
use crate::setting::{Episodes, Setting, SetupError};

/// A run but for its seed. Read from a file, what is not there has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// N.
    pub agents: usize,
    /// d, one of [`DIMENSIONS`] in a simulation.
    pub dim: usize,
    /// How many actions a decision set has; `fixed-arms` has d, and a log has its own number.
    pub arms: usize,
    /// T.
    pub steps: u32,
    /// L. The default is 64, or the theorem's own.
    pub episode_len: Option<u32>,
    /// L_1: episodes grow as L_1, 2L_1, 4L_1, … up to L. The default is 4, but L with privacy or by a theorem.
    pub first_episode: Option<u32>,
    /// s: so many episodes have length L_1 before lengths grow. The default is 1, and 2d for whitened rules.
    pub first_episodes: Option<u32>,
    /// What agents meet.
    #[serde(with = "text")]
    pub environment: Environment,
    /// What rewards are.
    #[serde(with = "text")]
    pub rewards: RewardKind,
    /// ‖θ*‖₂, and the bound S on it that widths use.
    pub theta_norm: f64,
    /// What corrupted agents do.
    #[serde(with = "text")]
    pub attack: Attack,
    /// α: ⌊α·N⌋ agents are corrupted.
    pub corrupt: f64,
    /// How the controller aggregates.
    #[serde(with = "text")]
    pub aggregator: AggregatorName,
    /// The corruption that widths, groups and trimming are designed for. The default is 0.3, and 0.25 for
    /// `median-of-means`.
    pub design_corruption: Option<f64>,
    /// How much of a message is checked. The default is `strict`, and `drop` for whitened rules on single agents without
    /// privacy.
    #[serde(with = "optional_text")]
    pub admission: Option<Level>,
    /// Where λ_k and β_k come from.
    #[serde(with = "text")]
    pub schedule: ScheduleName,
    /// (μ, ν), if releases are private.
    #[serde(with = "optional_text")]
    pub privacy: Option<Privacy>,
    /// How private noise is made.
    #[serde(with = "text")]
    pub mechanism: Mechanism,
    /// Which bound on the noise schedules use. The default is `exact`, and `paper` for a theorem.
    #[serde(with = "optional_text")]
    pub noise_bound: Option<NoiseBound>,
    /// δ of the theorems and of bounds on noise.
    pub delta: f64,
    /// σ of the theorems. The default is 1, and 0 where all agents have the same decision sets.
    pub sigma: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            agents: 100,
            dim: 8,
            arms: 10,
            steps: 4096,
            episode_len: None,
            first_episode: None,
            first_episodes: None,
            environment: Environment::Ball,
            rewards: RewardKind::Gaussian(0.5),
            theta_norm: 1.0,
            attack: Attack::Collude,
            corrupt: 0.3,
            aggregator: AggregatorName::GeometricMedian,
            design_corruption: None,
            admission: None,
            schedule: ScheduleName::Calibrated,
            privacy: None,
            mechanism: Mechanism::Tree,
            noise_bound: None,
            delta: 0.1,
            sigma: None,
        }
    }
}

/// How the controller makes one of many, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AggregatorName {
    /// The geometric median: Byzantine-UCB, and with privacy Byzantine-UCB-DP.
    GeometricMedian,
    /// The geometric median of group means: with privacy Byzantine-UCB-DP-MoM.
    MedianOfMeans,
    /// The mean, which one agent can move anywhere.
    Mean,
    /// The mean over the honest agents, which only a simulation knows.
    Oracle,
    /// No communication: every agent learns alone.
    Solo,
    /// The median of each coordinate.
    CoordinateMedian,
    /// The mean of each coordinate without its extremes.
    TrimmedMean,
    /// The stream with the nearest neighbours.
    Krum,
    /// The mean of the best streams by Krum's measure.
    MultiKrum,
    /// Beyond the paper: whitened residuals, a spectral filter and a width for each direction
    /// ([`Whitened`](crate::whitened::Whitened)).
    WhitenedFilter,
    /// The same by the geometric median alone.
    WhitenedMedian,
    /// `whitened-filter` with the relative medoid of the Gram matrices, of which docs/theory.md proves more; slow for many agents.
    WhitenedMedoid,
    /// `whitened-filter` on the means of the groups of `median-of-means`.
    WhitenedMeans,
    /// The mean over the honest agents with the width of `whitened-filter`, which only a simulation knows.
    WhitenedOracle,
}

impl AggregatorName {
    /// Whether it works on groups of agents.
    pub(crate) fn is_of_means(self) -> bool {
        matches!(self, Self::MedianOfMeans | Self::WhitenedMeans)
    }

    /// Whether it takes the honest agents alone.
    pub fn is_oracle(self) -> bool {
        matches!(self, Self::Oracle | Self::WhitenedOracle)
    }

    /// Whether only a simulation has it: a service would know neither who is honest, nor what an agent alone has learned.
    pub fn is_simulated(self) -> bool {
        self.is_oracle() || self == Self::Solo
    }

    /// Whether it can do with what was said of rewards that are not simulated.
    ///
    /// # Errors
    /// It must know their noise, and nothing was said.
    pub(crate) fn check_noise(self, given: bool) -> Result<(), String> {
        if given || !self.is_whitened() {
            return Ok(());
        }
        Err(format!(
            "{self} must know the noise of rewards, and would be wrong about who lies if it guessed: \
             rewards = \"gaussian:R\" for R-sub-Gaussian noise, or \"bounded\" if they are in [-1, 1]"
        ))
    }

    /// Whether it compares residuals with their noise, so that R must be known.
    pub(crate) fn is_whitened(self) -> bool {
        match self {
            Self::WhitenedFilter
            | Self::WhitenedMedian
            | Self::WhitenedMedoid
            | Self::WhitenedMeans
            | Self::WhitenedOracle => true,
            Self::GeometricMedian
            | Self::MedianOfMeans
            | Self::Mean
            | Self::Oracle
            | Self::Solo
            | Self::CoordinateMedian
            | Self::TrimmedMean
            | Self::Krum
            | Self::MultiKrum => false,
        }
    }
}

named!(
    AggregatorName,
    "aggregator",
    GeometricMedian = "geometric-median",
    MedianOfMeans = "median-of-means",
    Mean = "mean",
    Oracle = "oracle",
    Solo = "solo",
    CoordinateMedian = "coordinate-median",
    TrimmedMean = "trimmed-mean",
    Krum = "krum",
    MultiKrum = "multi-krum",
    WhitenedFilter = "whitened-filter",
    WhitenedMedian = "whitened-median",
    WhitenedMedoid = "whitened-medoid",
    WhitenedMeans = "whitened-means",
    WhitenedOracle = "whitened-oracle",
);

/// Where λ_k and β_k come from, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleName {
    /// [`Calibrated`](crate::schedule::Calibrated).
    Calibrated,
    /// [`Theorem`](crate::schedule::Theorem): the one that fits the aggregator and privacy.
    Theorem,
}

named!(ScheduleName, "schedule", Calibrated = "calibrated", Theorem = "theorem");

/// (μ, ν), written `MU,NU`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Privacy(pub Budget);

impl fmt::Display for Privacy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.0.mu(), self.0.nu())
    }
}

impl FromStr for Privacy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers =
            text.split_once(',').and_then(|(mu, nu)| Some((mu.trim().parse().ok()?, nu.trim().parse().ok()?)));
        let (mu, nu) = numbers.ok_or_else(|| format!("privacy is MU,NU, as 4,1e-6, not '{text}'"))?;
        Budget::new(mu, nu).map(Self).map_err(|error| error.to_string())
    }
}

/// What makes no sense in a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {reason}")]
pub struct ConfigError {
    key: &'static str,
    reason: String,
}

impl ConfigError {
    pub(crate) fn new(key: &'static str, reason: impl fmt::Display) -> Self {
        Self { key, reason: reason.to_string() }
    }
}

impl From<SetupError> for ConfigError {
    fn from(error: SetupError) -> Self {
        let key = match error {
            SetupError::EnrolledTwice(_) => "agents",
            SetupError::Window(_) => "window",
            SetupError::Setting(SettingError::EpisodeLen(_)) => "episode-len",
            SetupError::Setting(SettingError::RewardBound(_)) => "rewards",
            SetupError::Setting(SettingError::PrivacyNeedsBoundedRewards) => "privacy",
            SetupError::Setting(SettingError::PrivacyCannotDrop) => "admission",
            SetupError::Shape(_) => "dim",
            SetupError::Rule(_) => "aggregator",
            SetupError::FirstModel => "schedule",
        };
        Self::new(key, error)
    }
}

fn fail(key: &'static str, reason: impl fmt::Display) -> Result<(), ConfigError> {
    Err(ConfigError::new(key, reason))
}

/// The corruption that widths are designed for, unless said otherwise.
const DESIGN_CORRUPTION: f64 = 0.3;

impl Config {
    /// The keys that are about a simulated world, or follow from who is enrolled.
    pub const SIMULATED: [&str; 6] = ["agents", "dim", "arms", "environment", "attack", "corrupt"];
    /// The keys about how to learn, which a service has, too.
    pub const LEARNED: [&str; 15] = [
        "steps",
        "episode-len",
        "first-episode",
        "first-episodes",
        "rewards",
        "theta-norm",
        "aggregator",
        "design-corruption",
        "admission",
        "schedule",
        "privacy",
        "mechanism",
        "noise-bound",
        "delta",
        "sigma",
    ];

    /// Whether this can be run.
    ///
    /// # Errors
    /// The first thing that makes no sense, by its key.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !DIMENSIONS.contains(&self.dim) {
            let all: Vec<_> = DIMENSIONS.iter().map(ToString::to_string).collect();
            let reason = format!("{} is not compiled in; take one of {}", self.dim, all.join(", "));
            return fail("dim", reason + ", and fill up with zeros");
        }
        if self.arms == 0 || self.arms > MAX_ARMS {
            return fail("arms", format!("must be from 1 to {MAX_ARMS}, not {}", self.arms));
        }
        if !(0.0..0.5).contains(&self.corrupt) {
            let why = "from half of the agents on, nothing could tell who lies";
            return fail("corrupt", format!("must be at least 0 and below 0.5, not {}: {why}", self.corrupt));
        }
        self.check_learning()
    }

    /// The same for real agents: of any dimension, and in no simulated world.
    pub(crate) fn check_learning(&self) -> Result<(), ConfigError> {
        self.check_shape()?;
        self.check_problem()?;
        self.check_rule()?;
        self.rule(0).map(drop)
    }

    /// How many and how long.
    fn check_shape(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_AGENTS).contains(&self.agents) {
            return fail("agents", format!("must be from 1 to {MAX_AGENTS}, not {}", self.agents));
        }
        if self.steps == 0 {
            return fail("steps", "there must be at least one step");
        }
        if let Some(length) = self.episode_len.filter(|length| !(1..=MAX_EPISODE_LEN).contains(length)) {
            return fail("episode-len", format!("must be from 1 to {MAX_EPISODE_LEN}, not {length}"));
        }
        if let Some(first) = self.first_episode.filter(|first| *first == 0 || *first > self.longest()) {
            return fail(
                "first-episode",
                format!("must be from 1 to the episode length {}, not {first}", self.longest()),
            );
        }
        if let Some(starts) = self.first_episodes.filter(|starts| !(1..=MAX_EPISODE_LEN).contains(starts)) {
            return fail("first-episodes", format!("must be from 1 to {MAX_EPISODE_LEN}, not {starts}"));
        }
        Ok(())
    }

    /// What is assumed of agents and rewards.
    fn check_problem(&self) -> Result<(), ConfigError> {
        if let Some(share) = self.design_corruption.filter(|share| !(0.0..0.5).contains(share)) {
            return fail("design-corruption", format!("must be at least 0 and below 0.5, not {share}"));
        }
        if !(self.theta_norm > 0.0 && self.theta_norm <= MAX_REWARD) {
            return fail("theta-norm", format!("must be positive and at most {MAX_REWARD:e}, not {}", self.theta_norm));
        }
        if self.rewards == RewardKind::Bounded && self.theta_norm > 1.0 {
            return fail(
                "theta-norm",
                format!("{} gives rewards beyond 1; bounded ones need at most 1", self.theta_norm),
            );
        }
        if !(self.delta > 0.0 && self.delta < 1.0) {
            return fail("delta", format!("must be between 0 and 1, not {}", self.delta));
        }
        if let Some(sigma) = self.sigma.filter(|sigma| !(0.0..=2.0).contains(sigma)) {
            return fail("sigma", format!("must be from 0 to 2, not {sigma}"));
        }
        Ok(())
    }

    /// What goes together.
    fn check_rule(&self) -> Result<(), ConfigError> {
        if self.privacy.is_some() && self.rewards.bound().is_none() {
            let why = "without a bound one message could change the sums without limit";
            return fail("privacy", format!("it needs bounded rewards (rewards = \"bounded\"): {why}"));
        }
        if self.privacy.is_some() && self.aggregator == AggregatorName::Solo {
            return fail("privacy", "solo sends nothing that could be made private");
        }
        if self.aggregator.is_whitened() && !(self.rewards.noise() > 0.0) {
            let why = "it tells noise from lies by that";
            return fail("rewards", format!("{} needs a noise level R > 0, as gaussian:0.5: {why}", self.aggregator));
        }
        if self.aggregator.is_whitened() && self.schedule == ScheduleName::Theorem {
            return fail("schedule", format!("no theorem of the paper is about {}", self.aggregator));
        }
        let counted = [AggregatorName::TrimmedMean, AggregatorName::Krum, AggregatorName::MultiKrum];
        let counted = counted.contains(&self.aggregator) || self.aggregator.is_of_means();
        if self.level() == Level::Drop && counted {
            return fail(
                "admission",
                format!("{} counts on the number of agents: nobody can be dropped", self.aggregator),
            );
        }
        if self.level() == Level::Drop && self.privacy.is_some() {
            return fail("admission", "with privacy nobody can be dropped for what a message said");
        }
        Ok(())
    }

    /// With another value of one key, as a file or an option gives it.
    ///
    /// # Errors
    /// There is no such key, or the value is not of its kind.
    pub fn with(&self, key: &str, value: serde_json::Value) -> Result<Self, String> {
        let mut object = serde_json::to_value(self).map_err(|error| error.to_string())?;
        if object.get(key).is_none() {
            let keys: Vec<_> = object.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
            return Err(format!("no key is called {key}; there are {}", keys.join(", ")));
        }
        let mut attempt = |value: serde_json::Value| {
            object[key] = value;
            serde_json::from_value(object.clone()).map_err(|error| format!("{key}: {error}"))
        };
        // A text may look like a number: then the text's own error says more.
        let text = value.is_number().then(|| value.to_string());
        attempt(value).or_else(|error| match text.map(|text| attempt(text.into())) {
            Some(Err(other)) if other.contains("invalid type") => Err(error),
            Some(result) => result,
            None => Err(error),
        })
    }

    /// ⌊α·N⌋.
    pub fn corrupted(&self) -> usize {
        corrupted(self.corrupt, self.agents)
    }

    pub(crate) fn design_corruption(&self) -> f64 {
        let default = if self.aggregator.is_of_means() { 0.25 } else { DESIGN_CORRUPTION };
        self.design_corruption.unwrap_or(default)
    }

    fn longest(&self) -> u32 {
        let theorem = || match self.aggregator {
            AggregatorName::MedianOfMeans => self.problem().episode_len_of_means(),
            _ => self.problem().episode_len(),
        };
        let default = || match self.schedule {
            ScheduleName::Calibrated => 64,
            ScheduleName::Theorem => theorem(),
        };
        self.episode_len.unwrap_or_else(default).min(self.steps).clamp(1, MAX_EPISODE_LEN)
    }

    pub(crate) fn episodes(&self) -> Result<Episodes, ConfigError> {
        let longest = self.longest();
        let even = self.schedule == ScheduleName::Theorem || self.privacy.is_some();
        let first = self.first_episode.unwrap_or(if even { longest } else { 4.min(longest) });
        let whitened = self.aggregator.is_whitened();
        let starts = self.first_episodes.unwrap_or(if whitened { 2 * self.dim as u32 } else { 1 });
        Episodes::with_starts(self.steps, first, starts, longest)
            .map_err(|error| ConfigError::new("episode-len", error))
    }

    pub(crate) fn setting(&self) -> Result<Setting, ConfigError> {
        Ok(Setting {
            dimension: self.dim as u8,
            episodes: self.episodes()?,
            level: self.level(),
            reward_bound: self.rewards.bound(),
            window: 0,
        })
    }

    fn level(&self) -> Level {
        let whole = self.aggregator.is_whitened() && !self.aggregator.is_of_means();
        let default = if whole && self.privacy.is_none() { Level::Drop } else { Level::Strict };
        self.admission.unwrap_or(default)
    }

    pub(super) fn problem(&self) -> Problem {
        let same = matches!(self.environment, Environment::Shared | Environment::FixedArms);
        Problem {
            agents: self.agents,
            horizon: self.steps,
            dimension: self.dim,
            corruption: self.design_corruption(),
            sigma: self.sigma.unwrap_or(if same { 0.0 } else { 1.0 }),
            noise: self.rewards.noise(),
            delta: self.delta,
        }
    }

    /// The run whose regret is the yardstick of this one: the honest agents alone, by their mean, on the same draws; of a
    /// whitened rule, with the same width.
    pub fn oracle(&self) -> Self {
        let own = self.clone();
        if self.aggregator.is_whitened() {
            Self { aggregator: AggregatorName::WhitenedOracle, attack: Attack::None, ..own }
        } else {
            Self { aggregator: AggregatorName::Oracle, attack: Attack::None, design_corruption: None, ..own }
        }
    }
}

/// The largest N.
const MAX_AGENTS: usize = 10_000_000;
/// The largest decision set.
const MAX_ARMS: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// A service must not take a new key for one of its own unseen.
    #[test]
    fn every_key_is_simulated_or_learned() {
        let mut keys: Vec<_> = Config::SIMULATED.into_iter().chain(Config::LEARNED).collect();
        keys.sort_unstable();
        let config = serde_json::to_value(Config::default()).unwrap();
        let mut all: Vec<_> = config.as_object().unwrap().keys().collect();
        all.sort_unstable();
        assert_eq!(keys, all);
    }
}
