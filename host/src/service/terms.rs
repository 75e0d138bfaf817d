//! The terms of a run: what a store and the service that opens it must agree on.

use serde::{Deserialize, Serialize};

use super::registry::Registry;
use super::start::StartError;
use super::state_machine::RunInfo;
use super::store::Store;
use crate::config::{ConfigError, ResolvedRun, RunConfig};

/// The version of what is in a store.
pub(super) const SCHEMA: u32 = 3;

/// What a store must agree on with whoever opens it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunTerms {
    schema: u32,
    /// The run's number.
    pub run: u32,
    /// Who is enrolled.
    pub agents: Vec<u32>,
    /// Whose keys are for sealed frames.
    pub sealed: Vec<u32>,
    /// W.
    pub window: u32,
    /// How it learns.
    pub config: RunConfig,
}

impl RunTerms {
    pub(super) fn new(run: &RunConfig, registry: &Registry, window: u32) -> Result<Self, ConfigError> {
        let agents: Vec<u32> = registry.devices.iter().map(|device| device.agent).collect();
        let sealed = registry.devices.iter().filter(|device| device.sealed).map(|device| device.agent).collect();
        let config = RunConfig { agents: agents.len(), dim: registry.dimension.into(), ..*run };
        let terms = Self { schema: SCHEMA, run: registry.run, agents, sealed, window, config };
        terms.resolve().validate()?;
        if config.aggregator.is_simulated() {
            let advice = "is for simulations alone; geometric-median is a rule for real devices";
            return Err(ConfigError::new("aggregator", format!("{} {advice}", config.aggregator)));
        }
        Ok(terms)
    }

    pub(super) fn resolve(&self) -> ResolvedRun {
        self.config.resolve(RunConfig::SIGMA)
    }

    /// The terms of a store.
    ///
    /// # Errors
    /// There are none, or they are of another schema.
    pub fn of(store: &dyn Store) -> Result<Self, StartError> {
        Self::read(store)?.ok_or(StartError::NotBegun)
    }

    pub(super) fn read(store: &dyn Store) -> Result<Option<Self>, StartError> {
        let Some(stored) = store.value("terms")? else { return Ok(None) };
        let stored: serde_json::Value = serde_json::from_slice(&stored).map_err(StartError::Terms)?;
        match stored["schema"].as_u64() {
            Some(schema) if schema != u64::from(SCHEMA) => Err(StartError::Schema(schema)),
            _ => Ok(Some(serde_json::from_value(stored).map_err(StartError::Terms)?)),
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn about(&self) -> Result<RunInfo, ConfigError> {
        let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(&self.to_bytes()).as_bytes();
        Ok(RunInfo {
            config_hash: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            episodes: self.resolve().controller_config()?.episodes.count(),
            privacy: self.config.privacy.map(|privacy| (privacy.0, self.config.mechanism)),
        })
    }

    /// What differs, for people.
    pub(super) fn differences(&self, other: &Self) -> String {
        let mut differences = Vec::new();
        let [own, others] =
            [&self.config, &other.config].map(|config| serde_json::to_value(config).unwrap_or_default());
        for (key, value) in own.as_object().into_iter().flatten().filter(|(key, value)| others[key.as_str()] != **value)
        {
            differences.push(format!("{key} is {value} there, not {}", others[key.as_str()]));
        }
        for (name, own, other) in [("run", self.run, other.run), ("window", self.window, other.window)] {
            if own != other {
                differences.push(format!("{name} is {own} there, not {other}"));
            }
        }
        if self.agents != other.agents {
            differences.push("other devices are enrolled".into());
        }
        if self.sealed != other.sealed {
            differences.push("other devices have sealed frames".into());
        }
        differences.join("; ")
    }
}
