//! Settings of a simulation.

use fedbandit_core::Rewards;

use super::attack::Attack;
use super::environment::Environment;
use super::fleet::{DIMENSIONS, FleetConfig};
use super::guard::GuardName;
use super::hostile_controller::Forgery;
use super::participation::Participation;
use crate::aggregate::corrupted;
use crate::config::keys::configuration;
use crate::config::{AggregatorName, ConfigError, MAX_REWARD, ResolvedRun, RewardKind, RunConfig, fail};

configuration! {
    /// Settings of a simulated run except its seed: how agents learn, and the world in which they do.
    #[derive(Clone, Debug, PartialEq)]
    pub struct SimulationConfig in run: RunConfig {
        /// Number of actions in a decision set; fixed-arms has d, and a log has its own number
        arms: usize = 10, "A";
        /// Environment: ball, skew, fixed-arms, shared, drifting (decision sets), drifting-theta (parameter), unequal, mixture or replay:FILE
        environment: Environment = Environment::Ball, "NAME";
        /// Behaviour of corrupted agents
        attack: Attack = Attack::Collude, "NAME";
        /// Share of corrupted agents, from 0 to below 0.5; to below 1 if devices are guarded
        corrupt: f64 = 0.3, "SHARE";
        /// Guard of devices against liars and hostile controllers: off, on or untrusting [default: on for whitened rules
        /// without privacy, else off]
        guard: Option<GuardName> = None, "NAME";
        /// Models of a hostile controller (attack hostile-controller)
        forgery: Forgery = Forgery::Search, "NAME";
        /// Presence of honest devices: always, sleepy (own probability, by episode), stretches (the same, by eighths of the run) or
        /// late (half of them join during the run)
        participation: Participation = Participation::Always, "NAME";
        /// Rewards that rules and guards assume, if other than the simulated ones: gaussian:R, bounded or auto:MAX [default: rewards]
        #[serde(skip_serializing_if = "Option::is_none")]
        assumed_rewards: Option<RewardKind> = None, "KIND";
        /// Bound S that rules and guards assume, if other than the norm of the true parameter [default: theta-norm]
        #[serde(skip_serializing_if = "Option::is_none")]
        assumed_theta_norm: Option<f64> = None, "S";
    }
}

impl SimulationConfig {
    /// Validates the configuration.
    ///
    /// # Errors
    /// The first invalid value, by its key.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !DIMENSIONS.contains(&self.run.dim) {
            return Err(unsupported_dimension(self.run.dim));
        }
        if self.arms == 0 || self.arms > MAX_ARMS {
            return fail("arms", format!("must be from 1 to {MAX_ARMS}, got {}", self.arms));
        }
        let limit = if self.guard() == GuardName::Off { 0.5 } else { 1.0 };
        if !(0.0..limit).contains(&self.corrupt) {
            return fail("corrupt", format!("must be at least 0 and below {limit}, got {}", self.corrupt));
        }
        if self.guard() != GuardName::Off && self.run.privacy.is_some() {
            return fail(
                "guard",
                "not available with privacy, whose proof needs devices that remember nothing but models",
            );
        }
        if let Some(bound) = self.assumed_theta_norm.filter(|bound| !(*bound > 0.0 && *bound <= MAX_REWARD)) {
            return fail("assumed-theta-norm", format!("must be positive and at most {MAX_REWARD:e}, got {bound}"));
        }
        self.environment.check(&self.run)?;
        self.resolve().validate()
    }

    /// Resolves all defaults of the run in this world.
    pub(crate) fn resolve(&self) -> ResolvedRun {
        let same = matches!(self.environment, Environment::Shared | Environment::FixedArms);
        let mut run = self.run.resolve(if same { 0.0 } else { RunConfig::SIGMA });
        run.noise = self.assumed_rewards.unwrap_or(run.noise);
        run.theta_bound = self.assumed_theta_norm.unwrap_or(run.theta_bound);
        run
    }

    /// Returns the guard of the devices. By default they have one where it pays: with a whitened rule and without privacy.
    pub fn guard(&self) -> GuardName {
        let RunConfig { aggregator, privacy, .. } = self.run;
        let pays = aggregator.is_whitened() && privacy.is_none();
        self.guard.unwrap_or(if pays { GuardName::On } else { GuardName::Off })
    }

    /// Returns the number of corrupted agents: ⌊α·N⌋, or 0 if the controller is hostile.
    pub fn corrupted(&self) -> usize {
        if self.attack.is_by_agents() { corrupted(self.corrupt, self.run.agents) } else { 0 }
    }

    pub(super) fn fleet_config(&self, seed: u64, rewards: Rewards, guard: GuardName) -> FleetConfig {
        FleetConfig { seed, rewards, guard, constants: GuardName::constants(self), forgery: self.forgery }
    }

    /// Returns the reference run for the regret of this one: the mean over the honest agents alone, on the same draws. For a
    /// whitened rule, it has the same width. The reference knows R and S of the simulation.
    pub fn oracle(&self) -> Self {
        let run = if self.run.aggregator.is_whitened() {
            RunConfig { aggregator: AggregatorName::WhitenedOracle, ..self.run }
        } else {
            RunConfig { aggregator: AggregatorName::Oracle, design_corruption: None, ..self.run }
        };
        Self { run, attack: Attack::None, assumed_rewards: None, assumed_theta_norm: None, ..self.clone() }
    }
}

