//! `fedbandit sweep`: a grid of simulations, one result file each.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::{fs, io};

use fedbandit::simulation::{Experiment, Job, ResultDirectory, report};

use super::simulate::{run_with_progress, write_report};
use super::{EXIT_CODES, Failure, print_line};

const HELP: &str = "\
A grid is a TOML file with options of `fedbandit simulate` and [[grid]] tables with lists of values:
  agents = 100
  seeds = [1, 2, 3]
  [[grid]]
  aggregator = [\"geometric-median\", \"mean\"]
  attack = [\"collude\", \"adaptive\"]
  corrupt = [0.0, 0.1, 0.3]
Each combination of a table's values is one run with its own result file in DIR. Finished runs are skipped, so an
interrupted sweep resumes where it stopped.

Examples:
  fedbandit sweep --config grid.toml --out results
  fedbandit sweep --config grid.toml --shard $SLURM_ARRAY_TASK_ID/20 --out results
  fedbandit sweep --merge results";

/// Run a grid of simulations; resumable, can be sharded across machines.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// Grid file (TOML).
    #[arg(long, value_name = "FILE", requires = "out", required_unless_present = "merge")]
    config: Option<PathBuf>,
    /// Directory for the result files.
    #[arg(long, value_name = "DIR", requires = "config")]
    out: Option<PathBuf>,
    /// Run only the I-th of N parts, I from 1 to N.
    #[arg(long, value_name = "I/N", value_parser = shard, requires = "config")]
    shard: Option<(usize, usize)>,
    /// Write report.html from all result files in a directory.
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    merge: Option<PathBuf>,
}

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        match (&self.config, &self.out, &self.merge) {
            (Some(config), Some(out), _) => sweep(config, out, self.shard.unwrap_or((1, 1))),
            (_, _, Some(directory)) => merge(directory),
            _ => Err(Failure::Usage("expected --config FILE and --out DIR, or --merge DIR".into())),
        }
    }
}

fn sweep(config: &Path, out: &Path, (part, parts): (usize, usize)) -> Result<(), Failure> {
    let text = fs::read_to_string(config).map_err(|error| Failure::from(error).context(config.display()))?;
    let all = Experiment::grid(config, &text).map_err(Failure::config)?;
    let results = ResultDirectory::new(out);
    let own: Vec<Job> = all.iter().skip(part - 1).step_by(parts).cloned().collect();
    let todo: Vec<Job> = own.iter().filter(|job| results.find(job).is_none()).cloned().collect();
    let (runs, done) = (own.len(), own.len() - todo.len());
    let failed = Mutex::new(None);
    run_with_progress(&todo, &|_, record| {
        if let Err(error) = results.write(record)
            && let Ok(mut failed) = failed.lock()
        {
            failed.get_or_insert(error);
        }
    })
    .map_err(|failure| failure.context(config.display()))?;
    if let Some(error) = failed.into_inner().ok().flatten() {
        return Err(error.into());
    }
    let skipped = if done > 0 { format!(", {done} already done") } else { String::new() };
    let out = out.display();
    print_line(&format!("{runs} runs in {out}{skipped}; write the report with fedbandit sweep --merge {out}"))
}

fn merge(directory: &Path) -> Result<(), Failure> {
    let records = ResultDirectory::new(directory).read_all().map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Failure::data(error),
        _ => Failure::from(error).context(directory.display()),
    })?;
    if records.is_empty() {
        return Err(Failure::Data(format!("{}: no result files (run-*.json)", directory.display())));
    }
    print_line(&report::text_table(&records.iter().collect::<Vec<_>>()).trim_end())?;
    write_report(directory, &records)
}

fn shard(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    let valid = numbers.filter(|(part, parts)| (1..=*parts).contains(part));
    valid.ok_or_else(|| "expected I/N with I from 1 to N".into())
}
