//! `fedbandit serve`: the controller of real devices.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fedbandit::config::{AggregatorName, RunConfig};
use fedbandit::service::MasterKey;
use fedbandit::service::config::{Endpoints, ServiceConfig};
use fedbandit::service::http;
use fedbandit::service::metrics::Meter;
use fedbandit::service::store::file::File;
use fedbandit::service::store::metered::MeteredStore;
use fedbandit::service::store::{Memory, Store};
use fedbandit::service::worker::{self, MAX_DIMENSION, ServeError, WorkerHandle};
use fedbandit::service::{EnrolledDevice, Registry, StartError, StartOptions, check, start};
use fedbandit::service::{StateMachine, Status};
use fedbandit::simulation::{Attack, GuardName, Logs, SimulationConfig, virtual_device};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::device::{self, Device, Lifetime};
use super::flags::Flags;
use super::link::Target;
use super::listeners::{self, BoundTransports, Transports};
use super::run_directory::RunDirectory;
use super::service_manager::ServiceManager;
use super::status::unreadable;
use super::{EXIT_CODES, Failure, log, print_line, unix_seconds};

const HELP: &str = "\
Examples:
  fedbandit serve --demo
  fedbandit serve --dir fleet --listen 0.0.0.0:7700
  fedbandit serve --config controller.toml --deadline 30

Every option can also be a key of the TOML file or an environment variable:
  dir = \"fleet\"                 # created by fedbandit enroll
  listen = \"127.0.0.1:7700\"
  deadline = 60
  serial = [\"/dev/ttyUSB0:115200\"]
  rewards = \"gaussian:0.5\"      # by default the R of fedbandit enroll --noise
A flag overrides a variable (FEDBANDIT_DEADLINE=60), which overrides the file. Paths in the file are relative to it.

An episode ends as soon as all devices have reported, or at its deadline; with privacy always at its deadline. A
summary is acknowledged once it is on disk. After a crash, start the service again: it continues where it stopped.
Devices revoked with fedbandit revoke are rejected within seconds, and new keys of fedbandit rekey are valid within
seconds.";

/// Run the controller as a service for devices.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// TOML file with options.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["demo", "dir"])]
    config: Option<PathBuf>,
    /// Demonstrate a controller with 50 virtual devices, 15 of them corrupted.
    #[arg(long, conflicts_with_all = ["config", "dir"])]
    demo: bool,
    #[command(flatten)]
    flags: Flags<ServiceConfig>,
    #[command(flatten)]
    log: log::Options,
}

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.log.start();
        let mut config = self.read_config()?;
        if self.demo {
            return demonstrate(config.endpoints.http);
        }
        config.validate().map_err(|error| self.flags.invalid(self.config.as_deref(), error))?;
        let directory = RunDirectory { path: config.endpoints.dir.clone() };
        let registry = directory.expect_registry()?;
        config.complete(&registry);
        if usize::from(registry.dimension) > MAX_DIMENSION {
            let reason = format!("dimension {} is not supported; the maximum is {MAX_DIMENSION}", registry.dimension);
            return Err(Failure::Config(reason));
        }
        require_sealed_frames(&config, &registry)?;
        let timing = timing(u64::from(config.endpoints.deadline) * 1000, config.endpoints.window);
        let master = directory.master()?;
        // Checked before the store is created, because devices cannot be enrolled afterwards.
        check(&config.run, &registry, timing.window)
            .map_err(|error| self.flags.invalid(self.config.as_deref(), error))?;
        let runtime = tokio::runtime::Runtime::new()?;
        let transports = Transports::new(&config.endpoints)?;
        let bound = runtime.block_on(bind(transports, config.endpoints.http))?;
        let path = directory.store();
        let failed = |error: StartError| match error {
            StartError::Store(error) => unreadable(&error).context(path.display()),
            other => Failure::Config(format!("{}: {other}", path.display())),
        };
        let mut store = File::open(&path).map_err(|error| failed(error.into()))?;
        if config.run.privacy.is_some() && config.run.aggregator == AggregatorName::RECOMMENDED {
            tracing::warn!(
                "{} loses more than the paper's rules in private runs; aggregator = \"median-of-means\" is recommended",
                config.run.aggregator
            );
        }
        let service = start(&mut store, &config.run, &registry, &master, timing, 0).map_err(failed)?;
        runtime.block_on(listen(bound, service, (Box::new(store), Some(path)), &registry, |handle, _, (http, name)| {
            directory.write_service(http, name)?;
            tokio::spawn(watch_registry(directory, registry.clone(), master, handle));
            Ok(())
        }))
    }

    fn read_config(&self) -> Result<ServiceConfig, Failure> {
        let mut config = match &self.config {
            Some(file) => {
                let text = fs::read_to_string(file).map_err(|error| Failure::from(error).context(file.display()))?;
                ServiceConfig::read(file, &text).map_err(Failure::config)?
            }
            None => ServiceConfig::default(),
        };
        self.flags.apply(&mut config)?;
        Ok(config)
    }
}

