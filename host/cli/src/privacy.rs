//! `fedbandit privacy`: the noise that a privacy budget requires.

use std::fmt;

use clap::builder::RangedU64ValueParser;
use fedbandit::algorithm::{Admission, Level};
use fedbandit::privacy::calibration::{Budget, Fleet, Mechanism, Noise, NoiseBound, least_mu, levels, sensitivity};
use serde::Serialize;

use super::{EXIT_CODES, Failure, print_line, print_result};

const HELP: &str = "\
Example:
  fedbandit privacy --mu 1 --nu 1e-6 --episodes 1024 --episode-len 64 --dim 10

Output with --json, one object:
  sensitivity         largest change of a sum by one message
  levels              number of tree nodes that contain a message; null for blt
  rho                 zero-concentrated differential privacy that implies (mu, nu)
  node_sigma          noise per coordinate of each tree node; of each step for blt
  release_sigma_max   noise per coordinate of the noisiest release, a sum or a group's mean
  noise_norm_bound    bound on ‖H‖₂, the matrix noise of the noisiest release, exceeded with probability below DELTA/4
  paper_bound         the paper's bound B·L on the same, with T = episodes · episode-len
  mu, nu              as given
  version, config     version of this program, and all options

Privacy requires rewards in [−1, 1]; devices clip them.";

/// Compute the noise that a privacy budget requires, and what it protects.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// μ: one message changes the probability of any outcome by at most a factor e^MU, up to NU.
    #[arg(long, allow_negative_numbers = true)]
    mu: f64,
    /// ν: probability with which that guarantee may fail.
    #[arg(long, allow_negative_numbers = true)]
    nu: f64,
    /// Number of episodes K.
    #[arg(long, value_name = "K", value_parser = RangedU64ValueParser::<u32>::new().range(1..))]
    episodes: u32,
    /// Number of steps L of the longest episode.
    #[arg(long, value_name = "L")]
    episode_len: u32,
    /// Dimension of actions.
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u8).range(1..))]
    dim: u8,
    /// Mechanism for private noise: tree, honaker or blt.
    #[arg(long, value_name = "NAME", default_value_t)]
    mechanism: Mechanism,
    /// Admission checks of messages: paper or strict.
    #[arg(long, value_name = "LEVEL", default_value_t)]
    admission: Level,
    /// Number of agents that share one released mean.
    #[arg(long, value_name = "G", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..))]
    group_size: u32,
    /// Number of agents N, for the bounds on noise.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = RangedU64ValueParser::<u32>::new().range(1..))]
    agents: u32,
    /// Failure probability δ: the bounds on noise hold with probability 1 − DELTA/4.
    #[arg(long, default_value_t = 0.05, value_parser = probability, allow_negative_numbers = true)]
    delta: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    sensitivity: f64,
    levels: Option<u32>,
    rho: f64,
    node_sigma: f64,
    release_sigma_max: f64,
    noise_norm_bound: f64,
    paper_bound: f64,
    mu: f64,
    nu: f64,
}

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let budget = Budget::new(self.mu, self.nu).map_err(|error| Failure::Usage(error.to_string()))?;
        let report = self.report(budget)?;
        if self.json { print_result(&report, self.config()) } else { print_line(&Table(&self, &report, budget)) }
    }

    fn config(&self) -> serde_json::Value {
        serde_json::json!({
            "mu": self.mu,
            "nu": self.nu,
            "episodes": self.episodes,
            "episode-len": self.episode_len,
            "dim": self.dim,
            "mechanism": self.mechanism.to_string(),
            "admission": self.admission.to_string(),
            "group-size": self.group_size,
            "agents": self.agents,
            "delta": self.delta,
        })
    }

    fn report(&self, budget: Budget) -> Result<Report, Failure> {
        let level = self.level()?;
        let sensitivity = sensitivity(level, self.episode_len, self.dim.into());
        let noise = Noise::new(budget, self.mechanism, sensitivity, self.episodes);
        let (fleet, worst) = (self.fleet()?, noise.worst_release());
        Ok(Report {
            sensitivity,
            levels: (self.mechanism != Mechanism::Blt).then(|| levels(self.episodes)),
            rho: budget.rho(),
            node_sigma: noise.node_sigma(),
            release_sigma_max: noise.release_sigma(worst) / f64::from(self.group_size),
            noise_norm_bound: NoiseBound::Exact.norms(&noise, &fleet, worst).spectral,
            paper_bound: NoiseBound::Paper.norms(&noise, &fleet, worst).spectral,
            mu: self.mu,
            nu: self.nu,
        })
    }

    /// Validates the level of admission.
    fn level(&self) -> Result<Level, Failure> {
        let admission = Admission::new(self.admission, self.dim.into(), self.episode_len, Some(1.0), true);
        admission.map(|_| self.admission).map_err(|error| Failure::Usage(error.to_string()))
    }

    fn fleet(&self) -> Result<Fleet, Failure> {
        let Self { agents, group_size, episode_len, delta, .. } = *self;
        if group_size > agents {
            return Err(Failure::Usage(format!("--group-size {group_size} exceeds --agents {agents}")));
        }
        Ok(Fleet { agents, group_size, dimension: self.dim.into(), episode_len, delta })
    }
}

