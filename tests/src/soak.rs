//! Many worlds of faults, one after the other.

use crate::faults::{self, Outcome};

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
    let Wanted { seeds: count, first, verbose, .. } = wanted;
    let outcome = seeds(first, count, verbose)?;
    Ok(format!("{count} seeds from {first}: {outcome:?}\n"))
}
