//! One run: a fleet, its controller and its attackers.

use std::collections::BTreeMap;

use fedbandit_core::wire::{max_frame_len, summary_frame_len};
use fedbandit_core::{Model, Rewards};
use nalgebra::DVector;
use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;
use serde::{Deserialize, Serialize};

use super::attack::{Attack, Knowledge, Message};
use super::config::{AggregatorName, Config, ConfigError};
use super::environment::{Environment, World};
use super::fleet::{Conduct, Fleet, Models, Stretch, Tally, fleet};
use super::random::{Use, generator};
use super::replay::Logs;
use crate::admission::Admission;
use crate::controller::{Controller, Counts, Episodes, Setting, SetupError};
use crate::privacy::{Private, Seed};
use crate::rule::{Estimate, Parameters, Rule};
use crate::streams::{AgentId, NoPrivacy, Privatise, Streams};
use crate::symmetric;

/// What came out of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The run's seed.
    pub seed: u64,
    /// The aggregator's name.
    pub aggregator: String,
    /// The attack's name.
    pub attack: String,
    /// α.
    pub corrupt: f64,
    /// The environment's name.
    pub environment: String,
    /// `MU,NU`, if the run was private.
    pub privacy: Option<String>,
    /// Regret over all steps of the honest agents.
    pub regret: f64,
    /// The same for choices that are uniformly random, on the same decision sets.
    pub regret_random: f64,
    /// The same for [`Config::oracle`], on the same draws.
    pub regret_oracle: Option<f64>,
    /// `regret` without the first episode.
    pub after_first_episode: f64,
    /// `regret` over `regret_random`: 0 is perfect, 1 is random.
    pub total: f64,
    /// The same over the second half of the steps.
    pub late: f64,
    /// The regret of attacked agents over the steps on which they were not attacked; with `regret`, the paper's R_T.
    pub attacked_regret: f64,
    /// The same over that of random choices on these steps; none without such steps.
    pub attacked_total: Option<f64>,
    /// ‖θ − θ*‖₂ of the last model; none without a true θ*. For `solo` the mean over honest agents.
    pub theta_error: Option<f64>,
    /// The largest ‖θ_k − θ*‖_Λ/β_k of all models with k > 1; above 1, a width was too small.
    pub width_ratio_max: Option<f64>,
    /// Bytes of all summaries' frames, before they are framed for a serial line.
    pub bytes_up: u64,
    /// Bytes of all models' frames.
    pub bytes_down: u64,
    /// Messages that counted as zero, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Models whose Λ was repaired.
    pub repairs: u64,
    /// Agent-steps per second of CPU time that the virtual devices took. All else is the same in every rerun.
    pub agent_steps_per_cpu_second: f64,
    /// Up to [`TRACE`] episodes.
    pub trace: Vec<Trace>,
}

/// A run at the end of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// k.
    pub episode: u32,
    /// Steps since the start of the run.
    pub steps: u64,
    /// Cumulative regret of the honest agents.
    pub regret: f64,
    /// The same for random choices.
    pub random: f64,
    /// λ_k; none where everybody has their own.
    pub lambda: Option<f64>,
    /// β_k.
    pub beta: Option<f64>,
    /// ‖θ_k − θ*‖_Λ/β_k.
    pub width_ratio: Option<f64>,
}

/// The most entries of a trace.
pub const TRACE: usize = 128;

/// Runs a configuration with a seed; `logs` has what `replay` replays. `progress` is told agent-steps.
///
/// The result does not depend on the number of threads.
///
/// # Errors
/// The configuration makes no sense.
pub fn run(config: &Config, logs: &Logs, seed: u64, progress: &(dyn Fn(u64) + Sync)) -> Result<Outcome, ConfigError> {
    config.check()?;
    let mut simulation = Simulation::new(config, logs, seed, progress)?;
    let (counts, repairs) = match config.aggregator {
        AggregatorName::Solo => (Counts::default(), simulation.alone()?),
        _ => simulation.together()?,
    };
    Ok(simulation.outcome(&counts, repairs))
}

