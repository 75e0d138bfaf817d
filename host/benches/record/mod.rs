//! Clocks and tables of the benchmarks, and their sections of docs/benchmarks.md.

mod markdown;

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::time::{ClockId, clock_gettime};

/// Finds docs/benchmarks.md from a package at any depth of the repository.
fn page_file() -> PathBuf {
    let page = |directory: &Path| directory.join("docs/benchmarks.md");
    let mut pages = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(page);
    pages.find(|page| page.exists()).expect("docs/benchmarks.md exists")
}

/// True if the tables shall be recorded.
pub(crate) fn is_requested() -> bool {
    std::env::args().any(|argument| argument == "--write")
}

/// Replaces the section of a benchmark, and derives the losses again.
pub(crate) fn write(name: &str, peers: &[String], text: &str) {
    let path = page_file();
    let file = std::fs::read_to_string(&path).expect("docs/benchmarks.md can be read");
    let file = markdown::replace_section(&file, name, &format!("{}\n\n{text}", measured_with(peers)));
    let file = markdown::replace_section(&file, markdown::LOSSES, &markdown::losses(&file));
    std::fs::write(path, file).expect("docs/benchmarks.md can be written");
}

/// Describes the versions and the machine.
fn measured_with(peers: &[String]) -> String {
    let rustc = Command::new("rustc").arg("--version").output().expect("rustc --version runs").stdout;
    let ours = [format!("fedbandit {}", fedbandit::VERSION), String::from_utf8_lossy(&rustc).trim().to_owned()];
    let first = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.split_once(':'));
        line.map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let kib: f64 = first("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or(f64::NAN);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let software: Vec<&str> = ours.iter().chain(peers).map(String::as_str).collect();
    let cpu = first("/proc/cpuinfo", "model name");
    format!("Measured with {}, on {cores} cores of {cpu} with {:.0} GiB.", software.join(", "), kib / 1_048_576.0)
}

/// Returns the name and the version of a dependency.
#[allow(dead_code, reason = "not every benchmark has such a peer")]
pub(crate) fn locked(name: &str) -> String {
    let lock = include_str!("../../../Cargo.lock");
    let version =
        lock.split_once(&format!("name = \"{name}\"\nversion = \"")).and_then(|(_, rest)| rest.split_once('"'));
    format!("{name} {}", version.expect("a dependency").0)
}

/// Table that is printed row by row and kept.
pub(crate) struct Table(pub(crate) String);

impl Table {
    pub(crate) fn new(title: &str, columns: &str) -> Self {
        let rule: String = columns.chars().map(|c| if c == '|' { '|' } else { '-' }).collect();
        let table = Self(format!("## {title}\n\n{columns}\n{rule}"));
        println!("\n{}", table.0);
        table
    }

    pub(crate) fn row(&mut self, row: String) {
        println!("{row}");
        let _ = write!(self.0, "\n{row}");
    }
}

/// Returns the mark of a missed limit.
pub(crate) fn mark(met: bool) -> &'static str {
    if met { "" } else { " ✗" }
}

pub(crate) fn clock(id: ClockId) -> f64 {
    let time = clock_gettime(id);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Minimum time of several runs, in seconds.
#[allow(dead_code, reason = "not every benchmark measures alone")]
pub(crate) fn least<T>(id: ClockId, runs: usize, mut work: impl FnMut() -> T) -> f64 {
    let mut once = || {
        let start = clock(id);
        let _ = black_box(work());
        clock(id) - start
    };
    (0..runs).map(|_| once()).fold(f64::INFINITY, f64::min)
}
