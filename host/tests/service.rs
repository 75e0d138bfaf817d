//! State machine of the service: its guarantees to devices under any input and any restart.

use std::collections::{BTreeMap, BTreeSet};

use fedbandit::config::{AggregatorName, RewardKind, RunConfig};
use fedbandit::robust::Identifiability;
use fedbandit::service::event::Event;
use fedbandit::service::store::{Memory, Store};
use fedbandit::service::{
    Dropped, Link, MasterKey, Registry, RunTerms, SCHEMA, StartError, StartOptions, StateMachine, inspect, start,
};
use fedbandit_core::session::Session;
use fedbandit_core::wire::{Channel, Fate, Identity, Message, SummaryMessage, max_frame_len};
use fedbandit_core::{Agent, Prior, Rewards};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::SeedableRng;

const AGENTS: u32 = 5;
const TIME_LIMIT: u64 = 1_000;
const RUN: u32 = 7;

/// Five devices, of which the last is revoked.
fn registry() -> Registry {
    let mut registry = registry_of(AGENTS);
    registry.devices[4].revoked = true;
    registry
}

fn registry_of(agents: u32) -> Registry {
    Registry::new(1, RUN, 2).with_devices(1..=agents)
}

fn master() -> MasterKey {
    MasterKey::from_bytes(&[3; 32]).unwrap()
}

fn identity(agent: u32) -> Identity {
    Identity::new(1, agent, 2, master().device_key(1, agent, 0))
}

/// A device's end of its channel.
fn device(agent: u32) -> Channel {
    in_run(Channel::device(identity(agent), 1), RUN)
}

fn in_run(mut channel: Channel, run: u32) -> Channel {
    channel.enter_run(run);
    channel
}

fn config() -> RunConfig {
    let aggregator = AggregatorName::GeometricMedian;
    RunConfig { aggregator, steps: 64, episode_len: Some(8), first_episode: Some(8), ..RunConfig::default() }
}

fn private() -> RunConfig {
    RunConfig { rewards: RewardKind::Bounded, privacy: Some("8,1e-6".parse().unwrap()), ..config() }
}

fn forgetting() -> RunConfig {
    RunConfig { forget: Some(12), ..config() }
}

const TIMING: StartOptions = StartOptions::new(TIME_LIMIT, 1, 0);

/// Service with its store.
struct Run {
    store: Memory,
    service: StateMachine,
    config: RunConfig,
    now: u64,
}

impl Run {
    fn new(config: RunConfig) -> Self {
        Self::on(Memory::default(), config)
    }

    fn on(store: Memory, config: RunConfig) -> Self {
        Self::with(&registry(), store, config)
    }

    fn with(registry: &Registry, mut store: Memory, config: RunConfig) -> Self {
        let service = start(&mut store, &config, registry, &master(), TIMING, 0).unwrap();
        Self { store, service, config, now: 0 }
    }

    /// Restarts after a crash: only the store is left.
    fn restarted(self) -> Self {
        Self::on(self.store, self.config)
    }

    fn commit(&mut self) {
        if let Some(batch) = self.service.take_batch() {
            self.store.append(&batch.to_bytes()).unwrap();
            self.service.mark_committed(batch);
        }
    }

    fn tick(&mut self, now: u64) {
        self.now = now;
        self.commit();
        self.service.tick(now).unwrap();
        self.commit();
    }

    fn say(&mut self, agent: u32, message: &Message<'_>) -> Result<(), Dropped> {
        self.deliver(agent, encode(agent, message))
    }

    fn deliver(&mut self, agent: u32, mut frame: Vec<u8>) -> Result<(), Dropped> {
        self.service.handle_frame(Link(agent.into()), &mut frame, self.now)
    }

    /// Returns the frames to send, each with its device and a description.
    fn sent(&mut self) -> Vec<(u64, String)> {
        let mut sent = Vec::new();
        while let Some(mut outgoing) = self.service.poll() {
            let description = describe(&device(outgoing.link.0 as u32), &mut outgoing.frame);
            sent.push((outgoing.link.0, description));
        }
        sent
    }

    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        self.store.replay(0, &mut |_, bytes| events.push(Event::from_bytes(bytes, 2).unwrap())).unwrap();
        events
    }
}

/// Describes a frame of the controller.
fn describe(device: &Channel, frame: &mut [u8]) -> String {
    match device.decode(frame).unwrap() {
        Message::Model(model) => format!("model {}", model.episode),
        Message::Ack { episode, fate: Fate::Counts, .. } => format!("ack {episode}"),
        Message::Ack { episode, fate, .. } => format!("ack {episode} {fate:?}"),
        Message::Wait { challenge, wait } => format!("wait {challenge} {wait}"),
        Message::NextRun { challenge, run } => format!("next run {challenge} {run}"),
        other => panic!("sent {other:?} to a device"),
    }
}

fn encode(agent: u32, message: &Message<'_>) -> Vec<u8> {
    encode_with(device(agent), message)
}

fn encode_with(mut channel: Channel, message: &Message<'_>) -> Vec<u8> {
    let mut frame = [0; 256];
    let length = channel.encode(message, &mut frame).unwrap();
    frame[..length].to_vec()
}

fn hello() -> Message<'static> {
    Message::Hello { model: 0, boot: 1, challenge: 5 }
}

fn summary(episode: u32) -> Message<'static> {
    summary_of(episode, 2.0)
}

fn summary_of(episode: u32, reward_sum: f32) -> Message<'static> {
    let (gram, feature_sum) = ((&[4.0, 0.0, 4.0]).into(), (&[2.0, 1.0]).into());
    Message::Summary(SummaryMessage { episode, steps: 8, reward_sum, gram, feature_sum })
}

