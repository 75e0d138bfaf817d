//! The firmware device on its serial line, against a stub of a controller and a twin of the device on this computer.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use fedbandit_core::wire::{Identity, Message, NackReason, cobs, max_frame_len};
use fedbandit_core::{Agent, EpisodeSummary, MAX_EPISODE_LEN, Model, Prior, Rewards, packed_len};
use fedbandit_tests::harness::firmware::{BOARDS, Board, Program};
use fedbandit_tests::harness::firmware_device::{Device, Line};

#[path = "../../firmware-example/src/environment.rs"]
#[expect(unreachable_pub, reason = "the firmware's own file")]
mod environment;

use environment::{D, Environment};

const EPISODE_LEN: u32 = 48;
const PATIENCE: Duration = Duration::from_secs(60);

fn identity(agent: u32) -> Identity {
    Identity { run: 7, agent, dimension: D as u8, key: std::array::from_fn(|i| i as u8 ^ 0x5a) }
}

fn build(board: Board) -> PathBuf {
    let program = Program { bin: "device", board, profile: "opt-s", features: &[], dimension: None };
    program.build().unwrap_or_else(|error| panic!("{board:?}:\n{error}"))
}

/// A model as a controller of one device would make it.
struct OwnedModel {
    episode: u32,
    episode_len: u32,
    theta: [f32; D],
    design: [f32; packed_len(D)],
}

impl OwnedModel {
    fn first(episode_len: u32) -> Self {
        let mut on_diagonal = (0..D).flat_map(|i| (i..D).map(move |j| i == j));
        let design = std::array::from_fn(|_| if on_diagonal.next() == Some(true) { 1.0 } else { 0.0 });
        Self { episode: 1, episode_len, theta: [0.0; D], design }
    }

    /// Adds a summary to Λ and moves θ along its feature sum.
    fn learn(&mut self, summary: &EpisodeSummary<'_, D>) {
        self.episode = summary.episode() + 1;
        self.design.iter_mut().zip(summary.gram()).for_each(|(sum, value)| *sum += value);
        self.theta.iter_mut().zip(summary.feature_sum()).for_each(|(theta, u)| *theta += u / EPISODE_LEN as f32);
    }

    fn view(&self) -> Model<'_> {
        Model {
            episode: self.episode,
            episode_len: self.episode_len,
            beta: 0.5,
            rewards: Rewards::Clipped,
            theta: (&self.theta).into(),
            design: (&self.design).into(),
        }
    }
}

fn encode(identity: &Identity, message: &Message<'_>) -> Vec<u8> {
    let mut frame = vec![0; max_frame_len(D)];
    let length = identity.encode(message, &mut frame).unwrap();
    frame.truncate(length);
    frame
}

/// The next frame of a kind; others, such as repeated hellos, are passed over.
fn receive(line: &mut Line, identity: &Identity, wanted: fn(&Message<'_>) -> bool) -> Vec<u8> {
    loop {
        let frame = line.receive(PATIENCE).expect("the device fell silent");
        match identity.decode(&frame) {
            Ok(message) if wanted(&message) => return frame,
            Ok(_) => {}
            Err(error) => assert!(line.excuses(), "the device sent a frame that is none: {error:?}"),
        }
    }
}

fn hello(line: &mut Line, identity: &Identity) -> (u32, u32) {
    let frame = receive(line, identity, |message| matches!(message, Message::Hello { .. }));
    match identity.decode(&frame) {
        Ok(Message::Hello { episode, boot }) => (episode, boot),
        other => panic!("{other:?}"),
    }
}

fn summary(line: &mut Line, identity: &Identity) -> Vec<u8> {
    receive(line, identity, |message| matches!(message, Message::Summary(_)))
}

/// The device's life on this computer: same agent, same world.
struct Twin {
    agent: Agent<D>,
    world: Environment,
}

impl Twin {
    fn new(agent: u32) -> Self {
        let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 64, rewards: Rewards::Clipped };
        Self { agent: Agent::new(&prior).unwrap(), world: Environment::new(agent, 1) }
    }

    fn step(&mut self) {
        let decision_set = self.world.decision_set();
        let choice = self.agent.select(&decision_set).unwrap();
        let reward = self.world.reward(&decision_set[choice.index]);
        self.agent.record(&decision_set[choice.index], reward).unwrap();
    }

    fn live(&mut self) {
        while self.agent.steps() < self.agent.episode_len() {
            self.step();
        }
    }
}

