//! A device that is revoked while the service runs.

use std::fs;

use crate::test_fleet::Fleet;

#[test]
fn running_service_drops_a_revoked_device() {
    let fleet = Fleet::new("revocation", 3);
    fleet.configure("deadline = 1\nsteps = 4000000\nepisode-len = 4");
    let log = fs::File::create(fleet.path().join("log")).unwrap();
    let service = fleet.serve_and_log("info", log.into());
    let _devices = fleet.devices(&service.devices[0], "--count 3 --episodes 1000000 --patience 60000");
    service.wait_for(|status| status["connected"] == 3);
    service.wait_for_episode(3);
    assert!(fleet.command("revoke --dir fleet 2").output().unwrap().status.success());
    let status = service.wait_for(|status| status["revoked"] == 1 && status["dropped"]["revoked"].as_u64() >= Some(1));
    // The episode that it may still have had a part in, and the next.
    let episode = status["episode"].as_u64().unwrap() as u32;
    service.wait_for_episode(u64::from(episode) + 2);
    drop(service);
    let stored = fleet.stored();
    for agent in [1, 3] {
        assert!(stored.contains(&(agent, episode + 1)), "the others go on");
    }
    assert!(stored.contains(&(2, 1)));
    assert!(!stored.iter().any(|(agent, of)| *agent == 2 && *of > episode), "nothing of it is taken any more");
    let log = fs::read_to_string(fleet.path().join("log")).unwrap();
    assert_eq!(log.matches("device revoked agent=2\n").count(), 1, "{log}");
}
