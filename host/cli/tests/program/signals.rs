//! Signals to a running service, and its notifications to the service manager.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use crate::process::LAST_RESORT;
use crate::test_fleet::{Fleet, Service};

#[test]
fn sigterm_is_logged_and_stops_the_service() {
    let fleet = Fleet::new("sigterm", 2);
    fleet.configure("");
    let log = fs::File::create(fleet.path().join("log")).unwrap();
    let mut service = fleet.serve_and_log("info", log.into());
    let process = &mut service.process.0;
    assert!(Command::new("kill").args(["-TERM", &process.id().to_string()]).status().unwrap().success());
    assert!(process.wait().unwrap().success());
    let log = fs::read_to_string(fleet.path().join("log")).unwrap();
    assert!(log.trim_end().ends_with("SIGTERM received; stopping"), "{log}");
    assert_eq!(fleet.json("status --dir fleet --json")["finished"], false, "the store is readable");
}

/// As systemd's Type=notify expects.
#[test]
fn service_manager_is_notified_of_start_progress_and_stop() {
    let fleet = Fleet::new("notify", 2);
    fleet.configure("steps = 8\nepisode-len = 4");
    let path = fleet.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LAST_RESORT)).unwrap();
    let mut received = Vec::new();
    let mut wait_for = |expected: &str| {
        while received.last().is_none_or(|last| last != expected) {
            let mut buffer = [0; 256];
            let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{error}: {received:?}"));
            received.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
        }
    };
    let mut command = fleet.command("serve --config controller.toml --log error");
    let mut service = Service::start(command.env("NOTIFY_SOCKET", &path).stderr(Stdio::inherit()));
    wait_for("READY=1");
    // At this time devices and browsers can connect.
    assert!(service.get("/healthz").ends_with("ok\n"));
    fleet.devices(&service.devices[0], "--count 2 --episodes 2").report();
    wait_for("STATUS=all 2 episodes closed");
    let process = &mut service.process.0;
    assert!(Command::new("kill").args(["-TERM", &process.id().to_string()]).status().unwrap().success());
    wait_for("STOPPING=1");
    assert!(process.wait().unwrap().success());
    assert_eq!(received.iter().filter(|state| *state == "READY=1").count(), 1, "{received:?}");
    assert!(received.iter().any(|state| state == "STATUS=episode 1 of 2"), "{received:?}");
}
