//! mosquitto, an MQTT broker.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::test_fleet::{Fleet, INSTALLED, Process, free_port, wait_until};

/// A broker's setting: it lets everybody in.
pub(crate) const ANYBODY: &str = "allow_anonymous true";

/// A broker, which goes with the test.
pub(crate) struct Broker<'a> {
    fleet: &'a Fleet,
    pub(crate) port: u16,
    process: Option<Process>,
}

impl<'a> Broker<'a> {
    pub(crate) fn start(fleet: &'a Fleet, settings: &str) -> Self {
        let port = free_port();
        let directory = fleet.path().display();
        let common =
            format!("listener {port} 127.0.0.1\nuser root\npersistence true\npersistence_location {directory}/\n");
        fs::write(fleet.path().join("mosquitto.conf"), format!("{common}{settings}\n")).unwrap();
        let mut broker = Self { fleet, port, process: None };
        broker.restart();
        broker
    }

    /// Kills it, by SIGKILL, if it is there, and starts it.
    pub(crate) fn restart(&mut self) {
        self.process = None;
        // Where Debian has it; not on everybody's path.
        let mut command = Command::new("/usr/sbin/mosquitto");
        let command = command.current_dir(self.fleet.path()).args(["-c", "mosquitto.conf"]);
        self.process = Some(Process::spawn(command));
        wait_until("the broker listens", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    pub(crate) fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// `mosquitto_pub` or `mosquitto_sub`.
    pub(crate) fn client(&self, name: &str, topic: &str, arguments: &str) -> Command {
        let mut command = Command::new(name);
        let topic = format!("fedbandit/v1/1/{topic}");
        command.args(["-p", &self.port.to_string(), "-h", "127.0.0.1", "-q", "1", "-t", &topic]);
        command.args(arguments.split_whitespace());
        command
    }

    /// Somebody else publishes a message.
    pub(crate) fn publish(&self, topic: &str, message: &[u8]) {
        let mut client = self.client("mosquitto_pub", topic, "-s");
        let mut client = client.stdin(Stdio::piped()).spawn().expect(INSTALLED);
        client.stdin.take().unwrap().write_all(message).unwrap();
        assert!(client.wait().unwrap().success());
    }

    /// The next message on a topic, or the retained one, in hexadecimal.
    pub(crate) fn next(&self, topic: &str) -> Vec<u8> {
        let output = self.client("mosquitto_sub", topic, "-C 1 -W 60 -F %x").output().expect(INSTALLED);
        let hex = String::from_utf8(output.stdout).unwrap();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        hex.trim().as_bytes().chunks(2).map(byte).collect()
    }

    pub(crate) fn wait_for_state(&self, agent: u32, state: &str) {
        wait_until(state, || self.next(&format!("state/{agent}")) == state.as_bytes());
    }
}
