//! `fedbandit evaluate`: policies evaluated on a log of chosen actions.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use fedbandit::evaluation::{ChoiceLog, Policy, evaluate, events_to_process, text_table};
use fedbandit::simulation::DIMENSIONS;
use indicatif::{ProgressBar, ProgressStyle};

use super::{EXIT_CODES, Failure, print_line, print_result};

const HELP: &str = "\
Examples:
  fedbandit evaluate log.csv
  fedbandit evaluate log.vw --policy uniform,greedy --json

LOG has one of these formats, recognised by its first line:
  VW text      action:cost:probability | features, an event per line; or an action per line, with shared features in the
               first line of an event and a blank line after it. The reward is -cost.
  CSV          header step,x_1,...,x_d,reward,propensity; a line per available action. reward and propensity are empty
               except for the chosen action.
  Open Bandit  CSV with a line per event: item_id (or action), click (or reward), propensity_score (or pscore) and,
               optionally, position, user_feature..., user-item_affinity_0, user-item_affinity_1, ...
The propensity is the probability with which the logged policy chose the action. Without it no policy can be evaluated.

Policies:
  uniform  each available action with the same probability
  linucb   the agent of the firmware, learning alone
  greedy   the best action by ridge regression on the other half of the log

Estimators:
  replay   mean reward of the events at which the policy agrees with the log, thinned out to equal propensities;
           linucb learns during the replay, and is evaluated by the others as learnt from the other half of the log
  ips      inverse propensity scores
  snips    the same, divided by the sum of weights
  dr       doubly robust: ips of what ridge regression does not predict
Intervals use the normal approximation. They are too narrow if few events contribute, which the warnings tell.

Output with --json, one object:
  events, actions, dimension, features (null if hashed), scale (factor of features), logged, logged_error
  policies         for each policy:
    estimates      estimator, value, low, high, effective (number of effective events)
    overlap        mean_weight, mean_weight_error, max_weight, top_share (of the largest 1 %), min_propensity,
                   rare_share (choices with a propensity below 0.01), effective, rewarded
    warnings       reasons not to trust the estimates
  version, config  version of this program, and all options";

/// Estimate the value of policies from a log of chosen actions with propensities.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// Policies to evaluate: uniform, linucb, greedy.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "uniform,linucb,greedy")]
    policy: Vec<Policy>,
    /// Dimension of actions; more features are hashed [default: the smallest that holds all features, at most 64].
    #[arg(long, value_name = "D", value_parser = dimension)]
    dim: Option<usize>,
    /// Leave out products of context and action features.
    #[arg(long)]
    no_interactions: bool,
    /// Random seed of the replay.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Log in VW text, CSV or Open Bandit format.
    #[arg(value_name = "LOG")]
    log: PathBuf,
}

/// Largest log in bytes.
const MAX_SIZE: u64 = 1 << 30;

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let text = read(&self.log).map_err(|failure| failure.context(self.log.display()))?;
        let log = ChoiceLog::parse(&text, !self.no_interactions, self.dim);
        let log = log.map_err(|error| Failure::data(error).context(self.log.display()))?;
        // Drawn on stderr, and only if that is a terminal.
        let bar = ProgressBar::new(events_to_process(&log, &self.policy) as u64);
        let style = ProgressStyle::with_template("{bar:40} {percent:>3} % of {human_len} events, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let evaluation = evaluate(&log, &self.policy, self.seed, &|events| bar.inc(events));
        bar.finish_and_clear();
        if self.json {
            print_result(&evaluation, self.config())
        } else {
            print_line(&text_table(&evaluation).trim_end())
        }
    }

    fn config(&self) -> serde_json::Value {
        serde_json::json!({
            "log": self.log,
            "policy": self.policy,
            "dim": self.dim,
            "no-interactions": self.no_interactions,
            "seed": self.seed,
        })
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(Failure::data(format!("log is larger than {MAX_SIZE} bytes; split it")));
    }
    String::from_utf8(bytes).map_err(Failure::data)
}

fn dimension(text: &str) -> Result<usize, String> {
    let known = || DIMENSIONS.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let valid = text.parse().ok().filter(|dimension| DIMENSIONS.contains(dimension));
    valid.ok_or_else(|| format!("expected one of {}", known()))
}
