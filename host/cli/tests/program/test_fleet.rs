//! A run in a directory of its own: its service and its devices, from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::directory::Directory;
use fedbandit::service::event::Event;
use fedbandit::service::store::Store;
use fedbandit::service::store::file::File;
use fedbandit_core::wire::Identity;
use serde_json::Value;

pub(crate) struct Fleet(Directory);

impl Fleet {
    /// Nobody is enrolled yet.
    pub(crate) fn empty(name: &str) -> Self {
        Self(Directory::new(name))
    }

    /// Enrols devices of dimension 4.
    pub(crate) fn new(name: &str, devices: u32) -> Self {
        let fleet = Self::empty(name);
        fleet.stdout(&format!("enroll --dir fleet --dim 4 --count {devices}"));
        fleet
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.0
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedbandit"));
        command.current_dir(self.path()).args(arguments.split_whitespace());
        command
    }

    pub(crate) fn stdout(&self, arguments: &str) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.stdout(arguments)).unwrap()
    }

    /// An exit code and a sentence on stderr.
    pub(crate) fn refuses(&self, arguments: &str, code: i32, sentence: &str) {
        let output = self.command(arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {stderr}");
        assert!(stderr.contains(sentence), "{arguments}: {stderr:?} lacks {sentence:?}");
    }

    pub(crate) fn configure(&self, more: &str) {
        self.configure_at(0, more);
    }

    /// With a port for devices, to which the service must come back.
    pub(crate) fn configure_at(&self, port: u16, more: &str) {
        let settings = format!("dir = \"fleet\"\nlisten = \"127.0.0.1:{port}\"\nhttp = \"127.0.0.1:0\"\n{more}\n");
        fs::write(self.path().join("controller.toml"), settings).unwrap();
    }

    pub(crate) fn serve(&self) -> Service {
        self.serve_and_log("error", Stdio::inherit())
    }

    pub(crate) fn serve_and_log(&self, level: &str, log: Stdio) -> Service {
        Service::start(self.command(&format!("serve --config controller.toml --log {level}")).stderr(log))
    }

    /// Devices that are waited for with [`lives`].
    pub(crate) fn devices(&self, connect: &str, arguments: &str) -> Process {
        let mut command = self.command(&format!("device --identities fleet/devices {arguments}"));
        Process(command.args(["--connect", connect]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    pub(crate) fn identity(&self, agent: u32) -> Identity {
        Identity::from_blob(&self.blob(agent)).unwrap()
    }

    pub(crate) fn blob(&self, agent: u32) -> [u8; Identity::BLOB_LEN] {
        fs::read(self.path().join(format!("fleet/devices/agent-{agent}.blob"))).unwrap().try_into().unwrap()
    }

    /// The (agent, episode) of all stored summaries, each of which is there once.
    pub(crate) fn stored(&self) -> BTreeSet<(u32, u32)> {
        self.summaries().into_keys().collect()
    }

    /// The stored summaries by (agent, episode), each of which is there once: U packed, then u.
    pub(crate) fn summaries(&self) -> BTreeMap<(u32, u32), Vec<f32>> {
        let mut stored = BTreeMap::new();
        let store = File::open(&self.path().join("fleet/run.redb")).unwrap();
        store
            .replay(&mut |bytes| {
                if let Event::Summary(summary) = Event::from_bytes(bytes, 4).expect("an event") {
                    let (agent, episode) = (summary.agent.0, summary.episode);
                    let values = [summary.gram, summary.feature_sum].concat();
                    assert!(stored.insert((agent, episode), values).is_none(), "{agent} counts twice in {episode}");
                }
            })
            .unwrap();
        stored
    }
}

/// Why a program of somebody else's may not start.
pub(crate) const INSTALLED: &str = "./ci.sh test installs what the tests start";

/// A process, which goes with the test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect(INSTALLED))
    }

    /// What devices lived through.
    pub(crate) fn lives(mut self) -> Value {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(self.0.wait().unwrap().success());
        serde_json::from_str(&text).unwrap()
    }

    /// The first line on stderr.
    pub(crate) fn complaint(mut self) -> String {
        BufReader::new(self.0.stderr.take().unwrap()).lines().next().unwrap().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running service.
pub(crate) struct Service {
    pub(crate) process: Process,
    /// Where devices connect, TCP first.
    pub(crate) devices: Vec<String>,
    pub(crate) http: String,
}

impl Service {
    /// Waits until it listens.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut devices = Vec::new();
        for line in BufReader::new(process.0.stdout.take().unwrap()).lines().map(|line| line.unwrap()) {
            if let Some(http) = line.strip_prefix("status:  http://") {
                return Self { process, devices, http: http.into() };
            }
            devices.extend(line.strip_prefix("devices: ").map(str::to_owned));
        }
        panic!("the service ended")
    }

    /// The address of its first way for devices.
    pub(crate) fn tcp(&self) -> &str {
        self.devices[0].strip_prefix("tcp://").unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The first status of which something is true; it is renewed several times a second.
    pub(crate) fn wait_for(&self, holds: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let answer = self.get("/status.json");
            let status: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
            if holds(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "{status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn wait_for_episode(&self, episode: u64) {
        self.wait_for(|status| status["episode"].as_u64() >= Some(episode));
    }
}

/// A port that is free now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until something is there.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
