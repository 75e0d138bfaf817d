//! Fleet of virtual devices, each running the agent of the firmware.

use std::slice;

use fedbandit_core::{Action, Agent, Guard, Model, Prior, Rewards, packed_len};
use nalgebra::DVector;
use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;
use rayon::prelude::*;
use rustix::time::{ClockId, clock_gettime};

use super::environment::{Context, World};
use super::guard::{DeviceAgent, GuardName, SCOUTS};
use super::selection::{DecisionSets, select_all};
use crate::algorithm::ModelParameters;
use crate::math::rng::{Purpose, generator};

/// Fleet of virtual devices of one dimension.
pub(super) trait Fleet: Send {
    /// Runs the steps of an episode on all devices. [`summaries`](Self::summaries) then returns their summaries.
    fn run_episode(&mut self, models: Models<'_>, conduct: &[Conduct], steps: EpisodeSteps) -> EpisodeResult;

    /// Returns the summaries of the last episode.
    fn summaries(&self) -> &Summaries;

    /// Returns the number of alarms of all guards.
    fn alarms(&self) -> u64;

    /// Draws the trial steps, on which attackers evaluate models.
    fn draw_trial_steps(&mut self, step: u32, rng: &mut Pcg64);

    /// Returns a model's mean regret on the trial steps.
    fn trial_regret(&mut self, model: Model<'_>) -> f64;

    /// Returns the mean of max_{x ≠ x*} score(x) − score(x*) on the trial steps: negative if the best action x* is chosen.
    fn trial_score_gap(&mut self, model: Model<'_>) -> f64;

    /// Returns x − x* for up to [`DIFFERENCES`] other actions x of the first trial step.
    fn action_differences(&self) -> Vec<DVector<f64>>;
}

/// Models that the agents use.
pub(super) enum Models<'a> {
    /// The same for all: the controller's broadcast.
    Broadcast(Model<'a>),
    /// One for each agent.
    Own(&'a [ModelParameters]),
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
#[cfg(feature = "service")]
pub(crate) use for_dimensions;

macro_rules! by_dimension {
    ($($d:literal)*) => {
        /// Dimensions that virtual devices are compiled for.
        pub const DIMENSIONS: &[usize] = &[$($d),*];

        /// Creates the devices of a world, with the numbers `devices`.
        pub(super) fn fleet(
            world: World,
            devices: &[usize],
            seed: u64,
            rewards: Rewards,
            guard: (GuardName, Guard),
        ) -> Box<dyn Fleet> {
            match world.theta.len() {
                $($d => Box::new(Devices::<$d, { packed_len($d) }>::new(world, devices, seed, rewards, guard)),)*
                other => unreachable!("dimension {other} was validated"),
            }
        }
    };
}
for_dimensions!(by_dimension);

struct Devices<const D: usize, const T: usize> {
    world: World,
    rewards: Rewards,
    guard: GuardName,
    devices: Vec<Device<D, T>>,
    summaries: Summaries,
    trial: Vec<Context<D>>,
    trial_agent: Agent<D>,
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
}

impl<const D: usize, const T: usize> Devices<D, T> {
    fn new(
        world: World,
        devices: &[usize],
        seed: u64,
        rewards: Rewards,
        (guard, constants): (GuardName, Guard),
    ) -> Self {
        let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 1, rewards };
        let agent = DeviceAgent::new(&prior, (guard != GuardName::Off).then_some(constants)).expect("a valid prior");
        let device = |device: &usize| Device {
            number: *device as u64,
            agent: agent.clone(),
            rng: generator(seed, Purpose::Agent, *device as u64),
            attacked: generator(seed, Purpose::Attacked, *device as u64),
            scouts: generator(seed, Purpose::Scouts, *device as u64),
        };
        let values = vec![0.0; devices.len() * (packed_len(D) + D)];
        let summaries = Summaries { dimension: D, values };
        let devices = devices.iter().map(device).collect();
        let trial_agent = Agent::new(&prior).expect("a valid prior");
        Self { world, rewards, guard, devices, summaries, trial: vec![Context::new(); TRIAL_STEPS], trial_agent }
    }
}

impl<const D: usize, const T: usize> Fleet for Devices<D, T> {
    fn run_episode(&mut self, models: Models<'_>, conduct: &[Conduct], steps: EpisodeSteps) -> EpisodeResult {
        let (world, rewards, guard) = (&self.world, self.rewards, self.guard);
        let chunks = self.devices.par_chunks_mut(CHUNK).enumerate();
        let rows = self.summaries.values.par_chunks_mut(CHUNK * (packed_len(D) + D));
        let results: Vec<(Vec<Tally>, f64)> = chunks
            .zip(rows)
            .map(|((chunk, devices), rows)| {
                let start = thread_seconds();
                for (number, device) in (chunk * CHUNK..).zip(&mut *devices) {
                    let model = match &models {
                        Models::Broadcast(model) => *model,
                        Models::Own(own) => own[number].model(steps.episode, steps.episode_len, rewards),
                    };
                    device.agent.begin(&model).expect("model parameters are valid");
                }
                let conduct = &conduct[chunk * CHUNK..][..devices.len()];
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
                devices.iter_mut().zip(rows).for_each(|(device, row)| device.finish(row));
                (tallies, thread_seconds() - start)
            })
            .collect();
        let cpu_seconds = results.iter().map(|(_, seconds)| seconds).sum();
        EpisodeResult { tallies: results.into_iter().flat_map(|(tallies, _)| tallies).collect(), cpu_seconds }
    }

    fn summaries(&self) -> &Summaries {
        &self.summaries
    }

    fn alarms(&self) -> u64 {
        self.devices.iter().map(|device| device.agent.alarms()).sum()
    }

    fn draw_trial_steps(&mut self, step: u32, rng: &mut Pcg64) {
        self.trial.iter_mut().zip(0..).for_each(|(context, agent)| self.world.draw(agent, step, rng, context));
    }

    fn trial_regret(&mut self, model: Model<'_>) -> f64 {
        self.trial_agent.begin(&model).expect("model parameters are valid");
        let regret = |context: &Context<D>| {
            let choice = self.trial_agent.select(&context.arms).expect("actions in the unit ball");
            context.best_and_random().0 - context.expected_rewards[choice.index]
        };
        self.trial.iter().map(regret).sum::<f64>() / TRIAL_STEPS as f64
    }

    fn trial_score_gap(&mut self, model: Model<'_>) -> f64 {
        self.trial_agent.begin(&model).expect("model parameters are valid");
        let score = |x: &Action<D>| f64::from(self.trial_agent.score(x).expect("actions in the unit ball"));
        let gap = |context: &Context<D>| {
            let best = best(context);
            let others = context.arms.iter().enumerate().filter(|(index, _)| *index != best);
            let other = others.map(|(_, x)| score(x)).fold(f64::NEG_INFINITY, f64::max);
            if other.is_finite() { other - score(&context.arms[best]) } else { 0.0 }
        };
        self.trial.iter().map(gap).sum::<f64>() / TRIAL_STEPS as f64
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

/// Runs the steps of devices that hold the same model and select together.
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
    for step in steps.start..steps.start + steps.count {
        sets.clear();
        for (device, context) in devices.iter_mut().zip(&mut contexts) {
            world.draw(device.number, step, &mut device.rng, context);
            sets.push(&context.arms);
        }
        let Some(first) = devices.first() else { break };
        select_all(&first.agent, &sets, &mut scores, &mut choices).expect("actions in the unit ball");
        if guard == GuardName::Untrusting {
            for ((device, context), choice) in devices.iter_mut().zip(&contexts).zip(&mut choices) {
                if let DeviceAgent::Guarded(agent) = &device.agent {
                    let scouted = agent.select_or_scout(&context.arms, SCOUTS, &mut device.scouts);
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
    /// Records the reward of a choice and, unless the step is attacked, its regret.
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