#[test]
fn summary_is_acknowledged_only_after_commit() {
    let mut run = Run::new(config());
    run.commit();
    run.say(1, &summary(1)).unwrap();
    // A repetition before the commit adds no event.
    run.say(1, &summary(1)).unwrap();
    assert_eq!(run.sent(), []);
    run.commit();
    assert_eq!(run.events().len(), 2, "the first model and one summary");
    assert_eq!(run.sent(), [(1, "ack 1".into())]);
    // A repetition after the commit is acknowledged again and counts once.
    run.say(1, &summary(1)).unwrap();
    assert!(run.service.take_batch().is_none());
    assert_eq!(run.sent(), [(1, "ack 1".into())]);
}

/// A summary that arrives during a commit is not part of that commit.
#[test]
fn batches_are_committed_one_at_a_time() {
    let mut run = Run::new(config());
    run.commit();
    run.say(1, &summary(1)).unwrap();
    let batch = run.service.take_batch().unwrap();
    run.say(1, &summary(1)).unwrap();
    run.say(2, &summary(1)).unwrap();
    assert!(run.service.take_batch().is_none());
    run.service.tick(TIME_LIMIT).unwrap();
    assert_eq!((run.sent(), run.service.status(0).episode), (vec![], Some(1)), "no episode closes during a commit");
    run.service.mark_committed(batch);
    assert_eq!(run.sent(), [(1, "ack 1".into())]);
    assert_eq!(run.service.take_batch().unwrap().events().len(), 1, "only the summary of agent 2");
}

#[test]
fn model_is_sent_only_after_commit() {
    let mut run = Run::new(config());
    run.say(1, &hello()).unwrap();
    assert_eq!(run.sent(), [], "the first model is not stored yet");
    run.commit();
    assert_eq!(run.sent(), [(1, "model 1".into())]);
    run.service.tick(TIME_LIMIT).unwrap();
    assert_eq!(run.sent(), []);
    run.commit();
    assert_eq!(run.sent(), [(1, "model 2".into())]);
}

#[test]
fn episode_closes_at_deadline_or_when_all_agents_have_reported() {
    let mut run = Run::new(config());
    run.tick(0);
    for agent in 1..=4 {
        run.say(agent, &summary(1)).unwrap();
    }
    run.tick(TIME_LIMIT - 1);
    assert_eq!(run.service.status(0).episode, Some(1), "the revoked device counts as missing");
    run.tick(TIME_LIMIT);
    assert_eq!((run.service.status(0).episode, run.service.status(0).missing_in_last_episode), (Some(2), Some(1)));
    // The next deadline counts from the last close.
    run.tick(2 * TIME_LIMIT - 1);
    assert_eq!(run.service.status(0).episode, Some(2));
    let mut all = Run::with(&registry_of(3), Memory::default(), config());
    all.tick(0);
    (1..=3).for_each(|agent| all.say(agent, &summary(1)).unwrap());
    all.tick(1);
    assert_eq!(all.service.status(0).episode, Some(2));
}

#[test]
fn private_episode_closes_only_at_its_deadline() {
    let mut run = Run::with(&registry_of(3), Memory::default(), private());
    run.tick(0);
    (1..=3).for_each(|agent| run.say(agent, &summary(1)).unwrap());
    run.tick(TIME_LIMIT - 1);
    assert_eq!((run.service.status(0).episode, run.service.status(0).missing), (Some(1), 0));
    run.tick(TIME_LIMIT);
    assert_eq!(run.service.status(0).episode, Some(2));
}

#[test]
fn late_summaries_are_accepted_within_the_window() {
    let mut run = Run::new(config());
    run.tick(0);
    run.tick(TIME_LIMIT);
    run.tick(2 * TIME_LIMIT);
    run.sent();
    run.say(1, &summary(2)).unwrap();
    run.say(2, &summary(1)).unwrap();
    run.say(3, &summary(4)).unwrap();
    run.commit();
    let answers: BTreeMap<u64, String> = run.sent().into_iter().collect();
    let refused = |episode: u32| format!("ack {episode} WrongEpisode");
    assert_eq!(answers, BTreeMap::from([(1, "ack 2".into()), (2, refused(1)), (3, refused(4))]));
}

