//! `fedbandit-tests`: the long measurements behind the documentation.

use std::process::ExitCode;

use fedbandit_tests::faults::storage;
use fedbandit_tests::measure::{budget, long_runs, soak};
use fedbandit_tests::planted;

const HELP: &str = "\
usage: fedbandit-tests budget [--write]
       fedbandit-tests soak --seeds N [--first S] [--verbose | --write]
       fedbandit-tests storage [--short | --write]
       fedbandit-tests planted [--write]
       fedbandit-tests crash --kills N [--write]
       fedbandit-tests hostile --minutes N [--write]
       fedbandit-tests fuzz --seconds N [--write]

  budget    what the agent costs on each Cortex-M core: RAM, flash, instructions under QEMU.
            Fails if a number is above its limit or differs from core/budget.csv.
  soak      the service and its devices in N worlds of faults, from seed S (1) on. Fails with the first seed that is wrong.
  storage   the store on a disk that stops or fails at every operation, its recovery included, for some minutes
  planted   one bug after the other is planted, and must be found; builds into target/planted
  crash     the real program, its broker and its devices, killed N times
  hostile   four in ten devices run every attack and every abuse against the real program, for N minutes at the least
  fuzz      each target of fuzz/ under libFuzzer, for N seconds; needs a nightly toolchain and cargo-fuzz
  --write   put the numbers on record, in core/budget.csv, docs/reliability.md and the READMEs that show them;
            fuzz also keeps the fewest inputs that cover the same, in fuzz/corpus
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["budget"] => budget::check(false),
        ["budget", "--write"] => budget::check(true),
        ["soak", ref options @ ..] => match soak::options(options) {
            Some(wanted) => soak::run(wanted),
            None => return usage(),
        },
        ["storage"] => storage::run(storage::ALL, false),
        ["storage", "--short"] => storage::run(storage::SHORT, false),
        ["storage", "--write"] => storage::run(storage::ALL, true),
        ["planted"] => planted::run(false),
        ["planted", "--write"] => planted::run(true),
        [command @ ("crash" | "hostile" | "fuzz"), option, n, ref rest @ ..] => {
            let write = rest == ["--write"];
            match (command, option, n.parse()) {
                _ if !write && !rest.is_empty() => return usage(),
                ("crash", "--kills", Ok(n)) => long_runs::crash(n, write),
                ("hostile", "--minutes", Ok(n)) => long_runs::hostile(n, write),
                ("fuzz", "--seconds", Ok(n)) => long_runs::fuzz(n, write),
                _ => return usage(),
            }
        }
        ["--help" | "-h"] => Ok(HELP.to_owned()),
        _ => return usage(),
    };
    match outcome {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprint!("{HELP}");
    ExitCode::from(2)
}