/// Rejects a private run whose frames others could read in transit (docs/privacy.md, assumptions).
fn require_sealed_frames(config: &ServiceConfig, registry: &Registry) -> Result<(), Failure> {
    let Endpoints { listen, mqtt, allow_plain_frames, .. } = &config.endpoints;
    let is_shared = mqtt.is_some() || !listen.ip().is_loopback();
    let plain = registry.devices.iter().filter(|device| !device.sealed && !device.revoked).count();
    if config.run.privacy.is_none() || !is_shared || plain == 0 || *allow_plain_frames {
        return Ok(());
    }
    Err(Failure::Config(format!(
        "privacy: {plain} of {} devices send plain frames, which others on MQTT or TCP can read; enroll them with \
         --sealed, or set allow-plain-frames = true if nobody else can read the link",
        registry.devices.len()
    )))
}

fn timing(time_limit: u64, window: u32) -> StartOptions {
    StartOptions { time_limit, window, unix_seconds: u32::try_from(unix_seconds()).unwrap_or(0) }
}

/// Devices of the demonstration, of which the last [`CORRUPTED`] are corrupted.
const DEVICES: u32 = 50;
const CORRUPTED: u32 = 15;
/// Pause between two episodes of a virtual device.
const PACE: Duration = Duration::from_millis(700);

/// Runs a controller with an in-memory store and its virtual devices in one process.
fn demonstrate(http: SocketAddr) -> Result<(), Failure> {
    let run = RunConfig { steps: 64 * 400, ..RunConfig::default() };
    let registry = Registry { guard: true, ..Registry::new(1, 1, run.dim as u8) }.with_devices(1..=DEVICES);
    let master = MasterKey::generate().map_err(|error| Failure::Io(error.to_string()))?;
    let mut store = Memory::default();
    let service = start(&mut store, &run, &registry, &master, timing(10_000, 4), 0);
    let service = service.map_err(|error| Failure::Config(error.to_string()))?;
    let mut devices = Vec::new();
    for enrolled in &registry.devices {
        let agent = enrolled.agent;
        let attack = if agent > DEVICES - CORRUPTED { Attack::SignFlip } else { Attack::None };
        let identity = registry.identity(enrolled, &master);
        let config = SimulationConfig { run, attack, guard: Some(GuardName::On), ..SimulationConfig::default() };
        let device = virtual_device(identity, 1, &config, &Logs::new(), 1).map_err(Failure::config)?;
        devices.push(Device { fleet: registry.fleet, agent, device });
    }
    print_line(&format!(
        "{DEVICES} virtual devices, {} to {DEVICES} corrupted; open the status page",
        DEVICES - CORRUPTED + 1
    ))?;
    let runtime = tokio::runtime::Runtime::new()?;
    let any_port = Transports::tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let bound = runtime.block_on(bind(any_port, http))?;
    runtime.block_on(listen(bound, service, (Box::new(store), None), &registry, |_, address, _| {
        for device in devices {
            let target = Target::Tcp(address.to_string());
            tokio::spawn(device::run_device(device, target, Lifetime { pace: PACE, ..Lifetime::endless() }));
        }
        Ok(())
    }))
}