#[test]
fn unauthenticated_frames_are_dropped_and_counted() {
    let mut run = Run::new(config());
    run.commit();
    let mut damaged = encode(1, &hello());
    damaged[24] ^= 1;
    let mut version = encode(1, &hello());
    version[0] = 1;
    let key = master().device_key(1, 1, 0);
    let of = |identity: Identity, run: u32| encode_with(in_run(Channel::device(identity, 1), run), &hello());
    let cases = [
        (vec![1; 10], Dropped::Length),
        (damaged, Dropped::Tag),
        (version, Dropped::Version),
        (of(Identity::new(1, 99, 2, key), RUN), Dropped::Unknown),
        (of(Identity::new(2, 1, 2, key), RUN), Dropped::Unknown),
        // Agent 2 with the key of agent 1, in this run and in another.
        (of(Identity::new(1, 2, 2, key), RUN), Dropped::Tag),
        (of(Identity::new(1, 2, 2, key), 0), Dropped::Tag),
        // A key that was never issued.
        (of(Identity::new(1, 1, 2, master().device_key(1, 1, 1)), RUN), Dropped::Tag),
        (of(identity(5), RUN), Dropped::Revoked),
        (of(identity(5), 8), Dropped::Revoked),
        // Devices do not send these, whatever the run.
        (encode(1, &Message::Wait { challenge: 1, wait: 1 }), Dropped::Type),
        (encode_with(in_run(device(1), 8), &Message::NextRun { challenge: 1, run: 8 }), Dropped::Type),
    ];
    let mut counts: BTreeMap<Dropped, u64> = BTreeMap::new();
    for (mut frame, reason) in cases {
        assert_eq!(run.service.handle_frame(Link(1), &mut frame, 0), Err(reason));
        *counts.entry(reason).or_default() += 1;
    }
    assert_eq!(run.sent(), []);
    assert!(run.service.take_batch().is_none());
    assert_eq!(run.service.status(0).dropped, counts);
    assert_eq!(run.service.status(0).connected, 1, "only agent 1 sent valid tags");
    // An authenticated summary of another dimension is answered.
    let wide = in_run(Channel::device(Identity::new(1, 1, 3, key), 1), RUN);
    let message = Message::Summary(SummaryMessage {
        episode: 1,
        steps: 1,
        reward_sum: 0.0,
        gram: (&[0.0; 6]).into(),
        feature_sum: (&[0.0; 3]).into(),
    });
    run.deliver(1, encode_with(wide, &message)).unwrap();
    assert_eq!(run.sent(), [(1, "ack 1 WrongDimension".into())]);
}

#[test]
fn broker_link_reaches_devices_without_own_link() {
    let mut run = Run::new(config());
    run.commit();
    let broker = Link(100);
    let reached = |run: &mut Run| -> BTreeSet<u32> {
        let sent: Vec<_> =
            std::iter::from_fn(|| run.service.poll()).filter(|outgoing| outgoing.link == broker).collect();
        let of = |frame: &[u8]| (1..=AGENTS).find(|agent| device(*agent).decode(&mut frame.to_vec()).is_ok()).unwrap();
        sent.iter().map(|outgoing| of(&outgoing.frame)).collect()
    };
    run.say(1, &hello()).unwrap();
    reached(&mut run);
    run.service.add_broker(broker);
    assert_eq!(reached(&mut run), BTreeSet::from([2, 3, 4]), "agent 1 has a link of its own, agent 5 is revoked");
    // Agent 1 moves to the broker's link; agent 2 gets a link of its own.
    run.service.handle_frame(broker, &mut encode(1, &hello()), 0).unwrap();
    run.say(2, &hello()).unwrap();
    reached(&mut run);
    run.tick(TIME_LIMIT);
    assert_eq!(reached(&mut run), BTreeSet::from([1, 3, 4]));
    run.service.remove_link(Link(2));
    run.service.detach(broker, 1);
    assert_eq!(run.service.status(0).connected, 0);
    run.tick(2 * TIME_LIMIT);
    assert_eq!(reached(&mut run), BTreeSet::from([1, 2, 3, 4]));
    run.service.set_revoked(3, true);
    run.tick(3 * TIME_LIMIT);
    assert_eq!(reached(&mut run), BTreeSet::from([1, 2, 4]));
    run.service.remove_link(broker);
    run.tick(4 * TIME_LIMIT);
    assert_eq!(reached(&mut run), BTreeSet::new());
}

#[test]
fn hostile_frames_cause_faults_but_no_panic() {
    use proptest::prelude::*;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let values = proptest::collection::vec(proptest::num::f32::ANY, 5);
    let strategy = (0..7_u32, any::<u32>(), values, proptest::collection::vec(any::<u8>(), 0..80));
    let run = std::cell::RefCell::new(Run::new(config()));
    runner
        .run(&strategy, |(agent, episode, values, noise)| {
            let mut run = run.borrow_mut();
            let episode = if episode % 2 == 0 { episode % 10 } else { episode };
            let summary = SummaryMessage {
                episode,
                steps: episode,
                reward_sum: values[0],
                gram: values[..3].into(),
                feature_sum: values[3..].into(),
            };
            let _ = run.say(agent, &Message::Summary(summary));
            let _ = run.deliver(agent, noise);
            run.tick(u64::from(agent) * 300);
            run.sent();
            Ok(())
        })
        .unwrap();
    let run = run.into_inner();
    assert!(run.service.status(0).faults.values().sum::<u64>() > 0);
}

#[test]
fn mean_reward_is_a_median_that_a_minority_cannot_move() {
    let mut run = Run::new(config());
    run.tick(0);
    let reports = |run: &mut Run, episode: u32, sums: [f32; 4]| {
        for (agent, reward_sum) in (1..).zip(sums) {
            run.say(agent, &summary_of(episode, reward_sum)).unwrap();
        }
        run.tick(u64::from(episode) * TIME_LIMIT);
        run.service.status(0).mean_reward
    };
    assert_eq!(reports(&mut run, 1, [2.0, 4.0, 6.0, f32::MAX]), Some(0.5), "lower median of the sums over 8 steps");
    assert_eq!(reports(&mut run, 2, [f32::NAN, 4.0, f32::NEG_INFINITY, f32::INFINITY]), Some(0.5));
    assert_eq!(reports(&mut run, 3, [f32::NAN; 4]), None);
    // A late summary is not part of any episode's mean.
    run.tick(4 * TIME_LIMIT);
    run.say(1, &summary_of(4, 8.0)).unwrap();
    run.say(2, &summary_of(5, 4.0)).unwrap();
    run.tick(5 * TIME_LIMIT);
    let status = run.service.status(0);
    let means: Vec<_> = status.history.iter().map(|quality| (quality.episode, quality.mean_reward)).collect();
    assert_eq!(means, [(1, Some(0.5)), (2, Some(0.5)), (3, None), (4, None), (5, Some(0.5))]);
    assert_eq!((status.received.accepted, status.received.late), (14, 1));
    // Models do not depend on reported rewards.
    let mut other = Run::new(config());
    other.tick(0);
    reports(&mut other, 1, [0.0; 4]);
    let models = |run: &Run| -> Vec<Event> {
        run.events().into_iter().filter(|event| matches!(event, Event::Model(_))).take(2).collect()
    };
    assert_eq!(models(&run), models(&other));
    // The history survives a restart.
    let history = run.service.status(0).history;
    assert_eq!(run.restarted().service.status(0).history, history);
}

