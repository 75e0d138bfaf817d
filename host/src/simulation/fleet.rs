//! Fleet of virtual devices, each running the agent of the firmware.

use std::slice;

use fedbandit_core::{Action, Agent, Guard, Model, Prior, Rewards, packed_len};
use nalgebra::DVector;
use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;
use rayon::prelude::*;
use rustix::time::{ClockId, clock_gettime};

use super::environment::{Context, World};
use super::guard::{DeviceAgent, GuardName};
use super::hostile_controller::{Forgery, HostileController};
use super::selection::{DecisionSets, select_all};
use crate::algorithm::ModelParameters;
use crate::math::rng::{Purpose, generator};

/// Fleet of virtual devices of one dimension.
pub(super) trait Fleet: Send {
    /// Runs the steps of an episode on all devices. [`summaries`](Self::summaries) then returns their summaries, which are zero for
    /// absent devices.
    fn run_episode(&mut self, models: Models<'_>, conduct: &[Conduct], steps: EpisodeSteps) -> EpisodeResult;

    /// Returns the summaries of the last episode.
    fn summaries(&self) -> &Summaries;

    /// Returns the number of alarms of all guards.
    fn alarms(&self) -> u64;

    /// Returns θ* at a step, counted from 0.
    fn theta(&self, step: u32) -> Vec<f64>;

    /// Draws the trial steps, on which attackers evaluate models. Guarded devices are represented by some of the `honest` ones.
    fn draw_trial_steps(&mut self, step: u32, honest: &[usize], rng: &mut Pcg64);

    /// Returns a model's mean regret on the trial steps.
    fn trial_regret(&self, model: Model<'_>) -> f64;

    /// Returns the mean of max_{x ≠ x*} score(x) − score(x*) on the trial steps: negative if the best action x* is chosen.
    fn trial_score_gap(&self, model: Model<'_>) -> f64;

    /// Returns x − x* for up to [`DIFFERENCES`] other actions x of the first trial step.
    fn action_differences(&self) -> Vec<DVector<f64>>;
}

/// Models that the agents use.
pub(super) enum Models<'a> {
    /// The same for all: the controller's broadcast.
    Broadcast(Model<'a>),
    /// One for each agent.
    Own(&'a [ModelParameters]),
    /// One for each agent, forged by a hostile controller.
    Forged,
}

/// Settings of a fleet.
#[derive(Clone, Copy)]
pub(super) struct FleetConfig {
    pub(super) seed: u64,
    pub(super) rewards: Rewards,
    pub(super) guard: GuardName,
    /// Constants of the guard.
    pub(super) constants: Guard,
    /// Models that a hostile controller forges.
    pub(super) forgery: Forgery,
}

/// Steps of an episode.
#[derive(Clone, Copy)]
pub(super) struct EpisodeSteps {
    /// k.
    pub(super) episode: u32,
    /// L_k.
    pub(super) episode_len: u32,
    /// The first step, counted from 0.
    pub(super) start: u32,
    /// Number of steps.
    pub(super) count: u32,
    /// T/2, the first late step.
    pub(super) late: u32,
}

/// Conduct of an agent in an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conduct {
    /// Not attacked.
    Honest,
    /// Rewards of −θ* on about half of the steps. The other steps are not attacked.
    FakeRewards,
    /// Attacked on all steps.
    Attacked,
    /// Gets no model, takes no steps and sends no message.
    Absent,
}

/// Regret on the steps that were not attacked, and that of uniformly random choices on the same steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) regret: f64,
    pub(super) random: f64,
    pub(super) late_regret: f64,
    pub(super) late_random: f64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.regret += other.regret;
        self.random += other.random;
        self.late_regret += other.late_regret;
        self.late_random += other.late_random;
    }
}

/// Result of [`Fleet::run_episode`].
pub(super) struct EpisodeResult {
    /// Tally of each device.
    pub(super) tallies: Vec<Tally>,
    /// ‖θ − θ*‖_Λ/β of the ellipsoid that each device used; 0 if it was absent.
    pub(super) width_ratios: Vec<f32>,
    /// CPU time of all threads.
    pub(super) cpu_seconds: f64,
}

/// U and u of all devices in an episode.
#[derive(Clone, Debug)]
pub(super) struct Summaries {
    dimension: usize,
    values: Vec<f32>,
}

impl Summaries {
    /// Creates summaries from rows of U, packed, and u.
    #[cfg(test)]
    pub(super) fn of(dimension: usize, values: Vec<f32>) -> Self {
        Self { dimension, values }
    }

