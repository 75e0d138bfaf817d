//! `fedbandit enroll`, `serve`, `device`, `status` and `revoke` from outside.

mod directory;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use directory::Directory;
use fedbandit_core::wire::cobs;
use serde_json::Value;

impl Directory {
    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedbandit"));
        command.current_dir(&self.0).args(arguments.split_whitespace());
        command
    }

    fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn stdout(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.stdout(arguments)).unwrap()
    }

    /// An exit code and a sentence on stderr.
    fn refuses(&self, arguments: &str, code: i32, sentence: &str) {
        let output = self.run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {stderr}");
        assert!(stderr.contains(sentence), "{arguments}: {stderr:?} lacks {sentence:?}");
    }

    fn configure(&self, more: &str) {
        let settings = "dir = \"fleet\"\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\ndeadline = 5\n";
        fs::write(self.0.join("controller.toml"), format!("{settings}{more}\n")).unwrap();
    }

    fn serve(&self) -> Service {
        let mut child = self.command("serve --config controller.toml").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
        let mut address = |prefix: &str| lines.next().unwrap().strip_prefix(prefix).unwrap().to_owned();
        let (devices, http) = (address("devices: tcp://"), address("status:  http://"));
        Service { child, devices, http }
    }
}

/// A running service, which goes with the test.
struct Service {
    child: Child,
    devices: String,
    http: String,
}

