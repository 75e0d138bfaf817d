//! Device sessions over an unreliable link, with a virtual clock, a seeded network and a controller that stores summaries in a list.
#![cfg(feature = "wire")]

use std::cell::Cell;

use fedbandit_core::session::{Event, Session};
use fedbandit_core::wire::{Channel, DecodeError, Fate, Identity, IdentityError, Message, max_frame_len};
use fedbandit_core::{Agent, Model, ModelError, Prior, Rewards};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};

const D: usize = 2;
const FRAME: usize = max_frame_len(D);
const EPISODE_LEN: u32 = 4;

/// The controller's run.
const RUN: u32 = 5;

/// Time limit of an episode, in milliseconds.
const DEADLINE: u64 = 60_000;

type Link = Session<D, FRAME, 4>;

fn identity() -> Identity {
    Identity::new(1, 2, D as u8, [3; 32])
}

/// A session that knows its run.
fn link(boot: u32) -> Link {
    let mut link = Link::new(identity(), boot).unwrap();
    link.resume_run(RUN);
    link
}

fn agent() -> Agent<D> {
    Agent::new(&Prior::new(1.0, 1.0, EPISODE_LEN, Rewards::Unbounded)).unwrap()
}

/// Encodes a message with one end's channel, in a run.
fn encode_with(mut channel: Channel, run: u32, message: &Message<'_>) -> Vec<u8> {
    channel.enter_run(run);
    let mut frame = vec![0; FRAME];
    let length = channel.encode(message, &mut frame).unwrap();
    frame.truncate(length);
    frame
}

fn from_controller(message: &Message<'_>) -> Vec<u8> {
    encode_with(Channel::controller(identity(), 0, RUN), RUN, message)
}

fn from_device(message: &Message<'_>) -> Vec<u8> {
    encode_with(Channel::device(identity(), 0), RUN, message)
}

fn model_in(run: u32, episode: u32) -> Vec<u8> {
    let model = Model::new(episode, EPISODE_LEN, 1.0, Rewards::Unbounded, &[0.25, 0.5], &[2.0, 0.0, 2.0]);
    encode_with(Channel::controller(identity(), 0, RUN), run, &Message::Model(model))
}

fn model(episode: u32) -> Vec<u8> {
    model_in(RUN, episode)
}

fn ack(episode: u32) -> Vec<u8> {
    from_controller(&Message::Ack { episode, fate: Fate::Counts, wait: 0 })
}

/// Returns the frame that is due.
fn poll(link: &mut Link, now: u64, rng: &mut Pcg32) -> Option<Vec<u8>> {
    link.poll(now, rng).map(<[u8]>::to_vec)
}

/// Returns the challenge of a hello in a run.
fn challenge(run: u32, hello: &[u8]) -> u32 {
    let mut controller = Channel::controller(identity(), 0, RUN);
    controller.enter_run(run);
    match controller.decode(&mut hello.to_vec()) {
        Ok(Message::Hello { challenge, .. }) => challenge,
        other => panic!("{other:?}"),
    }
}

/// A device, a link that loses, repeats and corrupts frames, and a controller that keeps every summary it acknowledges.
struct Simulation {
    rng: Pcg32,
    now: u64,
    agent: Agent<D>,
    link: Link,
    /// Summaries stored by the controller, with their episodes.
    stored: Vec<(u32, Vec<u8>)>,
    /// Probability of a link fault per frame, in 256ths.
    fault_rate: u32,
}

impl Simulation {
    /// Transmits a frame: zero, one or two copies arrive, possibly corrupt.
    fn transmit(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        if self.rng.next_u32() % 256 >= self.fault_rate {
            return vec![frame];
        }
        match self.rng.next_u32() % 3 {
            0 => vec![],
            1 => vec![frame.clone(), frame],
            _ => {
                let mut corrupt = frame;
                let at = self.rng.next_u32() as usize % corrupt.len();
                corrupt[at] ^= 1 << (self.rng.next_u32() % 8);
                vec![corrupt]
            }
        }
    }