    /// Returns U, packed, and u of a device.
    pub(super) fn row(&self, device: usize) -> (&[f32], &[f32]) {
        let width = packed_len(self.dimension) + self.dimension;
        self.values[device * width..][..width].split_at(packed_len(self.dimension))
    }
}

/// Number of devices per unit of parallel work.
const CHUNK: usize = 16;
/// Number of trial steps.
const TRIAL_STEPS: usize = 64;
/// Number of guarded devices that represent the fleet on the trial steps.
const TRIAL_DEVICES: usize = 16;
/// Largest number of action differences.
const DIFFERENCES: usize = 16;

/// Calls a macro with the dimensions that virtual devices are compiled for.
#[cfg(not(test))]
macro_rules! for_dimensions {
    ($of:ident) => {
        $of! { 1 2 3 4 5 6 8 10 12 16 24 32 48 64 }
    };
}
/// Fewer dimensions for unit tests, which halves their build time.
#[cfg(test)]
macro_rules! for_dimensions {
    ($of:ident) => {
        $of! { 2 4 8 }
    };
}
pub(crate) use for_dimensions;

macro_rules! by_dimension {
    ($($d:literal)*) => {
        /// Dimensions that virtual devices are compiled for.
        pub const DIMENSIONS: &[usize] = &[$($d),*];

        /// Creates the devices of a world, with the numbers `devices`.
        pub(super) fn fleet(world: World, devices: &[usize], config: FleetConfig) -> Box<dyn Fleet> {
            match world.dimension() {
                $($d => Box::new(Devices::<$d, { packed_len($d) }>::new(world, devices, config)),)*
                other => unreachable!("dimension {other} was validated"),
            }
        }
    };
}
for_dimensions!(by_dimension);

struct Devices<const D: usize, const T: usize> {
    world: World,
    config: FleetConfig,
    devices: Vec<Device<D, T>>,
    summaries: Summaries,
    trial: Vec<Context<D>>,
    /// Agents of the trial steps, each for as many consecutive steps.
    trial_agents: Vec<DeviceAgent<D, T>>,
}

struct Device<const D: usize, const T: usize> {
    number: u64,
    agent: DeviceAgent<D, T>,
    /// Generator of decision sets and rewards.
    rng: Pcg64,
    /// Generator of attacked steps.
    attacked: Pcg64,
    /// Generator of scout steps.
    scouts: Pcg64,
    controller: HostileController<D>,
}

impl<const D: usize, const T: usize> Devices<D, T> {
    fn new(world: World, devices: &[usize], config: FleetConfig) -> Self {
        let FleetConfig { seed, rewards, guard, constants, forgery } = config;
        let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 1, rewards };
        let agent = DeviceAgent::new(&prior, (guard != GuardName::Off).then_some(constants)).expect("a valid prior");
        let device = |device: &usize| {
            let generator = |purpose| generator(seed, purpose, *device as u64);
            let controller =
                HostileController::new(forgery, guard.scouts(), constants.noise, generator(Purpose::HostileController));
            Device {
                number: *device as u64,
                agent: agent.clone(),
                rng: generator(Purpose::Agent),
                attacked: generator(Purpose::Attacked),
                scouts: generator(Purpose::Scouts),
                controller,
            }
        };
        let values = vec![0.0; devices.len() * (packed_len(D) + D)];
        let summaries = Summaries { dimension: D, values };
        let devices = devices.iter().map(device).collect();
        Self { world, config, devices, summaries, trial: vec![Context::new(); TRIAL_STEPS], trial_agents: vec![agent] }
    }

