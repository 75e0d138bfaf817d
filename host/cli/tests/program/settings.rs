//! Settings of `fedbandit serve` from flags, environment variables and files.

use crate::test_fleet::{Fleet, Service};

/// Starts a service, and returns the number of episodes that follows from its key `steps`.
fn episodes(name: &str, file: &str, variable: Option<&str>, flags: &str) -> u64 {
    let fleet = Fleet::new(name, 1);
    fleet.configure(&format!("episode-len = 4\n{file}"));
    let mut command = fleet.command(&format!("serve --config controller.toml --log error {flags}"));
    let service = Service::start(command.envs(variable.map(|value| ("FEDBANDIT_STEPS", value))));
    service.status()["episodes"].as_u64().unwrap()
}

#[test]
fn flag_overrides_variable_overrides_file_overrides_default() {
    assert_eq!(episodes("default", "", None, ""), 4096 / 4);
    assert_eq!(episodes("file", "steps = 40", None, ""), 10);
    assert_eq!(episodes("variable", "steps = 40", Some("80"), ""), 20);
    assert_eq!(episodes("flag", "steps = 40", Some("80"), "--steps 120"), 30);
}

#[test]
fn service_starts_without_a_file() {
    let fleet = Fleet::new("no-file", 1);
    let arguments = "--dir fleet --listen 127.0.0.1:0 --http 127.0.0.1:0 --episode-len 4 --steps 40 --log error";
    let service = Service::start(&mut fleet.command(&format!("serve {arguments}")));
    assert_eq!(service.status()["episodes"], 10);
}

#[test]
fn errors_name_the_flag_or_the_file_that_set_the_key() {
    let fleet = Fleet::new("origin", 1);
    fleet.configure("window = 64");
    let serve = "serve --config controller.toml";
    fleet.refuses(serve, 78, "controller.toml: window: must be from 0 to 63");
    fleet.refuses(&format!("{serve} --window 65"), 2, "--window: must be from 0 to 63");
    fleet.refuses(&format!("{serve} --window many"), 2, "--window: invalid type");
    fleet.refuses("serve", 2, "--config <FILE>");
}

/// A half-life is part of the run's terms.
#[test]
fn half_life_is_fixed_when_the_run_starts() {
    let fleet = Fleet::new("half-life", 1);
    fleet.configure("forget = 512\nepisode-len = 4\naggregator = \"geometric-median\"");
    drop(fleet.serve());
    let serve = "serve --config controller.toml";
    fleet.refuses(&format!("{serve} --forget 256"), 78, "forget is 512, configured 256");
    fleet.refuses(&format!("{serve} --forget 0"), 2, "--forget: must be at least 1 step, got 0");
    fleet.refuses(&format!("{serve} --schedule theorem"), 78, "forget: not available with schedule theorem");
}

const PRIVATE: &str = "rewards = \"bounded\"\nprivacy = \"4,1e-6\"\nepisode-len = 8";

/// Others can read MQTT and a TCP address that is not loopback.
#[test]
fn private_run_rejects_plain_frames_on_shared_transports() {
    let fleet = Fleet::empty("plain-frames");
    fleet.stdout("enroll --dir fleet --dim 4 --count 2 --private");
    fleet.configure(PRIVATE);
    for shared in ["--listen 0.0.0.0:0", "--mqtt mqtt://127.0.0.1:1"] {
        let serve = format!("serve --config controller.toml --log off {shared}");
        fleet.refuses(&serve, 78, "2 of 2 devices send plain frames");
        drop(Service::start(&mut fleet.command(&format!("{serve} --allow-plain-frames true"))));
    }
    // Loopback needs no permission.
    drop(fleet.serve());
    // A revoked device does not count.
    fleet.stdout("revoke --dir fleet 1");
    fleet.refuses("serve --config controller.toml --listen 0.0.0.0:0", 78, "1 of 2 devices send plain frames");
    fleet.stdout("revoke --dir fleet 2");
    drop(Service::start(&mut fleet.command("serve --config controller.toml --log error --listen 0.0.0.0:0")));
}

#[test]
fn private_run_accepts_sealed_frames_on_shared_transports() {
    let fleet = Fleet::empty("sealed-frames");
    fleet.stdout("enroll --dir fleet --dim 4 --count 2 --private --sealed");
    fleet.configure(PRIVATE);
    drop(Service::start(&mut fleet.command("serve --config controller.toml --log error --listen 0.0.0.0:0")));
}

/// A guard remembers data of earlier episodes. Devices for private runs have none, in any run.
#[test]
fn private_run_rejects_guarded_devices() {
    let guarded = Fleet::new("guarded", 2);
    assert!(guarded.identity(1).allows_guard());
    guarded.configure(PRIVATE);
    guarded.refuses("serve --config controller.toml", 78, "privacy: guarded devices remember data of earlier episodes");
    guarded.refuses("enroll --dir fleet --private", 2, "belongs to run 1 with --dim 4");

    let private = Fleet::empty("unguarded");
    private.stdout("enroll --dir fleet --dim 4 --private");
    private.stdout("enroll --dir fleet");
    assert!([1, 2].iter().all(|agent| !private.identity(*agent).allows_guard()));
    private.configure(PRIVATE);
    let service = private.serve();
    let device = format!("device --connect {} --identities fleet/devices --rewards bounded", service.devices[0]);
    private.refuses(&format!("{device} --guard on"), 2, "--guard: device 1 is enrolled with --private; use off");
    assert_eq!(private.devices(&service.devices[0], "--rewards bounded --episodes 1").report()["alarms"], 0);
}
