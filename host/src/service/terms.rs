//! Terms of a run: the part of its configuration that the store fixes when the run starts.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::continuation::Continuation;
use super::registry::Registry;
use super::start::StartError;
use super::state_machine::RunInfo;
use super::store::Store;
use crate::algorithm::PriorModel;
use crate::config::{ConfigError, ResolvedRun, RunConfig};

/// Version of the store's content. Version 4 added snapshots and devices that are enrolled during a run.
pub const SCHEMA: u32 = 4;
/// Oldest version that is read, and migrated when a service starts.
pub(super) const OLDEST_SCHEMA: u32 = 3;

/// Terms of a run. They are stored when the run starts; a service with different terms is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunTerms {
    schema: u32,
    /// Number of the run.
    pub run: u32,
    /// Numbers of the enrolled devices.
    pub agents: Vec<u32>,
    /// Numbers of the devices with sealed frames.
    pub sealed: Vec<u32>,
    /// W.
    pub window: u32,
    /// Settings of the run.
    pub config: RunConfig,
    /// The earlier runs that this one continues; absent in a first run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<Continuation>,
}

impl RunTerms {
    pub(super) fn new(run: &RunConfig, registry: &Registry, window: u32) -> Result<Self, ConfigError> {
        let agents: Vec<u32> = registry.devices.iter().map(|device| device.agent).collect();
        let sealed = registry.devices.iter().filter(|device| device.sealed).map(|device| device.agent).collect();
        let config = RunConfig { agents: agents.len(), dim: registry.dimension.into(), ..*run };
        let continues = registry.continues.clone();
        let terms = Self { schema: SCHEMA, run: registry.run, agents, sealed, window, config, continues };
        terms.resolve().validate()?;
        if config.aggregator.is_simulation_only() {
            let reason = format!(
                "{} is available in simulations only; use geometric-median for real devices",
                config.aggregator
            );
            return Err(ConfigError::new("aggregator", reason));
        }
        if config.privacy.is_some() && registry.guard {
            let reason = "guarded devices remember data of earlier episodes, which a private run must forget; enroll the devices \
                          in a new directory with --private";
            return Err(ConfigError::new("privacy", reason));
        }
        Ok(terms)
    }

    /// Returns true if devices may be enrolled while the run goes on.
    pub fn accepts_devices(&self) -> bool {
        self.config.aggregator.tolerates_absence() && self.config.privacy.is_none()
    }

    /// Returns these terms without the devices that were enrolled after the run with the stored terms began, if it accepts
    /// devices.
    pub(super) fn as_begun(&self, stored: &Self) -> Self {
        if !stored.accepts_devices() || !self.agents.starts_with(&stored.agents) {
            return self.clone();
        }
        let last = stored.agents.last().copied().unwrap_or(0);
        let sealed = self.sealed.iter().copied().filter(|agent| *agent <= last).collect();
        let config = RunConfig { agents: stored.config.agents, ..self.config };
        Self { agents: stored.agents.clone(), sealed, config, ..self.clone() }
    }

    pub(super) fn resolve(&self) -> ResolvedRun {
        self.config.resolve(RunConfig::SIGMA)
    }

    /// Returns the last model of the run that this one continues.
    ///
    /// # Errors
    /// It has another dimension.
    pub(super) fn prior(&self) -> Result<Option<PriorModel>, ConfigError> {
        let Some(Continuation { prior, .. }) = &self.continues else { return Ok(None) };
        if prior.dimension() == self.config.dim {
            return Ok(Some(prior.clone()));
        }
        let [prior, own] = [prior.dimension(), self.config.dim];
        let reason =
            format!("the run that this one continues has dimension {prior}, not {own}; enroll the devices anew");
        Err(ConfigError::new("dim", reason))
    }

    /// Reads the terms of a store.
    ///
    /// # Errors
    /// The run has not begun, or its terms are corrupt or have another schema.
    pub fn load(store: &dyn Store) -> Result<Self, StartError> {
        Self::find(store)?.ok_or(StartError::NotBegun)
    }

    /// Reads the terms of a store; none if the run has not begun.
    pub(super) fn find(store: &dyn Store) -> Result<Option<Self>, StartError> {
        let Some(stored) = store.value("terms")? else { return Ok(None) };
        let stored: Value = serde_json::from_slice(&stored).map_err(StartError::Terms)?;
        match stored["schema"].as_u64() {
            Some(schema) if !(OLDEST_SCHEMA.into()..=SCHEMA.into()).contains(&schema) => {
                Err(StartError::Schema(schema))
            }
            _ => Ok(Some(serde_json::from_value(stored).map_err(StartError::Terms)?)),
        }
    }

    /// Returns the schema of the store that these terms were read from.
    pub fn schema(&self) -> u32 {
        self.schema
    }

    /// Returns these terms in the present schema.
    pub(super) fn migrated(self) -> Self {
        Self { schema: SCHEMA, ..self }
    }

    /// Describes the run, for the first line of an export.
    pub fn head(&self) -> Value {
        serde_json::json!({ "version": crate::VERSION, "run": self.run, "config": self.config })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn info(&self) -> Result<RunInfo, ConfigError> {
        let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(&self.to_bytes()).as_bytes();
        Ok(RunInfo {
            config_hash: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            episodes: self.resolve().controller_config()?.episodes.count(),
            privacy: self.config.privacy.map(|privacy| (privacy.0, self.config.mechanism)),
            assumptions: self.resolve().assumptions()?,
            tolerates_absence: self.config.aggregator.tolerates_absence(),
            accepts_devices: self.accepts_devices(),
            continues: self.continues.clone(),
        })
    }

    /// Describes how these stored terms differ from the configured ones.
    pub(super) fn differences(&self, configured: &Self) -> String {
        let mut differences = Vec::new();
        let [stored, expected] = [self, configured].map(|terms| {
            let mut values = serde_json::to_value(&terms.config).unwrap_or_default();
            (values["run"], values["window"]) = (terms.run.into(), terms.window.into());
            values
        });
        // Some keys are absent while they are unset, so that terms of earlier versions keep their bytes.
        let keys: BTreeSet<&String> =
            [&stored, &expected].into_iter().filter_map(Value::as_object).flat_map(Map::keys).collect();
        for key in keys.into_iter().map(String::as_str).filter(|key| stored[key] != expected[key]) {
            differences.push(format!("{key} is {}, configured {}", stored[key], expected[key]));
        }
        if self.agents != configured.agents {
            differences.push("the enrolled devices differ".into());
        }
        if self.sealed != configured.sealed {
            differences.push("the devices with sealed frames differ".into());
        }
        if self.continues != configured.continues {
            differences.push("the run that this one continues differs".into());
        }
        differences.join("; ")
    }
}
