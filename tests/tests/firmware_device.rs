//! The firmware device on its serial line, against a stub controller and a twin of the device on the host.

use std::path::PathBuf;

use fedbandit_core::wire::{Identity, Message, NackReason, cobs, max_frame_len};
use fedbandit_core::{Agent, EpisodeSummary, MAX_EPISODE_LEN, Model, Prior, Rewards, packed_len};
use fedbandit_tests::harness::firmware::{BOARDS, Board, Program};
use fedbandit_tests::harness::firmware_device::{Device, Line};
use fedbandit_tests::harness::process::{wait_for, wait_until};

#[path = "../../firmware-example/src/environment.rs"]
#[expect(unreachable_pub, reason = "shared with the firmware")]
mod environment;

use environment::{D, Environment};

const EPISODE_LEN: u32 = 48;

/// Prior of the firmware.
const PRIOR: Prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 64, rewards: Rewards::Clipped };

fn identity(agent: u32) -> Identity {
    Identity { run: 7, agent, dimension: D as u8, key: std::array::from_fn(|i| i as u8 ^ 0x5a) }
}

fn build(board: Board, patience: Option<u32>) -> PathBuf {
    let program = Program { patience, ..Program::new("device", board, "opt-s") };
    program.build().unwrap_or_else(|error| panic!("{board:?}:\n{error}"))
}

/// A device that waits five seconds for a model before it continues with its last one.
fn impatient_device(board: Board, identity: &Identity) -> Device {
    Device::start(board, &build(board, Some(5_000)), identity).unwrap()
}

/// A model, updated as a controller of one device would.
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

    /// Adds a summary to Λ, and moves θ along its feature sum.
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

/// Waits for a frame that `wanted` accepts. Others, such as repeated hellos, are skipped.
fn receive<T>(
    line: &mut Line,
    identity: &Identity,
    what: &str,
    wanted: impl Fn(&Message<'_>) -> Option<T>,
) -> (T, Vec<u8>) {
    wait_for(what, || {
        let frame = line.poll()?;
        let found = match identity.decode(&frame) {
            Ok(message) => wanted(&message)?,
            Err(error) => {
                assert!(line.excuses(), "the device sent an invalid frame: {error:?}");
                return None;
            }
        };
        Some((found, frame))
    })
}

/// Waits for a hello, and returns its episode and boot number.
fn hello(line: &mut Line, identity: &Identity) -> (u32, u32) {
    let wanted = |message: &Message<'_>| match message {
        Message::Hello { episode, boot } => Some((*episode, *boot)),
        _ => None,
    };
    receive(line, identity, "hello", wanted).0
}

/// Waits for any summary, and returns its episode and frame.
fn any_summary(line: &mut Line, identity: &Identity) -> (u32, Vec<u8>) {
    let wanted = |message: &Message<'_>| match message {
        Message::Summary(summary) => Some(summary.episode),
        _ => None,
    };
    receive(line, identity, "summary", wanted)
}

/// Waits for the summary of an episode. Those of earlier ones, sent again before their answer arrived, are skipped.
fn summary(line: &mut Line, identity: &Identity, episode: u32) -> Vec<u8> {
    loop {
        let (found, frame) = any_summary(line, identity);
        assert!(found <= episode, "the summary of episode {found} came before that of episode {episode}");
        if found == episode {
            return frame;
        }
    }
}

/// Sends a frame until the device logs one more line with a text. A frame that finds the device's queue full is lost.
fn send_until_logged(line: &mut Line, frame: &[u8], device: &Device, text: &str) {
    let before = device.count_in_log(text);
    let mut polls = 0;
    wait_until(text, || {
        if polls % 100 == 0 {
            line.send(frame).unwrap();
        }
        polls += 1;
        device.count_in_log(text) > before
    });
}

/// The device on the host: the same agent in the same environment.
struct Twin {
    agent: Agent<D>,
    environment: Environment,
}

impl Twin {
    fn new(agent: u32) -> Self {
        Self { agent: Agent::new(&PRIOR).unwrap(), environment: Environment::new(agent, 1) }
    }

    fn step(&mut self) {
        let decision_set = self.environment.decision_set();
        let choice = self.agent.select(&decision_set).unwrap();
        let reward = self.environment.reward(&decision_set[choice.index]);
        self.agent.record(&decision_set[choice.index], reward).unwrap();
    }

    /// Completes the running episode.
    fn complete(&mut self) {
        while self.agent.steps() < self.agent.episode_len() {
            self.step();
        }
    }
}

/// Frame of a summary.
fn frame(identity: &Identity, summary: &EpisodeSummary<'_, D>) -> Vec<u8> {
    let mut frame = vec![0; max_frame_len(D)];
    let length = identity.encode_summary(summary, &mut frame).unwrap();
    frame.truncate(length);
    frame
}