/// Replayed sums have the weights of their episodes, 2^(−8/12) per episode, also that of a late summary.
#[test]
fn replay_restores_sums_with_a_half_life() {
    let mut run = Run::new(forgetting());
    run.tick(0);
    run.say(1, &summary(1)).unwrap();
    run.tick(TIME_LIMIT);
    // Late by one episode.
    run.say(2, &summary(1)).unwrap();
    run.say(3, &summary(2)).unwrap();
    run.tick(2 * TIME_LIMIT);
    let sums = |run: &Run| run.service.controller().streams().gram.values().to_vec();
    let before = sums(&run);
    let weight = |episodes: f64| 4.0 * 2.0_f64.powf(-8.0 * episodes / 12.0);
    // Episode 3 is running, and the sums have the weights of the model after it.
    for (agent, expected) in [weight(2.0), weight(2.0), weight(1.0), 0.0].into_iter().enumerate() {
        assert!((before[3 * agent] - expected).abs() < 1e-12, "agent {}: {before:?}", agent + 1);
    }
    let run = run.restarted();
    assert_eq!(sums(&run), before);
    let mut other = Memory::default();
    start(&mut other, &forgetting(), &registry(), &master(), TIMING, 0).unwrap();
    let terms = String::from_utf8(other.value("terms").unwrap().unwrap()).unwrap();
    assert!(terms.contains("\"forget\":12"), "{terms}");
}

/// Reported rewards carry no noise, so the status of a private run must not depend on them.
#[test]
fn private_status_does_not_depend_on_rewards() {
    let mut key = Memory::default();
    start(&mut key, &private(), &registry(), &master(), TIMING, 0).unwrap();
    let status = |reward_sum: f32| {
        let mut run = Run::on(key.clone(), private());
        run.tick(0);
        (1..=4).for_each(|agent| run.say(agent, &summary_of(1, reward_sum)).unwrap());
        run.tick(TIME_LIMIT);
        serde_json::to_string(&run.service.status(0)).unwrap()
    };
    let (low, high) = (status(-3.0), status(5.0));
    assert_eq!(low, high);
    assert!(low.contains("\"mean_reward\":null"), "{low}");
}

/// Five devices, one of which may be corrupted. Nobody has explored feature 2.
#[test]
fn status_shows_directions_that_too_few_devices_have_explored() {
    let mut run = Run::new(config());
    run.tick(0);
    let state = |run: &Run| run.service.status(0).exploration.unwrap();
    assert_eq!(state(&run).count(Identifiability::NotIdentifiable), 2, "no data yet");
    let one_feature = |episode| {
        let (gram, feature_sum) = ((&[4.0, 0.0, 0.0]).into(), (&[2.0, 0.0]).into());
        Message::Summary(SummaryMessage { episode, steps: 8, reward_sum: 2.0, gram, feature_sum })
    };
    (1..=4).for_each(|agent| run.say(agent, &one_feature(1)).unwrap());
    run.tick(TIME_LIMIT);
    let closed = state(&run);
    assert_eq!((closed.units, closed.corrupted, closed.needed), (5, 1, 2.0));
    assert!(closed.features[0] > 3.99 && closed.features[1] == 0.0, "{:?}", closed.features);
    let found: Vec<_> = closed.directions.iter().map(|found| (found.name.as_str(), found.state)).collect();
    let expected = [("feature 2", Identifiability::NotIdentifiable), ("feature 1", Identifiability::Identifiable)];
    assert_eq!(found, expected);
    // Summaries of the running episode count when it closes, before and after a restart.
    (1..=4).for_each(|agent| run.say(agent, &summary(2)).unwrap());
    run.commit();
    assert_eq!(state(&run), closed);
    assert_eq!(inspect(&run.store, &registry()).unwrap().status().exploration, Some(closed.clone()));
    let mut run = run.restarted();
    assert_eq!(state(&run), closed);
    run.tick(2 * TIME_LIMIT);
    assert_eq!(state(&run).directions.len(), 1, "all directions are identifiable");
}

#[test]
fn private_status_has_no_exploration() {
    assert_eq!(Run::new(private()).service.status(0).exploration, None);
}

#[test]
fn absence_is_tolerated_by_capped_filter_only() {
    for aggregator in AggregatorName::ALL.iter().filter(|name| !name.is_simulation_only()) {
        let run = Run::new(RunConfig { aggregator: *aggregator, ..config() });
        let tolerates = *aggregator == AggregatorName::CappedFilter;
        assert_eq!(run.service.status(0).tolerates_absence, tolerates, "{aggregator}");
    }
}

