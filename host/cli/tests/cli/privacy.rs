//! `fedbandit privacy`: table, JSON and exit codes.

use std::process::{Command, Output};

use serde_json::Value;

const SETTING: &str = "--mu 1 --nu 1e-6 --episodes 1024 --episode-len 64 --dim 10";

fn fedbandit(options: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedbandit"));
    command.arg("privacy").args(options.split_whitespace()).output().unwrap()
}

fn text(options: &str) -> String {
    let output = fedbandit(options);
    assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn report(options: &str) -> Value {
    let text = text(&format!("{options} --json"));
    assert_eq!(text.lines().count(), 1, "not one line");
    serde_json::from_str(&text).unwrap()
}

fn number(options: &str, key: &str) -> f64 {
    report(options)[key].as_f64().unwrap()
}

fn close(actual: f64, expected: f64) {
    assert!((actual / expected - 1.0).abs() < 1e-5, "{actual} is not {expected}");
}

/// Asserts exit code 2, a sentence on stderr, and an empty stdout.
fn refuses(options: &str, sentence: &str) {
    let output = fedbandit(options);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{options}: {stderr}");
    assert!(stderr.contains(sentence), "{options}: {stderr:?} lacks {sentence:?}");
    assert!(output.stdout.is_empty());
}

#[test]
fn report_keys_are_in_order() {
    let text = text(&format!("{SETTING} --json"));
    let keys = [
        "sensitivity",
        "levels",
        "rho",
        "node_sigma",
        "release_sigma_max",
        "noise_norm_bound",
        "paper_bound",
        "mu",
        "nu",
        "version",
        "config",
    ];
    let positions = keys.map(|key| text.find(&format!("\"{key}\":")).unwrap());
    assert!(positions.is_sorted());
    assert_eq!(report(SETTING).as_object().unwrap().len(), keys.len());
    let config = &report(SETTING)["config"];
    assert_eq!([&config["episodes"], &config["episode-len"], &config["dim"], &config["agents"]], [1024, 64, 10, 50]);
    assert_eq!([&config["mechanism"], &config["admission"]], ["tree", "strict"]);
}

#[test]
fn report_numbers_satisfy_their_formulas() {
    let delta = 64.0 * 3.0 / 2.0_f64.sqrt();
    let sensitivity = number(SETTING, "sensitivity");
    assert!(sensitivity > delta && sensitivity < delta * 1.0001);
    assert_eq!([&report(SETTING)["mu"], &report(SETTING)["nu"]], [1.0, 1e-6]);
    assert_eq!(report(SETTING)["levels"], 10);
    close(number(SETTING, "rho"), 0.024_355_97);
    close(number(SETTING, "node_sigma"), sensitivity * (10.0 / (2.0 * 0.024_355_97_f64)).sqrt());
    close(number(SETTING, "release_sigma_max"), number(SETTING, "node_sigma") * 10.0_f64.sqrt());
    let t = (2.0 * (16.0 * 50.0 * 1024.0 / 0.05_f64).ln()).sqrt();
    close(number(SETTING, "noise_norm_bound"), number(SETTING, "release_sigma_max") * (20.0_f64.sqrt() + t));
    let iota = (128.0 * 50.0 * 65536.0 / 0.05_f64).ln();
    close(number(SETTING, "paper_bound"), 64.0 * 48.0 * iota * 4e6_f64.ln() * (10.0_f64.sqrt() + iota));
}

#[test]
fn defaults_equal_their_explicit_values() {
    let spelled = "--mechanism tree --admission strict --group-size 1 --agents 50 --delta 0.05";
    assert_eq!(report(SETTING), report(&format!("{SETTING} {spelled}")));
}

#[test]
fn options_change_noise_as_expected() {
    let with = |options: &str| report(&format!("{SETTING} {options}"));
    let ratio = |options: &str, key: &str| with(options)[key].as_f64().unwrap() / number(SETTING, key);
    close(ratio("--admission paper", "sensitivity"), 4.0 / 3.0);
    assert_eq!(with("--mechanism honaker")["node_sigma"], with("")["node_sigma"]);
    let honaker = ratio("--mechanism honaker", "release_sigma_max");
    assert!((honaker - 0.726 / 0.953).abs() < 1e-3, "{honaker}");
    let blt = ratio("--mechanism blt", "release_sigma_max");
    assert!((blt - 0.313 / 0.953).abs() < 1e-3, "{blt}");
    assert!(with("--mechanism blt")["levels"].is_null());
    close(ratio("--group-size 8", "release_sigma_max"), 1.0 / 8.0);
    close(ratio("--group-size 8", "node_sigma"), 1.0);
    assert!(ratio("--group-size 8", "noise_norm_bound") < 1.0 / 8.0, "groups reduce the bound by more than their size");
    assert!(ratio("--agents 500", "noise_norm_bound") > 1.0);
    assert!(ratio("--delta 0.5", "noise_norm_bound") < 1.0);
}

#[test]
fn one_episode_needs_no_noise() {
    let report = report("--mu 1 --nu 1e-6 --episodes 1 --episode-len 64 --dim 10");
    assert_eq!(report["levels"], 0);
    assert_eq!([&report["node_sigma"], &report["release_sigma_max"], &report["noise_norm_bound"]], [0.0; 3]);
}

#[test]
fn table_lists_what_is_protected_and_what_is_not() {
    let text = text(&format!("{SETTING} --group-size 5 --agents 70 --delta 0.01"));
    for part in [
        "(1, 1e-6)-differential privacy of each message over 1024 episodes by tree",
        "sensitivity               135.8",
        "a mean of 5",
        "N = 70, δ = 0.01",
        "the paper's B·L",
        "the 64 steps of one device",
        "Not protected",
        "in 2 messages has mu = 2.1",
        "in 2 runs mu = 1.451, in 10 runs mu = 3.491",
        "the controller",
        "when a message was sent",
    ] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
}

#[test]
fn help_documents_every_key() {
    let help = text("--help");
    for key in report(SETTING).as_object().unwrap().keys().filter(|key| *key != "nu") {
        assert!(help.contains(key.as_str()), "{key}");
    }
}

#[test]
fn invalid_options_are_rejected() {
    let with = |change: &str| {
        let mut options = SETTING.to_owned();
        for pair in change.split(',') {
            let (option, value) = pair.split_once(' ').unwrap();
            match options.find(option) {
                Some(at) => {
                    let from = at + option.len() + 1;
                    let to = options[from..].find(' ').map_or(options.len(), |length| from + length);
                    options.replace_range(from..to, value);
                }
                None => options.push_str(&format!(" {pair}")),
            }
        }
        options
    };
    for (change, sentence) in [
        ("--mu 0", "mu must be positive and finite, got 0"),
        ("--mu -1", "mu must be positive and finite, got -1"),
        ("--mu nan", "mu must be positive and finite, got NaN"),
        ("--mu inf", "mu must be positive and finite, got inf"),
        ("--nu 0", "nu must be greater than 0 and less than 1, got 0"),
        ("--nu 1", "nu must be greater than 0 and less than 1, got 1"),
        ("--nu -0.1", "nu must be greater than 0 and less than 1, got -0.1"),
        ("--mu 1e-300,--nu 1e-300", "no finite noise"),
        ("--mu one", "--mu"),
        ("--episodes 0", "--episodes"),
        ("--episodes 4294967296", "--episodes"),
        ("--episode-len 0", "episode length must be from 1 to 65536, got 0"),
        ("--episode-len 65537", "episode length must be from 1 to 65536, got 65537"),
        ("--dim 0", "--dim"),
        ("--dim 256", "--dim"),
        ("--mechanism bush", "unknown mechanism 'bush'; expected one of tree, honaker, blt"),
        ("--admission none", "--admission"),
        ("--group-size 0", "--group-size"),
        ("--group-size 51", "--group-size 51 exceeds --agents 50"),
        ("--agents 0", "--agents"),
        ("--delta 0", "expected a number between 0 and 1"),
        ("--delta 1", "expected a number between 0 and 1"),
    ] {
        refuses(&with(change), sentence);
    }
    refuses("--mu 1 --nu 1e-6 --episodes 8 --episode-len 64", "--dim");
}

#[test]
fn largest_configuration_has_finite_noise() {
    for mechanism in ["tree", "honaker", "blt"] {
        let options = format!("--episodes 4294967295 --episode-len 65536 --dim 255 --mechanism {mechanism}");
        let report = report(&format!("--mu 1e-3 --nu 1e-12 {options}"));
        assert!(report["noise_norm_bound"].as_f64().is_some_and(f64::is_finite), "{report}");
    }
}
