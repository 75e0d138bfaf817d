//! Device sessions over an unreliable link, with a virtual clock, a seeded network and a controller that stores summaries in a list.
#![cfg(feature = "wire")]

use fedbandit_core::session::{Event, Session};
use fedbandit_core::wire::{DecodeError, Identity, Message, NackReason, max_frame_len};
use fedbandit_core::{Action, Agent, Model, ModelError, Prior, Rewards};
use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};

const D: usize = 2;
const FRAME: usize = max_frame_len(D);
const EPISODE_LEN: u32 = 4;

type Link = Session<FRAME, 4>;

fn identity() -> Identity {
    Identity { run: 1, agent: 2, dimension: D as u8, key: [3; 32] }
}

fn agent() -> Agent<D> {
    Agent::new(&Prior { lambda: 1.0, beta: 1.0, episode_len: EPISODE_LEN, rewards: Rewards::Unbounded }).unwrap()
}

fn encode(message: &Message<'_>) -> Vec<u8> {
    let mut frame = vec![0; FRAME];
    let length = identity().encode(message, &mut frame).unwrap();
    frame.truncate(length);
    frame
}

fn model(episode: u32) -> Vec<u8> {
    let (theta, design) = ([0.25, 0.5], [2.0, 0.0, 2.0]);
    encode(&Message::Model(Model {
        episode,
        episode_len: EPISODE_LEN,
        beta: 1.0,
        rewards: Rewards::Unbounded,
        theta: (&theta).into(),
        design: (&design).into(),
    }))
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

    /// Processes a frame at the controller and returns its replies.
    fn reply(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        match identity().decode(frame) {
            Ok(Message::Hello { episode, .. }) => vec![model(episode)],
            Ok(Message::Summary(summary)) => {
                let episode = summary.episode;
                match self.stored.iter().find(|(stored, _)| *stored == episode) {
                    Some((_, first)) => assert_eq!(first, frame, "a repeated summary has different bytes"),
                    None => self.stored.push((episode, frame.to_vec())),
                }
                vec![encode(&Message::Ack { episode })]
            }
            _ => vec![],
        }
    }

    /// Advances the simulation by ten milliseconds.
    fn step(&mut self) {
        self.now += 10;
        let mut buffer = [0; FRAME];
        if let Some(length) = self.link.poll(self.agent.episode(), self.now, &mut self.rng, &mut buffer) {
            for arrived in self.transmit(buffer[..length].to_vec()) {
                for answer in self.reply(&arrived) {
                    for frame in self.transmit(answer) {
                        _ = self.link.handle(&frame, &mut self.agent, self.now);
                    }
                }
            }
        }
        if !self.link.wants_model() {
            let x = Action::from([0.5, (self.rng.next_u32() % 100) as f32 / 200.0]);
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
        let link = Link::new(identity(), 1);
        let mut simulation = Simulation { rng, now: 0, agent: agent(), link, stored: Vec::new(), fault_rate: 200 };
        // An hour of faults, then 200 s without: more than three times the longest retry delay.
        while simulation.now < 3_600_000 {
            simulation.step();
        }
        simulation.fault_rate = 0;
        let episode = simulation.agent.episode();
        while simulation.now < 3_800_000 {
            simulation.step();
        }
        assert!(simulation.agent.episode() > episode, "no progress on a reliable link, seed {seed}");
        let episodes: Vec<u32> = simulation.stored.iter().map(|(episode, _)| *episode).collect();
        let expected: Vec<u32> = (1..=episodes.len() as u32).collect();
        assert_eq!(episodes, expected, "every summary must arrive once and in order, seed {seed}");
        assert!(episodes.len() > 100 && simulation.link.lost() == 0, "{} episodes, seed {seed}", episodes.len());
    }
}

/// Retry delays double from one second to about a minute, each shortened at random by up to a half.
#[test]
fn retries_back_off_with_jitter() {
    let (mut link, mut rng) = (Link::new(identity(), 1), Pcg32::seed_from_u64(1));
    let mut sent = Vec::new();
    for now in 0..1_000_000 {
        if link.poll(1, now, &mut rng, &mut [0; FRAME]).is_some() {
            sent.push(now);
        }
    }
    let delays: Vec<u64> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (attempt, delay) in delays.iter().enumerate() {
        let longest = 1_000 << attempt.min(6);
        assert!((longest / 2..=longest).contains(delay), "{delays:?}");
    }
    assert!(delays.len() > 15);
    let distinct: std::collections::BTreeSet<_> = delays[6..].iter().collect();
    assert!(distinct.len() > 5, "no jitter: {delays:?}");
}

#[test]
fn session_handles_every_message() {
    let (mut link, mut agent, mut rng) = (Link::new(identity(), 7), agent(), Pcg32::seed_from_u64(1));
    let mut buffer = [0; FRAME];
    let mut poll = |link: &mut Link, episode, now| {
        let length = link.poll(episode, now, &mut rng, &mut buffer)?;
        Some(buffer[..length].to_vec())
    };
    assert_eq!(poll(&mut link, 1, 0), Some(encode(&Message::Hello { episode: 1, boot: 7 })));
    assert_eq!(poll(&mut link, 1, 100), None);
    assert_eq!(link.handle(&model(1), &mut agent, 200), Ok(Event::Model { episode: 1 }));
    assert!(!link.wants_model());
    assert_eq!(poll(&mut link, 1, 1_200), Some(encode(&Message::Heartbeat { episode: 1 })));
    assert_eq!(poll(&mut link, 1, 10_000), None, "the next heartbeat is not due yet");

    for episode in 1..=6 {
        agent.record(&Action::from([0.5, 0.1 * episode as f32]), 1.0).unwrap();
        link.submit(&agent.finish(), 20_000);
    }
    assert!(link.wants_model());
    assert_eq!((link.lost(), link.newest()), (2, Some(6)), "the outbox holds four");
    let pending: Vec<Vec<u8>> = link.unacknowledged().map(<[u8]>::to_vec).collect();
    assert_eq!(poll(&mut link, 7, 20_000), Some(pending[0].clone()), "the oldest goes first");
    let old = ModelError::OldEpisode { model: 1, agent: 7 };
    assert_eq!(link.handle(&model(1), &mut agent, 20_100), Ok(Event::ModelRefused(old)));
    assert_eq!(link.handle(&encode(&Message::Ack { episode: 1 }), &mut agent, 20_100), Ok(Event::Ignored));
    assert_eq!(link.handle(&pending[0], &mut agent, 20_100), Ok(Event::Ignored), "a reflected frame");
    assert_eq!(
        link.handle(&encode(&Message::Ack { episode: 4 }), &mut agent, 20_100),
        Ok(Event::Acknowledged { episode: 4 })
    );
    assert_eq!(poll(&mut link, 7, 20_100), Some(pending[0].clone()));
    let reason = NackReason::WrongEpisode;
    let nack = encode(&Message::Nack { episode: 3, reason });
    assert_eq!(link.handle(&nack, &mut agent, 20_200), Ok(Event::Rejected { episode: 3, reason }));
    assert_eq!(poll(&mut link, 7, 20_200), Some(pending[2].clone()), "after a reply the next frame is due at once");

    // After a reset, saved frames are sent again unless they are corrupt.
    let mut resumed = Link::new(identity(), 8);
    let mut corrupt = pending[3].clone();
    corrupt[40] ^= 1;
    assert_eq!(resumed.resume(&corrupt), Err(DecodeError::Tag));
    assert_eq!(resumed.resume(&model(3)), Err(DecodeError::Type(0x81)), "not a summary");
    for _ in 0..2 {
        assert_eq!(resumed.resume(&pending[2]), Ok(()));
    }
    assert_eq!(resumed.unacknowledged().count(), 1, "a frame resumed twice is queued once");
    assert_eq!(poll(&mut resumed, 7, 0), Some(pending[2].clone()));
}

/// A device without models runs ahead of a slow controller. It must return to the controller's episode, or all its later
/// summaries would be rejected. A replayed old model must not move it back.
#[test]
fn device_that_ran_ahead_returns_to_the_controllers_episode() {
    let (mut link, mut agent) = (Link::new(identity(), 1), agent());
    assert_eq!(link.handle(&model(3), &mut agent, 0), Ok(Event::Model { episode: 3 }));
    for _ in 3..9 {
        link.submit(&agent.finish(), 0);
    }
    assert_eq!(agent.episode(), 9);
    for old in [1, 2, 3] {
        let error = ModelError::OldEpisode { model: old, agent: 9 };
        assert_eq!(link.handle(&model(old), &mut agent, 0), Ok(Event::ModelRefused(error)));
    }
    // It does not return during an episode.
    agent.record(&Action::from([0.5, 0.5]), 1.0).unwrap();
    let error = ModelError::OldEpisode { model: 4, agent: 9 };
    assert_eq!(link.handle(&model(4), &mut agent, 0), Ok(Event::ModelRefused(error)));
    link.submit(&agent.finish(), 0);
    // Nor for an invalid model.
    let (theta, design) = ([0.0; D], [-1.0, 0.0, 1.0]);
    let (theta, design) = ((&theta).into(), (&design).into());
    let invalid = Model { episode: 4, episode_len: 1, beta: 1.0, rewards: Rewards::Unbounded, theta, design };
    let event = link.handle(&encode(&Message::Model(invalid)), &mut agent, 0);
    assert!(matches!(event, Ok(Event::ModelRefused(_))), "{event:?}");
    assert_eq!(agent.episode(), 10);
    assert_eq!(link.handle(&model(4), &mut agent, 0), Ok(Event::Model { episode: 4 }));
    assert_eq!((agent.episode(), link.wants_model()), (4, false));
    // Later models move it on, and the previous one is now old.
    assert_eq!(link.handle(&model(6), &mut agent, 0), Ok(Event::Model { episode: 6 }));
    let error = ModelError::OldEpisode { model: 5, agent: 6 };
    assert_eq!(link.handle(&model(5), &mut agent, 0), Ok(Event::ModelRefused(error)));
}

/// Sealed frames over a lossy link, with device resets that keep or lose the state, and controller restarts.
#[cfg(feature = "sealed")]
mod sealed {
    use std::collections::HashMap;

    use fedbandit_core::wire::{Channel, max_sealed_frame_len};

    use super::*;

    const FRAME: usize = max_sealed_frame_len(D);

    type Link = Session<FRAME, 4>;

    struct Controller {
        channel: Channel,
        boot: u32,
    }

    impl Controller {
        fn start(boot: u32) -> Self {
            Self { channel: Channel::sealed_controller(identity(), boot), boot }
        }

        fn encode(&mut self, message: &Message<'_>) -> Vec<u8> {
            let mut frame = vec![0; FRAME];
            let length = self.channel.encode(message, &mut frame).unwrap();
            frame.truncate(length);
            frame
        }

        fn reply(&mut self, frame: &[u8]) -> Vec<u8> {
            let (theta, design) = ([0.25, 0.5], [2.0, 0.0, 2.0]);
            let reply = match self.channel.decode(&mut frame.to_vec()).expect("a valid frame of the device") {
                Message::Hello { episode, .. } | Message::Heartbeat { episode } => Message::Model(Model {
                    episode,
                    episode_len: EPISODE_LEN,
                    beta: 1.0,
                    rewards: Rewards::Unbounded,
                    theta: (&theta).into(),
                    design: (&design).into(),
                }),
                Message::Summary(summary) => Message::Ack { episode: summary.episode },
                other => panic!("{other:?}"),
            };
            self.encode(&reply)
        }
    }

    /// Every frame sent so far, by direction and nonce.
    #[derive(Default)]
    struct Eavesdropper {
        seen: HashMap<(bool, [u8; 12]), Vec<u8>>,
        repeated: u32,
    }

    impl Eavesdropper {
        fn record(&mut self, frame: &[u8]) {
            let nonce = frame[16..28].try_into().unwrap();
            if let Some(first) = self.seen.insert((frame[1] < 0x80, nonce), frame.to_vec()) {
                assert_eq!(first, frame, "one nonce sealed two frames");
                self.repeated += 1;
            }
        }
    }

    #[test]
    fn nonces_never_seal_two_frames() {
        let (mut rng, mut boot, mut now) = (Pcg32::seed_from_u64(5), 1, 0);
        let (mut agent, mut link) = (agent(), Link::sealed(identity(), boot));
        let (mut controller, mut eavesdropper) = (Controller::start(1), Eavesdropper::default());
        let (mut acknowledged, mut lost_state) = (0, 0);
        for _ in 0..200_000 {
            now += 100;
            let mut buffer = [0; FRAME];
            if let Some(length) = link.poll(agent.episode(), now, &mut rng, &mut buffer) {
                eavesdropper.record(&buffer[..length]);
                let reply = controller.reply(&buffer[..length]);
                eavesdropper.record(&reply);
                if rng.next_u32() % 2 == 0 {
                    let event = link.handle(&reply, &mut agent, now).unwrap();
                    acknowledged += u32::from(matches!(event, Event::Acknowledged { .. }));
                }
            }
            if !link.wants_model() {
                agent.record(&Action::from([0.5, (rng.next_u32() % 100) as f32 / 200.0]), 1.0).unwrap();
                if agent.steps() == EPISODE_LEN {
                    link.submit(&agent.finish(), now);
                }
            }
            match rng.next_u32() % 1_000 {
                0 => controller = Controller::start(controller.boot + 1),
                chance @ 1..4 => {
                    boot += 1;
                    let before = std::mem::replace(&mut link, Link::sealed(identity(), boot));
                    if chance == 1 {
                        // The same episodes run again, with different summaries.
                        agent = super::agent();
                        lost_state += 1;
                    } else {
                        before.unacknowledged().for_each(|frame| link.resume(frame).unwrap());
                    }
                }
                _ => {}
            }
        }
        assert!(controller.boot > 100 && boot > 300 && lost_state > 100, "too few resets and restarts");
        let repeated = eavesdropper.repeated;
        assert!(acknowledged > 1_000 && repeated > 1_000, "{acknowledged} acknowledged, {repeated} repeated");
    }

    #[test]
    fn sealed_session_accepts_sealed_frames_only() {
        let (mut link, mut agent) = (Link::sealed(identity(), 1), agent());
        let mut controller = Controller::start(1);
        assert_eq!(link.handle(&model(1), &mut agent, 0), Err(DecodeError::Version(1)));
        assert!(link.wants_model());
        let mut frame = [0; FRAME];
        let length = link.poll(1, 0, &mut Pcg32::seed_from_u64(1), &mut frame).unwrap();
        let sealed = controller.reply(&frame[..length]);
        let mut plain = super::Link::new(identity(), 1);
        assert_eq!(plain.handle(&sealed, &mut agent, 0), Err(DecodeError::Version(0x81)));
        let reflected = frame[..length].to_vec();
        assert_eq!(link.handle(&reflected, &mut agent, 0), Err(DecodeError::Tag));
        assert_eq!(link.handle(&[0x81; FRAME + 1], &mut agent, 0), Err(DecodeError::Length));
        assert_eq!(link.handle(&sealed, &mut agent, 0), Ok(Event::Model { episode: 1 }));

        link.submit(&agent.finish(), 0);
        let pending: Vec<u8> = link.unacknowledged().next().unwrap().to_vec();
        let mut corrupt = pending.clone();
        corrupt[40] ^= 1;
        let mut resumed = Link::sealed(identity(), 2);
        assert_eq!(resumed.resume(&corrupt), Err(DecodeError::Tag));
        assert_eq!(resumed.resume(&reflected), Err(DecodeError::Type(0x01)), "not a summary");
        assert_eq!(resumed.resume(&sealed), Err(DecodeError::Tag), "a frame of the controller");
        assert_eq!(resumed.resume(&pending), Ok(()));
        assert_eq!(resumed.unacknowledged().next(), Some(pending.as_slice()));
    }
}
