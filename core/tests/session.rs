//! The device's side of the link on a bad line: a virtual clock, a seeded network and a plain list of what the controller has.
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

/// A device on a line that loses, repeats and damages frames, and a controller that keeps what it acknowledged.
struct Simulation {
    rng: Pcg32,
    now: u64,
    agent: Agent<D>,
    link: Link,
    /// The controller's list: summaries by episode.
    stored: Vec<(u32, Vec<u8>)>,
    /// Chance in 256 that something happens to a frame.
    trouble: u32,
}

impl Simulation {
    /// What the line makes of a frame: none, one or two copies, possibly damaged.
    fn line(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        if self.rng.next_u32() % 256 >= self.trouble {
            return vec![frame];
        }
        match self.rng.next_u32() % 3 {
            0 => vec![],
            1 => vec![frame.clone(), frame],
            _ => {
                let mut damaged = frame;
                let at = self.rng.next_u32() as usize % damaged.len();
                damaged[at] ^= 1 << (self.rng.next_u32() % 8);
                vec![damaged]
            }
        }
    }

    /// The controller takes a frame and answers.
    fn controller(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        match identity().decode(frame) {
            Ok(Message::Hello { episode, .. }) => vec![model(episode)],
            Ok(Message::Summary(summary)) => {
                let episode = summary.episode;
                match self.stored.iter().find(|(stored, _)| *stored == episode) {
                    Some((_, first)) => assert_eq!(first, frame, "a summary came again with other bytes"),
                    None => self.stored.push((episode, frame.to_vec())),
                }
                vec![encode(&Message::Ack { episode })]
            }
            _ => vec![],
        }
    }