/// Three episodes on every board: each summary equals the twin's, bit for bit.
#[test]
fn device_on_every_board_learns_like_its_twin() {
    for (number, board) in BOARDS.into_iter().enumerate() {
        let identity = identity(100 + number as u32);
        let mut device = Device::start(board, &build(board, None), &identity).unwrap();
        let mut line = device.line().unwrap();
        assert_eq!(hello(&mut line, &identity), (1, 1), "{board:?}");
        let mut model = OwnedModel::first(EPISODE_LEN);
        let mut twin = Twin::new(identity.agent);
        for episode in 1..=3 {
            line.send(&encode(&identity, &Message::Model(model.view()))).unwrap();
            twin.agent.begin(&model.view()).unwrap();
            twin.complete();
            let expected = twin.agent.finish();
            assert_eq!(summary(&mut line, &identity, episode), frame(&identity, &expected), "{board:?}, {episode}");
            line.send(&encode(&identity, &Message::Ack { episode })).unwrap();
            model.learn(&expected);
        }
        device.wait_for_log("episode 3 finished");
    }
}

/// Unacknowledged summaries are sent again with the same bytes. Damaged, foreign and hostile frames have no effect. The
/// device continues after the link was cut.
#[test]
fn device_on_a_bad_line_loses_nothing() {
    let (board, identity) = (BOARDS[0], identity(1));
    let mut device = impatient_device(board, &identity);
    let mut line = device.line().unwrap();
    let model = OwnedModel::first(EPISODE_LEN);
    let mut twin = Twin::new(identity.agent);
    twin.agent.begin(&model.view()).unwrap();
    twin.complete();
    let expected = frame(&identity, &twin.agent.finish());

    // Noise, a damaged model, one under another key, one that is not positive definite: the device takes none of them.
    let good = encode(&identity, &Message::Model(model.view()));
    line.send_bytes(&[7, 1, 2, 0, 0, 255, 255]).unwrap();
    line.send_bytes(&[9; 5_000]).unwrap();
    line.send_bytes(&[0]).unwrap();
    let mut damaged = good.clone();
    damaged[60] ^= 1;
    let stranger = Identity { key: [9; 32], ..identity.clone() };
    let mut indefinite = OwnedModel::first(EPISODE_LEN);
    indefinite.design[0] = -1.0;
    send_until_logged(&mut line, &damaged, &device, "frame dropped");
    send_until_logged(&mut line, &encode(&stranger, &Message::Model(model.view())), &device, "frame dropped");
    send_until_logged(&mut line, &encode(&identity, &Message::Model(indefinite.view())), &device, "model rejected");

    // The good one twice; then no acknowledgement until the summary has come three times.
    send_until_logged(&mut line, &good, &device, "model of episode 1");
    line.send(&good).unwrap();
    for _ in 0..3 {
        assert_eq!(summary(&mut line, &identity, 1), expected);
    }

    // QEMU connects a dropped line again; the summary is still waiting.
    drop(line);
    let mut line = device.line().unwrap();
    assert_eq!(summary(&mut line, &identity, 1), expected);
    let nack = Message::Nack { episode: 1, reason: NackReason::WrongEpisode };
    line.send(&encode(&identity, &nack)).unwrap();

    // Without a model of episode 2, the device continues with the one it has.
    twin.complete();
    assert_eq!(summary(&mut line, &identity, 2), frame(&identity, &twin.agent.finish()));
}

/// On the smallest board the waiting summaries fill the RAM.
#[test]
fn device_without_a_controller_continues_with_its_model() {
    for (agent, board) in [(2, BOARDS[0]), (9, BOARDS[3])] {
        let identity = identity(agent);
        let mut device = impatient_device(board, &identity);
        let mut line = device.line().unwrap();
        let model = OwnedModel::first(EPISODE_LEN);
        let first = encode(&identity, &Message::Model(model.view()));
        send_until_logged(&mut line, &first, &device, "model of episode 1");
        for episode in 1..=3 {
            device.wait_for_log(&format!("episode {episode} finished"));
        }
        // All three summaries wait for a controller that returns.
        let mut twin = Twin::new(identity.agent);
        twin.agent.begin(&model.view()).unwrap();
        for episode in 1..=3 {
            twin.complete();
            assert_eq!(summary(&mut line, &identity, episode), frame(&identity, &twin.agent.finish()), "{board:?}");
            line.send(&encode(&identity, &Message::Ack { episode })).unwrap();
        }
    }
}

/// The device counts the start, restores its recorded steps, and completes the episode.
#[test]
fn device_reset_within_an_episode_completes_it() {
    // On a busy machine the episode may end before the reset: then again, with another device.
    assert!((3..20).any(completes_episode_after_reset), "the reset never came within the episode");
}

fn completes_episode_after_reset(agent: u32) -> bool {
    let (board, identity) = (BOARDS[0], identity(agent));
    let mut device = impatient_device(board, &identity);
    let mut line = device.line().unwrap();
    let model = OwnedModel::first(MAX_EPISODE_LEN);
    let model_frame = encode(&identity, &Message::Model(model.view()));
    send_until_logged(&mut line, &model_frame, &device, "model of episode 1");
    device.wait_for_log("half of episode 1");
    device.reset(&mut line).unwrap();

    let (episode, steps) = restored(&device);
    if episode != 1 {
        return false;
    }
    assert!((MAX_EPISODE_LEN / 2..MAX_EPISODE_LEN).contains(&steps));
    // A hello of the first start may still be on the line.
    while hello(&mut line, &identity) != (1, 2) {}
    line.send(&model_frame).unwrap();

    let mut twin = Twin::new(identity.agent);
    twin.agent.begin(&model.view()).unwrap();
    (0..steps).for_each(|_| twin.step());
    twin.environment = Environment::new(identity.agent, 2);
    twin.complete();
    assert_eq!(summary(&mut line, &identity, 1), frame(&identity, &twin.agent.finish()));
    true
}

