//! What is simulated, as files and options say it.

use std::path::Path;

use serde_json::{Value, json};

use super::batch::Job;
use super::config::Config;
use super::environment::Environment;
use crate::config::keys::{line, table};
use crate::config::{AggregatorName, Learning};

/// What is simulated: a configuration, and what it is repeated for.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// The configuration, apart from its aggregator.
    pub config: Config,
    /// How the controller aggregates, one after the other. Unless said, by those that a result is best compared with.
    pub aggregators: Option<Vec<AggregatorName>>,
    /// What the runs are repeated for.
    pub seeds: Vec<u64>,
    /// Whether rewards were spoken of. What is simulated has a noise of its own; what is not has one that must be told.
    noise_given: bool,
}

impl Default for Experiment {
    fn default() -> Self {
        Self { config: Config::default(), aggregators: None, seeds: vec![1, 2, 3], noise_given: false }
    }
}

impl Experiment {
    /// All keys, as a file can have them.
    pub fn keys(&self) -> Value {
        let mut keys = json!(self.config);
        keys["aggregator"] = self.aggregators().iter().map(ToString::to_string).collect();
        keys["seeds"] = json!(self.seeds);
        keys
    }

    fn aggregators(&self) -> Vec<AggregatorName> {
        let compared =
            [AggregatorName::Oracle, AggregatorName::GeometricMedian, AggregatorName::Mean, AggregatorName::Solo];
        // Who learns alone sends nothing that could be made private.
        let fits =
            |aggregator: &AggregatorName| *aggregator != AggregatorName::Solo || self.config.learning.privacy.is_none();
        self.aggregators.clone().unwrap_or_else(|| compared.into_iter().filter(fits).collect())
    }

    /// A job for each aggregator and seed.
    ///
    /// # Errors
    /// The rewards of a log have a noise that an aggregator must know, and it was not said.
    pub fn jobs(&self) -> Result<Vec<Job>, String> {
        let aggregators = self.aggregators();
        if matches!(self.config.environment, Environment::Replay(_)) {
            aggregators.iter().try_for_each(|aggregator| aggregator.check_noise(self.noise_given))?;
        }
        let config = |aggregator: &AggregatorName| {
            let learning = Learning { aggregator: *aggregator, ..self.config.learning };
            Config { learning, ..self.config.clone() }
        };
        let pairs = aggregators.iter().flat_map(|aggregator| self.seeds.iter().map(move |seed| (aggregator, seed)));
        Ok(pairs.map(|(aggregator, seed)| Job { config: config(aggregator), seed: *seed }).collect())
    }

    /// With another value of one key.
    ///
    /// # Errors
    /// There is no such key, or the value is not of its kind.
    pub fn set(&mut self, key: &str, value: Value) -> Result<(), String> {
        match key {
            "seeds" => self.seeds = list(value, "seeds", |seed| seed.as_u64().ok_or("a seed is a whole number"))?,
            "aggregator" => {
                let name =
                    |value: &Value| value.as_str().unwrap_or_default().parse().map_err(|error| format!("{error}"));
                self.aggregators = Some(list(value, "aggregator", name)?);
            }
            _ => self.config = self.config.with(key, value)?,
        }
        self.noise_given |= key == "rewards";
        Ok(())
    }

    /// Puts the keys of a TOML file over what is there.
    ///
    /// # Errors
    /// The file makes no sense; the reason names it and the line.
    pub fn read(&mut self, file: &Path, text: &str) -> Result<(), String> {
        for (key, value) in table(file, text)? {
            self.set_from(file, text, &key, &value)?;
        }
        self.config.check().map_err(|error| format!("{}: {error}", file.display()))
    }

    /// [`set`](Self::set) for a key of a TOML file.
    ///
    /// # Errors
    /// As [`set`](Self::set); the reason names the file and the line.
    pub fn set_from(&mut self, file: &Path, text: &str, key: &str, value: &toml::Value) -> Result<(), String> {
        let value = serde_json::to_value(value).unwrap_or_default();
        self.set(key, value).map_err(|reason| format!("{}:{}: {reason}", file.display(), line(text, key)))
    }
}

/// A value or a list of them.
fn list<T, E: std::fmt::Display>(
    value: Value,
    key: &str,
    parse: impl Fn(&Value) -> Result<T, E>,
) -> Result<Vec<T>, String> {
    let values = match value {
        Value::Array(values) if values.is_empty() => return Err(format!("{key}: the list is empty")),
        Value::Array(values) => values,
        value => vec![value],
    };
    values.iter().map(|value| parse(value).map_err(|error| format!("{key}: {error}"))).collect()
}
