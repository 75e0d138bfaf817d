//! `fedbandit device`: virtual devices against a real controller.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fedbandit::service::edge::{Edge, Life, edge};
use fedbandit::simulation::{Attack, Config};
use fedbandit_core::wire::{cobs, max_frame_len};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::fleet::read_blob;
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
    /// What their environment is drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let address = self.connect.strip_prefix("tcp://").map(ToOwned::to_owned);
        let address =
            address.ok_or_else(|| Failure::Usage(format!("--connect is tcp://HOST:PORT, not '{}'", self.connect)))?;
        let config = Config { attack: self.attack, ..Config::default() };
        let mut devices = Vec::new();
        for agent in self.first..self.first.saturating_add(self.count) {
            let identity = read_blob(&self.identities.join(format!("agent-{agent}.blob")))?;
            let config = Config { dim: identity.dimension.into(), ..config.clone() };
            let device = edge(identity, &config, self.seed).map_err(|error| Failure::Usage(format!("--{error}")))?;
            devices.push(device);
        }
        let lives = Arc::new(Mutex::new(vec![Life::default(); devices.len()]));
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for (index, device) in devices.into_iter().enumerate() {
                let (address, lives) = (address.clone(), Arc::clone(&lives));
                tasks.spawn(live(device, address, self.episodes, self.patience, lives, index));
            }
            tasks.join_all().await;
        });
        let lives = lives.lock().map_err(|_| Failure::Io("a device panicked".into()))?;
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

/// Between two looks at the clock.
const PULSE: Duration = Duration::from_millis(5);
/// Before connecting again.
const RECONNECT: Duration = Duration::from_millis(200);

/// One device, until it has lived through its episodes and all its summaries had time to be acknowledged.
async fn live(
    mut device: Box<dyn Edge>,
    address: String,
    episodes: u32,
    patience: u64,
    lives: Arc<Mutex<Vec<Life>>>,
    index: usize,
) {
    let start = Instant::now();
    let mut over: Option<Instant> = None;
    loop {
        if let Ok(stream) = TcpStream::connect(&address).await {
            let _ = stream.set_nodelay(true);
            let _ = connected(&mut *device, stream, start, episodes, patience, &mut over).await;
        }
        if let Ok(mut lives) = lives.lock() {
            lives[index] = device.life();
        }
        if over.is_some_and(|over| over.elapsed() > Duration::from_secs(2)) {
            return;
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// One connection, until it breaks or the device's life is over.
async fn connected(
    device: &mut dyn Edge,
    stream: TcpStream,
    start: Instant,
    episodes: u32,
    patience: u64,
    over: &mut Option<Instant>,
) -> std::io::Result<()> {
    const FRAME: usize = max_frame_len(64);
    let (mut reader, mut writer) = stream.into_split();
    let mut decoder = Box::new(cobs::Decoder::<FRAME>::new());
    let (mut buffer, mut frame) = ([0; 1024], vec![0; FRAME]);
    loop {
        let now = start.elapsed().as_millis() as u64;
        if device.life().episodes < episodes {
            device.live(now, patience);
        } else if over.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(2)
            || device.life().acknowledged >= episodes
        {
            *over = Some(Instant::now() - Duration::from_secs(3));
            return Ok(());
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