/// A run that is restarted after every event stores the same events and sends the same answers.
#[test]
fn restart_after_any_event_changes_nothing() {
    let grouped = RunConfig { aggregator: AggregatorName::MedianOfMeans, ..config() };
    for config in [config(), private(), grouped, forgetting()] {
        let play = |mut run: Run, restarts: bool| {
            run.tick(0);
            for episode in 1..=8 {
                for agent in 1..=4 {
                    let x = f32::from(agent as u8) + episode as f32 / 8.0;
                    let (gram, feature_sum) = ([4.0, x / 8.0, 3.0], [x / 4.0, 1.0 - x / 8.0]);
                    let (gram, feature_sum) = ((&gram).into(), (&feature_sum).into());
                    let message =
                        Message::Summary(SummaryMessage { episode, steps: 8, reward_sum: x, gram, feature_sum });
                    run.say(agent, &message).unwrap();
                    run.commit();
                    if restarts {
                        run = run.restarted();
                        // The device repeats its summary, acknowledged or not.
                        run.say(agent, &message).unwrap();
                        assert!(run.service.take_batch().is_none(), "the summary was lost");
                    }
                }
                // The clock of a restarted service starts at 0.
                run.tick(if restarts { TIME_LIMIT } else { u64::from(episode) * TIME_LIMIT });
                if restarts {
                    run = run.restarted();
                    run.commit();
                }
            }
            run
        };
        let key = {
            // Both runs must have the same noise key.
            let mut store = Memory::default();
            start(&mut store, &config, &registry(), &master(), TIMING, 0).unwrap();
            store
        };
        let uninterrupted = play(Run::on(key.clone(), config), false);
        let restarted = play(Run::on(key, config), true);
        assert_eq!(uninterrupted.events(), restarted.events());
        assert_eq!(uninterrupted.events().last(), Some(&Event::End));
        assert_eq!(inspect(&restarted.store, &registry()).unwrap().status().episode, None);
        // A finished run acknowledges stored summaries again and refuses new ones.
        let mut finished = restarted.restarted();
        finished.say(1, &summary(8)).unwrap();
        finished.say(4, &summary(9)).unwrap();
        finished.tick(10 * TIME_LIMIT);
        let answers = vec![(1, "ack 8".into()), (4, "ack 9 WrongEpisode".into())];
        assert_eq!((finished.sent(), finished.events()), (answers, uninterrupted.events()));
        let models = uninterrupted.events().into_iter().filter(|event| matches!(event, Event::Model(_))).count();
        assert_eq!(models, 8);
        let faults = |run: &Run| run.service.controller().counts().faults.clone();
        assert_eq!(faults(&uninterrupted), faults(&finished));
    }
}

/// An operator must be able to tell a finished run from one whose devices are missing.
#[test]
fn finished_run_reports_no_episode_no_deadline_and_nobody_missing() {
    let mut run = Run::new(config());
    // Before its first model is stored, the first episode is about to begin.
    let status = run.service.status(0);
    assert_eq!((status.finished, status.episode, status.missing), (false, Some(1), 5));
    for episode in 0..8 {
        run.tick(episode * TIME_LIMIT);
        let status = run.service.status(episode * TIME_LIMIT);
        assert_eq!((status.finished, status.episode), (false, Some(episode as u32 + 1)));
        assert_eq!((status.missing, status.seconds_left), (5, Some(TIME_LIMIT / 1_000)));
    }
    run.tick(8 * TIME_LIMIT);
    let now = 100 * TIME_LIMIT;
    let stored = inspect(&run.store, &registry()).unwrap().status();
    for status in [run.service.status(now), stored, run.restarted().service.status(now)] {
        assert_eq!((status.finished, status.episode, status.episodes), (true, None, 8));
        assert_eq!((status.missing, status.seconds_left), (0, None));
        assert_eq!(status.missing_in_last_episode, Some(5));
    }
}

#[test]
fn store_with_different_terms_is_refused() {
    let mut store = Memory::default();
    start(&mut store, &config(), &registry(), &master(), TIMING, 0).unwrap();
    let mut refuses = |config: RunConfig, registry: Registry, timing: StartOptions, sentence: &str| {
        let error = start(&mut store, &config, &registry, &master(), timing, 0).err().unwrap();
        assert!(matches!(error, StartError::DifferentRun(_)), "{error}");
        assert!(error.to_string().contains(sentence), "{error} lacks {sentence}");
    };
    let longer = RunConfig { episode_len: Some(16), ..config() };
    refuses(longer, registry(), TIMING, "episode-len is 8, configured 16");
    refuses(private(), registry(), TIMING, "privacy is null, configured \"8,0.000001\"");
    refuses(forgetting(), registry(), TIMING, "forget is null, configured 12");
    refuses(config(), Registry { dimension: 3, ..registry() }, TIMING, "dim is 2, configured 3");
    refuses(config(), Registry { run: 8, ..registry() }, TIMING, "run is 7, configured 8");
    refuses(config(), registry(), StartOptions { window: 2, ..TIMING }, "window is 1, configured 2");
    let mut others = registry();
    others.devices[0].agent = 77;
    refuses(config(), others, TIMING, "the enrolled devices differ");
    let mut sealed = registry();
    sealed.devices[0].sealed = true;
    refuses(config(), sealed, TIMING, "the devices with sealed frames differ");
    let mut fewer = registry();
    fewer.devices.pop();
    refuses(config(), fewer, TIMING, "agents is 5, configured 4");
    // A revocation does not change the terms.
    let mut revoked = registry();
    revoked.devices[0].revoked = true;
    start(&mut store, &config(), &revoked, &master(), TIMING, 0).unwrap();
    // Corrupt terms and other schemas have their own errors.
    let terms = store.value("terms").unwrap().unwrap();
    let mut refuses = |terms: &str, sentence: &str| {
        store.set_value("terms", terms.as_bytes()).unwrap();
        let error = start(&mut store, &config(), &registry(), &master(), TIMING, 0).err().unwrap();
        assert!(error.to_string().starts_with(sentence), "{error}");
    };
    refuses("{", "the store's terms are corrupt: ");
    refuses("{\"schema\":1}", "the store has schema 1, this version supports ");
    store.set_value("terms", &terms).unwrap();
    store.append(&[vec![1, 2, 3]]).unwrap();
    let error = start(&mut store, &config(), &registry(), &master(), TIMING, 0).err().unwrap();
    assert_eq!(error.to_string(), "event 0 of the store is corrupt; restore the last backup");
}

