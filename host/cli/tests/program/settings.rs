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

const PRIVATE: &str = "rewards = \"bounded\"\nprivacy = \"4,1e-6\"\nepisode-len = 8";

/// Others can read MQTT and a TCP address that is not loopback.
#[test]
fn private_run_rejects_plain_frames_on_shared_transports() {
    let fleet = Fleet::new("plain-frames", 2);
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
    fleet.stdout("enroll --dir fleet --dim 4 --count 2 --sealed");
    fleet.configure(PRIVATE);
    drop(Service::start(&mut fleet.command("serve --config controller.toml --log error --listen 0.0.0.0:0")));
}
