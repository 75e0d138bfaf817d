//! The device in Python, written from `docs/wire.md`, against a stub controller and a twin of the device in Rust. Also the
//! examples of that page, which it generates.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

use fedbandit_core::wire::{Channel, Fate, Identity, Message, max_frame_len, unverified_run};
use fedbandit_core::{Action, Agent, Model, Prior, Rewards, packed_len};
use fedbandit_tests::harness::firmware_device::Line;
use fedbandit_tests::harness::process::{Lines, Process, wait_for};
use fedbandit_tests::harness::repository;

const RUN: u32 = 7;
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

/// Controller end of a link.
struct Controller(Channel);

impl Controller {
    fn new(identity: &Identity) -> Self {
        Self(Channel::controller(identity.clone(), 1, RUN))
    }

    fn encode_in(&mut self, run: u32, message: &Message<'_>) -> Vec<u8> {
        self.0.enter_run(run);
        let mut frame = vec![0; max_frame_len(D)];
        let length = self.0.encode(message, &mut frame).unwrap();
        frame.truncate(length);
        frame
    }

    fn encode(&mut self, message: &Message<'_>) -> Vec<u8> {
        self.encode_in(RUN, message)
    }

    /// Waits for a frame that `wanted` accepts, given its run. Others are skipped.
    fn receive<T>(&mut self, line: &mut Line, wanted: impl Fn(u32, &Message<'_>) -> Option<T>) -> (Vec<u8>, T) {
        wait_for("frame of the device", || {
            let frame = line.poll()?;
            let run = unverified_run(&frame).unwrap();
            self.0.enter_run(run);
            let mut opened = frame.clone();
            let message = self.0.decode(&mut opened).expect("the device sends valid frames");
            let found = wanted(run, &message)?;
            Some((frame, found))
        })
    }

    /// Waits for a hello, and returns its run, its other numbers and its challenge.
    fn hello(&mut self, line: &mut Line) -> ((u32, u32, u32), u32) {
        let hello = |run, message: &Message<'_>| match *message {
            Message::Hello { model, boot, challenge } => Some(((run, model, boot), challenge)),
            _ => None,
        };
        self.receive(line, hello).1
    }

    /// Leads a device, in its first start, from run 0 to the run.
    fn join(&mut self, line: &mut Line) {
        let (hello, challenge) = self.hello(line);
        assert_eq!(hello, (0, 0, 1));
        let answers = [
            Message::NextRun { challenge: !challenge, run: RUN },
            Message::NextRun { challenge, run: 0 },
            // A challenge counts once.
            Message::Wait { challenge, wait: 0 },
            Message::NextRun { challenge, run: RUN },
        ];
        for answer in answers {
            line.send(&self.encode_in(0, &answer)).unwrap();
        }
        let (hello, mut challenge) = self.hello(line);
        assert_eq!(hello, (0, 0, 1), "an answer without the challenge has no effect");
        // The device may ask again before it reads the answer.
        loop {
            line.send(&self.encode_in(0, &Message::NextRun { challenge, run: RUN })).unwrap();
            let (hello, next) = self.hello(line);
            if hello == (RUN, 0, 1) {
                return;
            }
            assert_eq!(hello, (0, 0, 1));
            challenge = next;
        }
    }

