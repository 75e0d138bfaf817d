//! Planted bugs: does the suite find them?
//!
//! A build with `--cfg fedbandit_planted` has all of them, and the environment says which one is there. Each suite runs with
//! each bug, and once without any.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use fedbandit_core::planted::Bug;

use crate::record;

/// How many worlds of faults each bug has to hide in.
const SEEDS: &str = "100";

/// What a bug does.
fn description(bug: Bug) -> &'static str {
    match bug {
        Bug::AckBeforeCommit => "a summary is acknowledged before it is stored",
        Bug::SkipFsync => "commits are not synced",
        Bug::NoDuplicateCheck => "a summary that comes again counts again",
        Bug::NoTagCheck => "a frame with a wrong tag is taken",
        Bug::ReleaseBeforeLog => "a model is sent before it is stored",
        Bug::RedrawNoise => "noise is drawn, not derived",
        Bug::LateFrameInTwoEpisodes => "a late summary counts in its own episode and in the running one",
        Bug::OffByOneInTheTree => "a release misses the lowest level of its tree",
        Bug::ForgottenSymmetrisation => "a matrix is filled above its diagonal only",
        Bug::UncheckedLength => "a summary of another dimension is stored",
        Bug::UnboundedQueue => "frames wait for the service without a limit",
        Bug::WrongAgentsKey => "two devices have one key",
        Bug::RepeatedNonces => "a restarted service counts its nonces anew",
        Bug::ErrorIgnored => "the service goes on when its store fails",
    }
}

/// The command.
///
/// # Errors
/// A bug was not found, or something fails without one.
pub fn run(write: bool) -> Result<String, String> {
    build()?;
    let mut table = String::from("| bug | what it does | found by |\n|---|---|---|\n");
    let sound = findings(None)?;
    if !sound.is_empty() {
        return Err(format!("without a bug, these fail: {}", sound.join("; ")));
    }
    let mut found = 0;
    for bug in Bug::ALL {
        let findings = findings(Some(bug))?;
        found += usize::from(!findings.is_empty());
        let by = if findings.is_empty() { "**nothing**".into() } else { findings.join("; ") };
        eprintln!("{bug:?}: {by}");
        table += &format!("| `{bug:?}` | {} | {by} |\n", description(bug));
    }
    let text = format!("{found} of {} are found, and without a bug nothing is.\n\n{table}", Bug::ALL.len());
    if found < Bug::ALL.len() {
        return Err(text);
    }
    if write {
        record::write("planted", "fedbandit-tests planted --write", &text)?;
    }
    Ok(text)
}

fn cargo(arguments: &[&str], bug: Option<Bug>) -> Result<Output, String> {
    let mut command = Command::new("cargo");
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).args(arguments);
    command.args(["--locked", "--profile", "checks", "--target-dir", "target/planted"]);
    command.env("RUSTFLAGS", "--cfg fedbandit_planted");
    match bug {
        Some(bug) => command.env("FEDBANDIT_PLANTED", format!("{bug:?}")),
        None => command.env_remove("FEDBANDIT_PLANTED"),
    };
    command.output().map_err(|error| format!("cargo: {error}"))
}

fn build() -> Result<(), String> {
    for arguments in [&["build", "-q", "-p", "fedbandit-tests"][..], &TESTS] {
        let arguments = [arguments, if arguments == TESTS { &["--no-run"] } else { &[] }].concat();
        let built = cargo(&arguments, None)?;
        if !built.status.success() {
            return Err(String::from_utf8_lossy(&built.stderr).into_owned());
        }
    }
    Ok(())
}

/// The ordinary tests that are part of the suite.
const TESTS: [&str; 7] = ["test", "-p", "fedbandit", "--lib", "--test", "service", "--no-fail-fast"];

/// What fails with a bug.
fn findings(bug: Option<Bug>) -> Result<Vec<String>, String> {
    let mut findings = Vec::new();
    for (name, arguments) in [("simulation", &["soak", "--seeds", SEEDS][..]), ("storage", &["storage", "--short"][..])]
    {
        let mut command =
            Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/planted/checks/fedbandit-tests"));
        command.args(arguments);
        match bug {
            Some(bug) => command.env("FEDBANDIT_PLANTED", format!("{bug:?}")),
            None => command.env_remove("FEDBANDIT_PLANTED"),
        };
        let output = command.output().map_err(|error| format!("{name}: {error}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // A panic's own words may come first.
            let line = said.lines().find(|line| line.starts_with("seed ")).or(said.lines().next_back());
            findings.push(format!("{name}: {}", line.unwrap_or_default().trim()));
        }
    }
    let output = cargo(&TESTS, bug)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = said.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let failed: BTreeSet<String> =
        failed.map(|name| format!("`{}`", name.rsplit("::").next().unwrap_or(name))).collect();
    if failed.is_empty() && !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    findings.extend(failed);
    Ok(findings)
}
