//! `fedbandit simulate`: a fleet under attack.

use std::path::PathBuf;

use fedbandit::simulation::{AggregatorName, Environment, Job, Log, Logs, Outcome, RewardKind, agent_steps, run_all};
use indicatif::{ProgressBar, ProgressStyle};

use super::options::{Experiment, Options, read};
use super::{EXIT_CODES, Failure, print, write};

const HELP: &str = "\
Without options this is a demonstration: 100 agents, 30 of which collude, once with each of four aggregators; the
report also shows how much corruption and how much privacy they bear.

Examples:
  fedbandit simulate --attack adaptive --corrupt 0.45 --aggregator geometric-median
  fedbandit simulate --environment skew --report skew
  fedbandit simulate --rewards bounded --privacy 4,1e-6 --dim 4 --episode-len 8 --attack none --json

Options may also be in a TOML file (--config), as dim = 8, attack = \"collude\", seeds = [1, 2], or in variables of the
environment, as FEDBANDIT_DIM=8. An option on the command line goes before a variable, and that before the file.

A replay:FILE is CSV: its first line names the columns step, x_1, ..., x_d and reward; each other line is one
action, and consecutive lines with the same step are a decision set.

All numbers follow from the options and the seed, whatever the number of threads.";

/// Many virtual devices under attack: their regret, and a report with plots.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// A TOML file with options.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
    /// Print JSON: the configuration, and all numbers of each run.
    #[arg(long)]
    json: bool,
    /// Write report.html into this directory [demonstration: report].
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut experiment = Experiment::new();
        if let Some(file) = &self.config {
            read(file, &mut experiment)?;
        }
        self.options.apply(&mut experiment)?;
        let jobs = jobs(&experiment);
        let outcomes = run_with_progress(&jobs, &|_, _| {})?;
        if self.json {
            let Experiment { config, aggregators, seeds } = &experiment;
            let aggregators: Vec<_> = aggregators.iter().map(ToString::to_string).collect();
            return print(&serde_json::json!({
                "version": env!("CARGO_PKG_VERSION"), "config": config, "aggregators": aggregators, "seeds": seeds, "runs": outcomes,
            }));
        }
        write(&format!("{:?}", outcomes.iter().map(|o| (o.aggregator.clone(), o.total, o.late)).collect::<Vec<_>>()))
    }
}

/// A job for each aggregator and seed.
fn jobs(experiment: &Experiment) -> Vec<Job> {
    let Experiment { config, aggregators, seeds } = experiment;
    let one = |aggregator: &AggregatorName, seed: &u64| Job {
        config: fedbandit::simulation::Config { aggregator: *aggregator, ..config.clone() },
        seed: *seed,
    };
    aggregators.iter().flat_map(|aggregator| seeds.iter().map(move |seed| one(aggregator, seed))).collect()
}

/// Runs jobs, with a bar on a terminal.
pub(super) fn run_with_progress(
    jobs: &[Job],
    finished: &(dyn Fn(usize, &Outcome) + Sync),
) -> Result<Vec<Outcome>, Failure> {
    let logs = read_logs(jobs)?;
    // It draws on stderr, and only if that is a terminal.
    let bar = ProgressBar::new(agent_steps(jobs));
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} % of {human_len} agent-steps, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let outcomes = run_all(jobs, &logs, &|steps| bar.inc(steps), finished);
    bar.finish_and_clear();
    outcomes.map_err(|error| Failure::Usage(format!("--{error}")))
}

/// The files that jobs replay.
fn read_logs(jobs: &[Job]) -> Result<Logs, Failure> {
    let mut logs = Logs::new();
    for job in jobs {
        let Environment::Replay(file) = &job.config.environment else { continue };
        if !logs.contains_key(file) {
            let text = std::fs::read_to_string(file).map_err(|error| Failure::from(error).about(file.display()))?;
            let bounded = job.config.rewards == RewardKind::Bounded;
            let log = Log::parse(&text, bounded).map_err(|error| Failure::data(error).about(file.display()))?;
            logs.insert(file.clone(), log);
        }
    }
    Ok(logs)
}
