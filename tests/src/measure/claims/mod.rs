//! The measurements behind docs/simulation.md: one claim per section, each a grid of simulations with limits.

mod catalog;
mod checks;
mod compare;
mod fleets;
mod guard;
mod misspecified;
mod tables;

use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io};

use fedbandit::VERSION;
use fedbandit::simulation::report::{self, Record};
use fedbandit::simulation::{Experiment, Job, Logs, ResultDirectory, run_all};
use sha2::{Digest, Sha256};

use super::run_command;
use crate::harness::repository;
use catalog::{CLAIMS, Claim};
use checks::Check;

/// Measures claims, all of them if no name is given. Compares docs/simulation.md and its figures with the result, or replaces the
/// sections of these claims with `write`. With the demonstration, the output of `simulate` in README.md is replaced, too.
///
/// # Errors
/// The documentation differs from the result, or a claim misses its limit.
pub fn run(write: bool, names: &[&str]) -> Result<String, String> {
    let [docs, scratch] = ["docs", "target/claims"].map(|directory| repository().join(directory));
    fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
    if write && (names.is_empty() || names.contains(&"demonstration")) {
        run_command("cargo", &["build", "--locked", "--release", "-p", "fedbandit-cli"])?;
        compare::update_readme(&repository().join("target/release/fedbandit"), &scratch)?;
    }
    let measured = simulate_claims(&scratch, names)?;
    // The page states missed limits, and is written or compared all the same.
    if write {
        compare::replace(&docs, &scratch, &CLAIMS.each_ref().map(|claim| claim.title))?;
    } else {
        compare::compare(&docs, &scratch, names.is_empty())?;
    }
    measured.within_limits()
}

/// One line per claim and check.
struct Measured {
    lines: String,
    missed: bool,
}

impl Measured {
    fn within_limits(self) -> Result<String, String> {
        if self.missed { Err(format!("{}\na limit is missed", self.lines)) } else { Ok(self.lines) }
    }
}

/// Measures claims, all of them if no name is given, and writes simulation.md and its figures into a directory.
///
/// Returns one line per claim and check.
///
/// # Errors
/// A name is unknown, a file cannot be written, or a limit is missed; the text lists every check.
pub fn measure(out: &Path, names: &[&str]) -> Result<String, String> {
    simulate_claims(out, names)?.within_limits()
}

fn simulate_claims(out: &Path, names: &[&str]) -> Result<Measured, String> {
    if let Some(unknown) = names.iter().find(|name| CLAIMS.iter().all(|claim| claim.name != **name)) {
        let known: Vec<_> = CLAIMS.iter().map(|claim| claim.name).collect();
        return Err(format!("unknown claim '{unknown}'; expected one of {}", known.join(", ")));
    }
    let _ = fs::remove_dir_all(out.join("figures"));
    let mut page = HEAD.to_owned();
    let (mut lines, mut missed) = (String::new(), false);
    for claim in CLAIMS.iter().filter(|claim| names.is_empty() || names.contains(&claim.name)) {
        eprintln!("{}: {}", claim.name, claim.title);
        let records = simulate(claim)?;
        let checks = (claim.checks)(&records);
        let _ = writeln!(lines, "{}: {}", claim.name, claim.title);
        for check in &checks {
            let _ = writeln!(lines, "  {}", check.line());
            missed |= !check.holds();
        }
        section(out, &mut page, claim, &records, &checks).map_err(|error| error.to_string())?;
    }
    write_file(&out.join("simulation.md"), &page).map_err(|error| error.to_string())?;
    Ok(Measured { lines, missed })
}

