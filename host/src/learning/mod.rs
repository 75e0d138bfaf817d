//! How agents learn together, whether they are simulated or real: what is said of it, by keys, and what comes of that.

mod check;
mod choices;
mod rules;

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::admission::{Level, SettingError};
use crate::keys;
use crate::names::{optional_text, text};
use crate::privacy::calibration::{Mechanism, NoiseBound};
use crate::setting::SetupError;
pub(crate) use choices::MAX_REWARD;
pub use choices::{AggregatorName, Privacy, RewardKind, ScheduleName};
pub(crate) use rules::Rules;

/// How N agents of dimension d learn together. Read from a file, what is not there has its default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Learning {
    /// N.
    pub agents: usize,
    /// d.
    pub dim: usize,
    /// T.
    pub steps: u32,
    /// L. The default is 64, or the theorem's own.
    pub episode_len: Option<u32>,
    /// L_1: episodes grow as L_1, 2L_1, 4L_1, … up to L. The default is 4, but L with privacy or by a theorem.
    pub first_episode: Option<u32>,
    /// s: so many episodes have length L_1 before lengths grow. The default is 1, and 2d for whitened rules.
    pub first_episodes: Option<u32>,
    /// What rewards are.
    #[serde(with = "text")]
    pub rewards: RewardKind,
    /// The bound S on ‖θ*‖₂ that widths use; simulated, it is ‖θ*‖₂.
    pub theta_norm: f64,
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
    /// σ of the theorems. The default is √2, and in a simulation 0 where all agents have the same decision sets.
    pub sigma: Option<f64>,
}

impl Default for Learning {
    fn default() -> Self {
        Self {
            agents: 100,
            dim: 8,
            steps: 4096,
            episode_len: None,
            first_episode: None,
            first_episodes: None,
            rewards: RewardKind::Gaussian(0.5),
            theta_norm: 1.0,
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

impl Learning {
    /// Default σ of Assumption 1, ‖xxᵀ − M‖_F ≤ σ with M = E(xxᵀ): √2 holds for all decision sets.
    ///
    /// ‖x‖₂ ≤ 1 gives ‖xxᵀ‖_F = ‖x‖₂² ≤ 1. M ⪰ 0 gives ⟨xxᵀ, M⟩ = xᵀMx ≥ 0 and ‖M‖_F ≤ tr M = E‖x‖₂² ≤ 1. Hence
    /// ‖xxᵀ − M‖_F² = ‖xxᵀ‖_F² − 2⟨xxᵀ, M⟩ + ‖M‖_F² ≤ 2. No smaller constant holds: for x = e₁ with probability p and x = e₂
    /// otherwise, ‖e₁e₁ᵀ − M‖_F = √2·(1 − p).
    pub(crate) const SIGMA: f64 = std::f64::consts::SQRT_2;

    /// What comes of this, with the σ that holds unless another one is said.
    pub(crate) fn rules(&self, sigma: f64) -> Rules {
        Rules { learning: *self, sigma: self.sigma.unwrap_or(sigma) }
    }

    /// With another value of one key, as a file or an option gives it.
    ///
    /// # Errors
    /// There is no such key, or the value is not of its kind.
    pub fn with(&self, key: &str, value: serde_json::Value) -> Result<Self, String> {
        keys::with(self, key, value)
    }
}

/// What makes no sense in a configuration.
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

pub(crate) fn fail(key: &'static str, reason: impl fmt::Display) -> Result<(), ConfigError> {
    Err(ConfigError::new(key, reason))
}
