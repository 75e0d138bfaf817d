//! Resolves a configuration to rules, schedules and private streams.

use std::num::NonZeroU32;

use fedbandit_core::MAX_EPISODE_LEN;
use rand_pcg::rand_core::Rng;

use super::{AggregatorName, ConfigError, RewardKind, RunConfig, ScheduleName};
use crate::aggregate::{
    Aggregator, CoordinateMedian, GeometricMedian, Groups, Krum, Mean, MultiKrum, Tolerance, TrimmedMean, corrupted,
};
use crate::algorithm::{
    Calibrated, ControllerConfig, Episodes, GroupedRule, Inexact, Level, PaperRule, Problem, Rule, Schedule,
    SoloSchedule, StreamNoise, Theorem, TheoremNumber,
};
use crate::math::rng::{Purpose, generator};
use crate::privacy::Plan;
use crate::privacy::calibration::NoiseBound;
use crate::robust::{Assumptions, Capped, Centre, Whitened};

/// ε of the theorems with an inexact geometric median.
const EPSILON: f64 = 1e-3;

/// A [`RunConfig`] with σ, from which all defaults follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ResolvedRun {
    pub(super) config: RunConfig,
    pub(super) sigma: f64,
    /// Source of the noise level R that rules assume: `rewards`, or what a simulation has in its place.
    pub(crate) noise: RewardKind,
    /// S that rules assume: `theta-norm`, or what a simulation has in its place.
    pub(crate) theta_bound: f64,
}

impl ResolvedRun {
    /// Returns the rule for streams of single agents.
    pub(crate) fn rule(&self, seed: u64) -> Result<Box<dyn Rule + Send>, ConfigError> {
        let rule = self.rule_on_units()?;
        Ok(match self.groups(seed)? {
            Some(groups) => Box::new(GroupedRule { groups, rule }),
            None => rule,
        })
    }

    /// Returns the rule for streams of units, which are groups if the rule has groups.
    pub(crate) fn rule_on_units(&self) -> Result<Box<dyn Rule + Send>, ConfigError> {
        let f = corrupted(self.design_corruption(), self.config.agents);
        match self.config.aggregator {
            AggregatorName::GeometricMedian | AggregatorName::MedianOfMeans => {
                self.paper_rule(GeometricMedian::new(self.tolerance()))
            }
            AggregatorName::Mean | AggregatorName::Oracle | AggregatorName::Solo => self.paper_rule(Mean),
            AggregatorName::CoordinateMedian => self.paper_rule(CoordinateMedian),
            AggregatorName::TrimmedMean => self.paper_rule(TrimmedMean { f }),
            AggregatorName::Krum => self.paper_rule(Krum { f }),
            AggregatorName::MultiKrum => self.paper_rule(MultiKrum { f, m: None }),
            AggregatorName::WhitenedFilter => Ok(Box::new(Whitened::new(Centre::Filter, self.assumptions()?))),
            AggregatorName::WhitenedOracle => Ok(Box::new(Whitened::new(Centre::Mean, self.assumptions()?))),
            AggregatorName::CappedFilter => Ok(Box::new(match self.noise {
                RewardKind::Auto(_) => Capped::with_noise_bound(self.assumptions()?),
                RewardKind::Gaussian(_) | RewardKind::Bounded => Capped::new(self.assumptions()?),
            })),
        }
    }

    fn paper_rule(
        &self,
        aggregator: impl Aggregator + Clone + Send + 'static,
    ) -> Result<Box<dyn Rule + Send>, ConfigError> {
        Ok(Box::new(PaperRule::new(aggregator.clone(), aggregator, self.schedule()?)))
    }

    /// Returns the assumptions of rules beyond the paper.
    pub(crate) fn assumptions(&self) -> Result<Assumptions, ConfigError> {
        Ok(Assumptions {
            corruption: self.design_corruption(),
            noise: self.noise.noise(),
            theta_bound: self.theta_bound,
            stream_noise: self.stream_noise()?,
            forgetting: self.config.forget.is_some(),
        })
    }

    /// Draws the groups of a median of means.
    #[expect(clippy::disallowed_methods, reason = "groups are drawn from a seed that is given")]
    pub(crate) fn groups(&self, seed: u64) -> Result<Option<Groups>, ConfigError> {
        let RunConfig { agents, aggregator, .. } = self.config;
        if aggregator != AggregatorName::MedianOfMeans {
            return Ok(None);
        }
        let drawn = generator(seed, Purpose::Groups, 0).next_u64();
        let groups = Groups::for_corruption(agents, corrupted(self.design_corruption(), agents), drawn);
        groups.map(Some).map_err(|error| ConfigError::new("design-corruption", error))
    }

    fn tolerance(&self) -> Tolerance {
        match (self.config.schedule, self.theorem_number()) {
            (ScheduleName::Calibrated, _) => Tolerance::Relative(1e-6),
            (ScheduleName::Theorem, TheoremNumber::One) => Tolerance::Relative(1e-9),
            (ScheduleName::Theorem, TheoremNumber::Two | TheoremNumber::Three) => Tolerance::Absolute(EPSILON),
        }
    }