/// Stored terms would make the corrected configuration a different run.
#[test]
fn failed_start_leaves_no_terms() {
    let krum = RunConfig { aggregator: AggregatorName::Krum, design_corruption: Some(0.45), ..config() };
    for (config, window, sentence) in [
        (config(), 64, "window: late summaries can be accepted for at most 63 episodes, got 64"),
        (krum, 1, "aggregator: krum is undefined for 5 points, 2 of them corrupted"),
        (
            RunConfig { aggregator: AggregatorName::Solo, ..config() },
            1,
            "aggregator: solo is available in simulations only",
        ),
    ] {
        let mut store = Memory::default();
        let timing = StartOptions { window, ..TIMING };
        let error = start(&mut store, &config, &registry(), &master(), timing, 0).err().unwrap();
        assert!(error.to_string().starts_with(sentence), "{error}");
        start(&mut store, &self::config(), &registry(), &master(), TIMING, 0).unwrap();
    }
}

/// A plain and a private store of version 0.1.0, each in episode 2 with two summaries of episode 1.
const STORED_WITH_SCHEMA_3: &str = include_str!("stored/schema-3.txt");

/// Every later version resumes these stores, and writes the same bytes for the same terms and events.
#[test]
fn stores_with_schema_3_are_migrated_and_resumed() {
    let digits = |text: &str| -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    };
    for (stored, config) in STORED_WITH_SCHEMA_3.split("\n\n").zip([config(), private()]) {
        let mut store = Memory::default();
        for line in stored.lines() {
            match line.split_once(' ').unwrap() {
                ("terms", text) => {
                    let mut new = Memory::default();
                    start(&mut new, &config, &registry(), &master(), TIMING, 0).unwrap();
                    let present = text.replace("\"schema\":3", "\"schema\":4");
                    assert_eq!(String::from_utf8(new.value("terms").unwrap().unwrap()).unwrap(), present);
                    store.set_value("terms", text.as_bytes()).unwrap();
                }
                ("event", bytes) => {
                    let bytes = digits(bytes);
                    assert_eq!(Event::from_bytes(&bytes, 2).unwrap().to_bytes(), bytes);
                    store.append(&[bytes]).unwrap();
                }
                (name, bytes) => store.set_value(name, &digits(bytes)).unwrap(),
            }
        }
        let status = inspect(&store, &registry()).unwrap().status();
        assert_eq!((status.episode, status.received.accepted), (Some(2), 2));
        let mut run = Run::on(store, config);
        assert_eq!(RunTerms::load(&run.store).unwrap().schema(), SCHEMA);
        run.say(1, &summary(1)).unwrap();
        run.say(1, &summary(2)).unwrap();
        run.tick(TIME_LIMIT);
        assert_eq!(
            run.sent().iter().map(|(_, description)| &**description).collect::<Vec<_>>(),
            ["ack 1", "ack 2", "model 3"]
        );
    }
}

/// The registry may have changed since the run started.
#[test]
fn store_is_inspected_with_its_own_dimension() {
    let mut run = Run::new(config());
    run.tick(0);
    run.say(1, &summary(1)).unwrap();
    run.tick(TIME_LIMIT);
    for dimension in [1, 2, 64] {
        let status = inspect(&run.store, &Registry { dimension, ..registry() }).unwrap().status();
        assert_eq!((status.episode, status.received.accepted), (Some(2), 1), "{dimension}");
    }
}

/// The expected bytes come from an independent HKDF implementation.
#[test]
fn device_keys_are_distinct_and_derived_from_the_master_key() {
    let addresses = (1..3_u32).flat_map(|fleet| (1..3).flat_map(move |agent| (0..2).map(move |g| (fleet, agent, g))));
    let keys: BTreeSet<_> =
        addresses.map(|(fleet, agent, generation)| master().device_key(fleet, agent, generation)).collect();
    assert_eq!(keys.len(), 8);
    let hex: String = master().device_key(1, 1, 0).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, KEY_OF_AGENT_1);
}

const KEY_OF_AGENT_1: &str = "13723328eafbd304065848173424c06dce888f0fcf375150d13b7c0705bb76d7";

#[test]
fn hello_is_answered_with_a_newer_model_or_a_wait() {
    let mut run = Run::new(config());
    let hello = |model, challenge| Message::Hello { model, boot: 1, challenge };
    run.say(1, &hello(0, 1)).unwrap();
    assert_eq!(run.sent(), [], "the first model is not stored yet");
    run.tick(0);
    run.tick(TIME_LIMIT);
    run.sent();
    let answers = |run: &mut Run, now: u64| {
        run.now = now;
        (0..4).for_each(|model| run.say(1, &hello(model, model)).unwrap());
        run.sent().into_iter().map(|(_, description)| description).collect::<Vec<_>>()
    };
    // No honest device has a newer model than this controller's, unless the store was restored from a backup.
    let expected = ["model 2", "model 2", "wait 2 700", "next run 3 7"];
    assert_eq!(answers(&mut run, TIME_LIMIT + 300), expected);
    assert_eq!(answers(&mut run, 3 * TIME_LIMIT)[2], "wait 2 0", "past the deadline");
    (2..=8).for_each(|episode| run.tick(episode * TIME_LIMIT));
    run.sent();
    let expected = ["wait 0 3600000", "wait 1 3600000", "wait 2 3600000", "wait 3 3600000"];
    assert_eq!(answers(&mut run, 9 * TIME_LIMIT), expected, "the run is over");
    run.say(1, &summary(8)).unwrap();
    assert_eq!(run.sent(), [(1, "ack 8 WrongEpisode".into())]);
}

