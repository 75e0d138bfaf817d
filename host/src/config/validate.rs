//! Validates a configuration.

use fedbandit_core::MAX_EPISODE_LEN;

use super::{AggregatorName, ConfigError, MAX_REWARD, ResolvedRun, RewardKind, RunConfig, ScheduleName, fail};
use crate::algorithm::{AdmissionError, Level, check_episode_len};

/// Largest N.
const MAX_AGENTS: usize = 10_000_000;

impl ResolvedRun {
    /// Validates the configuration.
    ///
    /// # Errors
    /// The first invalid value, by its key.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        self.validate_shape()?;
        self.validate_problem()?;
        self.validate_rule()?;
        self.validate_forgetting()?;
        self.rule(0).map(drop)
    }

    /// Validates the numbers of agents and steps and the episode lengths.
    fn validate_shape(&self) -> Result<(), ConfigError> {
        let RunConfig { agents, steps, episode_len, first_episode, first_episodes, .. } = self.config;
        if !(1..=MAX_AGENTS).contains(&agents) {
            return fail("agents", format!("must be from 1 to {MAX_AGENTS}, got {agents}"));
        }
        if steps == 0 {
            return fail("steps", "must be at least 1, got 0");
        }
        if let Some(length) = episode_len {
            check_episode_len(length, MAX_EPISODE_LEN).map_err(|error| ConfigError::new("episode-len", error))?;
        }
        if let Some(first) = first_episode {
            check_episode_len(first, self.longest()).map_err(|error| ConfigError::new("first-episode", error))?;
        }
        if let Some(starts) = first_episodes.filter(|starts| !(1..=MAX_EPISODE_LEN).contains(starts)) {
            return fail("first-episodes", format!("must be from 1 to {MAX_EPISODE_LEN}, got {starts}"));
        }
        Ok(())
    }

    /// Validates the assumptions about agents and rewards.
    fn validate_problem(&self) -> Result<(), ConfigError> {
        let RunConfig { design_corruption, theta_norm, rewards, delta, sigma, .. } = self.config;
        if let Some(share) = design_corruption.filter(|share| !(0.0..0.5).contains(share)) {
            return fail("design-corruption", format!("must be at least 0 and below 0.5, got {share}"));
        }
        if !(theta_norm > 0.0 && theta_norm <= MAX_REWARD) {
            return fail("theta-norm", format!("must be positive and at most {MAX_REWARD:e}, got {theta_norm}"));
        }
        if rewards == RewardKind::Bounded && theta_norm > 1.0 {
            return fail("theta-norm", format!("must be at most 1 with bounded rewards, got {theta_norm}"));
        }
        if !(delta > 0.0 && delta < 1.0) {
            return fail("delta", format!("must be between 0 and 1, got {delta}"));
        }
        if let Some(sigma) = sigma.filter(|sigma| !(0.0..=2.0).contains(sigma)) {
            return fail("sigma", format!("must be from 0 to 2, got {sigma}"));
        }
        Ok(())
    }

    /// Validates combinations of rule, schedule, privacy and admission level.
    fn validate_rule(&self) -> Result<(), ConfigError> {
        let RunConfig { privacy, rewards, aggregator, schedule, .. } = self.config;
        if privacy.is_some() && rewards.bound().is_none() {
            let why = "otherwise one message could change the sums without limit";
            return fail("privacy", format!("requires bounded rewards (rewards = \"bounded\"); {why}"));
        }
        if privacy.is_some() && aggregator == AggregatorName::Solo {
            return fail("privacy", "not available with solo, which sends no messages");
        }
        if aggregator.is_whitened() && !(self.noise.noise() > 0.0) {
            let reason =
                format!("{aggregator} needs a noise level R > 0 (e.g. gaussian:0.5) to tell noise from corruption");
            return fail("rewards", reason);
        }
        if let (AggregatorName::WhitenedFilter, RewardKind::Auto(bound)) = (aggregator, self.noise) {
            let remedy = format!("use capped-filter, or declare R (gaussian:{bound} if only a bound is known)");
            return fail("rewards", format!("{aggregator} does not estimate the noise level (auto); {remedy}"));
        }
        if aggregator.is_whitened() && schedule == ScheduleName::Theorem {
            return fail("schedule", format!("no theorem covers {aggregator}; use calibrated"));
        }
        let needs_all_agents = matches!(
            aggregator,
            AggregatorName::TrimmedMean
                | AggregatorName::Krum
                | AggregatorName::MultiKrum
                | AggregatorName::MedianOfMeans
        );
        if self.level() == Level::Drop && needs_all_agents {
            let reason =
                format!("{aggregator} needs a fixed number of agents, so that none can be dropped; use strict");
            return fail("admission", reason);
        }
        if self.level() == Level::Drop && privacy.is_some() {
            return fail("admission", AdmissionError::PrivacyCannotDrop);
        }
        Ok(())
    }

    /// Validates the half-life and its combinations.
    fn validate_forgetting(&self) -> Result<(), ConfigError> {
        let RunConfig { forget, privacy, schedule, aggregator, .. } = self.config;
        let Some(half_life) = forget else { return Ok(()) };
        if half_life == 0 {
            return fail("forget", "must be at least 1 step, got 0");
        }
        if privacy.is_some() {
            let why = "its proof needs sums in which every message keeps its weight";
            return fail("forget", format!("not available with privacy; {why}"));
        }
        if aggregator == AggregatorName::CappedFilter && matches!(self.noise, RewardKind::Auto(_)) {
            let why = "the noise of old steps counts less than R";
            return fail(
                "forget",
                format!("not available with an estimated noise level (auto); {why}. Use gaussian:R"),
            );
        }
        if schedule == ScheduleName::Theorem {
            let why = "the theorems are about sums in which every message keeps its weight";
            return fail("forget", format!("not available with schedule theorem; {why}. Use calibrated"));
        }
        Ok(())
    }
}