    /// Returns the mean of a value on the trial steps, where each device uses a model.
    fn trial_mean(&self, model: &Model<'_>, value: impl Fn(&Agent<D>, &Context<D>) -> f64) -> f64 {
        let contexts = self.trial.chunks(TRIAL_STEPS / self.trial_agents.len());
        let of = |(agent, contexts): (&DeviceAgent<D, T>, &[Context<D>])| {
            let mut agent = agent.clone();
            agent.begin(model).expect("model parameters are valid");
            contexts.iter().map(|context| value(&agent, context)).sum::<f64>()
        };
        self.trial_agents.iter().zip(contexts).map(of).sum::<f64>() / TRIAL_STEPS as f64
    }
}

impl<const D: usize, const T: usize> Fleet for Devices<D, T> {
    fn run_episode(&mut self, models: Models<'_>, conduct: &[Conduct], steps: EpisodeSteps) -> EpisodeResult {
        let (world, FleetConfig { rewards, guard, .. }) = (&self.world, self.config);
        let truth: [f32; D] = std::array::from_fn(|j| world.theta(steps.start)[j] as f32);
        let chunks = self.devices.par_chunks_mut(CHUNK).enumerate();
        let rows = self.summaries.values.par_chunks_mut(CHUNK * (packed_len(D) + D));
        let results: Vec<(Vec<Tally>, Vec<f32>, f64)> = chunks
            .zip(rows)
            .map(|((chunk, devices), rows)| {
                let start = thread_seconds();
                let conduct = &conduct[chunk * CHUNK..][..devices.len()];
                let is_present = |(_, conduct): &(_, &Conduct)| **conduct != Conduct::Absent;
                for ((number, device), _) in (chunk * CHUNK..).zip(&mut *devices).zip(conduct).filter(is_present) {
                    let forged;
                    let model = match &models {
                        Models::Broadcast(model) => *model,
                        Models::Own(own) => own[number].model(steps.episode, steps.episode_len, rewards),
                        Models::Forged => {
                            forged = device.controller.forge(&device.agent, device.number, world, steps);
                            forged.model(steps.episode, steps.episode_len, rewards)
                        }
                    };
                    device.agent.begin(&model).expect("model parameters are valid");
                }
                let width_ratio = |(device, conduct): (&Device<D, T>, &Conduct)| match conduct {
                    Conduct::Absent => 0.0,
                    _ => device.agent.width_ratio(&truth),
                };
                let width_ratios = devices.iter().zip(conduct).map(width_ratio).collect();
                let tallies = match &models {
                    Models::Broadcast(_) if guard == GuardName::Off => run_steps(devices, world, conduct, steps, guard),
                    _ => {
                        let alone = |(device, conduct)| {
                            run_steps(slice::from_mut(device), world, slice::from_ref(conduct), steps, guard)
                        };
                        devices.iter_mut().zip(conduct).flat_map(alone).collect()
                    }
                };
                let rows = rows.chunks_exact_mut(packed_len(D) + D);
                for ((device, row), conduct) in devices.iter_mut().zip(rows).zip(conduct) {
                    if *conduct == Conduct::Absent { row.fill(0.0) } else { device.finish(row) }
                }
                (tallies, width_ratios, thread_seconds() - start)
            })
            .collect();
        let mut all = EpisodeResult { tallies: Vec::new(), width_ratios: Vec::new(), cpu_seconds: 0.0 };
        for (tallies, width_ratios, seconds) in results {
            all.tallies.extend(tallies);
            all.width_ratios.extend(width_ratios);
            all.cpu_seconds += seconds;
        }
        all
    }

    fn summaries(&self) -> &Summaries {
        &self.summaries
    }

    fn alarms(&self) -> u64 {
        self.devices.iter().map(|device| device.agent.alarms()).sum()
    }

    fn theta(&self, step: u32) -> Vec<f64> {
        self.world.theta(step).into_owned()
    }