/// The summary's frame.
fn frame(identity: &Identity, summary: &EpisodeSummary<'_, D>) -> Vec<u8> {
    let mut frame = vec![0; max_frame_len(D)];
    let length = identity.encode_summary(summary, &mut frame).unwrap();
    frame.truncate(length);
    frame
}

/// On every board, three episodes: each summary is the twin's, bit for bit.
#[test]
fn a_device_learns_like_its_twin() {
    for (number, board) in BOARDS.into_iter().enumerate() {
        let identity = identity(100 + number as u32);
        let device = Device::start(board, &build(board), &identity).unwrap();
        let mut line = device.line().unwrap();
        assert_eq!(hello(&mut line, &identity), (1, 1), "{board:?}");
        let mut model = OwnedModel::first(EPISODE_LEN);
        let mut twin = Twin::new(identity.agent);
        for episode in 1..=3 {
            line.send(&encode(&identity, &Message::Model(model.view()))).unwrap();
            twin.agent.begin(&model.view()).unwrap();
            twin.live();
            let expected = twin.agent.finish();
            assert_eq!(summary(&mut line, &identity), frame(&identity, &expected), "{board:?}, episode {episode}");
            line.send(&encode(&identity, &Message::Ack { episode })).unwrap();
            model.learn(&expected);
        }
        let log = device.wait_for_log("episode 3 is over", PATIENCE);
        assert!(log.is_some(), "{board:?} logged {:?}", device.log());
    }
}

/// Unacknowledged summaries come again, the same bytes; damaged, foreign and hostile frames change nothing; after the link was cut, the device
/// goes on where it was.
#[test]
fn a_device_outlives_a_bad_line() {
    let (board, identity) = (BOARDS[0], identity(1));
    let device = Device::start(board, &build(board), &identity).unwrap();
    let mut line = device.line().unwrap();
    let model = OwnedModel::first(EPISODE_LEN);
    let mut twin = Twin::new(identity.agent);
    twin.agent.begin(&model.view()).unwrap();
    twin.live();
    let expected = frame(&identity, &twin.agent.finish());

    // Noise, a damaged model, one with another's key, one that is not positive definite: none is taken into use.
    let good = encode(&identity, &Message::Model(model.view()));
    line.send_bytes(&[7, 1, 2, 0, 0, 255, 255]).unwrap();
    line.send_bytes(&[9; 5_000]).unwrap();
    line.send_bytes(&[0]).unwrap();
    let mut damaged = good.clone();
    damaged[60] ^= 1;
    let stranger = Identity { key: [9; 32], ..identity.clone() };
    let mut indefinite = OwnedModel::first(EPISODE_LEN);
    indefinite.design[0] = -1.0;
    // What comes while the noise fills the device's queue is lost, so it comes again, as a controller's model would.
    let refused = (0..20).any(|_| {
        line.send(&damaged).unwrap();
        line.send(&encode(&stranger, &Message::Model(model.view()))).unwrap();
        line.send(&encode(&identity, &Message::Model(indefinite.view()))).unwrap();
        device.wait_for_log("model refused", PATIENCE / 20).is_some()
    });
    assert!(refused, "{:?}", device.log());
    let dropped = device.log().iter().filter(|line| line.contains("frame dropped")).count();
    assert!(dropped >= 2, "{:?}", device.log());

    // The good one twice; then no acknowledgement until the summary has come three times.
    line.send(&good).unwrap();
    line.send(&good).unwrap();
    for _ in 0..3 {
        assert_eq!(summary(&mut line, &identity), expected);
    }

    // The line is cut, and connected again by QEMU; the summary is still waiting.
    drop(line);
    let mut line = device.line().unwrap();
    assert_eq!(summary(&mut line, &identity), expected);
    let nack = Message::Nack { episode: 1, reason: NackReason::WrongEpisode };
    line.send(&encode(&identity, &nack)).unwrap();

    // That summary does not come again. With no model of episode 2, the device went on with the one it had.
    twin.live();
    assert_eq!(summary(&mut line, &identity), frame(&identity, &twin.agent.finish()));
}

