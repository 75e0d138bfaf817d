//! What the benchmarks share: clocks, tables, and docs/benchmarks.md, where each benchmark has a section between marks.

use std::fmt::Write as _;
use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md");

/// Whether the tables are to replace those on record.
pub(crate) fn wanted() -> bool {
    std::env::args().any(|argument| argument == "--write")
}

/// Puts a benchmark's text between its marks, which are added at the end if there are none.
pub(crate) fn write(name: &str, text: &str) {
    let marks = [format!("<!-- {name}: ./ci.sh bench --write -->\n"), format!("\n<!-- end of {name} -->\n")];
    let file = std::fs::read_to_string(FILE).expect("docs/benchmarks.md can be read");
    let around = file
        .split_once(&marks[0])
        .and_then(|(before, rest)| Some((before.to_owned(), rest.split_once(&marks[1])?.1.to_owned())));
    let (before, after) = around.unwrap_or_else(|| (file.clone() + "\n", String::new()));
    std::fs::write(FILE, [&before[..], &marks[0], text, &marks[1], &after].concat())
        .expect("docs/benchmarks.md can be written");
}

/// Prints a table as it grows, and keeps it.
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

/// What stands behind a number that has a limit.
pub(crate) fn mark(met: bool) -> &'static str {
    if met { "" } else { " ✗" }
}

pub(crate) fn clock(id: ClockId) -> f64 {
    let time = clock_gettime(id);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The least time of several runs, in seconds.
pub(crate) fn least<T>(id: ClockId, runs: usize, mut work: impl FnMut() -> T) -> f64 {
    let mut once = || {
        let start = clock(id);
        let _ = black_box(work());
        clock(id) - start
    };
    (0..runs).map(|_| once()).fold(f64::INFINITY, f64::min)
}
