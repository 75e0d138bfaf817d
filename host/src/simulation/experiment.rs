//! Experiments: simulations repeated over aggregators and seeds, and grids of them.

use std::path::Path;

use serde_json::{Value, json};

use super::batch::Job;
use super::config::SimulationConfig;
use super::environment::Environment;
use crate::config::keys::parse_value;
use crate::config::{AggregatorName, ConfigError, Configure, Key, RunConfig, ScheduleName, parse_toml};

/// A simulation that is repeated for each of several aggregators and seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// The configuration, except its aggregator.
    pub config: SimulationConfig,
    /// Aggregators to compare. By default the oracle, the geometric median, the mean and, without privacy, solo.
    pub aggregators: Option<Vec<AggregatorName>>,
    /// Random seeds, one run each.
    pub seeds: Vec<u64>,
    /// True once the key `rewards` was set. The noise of a log's rewards must be declared.
    noise_declared: bool,
}

impl Default for Experiment {
    fn default() -> Self {
        Self { config: SimulationConfig::default(), aggregators: None, seeds: vec![1, 2, 3], noise_declared: false }
    }
}

impl Configure for Experiment {
    fn keys() -> Vec<Key> {
        let seeds =
            Key::new("seeds", "LIST", "Random seeds, one run each (e.g. 1,2,3) [default: 1,2,3]", || Value::Null);
        let doc = "Aggregation rules to compare (e.g. mean,krum) [default: oracle,capped-filter,geometric-median,mean,solo; with --json capped-filter]";
        let aggregators = Key::new("aggregator", "LIST", doc, || Value::Null);
        let keys = SimulationConfig::keys().into_iter();
        keys.map(|key| if key.field == aggregators.field { aggregators } else { key }).chain([seeds]).collect()
    }

    fn set(&mut self, key: &str, value: Value) -> Result<(), ConfigError> {
        match key {
            "seeds" => self.seeds = list(key, value)?,
            "aggregator" => self.aggregators = Some(list(key, value)?),
            _ => self.config.set(key, value)?,
        }
        self.noise_declared |= key == "rewards";
        Ok(())
    }

    /// Text is a comma-separated list where the key takes a list.
    fn set_text(&mut self, key: &str, text: &str) -> Result<(), ConfigError> {
        match key {
            "seeds" | "aggregator" => self.set(key, text.split(',').map(list_item).collect()),
            _ => self.config.set_text(key, text).map(|()| self.noise_declared |= key == "rewards"),
        }
    }
}

fn list_item(text: &str) -> Value {
    text.parse::<u64>().map_or_else(|_| text.into(), Value::from)
}

/// Parses a value or a list of values.
fn list<T: serde::de::DeserializeOwned>(key: &str, value: Value) -> Result<Vec<T>, ConfigError> {
    let values = match value {
        Value::Array(values) if values.is_empty() => {
            return Err(ConfigError::new(key, "expected at least one value, found an empty list"));
        }
        Value::Array(values) => values,
        value => vec![value],
    };
    values.into_iter().map(|value| parse_value(key, value)).collect()
}

impl Experiment {
    /// Returns all keys and values, as a file can have them.
    pub fn to_json(&self) -> Value {
        let mut keys = json!(self.config);
        keys["aggregator"] = json!(self.aggregators());
        keys["seeds"] = json!(self.seeds);
        keys
    }

    fn aggregators(&self) -> Vec<AggregatorName> {
        let compared = [
            AggregatorName::Oracle,
            AggregatorName::RECOMMENDED,
            AggregatorName::GeometricMedian,
            AggregatorName::Mean,
            AggregatorName::Solo,
        ];
        let RunConfig { privacy, schedule, .. } = self.config.run;
        let fits = |aggregator: &AggregatorName| match aggregator {
            // Solo sends no messages, so privacy does not apply.
            AggregatorName::Solo => privacy.is_none(),
            other => !other.is_whitened() || schedule != ScheduleName::Theorem,
        };
        self.aggregators.clone().unwrap_or_else(|| compared.into_iter().filter(fits).collect())
    }

    /// Returns a job for each aggregator and seed.
    ///
    /// # Errors
    /// A configuration is invalid, or the noise of a log's rewards is not declared although an aggregator needs it.
    pub fn jobs(&self) -> Result<Vec<Job>, ConfigError> {
        let aggregators = self.aggregators();
        if matches!(self.config.environment, Environment::Replay(_)) {
            aggregators.iter().try_for_each(|aggregator| aggregator.require_noise(self.noise_declared))?;
        }
        let config = |aggregator: &AggregatorName| {
            let run = RunConfig { aggregator: *aggregator, ..self.config.run };
            SimulationConfig { run, ..self.config.clone() }
        };
        let pairs = aggregators.iter().flat_map(|aggregator| self.seeds.iter().map(move |seed| (aggregator, seed)));
        let jobs: Vec<Job> = pairs.map(|(aggregator, seed)| Job { config: config(aggregator), seed: *seed }).collect();
        jobs.iter().try_for_each(|job| job.config.validate())?;
        Ok(jobs)
    }

    /// Returns all runs of a grid file, each once: keys of an experiment, and `[[grid]]` tables with lists of values for them.
    ///
    /// # Errors
    /// The file is not TOML, a key is unknown or a value is invalid; the error names the file.
    pub fn grid(file: &Path, text: &str) -> Result<Vec<Job>, ConfigError> {
        let mut table = parse_toml(file, text)?;
        let grids: Option<Vec<toml::Table>> = match table.remove("grid") {
            None => Some(vec![toml::Table::new()]),
            Some(toml::Value::Array(grids)) => grids.into_iter().map(|grid| grid.as_table().cloned()).collect(),
            Some(_) => None,
        };
        let grids = grids.ok_or_else(|| ConfigError::in_file(file, "grid: expected tables [[grid]]"))?;
        let mut base = Self::default();
        base.set_table(file, text, &table)?;
        let mut jobs: Vec<Job> = Vec::new();
        for grid in &grids {
            for cell in base.cells(file, text, grid)? {
                for job in cell.jobs().map_err(|error| ConfigError::in_file(file, error))? {
                    if !jobs.contains(&job) {
                        jobs.push(job);
                    }
                }
            }
        }
        Ok(jobs)
    }

    /// Returns one experiment for each combination of a grid's values.
    fn cells(&self, file: &Path, text: &str, grid: &toml::Table) -> Result<Vec<Self>, ConfigError> {
        let mut cells = vec![self.clone()];
        for (key, values) in grid {
            let values = match values {
                // These two are lists in a single experiment as well.
                toml::Value::Array(values) if key != "aggregator" && key != "seeds" => values.clone(),
                values => vec![values.clone()],
            };
            let with = |cell: &Self, value: &toml::Value| {
                let mut cell = cell.clone();
                cell.set_table(file, text, &toml::Table::from_iter([(key.clone(), value.clone())])).map(|()| cell)
            };
            let pairs = cells.iter().flat_map(|cell| values.iter().map(move |value| with(cell, value)));
            cells = pairs.collect::<Result<_, _>>()?;
        }
        Ok(cells)
    }
}