    /// Processes a frame at the controller, whose episodes close every [`DEADLINE`], and returns its replies.
    fn reply(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        let (episode, wait) = ((self.now / DEADLINE) as u32 + 1, (DEADLINE - self.now % DEADLINE) as u32);
        let mut controller = Channel::controller(identity(), 0, RUN);
        for run in [RUN, 0] {
            controller.enter_run(run);
            match controller.decode(&mut frame.to_vec()) {
                Ok(Message::Hello { challenge, .. }) if run == 0 => {
                    let next = Message::NextRun { challenge, run: RUN };
                    return vec![encode_with(Channel::controller(identity(), 0, RUN), 0, &next)];
                }
                Ok(Message::Hello { model: newest, .. }) if newest < episode => return vec![model(episode)],
                Ok(Message::Hello { challenge, .. }) => {
                    return vec![from_controller(&Message::Wait { challenge, wait })];
                }
                Ok(Message::Summary(summary)) => {
                    let episode = summary.episode;
                    match self.stored.iter().find(|(stored, _)| *stored == episode) {
                        Some((_, first)) => assert_eq!(first, frame, "a repeated summary has different bytes"),
                        None => self.stored.push((episode, frame.to_vec())),
                    }
                    return vec![from_controller(&Message::Ack { episode, fate: Fate::Counts, wait })];
                }
                _ => {}
            }
        }
        vec![]
    }

    /// Advances the simulation by ten milliseconds.
    fn step(&mut self) {
        self.now += 10;
        if let Some(frame) = poll(&mut self.link, self.now, &mut self.rng) {
            for arrived in self.transmit(frame) {
                for answer in self.reply(&arrived) {
                    for mut frame in self.transmit(answer) {
                        _ = self.link.handle(&mut frame, &mut self.agent, self.now);
                    }
                }
            }
        }
        if !self.link.wants_model() {
            let x = [0.5, (self.rng.next_u32() % 100) as f32 / 200.0];
            self.agent.record(&x, 1.0).unwrap();
            if self.agent.steps() == EPISODE_LEN {
                self.link.submit(&self.agent.finish(), self.now);
            }
        }
    }
}

#[test]
fn every_summary_arrives_once_over_an_unreliable_link() {
    for seed in 0..60 {
        let rng = Pcg32::seed_from_u64(seed);
        let link = Link::new(identity(), 1).unwrap();
        let mut simulation = Simulation { rng, now: 0, agent: agent(), link, stored: Vec::new(), fault_rate: 200 };
        // Two hours of faults, then 200 s without: more than three times the longest retry delay.
        while simulation.now < 7_200_000 {
            simulation.step();
        }
        simulation.fault_rate = 0;
        let episode = simulation.agent.episode();
        while simulation.now < 7_400_000 {
            simulation.step();
        }
        assert!(simulation.agent.episode() > episode, "no progress on a reliable link, seed {seed}");
        let episodes: Vec<u32> = simulation.stored.iter().map(|(episode, _)| *episode).collect();
        assert!(episodes.is_sorted(), "summaries must arrive in order, seed {seed}");
        assert!(episodes.len() > 40 && simulation.link.dropped() == 0, "{} episodes, seed {seed}", episodes.len());
    }
}

/// Retry delays double from one second to about a minute, each shortened at random by up to a half.
#[test]
fn retries_back_off_with_jitter() {
    let (mut link, mut rng) = (link(1), Pcg32::seed_from_u64(1));
    let sent: Vec<u64> = (0..1_000_000).filter(|now| link.poll(*now, &mut rng).is_some()).collect();
    let delays: Vec<u64> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (attempt, delay) in delays.iter().enumerate() {
        let longest = 1_000 << attempt.min(6);
        assert!((longest / 2..=longest).contains(delay), "{delays:?}");
    }
    assert!(delays.len() > 15);
    let distinct: std::collections::BTreeSet<_> = delays[6..].iter().collect();
    assert!(distinct.len() > 5, "no jitter: {delays:?}");
}

