//! A simulation's options: from the command line, the environment and files.

use std::path::Path;

use clap::{Arg, ArgMatches, Command};
use fedbandit::learning::AggregatorName;
use fedbandit::simulation::{Attack, DIMENSIONS, Experiment};
use serde_json::Value;

use super::Failure;

/// Keys of [`Config`] with the name of their value and their help. `aggregator` may be a list and so stands apart.
fn keys() -> Vec<(&'static str, &'static str, String)> {
    let list = |names: Vec<String>| names.join(", ");
    let dimensions = list(DIMENSIONS.iter().map(ToString::to_string).collect());
    let attacks = list(Attack::ALL.iter().map(ToString::to_string).collect());
    vec![
        ("agents", "N", "How many agents there are [default: 100]".into()),
        ("dim", "D", format!("The dimension of actions: {dimensions} [default: 8]")),
        ("arms", "A", "How many actions a decision set has [default: 10]".into()),
        ("steps", "T", "How many steps each agent takes [default: 4096]".into()),
        ("episode-len", "L", "Steps between two communications [default: 64, or the theorem's]".into()),
        (
            "first-episode",
            "L",
            "The first episode's length; lengths double up to L [default: 4; L with privacy or theorem]".into(),
        ),
        (
            "first-episodes",
            "S",
            "How many episodes have that length before lengths double [default: 1; 2d for whitened rules]".into(),
        ),
        (
            "environment",
            "NAME",
            "ball, skew, fixed-arms, shared, drifting, unequal or replay:FILE [default: ball]".into(),
        ),
        ("rewards", "KIND", "gaussian:R or bounded (which is 1 or -1) [default: gaussian:0.5]".into()),
        ("theta-norm", "S", "The norm of the true parameter [default: 1]".into()),
        ("attack", "NAME", format!("What corrupted agents do: {attacks} [default: collude]")),
        ("corrupt", "SHARE", "The share of corrupted agents, from 0 to below 0.5 [default: 0.3]".into()),
        (
            "design-corruption",
            "SHARE",
            "The share that widths, groups and trimming are made for [default: 0.3; median-of-means: 0.25]".into(),
        ),
        (
            "admission",
            "LEVEL",
            "How much of a message is checked: paper, strict or drop [default: strict; drop for whitened rules, but \
             strict with privacy or whitened-means]"
                .into(),
        ),
        ("schedule", "NAME", "Where the widths come from: calibrated or theorem [default: calibrated]".into()),
        ("privacy", "MU,NU", "Differential privacy with respect to messages, as 4,1e-6 [default: none]".into()),
        ("mechanism", "NAME", "How private noise is made: tree, honaker or blt [default: tree]".into()),
        (
            "noise-bound",
            "NAME",
            "What widths assume of the noise: exact or paper [default: exact; theorem: paper]".into(),
        ),
        ("delta", "DELTA", "With what probability bounds may fail [default: 0.1]".into()),
        (
            "sigma",
            "SIGMA",
            "Bound on ‖xxᵀ − E[xxᵀ]‖_F in Assumption 1 [default: √2; 0 if all agents have the same actions]".into(),
        ),
    ]
}

/// The options of an experiment on the command line.
#[derive(Clone)]
pub(super) struct Options(Vec<(String, Value)>);

impl Options {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts them over what is there.
    pub(super) fn apply(&self, experiment: &mut Experiment) -> Result<(), Failure> {
        for (key, value) in &self.0 {
            experiment.set(key, value.clone()).map_err(|reason| Failure::Usage(format!("--{reason}")))?;
        }
        experiment.config.check().map_err(|error| Failure::Usage(format!("--{error}")))
    }
}

impl clap::FromArgMatches for Options {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Vec::new();
        let all = keys().into_iter().map(|(key, ..)| key).chain(["aggregator", "seeds"]);
        for key in all {
            if let Some(values) = matches.get_many::<String>(key) {
                let mut values: Vec<Value> = values.map(|text| number_or_text(text)).collect();
                let many = matches!(key, "aggregator" | "seeds");
                given.push((key.to_owned(), if many { Value::Array(values) } else { values.remove(0) }));
            }
        }
        Ok(Self(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Options {
    fn augment_args(command: Command) -> Command {
        let names: Vec<_> = AggregatorName::ALL.iter().map(ToString::to_string).collect();
        let aggregators = format!(
            "How the controller aggregates, one or several: {} [default: oracle,geometric-median,mean, and solo without privacy]",
            names.join(", ")
        );
        let option = |(key, value, help): (&'static str, &'static str, String)| {
            let variable = format!("FEDBANDIT_{}", key.replace('-', "_").to_uppercase());
            Arg::new(key)
                .long(key)
                .value_name(value)
                .help(help)
                .env(variable)
                .hide_env(true)
                .allow_negative_numbers(true)
        };
        let mut command = keys().into_iter().fold(command, |command, key| command.arg(option(key)));
        for (key, value, help) in [
            ("aggregator", "NAMES", aggregators),
            ("seeds", "LIST", "What the runs are repeated for, as 1,2,3 [default: 1,2,3]".into()),
        ] {
            command = command.arg(option((key, value, help)).value_delimiter(','));
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn number_or_text(text: &str) -> Value {
    let number = text.parse::<u64>().map(Value::from).ok();
    let number = number.or_else(|| text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from));
    number.unwrap_or_else(|| text.into())
}

/// Reads a TOML file of keys into an experiment.
pub(super) fn read(file: &Path, experiment: &mut Experiment) -> Result<(), Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| Failure::from(error).about(file.display()))?;
    experiment.read(file, &text).map_err(Failure::Config)
}