    /// Returns the theorem for this aggregator and privacy.
    fn theorem_number(&self) -> TheoremNumber {
        match (self.config.aggregator, self.config.privacy) {
            (AggregatorName::MedianOfMeans, _) => TheoremNumber::Three,
            (_, Some(_)) => TheoremNumber::Two,
            (_, None) => TheoremNumber::One,
        }
    }

    fn schedule(&self) -> Result<Box<dyn Schedule + Send>, ConfigError> {
        let RunConfig { aggregator, schedule, delta, .. } = self.config;
        let (theta_bound, noise) = (self.theta_bound, self.stream_noise()?);
        Ok(match (schedule, aggregator) {
            (_, AggregatorName::Solo) => Box::new(SoloSchedule { noise: self.noise.noise(), theta_bound, delta }),
            (ScheduleName::Calibrated, _) => {
                let corruption = match aggregator {
                    AggregatorName::Oracle => 0.0,
                    // At most N₁ of 3·N₁ groups have a corrupted agent.
                    AggregatorName::MedianOfMeans if self.design_corruption() > 0.0 => 1.0 / 3.0,
                    _ => self.design_corruption(),
                };
                Box::new(Calibrated { corruption, theta_bound, noise })
            }
            (ScheduleName::Theorem, _) => {
                let exact = Inexact { epsilon: EPSILON, ..Inexact::default() };
                let inexact = noise.map_or(exact, |noise| noise.inexact(EPSILON));
                let episode_len = self.episodes()?.length(u32::MAX);
                Box::new(Theorem { number: self.theorem_number(), problem: self.problem(), episode_len, inexact })
            }
        })
    }

    /// Returns the plan for private streams.
    pub(crate) fn plan(&self, seed: u64) -> Result<Option<Plan>, ConfigError> {
        let Some(privacy) = self.config.privacy else { return Ok(None) };
        let plan = Plan::new(&self.controller_config()?, privacy.0, self.config.mechanism, seed);
        plan.map(Some).map_err(|error| ConfigError::new("privacy", error))
    }

    /// Returns the noise of private streams.
    fn stream_noise(&self) -> Result<Option<StreamNoise>, ConfigError> {
        let Some(plan) = self.plan(0)? else { return Ok(None) };
        let default = match self.config.schedule {
            ScheduleName::Calibrated => NoiseBound::Exact,
            ScheduleName::Theorem => NoiseBound::Paper,
        };
        let smallest = self.groups(0)?.and_then(|groups| groups.sizes().min()).unwrap_or(1);
        Ok(Some(StreamNoise {
            noise: *plan.noise(),
            fleet: plan.fleet(self.config.agents as u32, smallest as u32, self.config.delta),
            bound: self.config.noise_bound.unwrap_or(default),
        }))
    }

    fn design_corruption(&self) -> f64 {
        let default = || if self.config.aggregator == AggregatorName::MedianOfMeans { 0.25 } else { 0.3 };
        self.config.design_corruption.unwrap_or_else(default)
    }

    /// Returns L, not more than T.
    pub(crate) fn longest(&self) -> u32 {
        let RunConfig { steps, episode_len, aggregator, schedule, .. } = self.config;
        let theorem = || match aggregator {
            AggregatorName::MedianOfMeans => self.problem().episode_len_of_means(),
            _ => self.problem().episode_len(),
        };
        let default = || match schedule {
            ScheduleName::Calibrated => 64,
            ScheduleName::Theorem => theorem().clamp(1, MAX_EPISODE_LEN),
        };
        episode_len.unwrap_or_else(default).min(steps)
    }

    fn episodes(&self) -> Result<Episodes, ConfigError> {
        let RunConfig { dim, steps, first_episode, first_episodes, aggregator, schedule, privacy, .. } = self.config;
        let longest = self.longest();
        let equal = schedule == ScheduleName::Theorem || privacy.is_some();
        let first = first_episode.unwrap_or(if equal { longest } else { 4.min(longest) });
        let starts = first_episodes.unwrap_or(if aggregator.is_whitened() { 2 * dim as u32 } else { 1 });
        Episodes::with_starts(steps, first, starts, longest).map_err(|error| ConfigError::new("episode-len", error))
    }

    pub(crate) fn controller_config(&self) -> Result<ControllerConfig, ConfigError> {
        Ok(ControllerConfig {
            dimension: self.config.dim as u8,
            episodes: self.episodes()?,
            level: self.level(),
            reward_bound: self.config.rewards.bound(),
            window: 0,
            half_life: self.half_life(),
        })
    }

    /// Returns H.
    pub(crate) fn half_life(&self) -> Option<NonZeroU32> {
        self.config.forget.and_then(NonZeroU32::new)
    }

    pub(super) fn level(&self) -> Level {
        let RunConfig { aggregator, admission, privacy, .. } = self.config;
        let default = if aggregator.is_whitened() && privacy.is_none() { Level::Drop } else { Level::Strict };
        admission.unwrap_or(default)
    }

    fn problem(&self) -> Problem {
        let RunConfig { agents, dim, steps, delta, .. } = self.config;
        Problem {
            agents,
            horizon: steps,
            dimension: dim,
            corruption: self.design_corruption(),
            sigma: self.sigma,
            noise: self.noise.noise(),
            delta,
        }
    }
}