struct Simulation<'a> {
    config: &'a Config,
    seed: u64,
    progress: &'a (dyn Fn(u64) + Sync),
    setting: Setting,
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
        config: &'a Config,
        logs: &Logs,
        seed: u64,
        progress: &'a (dyn Fn(u64) + Sync),
    ) -> Result<Self, ConfigError> {
        let log = match &config.environment {
            Environment::Replay(file) => Some(
                logs.get(file)
                    .ok_or_else(|| ConfigError::new("environment", format!("{} was not read", file.display())))?,
            ),
            _ => None,
        };
        if let Some(log) = log.filter(|log| log.dimension() != config.dim) {
            return Err(ConfigError::new(
                "dim",
                format!("the log has {} columns x_j, not {}", log.dimension(), config.dim),
            ));
        }
        let shape = (config.dim, config.arms, config.steps);
        let world = World::new(&config.environment, config.rewards, log.cloned(), shape, config.theta_norm, seed);
        let setting = config.setting()?;
        // The oracle's devices are the honest ones, with the draws that they have in every other run.
        let corrupted = corrupted(config, seed);
        let oracle = config.aggregator == AggregatorName::Oracle;
        let devices: Vec<usize> = (0..config.agents).filter(|device| !(oracle && corrupted[*device])).collect();
        let rewards = if config.rewards.bound().is_some() { Rewards::Clipped } else { Rewards::Unbounded };
        Ok(Self {
            config,
            seed,
            progress,
            setting,
            theta: DVector::from_column_slice(&world.theta),
            knows_theta: world.knows_theta(),
            corrupted: devices.iter().map(|device| corrupted[*device]).collect(),
            fleet: fleet(world, &devices, seed, rewards),
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

    /// The agents and their controller.
    fn together(&mut self) -> Result<(Counts, u64), ConfigError> {
        let Some(plan) = self.config.plan(self.seed)? else {
            return self.with_controller(self.config.rule(self.seed)?, NoPrivacy::new);
        };
        let (groups, key) = (self.config.groups(self.seed)?, Seed(self.seed));
        self.with_controller(self.config.rule_on_units()?, |agents, _| match &groups {
            Some(groups) => Private::groups(plan, key, agents, groups),
            None => Private::agents(plan, key, agents),
        })
    }

    fn with_controller<P: Privatise, E: Into<SetupError>>(
        &mut self,
        rule: Box<dyn Rule + Send>,
        privatise: impl FnOnce(usize, usize) -> Result<P, E>,
    ) -> Result<(Counts, u64), ConfigError> {
        let enrolled = (0..self.corrupted.len()).map(|agent| AgentId(agent as u32));
        let invalid = |error: &dyn std::fmt::Display| ConfigError::new("aggregator", error);
        let mut controller =
            Controller::new(self.setting, enrolled, rule, privatise).map_err(|error| invalid(&error))?;
        let mut attackers = Attackers::new(self)?;
        while let Some(model) = controller.model() {
            let (episode, estimate) = (model.episode, controller.estimate());
            let conduct = attackers.conduct(episode, self.setting.episodes);
            self.models += self.corrupted.len() as u64;
            self.play(&conduct, episode, Models::Broadcast(model), Some(estimate));
            attackers.prepare(self, episode, &conduct);
            for (row, conduct) in conduct.iter().enumerate() {
                self.messages += attackers.send(self, &mut controller, episode, row, *conduct);
            }
            controller.close_episode().map_err(|error| invalid(&error))?;
        }
        Ok((controller.counts().clone(), controller.counts().repaired))
    }

    /// Every agent by itself, with its own sums.
    fn alone(&mut self) -> Result<u64, ConfigError> {
        let invalid = |error: &dyn std::fmt::Display| ConfigError::new("aggregator", error);
        let mut rule = self.config.rule_on_units()?;
        let d = self.config.dim;
        let mut sums = (0..self.corrupted.len()).map(|_| Streams::zeros(1, d)).collect::<Result<Vec<_>, _>>();
        let sums = sums.as_mut().map_err(|error| invalid(error))?;
        let mut attackers = Attackers::new(self)?;
        let mut repairs = 0;
        let mut own: Vec<Parameters> = Vec::new();
        for episode in 1..=self.setting.episodes.count() {
            for (row, sums) in sums.iter().enumerate() {
                let estimate = rule.estimate(sums, episode).map_err(|error| invalid(&error))?;
                repairs += u64::from(estimate.raised > 0);
                match (estimate.parameters, own.get_mut(row)) {
                    (Some(parameters), Some(own)) => *own = parameters,
                    (Some(parameters), None) => own.push(parameters),
                    (None, _) => return Err(ConfigError::new("schedule", "it gives no usable model")),
                }
            }
            let conduct = attackers.conduct(episode, self.setting.episodes);
            let rewards = if self.setting.reward_bound.is_some() { Rewards::Clipped } else { Rewards::Unbounded };
            let shape = own[0].clone();
            let model = shape.model(episode, self.setting.episodes.length(episode), rewards);
            self.play(&conduct, episode, Models::Own(&own, model), None);
            for (row, sums) in sums.iter_mut().enumerate() {
                let Message { gram, feature_sum } = Message::own(self.fleet.summaries(), row);
                sums.add(0, &gram, &feature_sum);
            }
        }
        self.judge_own(&own);
        Ok(repairs)
    }

    fn play(&mut self, conduct: &[Conduct], episode: u32, models: Models<'_>, estimate: Option<&Estimate>) {
        let before = self.setting.episodes.steps_before(episode);
        let start = u32::try_from(before).unwrap_or(u32::MAX);
        let steps = self.setting.episodes.length(episode).min(self.config.steps.saturating_sub(start));
        let width_ratio = match &models {
            Models::Broadcast(model) if self.knows_theta => Some(self.width_ratio(model)),
            _ => None,
        };
        let beta = match &models {
            Models::Broadcast(model) => Some(f64::from(model.beta)),
            Models::Own(..) => None,
        };
        let played = self.fleet.play(models, conduct, Stretch { start, steps, late: self.config.steps / 2 });
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
        let every = self.setting.episodes.count().div_ceil(TRACE as u32);
        if episode % every == 0 || episode == self.setting.episodes.count() {
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
    fn judge_own(&mut self, own: &[Parameters]) {
        let mut errors = Vec::new();
        let corrupted = self.corrupted.clone();
        for (parameters, _) in own.iter().zip(corrupted).filter(|(_, corrupted)| !corrupted) {
            let ratio = self.width_ratio(&parameters.model(1, 1, Rewards::Unbounded));
            self.width_ratio_max = self.width_ratio_max.max(ratio);
            errors.push(self.theta_error);
        }
        self.theta_error = errors.iter().sum::<f64>() / errors.len() as f64;
    }

    fn outcome(self, counts: &Counts, repairs: u64) -> Outcome {
        let Self { config, honest_tally: honest, attacked_tally: attacked, .. } = self;
        let name = |fault| serde_json::to_value(fault).ok().and_then(|name| name.as_str().map(ToOwned::to_owned));
        let rejected = counts.faults.iter().filter_map(|(fault, count)| Some((name(fault)?, *count)));
        Outcome {
            seed: self.seed,
            aggregator: config.aggregator.to_string(),
            attack: config.attack.to_string(),
            corrupt: config.corrupt,
            environment: config.environment.to_string(),
            privacy: config.privacy.map(|privacy| privacy.to_string()),
            regret: honest.regret,
            regret_random: honest.random,
            regret_oracle: (config.aggregator == AggregatorName::Oracle).then_some(honest.regret),
            after_first_episode: honest.regret - self.first_episode,
            total: honest.regret / honest.random,
            late: honest.late_regret / honest.late_random,
            attacked_regret: attacked.regret,
            attacked_total: (attacked.random > 0.0).then(|| attacked.regret / attacked.random),
            theta_error: self.knows_theta.then_some(self.theta_error),
            width_ratio_max: self.knows_theta.then_some(self.width_ratio_max),
            bytes_up: self.messages * summary_frame_len(config.dim) as u64,
            bytes_down: self.models * max_frame_len(config.dim) as u64,
            rejected: rejected.collect(),
            repairs,
            agent_steps_per_cpu_second: self.agent_steps as f64 / self.cpu_seconds,
            trace: self.trace,
        }
    }
}

/// Who is corrupted: those with the least of a number that is drawn for each.
fn corrupted(config: &Config, seed: u64) -> Vec<bool> {
    let mut rng = generator(seed, Use::World, 1);
    let mut order: Vec<(u64, usize)> = (0..config.agents).map(|device| (rng.next_u64(), device)).collect();
    order.sort_unstable();
    let mut corrupted = vec![false; config.agents];
    order.iter().take(config.corrupted()).for_each(|(_, device)| corrupted[*device] = true);
    corrupted
}

/// The corrupted agents, acting as one.
struct Attackers {
    attack: Attack,
    corrupted: Vec<bool>,
    honest: Vec<usize>,
    rng: Pcg64,
    /// What all of them send in this episode.
    common: Option<Message>,
    /// What each sent first.
    first: Vec<Option<Message>>,
    /// For attacks that watch the controller.
    shadow: Option<Shadow>,
}

/// The controller's state as an attacker knows it: all sums, without noise, and the rule.
struct Shadow {
    sums: Streams,
    /// For attacks that try messages out.
    rule: Option<Box<dyn Rule + Send>>,
}

impl Attackers {
    fn new(simulation: &Simulation<'_>) -> Result<Self, ConfigError> {
        let Simulation { config, seed, corrupted, .. } = simulation;
        let attack = config.attack;
        let searches = matches!(attack, Attack::Adaptive | Attack::Sleeper);
        let watches = searches || matches!(attack, Attack::GramInflate | Attack::WeakDirection);
        let any = corrupted.contains(&true) && config.aggregator != AggregatorName::Solo;
        let shadow = if any && watches {
            let sums = Streams::zeros(corrupted.len(), config.dim);
            let sums = sums.map_err(|error| ConfigError::new("dim", error))?;
            let rule = if searches { Some(config.rule(*seed)?) } else { None };
            Some(Shadow { sums, rule })
        } else {
            None
        };
        Ok(Self {
            attack,
            honest: (0..corrupted.len()).filter(|row| !corrupted[*row]).collect(),
            corrupted: corrupted.clone(),
            rng: generator(*seed, Use::Attacker, 0),
            common: None,
            first: vec![None; corrupted.len()],
            shadow,
        })
    }

    fn conduct(&mut self, episode: u32, episodes: Episodes) -> Vec<Conduct> {
        let attack = self.attack;
        let mut one = |corrupted: &bool| match attack {
            _ if !corrupted => Conduct::Honest,
            Attack::None => Conduct::Honest,
            Attack::FakeParameter => Conduct::Faked,
            Attack::Sleeper if episode <= episodes.count() / 2 => Conduct::Honest,
            Attack::Intermittent if self.rng.next_u32() >> 31 == 1 => Conduct::Honest,
            _ => Conduct::Attacked,
        };
        self.corrupted.iter().map(&mut one).collect()
    }

    /// Decides what to send, once all honest messages are known.
    fn prepare(&mut self, simulation: &mut Simulation<'_>, episode: u32, conduct: &[Conduct]) {
        self.common = None;
        if !conduct.contains(&Conduct::Attacked) {
            self.remember_honest(simulation, conduct);
            return;
        }
        let Simulation { config, setting, fleet, theta, .. } = simulation;
        let empty = Streams::zeros(if self.shadow.is_some() { 0 } else { self.corrupted.len() }, config.dim);
        let Ok(empty) = empty else { return };
        let sums = self.shadow.as_ref().map_or(&empty, |shadow| &shadow.sums);
        let length = setting.episodes.length(episode);
        let corrupted = self.corrupted.len() - self.honest.len();
        let knowledge = Knowledge::new(
            (length, setting.reward_bound),
            theta.as_slice(),
            &self.honest,
            corrupted,
            fleet.summaries(),
            sums,
        );
        let next = episode + 1;
        let ahead = u32::try_from(setting.episodes.steps_before(next)).unwrap_or(u32::MAX);
        if self.shadow.as_ref().is_some_and(|shadow| shadow.rule.is_some()) {
            fleet.look_ahead(ahead, &mut self.rng);
        }
        self.remember_honest(simulation, conduct);
        let Self { shadow, corrupted, attack, .. } = self;
        let mut score = |message: &Message| {
            let shadow = shadow.as_mut();
            shadow.map_or(0.0, |shadow| shadow.score(simulation, corrupted, conduct, message, next))
        };
        self.common = knowledge.common(*attack, &mut score);
    }

    /// Adds what honest agents send to the shadow's sums.
    fn remember_honest(&mut self, simulation: &Simulation<'_>, conduct: &[Conduct]) {
        let Some(shadow) = &mut self.shadow else { return };
        for (row, _) in conduct.iter().enumerate().filter(|(_, conduct)| **conduct != Conduct::Attacked) {
            let Message { gram, feature_sum } = Message::own(simulation.fleet.summaries(), row);
            shadow.sums.add(row, &gram, &feature_sum);
        }
    }

    /// Sends an agent's message, if it sends any; how many it sent.
    fn send<P: Privatise>(
        &mut self,
        simulation: &Simulation<'_>,
        controller: &mut Controller<P, Box<dyn Rule + Send>>,
        episode: u32,
        row: usize,
        conduct: Conduct,
    ) -> u64 {
        let agent = AgentId(row as u32);
        let own = || Message::own(simulation.fleet.summaries(), row);
        if conduct != Conduct::Attacked {
            let (gram, feature_sum) = simulation.fleet.summaries().row(row);
            // What is wrong with a message is in the controller's counts.
            let _ = controller.receive(agent, episode, gram.iter().copied(), feature_sum.iter().copied());
            return 1;
        }
        let message = match (self.attack, &self.common) {
            (_, Some(common)) => common.clone(),
            (Attack::Silent, _) => return 0,
            (Attack::Asymmetric, _) => {
                let length = f64::from(simulation.setting.episodes.length(episode));
                let Message { gram, feature_sum } = own().asymmetric(length);
                let _ = controller.receive_matrix(agent, episode, &gram, &feature_sum);
                return 1;
            }
            (Attack::Replay, _) => {
                let first = self.first[row].get_or_insert_with(own).clone();
                if episode > 1 {
                    let _ = controller.receive(agent, 1, first.gram.clone(), first.feature_sum.clone());
                }
                first
            }
            _ => own().flipped(),
        };
        if let Some(shadow) = &mut self.shadow
            && shadow.admits(&simulation.setting, episode, &message)
        {
            shadow.sums.add(row, &message.gram, &message.feature_sum);
        }
        let _ = controller.receive(agent, episode, message.gram, message.feature_sum);
        1
    }
}

impl Shadow {
    fn admits(&self, setting: &Setting, episode: u32, message: &Message) -> bool {
        let Setting { level, dimension, episodes, reward_bound, .. } = *setting;
        let admission = Admission::new(level, dimension.into(), episodes.length(episode), reward_bound, false);
        admission.is_ok_and(|admission| admission.check(&message.gram, &message.feature_sum).is_ok())
    }

    /// The regret that is to be expected of the next model if all corrupted agents send this.
    fn score(
        &mut self,
        simulation: &mut Simulation<'_>,
        corrupted: &[bool],
        conduct: &[Conduct],
        message: &Message,
        next: u32,
    ) -> f64 {
        let mut sums = self.sums.clone();
        if self.admits(&simulation.setting, next - 1, message) {
            let attacked = corrupted.iter().zip(conduct).enumerate();
            for (row, _) in attacked.filter(|(_, (corrupted, conduct))| **corrupted && **conduct == Conduct::Attacked) {
                sums.add(row, &message.gram, &message.feature_sum);
            }
        }
        let Some(rule) = &mut self.rule else { return 0.0 };
        let estimate = rule.estimate(&sums, next).ok();
        let Some(parameters) = estimate.and_then(|estimate| estimate.parameters) else { return 0.0 };
        let rewards = if simulation.setting.reward_bound.is_some() { Rewards::Clipped } else { Rewards::Unbounded };
        simulation.fleet.judge(parameters.model(next, simulation.setting.episodes.length(next), rewards))
    }
}