    fn draw_trial_steps(&mut self, step: u32, honest: &[usize], rng: &mut Pcg64) {
        let Self { world, devices, trial, trial_agents, .. } = self;
        if self.config.guard == GuardName::Off {
            return trial.iter_mut().zip(0..).for_each(|(context, agent)| world.draw(agent, step, rng, context));
        }
        trial_agents.clear();
        for (index, contexts) in trial.chunks_mut(TRIAL_STEPS / TRIAL_DEVICES).enumerate() {
            let device = &devices[honest[index * honest.len() / TRIAL_DEVICES]];
            trial_agents.push(device.agent.clone());
            contexts.iter_mut().for_each(|context| world.draw(device.number, step, rng, context));
        }
    }

    fn trial_regret(&self, model: Model<'_>) -> f64 {
        self.trial_mean(&model, |agent, context| {
            let choice = agent.select(&context.arms).expect("actions in the unit ball");
            context.best_and_random().0 - context.expected_rewards[choice.index]
        })
    }

    fn trial_score_gap(&self, model: Model<'_>) -> f64 {
        self.trial_mean(&model, |agent, context| {
            let score = |x: &Action<D>| f64::from(agent.score(x).expect("actions in the unit ball"));
            let best = best(context);
            let others = context.arms.iter().enumerate().filter(|(index, _)| *index != best);
            let other = others.map(|(_, x)| score(x)).fold(f64::NEG_INFINITY, f64::max);
            if other.is_finite() { other - score(&context.arms[best]) } else { 0.0 }
        })
    }

    fn action_differences(&self) -> Vec<DVector<f64>> {
        let context = &self.trial[0];
        let best = best(context);
        let others = context.arms.iter().enumerate().filter(|(index, _)| *index != best).take(DIFFERENCES);
        others
            .map(|(_, x)| DVector::from_iterator(D, (x - context.arms[best]).iter().copied().map(f64::from)))
            .collect()
    }
}

/// Returns the index of the best action.
fn best<const D: usize>(context: &Context<D>) -> usize {
    let rewards = context.expected_rewards.iter().enumerate();
    rewards.max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(index, _)| index)
}

/// Runs the steps of devices that select together. Those that are present hold the same model.
fn run_steps<const D: usize, const T: usize>(
    devices: &mut [Device<D, T>],
    world: &World,
    conduct: &[Conduct],
    steps: EpisodeSteps,
    guard: GuardName,
) -> Vec<Tally> {
    let mut contexts = vec![Context::new(); devices.len()];
    let mut tallies = vec![Tally::default(); devices.len()];
    let (mut sets, mut scores, mut choices) = (DecisionSets::new(), Vec::new(), Vec::new());
    let present = conduct.iter().position(|conduct| *conduct != Conduct::Absent).unwrap_or(0);
    for step in steps.start..steps.start + steps.count {
        sets.clear();
        for (device, context) in devices.iter_mut().zip(&mut contexts) {
            world.draw(device.number, step, &mut device.rng, context);
            sets.push(&context.arms);
        }
        // Absent devices draw as well, so that a step has the same draws in every run; their choices are not used.
        let Some(device) = devices.get(present) else { break };
        select_all(&device.agent, &sets, &mut scores, &mut choices).expect("actions in the unit ball");
        if guard == GuardName::Untrusting {
            for ((device, context), choice) in devices.iter_mut().zip(&contexts).zip(&mut choices) {
                if let DeviceAgent::Guarded(agent) = &device.agent {
                    let scouted = agent.select_or_scout(&context.arms, guard.scouts(), &mut device.scouts);
                    *choice = scouted.expect("actions in the unit ball").index;
                }
            }
        }
        let devices = devices.iter_mut().zip(&contexts).zip(&choices).zip(conduct).zip(&mut tallies);
        for ((((device, context), choice), conduct), tally) in devices {
            device.step(world, context, *choice, *conduct, step >= steps.late, tally);
        }
    }
    tallies
}

