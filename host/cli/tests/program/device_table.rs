//! Device table in `fedbandit status`, from a running service and from its store.

use serde_json::{Value, json};

use crate::test_fleet::Fleet;

#[test]
fn status_lists_devices_and_names_absent_ones() {
    let fleet = Fleet::new("device-table", 3);
    fleet.configure("deadline = 1\nepisode-len = 4\nsteps = 4000000");
    let service = fleet.serve();
    let _two = fleet.devices(&service.devices[0], "--count 2 --episodes 1000000");
    // The first episode may end before the devices have connected.
    service.wait_for(|status| status["episode"].as_u64() >= Some(4) && status["missing_in_last_episode"] == 1);
    let status = fleet.json("status --dir fleet --json");
    let devices = status["devices"].as_array().unwrap();
    assert_eq!(devices.iter().map(|device| &device["agent"]).collect::<Vec<_>>(), [1, 2, 3]);
    let (first, absent) = (&devices[0], &devices[2]);
    assert_eq!((&first["since_start"]["transport"], &first["since_start"]["connected"]), (&"tcp".into(), &true.into()));
    assert!(first["last_episode"].as_u64() >= Some(3) && first["distance"].is_f64(), "{first}");
    assert_eq!((&absent["last_episode"], &absent["since_start"]["seconds_since_seen"]), (&Value::Null, &Value::Null));
    assert!(absent["missing_streak"].as_u64() >= Some(3), "{absent}");
    let text = fleet.stdout("status --dir fleet");
    assert!(text.contains("\n  absent       3 (") && !text.contains("zeroed"), "{text}");
    drop(service);
    let stored = fleet.json("status --dir fleet --json");
    let (first, absent) = (&stored["devices"][0], &stored["devices"][2]);
    assert_eq!((&first["since_start"], &first["zeroed"]), (&Value::Null, &json!({})));
    assert!(first["last_episode"].as_u64() >= Some(3) && absent["missing_streak"].as_u64() >= Some(3), "{stored}");
}
