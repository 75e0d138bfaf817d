//! mosquitto, an MQTT broker.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::process::{Process, wait_until};
use crate::test_fleet::{Fleet, free_port};

/// Setting of a broker that accepts everybody.
pub(crate) const ANYBODY: &str = "allow_anonymous true";

/// A broker, killed when dropped.
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

    /// Kills the broker, if it runs, and starts it.
    pub(crate) fn restart(&mut self) {
        self.process = None;
        // Debian installs it outside of the PATH of users.
        let mut command = Command::new("/usr/sbin/mosquitto");
        command.current_dir(self.fleet.path()).args(["-c", "mosquitto.conf"]).stderr(Stdio::null());
        self.process = Some(Process::spawn(&mut command));
        wait_until("listening broker", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    pub(crate) fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// The command `mosquitto_pub` or `mosquitto_sub`.
    pub(crate) fn client(&self, name: &str, topic: &str, arguments: &str) -> Command {
        let mut command = Command::new(name);
        let topic = format!("fedbandit/v2/1/{topic}");
        command.args(["-p", &self.port.to_string(), "-h", "127.0.0.1", "-q", "1", "-t", &topic]);
        command.args(arguments.split_whitespace());
        command
    }

    /// Publishes a message as another client.
    pub(crate) fn publish(&self, topic: &str, message: &[u8]) {
        let mut client = self.client("mosquitto_pub", topic, "-s");
        let mut client = Process::spawn(client.stdin(Stdio::piped()));
        client.0.stdin.take().unwrap().write_all(message).unwrap();
        client.output();
    }

    /// Waits for the next message on a topic, or the retained one.
    pub(crate) fn next(&self, topic: &str) -> Vec<u8> {
        let hex = Process::spawn(&mut self.client("mosquitto_sub", topic, "-C 1 -F %x")).output();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        hex.as_bytes().chunks(2).map(byte).collect()
    }

    pub(crate) fn wait_for_state(&self, agent: u32, state: &str) {
        wait_until(state, || self.next(&format!("state/{agent}")) == state.as_bytes());
    }
}
