//! `fedbandit-tests`: long measurements and release checks. `./ci.sh` runs them by name.

use std::process::ExitCode;

use fedbandit_tests::faults::storage;
use fedbandit_tests::measure::{Failure, budget, claims, long_runs, monitoring, peers, publish, soak};
use fedbandit_tests::planted;

const HELP: &str = "\
usage: fedbandit-tests budget [--write]
       fedbandit-tests claims [NAME ...] [--write]
       fedbandit-tests crash --kills N [--write]
       fedbandit-tests fuzz --seconds N [--write]
       fedbandit-tests hostile --minutes N [--write]
       fedbandit-tests monitoring [--write]
       fedbandit-tests peers
       fedbandit-tests planted [--write]
       fedbandit-tests publish
       fedbandit-tests soak --seeds N [--first S] [--verbose | --write]
       fedbandit-tests storage [--short | --write]

  budget    Measure RAM, flash and instructions of the agent on each Cortex-M core, under QEMU.
            Fails if a number exceeds its limit or differs from core/budget.csv
  claims    Run the simulations behind docs/simulation.md, or behind some of its sections, and compare.
            An interrupted measurement continues where it stopped
  crash     Kill the service, its broker and its devices N times
  fuzz      Run each target of fuzz/ under libFuzzer for N seconds
  hostile   Run every attack and every abuse by four in ten devices, for at least N minutes
  monitoring  Compare the dashboard and the table of the guide with the list of metrics
  peers     Compare aggregation rules with byzfl, and noise calibration with dp_accounting
  planted   Plant one bug after the other, which the tests must find; builds into target/planted
  publish   Check the packages before a release
  soak      Run N simulated fault scenarios from seed S on (default 1); stops at the first failure
  storage   Run the store on a disk that stops or fails at every operation, also during recovery
  --write   Record the numbers: core/budget.csv, docs/reliability.md, docs/simulation.md and the READMEs
            that show them; fuzz also keeps the fewest inputs with the same coverage in fuzz/corpus,
            and monitoring writes docs/guide/operations.md and packaging/grafana/dashboard.json

Exit status: 0 success, 1 failure, 2 usage error, 77 skipped because a tool cannot be installed.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (arguments, write) = match arguments[..] {
        [ref rest @ .., "--write"] => (rest, true),
        ref all => (all, false),
    };
    let outcome = match *arguments {
        ["budget"] => budget::check(write).map_err(Failure::from),
        ["claims", ref names @ ..] => claims::run(write, names).map_err(Failure::from),
        ["crash", "--kills", n] => with_number(n, |n| long_runs::crash(n, write).map_err(Failure::from)),
        ["fuzz", "--seconds", n] => with_number(n, |n| long_runs::fuzz(n, write)),
        ["hostile", "--minutes", n] => with_number(n, |n| long_runs::hostile(n, write).map_err(Failure::from)),
        ["monitoring"] => monitoring::run(write).map_err(Failure::from),
        ["peers"] if !write => peers::run(),
        ["planted"] => planted::run(write).map_err(Failure::from),
        ["publish"] if !write => publish::run(),
        ["soak", ref options @ ..] => match soak::options(options) {
            Some(options) => soak::run(options, write).map_err(Failure::from),
            None => return usage(),
        },
        ["storage"] => storage::run(storage::ALL, write).map_err(Failure::from),
        ["storage", "--short"] if !write => storage::run(storage::SHORT, false).map_err(Failure::from),
        ["--help" | "-h"] => Ok(HELP.to_owned()),
        _ => return usage(),
    };
    match outcome {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(Failure::Failed(reason)) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
        Err(Failure::Skipped(reason)) => {
            eprintln!("skipped: {reason}");
            ExitCode::from(77)
        }
    }
}

fn with_number(text: &str, run: impl FnOnce(u64) -> Result<String, Failure>) -> Result<String, Failure> {
    run(text.parse().map_err(|_| format!("expected a number, found '{text}'"))?)
}

fn usage() -> ExitCode {
    eprint!("{HELP}");
    ExitCode::from(2)
}
