//! Device table of the service, compared with a naive count of what was sent.

use std::collections::BTreeMap;

use fedbandit::algorithm::Fault;
use fedbandit::config::{AggregatorName, RewardKind, RunConfig};
use fedbandit::service::store::Memory;
use fedbandit::service::{
    DeviceOrder, DevicePage, DeviceQuery, DeviceReport, Dropped, Link, MasterKey, Registry, SinceStart, StartOptions,
    StateMachine, inspect, start, worker,
};
use fedbandit_core::wire::{Channel, Message, SummaryMessage};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};
use serde_json::json;

const AGENTS: u32 = 11;
const EPISODES: u32 = 12;
const TIME_LIMIT: u64 = 1_000;
const TIMING: StartOptions = StartOptions::new(TIME_LIMIT, 1, 0);

fn registry(agents: u32) -> Registry {
    Registry::new(1, 7, 2).with_devices(1..=agents)
}

fn master() -> MasterKey {
    MasterKey::from_bytes(&[3; 32]).unwrap()
}

fn config() -> RunConfig {
    let (aggregator, steps) = (AggregatorName::GeometricMedian, 8 * EPISODES);
    RunConfig { aggregator, steps, episode_len: Some(8), first_episode: Some(8), ..RunConfig::default() }
}

fn private() -> RunConfig {
    RunConfig { rewards: RewardKind::Bounded, privacy: Some("8,1e-6".parse().unwrap()), ..config() }
}

/// A running service with its store.
struct Run {
    store: Memory,
    service: StateMachine,
    now: u64,
}

impl Run {
    fn new(mut store: Memory, config: &RunConfig, registry: &Registry) -> Self {
        let service = start(&mut store, config, registry, &master(), TIMING, 0).unwrap();
        let mut run = Self { store, service, now: 0 };
        run.tick(0);
        run
    }

    fn tick(&mut self, now: u64) {
        self.now = now;
        worker::commit_and_tick(&mut self.service, &mut self.store, now).unwrap();
    }

    /// Delivers a message of a device over a link of its own.
    fn say(&mut self, agent: u32, message: &Message<'_>) -> Result<(), Dropped> {
        self.service.handle_frame(Link(agent.into()), &mut frame(agent, message), self.now)
    }

    /// Returns the table, read in pages.
    fn table(&self, order: DeviceOrder, limit: usize) -> Vec<DeviceReport> {
        pages(order, limit, |query| self.service.devices(query, self.now))
    }
}

/// Reads all pages of a table.
fn pages(order: DeviceOrder, limit: usize, mut page: impl FnMut(DeviceQuery) -> DevicePage) -> Vec<DeviceReport> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let DevicePage { devices, next, .. } = page(DeviceQuery { order, after, limit });
        assert!(devices.len() == limit || next.is_none(), "{} rows of {limit} before the last page", devices.len());
        rows.extend(devices);
        match next {
            Some(next) => after = Some(next),
            None => return rows,
        }
    }
}

fn frame(agent: u32, message: &Message<'_>) -> Vec<u8> {
    let registry = registry(agent);
    let mut channel = Channel::device(registry.identity(registry.devices.last().unwrap(), &master()), 1);
    channel.enter_run(7);
    let mut frame = [0; 256];
    let length = channel.encode(message, &mut frame).unwrap();
    frame[..length].to_vec()
}

/// Sends a summary of 8 steps. With a scale of 9, admission rejects it as `norm`.
fn send(run: &mut Run, agent: u32, episode: u32, scale: f32) {
    let (gram, feature_sum) = ([4.0 * scale, 0.0, 4.0 * scale], [2.0, 1.0]);
    let (gram, feature_sum) = (gram.as_slice().into(), feature_sum.as_slice().into());
    let summary = SummaryMessage { episode, steps: 8, reward_sum: 2.0, gram, feature_sum };
    run.say(agent, &Message::Summary(summary)).unwrap();
}

/// Record of a device, counted without the state machine.
#[derive(Clone, Copy, Default)]
struct Naive {
    sent: [bool; EPISODES as usize + 2],
    zeroed: u64,
    seen: Option<u64>,
    forged: u64,
}

impl Naive {
    fn missing_streak(&self, closed: u32) -> u32 {
        (1..=closed).rev().take_while(|episode| !self.sent[*episode as usize]).count() as u32
    }

    fn last_episode(&self) -> Option<u32> {
        (1..=EPISODES).rev().find(|episode| self.sent[*episode as usize])
    }
}

