//! Long runs of tests of the real program and of libFuzzer, and their numbers on record.

use std::process::Command;

use crate::firmware::repository;
use crate::record::{self, thousands};
use crate::targets::{TARGETS, examples};

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
    // An episode takes a second at the most, and less if all have said something.
    run("hostile", "FEDBANDIT_EPISODES", 90 * minutes, write.then_some(record))
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

/// All targets under libFuzzer, for so many seconds each; what they find goes to `fuzz/target/corpus`.
///
/// # Errors
/// A target failed, or there is no nightly toolchain with cargo-fuzz.
pub fn fuzz(seconds: u64, write: bool) -> Result<String, String> {
    let mut table = format!("| target, {seconds} s each | runs | edges covered |\n|---|---:|---:|\n");
    for (target, _) in TARGETS {
        let found = repository().join("fuzz/target/corpus").join(target);
        let kept = repository().join("fuzz/corpus").join(target);
        for directory in [&found, &kept] {
            std::fs::create_dir_all(directory).map_err(|error| error.to_string())?;
        }
        for (number, example) in examples(target).into_iter().enumerate() {
            std::fs::write(found.join(format!("example-{number}")), example).map_err(|error| error.to_string())?;
        }
        let mut cargo = Command::new("cargo");
        cargo.current_dir(repository()).args(["+nightly", "fuzz", "run", target]).args([found, kept]);
        // One allocation of more than 16 MB is a finding, and so are ten seconds for one input.
        let limits = ["-rss_limit_mb=1024", "-malloc_limit_mb=16", "-timeout=10", "-max_len=2048"];
        cargo.arg("--").args(limits).args(["-print_final_stats=1", &format!("-max_total_time={seconds}")]);
        let output = cargo.output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{target}:\n{text}"));
        }
        let after = |mark: &str| text.rsplit_once(mark)?.1.split_whitespace().next()?.parse().ok();
        let number = |mark: &str| after(mark).map_or("?".into(), thousands);
        table += &format!("| {target} | {} | {} |\n", number("number_of_executed_units:"), number("cov: "));
        eprintln!("{target}: {} runs", number("number_of_executed_units:"));
    }
    if write {
        record::write("fuzz", "fedbandit-tests fuzz --seconds N --write", &table)?;
    }
    Ok(table)
}
