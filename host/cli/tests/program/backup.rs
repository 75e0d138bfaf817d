//! Backups of a running service, and their check.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::test_fleet::Fleet;

const SETTINGS: &str = "steps = 4000000\nepisode-len = 4";

fn export(fleet: &Fleet, directory: &str, what: &str) -> Vec<String> {
    let text = fleet.stdout(&format!("export --dir {directory} --what {what}"));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn backup_of_a_running_service_is_a_prefix_of_its_run_and_can_be_served() {
    let fleet = Fleet::new("backup", 3);
    fleet.configure(SETTINGS);
    let service = fleet.serve();
    let devices = fleet.devices(&service.devices[0], "--count 3 --episodes 1000000");
    service.wait_for(|status| status["episode"].as_u64() > Some(5));
    let printed = fleet.stdout("backup --dir fleet --out copy");
    assert!(printed.starts_with("copy: ") && printed.contains(" events; verify it with fedbandit check"), "{printed}");
    let reached = service.status()["episode"].as_u64().unwrap();
    service.wait_for(|status| status["episode"].as_u64() > Some(reached));
    drop((devices, service));

    assert!(fleet.stdout("check copy").starts_with("run 1 is intact: episode "));
    for what in ["releases", "messages"] {
        let [copied, original] = ["copy", "fleet"].map(|directory| export(&fleet, directory, what));
        assert!(copied.len() > 5 && copied.len() < original.len(), "{what}: {} rows", copied.len());
        assert_eq!(copied[..], original[..copied.len()], "{what}");
    }
    for secret in ["master.key", "registry.json", "http.token", "devices/agent-1.blob", "run.redb"] {
        let mode = fs::metadata(fleet.path().join("copy").join(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let status = fleet.json("status --dir copy --json");
    assert_eq!(status["service"], Value::Null);

    // The original is lost: the run goes on with the copy, and devices that were ahead return.
    fs::rename(fleet.path().join("fleet"), fleet.path().join("lost")).unwrap();
    fs::rename(fleet.path().join("copy"), fleet.path().join("fleet")).unwrap();
    let service = fleet.serve();
    // Its episode may have been complete, and closes then.
    let [copied, resumed] = [&status, &service.status()].map(|status| status["episode"].as_u64().unwrap());
    assert!((copied..=copied + 1).contains(&resumed), "episode {resumed} after {copied}");
    assert_eq!(fleet.devices(&service.devices[0], "--count 3 --episodes 2").report()["acknowledged"], 6);
}

#[test]
fn backup_of_a_stopped_run_equals_it() {
    let fleet = Fleet::new("backup-stopped", 2);
    fleet.configure(SETTINGS);
    fleet.refuses("backup --dir nowhere --out copy", 78, "no device is enrolled");
    let service = fleet.serve();
    assert_eq!(fleet.devices(&service.devices[0], "--count 2 --episodes 3").report()["acknowledged"], 6);
    drop(service);
    fleet.stdout("backup --dir fleet --out copy");
    fleet.refuses("backup --dir fleet --out copy", 2, "copy: exists; choose another --out");
    for what in ["releases", "messages", "audit"] {
        assert_eq!(export(&fleet, "copy", what), export(&fleet, "fleet", what), "{what}");
    }
}

#[test]
fn check_finds_a_damaged_run() {
    let fleet = Fleet::new("check", 2);
    fleet.configure(SETTINGS);
    let service = fleet.serve();
    fleet.refuses("check fleet", 74, "in use by another process");
    assert_eq!(fleet.devices(&service.devices[0], "--count 2 --episodes 30").report()["acknowledged"], 60);
    drop(service);
    let intact = fleet.stdout("check fleet");
    assert!(intact.starts_with("run 1 is intact: ") && intact.contains("all "), "{intact}");
    fleet.stdout("backup --dir fleet --out copy");
    fleet.stdout("check copy");
    let path = fleet.path().join("copy/run.redb");
    let sound = fs::read(&path).unwrap();
    // A value of a stored matrix is no longer what was received.
    let value = fleet.summaries().values().next().unwrap()[0].to_le_bytes();
    let place = (0..sound.len() - 4).find(|at| sound[*at..at + 4] == value).expect("a stored value");
    let mut damaged = sound.clone();
    damaged[place] ^= 1;
    fs::write(&path, damaged).unwrap();
    fleet.refuses("check copy", 65, "copy/run.redb: differs from what was backed up");
    fs::write(&path, &sound).unwrap();
    fleet.stdout("check copy");
    fs::write(fleet.path().join("copy/master.key"), b"short").unwrap();
    fleet.refuses("check copy", 65, "expected 32; restore the backup");
}
