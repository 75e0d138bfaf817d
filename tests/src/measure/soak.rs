//! Many worlds of faults, one after the other.

use crate::faults::{self, Outcome};
use crate::measure::record::{self, thousands};

/// What is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    seeds: u64,
    first: u64,
    verbose: bool,
    write: bool,
}

/// What the options of the command say.
pub fn options(options: &[&str]) -> Option<Wanted> {
    let mut wanted = Wanted { seeds: 0, first: 1, verbose: false, write: false };
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match *option {
            "--seeds" => wanted.seeds = options.next()?.parse().ok()?,
            "--first" => wanted.first = options.next()?.parse().ok()?,
            "--verbose" => wanted.verbose = true,
            "--write" => wanted.write = true,
            _ => return None,
        }
    }
    (wanted.seeds > 0).then_some(wanted)
}

/// Runs seeds until one is wrong.
///
/// # Errors
/// The first seed that is wrong, and why.
pub fn seeds(first: u64, count: u64, verbose: bool) -> Result<Outcome, String> {
    (first..first + count).try_fold(Outcome::default(), |sum, seed| Ok(sum.and(faults::run(seed, verbose)?)))
}

/// The command.
///
/// # Errors
/// As [`seeds`].
pub fn run(wanted: Wanted) -> Result<String, String> {
    let Wanted { seeds: count, first, verbose, write } = wanted;
    let outcome = seeds(first, count, verbose)?;
    let text = table(first, count, &outcome);
    if write {
        record::write("soak", "fedbandit-tests soak --seeds 10000 --write", &text)?;
    }
    Ok(text)
}

fn table(first: u64, count: u64, outcome: &Outcome) -> String {
    let rows = [
        ("worlds, each of its own seed", count),
        ("worlds in which something did not hold", 0),
        ("episodes", outcome.episodes),
        ("summaries stored", outcome.summaries),
        ("acknowledgements and models checked", outcome.checked),
        ("starts of the service", outcome.starts),
        ("of these, or of its commits, ended by the disk", outcome.troubles),
        ("restarts of devices", outcome.restarts),
        ("frames lost, doubled or damaged", outcome.harmed),
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
