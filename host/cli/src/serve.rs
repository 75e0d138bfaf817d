//! `fedbandit serve`: the controller of real devices.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fedbandit::config::Learning;
use fedbandit::service::config;
use fedbandit::service::http;
use fedbandit::service::identity::Master;
use fedbandit::service::setup::{Enrolled, Registry, StartError, Timing, check, start};
use fedbandit::service::store::file::File;
use fedbandit::service::store::metered::Observed;
use fedbandit::service::store::{Memory, Store};
use fedbandit::service::worker::{self, Door, MAX_DIMENSION, ServeError};
use fedbandit::service::{Service, Status};
use fedbandit::simulation::edge;
use fedbandit::simulation::{Attack, Config, Logs};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::device::{self, Device, Lifetime};
use super::fleet::Directory;
use super::line::Target;
use super::status::unreadable;
use super::transport::{self, Bound, Transports};
use super::{EXIT_CODES, Failure, log, unix_seconds, write};

const HELP: &str = "\
The configuration is a TOML file:
  dir = \"fleet\"                 what fedbandit enroll made
  listen = \"127.0.0.1:7700\"     where devices connect (TCP, frames stuffed by COBS)
  http = \"127.0.0.1:7780\"       status, metrics and health
  deadline = 60                 seconds that an episode may last
  window = 4                    episodes for which a late summary is taken
beside TCP, where it is built with the features tls, mqtt and serial:
  tls = \"0.0.0.0:7701\"          where devices connect with TLS; needs
  certificate = \"cert.pem\"      the chain of certificates, and
  key = \"key.pem\"               its private key
  mqtt = \"mqtt://HOST:1883\"     a broker, also mqtts:// and with USER:PASSWORD@ before HOST
  mqtt-ca = \"ca.pem\"            with mqtts://, the certificate authority that the broker is known by
  serial = [\"/dev/ttyUSB0:115200\"]   ports and their speeds
and how to learn, in the words of fedbandit simulate:
  steps, episode-len, first-episode, first-episodes, rewards, theta-norm, aggregator, design-corruption, admission,
  schedule, privacy, mechanism, noise-bound, delta, sigma

An episode ends at its deadline, or as soon as all devices have reported; with privacy at its deadline only. What was
acknowledged is on disk. After a crash, start it again: it goes on where it was. What fedbandit revoke revokes is dropped
within seconds.";

/// The controller as a service that devices talk to.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// The configuration.
    #[arg(long, value_name = "FILE", required_unless_present = "demo")]
    config: Option<PathBuf>,
    /// Show what it is: a controller, 50 virtual devices, 15 of which lie, and a page to watch them learn.
    #[arg(long, conflicts_with = "config")]
    demo: bool,
    /// With --demo: where the page is.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7780", requires = "demo")]
    http: SocketAddr,
    #[command(flatten)]
    log: log::Options,
}

struct Settings {
    directory: Directory,
    transports: Transports,
    http: SocketAddr,
    timing: Timing,
    learning: Learning,
}

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.log.start();
        let Some(file) = &self.config else { return demonstrate(self.http) };
        let settings = settings(file)?;
        let registry = settings.directory.expect_registry()?;
        if usize::from(registry.dimension) > MAX_DIMENSION {
            return Err(Failure::Config(format!("a service takes dimensions up to {MAX_DIMENSION}")));
        }
        let master = settings.directory.master()?;
        // Before there is a store: from then on nobody can be enrolled.
        let checked = check(&settings.learning, &registry, settings.timing.window);
        checked.map_err(|error| Failure::Config(format!("{}: {error}", file.display())))?;
        let runtime = tokio::runtime::Runtime::new()?;
        let bound = runtime.block_on(bind(settings.transports, settings.http))?;
        let path = settings.directory.store();
        let failed = |error: StartError| match error {
            StartError::Store(error) => unreadable(&error).about(path.display()),
            other => Failure::Config(format!("{}: {other}", path.display())),
        };
        let mut store = File::open(&path).map_err(|error| failed(error.into()))?;
        let service = start(&mut store, &settings.learning, &registry, &master, settings.timing, 0).map_err(failed)?;
        let directory = settings.directory;
        runtime.block_on(listen(bound, service, Box::new(store), &registry, |door, _, (http, name)| {
            directory.write_service(http, name)?;
            tokio::spawn(watch_registry(directory, door));
            Ok(())
        }))
    }
}

fn timing(time_limit: u64, window: u32) -> Timing {
    Timing { time_limit, window, unix_seconds: u32::try_from(unix_seconds()).unwrap_or(0) }
}

