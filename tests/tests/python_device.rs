//! The device in Python, written from `docs/wire.md`, against a stub controller and a twin of the device in Rust. Also the
//! examples of that page, which it generates.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

use fedbandit_core::wire::{Channel, Identity, Message, max_sealed_frame_len};
use fedbandit_core::{Action, Agent, Model, Prior, Rewards, packed_len};
use fedbandit_tests::harness::firmware_device::Line;
use fedbandit_tests::harness::process::{Lines, Process, wait_for};
use fedbandit_tests::harness::repository;

const D: usize = 3;
const EPISODE_LEN: u32 = 40;
const EPISODES: u32 = 5;

/// The Python program.
struct Python {
    process: Process,
    output: Lines,
}

impl Python {
    fn start(listener: &TcpListener, identity: &Path, episodes: u32) -> Self {
        let mut command = Command::new("python3");
        command.arg("-B").arg(repository().join("tests/reference_device.py"));
        command.args(["--connect", &listener.local_addr().unwrap().to_string(), "--episodes", &episodes.to_string()]);
        let mut process = Process::spawn(command.arg("--identity").arg(identity));
        let output = process.stdout();
        Self { process, output }
    }

    /// Waits for a line of output with a prefix, and returns the rest of it.
    fn line(&mut self, prefix: &str) -> String {
        let rest = self.output.find_map(|line| line.strip_prefix(prefix).map(str::to_owned));
        rest.unwrap_or_else(|| panic!("the program ended without the line {prefix:?}"))
    }

    /// Waits for the end of the program, and returns true if it succeeds.
    fn succeeds(mut self) -> bool {
        self.output.by_ref().for_each(drop);
        self.process.0.wait().unwrap().success()
    }
}

/// Controller end of a link, plain or sealed.
struct Controller(Channel);

impl Controller {
    fn new(identity: &Identity, sealed: bool) -> Self {
        let identity = identity.clone();
        Self(if sealed { Channel::sealed_controller(identity, 1) } else { Channel::plain(identity) })
    }

    fn encode(&mut self, message: &Message<'_>) -> Vec<u8> {
        let mut frame = vec![0; max_sealed_frame_len(D)];
        let length = self.0.encode(message, &mut frame).unwrap();
        frame.truncate(length);
        frame
    }

    /// Waits for a frame that `wanted` accepts. Others are skipped.
    fn receive<T>(&self, line: &mut Line, wanted: impl Fn(&Message<'_>) -> Option<T>) -> (Vec<u8>, T) {
        wait_for("frame of the device", || {
            let frame = line.poll()?;
            let mut opened = frame.clone();
            let message = self.0.decode(&mut opened).expect("the device sends valid frames");
            let found = wanted(&message)?;
            Some((frame, found))
        })
    }

    fn hello(&self, line: &mut Line) -> (u32, u32) {
        let hello = |message: &Message<'_>| match *message {
            Message::Hello { episode, boot } => Some((episode, boot)),
            _ => None,
        };
        self.receive(line, hello).1
    }

    /// A summary's frame, its steps and its values.
    fn summary(&self, line: &mut Line, wanted: u32) -> (Vec<u8>, (u32, Vec<f32>)) {
        self.receive(line, |message| match message {
            Message::Summary(summary) if summary.episode == wanted => {
                let sums = summary.gram.iter().chain(summary.feature_sum.iter());
                Some((summary.steps, sums.chain([summary.reward_sum]).collect()))
            }
            _ => None,
        })
    }
}

/// Decision set of a step, as in `reference_device.py`.
fn decision_set(step: u32) -> [Action<D>; 5] {
    std::array::from_fn(|i| {
        Action::from(std::array::from_fn::<f32, D, _>(|j| {
            ((2.4 * i as f64 + 0.7 * f64::from(step) + 1.9 * j as f64).cos() / (D as f64).sqrt()) as f32
        }))
    })
}

/// Reward of an action, as in `reference_device.py`.
fn reward(x: &Action<D>) -> f32 {
    x.iter().zip([1.0, -0.5, 0.25]).map(|(x, theta)| x * theta).sum()
}

/// Runs one episode of the twin, and returns the values of its summary.
fn run_episode(twin: &mut Agent<D>, step: &mut u32) -> Vec<f32> {
    for _ in 0..EPISODE_LEN {
        let actions = decision_set(*step);
        *step += 1;
        let choice = twin.select(&actions).unwrap();
        twin.record(&actions[choice.index], reward(&actions[choice.index])).unwrap();
    }
    let summary = twin.finish();
    summary.gram().chain(*summary.feature_sum()).chain([summary.reward_sum()]).collect()
}

fn identity_file(identity: &Identity, sealed: bool) -> PathBuf {
    let directory = env::temp_dir().join(format!("fedbandit-python-{}-{}", process::id(), identity.agent));
    _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("identity");
    fs::write(&file, if sealed { identity.to_sealed_blob() } else { identity.to_blob() }).unwrap();
    file
}

