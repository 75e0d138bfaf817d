//! Restart of a service from its snapshot, late in a run of many devices.
//!
//! `cargo bench -p fedbandit --bench restart --all-features` prints the table; `-- --write` also records it in
//! docs/benchmarks.md.

mod record;

use std::fs;
use std::path::Path;

use fedbandit::config::RunConfig;
use fedbandit::service::store::Store;
use fedbandit::service::store::file::File;
use fedbandit::service::worker::{commit_and_tick, store_snapshot};
use fedbandit::service::{Link, MasterKey, Registry, StartOptions, StateMachine, start};
use fedbandit_core::packed_len;
use fedbandit_core::wire::{Channel, Message, SummaryMessage, max_frame_len};
use record::{Table, clock, mark};
use rustix::time::ClockId;

const D: usize = 8;
const LENGTH: u32 = 8;
/// Retained episodes.
const RETAIN: u32 = 1;
/// Episodes between two starts that are measured.
const INTERVALS: [u32; 6] = [1, 3, 7, 13, 26, 52];

fn main() {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("restart");
    let tables = [1_000, 10_000].map(|agents| restarts(&home, agents));
    let _ = fs::remove_dir_all(&home);
    if record::is_requested() {
        record::write("restart", &[], &tables.join("\n\n"));
    }
}

/// A run in a file, with the device ends of all channels.
struct Run {
    registry: Registry,
    config: RunConfig,
    master: MasterKey,
    options: StartOptions,
    store: File,
    service: StateMachine,
    devices: Vec<Channel>,
}

impl Run {
    fn new(path: &Path, agents: u32) -> Self {
        let registry = Registry::new(1, 1, D as u8).with_devices(1..=agents);
        let config = RunConfig {
            steps: LENGTH * 10_000,
            episode_len: Some(LENGTH),
            first_episode: Some(LENGTH),
            ..RunConfig::default()
        };
        let master = MasterKey::from_bytes(&[1; 32]).expect("32 bytes");
        let mut options = StartOptions::new(1_000_000, 1, 0);
        options.snapshots.retain = Some(RETAIN);
        let mut store = File::open(path).expect("a new store");
        let mut service = start(&mut store, &config, &registry, &master, options, 0).expect("a valid run");
        commit_and_tick(&mut service, &mut store, 0).expect("the first model is stored");
        let device = |device| {
            let mut channel = Channel::device(registry.identity(device, &master), 1);
            channel.enter_run(1);
            channel
        };
        let devices = registry.devices.iter().map(device).collect();
        Self { registry, config, master, options, store, service, devices }
    }

    /// Delivers a summary of every device, in commits of a thousand.
    fn episode(&mut self, episode: u32) {
        let mut frame = [0; max_frame_len(D)];
        for index in 0..self.devices.len() {
            // Devices explore differently: each mostly along two axes.
            let (mut gram, mut feature_sum) = ([0.0; packed_len(D)], [0.0; D]);
            for (axis, weight) in [(index % D, 5.0), ((index + episode as usize) % D, 2.0)] {
                gram[axis * D - axis * (axis + 1) / 2 + axis] += weight;
                feature_sum[axis] += weight * 0.3 + (index % 7) as f32 * 0.1;
            }
            let (gram, feature_sum) = ((&gram).into(), (&feature_sum).into());
            let summary = SummaryMessage { episode, steps: LENGTH, reward_sum: 1.0, gram, feature_sum };
            let device = &mut self.devices[index];
            let length = device.encode(&Message::Summary(summary), &mut frame).expect("the buffer is large enough");
            let link = Link(index as u64);
            self.service.handle_frame(link, &mut frame[..length], 0).expect("a valid frame");
            if (index + 1).is_multiple_of(1_000) {
                self.commit();
            }
        }
        self.commit();
    }

    fn commit(&mut self) {
        commit_and_tick(&mut self.service, &mut self.store, 0).expect("the store has room");
        while self.service.poll().is_some() {}
        store_snapshot(&mut self.service, &mut self.store).expect("the store has room");
    }

    /// Restarts, and returns the CPU seconds of the start and the number of replayed events.
    fn restart(&mut self) -> (f64, usize) {
        let mut events = 0;
        self.store.replay(0, &mut |_, _| events += 1).expect("a readable store");
        let before = self.service.fingerprint();
        let begin = clock(ClockId::ProcessCPUTime);
        let service = start(&mut self.store, &self.config, &self.registry, &self.master, self.options, 0);
        let seconds = clock(ClockId::ProcessCPUTime) - begin;
        self.service = service.expect("the same run");
        assert_eq!(self.service.fingerprint(), before, "a restart changes nothing");
        (seconds, events)
    }
}

fn restarts(home: &Path, agents: u32) -> String {
    let _ = fs::remove_dir_all(home);
    fs::create_dir_all(home).expect("a new directory");
    let path = home.join("run.redb");
    let title = format!("Restart: {agents} devices, d = {D}, retain = {RETAIN}, one thread pool (limit 2 CPU seconds)");
    let columns = "| closed episodes | stored events | MB on disk | bytes per device | CPU s of a start |";
    let mut table = Table::new(&title, columns);
    let mut run = Run::new(&path, agents);
    let mut closed = 0;
    for interval in INTERVALS {
        for _ in 0..interval {
            closed += 1;
            run.episode(closed);
        }
        let (seconds, events) = run.restart();
        let bytes = fs::metadata(&path).expect("the store").len() as f64;
        let miss = mark(seconds <= 2.0);
        let per_device = bytes / f64::from(agents);
        table.row(format!("| {closed} | {events} | {:.1} | {per_device:.0} | {seconds:.2}{miss} |", bytes / 1e6));
    }
    table.0
}
