//! Virtual devices: the agents of the firmware, many of them.

use std::slice;

use fedbandit_core::{Action, Agent, Model, Prior, Rewards, packed_len};
use nalgebra::DVector;
use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;
use rayon::prelude::*;
use rustix::time::{ClockId, clock_gettime};

use super::environment::{Scene, World};
use super::selection::{DecisionSets, select_all};
use crate::algorithm::ModelParameters;
use crate::math::rng::{Purpose, generator};

/// Virtual devices of one dimension.
pub(super) trait Fleet: Send {
    /// Plays the steps of an episode on all devices; [`summaries`](Self::summaries) has what they would send.
    fn play(&mut self, models: Models<'_>, conduct: &[Conduct], stretch: Stretch) -> Played;

    /// The summaries of the last episode.
    fn summaries(&self) -> &Summaries;

    /// Draws the steps on which the next models are [judged](Self::judge).
    fn look_ahead(&mut self, step: u32, rng: &mut Pcg64);

    /// A model's mean regret on these steps.
    fn judge(&mut self, model: Model<'_>) -> f64;

    /// How far below the best other action the best one is by the model's scores, in the mean: less than 0 where it is chosen.
    fn temptation(&mut self, model: Model<'_>) -> f64;

    /// x − x* of the first of these steps, for all other actions x.
    fn wishes(&self) -> Vec<DVector<f64>>;
}

/// What agents work with.
pub(super) enum Models<'a> {
    /// The controller's broadcast.
    Broadcast(Model<'a>),
    /// Everybody's own.
    Own(&'a [ModelParameters]),
}

/// Which steps are played.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    /// k.
    pub(super) episode: u32,
    /// L_k.
    pub(super) episode_len: u32,
    /// The first one, counted from 0.
    pub(super) start: u32,
    /// How many.
    pub(super) steps: u32,
    /// T/2: what is from here on is late.
    pub(super) late: u32,
}

/// What happens to an agent in an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conduct {
    /// Nothing.
    Honest,
    /// Half of its steps have rewards of −θ*.
    Faked,
    /// All of its steps are attacked, so none counts.
    Attacked,
}

/// Regret over steps that were not attacked, and the regret of uniformly random choices on the same steps.
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

/// What [`Fleet::play`] tells.
pub(super) struct Played {
    /// By device.
    pub(super) tallies: Vec<Tally>,
    /// What it took, over all threads.
    pub(super) cpu_seconds: f64,
}

/// Everybody's U and u of one episode.
#[derive(Clone, Debug)]
pub(super) struct Summaries {
    dimension: usize,
    values: Vec<f32>,
}

impl Summaries {
    /// From rows of U packed and u.
    #[cfg(test)]
    pub(super) fn of(dimension: usize, values: Vec<f32>) -> Self {
        Self { dimension, values }
    }

    /// U packed, and u.
    pub(super) fn row(&self, device: usize) -> (&[f32], &[f32]) {
        let width = packed_len(self.dimension) + self.dimension;
        self.values[device * width..][..width].split_at(packed_len(self.dimension))
    }
}

/// How many devices a thread takes at a time.
const CHUNK: usize = 16;
/// On how many steps a model is judged.
const AHEAD: usize = 64;
/// How many actions an attacker would have agents choose.
const WISHES: usize = 16;

/// A macro of the dimensions that virtual devices are compiled for.
#[cfg(not(test))]
macro_rules! for_dimensions {
    ($of:ident) => {
        $of! { 1 2 3 4 5 6 8 10 12 16 24 32 48 64 }
    };
}
/// Unit tests do with few, and are built twice as fast.
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
        /// The dimensions that virtual devices are compiled for.
        pub const DIMENSIONS: &[usize] = &[$($d),*];

        /// The devices of a world, numbered by `devices`.
        pub(super) fn fleet(world: World, devices: &[usize], seed: u64, rewards: Rewards) -> Box<dyn Fleet> {
            match world.theta.len() {
                $($d => Box::new(Devices::<$d>::new(world, devices, seed, rewards)),)*
                other => unreachable!("dimension {other} was checked"),
            }
        }
    };
}
for_dimensions!(by_dimension);

struct Devices<const D: usize> {
    world: World,
    rewards: Rewards,
    devices: Vec<Device<D>>,
    summaries: Summaries,
    ahead: Vec<Scene<D>>,
    judge: Agent<D>,
}

struct Device<const D: usize> {
    number: u64,
    agent: Agent<D>,
    /// Its decision sets and rewards.
    rng: Pcg64,
    /// When it is attacked.
    attacked: Pcg64,
}

impl<const D: usize> Devices<D> {
    fn new(world: World, devices: &[usize], seed: u64, rewards: Rewards) -> Self {
        let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 1, rewards };
        let agent = Agent::new(&prior).expect("a valid prior");
        let device = |device: &usize| Device {
            number: *device as u64,
            agent: agent.clone(),
            rng: generator(seed, Purpose::Agent, *device as u64),
            attacked: generator(seed, Purpose::Attacked, *device as u64),
        };
        let values = vec![0.0; devices.len() * (packed_len(D) + D)];
        let summaries = Summaries { dimension: D, values };
        let devices = devices.iter().map(device).collect();
        Self { world, rewards, devices, summaries, ahead: vec![Scene::new(); AHEAD], judge: agent }
    }
}

