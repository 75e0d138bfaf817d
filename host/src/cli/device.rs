//! `fedbandit device`: virtual devices against a real controller.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use fedbandit::service::edge::{Edge, Life, edge};
use fedbandit::simulation::{Attack, Config, Environment, RewardKind};
use fedbandit_core::wire::{cobs, max_sealed_frame_len};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::fleet::read_blob;
use super::simulate::read_logs;
use super::{EXIT_CODES, Failure, print};

const HELP: &str = "\
Example:
  fedbandit device --connect tcp://127.0.0.1:7700 --identities fleet/devices --count 35
  fedbandit device --connect tcp://127.0.0.1:7700 --identities fleet/devices --first 36 --count 15 --attack sign-flip

All devices of a fleet must have the same --seed: the true parameter follows from it. Each of them runs the agent and
the session of the firmware, and reconnects when its link is lost. At the end what they lived through is printed as
JSON.";

/// Virtual devices that talk to a controller as real ones do.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// Where the controller is, as tcp://HOST:PORT.
    #[arg(long, value_name = "URL")]
    connect: String,
    /// A directory with agent-N.blob files, as fedbandit enroll makes them.
    #[arg(long, value_name = "DIR")]
    identities: PathBuf,
    /// The first device's number.
    #[arg(long, value_name = "N", default_value_t = 1)]
    first: u32,
    /// How many devices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u32,
    /// What they do: none, sign-flip, fake-parameter, zero, huge or silent.
    #[arg(long, value_name = "NAME", default_value = "none")]
    attack: Attack,
    /// For how many episodes they live.
    #[arg(long, value_name = "K", default_value_t = 20)]
    episodes: u32,
    /// How long they wait for a new model before they go on with the last, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    patience: u64,
    /// What they meet: ball, skew, fixed-arms, shared, drifting or replay:FILE.
    #[arg(long, value_name = "NAME", default_value_t = Environment::Ball)]
    environment: Environment,
    /// What their rewards are: gaussian:R or bounded (which is 1 or -1).
    #[arg(long, value_name = "KIND", default_value_t = RewardKind::Gaussian(0.5))]
    rewards: RewardKind,
    /// What their environment is drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let address = self.connect.strip_prefix("tcp://").map(ToOwned::to_owned);
        let address =
            address.ok_or_else(|| Failure::Usage(format!("--connect is tcp://HOST:PORT, not '{}'", self.connect)))?;
        let Self { attack, environment, rewards, .. } = self;
        let config = Config { attack, environment, rewards, ..Config::default() };
        let logs = read_logs([&config])?;
        let mut devices = Vec::new();
        for agent in self.first..self.first.saturating_add(self.count) {
            let (identity, sealed) = read_blob(&self.identities.join(format!("agent-{agent}.blob")))?;
            let device = edge(identity, sealed, &config, &logs, self.seed);
            devices.push(device.map_err(|error| Failure::Usage(format!("--{error}")))?);
        }
        let lifetime = Lifetime { episodes: self.episodes, patience: self.patience, ..Lifetime::endless() };
        let runtime = tokio::runtime::Runtime::new()?;
        let lives: Vec<Life> = runtime.block_on(async {
            let lives = devices.into_iter().map(|device| live(device, address.clone(), lifetime));
            lives.collect::<tokio::task::JoinSet<_>>().join_all().await
        });
        let mean = |value: fn(&Life) -> f64| lives.iter().map(value).sum::<f64>() / lives.len() as f64;
        print(&serde_json::json!({
            "devices": lives.len(),
            "episodes": lives.iter().map(|life| life.episodes).min(),
            "acknowledged": lives.iter().map(|life| u64::from(life.acknowledged)).sum::<u64>(),
            "last_mean_worth": mean(|life| life.last_mean_worth),
            "last_mean_best": mean(|life| life.last_mean_best),
        }))
    }
}

/// How long a device lives, and how fast.
#[derive(Clone, Copy)]
pub(super) struct Lifetime {
    /// The episodes after which it ends.
    pub(super) episodes: u32,
    /// How long it waits for a new model before it goes on with the last, in milliseconds.
    pub(super) patience: u64,
    /// How long it rests after an episode.
    pub(super) pace: Duration,
}

impl Lifetime {
    pub(super) const fn endless() -> Self {
        Self { episodes: u32::MAX, patience: 5_000, pace: Duration::ZERO }
    }
}

/// Between two looks at the clock.
const PULSE: Duration = Duration::from_millis(5);
/// Before connecting again.
const RECONNECT: Duration = Duration::from_millis(200);
/// How long a device waits at the end of its life for acknowledgements that are still missing.
const FAREWELL: Duration = Duration::from_secs(2);

/// One device, until its life is over, whatever happens to its connection.
pub(super) async fn live(mut device: Box<dyn Edge>, address: String, lifetime: Lifetime) -> Life {
    let start = Instant::now();
    let mut rested = start;
    let mut old: Option<Instant> = None;
    loop {
        if let Ok(stream) = TcpStream::connect(&address).await {
            let _ = stream.set_nodelay(true);
            let _ = connected(&mut *device, stream, start, lifetime, &mut rested, &mut old).await;
        }
        if is_over(&*device, lifetime, old) {
            return device.life();
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

fn is_over(device: &dyn Edge, lifetime: Lifetime, old: Option<Instant>) -> bool {
    old.is_some_and(|old| old.elapsed() > FAREWELL || device.life().acknowledged >= lifetime.episodes)
}

/// One connection, until it breaks or the device's life is over.
async fn connected(
    device: &mut dyn Edge,
    stream: TcpStream,
    start: Instant,
    lifetime: Lifetime,
    rested: &mut Instant,
    old: &mut Option<Instant>,
) -> std::io::Result<()> {
    const FRAME: usize = max_sealed_frame_len(64);
    let (mut reader, mut writer) = stream.into_split();
    let mut decoder = Box::new(cobs::Decoder::<FRAME>::new());
    let (mut buffer, mut frame) = ([0; 1024], vec![0; FRAME]);
    loop {
        let now = start.elapsed().as_millis() as u64;
        let episodes = device.life().episodes;
        if episodes < lifetime.episodes {
            if rested.elapsed() >= lifetime.pace {
                device.live(now, lifetime.patience);
            }
            if device.life().episodes > episodes {
                *rested = Instant::now();
            }
        } else {
            old.get_or_insert_with(Instant::now);
            if is_over(device, lifetime, *old) {
                return Ok(());
            }
        }
        while let Some(length) = device.poll(now, &mut frame) {
            let bytes: Vec<u8> = cobs::encode(&frame[..length]).collect();
            writer.write_all(&bytes).await?;
        }
        match timeout(PULSE, reader.read(&mut buffer)).await {
            Err(_) => {}
            Ok(Ok(0)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(read)) => {
                let now = start.elapsed().as_millis() as u64;
                for byte in &buffer[..read] {
                    if let Some(frame) = decoder.push(*byte) {
                        // A frame that means nothing is none of ours.
                        let _ = device.handle(frame, now);
                    }
                }
            }
        }
    }
}
