//! Runs that continue each other, through the state machine of the service.

use fedbandit::config::{AggregatorName, RewardKind, RunConfig, ScheduleName};
use fedbandit::privacy::calibration::{Budget, delta};
use fedbandit::service::event::{Event, ModelEvent};
use fedbandit::service::store::{Memory, Store};
use fedbandit::service::worker::commit_and_tick;
use fedbandit::service::{
    Chain, Continuation, Link, MasterKey, Registry, StartError, StartOptions, StateMachine, Status, inspect, start,
};
use fedbandit_core::session::{self, Session};
use fedbandit_core::wire::{Channel, Message, SummaryMessage, max_frame_len};
use fedbandit_core::{Agent, Prior, Rewards};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

const RUN: u32 = 7;
const TIME_LIMIT: u64 = 1_000;
const TIMING: StartOptions = StartOptions::new(TIME_LIMIT, 1, 0);
const THETA: [f32; 2] = [0.6, -0.3];

fn master() -> MasterKey {
    MasterKey::from_bytes(&[3; 32]).unwrap()
}

fn registry() -> Registry {
    Registry::new(1, RUN, 2).with_devices(1..=6)
}

fn config() -> RunConfig {
    RunConfig {
        steps: 8 * 64,
        episode_len: Some(64),
        first_episode: Some(64),
        first_episodes: Some(1),
        ..RunConfig::default()
    }
}

fn private() -> RunConfig {
    let aggregator = AggregatorName::GeometricMedian;
    RunConfig { aggregator, rewards: RewardKind::Bounded, privacy: Some("8,1e-6".parse().unwrap()), ..config() }
}

/// A run with its store. Its devices know a true parameter.
struct Run {
    registry: Registry,
    config: RunConfig,
    store: Memory,
    service: StateMachine,
    now: u64,
}

impl Run {
    fn new(registry: Registry, config: RunConfig) -> Self {
        Self::on(Memory::default(), registry, config)
    }

    fn on(mut store: Memory, registry: Registry, config: RunConfig) -> Self {
        let service = start(&mut store, &config, &registry, &master(), TIMING, 0).unwrap();
        let mut run = Self { registry, config, store, service, now: 0 };
        run.tick(0);
        run
    }

    fn tick(&mut self, milliseconds: u64) {
        self.now += milliseconds;
        commit_and_tick(&mut self.service, &mut self.store, self.now).unwrap();
        while self.service.poll().is_some() {}
    }

    /// Runs one episode, in which all devices observe ⟨x, θ⟩ for random actions.
    fn episode(&mut self, theta: [f32; 2]) {
        let status = self.service.status(self.now);
        let (episode, length) = (status.episode.unwrap(), 64);
        for device in self.registry.devices.clone() {
            let mut rng = Pcg64::seed_from_u64(u64::from(episode) << 32 | u64::from(device.agent));
            let mut uniform = || (rng.next_u32() >> 8) as f32 / 16_777_216.0 - 0.5;
            let (mut gram, mut feature_sum) = ([0.0; 3], [0.0; 2]);
            for _ in 0..length {
                let x = [uniform(), uniform()];
                let reward = x[0] * theta[0] + x[1] * theta[1];
                for (sum, value) in gram.iter_mut().zip([x[0] * x[0], x[0] * x[1], x[1] * x[1]]) {
                    *sum += value;
                }
                feature_sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x * reward);
            }
            let (gram, feature_sum) = ((&gram).into(), (&feature_sum).into());
            let message = SummaryMessage { episode, steps: length, reward_sum: 0.0, gram, feature_sum };
            self.say(device.agent, &Message::Summary(message));
        }
        self.tick(TIME_LIMIT);
    }

    fn say(&mut self, agent: u32, message: &Message<'_>) {
        let device = self.registry.devices.iter().find(|device| device.agent == agent).unwrap();
        let mut channel = Channel::device(self.registry.identity(device, &master()), 1);
        channel.enter_run(self.registry.run);
        let mut frame = [0; 256];
        let length = channel.encode(message, &mut frame).unwrap();
        self.service.handle_frame(Link(agent.into()), &mut frame[..length], self.now).unwrap();
    }

    fn models(&self) -> Vec<ModelEvent> {
        let mut models = Vec::new();
        let each = &mut |_, bytes: &[u8]| match Event::from_bytes(bytes, 2).unwrap() {
            Event::Model(model) => models.push(model),
            Event::Summary(_) | Event::End | Event::Enrollment(_) => {}
        };
        self.store.replay(0, each).unwrap();
        models
    }

    fn last_model(&self) -> ModelEvent {
        self.models().pop().unwrap()
    }

    /// Returns the registry of the next run.
    fn next(&self, discount: f64) -> Registry {
        self.registry.next_run(Continuation::of(&self.store, self.registry.devices.len(), discount).unwrap()).unwrap()
    }

    fn status(&self) -> Status {
        self.service.status(self.now)
    }

    fn chain(&self) -> Chain {
        self.status().chain.unwrap()
    }
}

/// A run after some episodes.
fn old_run() -> Run {
    let mut run = Run::new(registry(), config());
    (0..5).for_each(|_| run.episode(THETA));
    run
}

