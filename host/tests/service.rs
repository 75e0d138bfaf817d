//! The service's state machine: what it promises to devices, whatever comes in and whenever it stops.

use std::collections::{BTreeMap, BTreeSet};

use fedbandit::config::{AggregatorName, RewardKind, RunConfig};
use fedbandit::service::MasterKey;
use fedbandit::service::event::Event;
use fedbandit::service::store::{Memory, Store};
use fedbandit::service::{Dropped, Link, StateMachine};
use fedbandit::service::{EnrolledDevice, Registry, StartError, StartOptions, inspect, start};
use fedbandit_core::wire::{Channel, Identity, Message, NackReason, SummaryMessage};

const AGENTS: u32 = 5;
const TIME_LIMIT: u64 = 1_000;

fn registry() -> Registry {
    Registry {
        run: 7,
        dimension: 2,
        devices: (1..=AGENTS)
            .map(|agent| EnrolledDevice { agent, revoked: agent == 5, sealed: false, enrolled_at: None })
            .collect(),
    }
}

fn master() -> MasterKey {
    MasterKey::from_bytes(&[3; 32]).unwrap()
}

fn identity(agent: u32) -> Identity {
    master().identity(7, agent, 2)
}

fn config() -> RunConfig {
    RunConfig { steps: 64, episode_len: Some(8), first_episode: Some(8), ..RunConfig::default() }
}

fn private() -> RunConfig {
    RunConfig { rewards: RewardKind::Bounded, privacy: Some("8,1e-6".parse().unwrap()), ..config() }
}

const TIMING: StartOptions = StartOptions { time_limit: TIME_LIMIT, window: 1, unix_seconds: 0 };

/// A service with its store, and what it sent.
struct Run {
    store: Memory,
    service: StateMachine,
    config: RunConfig,
}

impl Run {
    fn new(config: RunConfig) -> Self {
        Self::on(Memory::default(), config)
    }

    fn on(mut store: Memory, config: RunConfig) -> Self {
        let service = start(&mut store, &config, &registry(), &master(), TIMING, 0).unwrap();
        Self { store, service, config }
    }

    /// As after a crash: only the store is left.
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
        self.commit();
        self.service.tick(now).unwrap();
        self.commit();
    }

    fn say(&mut self, agent: u32, message: &Message<'_>) -> Result<(), Dropped> {
        let mut frame = encode(agent, message);
        self.service.handle_frame(Link(agent.into()), &mut frame)
    }

    /// What was sent, by device and in words.
    fn sent(&mut self) -> Vec<(u64, String)> {
        let mut sent = Vec::new();
        while let Some(outgoing) = self.service.poll() {
            let words = match identity(outgoing.link.0 as u32).decode(&outgoing.frame).unwrap() {
                Message::Model(model) => format!("model {}", model.episode),
                Message::Ack { episode } => format!("ack {episode}"),
                Message::Nack { episode, reason } => format!("nack {episode} {reason:?}"),
                other => panic!("{other:?} is not for devices"),
            };
            sent.push((outgoing.link.0, words));
        }
        sent
    }

    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        self.store.replay(&mut |bytes| events.push(Event::from_bytes(bytes, 2).unwrap())).unwrap();
        events
    }
}

fn encode(agent: u32, message: &Message<'_>) -> Vec<u8> {
    let mut frame = [0; 256];
    let length = identity(agent).encode(message, &mut frame).unwrap();
    frame[..length].to_vec()
}

fn hello() -> Message<'static> {
    Message::Hello { episode: 1, boot: 1 }
}

fn summary(episode: u32) -> Message<'static> {
    summary_of(episode, 2.0)
}

fn summary_of(episode: u32, reward_sum: f32) -> Message<'static> {
    let (gram, feature_sum) = ((&[4.0, 0.0, 4.0]).into(), (&[2.0, 1.0]).into());
    Message::Summary(SummaryMessage { episode, steps: 8, reward_sum, gram, feature_sum })
}

