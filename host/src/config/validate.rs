//! What makes sense.

use fedbandit_core::MAX_EPISODE_LEN;

use super::{AggregatorName, ConfigError, MAX_REWARD, ResolvedRun, RewardKind, RunConfig, ScheduleName, fail};
use crate::algorithm::Level;

/// The largest N.
const MAX_AGENTS: usize = 10_000_000;

impl ResolvedRun {
    /// Whether one can learn by this.
    ///
    /// # Errors
    /// The first thing that makes no sense, by its key.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        self.validate_shape()?;
        self.validate_problem()?;
        self.validate_rule()?;
        self.rule(0).map(drop)
    }

    /// How many and how long.
    fn validate_shape(&self) -> Result<(), ConfigError> {
        let RunConfig { agents, steps, episode_len, first_episode, first_episodes, .. } = self.config;
        if !(1..=MAX_AGENTS).contains(&agents) {
            return fail("agents", format!("must be from 1 to {MAX_AGENTS}, not {agents}"));
        }
        if steps == 0 {
            return fail("steps", "there must be at least one step");
        }
        if let Some(length) = episode_len.filter(|length| !(1..=MAX_EPISODE_LEN).contains(length)) {
            return fail("episode-len", format!("must be from 1 to {MAX_EPISODE_LEN}, not {length}"));
        }
        if let Some(first) = first_episode.filter(|first| *first == 0 || *first > self.longest()) {
            return fail(
                "first-episode",
                format!("must be from 1 to the episode length {}, not {first}", self.longest()),
            );
        }
        if let Some(starts) = first_episodes.filter(|starts| !(1..=MAX_EPISODE_LEN).contains(starts)) {
            return fail("first-episodes", format!("must be from 1 to {MAX_EPISODE_LEN}, not {starts}"));
        }
        Ok(())
    }

    /// What is assumed of agents and rewards.
    fn validate_problem(&self) -> Result<(), ConfigError> {
        let RunConfig { design_corruption, theta_norm, rewards, delta, sigma, .. } = self.config;
        if let Some(share) = design_corruption.filter(|share| !(0.0..0.5).contains(share)) {
            return fail("design-corruption", format!("must be at least 0 and below 0.5, not {share}"));
        }
        if !(theta_norm > 0.0 && theta_norm <= MAX_REWARD) {
            return fail("theta-norm", format!("must be positive and at most {MAX_REWARD:e}, not {theta_norm}"));
        }
        if rewards == RewardKind::Bounded && theta_norm > 1.0 {
            return fail("theta-norm", format!("{theta_norm} gives rewards beyond 1; bounded ones need at most 1"));
        }
        if !(delta > 0.0 && delta < 1.0) {
            return fail("delta", format!("must be between 0 and 1, not {delta}"));
        }
        if let Some(sigma) = sigma.filter(|sigma| !(0.0..=2.0).contains(sigma)) {
            return fail("sigma", format!("must be from 0 to 2, not {sigma}"));
        }
        Ok(())
    }

    /// What goes together.
    fn validate_rule(&self) -> Result<(), ConfigError> {
        let RunConfig { privacy, rewards, aggregator, schedule, .. } = self.config;
        if privacy.is_some() && rewards.bound().is_none() {
            let why = "without a bound one message could change the sums without limit";
            return fail("privacy", format!("it needs bounded rewards (rewards = \"bounded\"): {why}"));
        }
        if privacy.is_some() && aggregator == AggregatorName::Solo {
            return fail("privacy", "solo sends nothing that could be made private");
        }
        if aggregator.is_whitened() && !(rewards.noise() > 0.0) {
            let why = "it tells noise from lies by that";
            return fail("rewards", format!("{aggregator} needs a noise level R > 0, as gaussian:0.5: {why}"));
        }
        if aggregator.is_whitened() && schedule == ScheduleName::Theorem {
            return fail("schedule", format!("no theorem of the paper is about {aggregator}"));
        }
        let counted = [AggregatorName::TrimmedMean, AggregatorName::Krum, AggregatorName::MultiKrum];
        let counted = counted.contains(&aggregator) || aggregator.is_of_means();
        if self.level() == Level::Drop && counted {
            return fail("admission", format!("{aggregator} counts on the number of agents: nobody can be dropped"));
        }
        if self.level() == Level::Drop && privacy.is_some() {
            return fail("admission", "with privacy nobody can be dropped for what a message said");
        }
        Ok(())
    }
}
