//! Crash consistency of the store on a disk that stops or fails at any operation. Commits are durable and in order; a commit
//! in flight is kept as a whole or not at all.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fedbandit::config::RunConfig;
use fedbandit::service::Link;
use fedbandit::service::MasterKey;
use fedbandit::service::event::Event;
use fedbandit::service::store::Store;
use fedbandit::service::store::file::File;
use fedbandit::service::worker::{commit_and_tick, store_snapshot};
use fedbandit::service::{Registry, Snapshot, SnapshotPolicy, StartOptions, start};
use fedbandit_core::wire::{Channel, Message, SummaryMessage, max_frame_len};

use super::disk::{Change, Disk, DiskFault, Tail, after_power_cut};
use crate::harness::test_rng::TestRng;
use crate::measure::record::{self, thousands};

/// A commit of the test.
#[derive(Clone, Debug)]
enum Step {
    Append(Vec<Vec<u8>>),
    Value(&'static str, Vec<u8>),
    /// Snapshot that removes a range of events.
    Snapshot(Vec<u8>, Range<u64>),
}

/// Contents of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    events: BTreeMap<u64, Vec<u8>>,
    values: [Option<Vec<u8>>; NAMES.len()],
    snapshot: Option<Vec<u8>>,
}

const NAMES: [&str; 2] = ["boot", "terms"];

/// Extent of the test.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Number of commits.
    pub steps: usize,
    /// Interval between tested operations; 1 tests all.
    pub every: usize,
    /// Interval between power cuts whose recovery is cut at every operation, too.
    pub recoveries: usize,
}

/// Extent for every run of the tests.
pub const SHORT: Extent = Extent { steps: 30, every: 7, recoveries: 61 };
/// All operations.
pub const ALL: Extent = Extent { steps: 150, every: 1, recoveries: 40 };

/// Numbers of tested faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Power cuts.
    pub cuts: usize,
    /// Reopened disks.
    pub images: usize,
    /// Power cuts during a recovery.
    pub recoveries: usize,
    /// Failed operations of the store.
    pub errors: usize,
    /// Failed operations of the store of a service.
    pub service_errors: usize,
}

/// Runs the command. With `write`, records its table.
///
/// # Errors
/// As [`check`].
pub fn run(extent: Extent, write: bool) -> Result<String, String> {
    let tried = check(1, extent)?;
    let rows = [
        ("power cuts, one after every change of the disk", tried.cuts),
        ("power cuts during a recovery, one at every operation", tried.recoveries),
        ("failed operations of the store, by I/O error and by a full disk", tried.errors),
        ("failed operations of the store of a service", tried.service_errors),
        ("reopened disks with all commits", tried.images),
        ("reopened disks that lack a commit", 0),
    ];
    let rows = rows.map(|(what, number)| format!("| {what} | {} |\n", thousands(number as u64))).concat();
    let text = format!("| {} commits | |\n|---|---:|\n{rows}", extent.steps);
    if write {
        record::write("storage", "fedbandit-tests storage --write", &text)?;
    }
    Ok(text)
}

/// Tests every fault within an extent.
///
/// # Errors
/// The store violates its contract.
pub fn check(seed: u64, extent: Extent) -> Result<Tried, String> {
    let mut rng = TestRng::new(seed, 1);
    let mut appended = 0;
    let steps: Vec<Step> = (0..extent.steps).map(|number| step(number, &mut appended, &mut rng)).collect();
    let mut tried = Tried::default();
    cut_everywhere(&steps, extent, &mut rng, &mut tried)?;
    fail_everywhere(&steps[..extent.steps.min(40)], extent, &mut rng, &mut tried)?;
    fail_service_everywhere(extent, &mut rng, &mut tried)?;
    Ok(tried)
}

