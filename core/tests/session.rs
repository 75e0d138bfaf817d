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
    assert_eq!(resumed.resume(&model(3)), Err(DecodeError::Length), "no summary");
    for _ in 0..2 {
        assert_eq!(resumed.resume(&waiting[2]), Ok(()));
    }
    assert_eq!(resumed.unacknowledged().count(), 1, "kept twice, sent once");
    assert_eq!(poll(&mut resumed, 7, 0), Some(waiting[2].clone()));
}