/// With no controller at all after the first model, the device goes on with it, episode after episode; on the smallest board too, whose
/// RAM the waiting summaries fill.
#[test]
fn a_device_without_a_controller_goes_on() {
    for (agent, board) in [(2, BOARDS[0]), (9, BOARDS[3])] {
        let identity = identity(agent);
        let device = Device::start(board, &build(board), &identity).unwrap();
        let mut line = device.line().unwrap();
        let model = OwnedModel::first(EPISODE_LEN);
        line.send(&encode(&identity, &Message::Model(model.view()))).unwrap();
        for episode in 1..=3 {
            let over = format!("episode {episode} is over");
            assert!(device.wait_for_log(&over, PATIENCE).is_some(), "{board:?}: {:?}", device.log());
        }
        // All three summaries are still there for a controller that comes back.
        let mut twin = Twin::new(identity.agent);
        twin.agent.begin(&model.view()).unwrap();
        for episode in 1..=3 {
            twin.live();
            let expected = frame(&identity, &twin.agent.finish());
            while summary(&mut line, &identity) != expected {}
            line.send(&encode(&identity, &Message::Ack { episode })).unwrap();
        }
    }
}

/// A reset in the middle of an episode: the device counts the start, comes back with the steps it had, and finishes the episode.
#[test]
fn a_device_survives_a_reset() {
    // On a machine so busy that the second half of the episode was over before the reset, there is nothing to see: again.
    assert!((3..8).any(resets_in_the_middle), "the reset never came in time");
}

fn resets_in_the_middle(agent: u32) -> bool {
    let (board, identity) = (BOARDS[0], identity(agent));
    let mut device = Device::start(board, &build(board), &identity).unwrap();
    let mut line = device.line().unwrap();
    let model = OwnedModel::first(MAX_EPISODE_LEN);
    let model_frame = encode(&identity, &Message::Model(model.view()));
    line.send(&model_frame).unwrap();
    assert!(device.wait_for_log("half of episode 1", PATIENCE).is_some(), "{:?}", device.log());
    device.reset(&mut line).unwrap();

    let back = device.wait_for_log("back in episode", PATIENCE).unwrap_or_else(|| panic!("{:?}", device.log()));
    let words: Vec<&str> = back.split(' ').collect();
    let ["back", "in", "episode", "1", "with", steps, "steps"] = words[..] else { return false };
    let steps: u32 = steps.parse().unwrap();
    assert!((MAX_EPISODE_LEN / 2..MAX_EPISODE_LEN).contains(&steps));
    // The first start's hello may still be on the line.
    while hello(&mut line, &identity) != (1, 2) {}
    line.send(&model_frame).unwrap();

    let mut twin = Twin::new(identity.agent);
    twin.agent.begin(&model.view()).unwrap();
    (0..steps).for_each(|_| twin.step());
    twin.world = Environment::new(identity.agent, 2);
    twin.live();
    assert_eq!(summary(&mut line, &identity), frame(&identity, &twin.agent.finish()));
    true
}

/// Waits for a summary, and refuses all others.
fn refuse_until(line: &mut Line, identity: &Identity, expected: &[u8]) {
    loop {
        let frame = summary(line, identity);
        if frame == expected {
            return;
        }
        let Ok(Message::Summary(other)) = identity.decode(&frame) else { panic!() };
        let nack = Message::Nack { episode: other.episode, reason: NackReason::WrongEpisode };
        line.send(&encode(identity, &nack)).unwrap();
    }
}

