//! `fedbandit-tests`: the long measurements behind the documentation.

use std::process::ExitCode;

const HELP: &str = "\
usage: fedbandit-tests budget [--write]

  budget    what the agent costs on each Cortex-M core: RAM, flash, instructions under QEMU.
            Fails if a number is above its limit or differs from core/budget.csv.
  --write   put the numbers on record, in core/budget.csv and the READMEs that show them
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["budget"] => fedbandit_tests::budget::check(false),
        ["budget", "--write"] => fedbandit_tests::budget::check(true),
        ["--help" | "-h"] => Ok(HELP.to_owned()),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
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
