//! `fedbandit enroll` and `revoke`: who may take part.

use std::path::PathBuf;

use fedbandit::service::worker::MAX_DIMENSION;
use fedbandit::service::{EnrolledDevice, Registry};

use super::run_directory::{Directory, write_secret};
use super::{EXIT_CODES, Failure, unix_seconds, write};

const HELP: &str = "\
Example:
  fedbandit enroll --dir fleet --dim 8 --count 50

Writes into the directory, and creates what is not there:
  registry.json         who is enrolled
  master.key            the secret from which all keys follow: keep it, and keep it to yourself
  devices/agent-N.blob  52 bytes to flash beside device N's firmware, with its key

The devices of a run are fixed when its service first starts: it counts on N of them, whether they ever speak or not.";

/// Enrol devices: keys, and what to flash beside their firmware.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct EnrollArgs {
    /// The run's directory.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The dimension of actions, from 1 to 64, when the first devices are enrolled.
    #[arg(long, value_name = "D")]
    dim: Option<u8>,
    /// The run's number, when the first devices are enrolled [default: 1].
    #[arg(long)]
    run: Option<u32>,
    /// How many devices to enrol.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Their frames are sealed, so that nobody on the way can read them.
    ///
    /// A sealed device must count its starts where a power cut does not reach.
    #[arg(long)]
    sealed: bool,
}

impl EnrollArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let directory = Directory(self.dir.clone());
        let mut registry = self.registry(&directory)?;
        let master = directory.master()?;
        let now = unix_seconds();
        let before = registry.devices.iter().map(|device| device.agent).max().unwrap_or(0);
        let none_left =
            || Failure::Data(format!("{}: device {before} is enrolled, and numbers end", self.dir.display()));
        let last = before.checked_add(self.count).ok_or_else(none_left)?;
        for agent in before + 1..=last {
            let identity = master.identity(registry.run, agent, registry.dimension);
            let blob = if self.sealed { identity.to_sealed_blob() } else { identity.to_blob() };
            write_secret(&directory.blob(agent), &blob)?;
            registry.devices.push(EnrolledDevice {
                agent,
                revoked: false,
                sealed: self.sealed,
                enrolled_at: Some(now),
            });
        }
        directory.write_registry(&registry)?;
        let (first, run) = (before + 1, registry.run);
        write(&format!("enrolled {first} to {last} of run {run}: {}", self.dir.join("devices").display()))
    }

    fn registry(&self, directory: &Directory) -> Result<Registry, Failure> {
        let Some(registry) = directory.registry()? else {
            let dimension = self.dim.ok_or_else(|| Failure::Usage("the first devices need --dim D".into()))?;
            if !(1..=MAX_DIMENSION).contains(&dimension.into()) {
                return Err(Failure::Usage(format!("--dim must be from 1 to {MAX_DIMENSION}, not {dimension}")));
            }
            return Ok(Registry { run: self.run.unwrap_or(1), dimension, devices: Vec::new() });
        };
        let differs = |given: Option<u32>, there: u32| given.is_some_and(|given| given != there);
        if differs(self.dim.map(u32::from), registry.dimension.into()) || differs(self.run, registry.run) {
            let Registry { run, dimension, .. } = registry;
            return Err(Failure::Usage(format!("{} is of run {run} with --dim {dimension}", self.dir.display())));
        }
        if directory.store().exists() {
            let advice = "its devices are fixed; enrol others in a directory of their own";
            return Err(Failure::Usage(format!("{}: the run has begun, so {advice}", self.dir.display())));
        }
        Ok(registry)
    }
}

/// Revoke devices: their frames are dropped from now on.
#[derive(clap::Args)]
#[command(after_long_help = EXIT_CODES)]
pub(super) struct RevokeArgs {
    /// The run's directory.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The devices' numbers.
    #[arg(required = true)]
    agents: Vec<u32>,
}

impl RevokeArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let directory = Directory(self.dir);
        let mut registry = directory.expect_registry()?;
        for agent in &self.agents {
            let device = registry.devices.iter_mut().find(|device| device.agent == *agent);
            let device = device.ok_or_else(|| Failure::Usage(format!("device {agent} is not enrolled")))?;
            device.revoked = true;
        }
        directory.write_registry(&registry)?;
        let revoked = registry.devices.iter().filter(|device| device.revoked).count();
        let share = revoked as f64 / registry.devices.len() as f64;
        write(&format!(
            "revoked: {revoked} of {} devices ({:.0} %) now are. They count as missing, that is, as corrupted",
            registry.devices.len(),
            100.0 * share
        ))
    }
}