/// Largest decision set.
const MAX_ARMS: usize = 1_000_000;

/// Returns the error for a dimension that virtual devices are not compiled for.
pub(super) fn unsupported_dimension(dimension: usize) -> ConfigError {
    let all: Vec<_> = DIMENSIONS.iter().map(ToString::to_string).collect();
    let remedy = format!("use one of {} and pad features with zeros", all.join(", "));
    ConfigError::new("dim", format!("{dimension} is not supported by virtual devices; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_json_round_trips_and_unknown_keys_are_rejected() {
        let text =
            "{\"arms\":3,\"agents\":7,\"environment\":\"shared\",\"attack\":\"none\",\"sigma\":0.5,\"corrupt\":0.0}";
        let run = RunConfig { agents: 7, sigma: Some(0.5), ..RunConfig::default() };
        let config = SimulationConfig {
            run,
            arms: 3,
            environment: Environment::Shared,
            attack: Attack::None,
            corrupt: 0.0,
            guard: None,
            forgery: Forgery::Search,
            participation: Participation::Always,
            assumed_rewards: None,
            assumed_theta_norm: None,
        };
        assert_eq!(serde_json::from_str::<SimulationConfig>(text).unwrap(), config);
        assert_eq!(serde_json::from_value::<SimulationConfig>(serde_json::to_value(&config).unwrap()).unwrap(), config);
        let error = |text| serde_json::from_str::<SimulationConfig>(text).unwrap_err().to_string();
        assert!(error("{\"agnets\":7}").starts_with("agnets: unknown key; expected one of agents, dim"));
        assert!(error("{\"run\":{}}").starts_with("run: unknown key; expected one of agents, dim"));
        assert!(error("{\"arms\":\"ten\"}").starts_with("arms: invalid type: string \"ten\", expected usize"));
    }

    #[test]
    fn sigma_default_follows_environment() {
        let config = |environment, sigma| {
            let run = RunConfig { sigma, schedule: "theorem".parse().unwrap(), ..RunConfig::default() };
            SimulationConfig { environment, run, ..SimulationConfig::default() }.resolve()
        };
        let said = |sigma: f64| config(Environment::Ball, Some(sigma));
        assert_eq!(
            config(Environment::Ball, None).controller_config(),
            said(std::f64::consts::SQRT_2).controller_config()
        );
        assert_eq!(config(Environment::Shared, None).controller_config(), said(0.0).controller_config());
        assert_eq!(config(Environment::FixedArms, Some(1.0)).controller_config(), said(1.0).controller_config());
        assert_ne!(said(0.0).controller_config(), said(1.0).controller_config());
    }
}