impl Service {
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Service {
    /// The first status of which something is true; it is renewed several times a second.
    fn wait_for(&self, holds: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let answer = self.get("/status.json");
            let status: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
            if holds(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "{status}");
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Thirty devices that behave and ten that lie: what the honest ones reach in the end is almost the best there is.
#[test]
fn a_fleet_learns_although_a_quarter_lies() {
    let here = Directory::new("fleet-learns");
    here.stdout("enroll --dir fleet --dim 8 --count 40");
    here.configure("steps = 4096");
    let service = here.serve();
    let liars = format!("device --connect tcp://{} --identities fleet/devices --first 31 --count 10", service.devices);
    let mut liars =
        here.command(&format!("{liars} --attack sign-flip --episodes 30")).stdout(Stdio::null()).spawn().unwrap();
    let honest = format!("device --connect tcp://{} --identities fleet/devices --count 30", service.devices);
    let honest = here.json(&format!("{honest} --episodes 30"));
    liars.wait().unwrap();
    assert_eq!((&honest["devices"], &honest["episodes"]), (&30.into(), &30.into()));
    assert_eq!(honest["acknowledged"], 30 * 30);
    let [worth, best] = ["last_mean_worth", "last_mean_best"].map(|key| honest[key].as_f64().unwrap());
    // Random choices are worth 0, and the simulation has less than 1 % of their regret here.
    assert!(worth > 0.95 * best, "{worth} of {best}");
    let status = service.wait_for(|status| status["episode"].as_u64() >= Some(30));
    assert_eq!((&status["enrolled"], &status["run"]), (&40.into(), &1.into()));
    assert_eq!(here.json(&format!("status --http {}", service.http))["run"], 1);
    let far: Vec<u64> = status["suspicious"].as_array().unwrap().iter().map(|s| s["agent"].as_u64().unwrap()).collect();
    assert!(far.len() == 8 && far.iter().all(|agent| *agent > 30), "those far from the centre are liars: {far:?}");
}

/// Garbage costs its sender the connection, and nobody else anything.
#[test]
fn garbage_is_shown_the_door() {
    let here = Directory::new("garbage");
    here.stdout("enroll --dir fleet --dim 4 --count 3");
    here.configure("");
    let service = here.serve();
    let mut hostile = TcpStream::connect(&service.devices).unwrap();
    hostile.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let garbage: Vec<u8> = (0..64_u8).flat_map(|n| cobs::encode(&[n; 40]).collect::<Vec<_>>()).collect();
    let mut end = [0; 16];
    let closed =
        (0..50).any(|_| hostile.write_all(&garbage).is_err()) || matches!(hostile.read(&mut end), Ok(0) | Err(_));
    assert!(closed);
    // A frame without an end is not kept beyond its longest length.
    let mut endless = TcpStream::connect(&service.devices).unwrap();
    (0..64).for_each(|_| drop(endless.write_all(&[7; 16_384])));
    let lives = here
        .json(&format!("device --connect tcp://{} --identities fleet/devices --count 3 --episodes 3", service.devices));
    assert_eq!(lives["acknowledged"], 9);
    service.wait_for(|status| status["dropped"]["unknown"].as_u64() >= Some(1));
    assert!(service.get("/metrics").contains("fedbandit_frames_dropped_total{reason=\"unknown\"}"));
}

#[test]
fn pages_are_there_and_load_nothing() {
    let here = Directory::new("pages");
    here.stdout("enroll --dir fleet --dim 4 --count 3");
    here.configure("");
    let service = here.serve();
    assert!(service.get("/healthz").ends_with("ok\n"));
    service.wait_for(|status| status["episode"] == 1);
    let metrics = service.get("/metrics");
    for name in ["episode 1", "devices_enrolled 3", "devices_missing 3", "repaired_models_total 0"] {
        assert!(metrics.contains(&format!("\nfedbandit_{name}\n")), "{name}: {metrics}");
    }
    assert!(!metrics.contains("agent="), "no label per device");
    let page = service.get("/");
    for loaded in ["http:", "https:", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(loaded), "the page loads something: {loaded}");
    }
    let mut events = TcpStream::connect(&service.http).unwrap();
    events.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(events, "GET /events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let first = BufReader::new(events).lines().map_while(Result::ok).find(|line| line.starts_with("data: ")).unwrap();
    let status: Value = serde_json::from_str(first.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(status["enrolled"], 3);
}

#[test]
fn enrolment_is_careful() {
    let here = Directory::new("enrolment");
    here.refuses("enroll --dir fleet", 2, "the first devices need --dim D");
    here.refuses("enroll --dir fleet --dim 7", 2, "--dim is one of");
    here.refuses("revoke --dir fleet 1", 78, "no device is enrolled");
    assert!(here.stdout("enroll --dir fleet --dim 4 --run 9 --count 2").contains("enrolled 1 to 2 of run 9"));
    assert!(here.stdout("enroll --dir fleet --count 2").contains("enrolled 3 to 4 of run 9"));
    here.refuses("enroll --dir fleet --dim 8", 2, "is of run 9 with --dim 4");
    for secret in ["fleet/master.key", "fleet/devices/agent-1.blob"] {
        assert_eq!(fs::metadata(here.0.join(secret)).unwrap().permissions().mode() & 0o777, 0o600, "{secret}");
    }
    here.refuses("revoke --dir fleet 5", 2, "device 5 is not enrolled");
    assert!(here.stdout("revoke --dir fleet 2").contains("1 of 4 devices are, 25 %"));
    // Once a run has begun, its devices are fixed; the store remembers its terms.
    here.configure("episode-len = 32");
    drop(here.serve());
    here.refuses("enroll --dir fleet", 2, "the run has begun");
    here.configure("episode-len = 16");
    here.refuses("serve --config controller.toml", 78, "episode-len is 32 there, not 16");
    for (more, sentence) in [
        ("agents = 5", "agents: it is about a simulated world"),
        ("episode-len = 0", "episode-len: 0 is not from 1"),
        ("nonsense = 5", "no key is called nonsense"),
        ("privacy = \"4,1e-6\"", "privacy: it needs bounded rewards"),
        ("window = -1", "window: a whole number"),
    ] {
        here.configure(more);
        here.refuses("serve --config controller.toml", 78, sentence);
    }
    here.configure("episode-len = 32");
    let service = here.serve();
    here.refuses("serve --config controller.toml", 74, "run.redb");
    let device = format!("device --connect tcp://{} --identities fleet/devices", service.devices);
    here.refuses(&format!("{device} --attack adaptive"), 2, "adaptive needs to know the other devices");
    here.refuses(&format!("{device} --first 9"), 74, "agent-9.blob");
    here.refuses("device --connect localhost:1 --identities fleet/devices", 2, "tcp://HOST:PORT");
    here.refuses("status --http 127.0.0.1:1", 74, "127.0.0.1:1");
}

/// The device that was written in Python from docs/wire.md, in both modes, beside virtual ones.
#[test]
fn devices_in_python_take_part() {
    let here = Directory::new("python");
    here.stdout("enroll --dir fleet --dim 4 --count 2");
    here.stdout("enroll --dir fleet --count 2 --sealed");
    here.configure("episode-len = 8");
    let service = here.serve();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/reference_device.py");
    let python = |agent: u32| {
        let identity = format!("fleet/devices/agent-{agent}.blob");
        let mut command = Command::new("python3");
        command.current_dir(&here.0).arg(script).args(["--connect", &service.devices, "--identity", &identity]);
        command
            .args(["--episodes", "5"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("python3 is there")
    };
    let pythons = [python(1), python(3)];
    let virtual_device = |agent: u32| {
        let arguments = "--identities fleet/devices --count 1 --episodes 5 --patience 60000";
        let arguments = format!("device --connect tcp://{} --first {agent} {arguments}", service.devices);
        here.command(&arguments).stdout(Stdio::piped()).spawn().unwrap()
    };
    for device in [virtual_device(2), virtual_device(4)] {
        let output = device.wait_with_output().unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap()["acknowledged"], 5);
    }
    for python in pythons {
        let output = python.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let status = service.wait_for(|status| status["episode"] == 6);
    assert_eq!((&status["missing_in_last_episode"], &status["faults"]), (&0.into(), &serde_json::json!({})));
}