#[test]
fn nothing_is_acknowledged_before_it_is_stored() {
    let mut run = Run::new(config());
    run.commit();
    run.say(1, &summary(1)).unwrap();
    // The same again, before it is stored: one event.
    run.say(1, &summary(1)).unwrap();
    assert_eq!(run.sent(), []);
    run.commit();
    assert_eq!(run.events().len(), 2, "the first release and one summary");
    assert_eq!(run.sent(), [(1, "ack 1".into())]);
    // And again: it is acknowledged again, and counts once.
    run.say(1, &summary(1)).unwrap();
    assert!(run.service.take_batch().is_none());
    assert_eq!(run.sent(), [(1, "ack 1".into())]);
}

/// What comes while others are stored is not taken for stored with them.
#[test]
fn one_batch_is_stored_at_a_time() {
    let mut run = Run::new(config());
    run.commit();
    run.say(1, &summary(1)).unwrap();
    let batch = run.service.take_batch().unwrap();
    run.say(1, &summary(1)).unwrap();
    run.say(2, &summary(1)).unwrap();
    assert!(run.service.take_batch().is_none());
    run.service.tick(TIME_LIMIT).unwrap();
    assert_eq!((run.sent(), run.service.status(0).episode), (vec![], Some(1)), "its deadline waits");
    run.service.mark_committed(batch);
    assert_eq!(run.sent(), [(1, "ack 1".into())]);
    assert_eq!(run.service.take_batch().unwrap().events().len(), 1, "that of 2, and nothing of 1");
}

#[test]
fn no_model_is_sent_before_its_release_is_stored() {
    let mut run = Run::new(config());
    run.say(1, &hello()).unwrap();
    assert_eq!(run.sent(), [], "the first release is not stored yet");
    run.commit();
    assert_eq!(run.sent(), [(1, "model 1".into())]);
    run.service.tick(TIME_LIMIT).unwrap();
    assert_eq!(run.sent(), []);
    run.commit();
    assert_eq!(run.sent(), [(1, "model 2".into())]);
}

#[test]
fn an_episode_ends_at_its_deadline_or_when_all_have_reported() {
    let mut run = Run::new(config());
    run.tick(0);
    for agent in 1..=4 {
        run.say(agent, &summary(1)).unwrap();
    }
    run.tick(TIME_LIMIT - 1);
    assert_eq!(run.service.status(0).episode, Some(1), "a revoked device counts as missing");
    run.tick(TIME_LIMIT);
    assert_eq!((run.service.status(0).episode, run.service.status(0).missing_in_last_episode), (Some(2), Some(1)));
    // The next deadline counts from then.
    run.tick(2 * TIME_LIMIT - 1);
    assert_eq!(run.service.status(0).episode, Some(2));
    // With all of them there, it need not wait.
    let mut all = Run::new(config());
    all.service = {
        let registry = Registry {
            devices: (1..=3)
                .map(|agent| EnrolledDevice { agent, revoked: false, sealed: false, enrolled_at: None })
                .collect(),
            ..registry()
        };
        all.store = Memory::default();
        start(&mut all.store, &config(), &registry, &master(), TIMING, 0).unwrap()
    };
    all.tick(0);
    (1..=3).for_each(|agent| all.say(agent, &summary(1)).unwrap());
    all.tick(1);
    assert_eq!(all.service.status(0).episode, Some(2));
}

#[test]
fn with_privacy_the_clock_alone_ends_an_episode() {
    let registry = Registry {
        devices: (1..=3)
            .map(|agent| EnrolledDevice { agent, revoked: false, sealed: false, enrolled_at: None })
            .collect(),
        ..registry()
    };
    let mut run = Run::new(config());
    run.store = Memory::default();
    run.service = start(&mut run.store, &private(), &registry, &master(), TIMING, 0).unwrap();
    run.tick(0);
    (1..=3).for_each(|agent| run.say(agent, &summary(1)).unwrap());
    run.tick(TIME_LIMIT - 1);
    assert_eq!((run.service.status(0).episode, run.service.status(0).missing), (Some(1), 0));
    run.tick(TIME_LIMIT);
    assert_eq!(run.service.status(0).episode, Some(2));
}

#[test]
fn late_summaries_are_taken_for_a_window() {
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
    let nack = |episode: u32| format!("nack {episode} {:?}", NackReason::WrongEpisode);
    assert_eq!(answers, BTreeMap::from([(1, "ack 2".into()), (2, nack(1)), (3, nack(4))]));
}