/// θ, Λ and β of a model.
fn parameters(model: ModelEvent) -> (Vec<f32>, Vec<f32>, f32) {
    (model.theta, model.design, model.beta)
}

#[test]
fn first_model_of_a_continued_run_is_the_last_one_of_the_old_run() {
    let old = old_run();
    for (aggregator, private) in [
        (AggregatorName::CappedFilter, false),
        (AggregatorName::WhitenedFilter, false),
        (AggregatorName::GeometricMedian, false),
        (AggregatorName::CoordinateMedian, false),
        (AggregatorName::TrimmedMean, false),
        (AggregatorName::Krum, false),
        (AggregatorName::Mean, false),
        (AggregatorName::CappedFilter, true),
        (AggregatorName::WhitenedFilter, true),
        (AggregatorName::GeometricMedian, true),
        (AggregatorName::MedianOfMeans, true),
    ] {
        let base = if private { self::private() } else { config() };
        let terms = RunConfig { aggregator, steps: 32 * 20, episode_len: Some(32), first_episode: Some(32), ..base };
        // More devices, other lengths of episodes, other rules.
        let registry = old.next(1.0).with_devices(7..=13);
        assert_eq!((registry.run, registry.devices.len()), (RUN + 1, 13));
        let new = Run::new(registry.clone(), terms);
        let first = new.last_model();
        assert_eq!((first.episode, first.episode_len), (1, 32));
        assert_eq!(parameters(first), parameters(old.last_model()), "{aggregator}");
        assert_eq!((new.chain().weight, new.chain().contradicted), (1.0, 0));
        // The prior and not the rule is the reason.
        let fresh = Run::new(Registry { continues: None, ..registry }, terms);
        assert_ne!(parameters(fresh.last_model()), parameters(old.last_model()));
        assert_eq!(fresh.status().chain, None);
    }
    // The widths of the theorems are huge.
    let theorem =
        RunConfig { aggregator: AggregatorName::GeometricMedian, schedule: ScheduleName::Theorem, ..config() };
    let theorem = RunConfig { first_episode: None, first_episodes: None, ..theorem };
    assert_eq!(parameters(Run::new(old.next(1.0), theorem).last_model()), parameters(old.last_model()));
}

#[test]
fn discount_widens_the_first_model_only() {
    let old = old_run();
    let (theta, design, beta) = parameters(old.last_model());
    let new = Run::new(old.next(0.25), config());
    assert_eq!(parameters(new.last_model()), (theta, design, 2.0 * beta));
    assert_eq!(new.chain().discount, 0.25);
}

#[test]
fn finished_run_is_continued_from_its_last_model() {
    let mut old = old_run();
    (0..3).for_each(|_| old.episode(THETA));
    assert!(old.status().finished);
    let new = Run::new(old.next(1.0), config());
    assert_eq!(parameters(new.last_model()), parameters(old.last_model()));
    assert_eq!(new.chain().runs[0].episode, 8);
}

#[test]
fn run_without_a_model_cannot_be_continued() {
    let mut store = Memory::default();
    assert!(matches!(Continuation::of(&store, 5, 1.0), Err(StartError::NotBegun)));
    // The terms are stored before the first model.
    start(&mut store, &config(), &registry(), &master(), TIMING, 0).unwrap();
    assert!(matches!(Continuation::of(&store, 5, 1.0), Err(StartError::NotBegun)));
    assert!(matches!(Continuation::of(&old_run().store, 5, 1.5), Err(StartError::Prior(_))));
}

/// The models of a continued run follow from its own messages and the prior, so a restart computes the same.
#[test]
fn continued_run_is_resumed_with_the_same_models() {
    let registry = old_run().next(0.5);
    let run = |restarted: bool| {
        let mut run = Run::new(registry.clone(), config());
        for _ in 0..8 {
            run.episode(THETA);
            if restarted {
                let status = run.status();
                run = Run::on(run.store, run.registry, run.config);
                assert_eq!((run.chain(), run.status().episode), (status.chain.unwrap(), status.episode));
            }
        }
        run
    };
    let [uninterrupted, restarted] = [false, true].map(run);
    assert_eq!(uninterrupted.models(), restarted.models());
    assert_eq!(inspect(&restarted.store, &registry).unwrap().status().chain, Some(uninterrupted.chain()));
    let Run { mut store, registry, config, .. } = restarted;
    for other in [Registry { continues: None, ..registry.clone() }, old_run().next(0.6)] {
        let error = start(&mut store, &config, &other, &master(), TIMING, 0).err().unwrap().to_string();
        assert!(error.contains("the run that this one continues differs"), "{error}");
    }
}

