//! `fedbandit privacy`: what a privacy budget costs in noise, before anything runs.

use std::fmt;

use clap::builder::RangedU64ValueParser;
use fedbandit::algorithm::{Admission, Level};
use fedbandit::privacy::calibration::{Budget, Fleet, Mechanism, Noise, NoiseBound, levels, sensitivity};
use serde::Serialize;

use super::{EXIT_CODES, Failure, print_result, write};

const HELP: &str = "\
Example:
  fedbandit privacy --mu 1 --nu 1e-6 --episodes 1024 --episode-len 64 --dim 10

Output with --json, one object:
  sensitivity         how far one message can move the sum that it is part of
  levels              in how many nodes of the tree a message is; null for blt, which has none
  rho                 the zero-concentrated differential privacy that implies (mu, nu)
  node_sigma          the noise in each coordinate of each node; of each step for blt
  release_sigma_max   the noise in each coordinate of the noisiest release: a sum, or a group's mean
  noise_norm_bound    ‖H‖₂ of the matrix noise in the noisiest release, exceeded with probability below DELTA/4
  paper_bound         the paper's bound B·L for the same, with T = episodes · episode-len
  mu, nu              as given
  version, config     of this program, and all options
No rewards but those in [−1, 1] can be kept private; devices clip them.";

/// The noise that a privacy budget asks for, and what it protects.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// μ: one message changes no probability by more than a factor e^MU, but for NU.
    #[arg(long, allow_negative_numbers = true)]
    mu: f64,
    /// ν: the probability that is excepted from that.
    #[arg(long, allow_negative_numbers = true)]
    nu: f64,
    /// K, the number of episodes.
    #[arg(long, value_name = "K", value_parser = RangedU64ValueParser::<u32>::new().range(1..))]
    episodes: u32,
    /// L, the number of steps in the longest episode.
    #[arg(long, value_name = "L")]
    episode_len: u32,
    /// D, the number of features.
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u8).range(1..))]
    dim: u8,
    /// How noise is put on sums: tree, honaker or blt.
    #[arg(long, value_name = "NAME", default_value_t)]
    mechanism: Mechanism,
    /// How much the controller checks of a message: paper or strict.
    #[arg(long, value_name = "LEVEL", default_value_t)]
    admission: Level,
    /// How many agents share one released mean.
    #[arg(long, value_name = "G", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..))]
    group_size: u32,
    /// N, the number of agents, for the bounds on noise.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = RangedU64ValueParser::<u32>::new().range(1..))]
    agents: u32,
    /// δ: all bounds on noise hold with probability 1 − DELTA/4.
    #[arg(long, default_value_t = 0.05, value_parser = probability, allow_negative_numbers = true)]
    delta: f64,
    /// One JSON object instead of a table.
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
        if self.json { print_result(&report, self.config()) } else { write(&Table(&self, &report, budget)) }
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

    /// The level, if admission can be had with it.
    fn level(&self) -> Result<Level, Failure> {
        let admission = Admission::new(self.admission, self.dim.into(), self.episode_len, Some(1.0), true);
        admission.map(|_| self.admission).map_err(|error| Failure::Usage(error.to_string()))
    }

    fn fleet(&self) -> Result<Fleet, Failure> {
        let Self { agents, group_size, episode_len, delta, .. } = *self;
        if group_size > agents {
            return Err(Failure::Usage(format!("{agents} agents make no group of {group_size}")));
        }
        Ok(Fleet { agents, group_size, dimension: self.dim.into(), episode_len, delta })
    }
}

fn probability(text: &str) -> Result<f64, String> {
    let valid = text.parse().ok().filter(|delta| *delta > 0.0 && *delta < 1.0);
    valid.ok_or_else(|| "a probability is between 0 and 1".into())
}

/// The report for people.
struct Table<'a>(&'a Args, &'a Report, Budget);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Args { mu, nu, episodes, episode_len, agents, delta, mechanism, group_size, .. }, report, budget) =
            self;
        let Report { sensitivity, rho, node_sigma, release_sigma_max, noise_norm_bound, paper_bound, .. } = report;
        let levels = report.levels.map_or_else(|| "none".into(), |levels| levels.to_string());
        let of = if *group_size == 1 { "a sum".into() } else { format!("a mean of {group_size}") };
        let rows = [
            ("sensitivity", number(*sensitivity), "how far one message can move the sum that it is part of"),
            ("levels", levels, "tree nodes that a message is in"),
            ("rho", number(*rho), "zero-concentrated privacy that implies (mu, nu)"),
            ("node sigma", number(*node_sigma), "noise in each coordinate of a node"),
            ("worst release sigma", number(*release_sigma_max), &format!("noise in each coordinate of {of}")),
            ("bound on ‖H‖₂", number(*noise_norm_bound), &format!("of all releases; N = {agents}, δ = {delta}")),
            ("the paper's B·L", number(*paper_bound), "its bound for the same"),
        ];
        writeln!(f, "({mu}, {nu:e})-differential privacy of each message over {episodes} episodes by {mechanism}\n")?;
        for (name, value, meaning) in rows {
            writeln!(f, "  {name:<20} {value:>10}  {meaning}")?;
        }
        let [two, ten] = [2, 10].map(|r| number(budget.mu_for_messages(r)));
        write!(
            f,
            "
Protected: one message, the {episode_len} steps of one device in one episode, from all other devices.
Not protected:
  - more than one message: for someone who is in 2 of them mu is {two}, in 10 it is {ten}
  - from the device that saw the steps: corrupted, it may repeat them in all its messages
  - from the controller, which sees every message, and from whoever has its key
  - whether and when a message was sent, and how long computing took"
        )
    }
}

/// Four digits.
fn number(value: f64) -> String {
    let decimals = 3 - value.abs().max(1e-9).log10().floor().min(3.0) as i32;
    if value == 0.0 { "0".into() } else { format!("{value:.*}", decimals as usize) }
}