#[test]
fn what_is_not_a_devices_is_dropped_and_counted() {
    let mut run = Run::new(config());
    run.commit();
    let mut damaged = encode(1, &hello());
    damaged[20] ^= 1;
    let mut version = encode(1, &hello());
    version[0] = 9;
    let stranger = Identity { agent: 99, ..identity(1) };
    let other_run = Identity { run: 8, ..identity(1) };
    let mut frame = [0; 64];
    let mut of = |identity: &Identity| {
        let length = identity.encode(&hello(), &mut frame).unwrap();
        frame[..length].to_vec()
    };
    let cases = [
        (vec![1; 10], Dropped::Length),
        (damaged, Dropped::Tag),
        (version, Dropped::Version),
        (of(&stranger), Dropped::Unknown),
        (of(&other_run), Dropped::Unknown),
        // Another device's key.
        (of(&Identity { agent: 2, ..identity(1) }), Dropped::Tag),
        (of(&identity(5)), Dropped::Revoked),
        (encode(1, &Message::Ack { episode: 1 }), Dropped::Type),
    ];
    let mut counts: BTreeMap<Dropped, u64> = BTreeMap::new();
    for (mut frame, reason) in cases {
        assert_eq!(run.service.handle_frame(Link(1), &mut frame), Err(reason));
        *counts.entry(reason).or_default() += 1;
    }
    assert_eq!(run.sent(), []);
    assert!(run.service.take_batch().is_none());
    assert_eq!(run.service.status(0).dropped, counts);
    assert_eq!(run.service.status(0).connected, 1, "of these only the ack came with a right tag");
    // Another dimension is a device's honest mistake, and answered.
    let wide = Identity { dimension: 3, ..identity(1) };
    let message = Message::Summary(SummaryMessage {
        episode: 1,
        steps: 1,
        reward_sum: 0.0,
        gram: (&[0.0; 6]).into(),
        feature_sum: (&[0.0; 3]).into(),
    });
    let mut frame = [0; 128];
    let length = wide.encode(&message, &mut frame).unwrap();
    run.service.handle_frame(Link(1), &mut frame[..length]).unwrap();
    assert_eq!(run.sent(), [(1, format!("nack 1 {:?}", NackReason::WrongDimension))]);
}

/// What a link that reaches everybody is told: the models of those who have no link of their own.
#[test]
fn a_link_may_reach_everybody() {
    let mut run = Run::new(config());
    run.commit();
    let broker = Link(100);
    let reached = |run: &mut Run| -> BTreeSet<u32> {
        let sent: Vec<_> =
            std::iter::from_fn(|| run.service.poll()).filter(|outgoing| outgoing.link == broker).collect();
        let of = |frame: &[u8]| (1..=AGENTS).find(|agent| identity(*agent).decode(frame).is_ok()).unwrap();
        sent.iter().map(|outgoing| of(&outgoing.frame)).collect()
    };
    run.say(1, &hello()).unwrap();
    reached(&mut run);
    run.service.add_broker(broker);
    assert_eq!(reached(&mut run), BTreeSet::from([2, 3, 4]), "1 has a link of its own, 5 is revoked");
    // Who speaks over it stays there, also after another link has come and gone.
    run.service.handle_frame(broker, &mut encode(1, &hello())).unwrap();
    run.say(2, &hello()).unwrap();
    reached(&mut run);
    run.tick(TIME_LIMIT);
    assert_eq!(reached(&mut run), BTreeSet::from([1, 3, 4]));
    run.service.remove_link(Link(2));
    run.service.detach(broker, 1);
    assert_eq!(run.service.status(0).connected, 0);
    run.tick(2 * TIME_LIMIT);
    assert_eq!(reached(&mut run), BTreeSet::from([1, 2, 3, 4]));
    run.service.revoke(3);
    run.tick(3 * TIME_LIMIT);
    assert_eq!(reached(&mut run), BTreeSet::from([1, 2, 4]));
    run.service.remove_link(broker);
    run.tick(4 * TIME_LIMIT);
    assert_eq!(reached(&mut run), BTreeSet::new());
}