impl<const D: usize> Fleet for Devices<D> {
    fn play(&mut self, models: Models<'_>, conduct: &[Conduct], stretch: Stretch) -> Played {
        let (world, rewards) = (&self.world, self.rewards);
        let chunks = self.devices.par_chunks_mut(CHUNK).enumerate();
        let rows = self.summaries.values.par_chunks_mut(CHUNK * (packed_len(D) + D));
        let played: Vec<(Vec<Tally>, f64)> = chunks
            .zip(rows)
            .map(|((chunk, devices), rows)| {
                let start = thread_seconds();
                for (number, device) in (chunk * CHUNK..).zip(&mut *devices) {
                    let model = match &models {
                        Models::Broadcast(model) => *model,
                        Models::Own(own) => own[number].model(stretch.episode, stretch.episode_len, rewards),
                    };
                    device.agent.begin(&model).expect("parameters are such as a device takes");
                }
                let conduct = &conduct[chunk * CHUNK..][..devices.len()];
                let tallies = match &models {
                    Models::Broadcast(_) => play_together(devices, world, conduct, stretch),
                    Models::Own(_) => {
                        let alone = |(device, conduct)| {
                            play_together(slice::from_mut(device), world, slice::from_ref(conduct), stretch)
                        };
                        devices.iter_mut().zip(conduct).flat_map(alone).collect()
                    }
                };
                let rows = rows.chunks_exact_mut(packed_len(D) + D);
                devices.iter_mut().zip(rows).for_each(|(device, row)| device.finish(row));
                (tallies, thread_seconds() - start)
            })
            .collect();
        let cpu_seconds = played.iter().map(|(_, seconds)| seconds).sum();
        Played { tallies: played.into_iter().flat_map(|(tallies, _)| tallies).collect(), cpu_seconds }
    }

    fn summaries(&self) -> &Summaries {
        &self.summaries
    }

    fn look_ahead(&mut self, step: u32, rng: &mut Pcg64) {
        self.ahead.iter_mut().zip(0..).for_each(|(scene, agent)| self.world.draw(agent, step, rng, scene));
    }

    fn judge(&mut self, model: Model<'_>) -> f64 {
        self.judge.begin(&model).expect("parameters are such as a device takes");
        let regret = |scene: &Scene<D>| {
            let choice = self.judge.select(&scene.arms).expect("actions in the unit ball");
            scene.best_and_random().0 - scene.worth[choice.index]
        };
        self.ahead.iter().map(regret).sum::<f64>() / AHEAD as f64
    }

    fn temptation(&mut self, model: Model<'_>) -> f64 {
        self.judge.begin(&model).expect("parameters are such as a device takes");
        let score = |x: &Action<D>| f64::from(self.judge.score(x).expect("actions in the unit ball"));
        let gap = |scene: &Scene<D>| {
            let best = best(scene);
            let others = scene.arms.iter().enumerate().filter(|(index, _)| *index != best);
            let other = others.map(|(_, x)| score(x)).fold(f64::NEG_INFINITY, f64::max);
            if other.is_finite() { other - score(&scene.arms[best]) } else { 0.0 }
        };
        self.ahead.iter().map(gap).sum::<f64>() / AHEAD as f64
    }

    fn wishes(&self) -> Vec<DVector<f64>> {
        let scene = &self.ahead[0];
        let best = best(scene);
        let others = scene.arms.iter().enumerate().filter(|(index, _)| *index != best).take(WISHES);
        others.map(|(_, x)| DVector::from_iterator(D, (x - scene.arms[best]).iter().copied().map(f64::from))).collect()
    }
}

/// The place of the best action.
fn best<const D: usize>(scene: &Scene<D>) -> usize {
    let worth = scene.worth.iter().enumerate();
    worth.max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(index, _)| index)
}

/// The steps of devices that have the same model, who choose together at each step.
fn play_together<const D: usize>(
    devices: &mut [Device<D>],
    world: &World,
    conduct: &[Conduct],
    stretch: Stretch,
) -> Vec<Tally> {
    let mut scenes = vec![Scene::new(); devices.len()];
    let mut tallies = vec![Tally::default(); devices.len()];
    let (mut sets, mut scores, mut choices) = (DecisionSets::new(), Vec::new(), Vec::new());
    for step in stretch.start..stretch.start + stretch.steps {
        sets.clear();
        for (device, scene) in devices.iter_mut().zip(&mut scenes) {
            world.draw(device.number, step, &mut device.rng, scene);
            sets.push(&scene.arms);
        }
        let Some(first) = devices.first() else { break };
        select_all(&first.agent, &sets, &mut scores, &mut choices).expect("actions in the unit ball");
        let met = devices.iter_mut().zip(&scenes).zip(&choices).zip(conduct).zip(&mut tallies);
        for ((((device, scene), choice), conduct), tally) in met {
            device.step(world, scene, *choice, *conduct, step >= stretch.late, tally);
        }
    }
    tallies
}

impl<const D: usize> Device<D> {
    /// What comes of a choice.
    fn step(
        &mut self,
        world: &World,
        scene: &Scene<D>,
        choice: usize,
        conduct: Conduct,
        late: bool,
        tally: &mut Tally,
    ) {
        let worth = scene.worth[choice];
        let faked = conduct == Conduct::Faked && self.attacked.next_u32() >> 31 == 1;
        let reward = world.reward(worth, faked, &mut self.rng);
        self.agent.record(&scene.arms[choice], reward).expect("an episode has room for its steps");
        if faked || conduct == Conduct::Attacked {
            return;
        }
        let (best, random) = scene.best_and_random();
        tally.regret += best - worth;
        tally.random += best - random;
        if late {
            tally.late_regret += best - worth;
            tally.late_random += best - random;
        }
    }

    fn finish(&mut self, row: &mut [f32]) {
        let summary = self.agent.finish();
        let values = summary.gram().chain(*summary.feature_sum());
        row.iter_mut().zip(values).for_each(|(entry, value)| *entry = value);
    }
}

fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
