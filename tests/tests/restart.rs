//! Memory of a restart, which does not depend on the length of the log.

use fedbandit::algorithm::AgentId;
use fedbandit::config::{AggregatorName, RunConfig};
use fedbandit::service::MasterKey;
use fedbandit::service::event::{Event, ModelEvent, SummaryEvent};
use fedbandit::service::store::{Memory, Store, StoreError};
use fedbandit::service::{Registry, Snapshot, StartOptions, inspect, start};
use fedbandit_core::{Rewards, packed_len};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const D: usize = 8;
const AGENTS: u32 = 50;
const EPISODES: u32 = 400;

/// Store that generates its events while they are read.
struct Generated(Memory);

impl Store for Generated {
    fn append(&mut self, events: &[Vec<u8>]) -> Result<(), StoreError> {
        self.0.append(events)
    }

    fn replay(&self, _: u64, each: &mut dyn FnMut(u64, &[u8])) -> Result<(), StoreError> {
        let mut numbers = 0..;
        let mut each = |bytes: Vec<u8>| numbers.next().map_or((), |number| each(number, &bytes));
        for episode in 1..=EPISODES {
            let (theta, design) = (vec![0.0; D], vec![0.0; packed_len(D)]);
            let release = ModelEvent { episode, episode_len: 8, beta: 1.0, rewards: Rewards::Unbounded, theta, design };
            each(Event::Model(release).to_bytes());
            for agent in 1..=AGENTS {
                let (gram, feature_sum) = (vec![0.0; packed_len(D)], vec![0.0; D]);
                let agent = AgentId(agent);
                let summary = SummaryEvent { agent, episode, steps: 8, reward_sum: 0.0, gram, feature_sum };
                each(Event::Summary(summary).to_bytes());
            }
        }
        Ok(())
    }

    fn set_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), StoreError> {
        self.0.set_snapshot(snapshot)
    }

    fn snapshot(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.snapshot()
    }

    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.value(name)
    }

    fn set_value(&mut self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        self.0.set_value(name, value)
    }

    fn append_audit(&mut self, entries: &[Vec<u8>], values: &[(&str, Vec<u8>)]) -> Result<(), StoreError> {
        self.0.append_audit(entries, values)
    }
}

#[test]
fn restart_with_a_long_log_takes_little_memory() {
    let registry = Registry::new(1, 1, D as u8).with_devices(1..=AGENTS);
    let config = RunConfig {
        steps: 8 * EPISODES,
        episode_len: Some(8),
        first_episode: Some(8),
        aggregator: AggregatorName::Mean,
        ..RunConfig::default()
    };
    let timing = StartOptions::new(1_000, 1, 0);
    let master = MasterKey::from_bytes(&[1; 32]).unwrap();
    let mut store = Memory::default();
    start(&mut store, &config, &registry, &master, timing, 0).unwrap();
    let mut store = Generated(store);
    let mut log = 0;
    store.replay(0, &mut |_, bytes| log += bytes.len()).unwrap();
    let peak = |does: &mut dyn FnMut()| {
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        does();
        MEMORY.peak_usage() - before
    };
    let started = peak(&mut || {
        let service = start(&mut store, &config, &registry, &master, timing, 0).unwrap();
        assert_eq!(service.status(0).received.accepted, u64::from(AGENTS * EPISODES));
    });
    let inspected = peak(&mut || assert_eq!(inspect(&store, &registry).unwrap().status().episode, Some(EPISODES)));
    assert!(started.max(inspected) < log / 10, "{started} and {inspected} bytes for a log of {log}");
}
