//! A run in a directory of its own: its service and its devices as processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::directory::Directory;
use crate::process::{LAST_RESORT, Process, wait_for};
use fedbandit::service::event::Event;
use fedbandit::service::store::Store;
use fedbandit::service::store::file::File;
use fedbandit_core::wire::{Channel, Identity};
use serde_json::Value;

/// The directory of a run.
pub(crate) struct Fleet(Directory);

impl Fleet {
    /// Creates a run without devices.
    pub(crate) fn empty(name: &str) -> Self {
        Self(Directory::new(name))
    }

    /// Creates a run with enrolled devices of dimension 4.
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

    /// Asserts that a command fails with an exit code and a sentence on stderr.
    pub(crate) fn refuses(&self, arguments: &str, code: i32, sentence: &str) {
        let output = self.command(arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {stderr}");
        assert!(stderr.contains(sentence), "{arguments}: {stderr:?} lacks {sentence:?}");
    }

    pub(crate) fn configure(&self, more: &str) {
        self.configure_at(0, more);
    }

    /// Configures the service on a fixed port, for tests that restart it. Without a deadline among `more`, an episode
    /// ends when all devices have reported, however slow the machine is. All summaries stay in the store, unless `more` has
    /// another retention.
    pub(crate) fn configure_at(&self, port: u16, more: &str) {
        let deadline = if more.contains("deadline = ") { "" } else { "deadline = 3600\n" };
        let retain = if more.contains("retain = ") { "" } else { "retain = 4000000\n" };
        let addresses = format!("listen = \"127.0.0.1:{port}\"\nhttp = \"127.0.0.1:0\"\n");
        let settings = format!("dir = \"fleet\"\n{addresses}{deadline}{more}\n{retain}");
        fs::write(self.path().join("controller.toml"), settings).unwrap();
    }

    pub(crate) fn serve(&self) -> Service {
        self.serve_and_log("error", Stdio::inherit())
    }

    pub(crate) fn serve_and_log(&self, level: &str, log: Stdio) -> Service {
        Service::start(self.command(&format!("serve --config controller.toml --log {level}")).stderr(log))
    }

    /// Starts virtual devices. Unless `arguments` has a patience, they wait for each model.
    pub(crate) fn devices(&self, connect: &str, arguments: &str) -> Devices {
        let patience = if arguments.contains("--patience") { "" } else { "--patience 3600000" };
        let mut command = self.command(&format!("device --identities fleet/devices {patience} {arguments}"));
        Devices(Process::spawn(command.args(["--connect", connect]).stderr(Stdio::piped())))
    }

    pub(crate) fn identity(&self, agent: u32) -> Identity {
        Identity::from_blob(&self.blob(agent)).unwrap()
    }

    /// Returns the device's end of its channel, in run 1.
    pub(crate) fn channel(&self, agent: u32) -> Channel {
        let mut channel = Channel::device(self.identity(agent), 1);
        channel.enter_run(1);
        channel
    }

    /// Returns a device's long-term key.
    pub(crate) fn key(&self, agent: u32) -> [u8; 32] {
        self.blob(agent)[24..56].try_into().unwrap()
    }

    pub(crate) fn blob(&self, agent: u32) -> [u8; Identity::BLOB_LEN] {
        fs::read(self.path().join(format!("fleet/devices/agent-{agent}.blob"))).unwrap().try_into().unwrap()
    }

    /// Returns the (agent, episode) of all stored summaries, which must be distinct.
    pub(crate) fn stored(&self) -> BTreeSet<(u32, u32)> {
        self.summaries().into_keys().collect()
    }

    /// Returns the stored summaries by (agent, episode), which must be distinct: U packed, then u.
    pub(crate) fn summaries(&self) -> BTreeMap<(u32, u32), Vec<f32>> {
        let mut stored = BTreeMap::new();
        let store = File::open(&self.path().join("fleet/run.redb")).unwrap();
        store
            .replay(0, &mut |_, bytes| {
                if let Event::Summary(summary) = Event::from_bytes(bytes, 4).expect("an event") {
                    let (agent, episode) = (summary.agent.0, summary.episode);
                    let values = [summary.gram, summary.feature_sum].concat();
                    assert!(
                        stored.insert((agent, episode), values).is_none(),
                        "two summaries of agent {agent}, episode {episode}"
                    );
                }
            })
            .unwrap();
        stored
    }
}

/// Processes of virtual devices.
pub(crate) struct Devices(pub(crate) Process);

impl Devices {
    /// Waits for the end of the devices, and returns their report.
    pub(crate) fn report(self) -> Value {
        serde_json::from_str(&self.0.output()).unwrap()
    }

    /// Waits for the first line on stderr.
    pub(crate) fn complaint(mut self) -> String {
        self.0.stderr().next().unwrap()
    }
}

/// A running service.
pub(crate) struct Service {
    pub(crate) process: Process,
    /// URLs for devices, TCP first.
    pub(crate) devices: Vec<String>,
    pub(crate) http: String,
    /// Header line that permits reading the pages; empty for a demonstration.
    pub(crate) authorization: String,
}

impl Service {
    /// Starts a service, and waits until it listens.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = Process::spawn(command);
        let mut devices = Vec::new();
        for line in process.stdout() {
            if let Some((_, http)) = line.strip_prefix("status:  ").and_then(|url| url.split_once("://")) {
                let token = fs::read_to_string(command.get_current_dir().unwrap().join("fleet/http.token"));
                let authorization = token.map(|token| format!("Authorization: Bearer {}\r\n", token.trim()));
                return Self { process, devices, http: http.into(), authorization: authorization.unwrap_or_default() };
            }
            devices.extend(line.strip_prefix("devices: ").map(str::to_owned));
        }
        panic!("the service ended before it listened")
    }

    /// Address for devices on TCP.
    pub(crate) fn tcp(&self) -> &str {
        self.devices[0].strip_prefix("tcp://").unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = connect(&self.http);
        write!(stream, "GET {path} HTTP/1.0\r\n{}\r\n", self.authorization).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn status(&self) -> Value {
        let answer = self.get("/status.json");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Waits for a status that satisfies a condition, and returns it.
    pub(crate) fn wait_for(&self, condition: impl Fn(&Value) -> bool) -> Value {
        wait_for("status that satisfies the condition", || Some(self.status()).filter(|status| condition(status)))
    }

    pub(crate) fn wait_for_episode(&self, episode: u64) {
        self.wait_for(|status| status["episode"].as_u64() >= Some(episode));
    }
}

/// Connects to an address of the service.
pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LAST_RESORT)).unwrap();
    stream
}

/// Finds a free port.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
