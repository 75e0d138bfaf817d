//! Reports of simulations: tables, plots and an HTML page.

mod figures;
mod html;
mod plot;

pub use figures::{regret_plot, varied_plots};
pub use html::{html, text_table};
pub use plot::{Axis, Plot, Point, Series, format_number};

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::ScheduleName;
use crate::simulation::{Outcome, Participation, SimulationConfig};

/// A finished run, with everything needed to reproduce it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the program.
    pub version: String,
    /// Configuration of the run.
    pub config: SimulationConfig,
    /// Results, with the seed.
    pub outcome: Outcome,
}

impl Record {
    fn honest(&self) -> f64 {
        (self.config.run.agents - self.config.corrupted()) as f64
    }

    /// Serializes the configuration without its aggregator and some keys. Records with the same text are comparable.
    fn config_without(&self, keys: &[&str]) -> String {
        let mut config = serde_json::to_value(&self.config).unwrap_or_default();
        if let Some(config) = config.as_object_mut() {
            config.retain(|key, _| key != "aggregator" && !keys.contains(&key.as_str()));
        }
        config.to_string()
    }
}

/// True if records differ in aggregator and seed only.
pub fn is_one_setting(records: &[&Record]) -> bool {
    grouped(records, |record| record.config_without(&[])).len() == 1
}

/// Groups records by a key, in order of first appearance.
fn grouped<'a>(records: &[&'a Record], key: impl Fn(&Record) -> String) -> Vec<Vec<&'a Record>> {
    let mut order: Vec<String> = Vec::new();
    let mut groups: BTreeMap<String, Vec<&Record>> = BTreeMap::new();
    for record in records {
        let key = key(record);
        if !groups.contains_key(&key) {
            order.push(key.clone());
        }
        groups.entry(key).or_default().push(record);
    }
    order.iter().filter_map(|key| groups.remove(key)).collect()
}

/// Mean and range of some values.
#[derive(Clone, Copy)]
struct Spread {
    mean: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.collect();
        Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn at(self, x: f64) -> Point {
        Point { x, y: self.mean, low: self.min, high: self.max }
    }
}

/// Lists the seeds of some records.
fn seeds(records: &[&Record]) -> String {
    format!("seeds {}", distinct(records, |record| record.outcome.seed.to_string()))
}

/// Lists the distinct keys of some records.
fn distinct(records: &[&Record], key: impl Fn(&Record) -> String) -> String {
    let groups = grouped(records, &key);
    groups.iter().map(|group| key(group[0])).collect::<Vec<_>>().join(", ")
}

/// Describes a configuration in a few words.
pub fn describe(config: &SimulationConfig) -> String {
    describe_without(config, &[])
}

fn describe_without(config: &SimulationConfig, keys: &[&str]) -> String {
    let run = &config.run;
    let mut text = format!("{} agents, d = {}", run.agents, run.dim);
    if !keys.contains(&"steps") {
        let _ = write!(text, ", {} steps", run.steps);
    }
    let _ = write!(text, ", {}", config.environment);
    if !keys.contains(&"corrupt") {
        let _ = write!(text, ", {} corrupted", config.corrupted());
    }
    let _ = write!(text, " ({})", config.attack);
    if config.participation != Participation::Always {
        let _ = write!(text, ", participation {}", config.participation);
    }
    if run.schedule == ScheduleName::Theorem {
        text.push_str(", schedule of the theorem");
    }
    if let Some(half_life) = run.forget {
        let _ = write!(text, ", half-life {half_life}");
    }
    if let Some(privacy) = run.privacy.filter(|_| !keys.contains(&"privacy")) {
        let _ = write!(text, ", privacy {privacy}");
    }
    text
}

/// Returns the keys in which some records differ and that [`describe`] omits.
fn omitted_keys(records: &[&Record]) -> Vec<String> {
    const DESCRIBED: [&str; 11] = [
        "agents",
        "aggregator",
        "attack",
        "corrupt",
        "dim",
        "environment",
        "forget",
        "participation",
        "privacy",
        "schedule",
        "steps",
    ];
    let configs: Vec<Value> =
        records.iter().map(|record| serde_json::to_value(&record.config).unwrap_or_default()).collect();
    let Some(Value::Object(first)) = configs.first() else { return Vec::new() };
    let differ = |(key, value): &(&String, &Value)| configs.iter().any(|config| config[key.as_str()] != **value);
    first.iter().filter(differ).map(|(key, _)| key.clone()).filter(|key| !DESCRIBED.contains(&key.as_str())).collect()
}

/// As [`describe`], with some more keys unless they are unset.
fn describe_with(config: &SimulationConfig, keys: &[String]) -> String {
    let mut text = describe(config);
    let values = serde_json::to_value(config).unwrap_or_default();
    for key in keys {
        let _ = match &values[key] {
            Value::Null => Ok(()),
            Value::String(value) => write!(text, ", {key} {value}"),
            value => write!(text, ", {key} {value}"),
        };
    }
    text
}
