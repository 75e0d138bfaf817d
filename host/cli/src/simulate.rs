//! `fedbandit simulate`: a fleet under attack.

use std::path::{Path, PathBuf};

use fedbandit::config::{AggregatorName, ConfigError, RewardKind, RunConfig};
use fedbandit::simulation::report::{self, Record};
use fedbandit::simulation::{
    Attack, Environment, Experiment, Job, Log, Logs, Outcome, SimulationConfig, agent_steps, run_all,
};
use indicatif::{ProgressBar, ProgressStyle};

use super::flags::{Flags, read_file};
use super::{EXIT_CODES, Failure, VERSION, print_result, write, write_file};

const HELP: &str = "\
Without options this is a demonstration: 100 agents, 30 of which collude, once with each of four aggregators; the
report also shows how much corruption and how much privacy they bear.

Examples:
  fedbandit simulate --attack adaptive --corrupt 0.45 --aggregator geometric-median
  fedbandit simulate --environment skew --report skew
  fedbandit simulate --rewards bounded --privacy 4,1e-6 --dim 4 --episode-len 8 --attack none --json

Options may also be in a TOML file (--config), as dim = 8, attack = \"collude\", seeds = [1, 2], or in variables of the
environment, as FEDBANDIT_DIM=8. An option on the command line overrides a variable, which overrides the file.

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
    flags: Flags<Experiment>,
    /// Print JSON: the configuration, and all numbers of each run.
    #[arg(long)]
    json: bool,
    /// Write report.html into this directory [default: none, but report for the demonstration].
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut experiment = Experiment::default();
        if let Some(file) = &self.config {
            read_file(file, &mut experiment)?;
        }
        self.flags.apply(&mut experiment)?;
        let demonstration = self.config.is_none() && self.flags.is_empty() && !self.json;
        let mut jobs = experiment.jobs().map_err(|error| self.invalid(&error))?;
        let main = jobs.len();
        if demonstration {
            jobs.extend(how_much_corruption());
            jobs.extend(how_much_privacy());
        }
        let records = run_with_progress(&jobs, &|_, _| {})?;
        if self.json {
            let runs: Vec<&Outcome> = records.iter().map(|record| &record.outcome).collect();
            return print_result(&serde_json::json!({ "runs": runs }), experiment.to_json());
        }
        write(&report::text_table(&records[..main].iter().collect::<Vec<_>>()).trim_end())?;
        let directory = self.report.or(demonstration.then(|| "report".into()));
        directory.map_or(Ok(()), |directory| write_report(&directory, &records))
    }
}

impl Args {
    /// An invalid combination of keys: a usage error if flags were given, else the file's.
    fn invalid(&self, error: &ConfigError) -> Failure {
        match &self.config {
            Some(file) if self.flags.is_empty() => Failure::Config(format!("{}: {error}", file.display())),
            _ => Failure::Usage(format!("--{error}")),
        }
    }
}

/// Writes report.html and says so.
pub(super) fn write_report(directory: &Path, records: &[Record]) -> Result<(), Failure> {
    let file = directory.join("report.html");
    write_file(&file, &report::html(records))?;
    write(&format!("\nreport: {}", file.display()))
}

/// The demonstration's second figure.
fn how_much_corruption() -> Vec<Job> {
    let base = RunConfig { agents: 60, steps: 1024, ..RunConfig::default() };
    let aggregators = [
        AggregatorName::Oracle,
        AggregatorName::GeometricMedian,
        AggregatorName::CoordinateMedian,
        AggregatorName::TrimmedMean,
        AggregatorName::Krum,
        AggregatorName::Mean,
    ];
    let cell = |aggregator, corrupt| {
        let run = RunConfig { aggregator, ..base };
        Job { config: SimulationConfig { run, corrupt, ..SimulationConfig::default() }, seed: 1 }
    };
    let shares = [0.0, 0.1, 0.2, 0.3, 0.4, 0.45];
    aggregators.into_iter().flat_map(|aggregator| shares.map(|corrupt| cell(aggregator, corrupt))).collect()
}

/// The demonstration's third figure.
fn how_much_privacy() -> Vec<Job> {
    let base = RunConfig {
        dim: 4,
        steps: 2048,
        episode_len: Some(8),
        rewards: RewardKind::Bounded,
        design_corruption: Some(0.1),
        ..RunConfig::default()
    };
    let aggregators = [AggregatorName::GeometricMedian, AggregatorName::MedianOfMeans];
    let cell = |aggregator, mu: f64| {
        let privacy = format!("{mu},1e-6").parse().ok();
        let run = RunConfig { aggregator, privacy, ..base };
        Job {
            config: SimulationConfig { run, attack: Attack::SignFlip, corrupt: 0.1, ..SimulationConfig::default() },
            seed: 1,
        }
    };
    aggregators.into_iter().flat_map(|aggregator| [1.0, 2.0, 4.0, 8.0, 16.0].map(|mu| cell(aggregator, mu))).collect()
}

/// Runs jobs, with a bar on a terminal.
pub(super) fn run_with_progress(
    jobs: &[Job],
    finished: &(dyn Fn(usize, &Record) + Sync),
) -> Result<Vec<Record>, Failure> {
    let logs = read_logs(jobs.iter().map(|job| &job.config))?;
    // It draws on stderr, and only if that is a terminal.
    let bar = ProgressBar::new(agent_steps(jobs));
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} % of {human_len} agent-steps, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let record = |index: usize, outcome: &Outcome| Record {
        version: VERSION.into(),
        config: jobs[index].config.clone(),
        outcome: outcome.clone(),
    };
    let finished = |index: usize, outcome: &Outcome| finished(index, &record(index, outcome));
    let outcomes = run_all(jobs, &logs, &|steps| bar.inc(steps), &finished);
    bar.finish_and_clear();
    let outcomes = outcomes.map_err(|error| Failure::Config(error.to_string()))?;
    Ok(outcomes.iter().enumerate().map(|(index, outcome)| record(index, outcome)).collect())
}

/// The files that are replayed.
pub(super) fn read_logs<'a>(configs: impl IntoIterator<Item = &'a SimulationConfig>) -> Result<Logs, Failure> {
    let mut logs = Logs::new();
    for config in configs {
        let Environment::Replay(file) = &config.environment else { continue };
        if !logs.contains_key(file) {
            let text = std::fs::read_to_string(file).map_err(|error| Failure::from(error).about(file.display()))?;
            let bounded = config.run.rewards == RewardKind::Bounded;
            let log = Log::parse(&text, bounded).map_err(|error| Failure::data(error).about(file.display()))?;
            logs.insert(file.clone(), log.into());
        }
    }
    Ok(logs)
}
