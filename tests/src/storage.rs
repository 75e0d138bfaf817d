//! The store's contract on a disk that stops at any operation: what was promised is there, whole and in order, and of what
//! was under way all or nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fedbandit::config::RunConfig;
use fedbandit::service::Link;
use fedbandit::service::MasterKey;
use fedbandit::service::event::Event;
use fedbandit::service::store::Store;
use fedbandit::service::store::file::File;
use fedbandit::service::worker::commit_and_tick;
use fedbandit::service::{EnrolledDevice, Registry, StartOptions, start};
use fedbandit_core::wire::{Message, SummaryMessage, max_frame_len};

use crate::chance::Chance;
use crate::disk::{Change, Disk, Tail, Trouble, after_power_cut};
use crate::record::{self, thousands};

/// A step of a store's life.
#[derive(Clone, Debug)]
enum Step {
    Append(Vec<Vec<u8>>),
    Value(&'static str, Vec<u8>),
}

/// What a store holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    events: Vec<Vec<u8>>,
    values: [Option<Vec<u8>>; NAMES.len()],
}

const NAMES: [&str; 2] = ["boot", "terms"];

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Steps of the store's life.
    pub steps: usize,
    /// Of the cut points, every so many-th is tried.
    pub every: usize,
    /// Of the cut points, every so many-th is followed by cuts at each operation of the recovery.
    pub recoveries: usize,
}

/// What a test can wait for.
pub const SHORT: Extent = Extent { steps: 30, every: 7, recoveries: 61 };
/// Every operation.
pub const ALL: Extent = Extent { steps: 150, every: 1, recoveries: 40 };

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Operations after which the power went.
    pub cuts: usize,
    /// Disks that were opened again.
    pub images: usize,
    /// Cuts during a recovery.
    pub recoveries: usize,
    /// Operations that failed with an error.
    pub errors: usize,
    /// The same under a service.
    pub service_errors: usize,
}

/// The command.
///
/// # Errors
/// As [`check`].
pub fn run(extent: Extent, write: bool) -> Result<String, String> {
    let tried = check(1, extent)?;
    let rows = [
        ("power cuts, after every change to the disk", tried.cuts),
        ("power cuts during a recovery, at every operation of it", tried.recoveries),
        ("operations of the store that fail, by error or for want of room, each", tried.errors),
        ("operations of the service's store that fail, the same", tried.service_errors),
        ("disks that were opened again and had what was promised", tried.images),
        ("disks that had not", 0),
    ];
    let rows = rows.map(|(what, number)| format!("| {what} | {} |\n", thousands(number as u64))).concat();
    let text = format!("| {} commits | |\n|---|---:|\n{rows}", extent.steps);
    if write {
        record::write("storage", "fedbandit-tests storage --write", &text)?;
    }
    Ok(text)
}

/// Tries it all. An error says what did not hold.
///
/// # Errors
/// The contract does not hold.
pub fn check(seed: u64, extent: Extent) -> Result<Tried, String> {
    let mut chance = Chance::new(seed, 1);
    let steps: Vec<Step> = (0..extent.steps).map(|number| step(number, &mut chance)).collect();
    let mut tried = Tried::default();
    cut_everywhere(&steps, extent, &mut chance, &mut tried)?;
    fail_everywhere(&steps[..extent.steps.min(40)], extent, &mut chance, &mut tried)?;
    fail_service_everywhere(extent, &mut chance, &mut tried)?;
    Ok(tried)
}

fn step(number: usize, chance: &mut Chance) -> Step {
    if chance.per_mille(150) {
        let name = *chance.pick(&NAMES);
        return Step::Value(name, vec![number as u8; chance.within(4, 600) as usize]);
    }
    // A commit of a quiet fleet, or of a busy one.
    let (most, longest) = if chance.per_mille(100) { (60, 3_000) } else { (4, 200) };
    let events = (0..chance.within(1, most)).map(|_| {
        let mut event = (number as u64).to_le_bytes().to_vec();
        event.resize(chance.within(8, longest) as usize, chance.below(256) as u8);
        event
    });
    Step::Append(events.collect())
}