/// Waits for the end of a reset, and returns the episode and the steps that the device has restored.
fn restored(device: &Device) -> (u32, u32) {
    let line = device.wait_for_log("restored episode");
    let words: Vec<&str> = line.split(' ').collect();
    let ["restored", "episode", episode, "with", steps, "steps"] = words[..] else { panic!("{line}") };
    (episode.parse().unwrap(), steps.parse().unwrap())
}

/// Waits for a summary, and refuses all others.
fn refuse_until(line: &mut Line, identity: &Identity, expected: &[u8]) {
    for _ in 0..100 {
        let (episode, frame) = any_summary(line, identity);
        if frame == expected {
            return;
        }
        let nack = Message::Nack { episode, reason: NackReason::WrongEpisode };
        line.send(&encode(identity, &nack)).unwrap();
    }
    panic!("the expected summary is not among a hundred");
}

/// Damaged models, a line cut within a frame, three episodes without a controller, a reset: the device continues with its
/// last good model. It then follows a controller that was down as well and is behind.
#[test]
fn device_keeps_its_last_good_model_and_resumes() {
    for (agent, board) in [(20, BOARDS[0]), (21, BOARDS[3])] {
        let identity = identity(agent);
        let mut device = impatient_device(board, &identity);
        let mut line = device.line().unwrap();
        let mut model = OwnedModel::first(EPISODE_LEN);
        let mut twin = Twin::new(agent);
        let model_frame = encode(&identity, &Message::Model(model.view()));
        send_until_logged(&mut line, &model_frame, &device, "model of episode 1");
        twin.agent.begin(&model.view()).unwrap();
        twin.complete();
        let first = twin.agent.finish();
        assert_eq!(summary(&mut line, &identity, 1), frame(&identity, &first), "{board:?}");
        line.send(&encode(&identity, &Message::Ack { episode: 1 })).unwrap();
        model.learn(&first);

        // The next model never arrives whole: one bit is wrong, its end is missing, or two are joined.
        let good = encode(&identity, &Message::Model(model.view()));
        for at in (0..good.len()).step_by(7) {
            let mut damaged = good.clone();
            damaged[at] ^= 1 << (at % 8);
            send_until_logged(&mut line, &damaged, &device, "frame dropped");
            send_until_logged(&mut line, &good[..at.max(1)], &device, "frame dropped");
            line.send(&[&good[at..], &good[..]].concat()).unwrap();
        }
        let stuffed: Vec<u8> = cobs::encode(&good).collect();
        line.send_bytes(&stuffed[..stuffed.len() / 2]).unwrap();
        drop(line);

        // Three episodes without a controller, by the first model.
        for episode in 2..=4 {
            device.wait_for_log(&format!("episode {episode} finished"));
        }
        let mut line = device.line().unwrap();
        for episode in 2..=4 {
            twin.complete();
            // The controller was down as well and is in episode 2: it refuses later ones.
            let expected = frame(&identity, &twin.agent.finish());
            refuse_until(&mut line, &identity, &expected);
            let reason = NackReason::WrongEpisode;
            let answer = if episode == 2 { Message::Ack { episode } } else { Message::Nack { episode, reason } };
            line.send(&encode(&identity, &answer)).unwrap();
        }

        // Its model of episode 3 takes the device back.
        model.episode = 3;
        let third_model = encode(&identity, &Message::Model(model.view()));
        send_until_logged(&mut line, &third_model, &device, "model of episode 3");
        // A slow machine may have completed more episodes by the first model before that.
        let log = device.log();
        let before = log.iter().take_while(|line| !line.contains("model of episode 3"));
        for _ in 4..before.filter(|line| line.contains("finished")).count() {
            twin.complete();
            twin.agent.finish();
        }
        twin.agent = Agent::new(&PRIOR).unwrap();
        twin.agent.begin(&model.view()).unwrap();
        twin.complete();
        let third = frame(&identity, &twin.agent.finish());
        refuse_until(&mut line, &identity, &third);
        line.send(&encode(&identity, &Message::Ack { episode: 3 })).unwrap();

        // After a reset, and without a controller, it continues from there.
        device.wait_for_log("Acknowledged { episode: 3 }");
        device.reset(&mut line).unwrap();
        let (episode, steps) = restored(&device);
        while twin.agent.episode() < episode {
            twin.complete();
            twin.agent.finish();
        }
        (0..steps).for_each(|_| twin.step());
        twin.environment = Environment::new(agent, 2);
        twin.complete();
        let next = frame(&identity, &twin.agent.finish());
        refuse_until(&mut line, &identity, &next);
        assert_eq!(device.count_in_log("panic"), 0, "{:?}", device.log());
    }
}
