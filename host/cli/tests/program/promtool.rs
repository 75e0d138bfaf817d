//! Metrics of running services under `promtool check metrics`.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::test_fleet::{Fleet, Service};

/// Asserts that promtool accepts the metrics of a service, and returns them.
fn checked_metrics(service: &Service) -> String {
    let answer = service.get("/metrics");
    let metrics = answer.split_once("\r\n\r\n").unwrap().1;
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("./ci.sh packages installs promtool");
    promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(output.status.success() && said.is_empty(), "{said}\n{metrics}");
    metrics.to_owned()
}

#[test]
#[ignore = "needs promtool: ./ci.sh packages"]
fn metrics_of_running_and_finished_runs_are_accepted() {
    let fleet = Fleet::new("promtool", 3);
    fleet.configure("steps = 12\nepisode-len = 4");
    let service = fleet.serve();
    let running = checked_metrics(&service);
    assert!(running.contains("\nfedbandit_run_finished 0\n") && running.contains("\nfedbandit_deadline_seconds "));
    assert!(running.contains("\nfedbandit_store_bytes ") && running.contains("\nfedbandit_store_free_bytes "));
    fleet.devices(&service.devices[0], "--count 3 --episodes 3").report();
    service.wait_for(|status| status["finished"] == true);
    let finished = checked_metrics(&service);
    assert!(finished.contains("\nfedbandit_run_finished 1\n") && finished.contains("\nfedbandit_devices_missing 0\n"));
    assert!(!finished.contains("fedbandit_deadline_seconds") && !finished.contains("fedbandit_missing_ratio"));
}

#[test]
#[ignore = "needs promtool: ./ci.sh packages"]
fn metrics_of_a_private_run_are_accepted() {
    let fleet = Fleet::empty("promtool-private");
    fleet.stdout("enroll --dir fleet --dim 4 --count 5 --private");
    fleet.configure("rewards = \"bounded\"\nprivacy = \"4,1e-6\"\nepisode-len = 8");
    let metrics = checked_metrics(&fleet.serve());
    assert!(metrics.contains("\nfedbandit_privacy_mu 4\n"), "{metrics}");
    assert!(!metrics.contains("fedbandit_mean_reward") && !metrics.contains("fedbandit_directions"), "{metrics}");
}
