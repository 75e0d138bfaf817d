//! Tells the program which commit it is built from, where that is known.

use std::path::Path;
use std::process::Command;

fn main() {
    let version = env!("CARGO_PKG_VERSION");
    let commit = if Path::new(PACKAGED).exists() { packaged() } else { checked_out() };
    let version = commit.map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"));
    println!("cargo::rustc-env=FEDBANDIT_VERSION={version}");
}

/// What cargo adds to a package: the commit that it was made of.
const PACKAGED: &str = ".cargo_vcs_info.json";
/// As many digits of a commit as git is asked for.
const DIGITS: usize = 12;

fn packaged() -> Option<String> {
    println!("cargo::rerun-if-changed={PACKAGED}");
    let text = std::fs::read_to_string(PACKAGED).ok()?;
    let (_, rest) = text.split_once("\"sha1\": \"")?;
    Some(named(rest.get(..DIGITS)?, text.contains("\"dirty\": true")))
}

/// The commit of a checkout of this project, and whether the code is another by now. A repository that this directory was copied into is none.
fn checked_out() -> Option<String> {
    let code = [
        "build.rs",
        "src",
        "cli/src",
        "Cargo.toml",
        "../core/src",
        "../core/Cargo.toml",
        "../Cargo.toml",
        "../Cargo.lock",
    ];
    let paths = code.map(str::to_owned).into_iter().chain(["HEAD", "logs/HEAD"].into_iter().filter_map(git_path));
    // What is not there would ask for a build each time.
    paths.filter(|path| Path::new(path).exists()).for_each(|path| println!("cargo::rerun-if-changed={path}"));
    if !Path::new("../.git").exists() {
        return None;
    }
    let commit = git(&["rev-parse", &format!("--short={DIGITS}"), "HEAD"])?;
    let changes = git(&[&["--no-optional-locks", "status", "--porcelain", "--"], &code[..]].concat())?;
    Some(named(&commit, !changes.is_empty()))
}

fn named(commit: &str, modified: bool) -> String {
    if modified { format!("{commit}, modified") } else { commit.to_owned() }
}

/// Where git keeps something, which is elsewhere in a worktree.
fn git_path(name: &str) -> Option<String> {
    git(&["rev-parse", "--git-path", name])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
