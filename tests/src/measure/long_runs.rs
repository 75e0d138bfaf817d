//! Long runs of the program's tests and of libFuzzer.

use std::path::PathBuf;
use std::process::Command;
use std::{fs, io};

use super::{Failure, run_command};
use crate::fuzz::{TARGETS, corpus, examples};
use crate::harness::repository;
use crate::measure::record::{self, thousands};

/// Kills the service, its broker and its devices so many times.
///
/// # Errors
/// The test fails; the error is its output.
pub fn crash(kills: u64, write: bool) -> Result<String, String> {
    run("kills", "FEDBANDIT_KILLS", kills, write.then_some(("crash", "fedbandit-tests crash --kills 2000 --write")))
}

/// Runs hostile devices for at least so many minutes.
///
/// # Errors
/// The test fails; the error is its output.
pub fn hostile(minutes: u64, write: bool) -> Result<String, String> {
    let record = ("hostile", "fedbandit-tests hostile --minutes 10 --write");
    run("hostile", "FEDBANDIT_SECONDS", 60 * minutes, write.then_some(record))
}

/// Runs a test of the program with an environment variable, and returns the table that it prints.
fn run(test: &str, variable: &str, value: u64, record: Option<(&str, &str)>) -> Result<String, String> {
    let mut cargo = Command::new("cargo");
    // The features with which ./ci.sh has built it.
    cargo.args(["test", "--locked", "--workspace", "--all-features", "--profile", "checks", "--test", "program"]);
    let output = cargo.args(["--", "--nocapture", &format!("{test}::")]).env(variable, value.to_string()).output();
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

/// Runs every target under libFuzzer for `seconds`.
///
/// Runs start from the corpus, the examples and the inputs that earlier runs left in `target/fuzz`. With `write`, the
/// corpus is replaced by a minimal set of these inputs that covers the same edges.
///
/// # Errors
/// A target fails, its corpus is damaged, or cargo-fuzz cannot be installed.
pub fn fuzz(seconds: u64, write: bool) -> Result<String, Failure> {
    run_command("cargo", &["+nightly", "fuzz", "--version"])
        .or_else(|_| {
            run_command("rustup", &["-q", "toolchain", "install", "nightly", "--profile", "minimal"])?;
            run_command("cargo", &["install", "-q", "--locked", "cargo-fuzz"])
        })
        .map_err(|reason| Failure::Skipped(format!("cargo-fuzz cannot be installed: {reason}")))?;
    let io = |error: io::Error| error.to_string();
    let mut table = format!("| target, {seconds} s each | runs | edges covered | corpus |\n|---|---:|---:|---:|\n");
    for (target, _) in TARGETS {
        let [found, minimal] =
            ["found", "minimal"].map(|name| repository().join("target/fuzz").join(target).join(name));
        let _ = fs::remove_dir_all(&minimal);
        [&found, &minimal].into_iter().try_for_each(fs::create_dir_all).map_err(io)?;
        // A new target has no corpus yet.
        let mut corpus = if corpus::path(target).exists() { corpus::read(target)? } else { Vec::new() };
        for (number, input) in corpus.iter().chain(&examples(target)).enumerate() {
            fs::write(found.join(number.to_string()), input).map_err(io)?;
        }
        let text = libfuzzer(target, &[&found], &[&format!("-max_total_time={seconds}")])?;
        if write {
            libfuzzer(target, &[&minimal, &found], &["-set_cover_merge=1", "-use_counters=0"])?;
            let inputs = fs::read_dir(&minimal).map_err(io)?.map(|entry| fs::read(entry?.path()));
            corpus = inputs.collect::<Result<_, _>>().map_err(io)?;
            corpus::write(target, corpus.clone())?;
        }
        let after = |mark: &str| text.rsplit_once(mark)?.1.split_whitespace().next()?.parse().ok();
        let number = |mark: &str| after(mark).map_or("?".into(), thousands);
        let (runs, edges) = (number("number_of_executed_units:"), number("cov: "));
        table += &format!("| {target} | {runs} | {edges} | {} |\n", corpus.len());
        eprintln!("{target}: {runs} runs");
    }
    if write {
        record::write("fuzz", "fedbandit-tests fuzz --seconds 60 --write", &table)?;
    }
    Ok(table)
}

/// Runs a target under libFuzzer with directories of inputs, and returns its output.
fn libfuzzer(target: &str, inputs: &[&PathBuf], task: &[&str]) -> Result<String, String> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(repository()).args(["+nightly", "fuzz", "run", target]).args(inputs);
    // A single allocation above 16 MB is a failure, and so are ten seconds for one input.
    let limits = ["-rss_limit_mb=1024", "-malloc_limit_mb=16", "-timeout=10", "-max_len=2048"];
    cargo.arg("--").args(limits).arg("-print_final_stats=1").args(task);
    // Warnings of a nightly compiler must not fail the target.
    let output = cargo.env_remove("RUSTFLAGS").output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(text.into_owned()) } else { Err(format!("{target}:\n{text}")) }
}
