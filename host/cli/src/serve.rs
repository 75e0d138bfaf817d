//! `fedbandit serve`: the controller of real devices.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fedbandit::config::{AggregatorName, RunConfig};
use fedbandit::service::MasterKey;
use fedbandit::service::access::{Access, Token};
use fedbandit::service::audit::{AuditEvent, AuditRecord, Author};
use fedbandit::service::config::{Endpoints, ServiceConfig};
use fedbandit::service::http::{self, Pages, Stored};
use fedbandit::service::metrics::Meter;
use fedbandit::service::store::file::File;
use fedbandit::service::store::metered::MeteredStore;
use fedbandit::service::store::{Memory, Store, StoreError};
use fedbandit::service::transport::tls::Acceptor;
use fedbandit::service::worker::{self, MAX_DIMENSION, ServeError, WorkerHandle};
use fedbandit::service::{Registry, RunTerms, SCHEMA, StartError, StartOptions, check, start};
use fedbandit::service::{StateMachine, Status};
use fedbandit::simulation::{Attack, GuardName, Logs, SimulationConfig, virtual_device};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::device::{self, Device, Lifetime};
use super::flags::Flags;
use super::link::{Target, without_password};
use super::listeners::{self, BoundTransports, Transports};
use super::run_directory::RunDirectory;
use super::service_manager::ServiceManager;
use super::status::unreadable;
use super::{EXIT_CODES, Failure, VERSION, log, print_line, unix_seconds};

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
seconds.