/// Reads the configuration. A path in the file is meant from where the file is.
fn settings(file: &Path) -> Result<Settings, Failure> {
    let text = fs::read_to_string(file).map_err(|error| Failure::from(error).about(file.display()))?;
    let said = config::Settings::read(file, &text).map_err(Failure::Config)?;
    let here = file.parent().unwrap_or(Path::new(""));
    let transports = Transports::new(said.listen, &said.transports, here);
    Ok(Settings {
        directory: Directory(here.join(said.dir)),
        transports: transports.map_err(|failure| failure.about(file.display()))?,
        http: said.http,
        timing: timing(u64::from(said.deadline) * 1000, said.window),
        learning: said.learning,
    })
}

/// The demonstration's devices, and how many of them lie.
const DEVICES: u32 = 50;
const LIARS: u32 = 15;
/// Between two episodes of a virtual device.
const PACE: Duration = Duration::from_millis(700);

/// A controller in memory and its virtual devices, in one process.
fn demonstrate(page: SocketAddr) -> Result<(), Failure> {
    let learning = Learning { steps: 64 * 400, ..Learning::default() };
    let devices =
        (1..=DEVICES).map(|agent| Enrolled { agent, revoked: false, sealed: false, enrolled_at: None }).collect();
    let registry = Registry { run: 1, dimension: learning.dim as u8, devices };
    let master = Master::generate().map_err(|error| Failure::Io(error.to_string()))?;
    let mut store = Memory::default();
    let service = start(&mut store, &learning, &registry, &master, timing(10_000, 4), 0);
    let service = service.map_err(|error| Failure::Config(error.to_string()))?;
    let mut edges = Vec::new();
    for agent in 1..=DEVICES {
        let attack = if agent > DEVICES - LIARS { Attack::SignFlip } else { Attack::None };
        let identity = master.identity(registry.run, agent, registry.dimension);
        let config = Config { learning, attack, ..Config::default() };
        let edge = edge(identity, None, &config, &Logs::new(), 1);
        let edge = edge.map_err(|error| Failure::Config(error.to_string()))?;
        edges.push(Device { run: registry.run, agent, edge });
    }
    write(&format!(
        "{DEVICES} virtual devices, of which {} to {DEVICES} lie: open the status page",
        DEVICES - LIARS + 1
    ))?;
    let runtime = tokio::runtime::Runtime::new()?;
    let any = Transports::tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let bound = runtime.block_on(bind(any, page))?;
    runtime.block_on(listen(bound, service, Box::new(store), &registry, |_, address, _| {
        for device in edges {
            let target = Target::Tcp(address.to_string());
            tokio::spawn(device::live(device, target, Lifetime { pace: PACE, ..Lifetime::endless() }));
        }
        Ok(())
    }))
}

/// Where devices connect, and the page.
async fn bind(transports: Transports, http: SocketAddr) -> Result<(Bound, TcpListener), Failure> {
    Ok((transports.bind().await?, transport::bind(http).await?))
}

/// Says where it listens, and serves until the end; `started` gets the way to the service, where devices connect, and where
/// the page is with the service's name.
async fn listen(
    (transports, pages): (Bound, TcpListener),
    service: Service,
    store: Box<dyn Store + Send>,
    registry: &Registry,
    started: impl FnOnce(Door, SocketAddr, (SocketAddr, &str)) -> Result<(), Failure>,
) -> Result<(), Failure> {
    transports.tell()?;
    let page = pages.local_addr()?;
    write(&format!("status:  http://{page}"))?;
    let (sender, receiver) = watch::channel(service.status(0));
    let (store, commits) = Observed::new(store);
    // No two services share a name, so what was left behind by one is not taken for another.
    let mut name = [0; 8];
    getrandom::fill(&mut name).map_err(|error| Failure::Io(error.to_string()))?;
    let name = format!("{:016x}", u64::from_le_bytes(name));
    tokio::spawn(http::serve(pages, receiver, commits, name.clone()));
    let observe = move |status: Status| drop(sender.send_replace(status));
    let (door, worker) = worker::start(service, Box::new(store), observe);
    let listening = transports.start(&door, registry)?;
    tracing::info!(devices = %listening, http = %page, "listening");
    started(door, listening, (page, &name))?;
    worker.await.map_err(|error| Failure::Io(error.to_string()))?.map_err(|error| match error {
        ServeError::Rule(error) => Failure::Config(error.to_string()),
        other => Failure::Io(other.to_string()),
    })
}

/// Between two looks at the registry.
const LOOK: Duration = Duration::from_secs(1);

/// Tells the service whose identity is revoked, whenever the registry is another file than before.
async fn watch_registry(directory: Directory, door: Door) {
    let mut last = None;
    loop {
        let stamp = directory.registry_stamp();
        if stamp.is_some() && stamp != last {
            // A file that cannot be read now may be next time.
            if let Ok(Some(registry)) = tokio::task::block_in_place(|| directory.registry()) {
                last = stamp;
                for device in registry.devices.iter().filter(|device| device.revoked) {
                    door.revoke(device.agent).await;
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