/// Draws a step after `appended` events.
fn step(number: usize, appended: &mut u64, rng: &mut TestRng) -> Step {
    if rng.per_mille(150) && *appended > 1 {
        // Sometimes of more than one chunk. The last event stays.
        let length = if rng.per_mille(200) { 150_000 } else { 300 };
        let from = rng.below(*appended - 1);
        return Step::Snapshot(vec![number as u8; length], from..rng.within(from, *appended - 1));
    }
    if rng.per_mille(150) {
        let name = *rng.pick(&NAMES);
        return Step::Value(name, vec![number as u8; rng.within(4, 600) as usize]);
    }
    // A large commit of a busy fleet, or a small one.
    let (most, longest) = if rng.per_mille(100) { (60, 3_000) } else { (4, 200) };
    let count = rng.within(1, most);
    *appended += count;
    let events = (0..count).map(|_| {
        let mut event = (number as u64).to_le_bytes().to_vec();
        event.resize(rng.within(8, longest) as usize, rng.below(256) as u8);
        event
    });
    Step::Append(events.collect())
}

/// Commits all steps, or until the store fails, with a mark on the disk after each. Returns the number of commits.
fn commit(disk: &Disk, steps: &[Step]) -> (usize, Result<(), String>) {
    let mut promised = 0;
    let mut attempt = || {
        let mut store = File::on(disk.clone()).map_err(|error| error.to_string())?;
        for step in steps {
            match step {
                Step::Append(events) => store.append(events),
                Step::Value(name, value) => store.set_value(name, value),
                Step::Snapshot(bytes, range) => {
                    store.set_snapshot(&Snapshot { bytes: bytes.clone(), removable: vec![range.clone()] })
                }
            }
            .map_err(|error| error.to_string())?;
            promised += 1;
            disk.mark(promised);
        }
        Ok(())
    };
    let outcome = attempt();
    (promised, outcome)
}

fn content(steps: &[Step]) -> Content {
    let (mut content, mut next) = (Content::default(), 0);
    for step in steps {
        match step {
            Step::Append(events) => {
                content.events.extend((next..).zip(events.iter().cloned()));
                next += events.len() as u64;
            }
            Step::Snapshot(bytes, range) => {
                content.events.retain(|number, _| !range.contains(number));
                content.snapshot = Some(bytes.clone());
            }
            Step::Value(name, value) => {
                let place = NAMES.iter().position(|known| known == name).unwrap_or_default();
                content.values[place] = Some(value.clone());
            }
        }
    }
    content
}

fn read(store: &File) -> Result<Content, String> {
    let mut content = Content::default();
    let mut each = |number, event: &[u8]| drop(content.events.insert(number, event.to_vec()));
    store.replay(0, &mut each).map_err(|error| error.to_string())?;
    content.snapshot = store.snapshot().map_err(|error| error.to_string())?;
    for (value, name) in content.values.iter_mut().zip(NAMES) {
        *value = store.value(name).map_err(|error| error.to_string())?;
    }
    Ok(content)
}

/// Reopens a disk: it must have the committed steps, or one more, and accept another commit.
fn reopen(disk: &Disk, steps: &[Step], promised: usize) -> Result<(), String> {
    let attempt = || {
        let mut store = File::on(disk.clone()).map_err(|error| format!("the store does not open: {error}"))?;
        let found = read(&store)?;
        let one_more = (promised + 1).min(steps.len());
        if found != content(&steps[..promised]) && found != content(&steps[..one_more]) {
            return Err(format!(
                "{} events found, which are not those of {promised} or {one_more} steps",
                found.events.len()
            ));
        }
        store.append(&[b"more".to_vec()]).map_err(|error| format!("the store refuses another commit: {error}"))
    };
    catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}