#[test]
fn table_equals_a_naive_count_in_every_order_and_after_a_restart() {
    let mut rng = Pcg64::seed_from_u64(1);
    let mut run = Run::new(Memory::default(), &config(), &registry(AGENTS));
    let mut naive = [Naive::default(); AGENTS as usize + 1];
    for episode in 1..=EPISODES {
        for agent in 1..=AGENTS {
            let device = &mut naive[agent as usize];
            let chance = rng.next_u32() % 8;
            // A summary of the episode before is late; a repeated one is acknowledged and changes nothing.
            let target = if chance == 0 { episode - 1 } else { episode };
            if chance < 4 && target > 0 {
                let is_bad = chance == 1;
                send(&mut run, agent, target, if is_bad { 9.0 } else { 1.0 });
                device.zeroed += u64::from(is_bad && !device.sent[target as usize]);
                device.sent[target as usize] = true;
                device.seen = Some(run.now);
            } else if chance == 4 {
                let mut forged = frame(agent, &Message::Heartbeat { model: 0 });
                *forged.last_mut().unwrap() ^= 1;
                assert_eq!(run.service.handle_frame(Link(99), &mut forged, run.now), Err(Dropped::Tag));
                device.forged += 1;
            }
        }
        run.tick(u64::from(episode) * TIME_LIMIT);
        compare(&run, &naive, episode);
    }
    let before = run.table(DeviceOrder::Number, 4);
    let stored = inspect(&run.store, &registry(AGENTS)).unwrap();
    let restarted = Run::new(run.store, &config(), &registry(AGENTS));
    let without = |rows: &[DeviceReport], since_start: Option<SinceStart>| -> Vec<DeviceReport> {
        rows.iter().map(|row| DeviceReport { since_start: since_start.clone(), ..row.clone() }).collect()
    };
    assert_eq!(restarted.table(DeviceOrder::Number, 4), without(&before, Some(SinceStart::default())));
    assert_eq!(pages(DeviceOrder::Number, 4, |query| stored.devices(query)), without(&before, None));
}

fn compare(run: &Run, naive: &[Naive], closed: u32) {
    let rows = run.table(DeviceOrder::Number, 4);
    assert_eq!(rows.iter().map(|row| row.agent).collect::<Vec<_>>(), (1..=AGENTS).collect::<Vec<_>>());
    for row in &rows {
        let device = &naive[row.agent as usize];
        assert_eq!((row.last_episode, row.missing_streak), (device.last_episode(), device.missing_streak(closed)));
        let zeroed =
            (device.zeroed > 0).then_some((Fault::Norm, device.zeroed)).into_iter().collect::<BTreeMap<_, _>>();
        assert_eq!(row.zeroed, Some(zeroed));
        let since = row.since_start.as_ref().unwrap();
        assert_eq!(since.seconds_since_seen, device.seen.map(|seen| (run.now - seen) / 1000));
        assert_eq!((since.dropped.len(), since.dropped_unverified.values().sum::<u64>()), (0, device.forged));
    }
    let outliers: BTreeMap<u32, f64> =
        run.service.status(run.now).outliers.iter().map(|outlier| (outlier.agent, outlier.distance)).collect();
    assert!(rows.iter().all(|row| outliers.get(&row.agent).is_none_or(|distance| row.distance == Some(*distance))));
    let sorted = |key: &dyn Fn(&DeviceReport) -> f64| {
        let mut rows = rows.clone();
        rows.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.agent.cmp(&b.agent)));
        rows
    };
    for limit in [1, 3, 10, 11, 12] {
        assert_eq!(run.table(DeviceOrder::Distance, limit), sorted(&|row| row.distance.unwrap()));
        assert_eq!(run.table(DeviceOrder::Missing, limit), sorted(&|row| row.missing_streak.into()));
        let zeroed = |row: &DeviceReport| row.zeroed.as_ref().unwrap().values().sum::<u64>() as f64;
        assert_eq!(run.table(DeviceOrder::Zeroed, limit), sorted(&zeroed));
    }
}

