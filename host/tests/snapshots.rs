//! Snapshots: a service that resumes from one has the bits of a service that replays everything.

use fedbandit::config::{AggregatorName, RewardKind, RunConfig};
use fedbandit::service::store::{Memory, Store, StoreError};
use fedbandit::service::worker::{commit_and_tick, store_snapshot};
use fedbandit::service::{
    Link, MasterKey, Registry, Snapshot, SnapshotPolicy, StartError, StartOptions, StateMachine, Status, inspect, start,
};
use fedbandit_core::wire::{Channel, Message, SummaryMessage, max_frame_len};

#[path = "shared/random.rs"]
mod random;
use random::Random;

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        ((self.symmetric() + 1.0) / 2.0 * n as f64) as u64
    }
}

const D: usize = 2;
const AGENTS: u32 = 7;
const LENGTH: u32 = 8;
const EPISODES: u32 = 12;
const RUN: u32 = 3;

/// A snapshot after each model, with all summaries kept.
const ALWAYS: SnapshotPolicy = SnapshotPolicy { least_bytes: 0, ratio: 0, most_seconds: u64::MAX, retain: None };
const NEVER: SnapshotPolicy = SnapshotPolicy { least_bytes: u64::MAX, ..ALWAYS };

fn master() -> MasterKey {
    MasterKey::from_bytes(&[3; 32]).unwrap()
}

/// Configurations of every rule with a state of its own, of every noise mechanism, and with a half-life.
fn configs() -> Vec<RunConfig> {
    let plain = RunConfig {
        steps: LENGTH * EPISODES,
        episode_len: Some(LENGTH),
        first_episode: Some(LENGTH),
        ..RunConfig::default()
    };
    let private = RunConfig { rewards: RewardKind::Bounded, privacy: Some("8,1e-6".parse().unwrap()), ..plain };
    let rules = [
        AggregatorName::CappedFilter,
        AggregatorName::WhitenedFilter,
        AggregatorName::GeometricMedian,
        AggregatorName::MedianOfMeans,
        AggregatorName::TrimmedMean,
    ];
    let mut configs = Vec::from(rules.map(|aggregator| RunConfig { aggregator, ..plain }));
    let estimated: RewardKind = "auto:2".parse().unwrap();
    configs.extend([
        RunConfig { rewards: estimated, ..plain },
        RunConfig { forget: Some(20), ..plain },
        RunConfig { forget: Some(20), aggregator: AggregatorName::GeometricMedian, ..plain },
    ]);
    for mechanism in ["tree", "honaker", "blt"] {
        for aggregator in [AggregatorName::GeometricMedian, AggregatorName::MedianOfMeans] {
            configs.push(RunConfig { aggregator, mechanism: mechanism.parse().unwrap(), ..private });
        }
    }
    configs
}

/// A service, its store with snapshots, and a copy of all of its events and values without any.
struct Run {
    registry: Registry,
    config: RunConfig,
    policy: SnapshotPolicy,
    store: Memory,
    complete: Memory,
    service: StateMachine,
    now: u64,
    snapshots: usize,
    random: Random,
}

/// Store that copies everything except snapshots.
struct Copied<'a> {
    store: &'a mut Memory,
    complete: &'a mut Memory,
    snapshots: &'a mut usize,
}

impl Store for Copied<'_> {
    fn append(&mut self, events: &[Vec<u8>]) -> Result<(), StoreError> {
        self.complete.append(events)?;
        self.store.append(events)
    }

    fn replay(&self, from: u64, each: &mut dyn FnMut(u64, &[u8])) -> Result<(), StoreError> {
        self.store.replay(from, each)
    }

    fn set_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), StoreError> {
        *self.snapshots += 1;
        self.store.set_snapshot(snapshot)
    }

    fn snapshot(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.snapshot()
    }

    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.value(name)
    }

    fn append_audit(&mut self, entries: &[Vec<u8>], values: &[(&str, Vec<u8>)]) -> Result<(), StoreError> {
        self.store.append_audit(entries, values)
    }

    fn set_value(&mut self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        self.complete.set_value(name, value)?;
        self.store.set_value(name, value)
    }
}

fn options(snapshots: SnapshotPolicy) -> StartOptions {
    StartOptions { snapshots, ..StartOptions::new(1_000, 2, 0) }
}