/// Cuts the power after every change of the disk, with every kind of tail.
fn cut_everywhere(steps: &[Step], extent: Extent, rng: &mut TestRng, tried: &mut Tried) -> Result<(), String> {
    let disk = Disk::with_store();
    let mut image = disk.image();
    disk.record();
    commit(&disk, steps).1?;
    disk.stop();
    let (mut tail, mut promised) = (Vec::new(), 0);
    for (at, change) in disk.recorded().into_iter().enumerate() {
        match change {
            Change::Sync => {
                image = after_power_cut(&image, &tail, Tail::Kept, rng);
                tail.clear();
            }
            Change::Mark(steps) => promised = steps,
            change => tail.push(change),
        }
        if at % extent.every != 0 {
            continue;
        }
        tried.cuts += 1;
        let failed = |why: String, kind| format!("power cut after change {at}, tail {kind:?}: {why}");
        for kind in Tail::ALL.into_iter().chain([Tail::Mixed; 2]) {
            tried.images += 1;
            let left = after_power_cut(&image, &tail, kind, rng);
            if at % extent.recoveries == 0 {
                cut_recovery(&left, steps, promised, rng, tried).map_err(|why| failed(why, kind))?;
            }
            reopen(&Disk::with(left), steps, promised).map_err(|why| failed(why, kind))?;
        }
    }
    Ok(())
}

/// Cuts the power again at every operation of a recovery.
fn cut_recovery(
    left: &[u8],
    steps: &[Step],
    promised: usize,
    rng: &mut TestRng,
    tried: &mut Tried,
) -> Result<(), String> {
    for operation in 0.. {
        let disk = Disk::with(left.to_vec());
        disk.inject(operation, DiskFault::PowerCut);
        let opened = catch_unwind(AssertUnwindSafe(|| File::on(disk.clone()).map(drop)));
        if opened.is_err() {
            return Err(format!("panicked at operation {operation} of the recovery"));
        }
        if !disk.had_fault() {
            return Ok(());
        }
        tried.recoveries += 1;
        for kind in Tail::ALL {
            tried.images += 1;
            let again = disk.after_power_cut(kind, rng);
            reopen(&again, steps, promised).map_err(|why| {
                format!("second power cut at operation {operation} of the recovery, tail {kind:?}: {why}")
            })?;
        }
    }
    Ok(())
}

/// Fails every operation once, by I/O error and by a full disk.
fn fail_everywhere(steps: &[Step], extent: Extent, rng: &mut TestRng, tried: &mut Tried) -> Result<(), String> {
    for fault in [DiskFault::Error, DiskFault::Full] {
        for operation in (0..).step_by(extent.every) {
            let disk = Disk::with_store();
            disk.inject(operation, fault);
            let committed = catch_unwind(AssertUnwindSafe(|| commit(&disk, steps)));
            let Ok((promised, outcome)) = committed else {
                return Err(format!("{fault:?} at operation {operation}: panicked"));
            };
            if !disk.had_fault() {
                break;
            }
            tried.errors += 1;
            if outcome.is_ok() && promised < steps.len() {
                return Err(format!("{fault:?} at operation {operation}: the error is not reported"));
            }
            for kind in Tail::ALL {
                tried.images += 1;
                let again = disk.after_power_cut(kind, rng);
                reopen(&again, steps, promised)
                    .map_err(|why| format!("{fault:?} at operation {operation}, tail {kind:?}: {why}"))?;
            }
        }
    }
    Ok(())
}

/// Agents and episodes of the service on a failing disk.
const AGENTS: u32 = 3;
const EPISODES: u32 = 6;

