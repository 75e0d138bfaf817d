//! A mixed fleet on the real service: boards under QEMU, virtual devices and liars. They learn as in the simulation.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fedbandit_core::wire::Identity;
use fedbandit_tests::harness::firmware::{BOARDS, Board, Program, build_host};
use fedbandit_tests::harness::firmware_device::Device;
use fedbandit_tests::harness::process::{Process, wait_until};
use serde_json::Value;

#[path = "../../firmware-example/src/environment.rs"]
#[expect(unreachable_pub, dead_code, reason = "shared with the firmware")]
mod environment;

#[path = "../../host/cli/tests/shared/directory.rs"]
mod directory;

use directory::Directory;
use environment::{ARMS, D, Environment, THETA};

const MACHINES: [&str; 2] = ["netduinoplus2", "mps2-an386"];
const HONEST: u32 = 32;
const ALL: u32 = 42;
/// Of lengths 4, 8, 16, 32 and then 64.
const EPISODES: u32 = 25;
const STEPS: u32 = 4 + 8 + 16 + 32 + 64 * 21;
/// Decision sets in the log of the boards' environment.
const SETS: u32 = 2_000;

/// A directory of the test, and the program `fedbandit` in it.
struct Fleet(Directory);

impl Fleet {
    fn start(&self, arguments: &str) -> Process {
        static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
        let program = PROGRAM.get_or_init(|| build_host().unwrap_or_else(|error| panic!("{error}")));
        Process::spawn(Command::new(program).current_dir(&self.0.0).args(arguments.split_whitespace()))
    }

    fn run(&self, arguments: &str) -> String {
        self.start(arguments).output()
    }
}

/// The address in the first line of a program's output, after a prefix.
fn address(process: &mut Process, prefix: &str) -> SocketAddr {
    let line = process.stdout().next().unwrap_or_default();
    line.strip_prefix(prefix).unwrap_or_else(|| panic!("expected {prefix:?}, found {line:?}")).parse().unwrap()
}