/// The frames of a device: whatever is wrong with them, no panic.
#[test]
fn hostile_frames_do_no_harm() {
    use proptest::prelude::*;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let values = proptest::collection::vec(proptest::num::f32::ANY, 5);
    let strategy = (0..7_u32, any::<u32>(), values, proptest::collection::vec(any::<u8>(), 0..80));
    let run = std::cell::RefCell::new(Run::new(config()));
    runner
        .run(&strategy, |(agent, episode, values, mut noise)| {
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
            let _ = run.service.handle_frame(Link(agent.into()), &mut noise);
            run.tick(u64::from(agent) * 300);
            run.sent();
            Ok(())
        })
        .unwrap();
    let run = run.into_inner();
    assert!(run.service.status(0).faults.values().sum::<u64>() > 0);
}

/// What devices say of their rewards is shown as a median: a minority cannot move it, nor can nonsense.
#[test]
fn mean_rewards_are_a_median_that_liars_do_not_move() {
    let mut run = Run::new(config());
    run.tick(0);
    let says = |run: &mut Run, episode: u32, sums: [f32; 4]| {
        for (agent, reward_sum) in (1..).zip(sums) {
            run.say(agent, &summary_of(episode, reward_sum)).unwrap();
        }
        run.tick(u64::from(episode) * TIME_LIMIT);
        run.service.status(0).mean_reward
    };
    assert_eq!(
        says(&mut run, 1, [2.0, 4.0, 6.0, f32::MAX]),
        Some(0.5),
        "of 8 steps each; the lower one of two in the middle"
    );
    assert_eq!(says(&mut run, 2, [f32::NAN, 4.0, f32::NEG_INFINITY, f32::INFINITY]), Some(0.5));
    assert_eq!(says(&mut run, 3, [f32::NAN; 4]), None);
    // A late one counts for no episode's mean.
    run.tick(4 * TIME_LIMIT);
    run.say(1, &summary_of(4, 8.0)).unwrap();
    run.say(2, &summary_of(5, 4.0)).unwrap();
    run.tick(5 * TIME_LIMIT);
    let status = run.service.status(0);
    let shown: Vec<_> = status.history.iter().map(|quality| (quality.episode, quality.mean_reward)).collect();
    assert_eq!(shown, [(1, Some(0.5)), (2, Some(0.5)), (3, None), (4, None), (5, Some(0.5))]);
    assert_eq!((status.received.accepted, status.received.late), (14, 1));
    // The models know nothing of it.
    let mut silent = Run::new(config());
    silent.tick(0);
    says(&mut silent, 1, [0.0; 4]);
    let models = |run: &Run| -> Vec<Event> {
        run.events().into_iter().filter(|event| matches!(event, Event::Model(_))).take(2).collect()
    };
    assert_eq!(models(&run), models(&silent));
    // A restart remembers.
    let history = run.service.status(0).history;
    assert_eq!(run.restarted().service.status(0).history, history);
}

/// Rewards have no noise on them, so nothing that a private run shows may depend on them.
#[test]
fn with_privacy_nothing_of_rewards_is_shown() {
    let mut key = Memory::default();
    start(&mut key, &private(), &registry(), &master(), TIMING, 0).unwrap();
    let shown = |reward_sum: f32| {
        let mut run = Run::on(key.clone(), private());
        run.tick(0);
        (1..=4).for_each(|agent| run.say(agent, &summary_of(1, reward_sum)).unwrap());
        run.tick(TIME_LIMIT);
        serde_json::to_string(&run.service.status(0)).unwrap()
    };
    let (low, high) = (shown(-3.0), shown(5.0));
    assert_eq!(low, high);
    assert!(low.contains("\"mean_reward\":null"), "{low}");
}

