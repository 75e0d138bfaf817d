//! `fedbandit continue`: the next run of a fleet, which starts from the last model of the previous one.

use std::fs;
use std::io;
use std::path::PathBuf;

use fedbandit::service::store::file::File;
use fedbandit::service::{Continuation, Registry, StartError};

use super::run_directory::{RunDirectory, write_secret};
use super::status::unreadable;
use super::{EXIT_CODES, Failure, print_line};

const HELP: &str = "\
Example:
  fedbandit continue --from fleet --dir fleet-2
  fedbandit enroll --dir fleet-2 --count 20
  fedbandit serve --config controller.toml --dir fleet-2

NEW gets the devices of OLD with their keys, the master key, the token of the pages, the next run number, and the last released model of OLD as
its prior. Stop the service of OLD first; its run need not be finished. OLD is not changed.

Before its service first starts, more devices can be enrolled in NEW. The new run may have other settings: episode length,
aggregator, privacy and so on. The dimension, the fleet number and the constants of the devices stay.

Devices are not reflashed. They find the new run by themselves if its service has the address of the old one, and use the
keys of the new run. Identities stay in OLD/devices; move the files of virtual devices from there, never copy them.

Models are fused with the prior, and ignore it if it contradicts the run's own data. fedbandit status shows how. A discount
RHO below 1 widens the prior by 1/sqrt(RHO), for a parameter that has moved since.

Only the released model is used, so messages of a private OLD keep their privacy. Guarded devices, the default of
fedbandit enroll, cannot join a private run.

Continue a run only once: two successors would have the same number.";

/// Continue a run with another one, for example with more devices or other settings.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// Directory of the run to continue.
    #[arg(long, value_name = "OLD")]
    from: PathBuf,
    /// Directory of the new run, which must not exist.
    #[arg(long, value_name = "NEW")]
    dir: PathBuf,
    /// Weight of the earlier runs' knowledge, above 0 and at most 1.
    #[arg(long, value_name = "RHO", default_value_t = 1.0, allow_negative_numbers = true)]
    discount: f64,
}

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        if !(self.discount > 0.0 && self.discount <= 1.0) {
            return Err(Failure::Usage(format!("--discount must be above 0 and at most 1, got {}", self.discount)));
        }
        let old = RunDirectory { path: self.from.clone() };
        let (registry, master) = (old.expect_registry()?, old.master()?);
        let continues = self.continuation(&old, &registry)?;
        let last = continues.chain.last().map_or(0, |run| run.episode);
        let no_runs_left = || Failure::Data(format!("{}: no run numbers left", self.from.display()));
        let next = registry.next_run(continues).ok_or_else(no_runs_left)?;
        let new = RunDirectory { path: self.dir.clone() };
        create(&new)?;
        write_secret(&new.master_key(), master.as_bytes())?;
        if let Some(token) = old.find_token()? {
            new.write_token(&token)?;
        }
        new.write_registry(&next)?;
        print_line(&format!(
            "run {} continues run {} from its model of episode {last}, with {} devices: {}",
            next.run,
            registry.run,
            next.devices.len(),
            self.dir.display()
        ))
    }

    /// Reads the last model of the old run.
    fn continuation(&self, old: &RunDirectory, registry: &Registry) -> Result<Continuation, Failure> {
        let (path, directory) = (old.store(), self.from.display());
        let not_begun = || Failure::Config(format!("{directory}: the run has no model to continue from"));
        if !path.exists() {
            return Err(not_begun());
        }
        let store = File::open_read_only(&path).map_err(|error| unreadable(&error).context(path.display()))?;
        let continues =
            Continuation::of(&store, registry.devices.len(), self.discount).map_err(|error| match error {
                StartError::NotBegun => not_begun(),
                StartError::Store(error) => unreadable(&error).context(path.display()),
                StartError::Prior(error) => Failure::Config(format!("{directory}: {error}")),
                other => Failure::data(other).context(path.display()),
            })?;
        let is_run = continues.chain.last().is_some_and(|run| run.run == registry.run);
        if !is_run || continues.prior.dimension() != usize::from(registry.dimension) {
            return Err(Failure::Data(format!("{directory}: registry.json and run.redb belong to different runs")));
        }
        Ok(continues)
    }
}

/// Creates the directory of a new run.
fn create(new: &RunDirectory) -> Result<(), Failure> {
    let path = new.path.display();
    fs::create_dir(&new.path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::Usage(format!("--dir {path}: exists already; choose another directory"))
        }
        _ => Failure::from(error).context(path),
    })
}