#[test]
fn prior_of_another_dimension_is_refused() {
    let registry = Registry { dimension: 3, ..old_run().next(1.0) };
    let error = start(&mut Memory::default(), &config(), &registry, &master(), TIMING, 0).err().unwrap().to_string();
    assert!(error.contains("the run that this one continues has dimension 2, not 3"), "{error}");
    // A corrupt store is an error too.
    let mut store = Run::new(old_run().next(1.0), config()).store;
    let terms = String::from_utf8(store.value("terms").unwrap().unwrap()).unwrap();
    for (old, new, sentence) in [
        ("\"dim\":2", "\"dim\":3", "has dimension 2, not 3"),
        ("\"theta\":[", "\"theta\":[0.0,", "the store's terms are corrupt: theta has 3 values"),
    ] {
        assert!(terms.contains(old), "{terms}");
        store.set_value("terms", terms.replace(old, new).as_bytes()).unwrap();
        let error = inspect(&store, &self::registry()).err().unwrap().to_string();
        assert!(error.contains(sentence), "{error}");
    }
}

/// After θ* has moved far, the continued run is soon the same as one without a prior.
#[test]
fn contradicted_prior_is_ignored_and_counted() {
    let opposite = THETA.map(|value| -value);
    let registry = old_run().next(1.0);
    let mut fresh = Run::new(Registry { continues: None, ..registry.clone() }, config());
    let mut continued = Run::new(registry, config());
    for _ in 0..7 {
        fresh.episode(opposite);
        continued.episode(opposite);
    }
    let differing = fresh.models().into_iter().zip(continued.models()).filter(|(a, b)| a != b).count();
    let Chain { contradicted, weight, .. } = continued.chain();
    assert_eq!((contradicted as usize, weight), (8 - differing, 0.0));
    assert!((1..4).contains(&differing), "{differing} models used the prior");
    // A correct prior is never contradicted.
    let mut correct = Run::new(old_run().next(1.0), config());
    (0..7).for_each(|_| correct.episode(THETA));
    assert_eq!(correct.chain().contradicted, 0);
}

#[test]
fn chain_lists_its_runs_and_adds_up_their_privacy() {
    let mut run = old_run();
    let mut budgets: Vec<Budget> = Vec::new();
    for (config, agents) in [(private(), 6), (config(), 9), (private(), 9)] {
        let registry = run.next(1.0);
        let last = registry.devices.len() as u32;
        run = Run::new(registry.with_devices(last + 1..=agents), config);
        run.episode(THETA);
        budgets.extend(config.privacy.map(|privacy| privacy.0));
        let privacy = run.chain().privacy.unwrap();
        let rho: f64 = budgets.iter().map(Budget::rho).sum();
        assert_eq!((privacy.runs, privacy.nu), (budgets.len(), 1e-6));
        assert!((privacy.rho / rho - 1.0).abs() < 1e-12);
        assert!(delta(rho, privacy.mu * 1.000_001) <= 1e-6 && delta(rho, privacy.mu * 0.999_999) > 1e-6);
        // The guarantee of a message is that of its run.
        assert_eq!(run.status().privacy.map(|own| own.rho), config.privacy.map(|privacy| privacy.0.rho()));
    }
    let runs = run.chain().runs;
    let facts: Vec<_> =
        runs.iter().map(|run| (run.run, run.agents, run.episode, run.episodes, run.privacy.is_some())).collect();
    assert_eq!(facts, [(7, 6, 6, 8, false), (8, 6, 2, 8, true), (9, 9, 2, 8, false)]);
    assert_eq!(Run::new(old_run().next(1.0), config()).chain().privacy, None);
}

/// A device that runs while the controller changes: no new identity, no restart, other keys.
#[test]
fn running_device_moves_to_the_continued_run_and_starts_from_the_old_model() {
    const FRAME: usize = max_frame_len(2);
    let mut old = old_run();
    let identity = old.registry.identity(&old.registry.devices[0], &master());
    let mut session = Session::<2, FRAME, 4>::new(identity, 1).unwrap();
    let mut agent = Agent::<2>::new(&Prior::new(1.0, 1.0, 64, Rewards::Unbounded)).unwrap();
    let mut rng = Pcg64::seed_from_u64(1);
    // Runs the device against a service until it has a model of that run.
    let mut follow = |run: &mut Run, start: u64| {
        session.link_up(start);
        if start > 0 {
            (0..agent.episode_len()).for_each(|_| agent.record(&[0.5, 0.5], 0.1).unwrap());
            session.submit(&agent.finish(), start);
        }
        let mut taken = Vec::new();
        for now in (start..start + 200_000).step_by(10) {
            if let Some(frame) = session.poll(now, &mut rng) {
                taken.push(u32::from_le_bytes(frame[12..16].try_into().unwrap()));
                run.service.handle_frame(Link(1), &mut frame.to_vec(), run.now).unwrap();
            }
            while let Some(mut outgoing) = run.service.poll() {
                if let Ok(session::Event::Model { .. }) = session.handle(&mut outgoing.frame, &mut agent, now) {
                    return (taken, *agent.theta(), session.run());
                }
            }
        }
        panic!("no model")
    };
    let (runs, theta, _) = follow(&mut old, 0);
    assert_eq!(runs, [0, RUN]);
    let mut new = Run::new(old.next(1.0), config());
    let (runs, continued, run) = follow(&mut new, 300_000);
    // A summary of the old run, which is refused, and a hello that asks for the run; then in the new run.
    assert_eq!((runs, run), (vec![RUN, RUN, RUN + 1], RUN + 1));
    assert_eq!(continued, theta);
}
