//! Runs that continue each other: a fleet grows and its keys rotate while its devices keep running.

use std::fs;
use std::io::Write;

use fedbandit_core::wire::{Message, SummaryMessage, cobs, max_frame_len};
use serde_json::Value;

use crate::process::Process;
use crate::test_fleet::{Fleet, Service, connect, free_port};

/// Number of episodes at the start of a run, of 4 steps each.
const START: usize = 8;

/// Returns the mean rewards of the closed episodes.
fn rewards(status: &Value) -> Vec<f64> {
    let history = status["history"].as_array().unwrap();
    history.iter().map(|episode| episode["mean_reward"].as_f64().unwrap()).collect()
}

fn serve(fleet: &Fleet, arguments: &str) -> Service {
    Service::start(&mut fleet.command(&format!("serve --config controller.toml --log error {arguments}")))
}

/// Waits until the first model is stored.
fn wait_for_model(service: &Service) {
    service.wait_for(|status| status["beta"].is_number());
}

/// 40 devices learn, 20 join them in a run with shorter episodes. The 40 are neither reflashed nor restarted.
#[test]
fn fleet_grows_without_losing_what_it_learnt() {
    let fleet = Fleet::new("chain", 40);
    let port = free_port();
    fleet.configure_at(port, "steps = 65536");
    let service = fleet.serve();
    let endless = "--episodes 1000000 --patience 3600000 --guard off";
    // Without a guard, which would remember the device's own data, all that is learnt is in the models.
    let devices = |identities: &str| {
        let url = format!("tcp://127.0.0.1:{port}");
        Process::spawn(&mut fleet.command(&format!("device --connect {url} {endless} --identities {identities}")))
    };
    let mut old_devices = devices("fleet/devices --count 40");
    service.wait_for_episode(40);
    fleet.refuses("continue --from fleet --dir fleet-2", 74, "in use by another process; stop its service first");
    let before = rewards(&service.status());
    drop(service);

    let printed = fleet.stdout("continue --from fleet --dir fleet-2");
    assert!(printed.starts_with("run 2 continues run 1 from its model of episode "), "{printed}");
    assert!(printed.ends_with(", with 40 devices: fleet-2\n"), "{printed}");
    assert_eq!(fleet.stdout("enroll --dir fleet-2 --count 20"), "enrolled 41 to 60 of run 2: fleet-2/devices\n");
    let service = serve(&fleet, "--dir fleet-2 --episode-len 32");
    let new_devices = devices("fleet-2/devices --first 41 --count 20");
    let status = service.wait_for(|status| status["history"].as_array().is_some_and(|history| history.len() >= 40));
    let after = rewards(&status);
    assert!(status["history"].as_array().unwrap().iter().all(|episode| episode["missing"] == 0), "{status}");
    assert_eq!((status["run"].as_u64(), status["enrolled"].as_u64()), (Some(2), Some(60)));
    assert!(!old_devices.has_ended());

    // The mean reward of the first episode has a standard deviation of 0.06, of `START` such episodes 0.02.
    assert!(before[0] < 0.3 && 0.3 < after[0], "first episodes: fresh {}, continued {}", before[0], after[0]);
    let means = [&before[before.len() - START..], &after[..START], &after[after.len() - START..]];
    let [learnt, continued, later] = means.map(|rewards| rewards.iter().sum::<f64>() / START as f64);
    assert!((learnt - continued).abs() < 0.12 && (learnt - later).abs() < 0.12, "{learnt} {continued} {later}");

    let chain = &status["chain"];
    assert_eq!((&chain["runs"][0]["run"], &chain["runs"][0]["agents"]), (&1.into(), &40.into()), "{chain}");
    assert_eq!(
        (chain["discount"].as_f64(), &chain["contradicted"], &chain["privacy"]),
        (Some(1.0), &0.into(), &Value::Null)
    );
    let text = fleet.stdout("status --dir fleet-2");
    assert!(text.contains("  continues    run 1 (40 devices, model of episode "), "{text}");
    assert!(text.contains("discount 1, 0 models contradicted it"), "{text}");

    // The keys have changed with the run: a frame of run 1 is not one of run 2.
    assert_eq!(status["dropped"], serde_json::json!({}));
    let (gram, feature_sum) = (([0.0; 10][..]).into(), ([0.0; 4][..]).into());
    let summary = SummaryMessage { episode: 1, steps: 4, reward_sum: 0.0, gram, feature_sum };
    let mut frame = [0; max_frame_len(4)];
    let length = fleet.channel(1).encode(&Message::Summary(summary), &mut frame).unwrap();
    frame[12..16].copy_from_slice(&2_u32.to_le_bytes());
    let mut stream = connect(service.tcp());
    stream.write_all(&cobs::encode(&frame[..length]).collect::<Vec<_>>()).unwrap();
    service.wait_for(|status| status["dropped"]["tag"] == 1);
    drop(new_devices);
}

