//! `fedbandit device`: virtual devices against a real controller.

use std::path::PathBuf;
use std::sync::Once;
use std::time::{Duration, Instant};

use fedbandit::learning::{Learning, RewardKind};
use fedbandit::service::edge::{Edge, Life, edge};
use fedbandit::service::stream::FRAME;
use fedbandit::simulation::{Attack, Config, Environment};

use super::fleet::read_blob;
use super::line::{Line, Target};
use super::simulate::read_logs;
use super::{EXIT_CODES, Failure, print};

const HELP: &str = "\
Example:
  fedbandit device --connect tcp://127.0.0.1:7700 --identities fleet/devices --count 35
  fedbandit device --connect tcp://127.0.0.1:7700 --identities fleet/devices --first 36 --count 15 --attack sign-flip
  fedbandit device --connect tls://controller.example:7701 --ca ca.pem --identities fleet/devices --count 35
  fedbandit device --connect mqtt://broker.example:1883 --identities fleet/devices --count 1000
  fedbandit device --connect serial:///dev/ttyUSB0:115200 --identities fleet/devices --first 3

With MQTT each device is a client of its own. A broker that wants credentials gets them from the URL, in which {agent}
stands for the device's number, as mqtt://{agent}:SECRET@HOST:PORT. On a serial port there is one device.

All devices of a fleet must have the same --seed: the true parameter follows from it. Each of them runs the agent and
the session of the firmware, and reconnects when its link is lost. At the end what they lived through is printed as
JSON: acknowledged summaries, the mean expected reward of their actions over the last episode (last_mean_worth) and over
the second half of all episodes (late_mean_worth), and the same for the best actions (…_best).";

/// Virtual devices that talk to a controller as real ones do.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// Where the controller is: tcp://HOST:PORT, tls://HOST:PORT, mqtt://HOST:PORT, mqtts://HOST:PORT or serial://PATH:BAUD.
    #[arg(long, value_name = "URL")]
    connect: String,
    /// With tls:// and mqtts://: the certificate authority that the other end is known by, in PEM.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
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
    /// Milliseconds to wait for a new model before going on with the last, and at the end for missing acknowledgements; longer than the deadline of episodes.
    #[arg(long, value_name = "MS", default_value_t = 90_000)]
    patience: u64,
    /// What they meet: ball, skew, fixed-arms, shared, drifting, unequal or replay:FILE.
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
        let target = Target::new(&self.connect, self.ca.as_deref())?;
        if self.count > 1 && !target.takes_many() {
            return Err(Failure::Usage("--count is 1 on a serial port".into()));
        }
        let Self { attack, environment, rewards, .. } = self;
        let learning = Learning { rewards, ..Learning::default() };
        let config = Config { learning, attack, environment, ..Config::default() };
        let logs = read_logs([&config])?;
        let mut devices = Vec::new();
        for agent in self.first..self.first.saturating_add(self.count) {
            let (identity, sealed) = read_blob(&self.identities.join(format!("agent-{agent}.blob")))?;
            let run = identity.run;
            let edge = edge(identity, sealed, &config, &logs, self.seed);
            devices.push(Device { run, agent, edge: edge.map_err(|error| Failure::Usage(format!("--{error}")))? });
        }
        let lifetime = Lifetime { episodes: self.episodes, patience: self.patience, ..Lifetime::endless() };
        let runtime = tokio::runtime::Runtime::new()?;
        let lives: Vec<[Life; 2]> = runtime.block_on(async {
            let lives = devices.into_iter().map(|device| live(device, target.clone(), lifetime));
            lives.collect::<tokio::task::JoinSet<_>>().join_all().await
        });
        let mean =
            |value: fn(&Life) -> f64| lives.iter().map(|[_, life]| value(life)).sum::<f64>() / lives.len() as f64;
        let steps = lives.iter().map(|[half, life]| life.steps - half.steps).sum::<u64>() as f64;
        let late = |sum: fn(&Life) -> f64| {
            lives.iter().map(|[half, life]| sum(life) - sum(half)).sum::<f64>() / steps.max(1.0)
        };
        print(&serde_json::json!({
            "devices": lives.len(),
            "episodes": lives.iter().map(|[_, life]| life.episodes).min(),
            "acknowledged": lives.iter().map(|[_, life]| u64::from(life.acknowledged)).sum::<u64>(),
            "last_mean_worth": mean(|life| life.last_mean_worth),
            "last_mean_best": mean(|life| life.last_mean_best),
            "late_mean_worth": late(|life| life.worth),
            "late_mean_best": late(|life| life.best),
        }))
    }
}

