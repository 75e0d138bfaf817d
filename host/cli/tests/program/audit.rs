//! Audit log of a service: what is recorded while it runs, between two starts, and after a crash.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use serde_json::Value;

use crate::process::wait_until;
use crate::test_fleet::{Fleet, Service};

/// Returns the entries of the audit log, from the running service or the store.
fn log(fleet: &Fleet) -> Vec<Value> {
    let text = fleet.stdout("export --dir fleet --what audit --format json");
    text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Describes entries by event, and device or key.
fn events(entries: &[Value]) -> Vec<String> {
    let words = |entry: &Value| {
        let subject = [&entry["agent"], &entry["key"], &entry["reason"]].into_iter().find(|value| !value.is_null());
        let subject = subject.map(|value| format!(" {}", value.to_string().trim_matches('"'))).unwrap_or_default();
        format!("{}{subject}", entry["event"].as_str().unwrap())
    };
    entries.iter().map(words).collect()
}

fn terminate(mut service: Service) {
    let id = service.process.0.id().to_string();
    assert!(Command::new("kill").arg(&id).status().unwrap().success());
    assert!(service.process.0.wait().unwrap().success());
}

fn unrevoke(fleet: &Fleet) {
    let file = fleet.path().join("fleet/registry.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("\"revoked\": true", "\"revoked\": false")).unwrap();
}

#[test]
fn starts_stops_settings_and_devices_are_recorded() {
    let fleet = Fleet::new("audit", 2);
    fleet.configure("");
    let service = fleet.serve();
    let first = log(&fleet);
    assert_eq!(events(&first), ["enrolled 1", "enrolled 2", "start"]);
    let own = fs::metadata("/proc/self").unwrap().uid();
    assert!(first.iter().all(|entry| entry["uid"] == own && entry["at"].as_u64() > Some(1_700_000_000)), "{first:?}");
    assert_eq!(first[2]["config_hash"], service.status()["config_hash"]);
    assert_eq!(format!("fedbandit {}", first[2]["version"].as_str().unwrap()), fleet.stdout("--version").trim());
    // While the service runs.
    fleet.stdout("revoke --dir fleet 2");
    wait_until("revocation", || log(&fleet).len() == 4);
    fleet.stdout("rekey --dir fleet 1");
    wait_until("new key", || log(&fleet).len() == 5);
    terminate(service);
    assert_eq!(events(&log(&fleet))[3..], ["revoked 2", "rekeyed 1", "stop SIGTERM"]);
    // Between two starts.
    unrevoke(&fleet);
    fleet.configure("deadline = 77\nmqtt = \"mqtt://user:secret@127.0.0.1:1\"");
    let service = fleet.serve_and_log("off", std::process::Stdio::null());
    let entries = log(&fleet);
    assert_eq!(events(&entries)[6..], ["changed deadline", "changed mqtt", "unrevoked 2", "start"]);
    assert_eq!((&entries[6]["old"], &entries[6]["new"]), (&3600.into(), &77.into()));
    assert_eq!(entries[7]["new"], "mqtt://127.0.0.1:1", "no password");
    // A crash leaves no stop.
    drop(service);
    drop(fleet.serve_and_log("off", std::process::Stdio::null()));
    assert_eq!(events(&log(&fleet))[10..], ["start"]);
    let csv = fleet.stdout("export --dir fleet --what audit");
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[1], "at,uid,event,agent,generation,key,old,new,version,config_hash,reason");
    assert!(lines[6].ends_with(",rekeyed,1,1,,,,,,") && lines.len() == 13, "{csv}");
}

#[test]
fn audit_log_is_paged() {
    let fleet = Fleet::new("audit-pages", 25);
    fleet.configure("");
    let service = fleet.serve();
    let page = |query: &str| -> Value {
        let answer = service.get(&format!("/api/audit?{query}"));
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let (mut rows, mut after) = (Vec::new(), String::new());
    loop {
        let page = page(&format!("limit=10{after}"));
        rows.extend(page["rows"].as_array().unwrap().iter().cloned());
        match page["next"].as_u64() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(rows, log(&fleet));
    assert_eq!(rows.len(), 26);
    assert!(service.get("/api/audit?limit=x").starts_with("HTTP/1.0 400 "));
}