/// Writes a log of decision sets of the boards' environment, with the expected reward of each action. Returns the mean
/// expected reward of the best actions, and of all.
fn write_log(file: &Path) -> [f64; 2] {
    let mut environment = Environment::new(0, 0);
    let columns: Vec<String> = (1..=D).map(|j| format!("x_{j}")).collect();
    let mut log = format!("step,{},reward\n", columns.join(","));
    let (mut best, mut random) = (0.0, 0.0);
    for step in 0..SETS {
        let mut most = f64::NEG_INFINITY;
        for action in environment.decision_set() {
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

/// Mean reward of honest agents in the second half of a simulation with the same settings.
fn simulated(fleet: &Fleet, [best, random]: [f64; 2]) -> f64 {
    let setting = format!("--agents {ALL} --corrupt 0.24 --attack sign-flip --steps {STEPS}");
    let arguments = "--environment replay:world.csv --aggregator geometric-median --guard on --seeds 1 --json";
    let result: Value = serde_json::from_str(&fleet.run(&format!("simulate {setting} {arguments}"))).unwrap();
    // Late regret as a fraction of a random choice's.
    let late = result["runs"][0]["late"].as_f64().unwrap();
    best - late * (best - random)
}

/// Number of stored summaries, and mean reward over the second half, by device.
fn served(fleet: &Fleet) -> Vec<(u32, f64)> {
    let mut sums = vec![(0, 0.0, 0.0); ALL as usize];
    // The first line describes the run.
    for line in fleet.run("export --dir fleet --what messages --format json").lines().skip(1) {
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

/// Runs two boards, thirty honest virtual devices and ten liars. Boards connect to `line`, the others to `url`.
fn learn(fleet: &Fleet, service: Process, line: SocketAddr, url: &str) {
    let boards: Vec<Device> = (1..)
        .zip(MACHINES)
        .map(|(agent, machine)| {
            let board = board(machine);
            let elf = Program::new("device", board, "opt-s").build().unwrap_or_else(|error| panic!("{error}"));
            let blob = fs::read(fleet.0.0.join(format!("fleet/devices/agent-{agent}.blob"))).unwrap();
            let identity = Identity::from_blob(blob.as_slice().try_into().unwrap()).unwrap();
            Device::connected(board, &elf, &identity, line).unwrap()
        })
        .collect();
    let devices = |first: u32, last: u32, attack: &str| {
        let count = last - first + 1;
        let who = format!("--identities fleet/devices --first {first} --count {count} --attack {attack}");
        // Nobody continues alone: an episode is over when all have reported.
        let how = format!("--environment replay:world.csv --episodes {EPISODES} --patience 3600000");
        fleet.start(&format!("device --connect {url} {who} {how}"))
    };
    let (honest, liars) = (devices(3, HONEST, "none"), devices(HONEST + 1, ALL, "sign-flip"));
    for (devices, count) in [(honest, HONEST - 2), (liars, ALL - HONEST)] {
        let lives: Value = serde_json::from_str(&devices.output()).unwrap();
        assert_eq!(lives["acknowledged"], count * EPISODES, "{lives}");
    }
    drop((service, boards));
}

fn compare(fleet: &Fleet, rewards: [f64; 2]) {
    let simulated = simulated(fleet, rewards);
    let served = served(fleet);
    // The last summary of a board may be in flight when the others are done.
    assert!(served.iter().all(|(count, _)| *count >= EPISODES - 1), "{served:?}");
    let honest = &served[..HONEST as usize];
    let mean = honest.iter().map(|(_, reward)| reward).sum::<f64>() / f64::from(HONEST);
    println!("late mean reward: {mean:.4}, {simulated:.4} in the simulation, boards {:?}", &served[..2]);
    assert!((mean - simulated).abs() <= 0.1 * simulated, "{mean} is not within 10 % of {simulated}");
    for (board, (_, reward)) in MACHINES.iter().zip(honest) {
        // About 700 rewards, whose noise has a standard deviation of 0.29: six standard errors are 0.07.
        assert!((reward - simulated).abs() <= 0.1 * simulated + 0.07, "{board}: {reward} and {simulated}");
    }
}

fn enrolled(name: &str, more: &str) -> (Fleet, [f64; 2]) {
    let fleet = Fleet(Directory::new(name));
    let rewards = write_log(&fleet.0.0.join("world.csv"));
    fleet.run(&format!("enroll --dir fleet --dim {D} --count {ALL}"));
    let settings =
        "dir = \"fleet\"\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\ndeadline = 3600\nsteps = 100000\n";
    fs::write(fleet.0.0.join("controller.toml"), format!("{settings}{more}\n")).unwrap();
    (fleet, rewards)
}

#[test]
fn mixed_fleet_learns_over_tcp() {
    let (fleet, rewards) = enrolled("tcp", "");
    let mut service = fleet.start("serve --config controller.toml");
    let address = address(&mut service, "devices: tcp://");
    learn(&fleet, service, address, &format!("tcp://{address}"));
    compare(&fleet, rewards);
}

#[test]
fn mixed_fleet_learns_over_mqtt() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("mqtt://127.0.0.1:{port}");
    let (fleet, rewards) = enrolled("mqtt", &format!("mqtt = \"{url}\""));
    fs::write(
        fleet.0.0.join("mosquitto.conf"),
        format!("listener {port} 127.0.0.1\nallow_anonymous true\nlog_dest none\n"),
    )
    .unwrap();
    // Debian installs it outside of the PATH of users.
    let _broker =
        Process::spawn(Command::new("/usr/sbin/mosquitto").current_dir(&fleet.0.0).args(["-c", "mosquitto.conf"]));
    wait_until("listening broker", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let service = fleet.start("serve --config controller.toml");
    let mut gateway = fleet.start(&format!("gateway --listen 127.0.0.1:0 --connect {url}"));
    let line = address(&mut gateway, "lines: tcp://");
    learn(&fleet, service, line, &url);
    compare(&fleet, rewards);
}
