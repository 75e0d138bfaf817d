//! `fedbandit enroll`, `rekey` and `revoke`.

use std::path::PathBuf;

use fedbandit::service::worker::MAX_DIMENSION;
use fedbandit::service::{EnrolledDevice, Registry};

use super::run_directory::{RunDirectory, write_secret};
use super::{EXIT_CODES, Failure, print_line, unix_seconds};

const HELP: &str = "\
Examples:
  fedbandit enroll --dir fleet --dim 8 --count 50
  fedbandit enroll --dir fleet --count 10 --sealed
  fedbandit enroll --dir fleet --dim 8 --count 50 --private --sealed

Files in DIR, created if missing:
  registry.json         enrolled devices
  master.key            secret from which all keys are derived; back it up and keep it private
  devices/agent-N.blob  identity and key of device N, 60 bytes to flash beside its firmware

Devices are guarded by default: they fuse each model with their own data, and ignore models that contradict it. R and S
are the constants of the guard. Flashed with the identity, they are beyond the reach of a hostile controller.

The devices of a run are fixed when its service first starts. To add devices later, continue the run in another
directory (fedbandit continue) and enroll them there. A device that never reports counts as corrupted, except with the
rule capped-filter.";

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
    /// Number of the fleet, set with the first devices; must differ between fleets that share a broker [default: 1].
    #[arg(long, value_name = "F")]
    fleet: Option<u32>,
    /// Noise level R of rewards, stored on the devices; set with the first devices [default: 0.5].
    #[arg(long, value_name = "R")]
    noise: Option<f32>,
    /// Bound S on the norm of the true parameter, stored on the devices; set with the first devices [default: 1].
    #[arg(long, value_name = "S")]
    theta_norm: Option<f32>,
    /// Enroll devices for private runs, without a guard; set with the first devices.
    ///
    /// A guarded device remembers data of earlier episodes, which the privacy of a message does not cover.
    #[arg(long)]
    private: bool,
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
            let device = EnrolledDevice { sealed: self.sealed, enrolled_at: Some(now), ..EnrolledDevice::new(agent) };
            write_secret(&directory.blob(agent), &registry.identity(&device, &master).to_blob())?;
            registry.devices.push(device);
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
            let run = self.run.unwrap_or(1);
            if run == 0 {
                return Err(Failure::Usage("--run must be at least 1".into()));
            }
            let mut registry = Registry::new(self.fleet.unwrap_or(1), run, dimension);
            for (name, given, constant) in
                [("noise", self.noise, &mut registry.noise), ("theta-norm", self.theta_norm, &mut registry.theta_norm)]
            {
                *constant = given.unwrap_or(*constant);
                if !(*constant > 0.0 && constant.is_finite()) {
                    return Err(Failure::Usage(format!("--{name} must be positive and finite, got {constant}")));
                }
            }
            registry.guard = !self.private;
            return Ok(registry);
        };
        let Registry { fleet, run, dimension, noise, theta_norm, guard, .. } = registry;
        if self.dim.is_some_and(|dim| dim != dimension)
            || self.run.is_some_and(|given| given != run)
            || self.fleet.is_some_and(|given| given != fleet)
            || self.noise.is_some_and(|given| given != noise)
            || self.theta_norm.is_some_and(|given| given != theta_norm)
            || self.private && guard
        {
            let private = if guard { ", without --private" } else { " --private" };
            return Err(Failure::Usage(format!(
                "{} belongs to run {run} with --dim {dimension} --fleet {fleet} --noise {noise} --theta-norm {theta_norm}{private}",
                self.dir.display()
            )));
        }
        if directory.store().exists() {
            let remedy = "to add devices, continue it in a new directory with fedbandit continue";
            return Err(Failure::Usage(format!("{}: the run has begun; {remedy}", self.dir.display())));
        }
        Ok(registry)
    }
}

const REKEY_HELP: &str = "\
Example:
  fedbandit rekey --dir fleet 7

Writes devices/agent-N.blob with a new key. A running service accepts the new key within seconds, and drops frames
under the old one. Flash the new blob; a sealed device may then restart its boot counter.";

/// Issue new keys to devices, for example after a key was exposed.
#[derive(clap::Args)]
#[command(after_long_help = format!("{REKEY_HELP}\n\n{EXIT_CODES}"))]
pub(super) struct RekeyArgs {
    /// Directory of the run.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Numbers of the devices.
    #[arg(required = true, value_name = "N")]
    agents: Vec<u32>,
}

impl RekeyArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let directory = RunDirectory { path: self.dir };
        let (mut registry, master) = (directory.expect_registry()?, directory.master()?);
        for agent in &self.agents {
            let device = find(&mut registry, *agent)?;
            let exhausted = || Failure::Data(format!("device {agent} has no key generations left"));
            device.generation = device.generation.checked_add(1).ok_or_else(exhausted)?;
        }
        // Before the blobs: a key that was issued is never issued again.
        directory.write_registry(&registry)?;
        for agent in &self.agents {
            let device = *find(&mut registry, *agent)?;
            write_secret(&directory.blob(*agent), &registry.identity(&device, &master).to_blob())?;
            print_line(&format!("device {agent} has key generation {}", device.generation))?;
        }
        Ok(())
    }
}

fn find(registry: &mut Registry, agent: u32) -> Result<&mut EnrolledDevice, Failure> {
    let device = registry.devices.iter_mut().find(|device| device.agent == agent);
    device.ok_or_else(|| Failure::Usage(format!("device {agent} is not enrolled")))
}

const REVOKE_HELP: &str = "\
Example:
  fedbandit revoke --dir fleet 7 12

A running service drops the devices' frames within seconds. Revoked devices count as missing, and so as corrupted.
With the rule capped-filter they count as corrupted only by what they have sent before.";

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
            find(&mut registry, *agent)?.revoked = true;
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