/// Cut off after every event and started again, a run is what it would have been: the same models, the same answers.
#[test]
fn a_restart_at_any_time_changes_nothing() {
    for config in [config(), private(), RunConfig { aggregator: AggregatorName::MedianOfMeans, ..config() }] {
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
                        // What is not acknowledged comes again, and what is, too.
                        run.say(agent, &message).unwrap();
                        assert!(run.service.take_batch().is_none(), "it is there");
                    }
                }
                // The clock of a restarted service begins anew.
                run.tick(if restarts { TIME_LIMIT } else { u64::from(episode) * TIME_LIMIT });
                if restarts {
                    run = run.restarted();
                    run.commit();
                }
            }
            run
        };
        let key = {
            // Private runs have a key of their own; give both the same.
            let mut store = Memory::default();
            start(&mut store, &config, &registry(), &master(), TIMING, 0).unwrap();
            store
        };
        let straight = play(Run::on(key.clone(), config), false);
        let broken = play(Run::on(key, config), true);
        assert_eq!(straight.events(), broken.events());
        assert_eq!(straight.events().last(), Some(&Event::End));
        assert_eq!(inspect(&broken.store, &registry()).unwrap().episode, None);
        // Nothing happens any more: what is stored is acknowledged again, and what is new is refused.
        let mut over = broken.restarted();
        over.say(1, &summary(8)).unwrap();
        over.say(4, &summary(9)).unwrap();
        over.tick(10 * TIME_LIMIT);
        let answers = vec![(1, "ack 8".into()), (4, "nack 9 WrongEpisode".into())];
        assert_eq!((over.sent(), over.events()), (answers, straight.events()));
        let broken = over;
        let releases = straight.events().into_iter().filter(|event| matches!(event, Event::Model(_))).count();
        assert_eq!(releases, 8);
        assert_eq!(straight.service.controller().counts().faults, broken.service.controller().counts().faults);
    }
}

#[test]
fn a_store_of_another_run_is_refused() {
    let mut store = Memory::default();
    start(&mut store, &config(), &registry(), &master(), TIMING, 0).unwrap();
    let mut refuses = |config: RunConfig, registry: Registry, timing: StartOptions, sentence: &str| {
        let error = start(&mut store, &config, &registry, &master(), timing, 0).err().unwrap();
        assert!(matches!(error, StartError::DifferentRun(_)), "{error}");
        assert!(error.to_string().contains(sentence), "{error} lacks {sentence}");
    };
    let longer = RunConfig { episode_len: Some(16), ..config() };
    refuses(longer, registry(), TIMING, "episode-len is 8 there, not 16");
    refuses(private(), registry(), TIMING, "privacy is null there, not \"8,0.000001\"");
    refuses(config(), Registry { dimension: 3, ..registry() }, TIMING, "dim is 2 there, not 3");
    refuses(config(), Registry { run: 8, ..registry() }, TIMING, "run is 7 there, not 8");
    refuses(config(), registry(), StartOptions { window: 2, ..TIMING }, "window is 1 there, not 2");
    let mut others = registry();
    others.devices[0].agent = 77;
    refuses(config(), others, TIMING, "other devices are enrolled");
    let mut sealed = registry();
    sealed.devices[0].sealed = true;
    refuses(config(), sealed, TIMING, "other devices have sealed frames");
    let mut fewer = registry();
    fewer.devices.pop();
    refuses(config(), fewer, TIMING, "agents is 5 there, not 4");
    // A revocation is no other run.
    let mut revoked = registry();
    revoked.devices[0].revoked = true;
    start(&mut store, &config(), &revoked, &master(), TIMING, 0).unwrap();
    // Damage is told apart, and so is another version.
    let terms = store.value("terms").unwrap().unwrap();
    let mut refuses = |terms: &str, sentence: &str| {
        store.set_value("terms", terms.as_bytes()).unwrap();
        let error = start(&mut store, &config(), &registry(), &master(), TIMING, 0).err().unwrap();
        assert!(error.to_string().starts_with(sentence), "{error}");
    };
    refuses("{", "the store's terms are damaged: ");
    refuses("{\"schema\":1}", "the store has schema 1, not ");
    store.set_value("terms", &terms).unwrap();
    store.append(&[vec![1, 2, 3]]).unwrap();
    let error = start(&mut store, &config(), &registry(), &master(), TIMING, 0).err().unwrap();
    assert_eq!(error.to_string(), "event 0 of the store is damaged: restore the last backup");
}