/// Lives through all steps, or until the store fails. After each step that was promised to be safe there is a mark.
fn live(disk: &Disk, steps: &[Step]) -> (usize, Result<(), String>) {
    let mut promised = 0;
    let mut attempt = || {
        let mut store = File::on(disk.clone()).map_err(|error| error.to_string())?;
        for step in steps {
            match step {
                Step::Append(events) => store.append(events),
                Step::Value(name, value) => store.set_value(name, value),
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
    let mut content = Content::default();
    for step in steps {
        match step {
            Step::Append(events) => content.events.extend_from_slice(events),
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
    store.replay(&mut |event| content.events.push(event.to_vec())).map_err(|error| error.to_string())?;
    for (value, name) in content.values.iter_mut().zip(NAMES) {
        *value = store.value(name).map_err(|error| error.to_string())?;
    }
    Ok(content)
}

/// Opens a disk again: it must hold the promised steps, or one more, and be fit for use.
fn reopen(disk: &Disk, steps: &[Step], promised: usize) -> Result<(), String> {
    let attempt = || {
        let mut store = File::on(disk.clone()).map_err(|error| format!("it does not open: {error}"))?;
        let found = read(&store)?;
        let one_more = (promised + 1).min(steps.len());
        if found != content(&steps[..promised]) && found != content(&steps[..one_more]) {
            return Err(format!("{} events are there, of {promised} or {one_more} steps", found.events.len()));
        }
        store.append(&[b"more".to_vec()]).map_err(|error| format!("it takes nothing more: {error}"))
    };
    catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(format!("it panics: {}", text.unwrap_or_default()))
    })
}

/// The power goes after every change that was made to the disk, with every kind of tail.
fn cut_everywhere(steps: &[Step], extent: Extent, chance: &mut Chance, tried: &mut Tried) -> Result<(), String> {
    let disk = Disk::with_store();
    let mut image = disk.image();
    disk.record();
    live(&disk, steps).1?;
    disk.stop();
    let (mut tail, mut promised) = (Vec::new(), 0);
    for (at, change) in disk.recorded().into_iter().enumerate() {
        match change {
            Change::Sync => {
                image = after_power_cut(&image, &tail, Tail::Kept, chance);
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
            let left = after_power_cut(&image, &tail, kind, chance);
            if at % extent.recoveries == 0 {
                cut_recovery(&left, steps, promised, chance, tried).map_err(|why| failed(why, kind))?;
            }
            reopen(&Disk::with(left), steps, promised).map_err(|why| failed(why, kind))?;
        }
    }
    Ok(())
}

/// The power goes again at every operation of a recovery.
fn cut_recovery(
    left: &[u8],
    steps: &[Step],
    promised: usize,
    chance: &mut Chance,
    tried: &mut Tried,
) -> Result<(), String> {
    for operation in 0.. {
        let disk = Disk::with(left.to_vec());
        disk.expect(operation, Trouble::PowerCut);
        let opened = catch_unwind(AssertUnwindSafe(|| File::on(disk.clone()).map(drop)));
        if opened.is_err() {
            return Err(format!("it panics at operation {operation} of its recovery"));
        }
        if !disk.had_trouble() {
            return Ok(());
        }
        tried.recoveries += 1;
        for kind in Tail::ALL {
            tried.images += 1;
            let again = disk.after_power_cut(kind, chance);
            reopen(&again, steps, promised)
                .map_err(|why| format!("and again at operation {operation} of the recovery, tail {kind:?}: {why}"))?;
        }
    }
    Ok(())
}

/// Every operation fails once, with an error or for want of room.
fn fail_everywhere(steps: &[Step], extent: Extent, chance: &mut Chance, tried: &mut Tried) -> Result<(), String> {
    for trouble in [Trouble::Error, Trouble::Full] {
        for operation in (0..).step_by(extent.every) {
            let disk = Disk::with_store();
            disk.expect(operation, trouble);
            let lived = catch_unwind(AssertUnwindSafe(|| live(&disk, steps)));
            let Ok((promised, outcome)) = lived else {
                return Err(format!("{trouble:?} at operation {operation}: it panics"));
            };
            if !disk.had_trouble() {
                break;
            }
            tried.errors += 1;
            if outcome.is_ok() && promised < steps.len() {
                return Err(format!("{trouble:?} at operation {operation}: nobody is told"));
            }
            for kind in Tail::ALL {
                tried.images += 1;
                let again = disk.after_power_cut(kind, chance);
                reopen(&again, steps, promised)
                    .map_err(|why| format!("{trouble:?} at operation {operation}, tail {kind:?}: {why}"))?;
            }
        }
    }
    Ok(())
}

/// Agents and episodes of the service whose disk fails.
const AGENTS: u32 = 3;
const EPISODES: u32 = 6;

/// A service that lives through all its episodes, or until its store fails. What it acknowledged is told.
fn serve(disk: &Disk, acknowledged: &mut Vec<(u32, u32)>) -> Result<(), String> {
    let master = MasterKey::from_bytes(&[5; 32]).ok_or("no master")?;
    let enrolled = |agent| EnrolledDevice { agent, revoked: false, sealed: false, enrolled_at: None };
    let registry = Registry { run: 1, dimension: 2, devices: (1..=AGENTS).map(enrolled).collect() };
    let config =
        RunConfig { steps: 4 * EPISODES, episode_len: Some(4), first_episode: Some(4), ..RunConfig::default() };
    let timing = StartOptions { time_limit: 1_000, window: 1, unix_seconds: 0 };
    let mut store = File::on(disk.clone()).map_err(|error| error.to_string())?;
    let mut service = start(&mut store, &config, &registry, &master, timing, 0).map_err(|error| error.to_string())?;
    for (episode, agent) in (1..=EPISODES).flat_map(|episode| (1..=AGENTS).map(move |agent| (episode, agent))) {
        let identity = master.identity(1, agent, 2);
        let (gram, feature_sum) = ([2.0, 0.5, 1.0], [1.0, agent as f32 / 4.0]);
        let (gram, feature_sum) = ((&gram).into(), (&feature_sum).into());
        let message = Message::Summary(SummaryMessage { episode, steps: 4, reward_sum: 1.0, gram, feature_sum });
        let mut frame = [0; max_frame_len(2)];
        let length = identity.encode(&message, &mut frame).map_err(|error| error.to_string())?;
        service.handle_frame(Link(agent.into()), &mut frame[..length]).map_err(|reason| format!("{reason:?}"))?;
        commit_and_tick(&mut service, &mut store, 0).map_err(|error| error.to_string())?;
        while let Some(outgoing) = service.poll() {
            let identity = master.identity(1, outgoing.link.0 as u32, 2);
            if let Ok(Message::Ack { episode }) = identity.decode(&outgoing.frame) {
                acknowledged.push((identity.agent, episode));
            }
        }
    }
    if service.is_finished() { Ok(()) } else { Err("its episodes are not over".into()) }
}

/// Every operation of a service's store fails once. The service ends with an error; started again it has all that it
/// acknowledged, and comes to its end.
fn fail_service_everywhere(extent: Extent, chance: &mut Chance, tried: &mut Tried) -> Result<(), String> {
    for trouble in [Trouble::Error, Trouble::Full] {
        for operation in (0..).step_by(extent.every) {
            let disk = Disk::with_store();
            disk.expect(operation, trouble);
            let mut acknowledged = Vec::new();
            let outcome = serve(&disk, &mut acknowledged);
            if !disk.had_trouble() {
                outcome?;
                break;
            }
            let failed = |why: String| format!("{trouble:?} at operation {operation} of a service: {why}");
            tried.service_errors += 1;
            let done = acknowledged.len() == (AGENTS * EPISODES) as usize;
            if outcome.is_ok() && !done {
                return Err(failed("it goes on".into()));
            }
            for kind in Tail::ALL {
                tried.images += 1;
                let again = disk.after_power_cut(kind, chance);
                let mut stored = Vec::new();
                let store = File::on(again.clone()).map_err(|error| failed(error.to_string()))?;
                store
                    .replay(&mut |bytes| {
                        if let Some(Event::Summary(summary)) = Event::from_bytes(bytes, 2) {
                            stored.push((summary.agent.0, summary.episode));
                        }
                    })
                    .map_err(|error| failed(error.to_string()))?;
                drop(store);
                if let Some(lost) = acknowledged.iter().find(|pair| !stored.contains(pair)) {
                    return Err(failed(format!("tail {kind:?}: {lost:?} was acknowledged and is lost")));
                }
                serve(&again, &mut Vec::new()).map_err(|why| failed(format!("tail {kind:?}, started again: {why}")))?;
            }
        }
    }
    Ok(())
}
