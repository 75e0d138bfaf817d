//! `fedbandit enroll` and `revoke`.

use std::path::PathBuf;

use fedbandit::service::worker::MAX_DIMENSION;
use fedbandit::service::{EnrolledDevice, Registry};

use super::run_directory::{RunDirectory, write_secret};
use super::{EXIT_CODES, Failure, print_line, unix_seconds};

const HELP: &str = "\
Examples:
  fedbandit enroll --dir fleet --dim 8 --count 50
  fedbandit enroll --dir fleet --count 10 --sealed

Files in DIR, created if missing:
  registry.json         enrolled devices
  master.key            secret from which all keys are derived; back it up and keep it private
  devices/agent-N.blob  identity and key of device N, 52 bytes to flash beside its firmware

The devices of a run are fixed when its service first starts. A device that never reports counts as corrupted.";

/// Enroll devices: create their keys and the identities to flash.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct EnrollArgs {
    /// Directory of the run.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Dimension of actions, from 1 to 64; required for the first devices.
    #[arg(long, value_name = "D")]
    dim: Option<u8>,
    /// Number of the run, set with the first devices [default: 1].
    #[arg(long)]
    run: Option<u32>,
    /// Number of devices to enroll.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Encrypt the frames of these devices.
    ///
    /// A sealed device must keep a boot counter in non-volatile memory.
    #[arg(long)]
    sealed: bool,
}

impl EnrollArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let directory = RunDirectory { path: self.dir.clone() };
        let mut registry = self.registry(&directory)?;
        let master = directory.master()?;
        let now = unix_seconds();
        let before = registry.devices.iter().map(|device| device.agent).max().unwrap_or(0);
        let none_left = || Failure::Data(format!("{}: no device numbers left after {before}", self.dir.display()));
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
        print_line(&format!("enrolled {first} to {last} of run {run}: {}", self.dir.join("devices").display()))
    }

    fn registry(&self, directory: &RunDirectory) -> Result<Registry, Failure> {
        let Some(registry) = directory.registry()? else {
            let dimension = self.dim.ok_or_else(|| Failure::Usage("--dim is required for the first devices".into()))?;
            if !(1..=MAX_DIMENSION).contains(&dimension.into()) {
                return Err(Failure::Usage(format!("--dim must be from 1 to {MAX_DIMENSION}, got {dimension}")));
            }
            return Ok(Registry { run: self.run.unwrap_or(1), dimension, devices: Vec::new() });
        };
        let differs = |given: Option<u32>, there: u32| given.is_some_and(|given| given != there);
        if differs(self.dim.map(u32::from), registry.dimension.into()) || differs(self.run, registry.run) {
            let Registry { run, dimension, .. } = registry;
            return Err(Failure::Usage(format!("{} belongs to run {run} with --dim {dimension}", self.dir.display())));
        }
        if directory.store().exists() {
            let remedy = "enroll more devices in a new directory";
            return Err(Failure::Usage(format!("{}: the run has begun; {remedy}", self.dir.display())));
        }
        Ok(registry)
    }
}

const REVOKE_HELP: &str = "\
Example:
  fedbandit revoke --dir fleet 7 12

A running service drops the devices' frames within seconds. Revoked devices count as missing, and so as corrupted.";

/// Revoke devices, so that their frames are dropped.
#[derive(clap::Args)]
#[command(after_long_help = format!("{REVOKE_HELP}\n\n{EXIT_CODES}"))]
pub(super) struct RevokeArgs {
    /// Directory of the run.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Numbers of the devices.
    #[arg(required = true, value_name = "N")]
    agents: Vec<u32>,
}

impl RevokeArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let directory = RunDirectory { path: self.dir };
        let mut registry = directory.expect_registry()?;
        for agent in &self.agents {
            let device = registry.devices.iter_mut().find(|device| device.agent == *agent);
            let device = device.ok_or_else(|| Failure::Usage(format!("device {agent} is not enrolled")))?;
            device.revoked = true;
        }
        directory.write_registry(&registry)?;
        let revoked = registry.devices.iter().filter(|device| device.revoked).count();
        let share = revoked as f64 / registry.devices.len() as f64;
        print_line(&format!(
            "{revoked} of {} devices ({:.0} %) are revoked and count as corrupted",
            registry.devices.len(),
            100.0 * share
        ))
    }
}