/// Runs several episodes in one mode. Every summary equals the twin's, is repeated until it is acknowledged, also over a new
/// connection, and the rewards grow.
fn check_device(agent: u32, sealed: bool) {
    let identity = Identity { run: 7, agent, dimension: D as u8, key: std::array::from_fn(|i| i as u8 ^ 0xa5) };
    let (file, listener) = (identity_file(&identity, sealed), TcpListener::bind("127.0.0.1:0").unwrap());
    let mut python = Python::start(&listener, &file, EPISODES);
    let mut line = Line::accept(&listener, &mut python.process).unwrap();
    let mut controller = Controller::new(&identity, sealed);
    assert_eq!(controller.hello(&mut line), (1, 1));

    let (mut theta, mut design) = ([0.0; D], [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
    let prior = Prior { lambda: 1.0, beta: 0.5, episode_len: EPISODE_LEN, rewards: Rewards::Clipped };
    let (mut twin, mut step, mut rewards) = (Agent::<D>::new(&prior).unwrap(), 0, Vec::new());
    for episode in 1..=EPISODES {
        let model = Model {
            episode,
            episode_len: EPISODE_LEN,
            beta: 0.5,
            rewards: Rewards::Clipped,
            theta: (&theta).into(),
            design: (&design).into(),
        };
        let frame = controller.encode(&Message::Model(model));
        if episode == 1 {
            // Noise, a damaged frame, one under another key, one of the other mode, one that is not positive definite: the
            // device drops them and still asks.
            line.send_bytes(&[7, 1, 2, 0, 0, 255, 255]).unwrap();
            line.send_bytes(&[9; 5_000]).unwrap();
            line.send_bytes(&[0]).unwrap();
            let mut damaged = frame.clone();
            damaged[40] ^= 1;
            line.send(&damaged).unwrap();
            let stranger = Identity { key: [9; 32], ..identity.clone() };
            line.send(&Controller::new(&stranger, sealed).encode(&Message::Model(model))).unwrap();
            line.send(&Controller::new(&identity, !sealed).encode(&Message::Model(model))).unwrap();
            let indefinite = [1.0, 2.0, 0.0, 1.0, 0.0, 1.0];
            let indefinite = Model { design: (&indefinite).into(), ..model };
            line.send(&controller.encode(&Message::Model(indefinite))).unwrap();
            for reason in ["wrong tag", "wrong tag", "wrong version", "model is not positive definite"] {
                while !python.line("frame dropped: ").starts_with(reason) {}
            }
            assert_eq!(controller.hello(&mut line), (1, 1));
        }
        line.send(&frame).unwrap();

        twin.begin(&model).unwrap();
        let expected = run_episode(&mut twin, &mut step);
        let (first, (steps, values)) = controller.summary(&mut line, episode);
        assert_eq!(steps, EPISODE_LEN);
        // The twin computes in f32: 40 roundings of sums that are below 40.
        let error = values.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error < 1e-4, "episode {episode}: expected {expected:?}, found {values:?}");
        rewards.push(python.line(&format!("episode {episode}: mean reward ")).parse::<f64>().unwrap());

        if episode == 2 {
            assert_eq!(controller.summary(&mut line, episode).0, first, "the same bytes again");
            drop(line);
            line = Line::accept(&listener, &mut python.process).unwrap();
            assert_eq!(controller.summary(&mut line, episode).0, first, "the same bytes over a new connection");
        }
        line.send(&controller.encode(&Message::Ack { episode })).unwrap();
        design.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
        theta.iter_mut().zip(&values[packed_len(D)..]).for_each(|(theta, u)| *theta += u / EPISODE_LEN as f32);
    }
    assert!(python.succeeds());
    assert!(rewards[EPISODES as usize - 1] > rewards[0] + 0.1, "the rewards do not grow: {rewards:?}");

    // The next start has another boot number, also in its nonces.
    let mut python = Python::start(&listener, &file, 1);
    let mut line = Line::accept(&listener, &mut python.process).unwrap();
    let hello = |message: &Message<'_>| matches!(message, Message::Hello { boot: 2, .. }).then_some(());
    let (frame, ()) = controller.receive(&mut line, hello);
    if sealed {
        assert_eq!(frame[16..28], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    fs::remove_dir_all(file.parent().unwrap()).unwrap();
}

#[test]
fn python_device_learns() {
    check_device(1, false);
}

#[test]
fn python_device_learns_with_sealed_frames() {
    check_device(2, true);
}

/// The page and the tests of core show the frames that the Python program generates.
#[test]
fn generated_examples_are_in_the_documentation() {
    let script = repository().join("tests/wire_examples.py");
    let output = Command::new("python3").arg("-B").arg(script).output().expect("./ci.sh python installs python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |path| fs::read_to_string(repository().join(path)).unwrap();
    let (page, golden) = (read("docs/wire.md"), read("core/tests/wire.rs"));
    let examples = String::from_utf8(output.stdout).unwrap();
    assert_eq!(examples.lines().count(), 14);
    for example in examples.lines() {
        assert!(page.lines().any(|line| line == example), "not in docs/wire.md: {example}");
        let bytes: String = example.split('`').nth(1).unwrap().split(' ').collect();
        assert!(golden.contains(&bytes), "not in core/tests/wire.rs: {example}");
    }
}
