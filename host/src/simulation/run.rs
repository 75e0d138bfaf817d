//! A simulated run: a fleet, its controller and its attackers.

use fedbandit_core::wire::plain_frame_len;
use fedbandit_core::{Model, Rewards};
use nalgebra::DVector;
use rand_pcg::rand_core::Rng;

use super::attackers::Attackers;
use super::config::SimulationConfig;
use super::environment::World;
use super::fleet::{Conduct, EpisodeSteps, Fleet, Models, Tally, fleet};
use super::forged_summary::ForgedSummary;
use super::guard::GuardName;
use super::outcome::{MAX_TRACE_LEN, Outcome, Trace};
use super::replay::Logs;
use crate::algorithm::{
    AgentId, Controller, ControllerConfig, Counts, ModelParameters, NoPrivacy, Privatise, Rule, SetupError, Streams,
};
use crate::config::{AggregatorName, ConfigError};
use crate::math::rng::{Purpose, generator};
use crate::math::symmetric;
use crate::privacy::{Private, Seed};

/// Runs a configuration with a seed. `logs` contains the log that `replay` replays, and `progress` is called with numbers of
/// agent-steps.
///
/// The result does not depend on the number of threads.
///
/// # Errors
/// The configuration is invalid.
pub fn simulate(
    config: &SimulationConfig,
    logs: &Logs,
    seed: u64,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Outcome, ConfigError> {
    config.validate()?;
    let mut simulation = Simulation::new(config, logs, seed, progress)?;
    let counts = match config.run.aggregator {
        AggregatorName::Solo => simulation.run_solo()?,
        _ if !config.attack.is_by_agents() => simulation.run_hostile_controller(),
        _ => simulation.run_configured_rule()?,
    };
    Ok(simulation.outcome(&counts))
}

/// As [`simulate`], with a custom rule. `rule` creates two instances: one for the controller, and one on which attackers try
/// messages.
///
/// The configured aggregator still determines [which agents take part](AggregatorName::is_oracle), the first episodes, the
/// admission level and the name in the outcome.
///
/// # Errors
/// The configuration is invalid, is private, or has the aggregator `solo`, which has no controller.
pub fn simulate_rule(
    config: &SimulationConfig,
    logs: &Logs,
    seed: u64,
    rule: &dyn Fn() -> Box<dyn Rule + Send>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Outcome, ConfigError> {
    config.validate()?;
    if config.run.privacy.is_some() {
        return Err(ConfigError::new("privacy", "not available with a custom rule"));
    }
    if config.run.aggregator == AggregatorName::Solo {
        return Err(ConfigError::new("aggregator", "solo has no controller that could use a custom rule"));
    }
    let mut simulation = Simulation::new(config, logs, seed, progress)?;
    let attackers = simulation.attackers()?.with_rule(rule());
    let counts = simulation.run_controller(rule(), attackers, NoPrivacy::new)?;
    Ok(simulation.outcome(&counts))
}

struct Simulation<'a> {
    config: &'a SimulationConfig,
    seed: u64,
    progress: &'a (dyn Fn(u64) + Sync),
    controller_config: ControllerConfig,
    has_true_theta: bool,
    fleet: Box<dyn Fleet>,
    /// Number of each device.
    devices: Vec<usize>,
    /// True for each corrupted device.
    corrupted: Vec<bool>,
    honest_tally: Tally,
    attacked_tally: Tally,
    first_episode_regret: f64,
    trace: Vec<Trace>,
    width_ratio_max: f64,
    /// Number of models with k > 1, and of those with a width ratio above 1.
    measured: u64,
    too_narrow: u64,
    device_width_ratio_max: f64,
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
        let controller_config = config.resolve().controller_config()?;
        // The oracle has the honest devices only, with the same draws as in every other run.
        let corrupted = corrupted(config, seed);
        let oracle = config.run.aggregator.is_oracle();
        let devices: Vec<usize> = (0..config.run.agents).filter(|device| !(oracle && corrupted[*device])).collect();
        // An agent that learns alone has no controller to guard against.
        let guard = if config.run.aggregator == AggregatorName::Solo { GuardName::Off } else { config.guard() };
        Ok(Self {
            config,
            seed,
            progress,
            controller_config,
            has_true_theta: world.has_true_theta(),
            corrupted: devices.iter().map(|device| corrupted[*device]).collect(),
            fleet: fleet(world, &devices, config.fleet_config(seed, controller_config.rewards(), guard)),
            devices,
            honest_tally: Tally::default(),
            attacked_tally: Tally::default(),
            first_episode_regret: 0.0,
            trace: Vec::new(),
            width_ratio_max: 0.0,
            measured: 0,
            too_narrow: 0,
            device_width_ratio_max: 0.0,
            theta_error: 0.0,
            messages: 0,
            models: 0,
            cpu_seconds: 0.0,
            agent_steps: 0,
        })
    }

    fn attackers(&self) -> Result<Attackers, ConfigError> {
        Attackers::new(self.config, self.seed, self.controller_config, &self.fleet.theta(0), &self.corrupted)
    }

    fn run_configured_rule(&mut self) -> Result<Counts, ConfigError> {
        let attackers = self.attackers()?;
        let resolved = self.config.resolve();
        let Some(plan) = resolved.plan(self.seed)? else {
            return self.run_controller(resolved.rule(self.seed)?, attackers, NoPrivacy::new);
        };
        let (groups, key) = (resolved.groups(self.seed)?, Seed(self.seed));
        self.run_controller(resolved.rule_on_units()?, attackers, |agents, _| match &groups {
            Some(groups) => Private::groups(plan, key, agents, groups),
            None => Private::agents(plan, key, agents),
        })
    }

    fn run_controller<P: Privatise, E: Into<SetupError>>(
        &mut self,
        rule: Box<dyn Rule + Send>,
        mut attackers: Attackers,
        privatise: impl FnOnce(usize, usize) -> Result<P, E>,
    ) -> Result<Counts, ConfigError> {
        let enrolled = (0..self.corrupted.len()).map(|agent| AgentId(agent as u32));
        let mut controller = Controller::new(self.controller_config, enrolled, rule, privatise)?;
        while let Some(model) = controller.model() {
            let (episode, lambda) = (model.episode, controller.estimate().lambda);
            let conduct = self.mark_absent(attackers.draw_conduct(episode), episode);
            self.models += present(&conduct);
            self.run_episode(&conduct, episode, Models::Broadcast(model), Some(lambda));
            attackers.prepare(&mut *self.fleet, episode, &conduct);
            for (row, conduct) in conduct.iter().enumerate() {
                self.messages += attackers.send(&*self.fleet, &mut controller, episode, row, *conduct);
            }
            controller.close_episode().map_err(SetupError::from)?;
        }
        Ok(controller.counts().clone())
    }

    /// Runs all devices with the models of a hostile controller, which has no use for their summaries.
    fn run_hostile_controller(&mut self) -> Counts {
        for episode in 1..=self.controller_config.episodes.count() {
            let conduct = self.mark_absent(vec![Conduct::Honest; self.devices.len()], episode);
            self.models += present(&conduct);
            self.run_episode(&conduct, episode, Models::Forged, None);
        }
        Counts::default()
    }

    /// Runs each agent alone, with its own sums.
    fn run_solo(&mut self) -> Result<Counts, ConfigError> {
        let mut rule = self.config.resolve().rule_on_units()?;
        let d = self.config.run.dim;
        let sums = (0..self.corrupted.len()).map(|_| Streams::zeros(1, d)).collect::<Result<Vec<_>, _>>();
        let mut sums = sums.map_err(SetupError::from)?;
        let mut attackers = self.attackers()?;
        let mut counts = Counts::default();
        for episode in 1..=self.controller_config.episodes.count() {
            let mut own: Vec<ModelParameters> = Vec::new();
            for sums in &sums {
                let estimate = rule.estimate(sums, episode).map_err(SetupError::from)?;
                counts.repaired += u64::from(estimate.raised > 0);
                let invalid = || ConfigError::new("schedule", "gives a model that no device accepts");
                own.push(estimate.parameters.ok_or_else(invalid)?);
            }
            let conduct = self.mark_absent(attackers.draw_conduct(episode), episode);
            self.run_episode(&conduct, episode, Models::Own(&own), None);
            let retention = self.controller_config.forgetting().retention(episode);
            for (row, sums) in sums.iter_mut().enumerate() {
                if let Some(retention) = retention {
                    sums.scale(retention);
                }
                let ForgedSummary { gram, feature_sum } = ForgedSummary::own(self.fleet.summaries(), row);
                sums.add(0, &gram, &feature_sum);
            }
        }
        Ok(counts)
    }

    /// Returns the first step of an episode, counted from 0.
    fn first_step(&self, episode: u32) -> u32 {
        u32::try_from(self.controller_config.episodes.steps_before(episode)).unwrap_or(u32::MAX)
    }

    /// Replaces the conduct of honest devices that are absent in an episode.
    fn mark_absent(&self, mut conduct: Vec<Conduct>, episode: u32) -> Vec<Conduct> {
        let SimulationConfig { participation, run, .. } = self.config;
        let start = self.first_step(episode);
        for ((conduct, device), _) in
            conduct.iter_mut().zip(&self.devices).zip(&self.corrupted).filter(|(_, corrupted)| !**corrupted)
        {
            if !participation.is_present(self.seed, *device, start, run.steps) {
                *conduct = Conduct::Absent;
            }
        }
        conduct
    }

    fn run_episode(&mut self, conduct: &[Conduct], episode: u32, models: Models<'_>, lambda: Option<f64>) {
        let episodes = self.controller_config.episodes;
        let before = episodes.steps_before(episode);
        let start = self.first_step(episode);
        let episode_len = episodes.length(episode);
        let count = episode_len.min(self.config.run.steps.saturating_sub(start));
        let worst_ratio = self.has_true_theta.then(|| self.measure_errors(episode, start, &models));
        let (beta, width_ratio) = match &models {
            Models::Broadcast(model) => (Some(f64::from(model.beta)), worst_ratio),
            Models::Own(_) | Models::Forged => (None, None),
        };
        let late = self.config.run.steps / 2;
        let steps = EpisodeSteps { episode, episode_len, start, count, late };
        let result = self.fleet.run_episode(models, conduct, steps);
        self.cpu_seconds += result.cpu_seconds;
        for (ratio, _) in result.width_ratios.iter().zip(&self.corrupted).filter(|(_, corrupted)| !**corrupted) {
            self.device_width_ratio_max = self.device_width_ratio_max.max((*ratio).into());
        }
        for (tally, corrupted) in result.tallies.iter().zip(&self.corrupted) {
            if *corrupted { self.attacked_tally.add(tally) } else { self.honest_tally.add(tally) }
        }
        if episode == 1 {
            self.first_episode_regret = self.honest_tally.regret;
        }
        let agent_steps = u64::from(count) * conduct.len() as u64;
        self.agent_steps += agent_steps;
        (self.progress)(agent_steps);
        let every = episodes.count().div_ceil(MAX_TRACE_LEN as u32);
        if episode.is_multiple_of(every) || episode == episodes.count() {
            self.trace.push(Trace {
                episode,
                steps: before + u64::from(count),
                regret: self.honest_tally.regret,
                random: self.honest_tally.random,
                lambda,
                beta,
                width_ratio,
            });
        }
    }

    /// Measures the broadcast model, or the models of all honest agents, against θ* at the first step of their episode. Sets
    /// the mean error and returns the largest width ratio.
    fn measure_errors(&mut self, episode: u32, start: u32, models: &Models<'_>) -> f64 {
        let theta = DVector::from_vec(self.fleet.theta(start));
        let errors: Vec<(f64, f64)> = match models {
            Models::Forged => return 0.0,
            Models::Broadcast(model) => vec![error_and_width_ratio(&theta, model)],
            Models::Own(own) => {
                let honest = own.iter().zip(&self.corrupted).filter(|(_, corrupted)| !**corrupted);
                let models = honest.map(|(parameters, _)| parameters.model(episode, 1, Rewards::Unbounded));
                models.map(|model| error_and_width_ratio(&theta, &model)).collect()
            }
        };
        self.theta_error = errors.iter().map(|(error, _)| error).sum::<f64>() / errors.len() as f64;
        let worst = errors.iter().map(|(_, ratio)| *ratio).fold(0.0, f64::max);
        if episode > 1 {
            self.width_ratio_max = self.width_ratio_max.max(worst);
            self.measured += errors.len() as u64;
            self.too_narrow += errors.iter().filter(|(_, ratio)| *ratio > 1.0).count() as u64;
        }
        worst
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
            after_first_episode: honest.regret - self.first_episode_regret,
            total: honest.regret / honest.random,
            late: honest.late_regret / honest.late_random,
            attacked_regret: attacked.regret,
            attacked_total: (attacked.random > 0.0).then(|| attacked.regret / attacked.random),
            robust_regret: honest.regret + attacked.regret,
            theta_error: self.has_true_theta.then_some(self.theta_error),
            width_ratio_max: self.has_true_theta.then_some(self.width_ratio_max),
            width_ratio_share: self.has_true_theta.then(|| self.too_narrow as f64 / self.measured.max(1) as f64),
            device_width_ratio_max: (self.has_true_theta && config.guard() != GuardName::Off)
                .then_some(self.device_width_ratio_max),
            bytes_up: self.messages * plain_frame_len(config.run.dim) as u64,
            bytes_down: self.models * plain_frame_len(config.run.dim) as u64,
            rejected: rejected.collect(),
            repairs: counts.repaired,
            alarms: self.fleet.alarms(),
            agent_steps_per_cpu_second: self.agent_steps as f64 / self.cpu_seconds,
            trace: self.trace,
        }
    }
}