/// Damaged models, a line that is lost in the middle of a frame, no controller for three episodes, a reset: the device goes on with its last
/// good model, and comes back to a controller that was away itself and is behind it.
#[test]
fn a_device_keeps_its_last_good_model_and_resumes() {
    for (agent, board) in [(20, BOARDS[0]), (21, BOARDS[3])] {
        let identity = identity(agent);
        let mut device = Device::start(board, &build(board), &identity).unwrap();
        let mut line = device.line().unwrap();
        let mut model = OwnedModel::first(EPISODE_LEN);
        let mut twin = Twin::new(agent);
        line.send(&encode(&identity, &Message::Model(model.view()))).unwrap();
        twin.agent.begin(&model.view()).unwrap();
        twin.live();
        let first = twin.agent.finish();
        assert_eq!(summary(&mut line, &identity), frame(&identity, &first), "{board:?}");
        line.send(&encode(&identity, &Message::Ack { episode: 1 })).unwrap();
        model.learn(&first);

        // The next model never arrives whole: a bit of it is wrong, an end is missing, or two are one.
        let good = encode(&identity, &Message::Model(model.view()));
        let mut dropped = 0;
        for at in (0..good.len()).step_by(7) {
            let mut damaged = good.clone();
            damaged[at] ^= 1 << (at % 8);
            line.send(&damaged).unwrap();
            line.send(&good[..at.max(1)]).unwrap();
            line.send(&[&good[at..], &good[..]].concat()).unwrap();
            dropped += 1;
        }
        let seen = || device.log().iter().filter(|line| line.contains("frame dropped")).count();
        let deadline = Instant::now() + PATIENCE;
        while seen() < dropped && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
        }
        // The device's queue is short: what comes too fast is lost, and means nothing either.
        assert!(seen() > dropped / 2, "{board:?}: {:?}", device.log());
        let stuffed: Vec<u8> = cobs::encode(&good).collect();
        line.send_bytes(&stuffed[..stuffed.len() / 2]).unwrap();
        drop(line);

        // Nobody is there for three episodes: they are lived by the first model.
        for episode in 2..=4 {
            let over = format!("episode {episode} is over");
            assert!(device.wait_for_log(&over, PATIENCE).is_some(), "{board:?}: {:?}", device.log());
        }
        let mut line = device.line().unwrap();
        for episode in 2..=4 {
            twin.live();
            // This controller was away as well, and is in episode 2: what is of later ones it does not take.
            let expected = frame(&identity, &twin.agent.finish());
            refuse_until(&mut line, &identity, &expected);
            let reason = NackReason::WrongEpisode;
            let answer = if episode == 2 { Message::Ack { episode } } else { Message::Nack { episode, reason } };
            line.send(&encode(&identity, &answer)).unwrap();
        }

        // Its model of episode 3 brings the device back there.
        model.episode = 3;
        let returned = (0..20).any(|_| {
            line.send(&encode(&identity, &Message::Model(model.view()))).unwrap();
            device.wait_for_log("model of episode 3", PATIENCE / 20).is_some()
        });
        assert!(returned, "{board:?}: {:?}", device.log());
        let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 64, rewards: Rewards::Clipped };
        // A slow machine may have lived through more episodes by the first model before that.
        let log = device.log();
        let before = log.iter().take_while(|line| !line.contains("model of episode 3"));
        for _ in 4..before.filter(|line| line.contains("is over")).count() {
            twin.live();
            twin.agent.finish();
        }
        twin.agent = Agent::new(&prior).unwrap();
        twin.agent.begin(&model.view()).unwrap();
        twin.live();
        let third = frame(&identity, &twin.agent.finish());
        refuse_until(&mut line, &identity, &third);
        line.send(&encode(&identity, &Message::Ack { episode: 3 })).unwrap();

        // After a reset, and with no controller, it goes on from there.
        assert!(device.wait_for_log("Acknowledged { episode: 3 }", PATIENCE).is_some(), "{:?}", device.log());
        device.reset(&mut line).unwrap();
        assert!(device.wait_for_log("back in episode 4 with 0 steps", PATIENCE).is_some(), "{:?}", device.log());
        twin.world = Environment::new(agent, 2);
        twin.live();
        let fourth = frame(&identity, &twin.agent.finish());
        refuse_until(&mut line, &identity, &fourth);
        assert!(!device.log().iter().any(|line| line.contains("panic")), "{:?}", device.log());
    }
}
