//! Tells the program which commit it is built from, where that is known.

use std::process::Command;

fn main() {
    // A change of HEAD, or of the branch that it names.
    println!("cargo::rerun-if-changed=../.git/HEAD");
    println!("cargo::rerun-if-changed=../.git/logs/HEAD");
    let git = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let commit =
        git.ok().filter(|git| git.status.success()).map(|git| String::from_utf8_lossy(&git.stdout).trim().to_owned());
    let version = env!("CARGO_PKG_VERSION");
    let version = commit.map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"));
    println!("cargo::rustc-env=FEDBANDIT_VERSION={version}");
}
