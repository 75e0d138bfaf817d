//! `fedbandit simulate`: a simulated fleet under attack.

use std::path::{Path, PathBuf};

use fedbandit::config::{AggregatorName, RewardKind, RunConfig};
use fedbandit::simulation::report::{self, Record};
use fedbandit::simulation::{
    Attack, Environment, Experiment, Job, Log, Logs, Outcome, SimulationConfig, agent_steps, run_all,
};
use indicatif::{ProgressBar, ProgressStyle};

use super::flags::{Flags, read_file};
use super::{EXIT_CODES, Failure, VERSION, print_line, print_result, write_file};

const HELP: &str = "\
Without options, runs a demonstration: 100 agents, 30 of them colluding, with each of five aggregators. Its report also
compares aggregators by the share of corrupted agents and by the privacy budget.

Examples:
  fedbandit simulate --attack adaptive --corrupt 0.45 --aggregator geometric-median
  fedbandit simulate --environment skew --report skew
  fedbandit simulate --rewards bounded --privacy 4,1e-6 --dim 4 --episode-len 8 --attack none --json

Every option can also be a key of a TOML file (--config), such as attack = \"collude\" or seeds = [1, 2], or an
environment variable, such as FEDBANDIT_DIM=8. A flag overrides a variable, which overrides the file.

replay:FILE reads CSV. The first line names the columns step, x_1, ..., x_d and reward. Each other line is one action;
consecutive lines with the same step form a decision set. With a column device, agent i draws from the decision sets of the
i-th device in the file; if there are more agents than devices, several agents share the rows of one.

Results depend on the options and the seeds only, not on the number of threads.";

/// Simulate a fleet under attack, and report its regret.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// TOML file with options.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags<Experiment>,
    /// Print JSON with the configuration and all results of each run.
    #[arg(long)]
    json: bool,
    /// Write report.html to this directory [default: none; report for the demonstration].
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
        if self.json {
            experiment.aggregators.get_or_insert_with(|| vec![AggregatorName::RECOMMENDED]);
        }
        let demonstration = self.config.is_none() && self.flags.is_empty() && !self.json;
        let mut jobs = experiment.jobs().map_err(|error| self.flags.invalid(self.config.as_deref(), error))?;
        let table = jobs.len();
        if demonstration {
            jobs.extend(corruption_jobs());
            jobs.extend(privacy_jobs());
        }
        let records = run_with_progress(&jobs, &|_, _| {})?;
        if self.json {
            let runs: Vec<&Outcome> = records.iter().map(|record| &record.outcome).collect();
            return print_result(&serde_json::json!({ "runs": runs }), experiment.to_json());
        }
        print_line(&report::text_table(&records[..table].iter().collect::<Vec<_>>()).trim_end())?;
        let directory = self.report.or(demonstration.then(|| "report".into()));
        directory.map_or(Ok(()), |directory| write_report(&directory, &records))
    }
}

/// Writes report.html and prints its path.
pub(super) fn write_report(directory: &Path, records: &[Record]) -> Result<(), Failure> {
    let file = directory.join("report.html");
    write_file(&file, &report::html(records))?;
    print_line(&format!("\nreport: {}", file.display()))
}

/// Runs of the demonstration with increasing shares of corrupted agents.
fn corruption_jobs() -> Vec<Job> {
    let base = RunConfig { agents: 60, steps: 1024, ..RunConfig::default() };
    let aggregators = [
        AggregatorName::Oracle,
        AggregatorName::RECOMMENDED,
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

/// Runs of the demonstration with increasing privacy budgets.
fn privacy_jobs() -> Vec<Job> {
    let base = RunConfig {
        dim: 4,
        steps: 2048,
        episode_len: Some(8),
        rewards: RewardKind::Bounded,
        design_corruption: Some(0.1),
        ..RunConfig::default()
    };
    let aggregators = [AggregatorName::RECOMMENDED, AggregatorName::GeometricMedian, AggregatorName::MedianOfMeans];
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

/// Runs jobs with a progress bar.
pub(super) fn run_with_progress(
    jobs: &[Job],
    finished: &(dyn Fn(usize, &Record) + Sync),
) -> Result<Vec<Record>, Failure> {
    let logs = read_logs(jobs.iter().map(|job| &job.config))?;
    // Drawn on stderr, and only if that is a terminal.
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

/// Reads the logs that the configurations replay.
pub(super) fn read_logs<'a>(configs: impl IntoIterator<Item = &'a SimulationConfig>) -> Result<Logs, Failure> {
    let mut logs = Logs::new();
    for config in configs {
        let Environment::Replay(file) = &config.environment else { continue };
        if !logs.contains_key(file) {
            let text = std::fs::read_to_string(file).map_err(|error| Failure::from(error).context(file.display()))?;
            let bounded = config.run.rewards == RewardKind::Bounded;
            let log = Log::parse(&text, bounded).map_err(|error| Failure::data(error).context(file.display()))?;
            logs.insert(file.clone(), log.into());
        }
    }
    Ok(logs)
}