/// A virtual device and its address.
pub(super) struct Device {
    pub(super) run: u32,
    pub(super) agent: u32,
    pub(super) edge: Box<dyn Edge>,
}

/// How long a device lives, and how fast.
#[derive(Clone, Copy)]
pub(super) struct Lifetime {
    /// The episodes after which it ends.
    pub(super) episodes: u32,
    /// Milliseconds that it waits for a new model before it goes on with the last, and at the end for acknowledgements.
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
/// Before connecting again, at first and at the most.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

static COMPLAINT: Once = Once::new();

/// A device's way through its life.
struct Path {
    start: Instant,
    rested: Instant,
    /// After the first half of its episodes.
    half: Life,
    /// Since when all episodes are over.
    old: Option<Instant>,
}

/// One device, until its life is over, whatever happens to its connection: what it had lived through after half of its
/// episodes, and at the end.
pub(super) async fn live(device: Device, target: Target, lifetime: Lifetime) -> [Life; 2] {
    let Device { run, agent, mut edge } = device;
    let start = Instant::now();
    let mut path = Path { start, rested: start, half: Life::default(), old: None };
    let mut again = RECONNECT.0;
    loop {
        match target.open(run, agent).await {
            Ok(mut line) => {
                again = RECONNECT.0;
                if connected(&mut *edge, &mut line, lifetime, &mut path).await.is_ok() {
                    line.close().await;
                }
            }
            // One of them speaks for all.
            Err(error) => COMPLAINT
                .call_once(|| eprintln!("device {agent} cannot connect, and will try again and again: {error}")),
        }
        if is_over(&*edge, lifetime, path.old) {
            return [path.half, edge.life()];
        }
        // Spread over devices, so that they do not return in step.
        tokio::time::sleep(again * (8 + agent % 8) / 16).await;
        again = (2 * again).min(RECONNECT.1);
    }
}

fn is_over(device: &dyn Edge, lifetime: Lifetime, old: Option<Instant>) -> bool {
    let patience = Duration::from_millis(lifetime.patience);
    old.is_some_and(|old| device.is_settled() || old.elapsed() > patience)
}

/// One connection, until it breaks or the device's life is over.
async fn connected(device: &mut dyn Edge, line: &mut Line, lifetime: Lifetime, path: &mut Path) -> std::io::Result<()> {
    let mut frame = vec![0; FRAME];
    loop {
        let now = path.start.elapsed().as_millis() as u64;
        let episodes = device.life().episodes;
        if episodes < lifetime.episodes {
            if path.rested.elapsed() >= lifetime.pace {
                device.live(now, lifetime.patience);
            }
            let life = device.life();
            if life.episodes > episodes {
                path.rested = Instant::now();
            }
            if life.episodes <= lifetime.episodes / 2 {
                path.half = life;
            }
        } else {
            path.old.get_or_insert_with(Instant::now);
            if is_over(device, lifetime, path.old) {
                return Ok(());
            }
        }
        while let Some(length) = device.poll(now, &mut frame) {
            line.send(&frame[..length]).await?;
        }
        if let Some(frame) = line.receive(PULSE).await? {
            // A frame that means nothing is none of ours.
            let _ = device.handle(&frame, path.start.elapsed().as_millis() as u64);
        }
    }
}