/// Input that a session can get, beside time.
#[derive(Clone, Debug)]
enum Input {
    Model(u32),
    Ack {
        episode: u32,
        wait: u32,
    },
    /// Answers the last hello.
    Wait(u32),
    NextRun(u32),
    Submit,
    LinkUp,
    Heartbeats(u32),
}

fn inputs() -> impl Strategy<Value = Vec<(u64, Input)>> {
    let wait = prop_oneof![Just(0_u32), 1..100_000_u32, any::<u32>()];
    let input = prop_oneof![
        (1..8_u32).prop_map(Input::Model),
        (1..8_u32, wait.clone()).prop_map(|(episode, wait)| Input::Ack { episode, wait }),
        wait.prop_map(Input::Wait),
        (0..4_u32).prop_map(Input::NextRun),
        Just(Input::Submit),
        Just(Input::LinkUp),
        (1..60_000_u32).prop_map(Input::Heartbeats),
    ];
    proptest::collection::vec((0..30_000_u64, input), 0..12)
}

/// A session and its agent under a sequence of inputs. Returns all frames with their times.
fn frames_sent(inputs: &[(u64, Input)], mut calls: impl FnMut(&Link, u64) -> u64) -> Vec<(u64, Vec<u8>)> {
    let (mut link, mut agent, mut rng) = (link(1), agent(), Pcg32::seed_from_u64(7));
    let (mut now, mut sent, mut last_hello) = (0, Vec::new(), None);
    let end = (100_000, Input::LinkUp);
    for (pause, input) in inputs.iter().chain([&end]) {
        let until = now + pause;
        while now < until {
            let run = link.run();
            if let Some(frame) = poll(&mut link, now, &mut rng) {
                if frame[1] == 0x01 {
                    last_hello = Some(challenge(run, &frame));
                }
                sent.push((now, frame));
            }
            now = calls(&link, now).min(until);
        }
        let run = link.run();
        let answer = |message: &Message<'_>| encode_with(Channel::controller(identity(), 0, RUN), run, message);
        let mut frame = match *input {
            Input::Model(episode) => model_in(run, episode),
            Input::Ack { episode, wait } => answer(&Message::Ack { episode, fate: Fate::Counts, wait }),
            Input::Wait(wait) => answer(&Message::Wait { challenge: last_hello.unwrap_or(0), wait }),
            Input::NextRun(run) => answer(&Message::NextRun { challenge: last_hello.unwrap_or(0), run }),
            Input::Submit => {
                link.submit(&agent.finish(), now);
                continue;
            }
            Input::LinkUp => {
                link.link_up(now);
                continue;
            }
            Input::Heartbeats(interval) => {
                link.send_heartbeats(interval);
                continue;
            }
        };
        link.handle(&mut frame, &mut agent, now).unwrap();
    }
    sent
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(3), failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn polling_at_the_announced_times_equals_polling_every_millisecond() {
    let frames = Cell::new(0);
    proptest!(cases(300), |(inputs in inputs())| {
        let every_millisecond = frames_sent(&inputs, |_, now| now + 1);
        let announced = frames_sent(&inputs, |link, _| link.poll_at().unwrap_or(u64::MAX));
        prop_assert_eq!(&announced, &every_millisecond);
        frames.set(frames.get() + announced.len());
    });
    assert!(frames.get() > 3_000, "{frames:?}");
}

/// The time is exact in the other direction as well: at the announced time, a frame is due.
#[test]
fn frame_is_due_at_the_announced_time() {
    proptest!(cases(300), |(inputs in inputs())| {
        let mut early = None;
        let _ = frames_sent(&inputs, |link, now| {
            let at = link.poll_at().unwrap_or(u64::MAX);
            if at <= now {
                early = Some((at, now));
            }
            at.max(now + 1)
        });
        prop_assert_eq!(early, None, "after a frame, the next one is due later");
    });
}

/// From the end of an episode until the next model, a device that sleeps is awake fewer than four times: with any deadline up to
/// a day, and a clock that is off by 3 %. Each time it sends a frame and hears the answers to it, and nothing else: no model is
/// pushed to it.
#[test]
fn device_that_sleeps_is_awake_fewer_than_four_times_between_episodes() {
    let most = Cell::new(0);
    proptest!(cases(2_000), |(deadline in 1_000..86_400_000_u64, spent in 0.0..1.0, drift in -0.03..0.03, seed: u64)| {
        let (mut link, mut agent, mut rng) = (link(1), agent(), Pcg32::seed_from_u64(seed));
        link.handle(&mut model(1), &mut agent, 0).unwrap();
        // Times of the controller; the device's clock runs faster by `drift`.
        let mut controller = (spent * deadline as f64) as u64;
        let device = |controller: u64| (controller as f64 * (1.0 + drift)) as u64;
        link.submit(&agent.finish(), device(controller));
        let mut awake = 0;
        while link.wants_model() {
            let at = link.poll_at().unwrap();
            controller = controller.max((at as f64 / (1.0 + drift)) as u64 + 1);
            let Some(frame) = poll(&mut link, device(controller).max(at), &mut rng) else { continue };
            awake += 1;
            let wait = deadline.saturating_sub(controller) as u32;
            let mut answer = match frame[1] {
                0x03 => from_controller(&Message::Ack { episode: 1, fate: Fate::Counts, wait }),
                _ if wait == 0 => model(2),
                _ => from_controller(&Message::Wait { challenge: challenge(RUN, &frame), wait }),
            };
            link.handle(&mut answer, &mut agent, device(controller).max(at)).unwrap();
        }
        prop_assert!(awake < 4, "awake {awake} times");
        most.set(most.get().max(awake));
    });
    assert!(most.get() >= 2, "a summary and a hello");
}

#[test]
fn session_handles_every_message() {
    let (mut link, mut agent, mut rng) = (link(7), agent(), Pcg32::seed_from_u64(1));
    link.send_heartbeats(30_000);
    let hello = poll(&mut link, 0, &mut rng).unwrap();
    let asked = Message::Hello { model: 0, boot: 7, challenge: challenge(RUN, &hello) };
    assert_eq!(hello, from_device(&asked));
    assert_eq!(poll(&mut link, 100, &mut rng), None);
    assert_eq!(link.handle(&mut model(1), &mut agent, 200), Ok(Event::Model { episode: 1 }));
    assert!(!link.wants_model());
    let at = link.poll_at().unwrap();
    assert!((15_000..=30_000).contains(&at), "heartbeats are counted from the last frame: {at}");
    assert_eq!(poll(&mut link, at, &mut rng), Some(from_device(&Message::Heartbeat { model: 1 })));

    for episode in 1..=6 {
        agent.record(&[0.5, 0.1 * episode as f32], 1.0).unwrap();
        link.submit(&agent.finish(), 40_000);
    }
    assert!(link.wants_model());
    assert_eq!((link.dropped(), link.newest_unacknowledged()), (2, Some(6)), "the outbox holds four");
    let pending: Vec<Vec<u8>> = link.unacknowledged().map(<[u8]>::to_vec).collect();
    assert_eq!(poll(&mut link, 40_000, &mut rng), Some(pending[0].clone()), "the oldest goes first");
    let old = ModelError::OldEpisode { model: 1, agent: 7 };
    assert_eq!(link.handle(&mut model(1), &mut agent, 40_100), Ok(Event::ModelRejected(old)));
    assert_eq!(link.handle(&mut ack(1), &mut agent, 40_100), Ok(Event::Ignored));
    assert_eq!(link.handle(&mut pending[0].clone(), &mut agent, 40_100), Err(DecodeError::Tag), "a reflected frame");
    let acknowledged = Event::Acknowledged { episode: 4, fate: Fate::Counts };
    assert_eq!(link.handle(&mut ack(4), &mut agent, 40_100), Ok(acknowledged));
    assert_eq!(poll(&mut link, 40_100, &mut rng), Some(pending[0].clone()));
    let fate = Fate::WrongEpisode;
    let mut answer = from_controller(&Message::Ack { episode: 3, fate, wait: 5_000 });
    assert_eq!(link.handle(&mut answer, &mut agent, 40_200), Ok(Event::Acknowledged { episode: 3, fate }));
    assert_eq!(
        poll(&mut link, 40_200, &mut rng),
        Some(pending[2].clone()),
        "after a reply the next one is due at once"
    );

    // After a reset, saved frames are sent again unless they are corrupt or of another run.
    let mut resumed = self::link(8);
    let mut corrupt = pending[3].clone();
    corrupt[40] ^= 1;
    assert_eq!(resumed.resume(&corrupt), Err(DecodeError::Tag));
    assert_eq!(resumed.resume(&hello), Err(DecodeError::Type(0x01)), "not a summary");
    assert_eq!(resumed.resume(&model(3)), Err(DecodeError::Tag), "a frame of the controller");
    assert_eq!(Link::new(identity(), 8).unwrap().resume(&pending[2]), Err(DecodeError::Run(RUN)));
    for _ in 0..2 {
        assert_eq!(resumed.resume(&pending[2]), Ok(()));
    }
    assert_eq!(resumed.unacknowledged().count(), 1, "a frame resumed twice is queued once");
    assert_eq!(poll(&mut resumed, 0, &mut rng), Some(pending[2].clone()));

    let other = Identity::new(1, 2, 3, [3; 32]);
    assert_eq!(Link::new(other, 1).err(), Some(IdentityError::Dimension(3)));
}

/// A hello that was answered with a wait is repeated after the deadline; a link that comes back ends the wait.
#[test]
fn session_asks_again_after_the_deadline() {
    for wait in [0, 1_000, 60_000, 86_400_000, u32::MAX] {
        let (mut link, mut agent, mut rng) = (link(1), agent(), Pcg32::seed_from_u64(1));
        let hello = poll(&mut link, 0, &mut rng).unwrap();
        let mut answer = from_controller(&Message::Wait { challenge: challenge(RUN, &hello), wait });
        assert_eq!(link.handle(&mut answer.clone(), &mut agent, 100), Ok(Event::Waiting));
        let (at, wait) = (link.poll_at().unwrap(), u64::from(wait).min(86_400_000));
        let range = 100 + wait + wait / 32 + 400..=100 + wait + wait / 16 + 1_000;
        assert!(range.contains(&at), "{at} for a wait of {wait}");
        assert_eq!(link.handle(&mut answer, &mut agent, 200), Ok(Event::Ignored), "a repeated answer");
        assert_eq!(link.poll_at(), Some(at));
        link.link_up(300);
        assert_eq!(link.poll_at(), Some(300));
        assert_ne!(poll(&mut link, 300, &mut rng), Some(hello), "each hello has its own challenge");
    }
}

/// A device learns its run, and moves to another one without a trace of the old: summaries, models and challenges.
#[test]
fn device_moves_to_the_next_run() {
    let (mut link, mut agent, mut rng) = (Link::new(identity(), 1).unwrap(), agent(), Pcg32::seed_from_u64(1));
    let next = |from: u32, challenge: u32, run: u32| {
        encode_with(Channel::controller(identity(), 0, RUN), from, &Message::NextRun { challenge, run })
    };
    let hello = poll(&mut link, 0, &mut rng).unwrap();
    let asked = challenge(0, &hello);
    assert_eq!(link.handle(&mut model(1), &mut agent, 1), Err(DecodeError::Run(RUN)), "the run is not known yet");
    for (challenge, run) in [(asked ^ 1, RUN), (asked, 0)] {
        assert_eq!(link.handle(&mut next(0, challenge, run), &mut agent, 1), Ok(Event::Ignored));
    }
    let recorded = next(0, asked, RUN);
    assert_eq!(link.handle(&mut recorded.clone(), &mut agent, 1), Ok(Event::NextRun { run: RUN }));
    assert_eq!(link.run(), RUN);
    assert_eq!(link.handle(&mut recorded.clone(), &mut agent, 2), Err(DecodeError::Run(0)), "replayed");
    assert_eq!(link.handle(&mut model(4), &mut agent, 2), Ok(Event::Model { episode: 4 }));
    agent.record(&[0.5, 0.5], 1.0).unwrap();
    link.submit(&agent.finish(), 2);
    agent.record(&[0.5, 0.5], 1.0).unwrap();

    // The summary is settled, the next hello moves the device on. The open episode's step belongs to the old run.
    assert!(poll(&mut link, 2, &mut rng).is_some());
    let mut answer = from_controller(&Message::Ack { episode: 4, fate: Fate::WrongRun, wait: 0 });
    assert!(link.handle(&mut answer, &mut agent, 2).is_ok());
    let at = link.poll_at().unwrap();
    let hello = poll(&mut link, at, &mut rng).unwrap();
    let recorded = next(RUN, challenge(RUN, &hello), RUN + 1);
    let theta = *agent.theta();
    assert_eq!(link.handle(&mut recorded.clone(), &mut agent, at), Ok(Event::NextRun { run: RUN + 1 }));
    assert_eq!((agent.episode(), agent.steps(), *agent.theta()), (1, 0, theta), "the model stays in use");
    assert_eq!(link.handle(&mut model(9), &mut agent, at), Err(DecodeError::Run(RUN)), "a model of the old run");
    assert_eq!(link.handle(&mut model_in(RUN + 1, 1), &mut agent, at), Ok(Event::Model { episode: 1 }));

    // A device that lost its run is not moved by a recorded frame either: its hello has a new challenge.
    let mut lost = Link::new(identity(), 2).unwrap();
    assert!(poll(&mut lost, 0, &mut rng).is_some());
    assert_eq!(lost.handle(&mut next(0, asked, RUN), &mut agent, 1), Ok(Event::Ignored));
}

/// A controller that answers every hello, with anything it likes, never gets more hellos than one that does not answer: each is
/// at least half of its retry delay after the one before.
#[test]
fn hostile_controller_cannot_make_a_device_ask_more_often() {
    proptest!(cases(200), |(answers in proptest::collection::vec((any::<bool>(), 0..3_u32, 0..2_000_u32), 20))| {
        let (mut link, mut agent, mut rng) = (link(1), agent(), Pcg32::seed_from_u64(1));
        let mut last = None;
        for (attempt, (moves, run, wait)) in answers.into_iter().enumerate() {
            let (now, from) = (link.poll_at().unwrap(), link.run());
            let hello = poll(&mut link, now, &mut rng).unwrap();
            if let Some(last) = last {
                let shortest = 500 << (attempt - 1).min(6);
                prop_assert!(now - last >= shortest, "{} ms after hello {attempt}", now - last);
            }
            last = Some(now);
            let challenge = challenge(from, &hello);
            let message = match moves {
                true => Message::NextRun { challenge, run },
                false => Message::Wait { challenge, wait },
            };
            let mut answer = encode_with(Channel::controller(identity(), 0, RUN), from, &message);
            prop_assert!(link.handle(&mut answer, &mut agent, now).is_ok());
        }
    });
}

/// A device without models runs ahead of a slow controller. It must return to the controller's episode, or all its later
/// summaries would be rejected. A replayed old model must not move it back.
#[test]
fn device_that_ran_ahead_returns_to_the_controllers_episode() {
    let (mut link, mut agent) = (link(1), agent());
    assert_eq!(link.handle(&mut model(3), &mut agent, 0), Ok(Event::Model { episode: 3 }));
    for _ in 3..9 {
        link.submit(&agent.finish(), 0);
    }
    assert_eq!(agent.episode(), 9);
    for old in [1, 2, 3] {
        let error = ModelError::OldEpisode { model: old, agent: 9 };
        assert_eq!(link.handle(&mut model(old), &mut agent, 0), Ok(Event::ModelRejected(error)));
    }
    // It does not return during an episode.
    agent.record(&[0.5, 0.5], 1.0).unwrap();
    let error = ModelError::OldEpisode { model: 4, agent: 9 };
    assert_eq!(link.handle(&mut model(4), &mut agent, 0), Ok(Event::ModelRejected(error)));
    link.submit(&agent.finish(), 0);
    // Nor for an invalid model.
    let invalid = Model::new(4, 1, 1.0, Rewards::Unbounded, &[0.0; D], &[-1.0, 0.0, 1.0]);
    let event = link.handle(&mut from_controller(&Message::Model(invalid)), &mut agent, 0);
    assert!(matches!(event, Ok(Event::ModelRejected(_))), "{event:?}");
    assert_eq!(agent.episode(), 10);
    assert_eq!(link.handle(&mut model(4), &mut agent, 0), Ok(Event::Model { episode: 4 }));
    assert_eq!((agent.episode(), link.wants_model()), (4, false));
    // Later models move it on, and the previous one is now old.
    assert_eq!(link.handle(&mut model(6), &mut agent, 0), Ok(Event::Model { episode: 6 }));
    let error = ModelError::OldEpisode { model: 5, agent: 6 };
    assert_eq!(link.handle(&mut model(5), &mut agent, 0), Ok(Event::ModelRejected(error)));
}

/// Sealed frames over a lossy link, with device resets that keep or lose the state, controller restarts and changes of the run.
#[cfg(feature = "sealed")]
mod sealed {
    use std::collections::HashMap;

    use super::*;

    fn sealed_identity() -> Identity {
        identity().with_sealed_frames()
    }

    fn sealed_link(boot: u32) -> Link {
        Link::new(sealed_identity(), boot).unwrap()
    }

    struct Controller {
        channel: Channel,
        boot: u32,
        run: u32,
    }

    impl Controller {
        fn start(boot: u32, run: u32) -> Self {
            Self { channel: Channel::controller(sealed_identity(), boot, run), boot, run }
        }

        fn reply(&mut self, frame: &[u8]) -> Vec<u8> {
            let run = u32::from_le_bytes(frame[12..16].try_into().unwrap());
            self.channel.enter_run(run);
            let mut frame = frame.to_vec();
            let reply = match self.channel.decode(&mut frame).expect("a valid frame of the device") {
                Message::Hello { challenge, .. } if run != self.run => Message::NextRun { challenge, run: self.run },
                Message::Hello { model, .. } | Message::Heartbeat { model } => Message::Model(Model::new(
                    model + 1,
                    EPISODE_LEN,
                    1.0,
                    Rewards::Unbounded,
                    &[0.25, 0.5],
                    &[2.0, 0.0, 2.0],
                )),
                Message::Summary(summary) => Message::Ack { episode: summary.episode, fate: Fate::Counts, wait: 0 },
                other => panic!("{other:?}"),
            };
            let mut frame = vec![0; FRAME];
            let length = self.channel.encode(&reply, &mut frame).unwrap();
            frame.truncate(length);
            frame
        }
    }

    /// Every frame sent so far, by direction, run and nonce.
    #[derive(Default)]
    struct Eavesdropper {
        seen: HashMap<(bool, [u8; 4], [u8; 12]), Vec<u8>>,
        repeated: u32,
    }

    impl Eavesdropper {
        fn record(&mut self, frame: &[u8]) {
            let (run, nonce) = (frame[12..16].try_into().unwrap(), frame[20..32].try_into().unwrap());
            if let Some(first) = self.seen.insert((frame[1] < 0x80, run, nonce), frame.to_vec()) {
                assert_eq!(first, frame, "one nonce sealed two frames");
                self.repeated += 1;
            }
        }
    }

    #[test]
    fn nonces_never_seal_two_frames() {
        let (mut rng, mut boot, mut now) = (Pcg32::seed_from_u64(5), 1, 0);
        let (mut agent, mut link) = (agent(), sealed_link(boot));
        let (mut controller, mut eavesdropper) = (Controller::start(1, 1), Eavesdropper::default());
        let (mut acknowledged, mut lost_state, mut moved) = (0, 0, 0);
        for _ in 0..200_000 {
            now += 100;
            if let Some(frame) = poll(&mut link, now, &mut rng) {
                eavesdropper.record(&frame);
                let mut reply = controller.reply(&frame);
                eavesdropper.record(&reply);
                if rng.next_u32() % 2 == 0 {
                    let event = link.handle(&mut reply, &mut agent, now).unwrap();
                    acknowledged += u32::from(matches!(event, Event::Acknowledged { .. }));
                    moved += u32::from(matches!(event, Event::NextRun { .. }));
                }
            }
            if !link.wants_model() {
                agent.record(&[0.5, (rng.next_u32() % 100) as f32 / 200.0], 1.0).unwrap();
                if agent.steps() == EPISODE_LEN {
                    link.submit(&agent.finish(), now);
                }
            }
            match rng.next_u32() % 1_000 {
                0 => controller = Controller::start(controller.boot + 1, controller.run),
                chance @ 1..4 => {
                    boot += 1;
                    let run = link.run();
                    let before = std::mem::replace(&mut link, sealed_link(boot));
                    if chance == 1 {
                        // The same episodes run again, with different summaries.
                        agent = super::agent();
                        lost_state += 1;
                    } else {
                        link.resume_run(run);
                        before.unacknowledged().for_each(|frame| link.resume(frame).unwrap());
                    }
                }
                // To and fro between runs, with the nonces of the same start.
                4 => controller.run = 3 - controller.run,
                _ => {}
            }
        }
        assert!(controller.boot > 100 && boot > 300 && lost_state > 100 && moved > 200, "too few resets and restarts");
        let repeated = eavesdropper.repeated;
        assert!(acknowledged > 1_000 && repeated > 1_000, "{acknowledged} acknowledged, {repeated} repeated");
    }

    #[test]
    fn sealed_session_accepts_sealed_frames_only() {
        let (mut link, mut agent) = (sealed_link(1), agent());
        link.resume_run(RUN);
        let mut controller = Controller::start(1, RUN);
        assert_eq!(link.handle(&mut model(1), &mut agent, 0), Err(DecodeError::Version(2)));
        assert!(link.wants_model());
        let hello = poll(&mut link, 0, &mut Pcg32::seed_from_u64(1)).unwrap();
        let sealed = controller.reply(&hello);
        assert_eq!(super::link(1).handle(&mut sealed.clone(), &mut agent, 0), Err(DecodeError::Version(0x82)));
        assert_eq!(link.handle(&mut hello.clone(), &mut agent, 0), Err(DecodeError::Tag), "a reflected frame");
        assert_eq!(link.handle(&mut sealed.clone(), &mut agent, 0), Ok(Event::Model { episode: 1 }));

        link.submit(&agent.finish(), 0);
        let pending: Vec<u8> = link.unacknowledged().next().unwrap().to_vec();
        let mut corrupt = pending.clone();
        corrupt[40] ^= 1;
        let mut resumed = sealed_link(2);
        resumed.resume_run(RUN);
        assert_eq!(resumed.resume(&corrupt), Err(DecodeError::Tag));
        assert_eq!(resumed.resume(&hello), Err(DecodeError::Type(0x01)), "not a summary");
        assert_eq!(resumed.resume(&sealed), Err(DecodeError::Tag), "a frame of the controller");
        assert_eq!(resumed.resume(&pending), Ok(()));
        assert_eq!(resumed.unacknowledged().next(), Some(pending.as_slice()));
    }
}
