//! Many simulated fault scenarios, one after the other.

use super::record::{self, thousands};
use crate::faults::{self, Outcome};

/// Options of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    seeds: u64,
    first: u64,
    verbose: bool,
}

/// Parses the options of the command. Returns none if they are invalid.
pub fn options(options: &[&str]) -> Option<Options> {
    let mut parsed = Options { seeds: 0, first: 1, verbose: false };
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match *option {
            "--seeds" => parsed.seeds = options.next()?.parse().ok()?,
            "--first" => parsed.first = options.next()?.parse().ok()?,
            "--verbose" => parsed.verbose = true,
            _ => return None,
        }
    }
    (parsed.seeds > 0).then_some(parsed)
}

/// Runs the scenarios of `count` seeds, and returns the sum of their outcomes.
///
/// # Errors
/// A scenario fails; the rest is not run.
pub fn seeds(first: u64, count: u64, verbose: bool) -> Result<Outcome, String> {
    (first..first + count).try_fold(Outcome::default(), |sum, seed| Ok(sum.and(faults::run(seed, verbose)?)))
}

/// Runs the command. With `write`, records its table.
///
/// # Errors
/// A scenario fails, or the table cannot be recorded.
pub fn run(Options { seeds: count, first, verbose }: Options, write: bool) -> Result<String, String> {
    let outcome = seeds(first, count, verbose)?;
    let text = table(first, count, &outcome);
    if write {
        record::write("soak", "fedbandit-tests soak --seeds 10000 --write", &text)?;
    }
    Ok(text)
}

fn table(first: u64, count: u64, outcome: &Outcome) -> String {
    let rows = [
        ("scenarios, each with its own seed", count),
        ("scenarios with a violated promise", 0),
        ("episodes", outcome.episodes),
        ("summaries stored", outcome.summaries),
        ("acknowledgements and models checked", outcome.checked),
        ("starts of the service", outcome.starts),
        ("starts and commits ended by the disk", outcome.disk_faults),
        ("restarts of devices", outcome.restarts),
        ("frames lost, duplicated or damaged", outcome.frame_faults),
        ("frames of hostile devices", outcome.abuses),
        ("simulated hours", outcome.seconds / 3_600),
    ];
    let rows: String = rows.map(|(what, number)| format!("| {what} | {} |\n", thousands(number))).concat();
    let last = first + count - 1;
    format!(
        "| seeds {first} to {} | |\n|---|---:|\n{rows}\nThe hash of all traces is `{:016x}`.\n",
        thousands(last),
        outcome.trace
    )
}