    /// A summary's frame, its steps and its values.
    fn summary(&mut self, line: &mut Line, wanted: u32) -> (Vec<u8>, (u32, Vec<f32>)) {
        self.receive(line, |run, message| match message {
            Message::Summary(summary) if (run, summary.episode) == (RUN, wanted) => {
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

fn identity_file(identity: &Identity) -> PathBuf {
    let directory = env::temp_dir().join(format!("fedbandit-python-{}-{}", process::id(), identity.agent()));
    _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("identity");
    fs::write(&file, identity.to_blob()).unwrap();
    file
}

/// Runs several episodes in one mode. The device learns its run. Every summary equals the twin's, is repeated until it is
/// acknowledged, also over a new connection, and the rewards grow.
fn check_device(agent: u32, sealed: bool) {
    let plain = |key| Identity::new(3, agent, D as u8, key);
    let mode = |key, sealed| if sealed { plain(key).with_sealed_frames() } else { plain(key) };
    let key = std::array::from_fn(|i| i as u8 ^ 0xa5);
    let identity = mode(key, sealed);
    let (file, listener) = (identity_file(&identity), TcpListener::bind("127.0.0.1:0").unwrap());
    let mut python = Python::start(&listener, &file, EPISODES);
    let mut line = Line::accept(&listener, &mut python.process).unwrap();
    let mut controller = Controller::new(&identity);
    controller.join(&mut line);
    python.line(&format!("run {RUN}"));

    let (mut theta, mut design) = ([0.0; D], [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
    let prior = Prior::new(1.0, 0.5, EPISODE_LEN, Rewards::Clipped);
    let (mut twin, mut step, mut rewards) = (Agent::<D>::new(&prior).unwrap(), 0, Vec::new());
    for episode in 1..=EPISODES {
        let model = Model::new(episode, EPISODE_LEN, 0.5, Rewards::Clipped, &theta, &design);
        let frame = controller.encode(&Message::Model(model));
        if episode == 1 {
            // Noise, a damaged frame, one under another key, one of the other mode, one of another run, one that is not
            // positive definite: the device drops them and still asks.
            line.send_bytes(&[7, 1, 2, 0, 0, 255, 255]).unwrap();
            line.send_bytes(&[9; 5_000]).unwrap();
            line.send_bytes(&[0]).unwrap();
            let mut damaged = frame.clone();
            damaged[40] ^= 1;
            line.send(&damaged).unwrap();
            line.send(&Controller::new(&mode([9; 32], sealed)).encode(&Message::Model(model))).unwrap();
            line.send(&Controller::new(&mode(key, !sealed)).encode(&Message::Model(model))).unwrap();
            line.send(&controller.encode_in(RUN + 1, &Message::Model(model))).unwrap();
            let indefinite = [1.0, 2.0, 0.0, 1.0, 0.0, 1.0];
            let indefinite = Model { design: (&indefinite).into(), ..model };
            line.send(&controller.encode(&Message::Model(indefinite))).unwrap();
            for reason in ["wrong tag", "wrong tag", "wrong version", "wrong run", "model is not positive definite"] {
                while !python.line("frame dropped: ").starts_with(reason) {}
            }
            assert_eq!(controller.hello(&mut line).0, (RUN, 0, 1));
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
        let fate = if episode == 3 { Fate::NotPositiveSemidefinite } else { Fate::Counts };
        line.send(&controller.encode(&Message::Ack { episode, fate, wait: 0 })).unwrap();
        if !fate.counts() {
            assert!(python.line("summary of episode 3 does not count: ").ends_with("(fate 6)"));
        }
        design.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
        theta.iter_mut().zip(&values[packed_len(D)..]).for_each(|(theta, u)| *theta += u / EPISODE_LEN as f32);
    }
    assert!(python.succeeds());
    assert!(rewards[EPISODES as usize - 1] > rewards[0] + 0.1, "the rewards do not grow: {rewards:?}");

    // The next start has another boot number, also in its nonces, and asks for the run again.
    let mut python = Python::start(&listener, &file, 1);
    let mut line = Line::accept(&listener, &mut python.process).unwrap();
    let hello =
        |run, message: &Message<'_>| matches!((run, message), (0, Message::Hello { boot: 2, .. })).then_some(());
    let (frame, ()) = controller.receive(&mut line, hello);
    if sealed {
        assert_eq!(frame[20..32], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
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

/// The page shows what the Python program generates, in the same order. The tests of core read the page.
#[test]
fn generated_examples_are_in_the_documentation() {
    let script = repository().join("tests/wire_examples.py");
    let output = Command::new("python3").arg("-B").arg(script).output().expect("./ci.sh python installs python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(repository().join("docs/wire.md")).unwrap();
    let (_, section) = page.split_once("## Examples").unwrap();
    let shown: Vec<&str> = section.lines().filter(|line| line.ends_with("` |")).collect();
    let examples = String::from_utf8(output.stdout).unwrap();
    assert_eq!(examples.lines().count(), 30);
    assert_eq!(shown, examples.lines().collect::<Vec<_>>());
}
