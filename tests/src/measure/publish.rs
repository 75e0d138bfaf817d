//! Checks before a release.

use std::fs;

use super::{Failure, run_command};
use crate::harness::repository;

/// Oldest supported version of Rust.
const OLDEST: &str = env!("CARGO_PKG_RUST_VERSION");
/// Target on which the core is checked with that version.
const TARGET: &str = "thumbv7em-none-eabihf";

/// Checks that the packages build by themselves, with the oldest Rust and with every single feature, and that `cargo deny`
/// accepts their dependencies.
///
/// # Errors
/// A check fails, or the advisory database cannot be fetched.
pub fn run() -> Result<String, Failure> {
    run_command("cargo", &["publish", "-q", "--dry-run", "--locked", "--allow-dirty", "--workspace"])?;
    run_command("rustup", &["-q", "toolchain", "install", OLDEST, "--profile", "minimal", "--target", TARGET])?;
    check(&["--workspace", "--all-features"])?;
    check(&["-p", "fedbandit-core", "--features", "defmt,serde,sealed", "--target", TARGET])?;
    for package in ["core", "host"] {
        let manifest = format!("{package}/Cargo.toml");
        for feature in features(&manifest)? {
            check(&["--manifest-path", &manifest, "--no-default-features", "--features", &feature])?;
        }
    }
    run_command("cargo", &["deny", "--version"])
        .or_else(|_| run_command("cargo", &["install", "-q", "--locked", "cargo-deny"]))?;
    run_command("cargo", &["deny", "--locked", "check", "licenses", "bans", "sources"])?;
    run_command("cargo", &["deny", "fetch", "db"])
        .map_err(|_| Failure::Skipped("the advisory database cannot be fetched; all other checks passed".into()))?;
    run_command("cargo", &["deny", "--locked", "check", "advisories"])?;
    Ok(String::new())
}

fn check(arguments: &[&str]) -> Result<(), String> {
    run_command("cargo", &[&[&*format!("+{OLDEST}"), "check", "--locked", "-q"], arguments].concat())
}

/// Reads the features of a package. The first one is empty: the package without any.
fn features(manifest: &str) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(repository().join(manifest)).map_err(|error| format!("{manifest}: {error}"))?;
    let section = text.lines().skip_while(|line| *line != "[features]").skip(1);
    let lines = section.take_while(|line| !line.starts_with('[')).filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| line.split_once(" = "));
    Ok([String::new()].into_iter().chain(names.map(|(name, _)| name.to_owned())).collect())
}
