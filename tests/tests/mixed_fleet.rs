//! Boards under QEMU, virtual devices and liars learn together from the real service, as they do in the simulation.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use fedbandit_core::wire::Identity;
use fedbandit_tests::harness::firmware::{BOARDS, Board, Program, build_host};
use fedbandit_tests::harness::firmware_device::Device;
use serde_json::Value;

#[path = "../../firmware-example/src/environment.rs"]
#[expect(unreachable_pub, dead_code, reason = "the firmware's own file")]
mod environment;

use environment::{ARMS, D, Environment, THETA};

const MACHINES: [&str; 2] = ["netduinoplus2", "mps2-an386"];
const HONEST: u32 = 32;
const ALL: u32 = 42;
/// Of lengths 4, 8, 16, 32 and then 64.
const EPISODES: u32 = 25;
const STEPS: u32 = 4 + 8 + 16 + 32 + 64 * 21;
/// Decision sets in the log of the boards' world.
const SETS: u32 = 2_000;

/// A process, which goes with the test.
struct Process(Child);

impl Process {
    fn spawn(directory: &Path, program: &Path, arguments: &str) -> Self {
        let mut command = Command::new(program);
        let command = command.current_dir(directory).args(arguments.split_whitespace()).stdout(Stdio::piped());
        Self(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display())))
    }

    /// The address in the first line, after what it begins with.
    fn address(&mut self, prefix: &str) -> SocketAddr {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        line.trim().strip_prefix(prefix).unwrap_or_else(|| panic!("it said {line:?}")).parse().unwrap()
    }

    /// What it prints until it ends well.
    fn output(mut self) -> String {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(self.0.wait().unwrap().success(), "{text}");
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// A directory that goes with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fedbandit-fleet-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn start(&self, arguments: &str) -> Process {
        static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
        let program = PROGRAM.get_or_init(|| build_host().unwrap_or_else(|error| panic!("{error}")));
        Process::spawn(&self.0, program, arguments)
    }

    fn run(&self, arguments: &str) -> String {
        self.start(arguments).output()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Decision sets of the boards' world with what each action is worth, as a log. Returns the mean worth of the best actions and of
/// all.
fn write_log(file: &Path) -> [f64; 2] {
    let mut world = Environment::new(0, 0);
    let columns: Vec<String> = (1..=D).map(|j| format!("x_{j}")).collect();
    let mut log = format!("step,{},reward\n", columns.join(","));
    let (mut best, mut random) = (0.0, 0.0);
    for step in 0..SETS {
        let mut most = f64::NEG_INFINITY;
        for action in world.decision_set() {
            let worth: f64 = action.iter().zip(THETA).map(|(x, theta)| f64::from(x * theta)).sum();
            let entries: Vec<String> = action.iter().map(ToString::to_string).collect();
            log += &format!("{step},{},{worth}\n", entries.join(","));
            most = most.max(worth);
            random += worth / ARMS as f64;
        }
        best += most;
    }
    fs::write(file, log).unwrap();
    [best, random].map(|sum| sum / f64::from(SETS))
}

/// The mean reward of honest agents in the second half of the simulation with the same setting.
fn simulated(here: &Directory, [best, random]: [f64; 2]) -> f64 {
    let setting = format!("--agents {ALL} --corrupt 0.24 --attack sign-flip --steps {STEPS}");
    let arguments = "--environment replay:world.csv --aggregator geometric-median --seeds 1 --json";
    let result: Value = serde_json::from_str(&here.run(&format!("simulate {setting} {arguments}"))).unwrap();
    // The share of a random choice's regret that is left.
    let late = result["runs"][0]["late"].as_f64().unwrap();
    best - late * (best - random)
}

/// By device, how many summaries are stored and the mean reward over the steps of the second half.
fn served(here: &Directory) -> Vec<(u32, f64)> {
    let mut sums = vec![(0, 0.0, 0.0); ALL as usize];
    // The first line tells of the run.
    for line in here.run("export --dir fleet --what messages --format json").lines().skip(1) {
        let message: Value = serde_json::from_str(line).unwrap();
        let number = |key: &str| message[key].as_f64().unwrap_or_else(|| panic!("{key}: {line}"));
        let (count, steps, rewards) = &mut sums[number("agent") as usize - 1];
        *count += 1;
        // 4 + 8 + 16 + 32 steps in four episodes, then 64 in each.
        if 60.0 + 64.0 * (number("episode") - 5.0) >= f64::from(STEPS / 2) {
            *steps += number("steps");
            *rewards += number("reward_sum");
        }
    }
    sums.into_iter().map(|(count, steps, rewards)| (count, rewards / steps)).collect()
}

fn board(machine: &str) -> Board {
    *BOARDS.iter().find(|board| board.machine == machine).unwrap()
}

/// Two boards, thirty devices that behave and ten that lie. Boards are on `line`, the others connect to `url`.
fn learn(here: &Directory, service: Process, line: SocketAddr, url: &str) {
    let boards: Vec<Device> = (1..)
        .zip(MACHINES)
        .map(|(agent, machine)| {
            let board = board(machine);
            let program = Program { bin: "device", board, profile: "opt-s", features: &[], dimension: None };
            let elf = program.build().unwrap_or_else(|error| panic!("{error}"));
            let blob = fs::read(here.0.join(format!("fleet/devices/agent-{agent}.blob"))).unwrap();
            let identity = Identity::from_blob(blob.as_slice().try_into().unwrap()).unwrap();
            Device::connected(board, &elf, &identity, line).unwrap()
        })
        .collect();
    let devices = |first: u32, last: u32, attack: &str| {
        let count = last - first + 1;
        let who = format!("--identities fleet/devices --first {first} --count {count} --attack {attack}");
        // Nobody goes on alone: an episode is over when all have reported.
        let how = format!("--environment replay:world.csv --episodes {EPISODES} --patience 600000");
        here.start(&format!("device --connect {url} {who} {how}"))
    };
    let (honest, liars) = (devices(3, HONEST, "none"), devices(HONEST + 1, ALL, "sign-flip"));
    for (devices, count) in [(honest, HONEST - 2), (liars, ALL - HONEST)] {
        let lives: Value = serde_json::from_str(&devices.output()).unwrap();
        assert_eq!(lives["acknowledged"], count * EPISODES, "{lives}");
    }
    drop((service, boards));
}

fn compare(here: &Directory, world: [f64; 2]) {
    let simulated = simulated(here, world);
    let served = served(here);
    // The last summary of a board may still be on its way when the others are done.
    assert!(served.iter().all(|(count, _)| *count >= EPISODES - 1), "{served:?}");
    let honest = &served[..HONEST as usize];
    let mean = honest.iter().map(|(_, reward)| reward).sum::<f64>() / f64::from(HONEST);
    println!("late mean reward: {mean:.4}, {simulated:.4} in the simulation, boards {:?}", &served[..2]);
    assert!((mean - simulated).abs() <= 0.1 * simulated, "{mean} is not within 10 % of {simulated}");
    for (board, (_, reward)) in MACHINES.iter().zip(honest) {
        // Some 700 rewards with a deviation of 0.29 of noise: six deviations of their mean are 0.07.
        assert!((reward - simulated).abs() <= 0.1 * simulated + 0.07, "{board}: {reward} and {simulated}");
    }
}

fn enrolled(name: &str, more: &str) -> (Directory, [f64; 2]) {
    let here = Directory::new(name);
    let world = write_log(&here.0.join("world.csv"));
    here.run(&format!("enroll --dir fleet --dim {D} --count {ALL}"));
    let settings =
        "dir = \"fleet\"\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\ndeadline = 600\nsteps = 100000\n";
    fs::write(here.0.join("controller.toml"), format!("{settings}{more}\n")).unwrap();
    (here, world)
}

#[test]
fn a_fleet_with_boards_learns_over_tcp() {
    let (here, world) = enrolled("tcp", "");
    let mut service = here.start("serve --config controller.toml");
    let address = service.address("devices: tcp://");
    learn(&here, service, address, &format!("tcp://{address}"));
    compare(&here, world);
}

#[test]
fn a_fleet_with_boards_learns_over_mqtt() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("mqtt://127.0.0.1:{port}");
    let (here, world) = enrolled("mqtt", &format!("mqtt = \"{url}\""));
    fs::write(
        here.0.join("mosquitto.conf"),
        format!("listener {port} 127.0.0.1\nallow_anonymous true\nlog_dest none\n"),
    )
    .unwrap();
    // Where Debian has it; not on everybody's path.
    let _broker = Process::spawn(&here.0, Path::new("/usr/sbin/mosquitto"), "-c mosquitto.conf");
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "the broker does not listen");
        thread::sleep(Duration::from_millis(10));
    }
    let service = here.start("serve --config controller.toml");
    let mut gateway = here.start(&format!("gateway --listen 127.0.0.1:0 --connect {url}"));
    let line = gateway.address("lines: tcp://");
    learn(&here, service, line, &url);
    compare(&here, world);
}
