//! Devices that are revoked or get a new key while the service runs, and devices of another run.

use std::fs;

use serde_json::Value;

use crate::test_fleet::Fleet;

#[test]
fn running_service_drops_a_revoked_device() {
    let fleet = Fleet::new("revocation", 3);
    fleet.configure("deadline = 1\nsteps = 4000000\nepisode-len = 4");
    let log = fs::File::create(fleet.path().join("log")).unwrap();
    let service = fleet.serve_and_log("info", log.into());
    let _devices = fleet.devices(&service.devices[0], "--count 3 --episodes 1000000");
    // Waits for an episode to end with a number of missing devices, and returns that episode.
    let ended_without = |missing: u32, after: u64| {
        let complete = |status: &Value| status["missing_in_last_episode"] == missing;
        let status = service.wait_for(|status| status["episode"].as_u64() > Some(after + 1) && complete(status));
        status["episode"].as_u64().unwrap() - 1
    };
    let with_all = ended_without(0, 0);
    fleet.stdout("revoke --dir fleet 2");
    let status = service.wait_for(|status| status["revoked"] == 1 && status["dropped"]["revoked"].as_u64() >= Some(1));
    // The device may have reported in this episode, but not in the next.
    let last = status["episode"].as_u64().unwrap();
    let with_others = ended_without(1, last);
    drop(service);
    let stored = fleet.stored();
    assert!((1..=3).all(|agent| stored.contains(&(agent, with_all as u32))), "{stored:?} lacks episode {with_all}");
    assert!(
        [1, 3].iter().all(|agent| stored.contains(&(*agent, with_others as u32))),
        "{stored:?} lacks {with_others}"
    );
    let late = |(agent, episode): &(u32, u32)| *agent == 2 && u64::from(*episode) > last;
    assert!(!stored.iter().any(late), "a summary of the revoked device is stored");
    let log = fs::read_to_string(fleet.path().join("log")).unwrap();
    assert_eq!(log.matches("device revoked agent=2\n").count(), 1, "{log}");
}

#[test]
fn running_service_accepts_a_new_key_and_drops_the_old_one() {
    let fleet = Fleet::new("rekey", 1);
    fleet.configure("");
    let service = fleet.serve();
    let file = fleet.path().join("fleet/devices/agent-1.blob");
    let old = fs::read(&file).unwrap();
    fleet.refuses("rekey --dir fleet 3", 2, "device 3 is not enrolled");
    assert_eq!(fleet.stdout("rekey --dir fleet 1"), "device 1 has key generation 1\n");
    assert_ne!(fs::read(&file).unwrap(), old);
    // The device asks until the service has noticed the new key.
    assert_eq!(fleet.devices(&service.devices[0], "--episodes 2").report()["acknowledged"], 2);
    fs::write(&file, &old).unwrap();
    let before = service.status()["dropped"]["tag"].as_u64();
    let _stolen = fleet.devices(&service.devices[0], "--episodes 2");
    service.wait_for(|status| status["dropped"]["tag"].as_u64() > before);
}

/// A device that is revoked, reinstated or enrolled while the service runs, and one that is enrolled while it is down.
#[test]
fn running_service_reinstates_and_enrolls_devices() {
    let fleet = Fleet::new("enrolment", 2);
    fleet.configure("steps = 4000000\nepisode-len = 4");
    let service = fleet.serve();
    fleet.stdout("revoke --dir fleet 2");
    service.wait_for(|status| status["revoked"] == 1);
    assert!(fleet.stdout("revoke --dir fleet --undo 2").starts_with("0 of 2 devices"));
    service.wait_for(|status| status["revoked"] == 0);
    fleet.stdout("enroll --dir fleet --count 2");
    service.wait_for(|status| status["enrolled"] == 4);
    let report = fleet.devices(&service.devices[0], "--count 4 --episodes 3").report();
    assert_eq!(report["acknowledged"], 12);
    drop(service);
    fleet.stdout("enroll --dir fleet");
    let service = fleet.serve();
    let report = fleet.devices(&service.devices[0], "--count 5 --episodes 3").report();
    assert_eq!(report["acknowledged"], 15);
    drop(service);
    let stored = fleet.stored();
    assert!((1..=5).all(|agent| stored.iter().any(|(stored, _)| *stored == agent)), "{stored:?}");
    assert!(fleet.stdout("check fleet").contains("5 devices"));
    let audit = fleet.stdout("export --dir fleet --what audit");
    let rows = |event: &str| audit.lines().filter(|line| line.contains(event)).count();
    assert_eq!((rows("unrevoked"), rows("enrolled")), (1, 5), "{audit}");
}

/// A service of run 2, with the master key and the devices of run 1: devices whose blobs are those of run 1 take part in run 2.
#[test]
fn devices_move_to_the_run_of_their_controller() {
    let fleet = Fleet::new("next-run", 2);
    fleet.configure("");
    let service = fleet.serve();
    assert_eq!(fleet.devices(&service.devices[0], "--count 2 --episodes 2").report()["acknowledged"], 4);
    drop(service);
    fs::remove_file(fleet.path().join("fleet/run.redb")).unwrap();
    let registry = fleet.path().join("fleet/registry.json");
    let text = fs::read_to_string(&registry).unwrap();
    fs::write(&registry, text.replace("\"run\": 1", "\"run\": 2")).unwrap();
    let service = fleet.serve();
    assert_eq!(fleet.devices(&service.devices[0], "--count 2 --episodes 3").report()["acknowledged"], 6);
    assert_eq!(service.status()["run"], 2);
}
