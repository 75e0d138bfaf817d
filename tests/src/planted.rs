//! Planted bugs: evidence that the test suite detects real defects.
//!
//! Each bug of `tests/planted.toml` changes one piece of the source of core or host. It is planted in a copy of the
//! working tree, where the suite must then fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;

use crate::harness::repository;
use crate::record;

const BUGS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/planted.toml"));
/// Directories in which a bug can be planted.
const SOURCES: [&str; 2] = ["core/src", "host/src"];
/// Seeds of the fault simulation that each bug is exposed to.
const SEEDS: &str = "100";
/// Ordinary tests that each bug is exposed to: unit tests and the tests of the service.
const TESTS: [&str; 4] = ["--lib", "--test", "service", "--no-fail-fast"];

/// A bug: a replacement in the source of core or host.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bug {
    description: String,
    old: String,
    new: String,
}

/// Reads the bugs of `tests/planted.toml`, by name.
///
/// # Errors
/// The file is malformed.
pub fn bugs() -> Result<BTreeMap<String, Bug>, String> {
    toml::from_str(BUGS).map_err(|error| format!("tests/planted.toml: {error}"))
}

impl Bug {
    /// Returns the file that the bug changes, relative to the root of the repository, and its source with the bug.
    ///
    /// # Errors
    /// The text to replace does not occur exactly once.
    pub fn plant(&self) -> Result<(PathBuf, String), String> {
        let mut occurrences = 0;
        let mut planted = None;
        for source in SOURCES {
            for path in files(&repository().join(source))? {
                let text = read(&path)?;
                occurrences += text.matches(&self.old).count();
                if text.contains(&self.old) {
                    let path = path.strip_prefix(repository()).map_err(|error| error.to_string())?;
                    planted = Some((path.to_owned(), text.replace(&self.old, &self.new)));
                }
            }
        }
        planted.filter(|_| occurrences == 1).ok_or_else(|| {
            let sources = SOURCES.join(" and ");
            format!("{:?} occurs {occurrences} times in {sources}, expected once; adapt tests/planted.toml", self.old)
        })
    }
}

/// Plants every bug in turn and returns a table of the failures that it causes.
///
/// # Errors
/// A bug is not found, cannot be planted or does not compile; or the suite fails without a bug.
pub fn run(write: bool) -> Result<String, String> {
    let bugs = bugs()?;
    let planted = bugs.iter().map(|(name, bug)| bug.plant().map_err(|error| format!("{name}: {error}")));
    let planted: Vec<_> = planted.collect::<Result<_, _>>()?;
    let tree = Tree::copy(repository().join("target/planted"))?;
    let sound = tree.failures()?;
    if sound.any() {
        return Err(format!("the suite fails without a bug: {}", sound.row()));
    }
    let mut table = String::from("| bug | fault simulation | storage | failed tests |\n|---|---|---|---:|\n");
    let mut errors = String::new();
    for ((name, bug), (path, text)) in bugs.iter().zip(planted) {
        let path = tree.source.join(path);
        let sound = read(&path)?;
        fs::write(&path, text).map_err(|error| error.to_string())?;
        match tree.failures() {
            Ok(failures) if failures.any() => {
                eprintln!("{name} {} {}", failures.row(), failures.tests.join(" "));
                table += &format!("| {} {}\n", bug.description, failures.row());
            }
            Ok(_) => errors += &format!("{name}: not found\n"),
            Err(error) => errors += &format!("{name}: {error}\n"),
        }
        fs::write(&path, sound).map_err(|error| error.to_string())?;
    }
    if !errors.is_empty() {
        return Err(format!("{table}\n{errors}"));
    }
    let text = format!("All {} bugs are found; without a bug, nothing fails.\n\n{table}", bugs.len());
    if write {
        record::write("planted", "fedbandit-tests planted --write", &text)?;
    }
    Ok(text)
}

/// Copy of the working tree with a target directory of its own.
struct Tree {
    source: PathBuf,
    target: PathBuf,
}

/// Failures of one run of the suite.
struct Failures {
    simulation: Option<String>,
    storage: Option<String>,
    tests: Vec<String>,
}

impl Failures {
    fn any(&self) -> bool {
        self.simulation.is_some() || self.storage.is_some() || !self.tests.is_empty()
    }

    fn row(&self) -> String {
        let [simulation, storage] = [&self.simulation, &self.storage].map(|failure| failure.as_deref().unwrap_or("–"));
        format!("| {simulation} | {storage} | {} |", self.tests.len())
    }
}

impl Tree {
    /// Copies the files that git tracks, with their uncommitted changes, and those that it would track.
    fn copy(directory: PathBuf) -> Result<Self, String> {
        let (source, target) = (directory.join("source"), directory.join("target"));
        if source.exists() {
            fs::remove_dir_all(&source).map_err(|error| error.to_string())?;
        }
        fs::create_dir_all(&source).map_err(|error| error.to_string())?;
        let mut git = Command::new("git");
        git.current_dir(repository()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let listed = succeed(&mut git)?;
        let mut copy = Command::new("cp");
        copy.current_dir(repository()).args(["--parents", "-t"]).arg(&source);
        succeed(copy.args(listed.split_terminator('\0')))?;
        Ok(Self { source, target })
    }

    fn failures(&self) -> Result<Failures, String> {
        // A test brings its package's program.
        succeed(self.test(&TESTS).args(["--no-run", "--test", "faults"]))?;
        Ok(Failures {
            simulation: self.run(&["soak", "--seeds", SEEDS])?,
            storage: self.run(&["storage", "--short"])?,
            tests: self.failed_tests()?,
        })
    }

    fn test(&self, arguments: &[&str]) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&self.source).args(["test", "--locked", "--workspace", "--all-features"]);
        cargo.args(["--profile", "checks"]).args(arguments).env("CARGO_TARGET_DIR", &self.target);
        // Bugs may leave code unused. Little changes from bug to bug.
        cargo.env_remove("RUSTFLAGS").env("CARGO_INCREMENTAL", "1");
        cargo
    }

    /// Runs a command of the copy's `fedbandit-tests`, and returns the failure that it reports.
    fn run(&self, arguments: &[&str]) -> Result<Option<String>, String> {
        let output = output(Command::new(self.target.join("checks/fedbandit-tests")).args(arguments))?;
        let text = String::from_utf8_lossy(&output.stderr);
        // Output of a panic may come first.
        let line = text.lines().find(|line| line.starts_with("seed ")).or(text.lines().next_back());
        Ok((!output.status.success()).then(|| line.unwrap_or("no output").trim().to_owned()))
    }

    fn failed_tests(&self) -> Result<Vec<String>, String> {
        let output = output(&mut self.test(&TESTS))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let failed = text.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        let failed: BTreeSet<String> = failed.map(str::to_owned).collect();
        if failed.is_empty() && !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(failed.into_iter().collect())
    }
}

/// Lists the files below a directory.
fn files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.is_dir() { files.extend(self::files(&path)?) } else { files.push(path) }
    }
    Ok(files)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn output(command: &mut Command) -> Result<Output, String> {
    command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))
}

/// Runs a command that must succeed, and returns its standard output.
fn succeed(command: &mut Command) -> Result<String, String> {
    let output = output(command)?;
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if output.status.success() { Ok(stdout) } else { Err(stderr) }
}
