//! Tells the program which commit it is built from, where that is known.

use std::path::Path;
use std::process::Command;

fn main() {
    // What changes with every commit; what is not there would ask for a build each time.
    let paths = ["build.rs", "../.git/HEAD", "../.git/logs/HEAD"].into_iter().filter(|path| Path::new(path).exists());
    paths.for_each(|path| println!("cargo::rerun-if-changed={path}"));
    let git = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let commit =
        git.ok().filter(|git| git.status.success()).map(|git| String::from_utf8_lossy(&git.stdout).trim().to_owned());
    let version = env!("CARGO_PKG_VERSION");
    let version = commit.map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"));
    println!("cargo::rustc-env=FEDBANDIT_VERSION={version}");
}
