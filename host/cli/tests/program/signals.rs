//! Signals to a running service.

use std::fs;
use std::process::Command;

use crate::test_fleet::Fleet;

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