#[test]
fn device_of_another_run_is_moved_to_this_one() {
    let mut run = Run::new(config());
    run.tick(0);
    run.sent();
    for other in [0, 6, 8] {
        let device = || in_run(Channel::device(identity(1), 1), other);
        for message in [hello(), summary(1), Message::Heartbeat { model: 3 }] {
            run.deliver(1, encode_with(device(), &message)).unwrap();
        }
        let answers: Vec<String> =
            std::iter::from_fn(|| run.service.poll()).map(|mut sent| describe(&device(), &mut sent.frame)).collect();
        assert_eq!(answers, ["next run 5 7", "ack 1 WrongRun"], "run {other}");
    }
    assert!(run.service.take_batch().is_none(), "a summary of another run is not stored");
    // The device's own channel still works, in both directions.
    run.say(1, &hello()).unwrap();
    assert_eq!(run.sent(), [(1, "model 1".into())]);
}

#[test]
fn device_with_a_new_key_is_accepted_and_the_old_key_is_not() {
    let mut run = Run::new(config());
    run.tick(0);
    run.say(1, &hello()).unwrap();
    run.sent();
    let new = Identity::new(1, 1, 2, master().device_key(1, 1, 1));
    run.service.rekey(new.clone());
    assert_eq!(run.say(1, &hello()), Err(Dropped::Tag));
    run.tick(TIME_LIMIT);
    assert_eq!(run.sent(), [], "the old key's connection gets no model");
    let mut device = in_run(Channel::device(new, 1), RUN);
    let mut frame = [0; 64];
    let length = device.encode(&hello(), &mut frame).unwrap();
    run.deliver(1, frame[..length].to_vec()).unwrap();
    assert_eq!(describe(&device, &mut run.service.poll().unwrap().frame), "model 2");
    // A restarted service derives the new key from the registry.
    let mut registry = registry();
    registry.devices[0].generation = 1;
    let mut run = Run::with(&registry, run.store, run.config);
    let length = device.encode(&hello(), &mut frame).unwrap();
    assert_eq!(run.deliver(1, frame[..length].to_vec()), Ok(()));
    assert_eq!(run.say(1, &hello()), Err(Dropped::Tag));
}

/// The answer to a summary, and to its repetition, tells if it counts; the faults of all devices are those that were told.
#[test]
fn acknowledgement_tells_the_fate_of_a_summary() {
    let of = |gram: [f32; 3], feature_sum: [f32; 2]| (gram, feature_sum);
    for (config, (gram, feature_sum), fate) in [
        (config(), of([4.0, 0.0, 4.0], [2.0, 1.0]), Fate::Counts),
        (config(), of([4.0, f32::NAN, 4.0], [2.0, 1.0]), Fate::NotFinite),
        (config(), of([9.0, 0.0, 4.0], [2.0, 1.0]), Fate::Norm),
        (config(), of([1.0, 2.0, 1.0], [2.0, 1.0]), Fate::NotPositiveSemidefinite),
        (private(), of([1.0, 0.0, 1.0], [4.0, 1.0]), Fate::Inconsistent),
        (private(), of([4.0, 0.0, 4.0], [2.0, 1.0]), Fate::Counts),
    ] {
        let mut run = Run::new(config);
        run.tick(0);
        let (gram, feature_sum) = ((&gram).into(), (&feature_sum).into());
        let message = Message::Summary(SummaryMessage { episode: 1, steps: 8, reward_sum: 0.0, gram, feature_sum });
        for _ in 0..2 {
            run.say(1, &message).unwrap();
            run.commit();
            let told = if fate.counts() { "ack 1".into() } else { format!("ack 1 {fate:?}") };
            assert_eq!(run.sent(), [(1, told)]);
        }
        assert_eq!(run.service.status(0).received.accepted, u64::from(fate.counts()));
        assert_eq!(run.service.status(0).faults.len(), usize::from(!fate.counts()));
    }
    // An excluded device is told so, for everything it sends later.
    let mut run = Run::new(RunConfig { admission: Some(fedbandit::algorithm::Level::Drop), ..config() });
    run.tick(0);
    let (gram, feature_sum) = ((&[9.0, 0.0, 4.0]).into(), (&[2.0, 1.0]).into());
    let message = Message::Summary(SummaryMessage { episode: 1, steps: 8, reward_sum: 0.0, gram, feature_sum });
    run.say(1, &message).unwrap();
    run.tick(TIME_LIMIT);
    run.say(1, &summary(2)).unwrap();
    run.commit();
    assert_eq!(run.sent(), [(1, "ack 1 Norm".into()), (1, "model 2".into()), (1, "ack 2 Excluded".into())]);
}

