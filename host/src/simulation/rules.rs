//! From names to rules, schedules and private streams.

use super::config::{AggregatorName, Config, ConfigError, ScheduleName};
use super::random::{Use, generator};
use crate::aggregate::{
    Aggregator, CoordinateMedian, GeometricMedian, Groups, Krum, Mean, MultiKrum, Tolerance, TrimmedMean, corrupted,
};
use crate::privacy::Plan;
use crate::privacy::calibration::NoiseBound;
use crate::rule::{OfMeans, Rule, Schedule, Separate};
use crate::schedule::{Alone, Calibrated, Inexact, Number, StreamNoise, Theorem};
use crate::whitened::{Assumptions, Centre, Whitened};
use rand_pcg::rand_core::Rng;

/// ε of the theorems that allow for an inexact oracle.
const EPSILON: f64 = 1e-3;

impl Config {
    /// The rule on streams of single agents.
    pub(crate) fn rule(&self, seed: u64) -> Result<Box<dyn Rule + Send>, ConfigError> {
        let rule = self.rule_on_units()?;
        Ok(match self.groups(seed)? {
            Some(groups) => Box::new(OfMeans { groups, rule }),
            None => rule,
        })
    }

    /// The rule on streams of units: of groups, where there are groups.
    pub(crate) fn rule_on_units(&self) -> Result<Box<dyn Rule + Send>, ConfigError> {
        let f = corrupted(self.design_corruption(), self.agents);
        match self.aggregator {
            AggregatorName::GeometricMedian | AggregatorName::MedianOfMeans => {
                self.separate(GeometricMedian::new(self.tolerance()))
            }
            AggregatorName::Mean | AggregatorName::Oracle | AggregatorName::Solo => self.separate(Mean),
            AggregatorName::CoordinateMedian => self.separate(CoordinateMedian),
            AggregatorName::TrimmedMean => self.separate(TrimmedMean { f }),
            AggregatorName::Krum => self.separate(Krum { f }),
            AggregatorName::MultiKrum => self.separate(MultiKrum { f, m: None }),
            AggregatorName::WhitenedFilter | AggregatorName::WhitenedMeans => self.whitened(Centre::Filter),
            AggregatorName::WhitenedMedian => self.whitened(Centre::Median),
            AggregatorName::WhitenedMedoid => self.whitened(Centre::Medoid),
            AggregatorName::WhitenedOracle => self.whitened(Centre::Mean),
        }
    }

    fn separate(
        &self,
        aggregator: impl Aggregator + Clone + Send + 'static,
    ) -> Result<Box<dyn Rule + Send>, ConfigError> {
        Ok(Box::new(Separate::new(aggregator.clone(), aggregator, self.schedule()?)))
    }

    fn whitened(&self, centre: Centre) -> Result<Box<dyn Rule + Send>, ConfigError> {
        Ok(Box::new(Whitened::new(centre, self.assumptions()?)))
    }

    fn assumptions(&self) -> Result<Assumptions, ConfigError> {
        let (noise, theta_bound, stream_noise) = (self.rewards.noise(), self.theta_norm, self.stream_noise()?);
        let (corruption, smallest) = match self.groups(0)? {
            // At most N₁ of 3·N₁ groups have a corrupted agent.
            Some(groups) => (if groups.len() > 1 { 1.0 / 3.0 } else { 0.0 }, groups.sizes().min().unwrap_or(1)),
            None => (self.design_corruption(), 1),
        };
        Ok(Assumptions { corruption, noise: noise / (smallest as f64).sqrt(), theta_bound, stream_noise })
    }

    /// The groups of a median of means, drawn before the first message.
    pub(crate) fn groups(&self, seed: u64) -> Result<Option<Groups>, ConfigError> {
        if !self.aggregator.is_of_means() {
            return Ok(None);
        }
        let drawn = generator(seed, Use::Groups, 0).next_u64();
        let groups = Groups::for_corruption(self.agents, corrupted(self.design_corruption(), self.agents), drawn);
        groups.map(Some).map_err(|error| ConfigError::new("design-corruption", error))
    }

    fn tolerance(&self) -> Tolerance {
        match (self.schedule, self.number()) {
            (ScheduleName::Calibrated, _) => Tolerance::Relative(1e-6),
            (ScheduleName::Theorem, Number::One) => Tolerance::Relative(1e-9),
            (ScheduleName::Theorem, Number::Two | Number::Three) => Tolerance::Absolute(EPSILON),
        }
    }

    /// The theorem that is about this aggregator, with or without privacy.
    fn number(&self) -> Number {
        match (self.aggregator, self.privacy) {
            (AggregatorName::MedianOfMeans, _) => Number::Three,
            (_, Some(_)) => Number::Two,
            (_, None) => Number::One,
        }
    }

    fn schedule(&self) -> Result<Box<dyn Schedule + Send>, ConfigError> {
        let noise = self.stream_noise()?;
        Ok(match (self.schedule, self.aggregator) {
            (_, AggregatorName::Solo) => Box::new(Alone {
                noise: self.rewards.noise(),
                theta_bound: self.theta_norm,
                delta: self.delta,
                episodes: self.episodes()?,
            }),
            (ScheduleName::Calibrated, aggregator) => {
                let corruption = match aggregator {
                    AggregatorName::Oracle => 0.0,
                    // At most N₁ of 3·N₁ groups have a corrupted agent.
                    AggregatorName::MedianOfMeans if self.design_corruption() > 0.0 => 1.0 / 3.0,
                    _ => self.design_corruption(),
                };
                Box::new(Calibrated { corruption, theta_bound: self.theta_norm, noise })
            }
            (ScheduleName::Theorem, _) => {
                let exact = Inexact { epsilon: EPSILON, ..Inexact::default() };
                let inexact = noise.map_or(exact, |noise| noise.inexact(EPSILON));
                let episode_len = self.episodes()?.length(u32::MAX);
                Box::new(Theorem { number: self.number(), problem: self.problem(), episode_len, inexact })
            }
        })
    }

    /// How private streams are made.
    pub(crate) fn plan(&self, seed: u64) -> Result<Option<Plan>, ConfigError> {
        let Some(privacy) = self.privacy else { return Ok(None) };
        let plan = Plan::new(&self.setting()?, privacy.0, self.mechanism, seed);
        plan.map(Some).map_err(|error| ConfigError::new("privacy", error))
    }

    /// What noise private streams have.
    fn stream_noise(&self) -> Result<Option<StreamNoise>, ConfigError> {
        let Some(plan) = self.plan(0)? else { return Ok(None) };
        let default = match self.schedule {
            ScheduleName::Calibrated => NoiseBound::Exact,
            ScheduleName::Theorem => NoiseBound::Paper,
        };
        let smallest = self.groups(0)?.and_then(|groups| groups.sizes().min()).unwrap_or(1);
        Ok(Some(StreamNoise {
            noise: *plan.noise(),
            fleet: plan.fleet(self.agents as u32, smallest as u32, self.delta),
            bound: self.noise_bound.unwrap_or(default),
        }))
    }
}