/// What cannot start leaves no terms behind, which the corrected configuration would not agree with.
#[test]
fn a_start_that_failed_can_be_corrected() {
    let krum = RunConfig { aggregator: AggregatorName::Krum, design_corruption: Some(0.45), ..config() };
    for (config, window, sentence) in [
        (config(), 64, "window: summaries cannot be taken for 64 episodes"),
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

/// A plain store and a private one as version 0.1.0 left them, each of them in episode 2 with two summaries of episode 1.
const STORED_BY_0_1_0: &str = include_str!("stored/0.1.0.txt");

/// Every later version goes on with them, and writes the same bytes for the same terms and events.
#[test]
fn stores_of_earlier_versions_are_read() {
    let digits = |text: &str| -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    };
    for (stored, config) in STORED_BY_0_1_0.split("\n\n").zip([config(), private()]) {
        let mut store = Memory::default();
        for line in stored.lines() {
            match line.split_once(' ').unwrap() {
                ("terms", text) => {
                    let mut new = Memory::default();
                    start(&mut new, &config, &registry(), &master(), TIMING, 0).unwrap();
                    assert_eq!(String::from_utf8(new.value("terms").unwrap().unwrap()).unwrap(), text);
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
        let status = inspect(&store, &registry()).unwrap();
        assert_eq!((status.episode, status.received.accepted), (Some(2), 2));
        let mut run = Run::on(store, config);
        run.say(1, &summary(1)).unwrap();
        run.say(1, &summary(2)).unwrap();
        run.tick(TIME_LIMIT);
        assert_eq!(run.sent().iter().map(|(_, words)| &**words).collect::<Vec<_>>(), ["ack 1", "ack 2", "model 3"]);
    }
}

/// What the store says holds, whatever was done to the registry since.
#[test]
fn a_store_is_inspected_with_its_own_dimension() {
    let mut run = Run::new(config());
    run.tick(0);
    run.say(1, &summary(1)).unwrap();
    run.tick(TIME_LIMIT);
    for dimension in [1, 2, 64] {
        let status = inspect(&run.store, &Registry { dimension, ..registry() }).unwrap();
        assert_eq!((status.episode, status.received.accepted), (Some(2), 1), "{dimension}");
    }
}

/// A key tells nothing about others, and all follow from the master. The bytes are those of a separate calculation.
#[test]
fn keys_follow_from_the_master() {
    let keys: Vec<[u8; 32]> = (1..4).map(|agent| identity(agent).key).collect();
    assert!(keys[0] != keys[1] && keys[1] != keys[2]);
    assert_ne!(identity(1).key, master().identity(8, 1, 2).key);
    let hex: String = keys[0].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, KEY_OF_AGENT_1);
}

const KEY_OF_AGENT_1: &str = "f5b54985732debe3d2215098d65616c521842a070491f6f9e7e438b62d560075";

/// A start that could repeat the nonces of another does not happen.
#[test]
fn starts_without_a_number_of_their_own_are_refused() {
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

/// A sealed device is heard in sealed frames only, and no nonce of the controller's comes twice, restarted or not.
#[test]
fn sealed_devices_hear_and_speak_sealed_frames() {
    let registry = Registry {
        devices: vec![EnrolledDevice { agent: 1, revoked: false, sealed: true, enrolled_at: None }],
        ..registry()
    };
    let mut device = Channel::sealed_device(identity(1), 1);
    let mut store = Memory::default();
    let mut seen = BTreeSet::new();
    for round in 1..=3_u32 {
        // The clock stands still: the store alone must tell the starts apart.
        let mut service = start(&mut store, &config(), &registry, &master(), TIMING, 0).unwrap();
        assert_eq!(
            service.handle_frame(Link(1), &mut encode(1, &summary(1))),
            Err(Dropped::Version),
            "no way back to plain"
        );
        for message in [hello(), summary(1), summary(1)] {
            let mut frame = [0; 256];
            let length = device.encode(&message, &mut frame).unwrap();
            service.handle_frame(Link(1), &mut frame[..length]).unwrap();
            if let Some(batch) = service.take_batch() {
                store.append(&batch.to_bytes()).unwrap();
                service.mark_committed(batch);
            }
        }
        let mut answers = Vec::new();
        while let Some(mut outgoing) = service.poll() {
            assert!(seen.insert(outgoing.frame[16..28].to_vec()), "a nonce comes twice");
            let answer = match device.decode(&mut outgoing.frame).unwrap() {
                Message::Model(model) => format!("model {}", model.episode),
                Message::Ack { episode } => format!("ack {episode}"),
                other => panic!("{other:?}"),
            };
            answers.push(answer);
        }
        assert_eq!(answers, ["model 1", "ack 1", "ack 1"], "round {round}");
    }
}