/// Frames whose tag was verified are kept apart from those that anybody could have sent.
#[test]
fn dropped_frames_are_attributed_by_tag_or_marked_as_unverified() {
    let mut registry = registry(2);
    registry.devices[1].revoked = true;
    let mut run = Run::new(Memory::default(), &config(), &registry);
    run.service.add_link(Link(1), "serial");
    run.say(1, &Message::Hello { model: 0, boot: 41, challenge: 5 }).unwrap();
    assert_eq!(run.say(1, &Message::Wait { challenge: 1, wait: 1 }), Err(Dropped::Type));
    assert_eq!(run.say(2, &Message::Heartbeat { model: 0 }), Err(Dropped::Revoked));
    let forged = |change: fn(&mut Vec<u8>)| {
        let mut forged = frame(1, &Message::Heartbeat { model: 0 });
        change(&mut forged);
        forged
    };
    for mut forged in [forged(|frame| frame[0] ^= 0x40), forged(|frame| *frame.last_mut().unwrap() ^= 1)] {
        assert!(run.service.handle_frame(Link(9), &mut forged, 0).is_err());
    }
    run.service.count_dropped(Some(1), Dropped::TooMany);
    // Frames of nobody and of a device that is not enrolled.
    run.service.count_dropped(None, Dropped::Length);
    assert_eq!(run.say(77, &Message::Heartbeat { model: 0 }), Err(Dropped::Unknown));
    let rows = run.table(DeviceOrder::Number, 10);
    let since: Vec<_> = rows.iter().map(|row| json!(row.since_start)).collect();
    assert_eq!(
        since[0],
        json!({
            "seconds_since_seen": 0, "connected": true, "transport": "serial", "boot": 41, "dropped": { "type": 1 },
            "dropped_unverified": { "version": 1, "tag": 1, "too-many": 1 },
        })
    );
    assert_eq!((&since[1]["dropped"], &since[1]["connected"]), (&json!({ "revoked": 1 }), &false.into()));
    run.service.remove_link(Link(1));
    let row = &run.table(DeviceOrder::Number, 10)[0].since_start;
    assert_eq!(row.as_ref().map(|since| (since.connected, since.transport)), Some((false, Some("serial"))));
}

#[test]
fn pages_are_bounded_and_end() {
    let run = Run::new(Memory::default(), &config(), &registry(3));
    let page = |after, limit, order| run.service.devices(DeviceQuery { order, after, limit }, 0);
    assert_eq!(page(None, 0, DeviceOrder::Number).devices.len(), 1);
    assert_eq!(page(None, usize::MAX, DeviceOrder::Number).devices.len(), 3);
    for order in [DeviceOrder::Number, DeviceOrder::Distance, DeviceOrder::Missing, DeviceOrder::Zeroed] {
        assert_eq!((page(Some(3), 5, order).devices.len(), page(Some(3), 5, order).next), (0, None));
        // A number that is not enrolled.
        assert_eq!(page(Some(u32::MAX), 5, order).devices.len(), 0);
    }
}

/// The table of a private run does not depend on the content of messages, only on who sent one.
#[test]
fn private_table_does_not_depend_on_messages() {
    let table = |scale: f32| {
        let mut run = Run::new(Memory::default(), &private(), &registry(3));
        for episode in 1..=3 {
            send(&mut run, 1, episode, scale);
            run.tick(u64::from(episode) * TIME_LIMIT);
        }
        let orders = [DeviceOrder::Number, DeviceOrder::Missing, DeviceOrder::Zeroed, DeviceOrder::Distance];
        orders.map(|order| json!(run.service.devices(DeviceQuery { order, ..DeviceQuery::default() }, run.now)))
    };
    let counted = table(1.0);
    assert_eq!(counted, table(9.0));
    let row = &counted[0]["devices"][0];
    assert_eq!((&counted[0]["private"], &row["zeroed"], &row["distance"]), (&true.into(), &json!(null), &json!(null)));
    assert_eq!((&row["last_episode"], &row["missing_streak"]), (&3.into(), &0.into()));
    assert_eq!(counted[3]["devices"], json!([]), "no order by distance");
}

#[test]
fn table_of_100_000_devices_is_read_in_pages() {
    const MANY: u32 = 100_000;
    let config = RunConfig { aggregator: AggregatorName::Mean, ..config() };
    let mut store = Memory::default();
    let service = start(&mut store, &config, &registry(MANY), &master(), TIMING, 0).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
    let (handle, _worker) = runtime.block_on(async { worker::start(service, Box::new(store), |_| {}) });
    for order in [DeviceOrder::Number, DeviceOrder::Missing] {
        let rows = pages(order, DeviceQuery::MAX_LIMIT, |query| runtime.block_on(handle.devices(query)).unwrap());
        assert!(rows.iter().map(|row| row.agent).eq(1..=MANY), "{order:?}: {} rows", rows.len());
    }
    drop(handle);
}
