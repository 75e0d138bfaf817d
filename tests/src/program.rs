//! Long runs of tests of the real program, and their numbers on record.

use std::process::Command;

use crate::record;

/// Kills of the service, its broker and its devices.
///
/// # Errors
/// Something did not hold.
pub fn crash(kills: u64, write: bool) -> Result<String, String> {
    run("kills", "FEDBANDIT_KILLS", kills, write.then_some(("crash", "fedbandit-tests crash --kills 2000 --write")))
}

/// Hostile devices, for so many minutes.
///
/// # Errors
/// Something did not hold.
pub fn hostile(minutes: u64, write: bool) -> Result<String, String> {
    let record = ("hostile", "fedbandit-tests hostile --minutes 10 --write");
    // An episode takes a second.
    run("hostile", "FEDBANDIT_EPISODES", 60 * minutes, write.then_some(record))
}

/// Runs a test of `fedbandit` with a variable, and returns the rows of the table that it prints.
fn run(test: &str, variable: &str, value: u64, record: Option<(&str, &str)>) -> Result<String, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--locked", "--release", "-p", "fedbandit", "--all-features", "--test", test]);
    let output = cargo.args(["--", "--nocapture"]).env(variable, value.to_string()).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let table: String = ["| | |", "|---|---:|"].into_iter().chain(rows).map(|row| format!("{row}\n")).collect();
    if let Some((name, command)) = record {
        record::write(name, command, &table)?;
    }
    Ok(table)
}