/// Returns the number of devices that are present.
fn present(conduct: &[Conduct]) -> u64 {
    conduct.iter().filter(|conduct| **conduct != Conduct::Absent).count() as u64
}

/// Returns ‖θ − θ*‖₂ and ‖θ − θ*‖_Λ/β of a model.
fn error_and_width_ratio(theta: &DVector<f64>, model: &Model<'_>) -> (f64, f64) {
    let error = DVector::from_iterator(theta.len(), model.theta.iter().map(f64::from)) - theta;
    let design: Vec<f64> = model.design.iter().map(f64::from).collect();
    let scaled: Vec<f64> = symmetric::scaled(&design, theta.len()).collect();
    let image = DVector::from_vec(symmetric::product(&scaled, error.as_slice()));
    (error.norm(), error.dot(&image).max(0.0).sqrt() / f64::from(model.beta))
}

/// Draws the corrupted agents: those with the smallest of one random number each.
fn corrupted(config: &SimulationConfig, seed: u64) -> Vec<bool> {
    let mut rng = generator(seed, Purpose::World, 1);
    let mut order: Vec<(u64, usize)> = (0..config.run.agents).map(|device| (rng.next_u64(), device)).collect();
    order.sort_unstable();
    let mut corrupted = vec![false; config.run.agents];
    order.iter().take(config.corrupted()).for_each(|(_, device)| corrupted[*device] = true);
    corrupted
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use fedbandit_core::{Agent, Prior};
    use nalgebra::DMatrix;
    use rand_pcg::Pcg64;

    use super::*;
    use crate::config::RunConfig;
    use crate::simulation::attack::Attack;
    use crate::simulation::environment::{Context, Environment};
    use crate::simulation::participation::Participation;

    const D: usize = 2;
    const SEED: u64 = 5;

    fn config(aggregator: AggregatorName, attack: Attack) -> SimulationConfig {
        let run = RunConfig { agents: 10, dim: D, steps: 256, aggregator, ..RunConfig::default() };
        SimulationConfig { run, attack, ..SimulationConfig::default() }
    }

    /// A device that selects alone, step by step.
    struct NaiveDevice {
        number: u64,
        agent: Agent<D>,
        draws: Pcg64,
        attacked: Pcg64,
    }

    impl NaiveDevice {
        fn fleet(agents: usize) -> Vec<Self> {
            let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 1, rewards: Rewards::Unbounded };
            let device = |number| Self {
                number,
                agent: Agent::new(&prior).unwrap(),
                draws: generator(SEED, Purpose::Agent, number),
                attacked: generator(SEED, Purpose::Attacked, number),
            };
            (0..agents as u64).map(device).collect()
        }

        /// Runs an episode. Returns the regret over the steps with true rewards, then U and u.
        fn run(
            &mut self,
            world: &World,
            model: &Model<'_>,
            steps: Range<u32>,
            fakes: bool,
        ) -> (f64, DMatrix<f64>, DVector<f64>) {
            let (mut regret, mut gram, mut sum) = (0.0, DMatrix::zeros(D, D), DVector::zeros(D));
            let mut context = Context::<D>::new();
            self.agent.begin(model).unwrap();
            for step in steps {
                world.draw(self.number, step, &mut self.draws, &mut context);
                let chosen = self.agent.select(&context.arms).unwrap().index;
                let theta = world.theta(step);
                let means: Vec<f64> =
                    context.arms.iter().map(|x| x.iter().zip(&*theta).map(|(x, t)| f64::from(*x) * t).sum()).collect();
                let (mean, best) = (means[chosen], means.iter().copied().fold(f64::NEG_INFINITY, f64::max));
                let faked = fakes && self.attacked.next_u32() >> 31 == 1;
                let reward = world.reward(mean, faked, &mut self.draws);
                let x = DVector::from_iterator(D, context.arms[chosen].iter().copied().map(f64::from));
                gram += &x * x.transpose();
                sum += x * f64::from(reward);
                regret += if faked { 0.0 } else { best - mean };
            }
            self.agent.finish();
            (regret, gram, sum)
        }

        /// Returns true if the device is present from a step on. Its generator yields p, or two numbers for a late device, then one
        /// number for each step or block.
        fn is_present(&self, config: &SimulationConfig, step: u32) -> bool {
            let mut rng = generator(SEED, Purpose::Participation, self.number);
            let mut numbers = std::iter::repeat_with(|| rng.next_u64() as f64 / 2.0_f64.powi(64));
            let first = numbers.next().unwrap();
            match config.participation {
                Participation::Always => true,
                Participation::Sleepy => numbers.nth(step as usize).unwrap() < 0.2 + 0.8 * first,
                Participation::Stretches => {
                    let block = (f64::from(step) / (f64::from(config.run.steps) / 8.0)).floor();
                    numbers.nth(block as usize).unwrap() < 0.2 + 0.8 * first
                }
                Participation::Late => {
                    let joins = numbers.next().unwrap() * f64::from(config.run.steps);
                    first >= 0.5 || step >= joins.floor() as u32
                }
            }
        }

        /// Draws the numbers of steps that are not taken.
        fn sit_out(&mut self, world: &World, steps: Range<u32>) {
            for step in steps {
                world.draw(self.number, step, &mut self.draws, &mut Context::<D>::new());
                world.reward(0.0, false, &mut self.draws);
            }
        }
    }

    /// Computes R_T by its definition: over all agents and all steps on which the agent is present and not attacked. Returns also
    /// the number of messages, which is that of models.
    fn naive_robust_regret(config: &SimulationConfig) -> (f64, u64) {
        let world = World::new(config, &Logs::new(), SEED).unwrap();
        let (resolved, corrupted) = (config.resolve(), corrupted(config, SEED));
        let controller_config = resolved.controller_config().unwrap();
        let (enrolled, rule) = ((0..10).map(AgentId), resolved.rule(SEED).unwrap());
        let mut controller = Controller::new(controller_config, enrolled, rule, NoPrivacy::new).unwrap();
        let mut devices = NaiveDevice::fleet(10);
        let mut attackers = generator(SEED, Purpose::Attacker, 0);
        let (mut regret, mut start, mut received) = (0.0, 0, 0);
        while let Some(model) = controller.model() {
            let (episode, length) = (model.episode, f64::from(model.episode_len));
            let end = config.run.steps.min(start + model.episode_len);
            let mut messages = Vec::new();
            let (mut mean, mut honest) = (DMatrix::zeros(D, D), 0.0);
            for (device, corrupted) in devices.iter_mut().zip(&corrupted) {
                let fakes = *corrupted && config.attack == Attack::FakeParameter;
                let attacked = *corrupted && config.attack == Attack::Intermittent && attackers.next_u32() >> 31 == 0;
                if !corrupted && !device.is_present(config, start) {
                    device.sit_out(&world, start..end);
                    continue;
                }
                let (lost, gram, sum) = device.run(&world, &model, start..end, fakes);
                regret += if attacked { 0.0 } else { lost };
                if !corrupted {
                    mean += &gram;
                    honest += 1.0;
                }
                messages.push((AgentId(device.number as u32), attacked, gram, sum));
            }
            mean /= honest;
            let forged = DVector::from_column_slice(&world.theta(end)).normalize() * (-10.0 * length);
            received += messages.len() as u64;
            for (agent, attacked, gram, sum) in &messages {
                let (gram, sum) = if *attacked { (&mean, &forged) } else { (gram, sum) };
                controller.receive_matrix(*agent, episode, gram.as_slice(), sum.as_slice()).unwrap();
            }
            controller.close_episode().unwrap();
            start = end;
        }
        (regret, received)
    }

    /// A configuration with a θ* that turns by a right angle, and a half-life.
    fn drifting(config: SimulationConfig) -> SimulationConfig {
        let run = RunConfig { steps: 4096, forget: Some(300), ..config.run };
        SimulationConfig { run, environment: Environment::DriftingTheta, ..config }
    }

    /// On a drifting θ*, the best action is that of the step.
    #[test]
    fn robust_regret_covers_all_steps_that_are_not_attacked() {
        let attacks = [Attack::Intermittent, Attack::FakeParameter];
        let constant = attacks.map(|attack| config(AggregatorName::GeometricMedian, attack));
        let drifting = constant.clone().map(drifting);
        for config in constant.into_iter().chain(drifting).flat_map(with_each_participation) {
            let name = format!("{}, {}", config.attack, config.participation);
            let outcome = simulate(&config, &Logs::new(), SEED, &|_| {}).unwrap();
            let (expected, messages) = naive_robust_regret(&config);
            let relative = outcome.robust_regret / expected - 1.0;
            assert!(relative.abs() < 1e-6, "{name}: got {}, expected {expected}", outcome.robust_regret);
            assert!(outcome.regret < 0.95 * expected, "{name}: attacked agents have unattacked steps");
            let bytes = messages * plain_frame_len(D) as u64;
            assert_eq!((outcome.bytes_up, outcome.bytes_down), (bytes, bytes), "{name}");
        }
    }

    fn with_each_participation(config: SimulationConfig) -> impl Iterator<Item = SimulationConfig> {
        Participation::ALL
            .iter()
            .map(move |participation| SimulationConfig { participation: *participation, ..config.clone() })
    }

    /// Regret and R_T as they were before devices could be absent.
    #[test]
    fn devices_that_are_always_present_have_their_former_regret() {
        use AggregatorName::{GeometricMedian, Solo, WhitenedFilter};
        for (aggregator, attack, regret, robust_regret) in [
            (WhitenedFilter, Attack::Optimal, 46.518_477_586_472_44, 46.518_477_586_472_44),
            (GeometricMedian, Attack::Collude, 37.061_925_492_948_44, 37.061_925_492_948_44),
            (Solo, Attack::FakeParameter, 61.158_830_980_100_07, 248.752_630_936_571_96),
            (WhitenedFilter, Attack::HostileController, 336.616_918_209_835_7, 336.616_918_209_835_7),
        ] {
            let outcome = simulate(&config(aggregator, attack), &Logs::new(), SEED, &|_| {}).unwrap();
            assert!((outcome.regret / regret - 1.0).abs() < 1e-9, "{aggregator}, {attack}: {}", outcome.regret);
            assert!((outcome.robust_regret / robust_regret - 1.0).abs() < 1e-9, "{aggregator}, {attack}");
        }
    }

    /// By the trace, which has all 14 episodes here.
    #[test]
    fn width_ratio_share_is_that_of_all_models_after_the_first() {
        let collude = config(AggregatorName::Mean, Attack::ALittleIsEnough);
        let mut shares = Vec::new();
        for config in [drifting(collude.clone()), collude] {
            let outcome = simulate(&config, &Logs::new(), SEED, &|_| {}).unwrap();
            let ratios: Vec<f64> = outcome.trace[1..].iter().map(|trace| trace.width_ratio.unwrap()).collect();
            assert_eq!(ratios.len() as u32 + 1, config.resolve().controller_config().unwrap().episodes.count());
            let share = ratios.iter().filter(|ratio| **ratio > 1.0).count() as f64 / ratios.len() as f64;
            assert_eq!(outcome.width_ratio_share, Some(share));
            shares.push(share);
        }
        assert!(shares.iter().any(|share| *share > 0.0 && *share < 1.0), "{shares:?}");
    }

    /// Ridge regression by its definition, with β of Abbasi-Yadkori et al. Corrupted agents, whose rewards are faked, do not
    /// count. A half-life weights the steps of each episode by its age.
    #[test]
    fn solo_width_ratio_is_the_largest_over_all_episodes_and_honest_agents() {
        let constant = config(AggregatorName::Solo, Attack::FakeParameter);
        let (largest, last) = assert_solo_width_ratio(&constant);
        assert!(last < 0.95 * largest, "the last models do not have the largest ratio: {last}");
        for config in [constant.clone(), drifting(constant)].into_iter().flat_map(with_each_participation) {
            assert_solo_width_ratio(&config);
        }
    }

    /// Returns the largest ratio of all models, and that of the last ones.
    fn assert_solo_width_ratio(config: &SimulationConfig) -> (f64, f64) {
        let world = World::new(config, &Logs::new(), SEED).unwrap();
        let half_life = config.run.forget.map_or(f64::INFINITY, f64::from);
        let episodes = config.resolve().controller_config().unwrap().episodes;
        let (mut largest, mut largest_of_last) = (0.0_f64, 0.0_f64);
        let (mut measured, mut above) = (0.0, 0.0);
        let honest =
            NaiveDevice::fleet(10).into_iter().zip(corrupted(config, SEED)).filter(|(_, corrupted)| !corrupted);
        for (mut device, _) in honest {
            let mut messages: Vec<(u32, DMatrix<f64>, DVector<f64>)> = Vec::new();
            let mut start = 0;
            for k in 1..=episodes.count() {
                let (mut design, mut sum) = (DMatrix::identity(D, D), DVector::zeros(D));
                for (end, gram, feature_sum) in &messages {
                    let weight = 0.5_f64.powf(f64::from(start - end) / half_life);
                    design += gram * weight;
                    sum += feature_sum * weight;
                }
                let theta = design.clone().try_inverse().unwrap() * &sum;
                let beta = 0.5 * (design.determinant().ln() - 2.0 * config.run.delta.ln()).sqrt() + 1.0;
                let error = &theta - DVector::from_column_slice(&world.theta(start));
                let ratio = error.dot(&(&design * &error)).sqrt() / beta;
                if k > 1 {
                    largest = largest.max(ratio);
                    measured += 1.0;
                    above += if ratio > 1.0 { 1.0 } else { 0.0 };
                }
                if k == episodes.count() {
                    largest_of_last = largest_of_last.max(ratio);
                }
                let parameters = ModelParameters::new(&theta, &design, beta).unwrap();
                let end = config.run.steps.min(start + episodes.length(k));
                if !device.is_present(config, start) {
                    device.sit_out(&world, start..end);
                    start = end;
                    continue;
                }
                let model = parameters.model(k, episodes.length(k), Rewards::Unbounded);
                let (_, gram, feature_sum) = device.run(&world, &model, start..end, false);
                messages.push((end, gram, feature_sum));
                start = end;
            }
        }
        let outcome = simulate(config, &Logs::new(), SEED, &|_| {}).unwrap();
        let ratio = outcome.width_ratio_max.unwrap();
        assert!((ratio / largest - 1.0).abs() < 1e-3, "got {ratio}, expected {largest}");
        assert_eq!(outcome.width_ratio_share, Some(above / measured));
        (largest, largest_of_last)
    }
}