impl<const D: usize, const T: usize> Device<D, T> {
    /// Records the reward of a choice and, unless the step is attacked, its regret. An absent device only draws.
    fn step(
        &mut self,
        world: &World,
        context: &Context<D>,
        choice: usize,
        conduct: Conduct,
        late: bool,
        tally: &mut Tally,
    ) {
        let mean = context.expected_rewards[choice];
        let faked = conduct == Conduct::FakeRewards && self.attacked.next_u32() >> 31 == 1;
        let reward = world.reward(mean, faked, &mut self.rng);
        if conduct == Conduct::Absent {
            return;
        }
        self.agent.record(&context.arms[choice], reward).expect("an episode has room for its steps");
        if faked || conduct == Conduct::Attacked {
            return;
        }
        let (best, random) = context.best_and_random();
        tally.regret += best - mean;
        tally.random += best - random;
        if late {
            tally.late_regret += best - mean;
            tally.late_random += best - random;
        }
    }

    fn finish(&mut self, row: &mut [f32]) {
        let summary = self.agent.finish();
        let values = summary.gram().chain(*summary.feature_sum());
        row.iter_mut().zip(values).for_each(|(entry, value)| *entry = value);
    }
}

/// Returns the CPU time of this thread.
fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use nalgebra::DMatrix;

    use super::*;
    use crate::config::RunConfig;
    use crate::simulation::SimulationConfig;
    use crate::simulation::replay::Logs;

    /// Runs two episodes. All devices are present in the first one.
    fn run(guard: GuardName, second: &[Conduct]) -> (Devices<2, 3>, Vec<DeviceAgent<2, 3>>, EpisodeResult) {
        let run = RunConfig { dim: 2, steps: 16, ..RunConfig::default() };
        let config = SimulationConfig { run, ..SimulationConfig::default() };
        let world = World::new(&config, &Logs::new(), 1).unwrap();
        let fleet_config = config.fleet_config(1, Rewards::Unbounded, guard);
        let mut fleet = Devices::<2, 3>::new(world, &[0, 1, 2], fleet_config);
        let parameters =
            ModelParameters::new(&DVector::from_vec(vec![0.3, 0.1]), &DMatrix::identity(2, 2), 1.0).unwrap();
        let mut episode = |episode, start, conduct: &[Conduct]| {
            let steps = EpisodeSteps { episode, episode_len: 8, start, count: 8, late: 8 };
            let before = fleet.devices.iter().map(|device| device.agent.clone()).collect();
            (
                before,
                fleet.run_episode(Models::Broadcast(parameters.model(episode, 8, Rewards::Unbounded)), conduct, steps),
            )
        };
        episode(1, 0, &[Conduct::Honest; 3]);
        let (before, result) = episode(2, 8, second);
        (fleet, before, result)
    }

    #[test]
    fn absent_device_changes_nothing_but_its_draws() {
        for guard in GuardName::ALL.iter().copied() {
            let (all, _, all_result) = run(guard, &[Conduct::Honest; 3]);
            let (fleet, before, result) = run(guard, &[Conduct::Absent, Conduct::Honest, Conduct::Absent]);
            for absent in [0, 2] {
                assert!(fleet.devices[absent].agent == before[absent], "{guard}: learnt");
                assert!(all.devices[absent].agent != before[absent], "{guard}: a present device learns");
                assert_eq!(fleet.summaries().row(absent), (&[0.0; 3][..], &[0.0; 2][..]));
                assert_eq!((result.tallies[absent], result.width_ratios[absent]), (Tally::default(), 0.0));
                // At the next step, it has the same draws as if it had been present.
                assert_eq!(fleet.devices[absent].rng, all.devices[absent].rng);
            }
            assert_eq!(fleet.summaries().row(1), all.summaries().row(1));
            assert_eq!(result.tallies[1], all_result.tallies[1]);
            assert!(result.tallies[1].random > 0.0 && fleet.devices[1].agent == all.devices[1].agent);
        }
    }
}
