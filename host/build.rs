//! Sets `FEDBANDIT_VERSION`: the version, with the commit if known.

use std::path::Path;
use std::process::Command;

fn main() {
    let version = env!("CARGO_PKG_VERSION");
    let commit = if Path::new(PACKAGED).exists() { packaged_commit() } else { checkout_commit() };
    let version = commit.map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"));
    println!("cargo::rustc-env=FEDBANDIT_VERSION={version}");
}

/// File with the commit of a package, written by `cargo package`.
const PACKAGED: &str = ".cargo_vcs_info.json";
/// Digits of an abbreviated commit.
const DIGITS: usize = 12;

fn packaged_commit() -> Option<String> {
    println!("cargo::rerun-if-changed={PACKAGED}");
    let text = std::fs::read_to_string(PACKAGED).ok()?;
    let (_, rest) = text.split_once("\"sha1\": \"")?;
    Some(describe(rest.get(..DIGITS)?, text.contains("\"dirty\": true")))
}

/// Returns the commit of a checkout, marked if the code is modified. A repository that merely contains a copy of this one does
/// not count.
fn checkout_commit() -> Option<String> {
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
    // A missing path would trigger a rebuild every time.
    paths.filter(|path| Path::new(path).exists()).for_each(|path| println!("cargo::rerun-if-changed={path}"));
    if !Path::new("../.git").exists() {
        return None;
    }
    let commit = git(&["rev-parse", &format!("--short={DIGITS}"), "HEAD"])?;
    let changes = git(&[&["--no-optional-locks", "status", "--porcelain", "--"], &code[..]].concat())?;
    Some(describe(&commit, !changes.is_empty()))
}

fn describe(commit: &str, modified: bool) -> String {
    if modified { format!("{commit}, modified") } else { commit.to_owned() }
}

/// Returns the path of a file of git, which depends on the worktree.
fn git_path(name: &str) -> Option<String> {
    git(&["rev-parse", "--git-path", name])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