/// In a private run, the answers to a device depend on its own frames, the terms and the clock: two fleets whose other devices
/// send different data, or nothing, get the same bytes.
#[test]
fn private_answers_do_not_depend_on_other_devices() {
    let mut key = Memory::default();
    start(&mut key, &private(), &registry(), &master(), TIMING, 0).unwrap();
    let answers = |others: &dyn Fn(&mut Run)| {
        let mut run = Run::on(key.clone(), private());
        run.tick(0);
        let mut answers = Vec::new();
        others(&mut run);
        for message in [hello(), summary(1), summary(1), summary(2), Message::Hello { model: 1, boot: 1, challenge: 9 }]
        {
            run.say(1, &message).unwrap();
            run.commit();
        }
        // Models carry noise; their content is the subject of the privacy guarantee.
        answers.extend(run.sent().into_iter().filter(|(link, _)| *link == 1));
        answers
    };
    let silent = answers(&|_| ());
    assert_eq!(silent.len(), 5, "{silent:?}");
    assert_eq!(answers(&|run| (2..5).for_each(|agent| run.say(agent, &summary(1)).unwrap())), silent);
    assert_eq!(answers(&|run| (2..5).for_each(|agent| run.say(agent, &summary(3)).unwrap())), silent);
}

/// Frames and bytes between a device and its controller over three episodes of a minute, in which other devices are missing:
/// the device reports at once and waits for the deadline.
#[test]
fn episode_takes_one_summary_and_at_most_one_hello() {
    let registry = Registry::new(1, RUN, 8).with_devices([1, 2]);
    let (mut store, options) = (Memory::default(), StartOptions { time_limit: 60_000, ..TIMING });
    let mut service = start(&mut store, &config(), &registry, &master(), options, 0).unwrap();
    let mut agent = Agent::<8>::new(&Prior::new(1.0, 1.0, 8, Rewards::Unbounded)).unwrap();
    let mut session =
        Session::<8, { max_frame_len(8) }, 4>::new(registry.identity(&registry.devices[0], &master()), 1).unwrap();
    let mut rng = Pcg64::seed_from_u64(1);
    let mut traffic: BTreeMap<u8, (u32, usize)> = BTreeMap::new();
    for now in 0..180_000 {
        fedbandit::service::worker::commit_and_tick(&mut service, &mut store, now).unwrap();
        let mut count = |frame: &[u8]| {
            let (frames, bytes) = traffic.entry(frame[1]).or_default();
            (*frames, *bytes) = (*frames + 1, *bytes + frame.len());
        };
        if let Some(frame) = session.poll(now, &mut rng) {
            count(frame);
            service.handle_frame(Link(1), &mut frame.to_vec(), now).unwrap();
            fedbandit::service::worker::commit_and_tick(&mut service, &mut store, now).unwrap();
        }
        while let Some(mut outgoing) = service.poll() {
            count(&outgoing.frame);
            session.handle(&mut outgoing.frame, &mut agent, now).unwrap();
        }
        while !session.wants_model() {
            agent.record(&[0.25; 8], 1.0).unwrap();
            if agent.steps() == agent.episode_len() {
                session.submit(&agent.finish(), now);
            }
        }
    }
    let frames: Vec<_> = traffic.iter().map(|(kind, (frames, _))| (*kind, *frames)).collect();
    // Hellos: to learn the run, and to get the first model. Models of later episodes are pushed.
    assert_eq!(frames, [(0x01, 2), (0x03, 3), (0x81, 3), (0x82, 3), (0x84, 1)]);
    let bytes: usize = traffic.values().map(|(_, bytes)| bytes).sum();
    assert_eq!(bytes, 1_584, "as in docs/wire.md");
}

/// A repeated boot counter would repeat nonces.
#[test]
fn start_with_corrupt_or_exhausted_boot_counter_is_refused() {
    let mut store = Memory::default();
    let mut starts = |boot: &[u8]| {
        store.set_value("boot", boot).unwrap();
        start(&mut store, &config(), &registry(), &master(), TIMING, 0).map(drop)
    };
    starts(&(u32::MAX - 1).to_le_bytes()).unwrap();
    for boot in [&u32::MAX.to_le_bytes()[..], &[1, 0, 0], &[]] {
        assert!(matches!(starts(boot), Err(StartError::Boot)), "{boot:?}");
    }
}

#[test]
fn sealed_devices_use_sealed_frames_and_nonces_never_repeat() {
    let mut registry = registry_of(1);
    registry.devices[0].sealed = true;
    let mut device = in_run(Channel::device(identity(1).with_sealed_frames(), 1), RUN);
    let mut store = Memory::default();
    let mut seen = BTreeSet::new();
    for round in 1..=3_u32 {
        // With a clock that stands still, only the store tells the starts apart.
        let mut service = start(&mut store, &config(), &registry, &master(), TIMING, 0).unwrap();
        assert_eq!(
            service.handle_frame(Link(1), &mut encode(1, &summary(1)), 0),
            Err(Dropped::Version),
            "plain frame from a sealed device"
        );
        for message in [hello(), summary(1), summary(1)] {
            let mut frame = [0; 256];
            let length = device.encode(&message, &mut frame).unwrap();
            service.handle_frame(Link(1), &mut frame[..length], 0).unwrap();
            if let Some(batch) = service.take_batch() {
                store.append(&batch.to_bytes()).unwrap();
                service.mark_committed(batch);
            }
        }
        let mut answers = Vec::new();
        while let Some(mut outgoing) = service.poll() {
            assert!(seen.insert(outgoing.frame[20..32].to_vec()), "repeated nonce");
            answers.push(describe(&device, &mut outgoing.frame));
        }
        assert_eq!(answers, ["model 1", "ack 1", "ack 1"], "round {round}");
    }
}