/// Runs a service through all its episodes, or until its store fails. Adds its acknowledgements to `acknowledged`.
fn serve(disk: &Disk, acknowledged: &mut Vec<(u32, u32)>) -> Result<(), String> {
    let master = MasterKey::from_bytes(&[5; 32]).ok_or("invalid master key")?;
    let registry = Registry::new(1, 1, 2).with_devices(1..=AGENTS);
    let config =
        RunConfig { steps: 4 * EPISODES, episode_len: Some(4), first_episode: Some(4), ..RunConfig::default() };
    let mut timing = StartOptions::new(1_000, 1, 0);
    timing.snapshots = SnapshotPolicy { least_bytes: 0, ratio: 0, ..SnapshotPolicy::DEFAULT };
    let mut store = File::on(disk.clone()).map_err(|error| error.to_string())?;
    let mut service = start(&mut store, &config, &registry, &master, timing, 0).map_err(|error| error.to_string())?;
    let mut devices: Vec<Channel> =
        registry.devices.iter().map(|device| Channel::device(registry.identity(device, &master), 1)).collect();
    devices.iter_mut().for_each(|device| device.enter_run(registry.run));
    for (episode, agent) in (1..=EPISODES).flat_map(|episode| (1..=AGENTS).map(move |agent| (episode, agent))) {
        let (gram, feature_sum) = ([2.0, 0.5, 1.0], [1.0, agent as f32 / 4.0]);
        let (gram, feature_sum) = ((&gram).into(), (&feature_sum).into());
        let message = Message::Summary(SummaryMessage { episode, steps: 4, reward_sum: 1.0, gram, feature_sum });
        let mut frame = [0; max_frame_len(2)];
        let device = &mut devices[agent as usize - 1];
        let length = device.encode(&message, &mut frame).map_err(|error| error.to_string())?;
        service.handle_frame(Link(agent.into()), &mut frame[..length], 0).map_err(|reason| format!("{reason:?}"))?;
        commit_and_tick(&mut service, &mut store, 0).map_err(|error| error.to_string())?;
        while let Some(mut outgoing) = service.poll() {
            let agent = outgoing.link.0 as u32;
            match devices[agent as usize - 1].decode(&mut outgoing.frame) {
                Ok(Message::Ack { episode, fate, .. }) if fate.counts() => acknowledged.push((agent, episode)),
                Ok(Message::Model(_)) => {}
                other => return Err(format!("agent {agent} is sent {other:?}")),
            }
        }
        store_snapshot(&mut service, &mut store).map_err(|error| error.to_string())?;
    }
    if service.is_finished() { Ok(()) } else { Err("the run is not over".into()) }
}

/// Fails every operation of a service's store once. The service must end with an error. After a restart it must have all
/// acknowledged summaries, and complete its run.
fn fail_service_everywhere(extent: Extent, rng: &mut TestRng, tried: &mut Tried) -> Result<(), String> {
    for fault in [DiskFault::Error, DiskFault::Full] {
        for operation in (0..).step_by(extent.every) {
            let disk = Disk::with_store();
            disk.inject(operation, fault);
            let mut acknowledged = Vec::new();
            let outcome = serve(&disk, &mut acknowledged);
            if !disk.had_fault() {
                outcome?;
                break;
            }
            let failed = |why: String| format!("{fault:?} at operation {operation} of a service: {why}");
            tried.service_errors += 1;
            let done = acknowledged.len() == (AGENTS * EPISODES) as usize;
            if outcome.is_ok() && !done {
                return Err(failed("the service continues".into()));
            }
            for kind in Tail::ALL {
                tried.images += 1;
                let again = disk.after_power_cut(kind, rng);
                let mut stored = Vec::new();
                let store = File::on(again.clone()).map_err(|error| failed(error.to_string()))?;
                store
                    .replay(0, &mut |_, bytes| {
                        if let Some(Event::Summary(summary)) = Event::from_bytes(bytes, 2) {
                            stored.push((summary.agent.0, summary.episode));
                        }
                    })
                    .map_err(|error| failed(error.to_string()))?;
                drop(store);
                if let Some(lost) = acknowledged.iter().find(|pair| !stored.contains(pair)) {
                    return Err(failed(format!("tail {kind:?}: {lost:?} is acknowledged but lost")));
                }
                serve(&again, &mut Vec::new())
                    .map_err(|why| failed(format!("tail {kind:?}, after a restart: {why}")))?;
            }
        }
    }
    Ok(())
}