fn probability(text: &str) -> Result<f64, String> {
    let valid = text.parse().ok().filter(|delta| *delta > 0.0 && *delta < 1.0);
    valid.ok_or_else(|| "expected a number between 0 and 1".into())
}

/// The report as a table for a terminal.
struct Table<'a>(&'a Args, &'a Report, Budget);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Args { mu, nu, episodes, episode_len, agents, delta, mechanism, group_size, .. }, report, budget) =
            self;
        let Report { sensitivity, rho, node_sigma, release_sigma_max, noise_norm_bound, paper_bound, .. } = report;
        let levels = report.levels.map_or_else(|| "none".into(), |levels| levels.to_string());
        let of = if *group_size == 1 { "a sum".into() } else { format!("a mean of {group_size}") };
        let rows = [
            ("sensitivity", number(*sensitivity), "largest change of a sum by one message"),
            ("levels", levels, "tree nodes that contain a message"),
            ("rho", number(*rho), "zero-concentrated privacy that implies (mu, nu)"),
            ("node sigma", number(*node_sigma), "noise per coordinate of a tree node"),
            ("worst release sigma", number(*release_sigma_max), &format!("noise per coordinate of {of}")),
            ("bound on ‖H‖₂", number(*noise_norm_bound), &format!("over all releases; N = {agents}, δ = {delta}")),
            ("the paper's B·L", number(*paper_bound), "the paper's bound on the same"),
        ];
        writeln!(f, "({mu}, {nu:e})-differential privacy of each message over {episodes} episodes by {mechanism}\n")?;
        for (name, value, meaning) in rows {
            writeln!(f, "  {name:<20} {value:>10}  {meaning}")?;
        }
        let [two, ten] = [2, 10].map(|r| number(budget.mu_for_messages(r)));
        let [two_runs, ten_runs] = [2.0, 10.0].map(|runs| number(least_mu(runs * budget.rho(), budget.nu())));
        write!(
            f,
            "
Protected against other devices: one message, that is, the {episode_len} steps of one device in one episode.
Not protected:
  - several messages together: a person in 2 messages has mu = {two}, in 10 messages mu = {ten}
  - one message in each of several runs: in 2 runs mu = {two_runs}, in 10 runs mu = {ten_runs}
  - steps seen by a corrupted device, which can repeat them in all its messages
  - messages against the controller, or anyone with its key
  - whether and when a message was sent, and computing time"
        )
    }
}

/// Formats a number with four digits.
fn number(value: f64) -> String {
    let decimals = 3 - value.abs().max(1e-9).log10().floor().min(3.0) as i32;
    if value == 0.0 { "0".into() } else { format!("{value:.*}", decimals as usize) }
}