/// Runs the simulations of a claim that have not been run yet with the same sources.
fn simulate(claim: &Claim) -> Result<Vec<Record>, String> {
    let jobs = Experiment::grid(Path::new(claim.name), claim.grid).map_err(|error| error.to_string())?;
    let sources = source_hash().map_err(|error| error.to_string())?;
    let results = ResultDirectory::new(&repository().join("target/claims").join(sources));
    let todo: Vec<Job> = jobs.iter().filter(|job| results.find(job).is_none()).cloned().collect();
    let (done, failed) = (AtomicUsize::new(0), Mutex::new(None));
    run_all(&todo, &Logs::new(), &|_| {}, &|index, outcome| {
        let record = Record { version: VERSION.into(), config: todo[index].config.clone(), outcome: outcome.clone() };
        if let Err(error) = results.write(&record) {
            failed.lock().expect("no panic").get_or_insert(error.to_string());
        }
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(50) {
            eprintln!("  {done} of {} runs", todo.len());
        }
    })
    .map_err(|error| error.to_string())?;
    if let Some(error) = failed.into_inner().expect("no panic") {
        return Err(error);
    }
    let missing = || format!("{}: a result disappeared", claim.name);
    jobs.iter().map(|job| results.find(job).ok_or_else(missing)).collect()
}

/// Returns a hash of the sources that determine the results of a simulation.
fn source_hash() -> io::Result<String> {
    let mut pending = vec![repository().join("core/src"), repository().join("host/src")];
    let mut files = vec![repository().join("Cargo.lock")];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() { pending.push(path) } else { files.push(path) }
        }
    }
    files.retain(|file| !file.components().any(|part| part.as_os_str() == "service"));
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(fs::read(file)?);
    }
    Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

fn write_file(file: &Path, text: &str) -> io::Result<()> {
    file.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(file, text)
}

/// Appends the section of a claim to the page, and writes its figures.
fn section(out: &Path, page: &mut String, claim: &Claim, records: &[Record], checks: &[Check]) -> io::Result<()> {
    let Claim { name, title, statement, .. } = claim;
    let _ = write!(page, "\n## {title}\n\n{MEASURED_WITH} {VERSION}.\n\nGrid: tests/claims/{name}.toml. {statement}\n");
    if !checks.is_empty() {
        page.push_str("\n| check | measured | limit | |\n|---|---|---|---|\n");
        checks.iter().for_each(|check| page.push_str(&(check.line() + "\n")));
    }
    let all: Vec<&Record> = records.iter().collect();
    let mut plots = report::varied_plots(&all);
    if report::is_one_setting(&all) {
        plots.push(report::regret_plot(&all));
    }
    for (index, plot) in plots.iter().enumerate() {
        let file = format!("figures/{name}-{}.svg", index + 1);
        write_file(&out.join(&file), &plot.svg())?;
        let _ = write!(page, "\n![{}: {}]({file})\n", plot.title, plot.subtitle);
    }
    page.push_str(&(claim.table)(records));
    Ok(())
}

/// Start of the line with the version, which comparisons ignore.
const MEASURED_WITH: &str = "Measured with fedbandit";

const HEAD: &str = "\
# Simulation results

Generated by `./ci.sh claims --write`: every number follows from the grids in `tests/claims` and their seeds.

- **Total** is the pseudo-regret of the honest agents, which are never attacked, relative to uniformly random choices on the same decision sets: 0 is
  perfect, 1 is random. **Late** is the same over the second half of the steps.
- **R_T** is the paper's regret. It also counts the steps of attacked agents on which they are not attacked, so it differs from the regret of honest
  agents under attacks on some steps only (`fake-parameter`, `intermittent`, `sleeper`).
- **Width** is the largest ‖θ_k − θ*‖_Λ/β_k over all episodes. Above 1 the width was too small. **Width in use** is the same for the ellipsoids that honest
  guarded devices form from models and their own data.
- Limits are the project's own; ✗ marks a miss.
- Unless stated otherwise the schedule is `calibrated`, a heuristic width designed for a corrupted share of 0.3. The width of `solo` is a proven one, and
  therefore larger.
- Devices are unguarded, except in the sections about the guard.
";