impl Run {
    fn new(config: RunConfig, policy: SnapshotPolicy, seed: u64) -> Self {
        let registry = Registry::new(1, RUN, D as u8).with_devices(1..=AGENTS);
        let (mut store, mut complete, mut snapshots) = (Memory::default(), Memory::default(), 0);
        let mut copied = Copied { store: &mut store, complete: &mut complete, snapshots: &mut snapshots };
        let service = start(&mut copied, &config, &registry, &master(), options(policy), 0).unwrap();
        let random = Random::new(seed);
        Self { registry, config, policy, store, complete, service, now: 0, snapshots, random }
    }

    fn copied(&mut self) -> (Copied<'_>, &mut StateMachine) {
        let Self { store, complete, snapshots, service, .. } = self;
        (Copied { store, complete, snapshots }, service)
    }

    fn step(&mut self) {
        let now = self.now;
        let (mut store, service) = self.copied();
        commit_and_tick(service, &mut store, now).unwrap();
        while service.poll().is_some() {}
        store_snapshot(service, &mut store).unwrap();
    }

    /// Delivers a random summary: honest, impossible, late, or of an episode that is not open.
    fn deliver(&mut self) {
        let agent = 1 + self.random.below(self.registry.devices.len() as u64) as u32;
        let running = self.service.status(self.now).episode.unwrap_or(EPISODES);
        let episode = (running + 1).saturating_sub(self.random.below(4) as u32);
        let mut gram = [0.0; 3];
        let mut feature_sum = [0.0; 2];
        for _ in 0..LENGTH {
            let angle = self.random.symmetric() * std::f64::consts::PI;
            let x = [angle.cos() as f32 * 0.9, angle.sin() as f32 * 0.9];
            let reward = (x[0] * 0.5).clamp(-1.0, 1.0);
            for (sum, value) in gram.iter_mut().zip([x[0] * x[0], x[0] * x[1], x[1] * x[1]]) {
                *sum += value;
            }
            feature_sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x * reward);
        }
        if self.random.below(25) == 0 {
            gram[0] = -1.0;
        }
        let device = self.registry.devices[agent as usize - 1];
        let mut channel = Channel::device(self.registry.identity(&device, &master()), 1);
        channel.enter_run(RUN);
        let (gram, feature_sum) = ((&gram).into(), (&feature_sum).into());
        let message = Message::Summary(SummaryMessage { episode, steps: LENGTH, reward_sum: 1.0, gram, feature_sum });
        let mut frame = [0; max_frame_len(D)];
        let length = channel.encode(&message, &mut frame).unwrap();
        self.service.handle_frame(Link(agent.into()), &mut frame[..length], self.now).unwrap();
    }

    /// Replays everything in another service.
    fn replayed(&self) -> StateMachine {
        let mut complete = self.complete.clone();
        start(&mut complete, &self.config, &self.registry, &master(), options(NEVER), 0).unwrap()
    }

    /// Restarts from the store, and compares with a service that replays everything.
    fn restart(&mut self) {
        let before = self.service.fingerprint();
        let (registry, config, policy) = (self.registry.clone(), self.config, self.policy);
        let (mut store, _) = self.copied();
        let service = start(&mut store, &config, &registry, &master(), options(policy), 0).unwrap();
        assert_eq!(service.fingerprint(), before, "{:?}", self.config.aggregator);
        let everything = self.replayed();
        assert_eq!(everything.fingerprint(), before, "{:?}", self.config.aggregator);
        assert_eq!(without_age(service.status(0)), everything.status(0));
        (self.service, self.now) = (service, 0);
    }
}

/// Removes the one thing in which a run with snapshots differs.
fn without_age(status: Status) -> Status {
    Status { snapshot_age_seconds: None, ..status }
}

fn run(config: RunConfig, policy: SnapshotPolicy, seed: u64, enroll: bool) -> Run {
    let mut run = Run::new(config, policy, seed);
    while !run.service.is_finished() {
        (0..run.random.below(6)).for_each(|_| run.deliver());
        run.step();
        match run.random.below(12) {
            0 => run.restart(),
            1 | 2 => run.now += 1_000,
            3 if enroll && run.registry.devices.len() < 12 => {
                let agent = run.registry.devices.len() as u32 + 1;
                run.registry = run.registry.clone().with_devices([agent]);
                let device = run.registry.devices[agent as usize - 1];
                run.service.enroll(run.registry.identity(&device, &master()), false).unwrap();
                run.step();
            }
            _ => {}
        }
    }
    run.restart();
    run
}