The HTTP pages need the token in DIR/http.token, as Authorization: Bearer TOKEN or as the password in a browser, with any
user name. /healthz needs none, and neither does --demo on a loopback address. With http-tls = true the pages use TLS. On
SIGHUP the certificate, its key and the token are read again; connections stay open.";

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
        let Endpoints { deadline, window, retain, .. } = config.endpoints;
        let mut timing = timing(u64::from(deadline) * 1000, window);
        timing.snapshots.retain = Some(retain);
        let master = directory.master()?;
        // Checked before the store is created, because devices cannot be enrolled afterwards.
        check(&config.run, &registry, timing.window)
            .map_err(|error| self.flags.invalid(self.config.as_deref(), error))?;
        let runtime = tokio::runtime::Runtime::new()?;
        let acceptor = acceptor(&config.endpoints)?;
        let transports = Transports::new(&config.endpoints, acceptor.as_ref())?;
        let (bound, listener) = runtime.block_on(bind(transports, config.endpoints.http))?;
        let tls = acceptor.clone().filter(|_| config.endpoints.http_tls);
        let access = Access::with_token(&directory.token()?);
        let path = directory.store();
        let failed = |error: StartError| match error {
            StartError::Store(error) => unreadable(&error).context(path.display()),
            other => Failure::Config(format!("{}: {other}", path.display())),
        };
        if let Some(copy) = directory.copy_older_schema()? {
            tracing::warn!(copy = %copy.display(), "the store is migrated to schema {SCHEMA}; a copy is kept");
        }
        directory.remove_backup_hash()?;
        let mut store = File::open(&path).map_err(|error| failed(error.into()))?;
        if config.run.privacy.is_some() && config.run.aggregator == AggregatorName::RECOMMENDED {
            tracing::warn!(
                "{} loses more than the paper's rules in private runs; aggregator = \"median-of-means\" is recommended",
                config.run.aggregator
            );
        }
        let service = start(&mut store, &config.run, &registry, &master, timing, 0).map_err(failed)?;
        let stored = RunTerms::load(&store).map_err(failed)?;
        let stored = Some(Stored { reader: Arc::new(store.reader()), terms: Arc::new(stored) });
        audit_start(&mut store, &config, &directory, &registry, &service).map_err(|error| failed(error.into()))?;
        let http = Http { listener, access, tls, stored };
        http.warn_if_readable();
        let files =
            Files { directory: directory.clone(), access: http.access.clone(), acceptor, endpoints: config.endpoints };
        let started = |handle, _, (url, name): (&str, &str)| {
            files.publish_certificate()?;
            directory.write_service(url, name)?;
            tokio::spawn(watch_registry(directory, registry.clone(), master, handle));
            Ok(())
        };
        runtime.block_on(listen(bound, http, service, (Box::new(store), Some(path)), &registry, started, || {
            files.reload()
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

/// Records the start in the audit log, and what has changed since the start before.
fn audit_start(
    store: &mut File,
    config: &ServiceConfig,
    directory: &RunDirectory,
    registry: &Registry,
    service: &StateMachine,
) -> Result<(), StoreError> {
    let event = AuditEvent::Start { version: VERSION.into(), config_hash: service.status(0).config_hash };
    let mut settings = serde_json::to_value(&config.endpoints).unwrap_or_default();
    if let Some(url) = &config.endpoints.mqtt {
        settings["mqtt"] = without_password(url).into();
    }
    let run = serde_json::to_value(config.run).unwrap_or_default();
    let settings = [settings, run].into_iter().filter_map(|value| value.as_object().cloned()).flatten().collect();
    let author = directory.registry_author().unwrap_or_else(own_author);
    AuditRecord::start(store, own_author().entry(event), settings, (registry, author))?.append(store)
}

/// Returns the present time and the user of this process.
fn own_author() -> Author {
    Author { at: unix_seconds(), uid: fs::metadata("/proc/self").ok().map(|own| own.uid()) }
}

/// Reads the certificate, if there is one.
fn acceptor(endpoints: &Endpoints) -> Result<Option<Acceptor>, Failure> {
    let (Some(certificate), Some(key)) = (&endpoints.certificate, &endpoints.key) else { return Ok(None) };
    Ok(Some(Acceptor::new(certificate, key)?))
}

/// Files that are read again on SIGHUP, and their users.
struct Files {
    directory: RunDirectory,
    access: Access,
    acceptor: Option<Acceptor>,
    endpoints: Endpoints,
}

impl Files {
    /// Copies the certificate of the HTTP pages to the run's directory, by which `status` knows the service.
    fn publish_certificate(&self) -> Result<(), Failure> {
        match &self.endpoints.certificate {
            Some(chain) if self.endpoints.http_tls => self.directory.write_http_certificate(chain),
            _ => Ok(()),
        }
    }

    /// Reads the certificate and the token again. Whatever is invalid remains as it was.
    fn reload(&self) {
        let certificate = self.acceptor.as_ref().map_or(Ok(()), |acceptor| acceptor.reload().map_err(Failure::from));
        if let Err(failure) = certificate.and_then(|()| self.publish_certificate()) {
            tracing::error!(reason = failure.reason(), "SIGHUP received, but the certificate cannot be read again");
        }
        match self.directory.token() {
            Ok(token) => self.access.replace_token(&token),
            Err(failure) => {
                tracing::error!(reason = failure.reason(), "SIGHUP received, but the token cannot be read again")
            }
        }
        tracing::info!("SIGHUP received; certificate and token read again");
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
    StartOptions::new(time_limit, window, u32::try_from(unix_seconds()).unwrap_or(0))
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
    let access = demonstration_access(http)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let any_port = Transports::tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let (bound, listener) = runtime.block_on(bind(any_port, http))?;
    let started = |_, address: SocketAddr, _: (&str, &str)| {
        for device in devices {
            let target = Target::Tcp(address.to_string());
            tokio::spawn(device::run_device(device, target, Lifetime { pace: PACE, ..Lifetime::endless() }));
        }
        Ok(())
    };
    let http = Http { listener, access, tls: None, stored: None };
    runtime.block_on(listen(bound, http, service, (Box::new(store), None), &registry, started, || ()))
}

/// Permits everybody on this machine; others need a token, which is printed.
fn demonstration_access(http: SocketAddr) -> Result<Access, Failure> {
    if http.ip().is_loopback() {
        return Ok(Access::everybody());
    }
    let token = Token::generate().map_err(|error| Failure::Io(error.to_string()))?;
    print_line(&format!("token:   {}", token.as_str()))?;
    Ok(Access::with_token(&token))
}

/// Listener of the HTTP pages, and who may read them.
struct Http {
    listener: TcpListener,
    access: Access,
    tls: Option<Acceptor>,
    stored: Option<Stored>,
}

impl Http {
    fn url(&self) -> Result<String, Failure> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(format!("{scheme}://{}", self.listener.local_addr()?))
    }

    /// Warns if others can read the pages and the token on the network.
    fn warn_if_readable(&self) {
        let is_loopback = self.listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
        if self.tls.is_none() && !is_loopback {
            tracing::warn!("the network can read the status pages and their token; set http-tls = true");
        }
    }
}

/// Binds the addresses for devices and for HTTP.
async fn bind(transports: Transports, http: SocketAddr) -> Result<(BoundTransports, TcpListener), Failure> {
    Ok((transports.bind().await?, listeners::bind(http).await?))
}

/// Prints the addresses and serves until an error or SIGTERM. Calls `started` with the worker's handle, the TCP address
/// for devices, and the HTTP URL with the service's name; calls `reload` on SIGHUP.
async fn listen(
    transports: BoundTransports,
    http: Http,
    service: StateMachine,
    (store, file): (Box<dyn Store + Send>, Option<PathBuf>),
    registry: &Registry,
    started: impl FnOnce(WorkerHandle, SocketAddr, (&str, &str)) -> Result<(), Failure>,
    reload: impl Fn(),
) -> Result<(), Failure> {
    let (mut terminate, mut hangup) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    transports.announce()?;
    let url = http.url()?;
    let (sender, status) = watch::channel(service.status(0));
    let (store, commits) = MeteredStore::new(store);
    let meter = Arc::new(Meter::new(commits, file, Instant::now()));
    // The random name tells this service from another one that later gets the same address.
    let mut name = [0; 8];
    getrandom::fill(&mut name).map_err(|error| Failure::Io(error.to_string()))?;
    let name = format!("{:016x}", u64::from_le_bytes(name));
    let manager = Arc::new(ServiceManager::from_environment());
    let observe = {
        let (meter, manager, mut progress) = (Arc::clone(&meter), Arc::clone(&manager), String::new());
        move |status: Status| {
            meter.observe(&status, Instant::now());
            let now = describe_progress(&status);
            if now != progress {
                manager.notify(&format!("STATUS={now}"));
                progress = now;
            }
            drop(sender.send_replace(status));
        }
    };
    let (handle, mut worker) = worker::start(service, Box::new(store), observe);
    let pages = Pages { status, meter, name: name.clone(), worker: handle.clone(), stored: http.stored };
    tokio::spawn(http::serve(http.listener, pages, http.access, http.tls));
    let listening = transports.start(&handle, registry)?;
    tracing::info!(devices = %listening, http = %url, "listening");
    started(handle.clone(), listening, (&url, &name))?;
    // The last line, so that whoever waits for it finds the files of the service.
    print_line(&format!("status:  {url}"))?;
    manager.notify("READY=1");
    let result = loop {
        tokio::select! {
            result = &mut worker => break result.map_err(|error| Failure::Io(error.to_string()))?,
            _ = terminate.recv() => {
                manager.notify("STOPPING=1");
                tracing::info!("SIGTERM received; stopping");
                let stop = own_author().entry(AuditEvent::Stop { reason: "SIGTERM".into() });
                handle.audit(AuditRecord::event(stop)).await;
                return Ok(());
            }
            _ = hangup.recv() => tokio::task::block_in_place(&reload),
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

/// Forwards changes of the registry to the service, and records them in the audit log.
async fn watch_registry(directory: RunDirectory, mut known: Registry, master: MasterKey, handle: WorkerHandle) {
    let mut last = None;
    loop {
        let stamp = directory.registry_stamp();
        if stamp.is_some() && stamp != last {
            // An unreadable file is tried again at the next interval.
            if let Ok(Some(registry)) = tokio::task::block_in_place(|| directory.registry()) {
                last = stamp;
                let author = directory.registry_author().unwrap_or_else(own_author);
                let changes = AuditRecord::registry(&known, &registry, author);
                for entry in &changes.entries {
                    apply_change(&entry.event, &registry, &master, &handle).await;
                }
                if !changes.entries.is_empty() {
                    handle.audit(changes).await;
                }
                known = registry;
            }
        }
        tokio::time::sleep(REGISTRY_POLL).await;
    }
}

/// Forwards a change of a device to the service.
async fn apply_change(event: &AuditEvent, registry: &Registry, master: &MasterKey, handle: &WorkerHandle) {
    let device = |agent: u32| registry.devices.iter().find(|device| device.agent == agent);
    match *event {
        AuditEvent::Enrolled { agent } => {
            if let Some(device) = device(agent) {
                handle.enroll(registry.identity(device, master), device.revoked).await;
            }
        }
        AuditEvent::Rekeyed { agent, .. } => {
            if let Some(device) = device(agent) {
                handle.rekey(registry.identity(device, master)).await;
            }
        }
        AuditEvent::Revoked { agent } => handle.set_revoked(agent, true).await,
        AuditEvent::Unrevoked { agent } => handle.set_revoked(agent, false).await,
        _ => {}
    }
}
