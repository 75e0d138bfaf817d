//! What is simulated.

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::attack::Attack;
use super::environment::Environment;
use super::fleet::DIMENSIONS;
use crate::aggregate::corrupted;
use crate::keys;
use crate::learning::{AggregatorName, ConfigError, Learning, Rules, fail};
use crate::names::text;

/// A run but for its seed: how agents learn, and the world in which they do. Read from a file, what is not there has its
/// default; there the keys of both stand side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// How agents learn; their dimension is one of [`DIMENSIONS`].
    #[serde(flatten)]
    pub learning: Learning,
    /// How many actions a decision set has; `fixed-arms` has d, and a log has its own number.
    pub arms: usize,
    /// What agents meet.
    #[serde(with = "text")]
    pub environment: Environment,
    /// What corrupted agents do.
    #[serde(with = "text")]
    pub attack: Attack,
    /// α: ⌊α·N⌋ agents are corrupted.
    pub corrupt: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            learning: Learning::default(),
            arms: 10,
            environment: Environment::Ball,
            attack: Attack::Collude,
            corrupt: 0.3,
        }
    }
}

/// The keys about a simulated world.
pub(crate) const WORLD: [&str; 4] = ["arms", "environment", "attack", "corrupt"];

// Not by `flatten`, which lets unknown keys pass.
impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_keys(Map::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Config {
    fn from_keys(mut keys: Map<String, Value>) -> serde_json::Result<Self> {
        let [arms, environment, attack, corrupt] = WORLD.map(|key| keys.remove(key));
        let default = Self::default();
        Ok(Self {
            learning: serde_json::from_value(Value::Object(keys))?,
            arms: arms.map_or(Ok(default.arms), usize::deserialize)?,
            environment: environment.map_or(Ok(default.environment), text::deserialize)?,
            attack: attack.map_or(Ok(default.attack), text::deserialize)?,
            corrupt: corrupt.map_or(Ok(default.corrupt), f64::deserialize)?,
        })
    }

    /// Whether this can be run.
    ///
    /// # Errors
    /// The first thing that makes no sense, by its key.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !DIMENSIONS.contains(&self.learning.dim) {
            let all: Vec<_> = DIMENSIONS.iter().map(ToString::to_string).collect();
            let reason = format!("{} is not compiled in; take one of {}", self.learning.dim, all.join(", "));
            return fail("dim", reason + ", and fill up with zeros");
        }
        if self.arms == 0 || self.arms > MAX_ARMS {
            return fail("arms", format!("must be from 1 to {MAX_ARMS}, not {}", self.arms));
        }
        if !(0.0..0.5).contains(&self.corrupt) {
            let why = "from half of the agents on, nothing could tell who lies";
            return fail("corrupt", format!("must be at least 0 and below 0.5, not {}: {why}", self.corrupt));
        }
        self.rules().check()
    }

    /// What comes of how agents learn in this world.
    pub(crate) fn rules(&self) -> Rules {
        let same = matches!(self.environment, Environment::Shared | Environment::FixedArms);
        self.learning.rules(if same { 0.0 } else { Learning::SIGMA })
    }

    /// With another value of one key, as a file or an option gives it.
    ///
    /// # Errors
    /// There is no such key, or the value is not of its kind.
    pub fn with(&self, key: &str, value: Value) -> Result<Self, String> {
        keys::with(self, key, value)
    }

    /// ⌊α·N⌋.
    pub fn corrupted(&self) -> usize {
        corrupted(self.corrupt, self.learning.agents)
    }

    /// The run whose regret is the yardstick of this one: the honest agents alone, by their mean, on the same draws; of a
    /// whitened rule, with the same width.
    pub fn oracle(&self) -> Self {
        let learning = if self.learning.aggregator.is_whitened() {
            Learning { aggregator: AggregatorName::WhitenedOracle, ..self.learning }
        } else {
            Learning { aggregator: AggregatorName::Oracle, design_corruption: None, ..self.learning }
        };
        Self { learning, attack: Attack::None, ..self.clone() }
    }
}

/// The largest decision set.
const MAX_ARMS: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// A service must not take a key of the world for one of its own.
    #[test]
    fn every_key_is_of_the_world_or_about_learning() {
        let mut keys: Vec<_> = keys::of(&Learning::default()).into_iter().chain(WORLD.map(str::to_owned)).collect();
        keys.sort_unstable();
        assert_eq!(keys, keys::of(&Config::default()));
    }

    /// All keys of both, by values that are no defaults; and no others.
    #[test]
    fn what_is_written_is_read() {
        let text =
            "{\"arms\":3,\"agents\":7,\"environment\":\"shared\",\"attack\":\"none\",\"sigma\":0.5,\"corrupt\":0.0}";
        let learning = Learning { agents: 7, sigma: Some(0.5), ..Learning::default() };
        let config = Config { learning, arms: 3, environment: Environment::Shared, attack: Attack::None, corrupt: 0.0 };
        assert_eq!(serde_json::from_str::<Config>(text).unwrap(), config);
        assert_eq!(serde_json::from_value::<Config>(serde_json::to_value(&config).unwrap()).unwrap(), config);
        let refused = |text| serde_json::from_str::<Config>(text).unwrap_err().to_string();
        assert!(refused("{\"agnets\":7}").starts_with("unknown field `agnets`"));
        assert!(refused("{\"learning\":{}}").starts_with("unknown field `learning`"));
        assert!(refused("{\"arms\":\"ten\"}").starts_with("invalid type: string \"ten\", expected usize"));
    }

    /// σ follows from the world, unless it is said.
    #[test]
    fn the_world_has_its_sigma() {
        let config = |environment, sigma| {
            let learning = Learning { sigma, schedule: "theorem".parse().unwrap(), ..Learning::default() };
            Config { environment, learning, ..Config::default() }.rules()
        };
        let said = |sigma: f64| config(Environment::Ball, Some(sigma));
        assert_eq!(config(Environment::Ball, None).setting(), said(std::f64::consts::SQRT_2).setting());
        assert_eq!(config(Environment::Shared, None).setting(), said(0.0).setting());
        assert_eq!(config(Environment::FixedArms, Some(1.0)).setting(), said(1.0).setting());
        assert_ne!(said(0.0).setting(), said(1.0).setting());
    }
}