#[test]
fn restart_from_a_snapshot_has_the_bits_of_a_full_replay() {
    for (index, config) in configs().into_iter().enumerate() {
        for seed in 0..4 {
            let enroll = config.aggregator == AggregatorName::CappedFilter;
            let policy = if seed < 2 { ALWAYS } else { SnapshotPolicy { retain: Some(seed as u32 - 2), ..ALWAYS } };
            let run = run(config, policy, 100 * index as u64 + seed, enroll);
            assert!(run.snapshots > EPISODES as usize / 2, "{} snapshots", run.snapshots);
            // Nothing before the retained episodes is left but models.
            let count = |store: &Memory| {
                let mut count = 0;
                store.replay(0, &mut |_, _| count += 1).unwrap();
                count
            };
            assert_eq!(count(&run.store) < count(&run.complete), policy.retain.is_some());
            let [found, expected] =
                [&run.store, &run.complete].map(|store| inspect(store, &run.registry).unwrap().status());
            assert_eq!(without_age(found), expected);
        }
    }
}

/// The model of a private episode depends on the snapshot and on later summaries as on all summaries.
#[test]
fn private_models_after_a_snapshot_are_those_of_a_full_replay() {
    for config in configs().into_iter().filter(|config| config.privacy.is_some()) {
        let mut run = run(config, ALWAYS, 7, false);
        let models = |store: &Memory| {
            let mut models = Vec::new();
            store.replay(0, &mut |_, bytes| models.extend((bytes[0] == 3).then(|| bytes.to_vec()))).unwrap();
            models
        };
        assert_eq!(models(&run.store).len(), EPISODES as usize);
        assert_eq!(models(&run.store), models(&run.complete));
        run.restart();
    }
}

#[test]
fn damaged_snapshot_is_rejected() {
    let config = configs()[0];
    let run = run(config, SnapshotPolicy { retain: Some(0), ..ALWAYS }, 1, false);
    let bytes = run.store.snapshot().unwrap().unwrap();
    let start_with = |bytes: Vec<u8>| {
        let mut store = run.store.clone();
        store.set_snapshot(&Snapshot { bytes, removable: Vec::new() }).unwrap();
        start(&mut store, &run.config, &run.registry, &master(), options(ALWAYS), 0).map(drop)
    };
    start_with(bytes.clone()).unwrap();
    for at in (0..bytes.len()).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(matches!(start_with(damaged), Err(StartError::Snapshot(_))), "byte {at}");
        assert!(matches!(start_with(bytes[..at].to_vec()), Err(StartError::Snapshot(_))), "{at} bytes");
    }
}

/// A snapshot of another run is not mistaken for this run's, although the devices are the same.
#[test]
fn snapshot_of_another_run_is_rejected() {
    let [one, other] = [0.1, 0.2].map(|delta| RunConfig { delta, ..configs()[0] });
    let [one, other] = [one, other].map(|config| run(config, ALWAYS, 1, false));
    let mut store = one.store.clone();
    let bytes = other.store.snapshot().unwrap().unwrap();
    store.set_snapshot(&Snapshot { bytes, removable: Vec::new() }).unwrap();
    let error = start(&mut store, &one.config, &one.registry, &master(), options(ALWAYS), 0).map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the stored snapshot belongs to a run with different settings; restore the last backup"
    );
}

/// With few events, snapshots follow the clock: one for each hour in which something was stored.
#[test]
fn snapshot_is_taken_after_its_longest_time() {
    let policy = SnapshotPolicy { most_seconds: 3_600, ..NEVER };
    let mut run = Run::new(RunConfig { steps: LENGTH * 100, ..configs()[0] }, policy, 1);
    for minute in 0..4 * 60 {
        run.now = minute * 60_000;
        run.step();
    }
    assert_eq!(run.snapshots, 2, "the second one contains the end, after which nothing changes");
    let mut run = Run::new(RunConfig { steps: LENGTH * 1_000, ..configs()[0] }, policy, 1);
    for minute in 0..4 * 60 + 30 {
        run.now = minute * 60_000;
        run.step();
    }
    assert_eq!(run.snapshots, 4);
}
