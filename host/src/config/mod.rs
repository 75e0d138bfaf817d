//! The configuration model.
//!
//! A [`RunConfig`] describes a run. [`SimulationConfig`](crate::simulation::SimulationConfig) adds the simulated world, and
//! [`ServiceConfig`](crate::service::config::ServiceConfig) adds addresses and deadlines. All of them are sets of [`Key`]s,
//! read by [`Configure`]: a flag overrides an environment variable, which overrides a TOML file, which overrides the default.

mod choices;
pub(crate) mod keys;
mod resolve;
mod run_config;
mod validate;

use std::fmt;
use std::path::Path;

use thiserror::Error;

use crate::algorithm::{AdmissionError, SetupError};
pub(crate) use choices::MAX_REWARD;
pub use choices::{AggregatorName, Privacy, RewardKind, ScheduleName};
pub use keys::{Configure, Key, parse_toml};
pub(crate) use resolve::ResolvedRun;
pub use run_config::RunConfig;

/// Error returned for an invalid configuration: the key, the reason and, if known, the place in a file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ConfigError {
    key: String,
    reason: String,
    place: Option<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [self.place.as_deref().unwrap_or_default(), &self.key, &self.reason];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        f.write_str(&parts.join(": "))
    }
}

impl ConfigError {
    pub(crate) fn new(key: &str, reason: impl fmt::Display) -> Self {
        Self { key: key.to_owned(), reason: reason.to_string(), place: None }
    }

    /// Creates an error about a file as a whole.
    pub fn in_file(file: &Path, reason: impl fmt::Display) -> Self {
        Self { place: Some(file.display().to_string()), ..Self::new("", reason) }
    }

    /// Adds the file and the line of the key.
    pub(crate) fn at(self, file: &Path, line: usize) -> Self {
        Self { place: Some(format!("{}:{line}", file.display())), ..self }
    }
}

impl From<SetupError> for ConfigError {
    fn from(error: SetupError) -> Self {
        let key = match error {
            SetupError::EnrolledTwice(_) => "agents",
            SetupError::Window(_) => "window",
            SetupError::PrivateHalfLife => "forget",
            SetupError::Admission(AdmissionError::EpisodeLen(_)) => "episode-len",
            SetupError::Admission(AdmissionError::RewardBound(_)) => "rewards",
            SetupError::Admission(AdmissionError::PrivacyNeedsBoundedRewards) => "privacy",
            SetupError::Admission(AdmissionError::PrivacyCannotDrop) => "admission",
            SetupError::Shape(_) => "dim",
            SetupError::Rule(_) => "aggregator",
            SetupError::FirstModel => "schedule",
        };
        Self::new(key, error)
    }
}

/// Returns an error about a key.
pub(crate) fn fail(key: &'static str, reason: impl fmt::Display) -> Result<(), ConfigError> {
    Err(ConfigError::new(key, reason))
}
