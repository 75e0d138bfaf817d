//! Command-line flags and environment variables for configuration keys.

use std::fmt::Display;
use std::fs;
use std::marker::PhantomData;
use std::path::Path;

use clap::{Arg, ArgMatches, Command};
use fedbandit::config::{AggregatorName, Configure, Key};
use fedbandit::simulation::{Attack, DIMENSIONS};

use super::Failure;

/// Values given by flags or environment variables, for the keys of `C`.
#[derive(Clone)]
pub(super) struct Flags<C> {
    given: Vec<(String, String)>,
    keys_of: PhantomData<C>,
}

impl<C: Configure> Flags<C> {
    /// True if no flag and no environment variable is set.
    pub(super) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Overrides the values of a configuration.
    pub(super) fn apply(&self, config: &mut C) -> Result<(), Failure> {
        let mut each = self.given.iter();
        each.try_for_each(|(key, text)| config.set_text(key, text))
            .map_err(|error| Failure::Usage(format!("--{error}")))
    }

    /// Attributes an error to the flag that set its key, or else to the file.
    pub(super) fn invalid(&self, file: Option<&Path>, error: impl Display) -> Failure {
        let error = error.to_string();
        let is_flag = self.given.iter().any(|(key, _)| error.split(':').next() == Some(key));
        match file {
            Some(file) if !is_flag => Failure::Config(format!("{}: {error}", file.display())),
            _ => Failure::Usage(format!("--{error}")),
        }
    }
}

impl<C: Configure> clap::FromArgMatches for Flags<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |key: Key| Some((key.name(), matches.get_one::<String>(key.field)?.clone()));
        Ok(Self { given: C::keys().into_iter().filter_map(given).collect(), keys_of: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<C: Configure> clap::Args for Flags<C> {
    fn augment_args(command: Command) -> Command {
        let argument = |key: Key| {
            Arg::new(key.field)
                .long(key.name())
                .value_name(key.value)
                .help(help::<C>(key))
                .env(format!("FEDBANDIT_{}", key.field.to_uppercase()))
                .hide_env(true)
                .allow_negative_numbers(true)
        };
        command.args(C::keys().into_iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Returns the help of a key, with the accepted values if they are a long list.
fn help<C: Configure>(key: Key) -> String {
    let is_simulation = C::keys().iter().any(|key| key.field == "attack");
    let values = match key.field {
        "attack" => Attack::ALL.iter().map(ToString::to_string).collect(),
        "aggregator" => {
            let fits = |name: &&AggregatorName| is_simulation || !name.is_simulation_only();
            AggregatorName::ALL.iter().filter(fits).map(ToString::to_string).collect()
        }
        "dim" => DIMENSIONS.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    };
    if values.is_empty() { key.help() } else { format!("{} [values: {}]", key.help(), values.join(", ")) }
}

/// Sets the keys of a TOML file.
pub(super) fn read_file(file: &Path, config: &mut impl Configure) -> Result<(), Failure> {
    let text = fs::read_to_string(file).map_err(|error| Failure::from(error).context(file.display()))?;
    config.set_toml(file, &text).map_err(Failure::config)
}