    /// Ten milliseconds of everything.
    fn step(&mut self) {
        self.now += 10;
        let mut buffer = [0; FRAME];
        if let Some(length) = self.link.poll(self.agent.episode(), self.now, &mut self.rng, &mut buffer) {
            for arrived in self.line(buffer[..length].to_vec()) {
                for answer in self.controller(&arrived) {
                    for frame in self.line(answer) {
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
fn every_summary_arrives_once_over_a_bad_line() {
    for seed in 0..60 {
        let rng = Pcg32::seed_from_u64(seed);
        let link = Link::new(identity(), 1);
        let mut simulation = Simulation { rng, now: 0, agent: agent(), link, stored: Vec::new(), trouble: 200 };
        // An hour of trouble, then a good line: a minute is the longest wait, and nothing is left over after two.
        while simulation.now < 3_600_000 {
            simulation.step();
        }
        simulation.trouble = 0;
        let episode = simulation.agent.episode();
        while simulation.now < 3_800_000 {
            simulation.step();
        }
        assert!(simulation.agent.episode() > episode, "no progress on a good line, seed {seed}");
        let episodes: Vec<u32> = simulation.stored.iter().map(|(episode, _)| *episode).collect();
        let expected: Vec<u32> = (1..=episodes.len() as u32).collect();
        assert_eq!(episodes, expected, "each episode's summary once and in order, seed {seed}");
        assert!(episodes.len() > 100 && simulation.link.lost() == 0, "{} episodes, seed {seed}", episodes.len());
    }
}

/// The waits between attempts double from a second to about a minute, each shortened by up to a half.
#[test]
fn attempts_back_off() {
    let (mut link, mut rng) = (Link::new(identity(), 1), Pcg32::seed_from_u64(1));
    let mut sent = Vec::new();
    for now in 0..1_000_000 {
        if link.poll(1, now, &mut rng, &mut [0; FRAME]).is_some() {
            sent.push(now);
        }
    }
    let waits: Vec<u64> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (attempt, wait) in waits.iter().enumerate() {
        let whole = 1_000 << attempt.min(6);
        assert!((whole / 2..=whole).contains(wait), "{waits:?}");
    }
    assert!(waits.len() > 15);
    let distinct: std::collections::BTreeSet<_> = waits[6..].iter().collect();
    assert!(distinct.len() > 5, "no jitter: {waits:?}");
}

#[test]
fn what_frames_mean() {
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
    assert_eq!(poll(&mut link, 1, 10_000), None, "a heartbeat is rare");

    for episode in 1..=6 {
        agent.record(&Action::from([0.5, 0.1 * episode as f32]), 1.0).unwrap();
        link.submit(&agent.finish(), 20_000);
    }
    assert!(link.wants_model());
    assert_eq!((link.lost(), link.newest()), (2, Some(6)), "room for four");
    let waiting: Vec<Vec<u8>> = link.unacknowledged().map(<[u8]>::to_vec).collect();
    assert_eq!(poll(&mut link, 7, 20_000), Some(waiting[0].clone()), "the oldest first");
    let old = ModelError::OldEpisode { model: 1, agent: 7 };
    assert_eq!(link.handle(&model(1), &mut agent, 20_100), Ok(Event::ModelRefused(old)));
    assert_eq!(link.handle(&encode(&Message::Ack { episode: 1 }), &mut agent, 20_100), Ok(Event::Ignored));
    assert_eq!(link.handle(&waiting[0], &mut agent, 20_100), Ok(Event::Ignored), "its own frame, reflected");
    assert_eq!(
        link.handle(&encode(&Message::Ack { episode: 4 }), &mut agent, 20_100),
        Ok(Event::Acknowledged { episode: 4 })
    );
    assert_eq!(poll(&mut link, 7, 20_100), Some(waiting[0].clone()));
    let reason = NackReason::WrongEpisode;
    let nack = encode(&Message::Nack { episode: 3, reason });
    assert_eq!(link.handle(&nack, &mut agent, 20_200), Ok(Event::Rejected { episode: 3, reason }));
    assert_eq!(poll(&mut link, 7, 20_200), Some(waiting[2].clone()), "answered: the next at once");

    // After a reset, what was kept is sent again; what is damaged is not.
    let mut resumed = Link::new(identity(), 8);
    let mut damaged = waiting[3].clone();
    damaged[40] ^= 1;
    assert_eq!(resumed.resume(&damaged), Err(DecodeError::Tag));
    assert_eq!(resumed.resume(&model(3)), Err(DecodeError::Type(0x81)), "no summary");
    for _ in 0..2 {
        assert_eq!(resumed.resume(&waiting[2]), Ok(()));
    }
    assert_eq!(resumed.unacknowledged().count(), 1, "kept twice, sent once");
    assert_eq!(poll(&mut resumed, 7, 0), Some(waiting[2].clone()));
}

/// A device that goes on without models counts faster than a slow controller. It must come back to the controller's count, or
/// no summary of it would ever be taken again; and nothing that somebody recorded may move it back.
#[test]
fn a_device_that_ran_ahead_comes_back() {
    let (mut link, mut agent) = (Link::new(identity(), 1), agent());
    assert_eq!(link.handle(&model(3), &mut agent, 0), Ok(Event::Model { episode: 3 }));
    for _ in 3..9 {
        link.submit(&agent.finish(), 0);
    }
    assert_eq!(agent.episode(), 9);
    for old in [1, 2, 3] {
        let refused = ModelError::OldEpisode { model: old, agent: 9 };
        assert_eq!(link.handle(&model(old), &mut agent, 0), Ok(Event::ModelRefused(refused)));
    }
    // Not in the middle of an episode.
    agent.record(&Action::from([0.5, 0.5]), 1.0).unwrap();
    let refused = ModelError::OldEpisode { model: 4, agent: 9 };
    assert_eq!(link.handle(&model(4), &mut agent, 0), Ok(Event::ModelRefused(refused)));
    link.submit(&agent.finish(), 0);
    // Nor for a model that is none.
    let (theta, design) = ([0.0; D], [-1.0, 0.0, 1.0]);
    let (theta, design) = ((&theta).into(), (&design).into());
    let bad = Model { episode: 4, episode_len: 1, beta: 1.0, rewards: Rewards::Unbounded, theta, design };
    let refused = link.handle(&encode(&Message::Model(bad)), &mut agent, 0);
    assert!(matches!(refused, Ok(Event::ModelRefused(_))), "{refused:?}");
    assert_eq!(agent.episode(), 10);
    assert_eq!(link.handle(&model(4), &mut agent, 0), Ok(Event::Model { episode: 4 }));
    assert_eq!((agent.episode(), link.wants_model()), (4, false));
    // Later ones move it on, as ever, and the one before is old now.
    assert_eq!(link.handle(&model(6), &mut agent, 0), Ok(Event::Model { episode: 6 }));
    let refused = ModelError::OldEpisode { model: 5, agent: 6 };
    assert_eq!(link.handle(&model(5), &mut agent, 0), Ok(Event::ModelRefused(refused)));
}

/// Sealed frames on a line that loses and repeats, with resets of the device, whose state is kept or lost, and restarts of the controller.
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

        fn send(&mut self, message: &Message<'_>) -> Vec<u8> {
            let mut frame = vec![0; FRAME];
            let length = self.channel.encode(message, &mut frame).unwrap();
            frame.truncate(length);
            frame
        }

        fn answer(&mut self, frame: &[u8]) -> Vec<u8> {
            let (theta, design) = ([0.25, 0.5], [2.0, 0.0, 2.0]);
            let answer = match self.channel.decode(&mut frame.to_vec()).expect("no frame of the device") {
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
            self.send(&answer)
        }
    }

    /// All that was ever on the line, by its direction and nonce.
    #[derive(Default)]
    struct Eavesdropper {
        seen: HashMap<(bool, [u8; 12]), Vec<u8>>,
        repeated: u32,
    }

    impl Eavesdropper {
        fn hear(&mut self, frame: &[u8]) {
            let nonce = frame[16..28].try_into().unwrap();
            if let Some(first) = self.seen.insert((frame[1] < 0x80, nonce), frame.to_vec()) {
                assert_eq!(first, frame, "one nonce, two frames");
                self.repeated += 1;
            }
        }
    }

    #[test]
    fn no_nonce_seals_two_frames() {
        let (mut rng, mut boot, mut now) = (Pcg32::seed_from_u64(5), 1, 0);
        let (mut agent, mut link) = (agent(), Link::sealed(identity(), boot));
        let (mut controller, mut line) = (Controller::start(1), Eavesdropper::default());
        let (mut acknowledged, mut lost_state) = (0, 0);
        for _ in 0..200_000 {
            now += 100;
            let mut buffer = [0; FRAME];
            if let Some(length) = link.poll(agent.episode(), now, &mut rng, &mut buffer) {
                line.hear(&buffer[..length]);
                let answer = controller.answer(&buffer[..length]);
                line.hear(&answer);
                if rng.next_u32() % 2 == 0 {
                    let event = link.handle(&answer, &mut agent, now).unwrap();
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
                        // The same episodes come again, with other summaries.
                        agent = super::agent();
                        lost_state += 1;
                    } else {
                        before.unacknowledged().for_each(|frame| link.resume(frame).unwrap());
                    }
                }
                _ => {}
            }
        }
        assert!(controller.boot > 100 && boot > 300 && lost_state > 100, "too little happened");
        assert!(acknowledged > 1_000 && line.repeated > 1_000, "{acknowledged} {}", line.repeated);
    }

    #[test]
    fn a_sealed_session_takes_sealed_frames_only() {
        let (mut link, mut agent) = (Link::sealed(identity(), 1), agent());
        let mut controller = Controller::start(1);
        assert_eq!(link.handle(&model(1), &mut agent, 0), Err(DecodeError::Version(1)));
        assert!(link.wants_model());
        let mut frame = [0; FRAME];
        let length = link.poll(1, 0, &mut Pcg32::seed_from_u64(1), &mut frame).unwrap();
        let sealed = controller.answer(&frame[..length]);
        let mut plain = super::Link::new(identity(), 1);
        assert_eq!(plain.handle(&sealed, &mut agent, 0), Err(DecodeError::Version(0x81)));
        let reflected = frame[..length].to_vec();
        assert_eq!(link.handle(&reflected, &mut agent, 0), Err(DecodeError::Tag));
        assert_eq!(link.handle(&[0x81; FRAME + 1], &mut agent, 0), Err(DecodeError::Length));
        assert_eq!(link.handle(&sealed, &mut agent, 0), Ok(Event::Model { episode: 1 }));

        link.submit(&agent.finish(), 0);
        let waiting: Vec<u8> = link.unacknowledged().next().unwrap().to_vec();
        let mut damaged = waiting.clone();
        damaged[40] ^= 1;
        let mut resumed = Link::sealed(identity(), 2);
        assert_eq!(resumed.resume(&damaged), Err(DecodeError::Tag));
        assert_eq!(resumed.resume(&reflected), Err(DecodeError::Type(0x01)), "no summary");
        assert_eq!(resumed.resume(&sealed), Err(DecodeError::Tag), "the controller's");
        assert_eq!(resumed.resume(&waiting), Ok(()));
        assert_eq!(resumed.unacknowledged().next(), Some(waiting.as_slice()));
    }
}