#[test]
fn invalid_continuation_is_refused_and_leaves_nothing_behind() {
    let fleet = Fleet::empty("invalid-chain");
    fleet.refuses("continue --from fleet --dir next", 78, "fleet: no device is enrolled");
    fleet.stdout("enroll --dir fleet --dim 4 --count 2");
    fleet.refuses("continue --from fleet --dir next", 78, "fleet: the run has no model to continue from");
    fleet.configure("");
    let service = fleet.serve();
    wait_for_model(&service);
    fleet.refuses("status --dir next", 78, "next: no device is enrolled");
    drop(service);
    for discount in ["0", "-1", "1.5", "NaN"] {
        fleet.refuses(
            &format!("continue --from fleet --dir next --discount {discount}"),
            2,
            "--discount must be above 0",
        );
    }
    fleet.refuses("continue --from fleet --dir next --discount 1e-300", 78, "leave the width");
    fs::create_dir(fleet.path().join("taken")).unwrap();
    fleet.refuses("continue --from fleet --dir taken", 2, "--dir taken: exists already; choose another directory");
    assert!(!fleet.path().join("next").exists());
    // A directory with files of different runs.
    let registry = fleet.path().join("fleet/registry.json");
    let text = fs::read_to_string(&registry).unwrap();
    fs::write(&registry, text.replace("\"run\": 1", "\"run\": 5")).unwrap();
    fleet.refuses("continue --from fleet --dir next", 65, "registry.json and run.redb belong to different runs");
    assert!(!fleet.path().join("next").exists());
}

#[test]
fn continued_run_keeps_keys_generations_seals_and_revocations() {
    let fleet = Fleet::new("chain-devices", 2);
    fleet.stdout("enroll --dir fleet --count 1 --sealed");
    fleet.configure("");
    wait_for_model(&fleet.serve());
    fleet.stdout("rekey --dir fleet 2");
    fleet.stdout("revoke --dir fleet 1");
    fleet.stdout("continue --from fleet --dir fleet-2 --discount 0.5");
    let read = |file: &str| fs::read(fleet.path().join(file)).unwrap();
    assert_eq!(read("fleet/master.key"), read("fleet-2/master.key"));
    let registry = |file: &str| serde_json::from_slice::<Value>(&read(file)).unwrap();
    let [old, new] = ["fleet/registry.json", "fleet-2/registry.json"].map(registry);
    for key in ["fleet", "dimension", "noise", "theta_norm", "guard", "devices"] {
        assert_eq!(old[key], new[key], "{key}");
    }
    assert_eq!((&new["run"], &new["continues"]["prior"]["discount"]), (&2.into(), &0.5.into()));
    assert!(old.get("continues").is_none());
    // A private run refuses the guarded devices that it would take over.
    let private = "--rewards bounded --privacy 4,1e-6 --aggregator geometric-median --dir fleet-2";
    fleet.refuses(&format!("serve --config controller.toml {private}"), 2, "guarded devices remember data");
    // The next link of the chain.
    wait_for_model(&serve(&fleet, "--dir fleet-2"));
    fleet.stdout("continue --from fleet-2 --dir fleet-3");
    let runs = |registry: &Value| -> Vec<u64> {
        let chain = registry["continues"]["chain"].as_array().unwrap();
        chain.iter().map(|run| run["run"].as_u64().unwrap()).collect()
    };
    assert_eq!(runs(&registry("fleet-3/registry.json")), [1, 2]);
}
