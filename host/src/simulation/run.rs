//! One run: a fleet, its controller and its attackers.

use fedbandit_core::wire::max_frame_len;
use fedbandit_core::{Model, Rewards};
use nalgebra::DVector;
use rand_pcg::rand_core::Rng;

use super::attack::Message;
use super::attackers::Attackers;
use super::config::SimulationConfig;
use super::environment::World;
use super::fleet::{Conduct, Fleet, Models, Stretch, Tally, fleet};
use super::outcome::{MAX_TRACE_LEN, Outcome, Trace};
use super::replay::Logs;
use crate::algorithm::{AgentId, NoPrivacy, Privatise, Streams};
use crate::algorithm::{Controller, Counts};
use crate::algorithm::{ControllerConfig, SetupError};
use crate::algorithm::{Estimate, ModelParameters, Rule};
use crate::config::{AggregatorName, ConfigError};
use crate::math::rng::{Purpose, generator};
use crate::math::symmetric;
use crate::privacy::{Private, Seed};

/// Runs a configuration with a seed; `logs` has what `replay` replays. `progress` is told agent-steps.
///
/// The result does not depend on the number of threads.
///
/// # Errors
/// The configuration makes no sense.
pub fn simulate(
    config: &SimulationConfig,
    logs: &Logs,
    seed: u64,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Outcome, ConfigError> {
    config.validate()?;
    let mut simulation = Simulation::new(config, logs, seed, progress)?;
    let counts = match config.run.aggregator {
        AggregatorName::Solo => simulation.alone()?,
        _ => simulation.together()?,
    };
    Ok(simulation.outcome(&counts))
}

/// [`run`] with rules of your own: one that `rule` makes is the controller's, and attackers who try messages out try them on
/// another one. The configured aggregator still tells [who takes part](AggregatorName::is_oracle), how episodes begin and whether
/// liars are dropped, and gives its name to the outcome.
///
/// # Errors
/// The configuration makes no sense, wants privacy, or is of `solo`, which has no controller.
pub fn simulate_rule(
    config: &SimulationConfig,
    logs: &Logs,
    seed: u64,
    rule: &dyn Fn() -> Box<dyn Rule + Send>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Outcome, ConfigError> {
    config.validate()?;
    if config.run.privacy.is_some() {
        return Err(ConfigError::new("privacy", "a rule of your own is for streams without noise"));
    }
    if config.run.aggregator == AggregatorName::Solo {
        return Err(ConfigError::new("aggregator", "solo sends nothing that a rule of your own could take in"));
    }
    let mut simulation = Simulation::new(config, logs, seed, progress)?;
    let attackers = simulation.attackers()?.on(rule());
    let counts = simulation.with_controller(rule(), attackers, NoPrivacy::new)?;
    Ok(simulation.outcome(&counts))
}

struct Simulation<'a> {
    config: &'a SimulationConfig,
    seed: u64,
    progress: &'a (dyn Fn(u64) + Sync),
    setting: ControllerConfig,
    theta: DVector<f64>,
    knows_theta: bool,
    fleet: Box<dyn Fleet>,
    /// Whether a device is corrupted.
    corrupted: Vec<bool>,
    honest_tally: Tally,
    attacked_tally: Tally,
    first_episode: f64,
    trace: Vec<Trace>,
    width_ratio_max: f64,
    theta_error: f64,
    messages: u64,
    models: u64,
    cpu_seconds: f64,
    agent_steps: u64,
}

impl<'a> Simulation<'a> {
    fn new(
        config: &'a SimulationConfig,
        logs: &Logs,
        seed: u64,
        progress: &'a (dyn Fn(u64) + Sync),
    ) -> Result<Self, ConfigError> {
        let world = World::new(config, logs, seed)?;
        let setting = config.resolve().controller_config()?;
        // The oracle's devices are the honest ones, with the draws that they have in every other run.
        let corrupted = corrupted(config, seed);
        let oracle = config.run.aggregator.is_oracle();
        let devices: Vec<usize> = (0..config.run.agents).filter(|device| !(oracle && corrupted[*device])).collect();
        Ok(Self {
            config,
            seed,
            progress,
            setting,
            theta: DVector::from_column_slice(&world.theta),
            knows_theta: world.knows_theta(),
            corrupted: devices.iter().map(|device| corrupted[*device]).collect(),
            fleet: fleet(world, &devices, seed, setting.rewards()),
            honest_tally: Tally::default(),
            attacked_tally: Tally::default(),
            first_episode: 0.0,
            trace: Vec::new(),
            width_ratio_max: 0.0,
            theta_error: 0.0,
            messages: 0,
            models: 0,
            cpu_seconds: 0.0,
            agent_steps: 0,
        })
    }

    fn attackers(&self) -> Result<Attackers, ConfigError> {
        Attackers::new(self.config, self.seed, self.setting, self.theta.as_slice(), &self.corrupted)
    }

    /// The agents and their controller.
    fn together(&mut self) -> Result<Counts, ConfigError> {
        let attackers = self.attackers()?;
        let rules = self.config.resolve();
        let Some(plan) = rules.plan(self.seed)? else {
            return self.with_controller(rules.rule(self.seed)?, attackers, NoPrivacy::new);
        };
        let (groups, key) = (rules.groups(self.seed)?, Seed(self.seed));
        self.with_controller(rules.rule_on_units()?, attackers, |agents, _| match &groups {
            Some(groups) => Private::groups(plan, key, agents, groups),
            None => Private::agents(plan, key, agents),
        })
    }

    fn with_controller<P: Privatise, E: Into<SetupError>>(
        &mut self,
        rule: Box<dyn Rule + Send>,
        mut attackers: Attackers,
        privatise: impl FnOnce(usize, usize) -> Result<P, E>,
    ) -> Result<Counts, ConfigError> {
        let enrolled = (0..self.corrupted.len()).map(|agent| AgentId(agent as u32));
        let mut controller = Controller::new(self.setting, enrolled, rule, privatise)?;
        while let Some(model) = controller.model() {
            let (episode, estimate) = (model.episode, controller.estimate());
            let conduct = attackers.conduct(episode);
            self.models += self.corrupted.len() as u64;
            self.play(&conduct, episode, Models::Broadcast(model), Some(estimate));
            attackers.prepare(&mut *self.fleet, episode, &conduct);
            for (row, conduct) in conduct.iter().enumerate() {
                self.messages += attackers.send(&*self.fleet, &mut controller, episode, row, *conduct);
            }
            controller.close_episode().map_err(SetupError::from)?;
        }
        Ok(controller.counts().clone())
    }

    /// Every agent by itself, with its own sums.
    fn alone(&mut self) -> Result<Counts, ConfigError> {
        let mut rule = self.config.resolve().rule_on_units()?;
        let d = self.config.run.dim;
        let sums = (0..self.corrupted.len()).map(|_| Streams::zeros(1, d)).collect::<Result<Vec<_>, _>>();
        let mut sums = sums.map_err(SetupError::from)?;
        let mut attackers = self.attackers()?;
        let mut counts = Counts::default();
        let mut own: Vec<ModelParameters> = Vec::new();
        for episode in 1..=self.setting.episodes.count() {
            for (row, sums) in sums.iter().enumerate() {
                let estimate = rule.estimate(sums, episode).map_err(SetupError::from)?;
                counts.repaired += u64::from(estimate.raised > 0);
                match (estimate.parameters, own.get_mut(row)) {
                    (Some(parameters), Some(own)) => *own = parameters,
                    (Some(parameters), None) => own.push(parameters),
                    (None, _) => return Err(ConfigError::new("schedule", "it gives no usable model")),
                }
            }
            let conduct = attackers.conduct(episode);
            self.play(&conduct, episode, Models::Own(&own), None);
            for (row, sums) in sums.iter_mut().enumerate() {
                let Message { gram, feature_sum } = Message::own(self.fleet.summaries(), row);
                sums.add(0, &gram, &feature_sum);
            }
        }
        self.judge_own(&own);
        Ok(counts)
    }

    fn play(&mut self, conduct: &[Conduct], episode: u32, models: Models<'_>, estimate: Option<&Estimate>) {
        let before = self.setting.episodes.steps_before(episode);
        let start = u32::try_from(before).unwrap_or(u32::MAX);
        let episode_len = self.setting.episodes.length(episode);
        let steps = episode_len.min(self.config.run.steps.saturating_sub(start));
        let width_ratio = match &models {
            Models::Broadcast(model) if self.knows_theta => Some(self.width_ratio(model)),
            _ => None,
        };
        let beta = match &models {
            Models::Broadcast(model) => Some(f64::from(model.beta)),
            Models::Own(..) => None,
        };
        let late = self.config.run.steps / 2;
        let played = self.fleet.play(models, conduct, Stretch { episode, episode_len, start, steps, late });
        self.cpu_seconds += played.cpu_seconds;
        for (tally, corrupted) in played.tallies.iter().zip(&self.corrupted) {
            if *corrupted { self.attacked_tally.add(tally) } else { self.honest_tally.add(tally) }
        }
        if episode == 1 {
            self.first_episode = self.honest_tally.regret;
        } else {
            self.width_ratio_max = self.width_ratio_max.max(width_ratio.unwrap_or(0.0));
        }
        let agent_steps = u64::from(steps) * conduct.len() as u64;
        self.agent_steps += agent_steps;
        (self.progress)(agent_steps);
        let every = self.setting.episodes.count().div_ceil(MAX_TRACE_LEN as u32);
        if episode.is_multiple_of(every) || episode == self.setting.episodes.count() {
            self.trace.push(Trace {
                episode,
                steps: before + u64::from(steps),
                regret: self.honest_tally.regret,
                random: self.honest_tally.random,
                lambda: estimate.map(|estimate| estimate.lambda),
                beta,
                width_ratio,
            });
        }
    }

    /// ‖θ_k − θ*‖_Λ/β_k. Keeps ‖θ_k − θ*‖₂.
    fn width_ratio(&mut self, model: &Model<'_>) -> f64 {
        let theta = DVector::from_iterator(self.theta.len(), model.theta.iter().map(f64::from));
        let error = theta - &self.theta;
        self.theta_error = error.norm();
        let design: Vec<f64> = model.design.iter().map(f64::from).collect();
        let scaled: Vec<f64> = symmetric::scaled(&design, self.theta.len()).collect();
        let image = DVector::from_vec(symmetric::product(&scaled, error.as_slice()));
        error.dot(&image).max(0.0).sqrt() / f64::from(model.beta)
    }

    /// The mean error of the honest agents' own models, and the largest ratio.
    fn judge_own(&mut self, own: &[ModelParameters]) {
        let mut errors = Vec::new();
        let corrupted = self.corrupted.clone();
        for (parameters, _) in own.iter().zip(corrupted).filter(|(_, corrupted)| !corrupted) {
            let ratio = self.width_ratio(&parameters.model(1, 1, Rewards::Unbounded));
            self.width_ratio_max = self.width_ratio_max.max(ratio);
            errors.push(self.theta_error);
        }
        self.theta_error = errors.iter().sum::<f64>() / errors.len() as f64;
    }

    fn outcome(self, counts: &Counts) -> Outcome {
        let Self { config, honest_tally: honest, attacked_tally: attacked, .. } = self;
        let name = |fault| serde_json::to_value(fault).ok().and_then(|name| name.as_str().map(ToOwned::to_owned));
        let rejected = counts.faults.iter().filter_map(|(fault, count)| Some((name(fault)?, *count)));
        Outcome {
            seed: self.seed,
            aggregator: config.run.aggregator.to_string(),
            attack: config.attack.to_string(),
            corrupt: config.corrupt,
            environment: config.environment.to_string(),
            privacy: config.run.privacy.map(|privacy| privacy.to_string()),
            regret: honest.regret,
            regret_random: honest.random,
            regret_oracle: config.run.aggregator.is_oracle().then_some(honest.regret),
            after_first_episode: honest.regret - self.first_episode,
            total: honest.regret / honest.random,
            late: honest.late_regret / honest.late_random,
            attacked_regret: attacked.regret,
            attacked_total: (attacked.random > 0.0).then(|| attacked.regret / attacked.random),
            theta_error: self.knows_theta.then_some(self.theta_error),
            width_ratio_max: self.knows_theta.then_some(self.width_ratio_max),
            bytes_up: self.messages * max_frame_len(config.run.dim) as u64,
            bytes_down: self.models * max_frame_len(config.run.dim) as u64,
            rejected: rejected.collect(),
            repairs: counts.repaired,
            agent_steps_per_cpu_second: self.agent_steps as f64 / self.cpu_seconds,
            trace: self.trace,
        }
    }
}

/// Who is corrupted: those with the least of a number that is drawn for each.
fn corrupted(config: &SimulationConfig, seed: u64) -> Vec<bool> {
    let mut rng = generator(seed, Purpose::World, 1);
    let mut order: Vec<(u64, usize)> = (0..config.run.agents).map(|device| (rng.next_u64(), device)).collect();
    order.sort_unstable();
    let mut corrupted = vec![false; config.run.agents];
    order.iter().take(config.corrupted()).for_each(|(_, device)| corrupted[*device] = true);
    corrupted
}