/// Binds the addresses for devices and for HTTP.
async fn bind(transports: Transports, http: SocketAddr) -> Result<(BoundTransports, TcpListener), Failure> {
    Ok((transports.bind().await?, listeners::bind(http).await?))
}

/// Prints the addresses and serves until an error or SIGTERM. Calls `started` with the worker's handle, the TCP address
/// for devices, and the HTTP address with the service's name.
async fn listen(
    (transports, pages): (BoundTransports, TcpListener),
    service: StateMachine,
    (store, file): (Box<dyn Store + Send>, Option<PathBuf>),
    registry: &Registry,
    started: impl FnOnce(WorkerHandle, SocketAddr, (SocketAddr, &str)) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    transports.announce()?;
    let page = pages.local_addr()?;
    print_line(&format!("status:  http://{page}"))?;
    let (sender, receiver) = watch::channel(service.status(0));
    let (store, commits) = MeteredStore::new(store);
    let meter = Arc::new(Meter::new(commits, file, Instant::now()));
    // The random name tells this service from another one that later gets the same address.
    let mut name = [0; 8];
    getrandom::fill(&mut name).map_err(|error| Failure::Io(error.to_string()))?;
    let name = format!("{:016x}", u64::from_le_bytes(name));
    tokio::spawn(http::serve(pages, receiver, Arc::clone(&meter), name.clone()));
    let manager = Arc::new(ServiceManager::from_environment());
    let (observer, mut progress) = (Arc::clone(&manager), String::new());
    let observe = move |status: Status| {
        meter.observe(&status, Instant::now());
        let now = describe_progress(&status);
        if now != progress {
            observer.notify(&format!("STATUS={now}"));
            progress = now;
        }
        drop(sender.send_replace(status));
    };
    let (handle, worker) = worker::start(service, Box::new(store), observe);
    let listening = transports.start(&handle, registry)?;
    tracing::info!(devices = %listening, http = %page, "listening");
    started(handle, listening, (page, &name))?;
    manager.notify("READY=1");
    let result = tokio::select! {
        result = worker => result.map_err(|error| Failure::Io(error.to_string()))?,
        _ = terminate.recv() => {
            manager.notify("STOPPING=1");
            tracing::info!("SIGTERM received; stopping");
            return Ok(());
        }
    };
    result.map_err(|error| match error {
        ServeError::Rule(error) => Failure::Config(error.to_string()),
        other => Failure::Io(other.to_string()),
    })
}

/// Describes the progress of a run, for the service manager.
fn describe_progress(status: &Status) -> String {
    match status.episode {
        Some(episode) => format!("episode {episode} of {}", status.episodes),
        None => format!("all {} episodes closed", status.episodes),
    }
}

/// Interval at which the registry is checked for changes.
const REGISTRY_POLL: Duration = Duration::from_secs(1);

/// Forwards revocations and new keys to the service whenever the registry changes.
async fn watch_registry(directory: RunDirectory, mut known: Registry, master: MasterKey, handle: WorkerHandle) {
    let mut last = None;
    loop {
        let stamp = directory.registry_stamp();
        if stamp.is_some() && stamp != last {
            // An unreadable file is tried again at the next interval.
            if let Ok(Some(registry)) = tokio::task::block_in_place(|| directory.registry()) {
                last = stamp;
                for device in registry.devices.iter().filter(|device| device.revoked) {
                    handle.revoke(device.agent).await;
                }
                let is_current = |device: &EnrolledDevice| {
                    known.devices.iter().any(|old| (old.agent, old.generation) == (device.agent, device.generation))
                };
                for device in registry.devices.iter().filter(|device| !is_current(device)) {
                    handle.rekey(registry.identity(device, &master)).await;
                }
                known = registry;
            }
        }
        tokio::time::sleep(REGISTRY_POLL).await;
    }
}
