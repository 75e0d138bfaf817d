//! `fedbandit device`: virtual devices for a real controller.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Once;
use std::time::{Duration, Instant};

use fedbandit::config::{RewardKind, RunConfig};
use fedbandit::service::transport::backoff::Backoff;
use fedbandit::simulation::{
    Attack, DeviceProgress, Environment, GuardName, SimulationConfig, VirtualDevice, virtual_device,
};
use fedbandit_core::ModelError;
use fedbandit_core::session::Event;

use super::link::{DeviceLink, Target};
use super::run_directory::read_blob;
use super::simulate::read_logs;
use super::{EXIT_CODES, Failure, print_json};

const HELP: &str = "\
Examples:
  fedbandit device --connect tcp://127.0.0.1:7700 --identities fleet/devices --count 35
  fedbandit device --connect tcp://127.0.0.1:7700 --identities fleet/devices --first 36 --count 15 --attack sign-flip
  fedbandit device --connect tls://controller.example:7701 --ca ca.pem --identities fleet/devices --count 35
  fedbandit device --connect mqtt://broker.example:1883 --identities fleet/devices --count 1000
  fedbandit device --connect serial:///dev/ttyUSB0:115200 --identities fleet/devices --first 3
  fedbandit device --connect tcp://127.0.0.1:7700 --identities fleet/devices --count 35 --guard off

Each device runs the agent and the session of the firmware, and reconnects when its link is lost. All devices of a
fleet need the same --seed, from which the true parameter is drawn.

A guarded device fuses each model with its own data, and acts on its own data alone if the two contradict each other. So
neither liars nor a hostile controller can ruin it. R and S of the guard are those of the identity, set by fedbandit enroll.
By default the identity decides: enrolled with --private, a device has no guard. Guarded devices need the --rewards of the
run, since they reject models with another range of rewards.

Over MQTT each device is a client of its own. Credentials go into the URL, where {agent} stands for the device's
number: mqtt://{agent}:SECRET@HOST:PORT. A serial port takes one device.

Output, a JSON object:
  devices          number of devices
  episodes         number of episodes that every device completed
  acknowledged     number of acknowledged summaries
  alarms           number of times that a guard found models worse than the device's own data
  last_mean_worth  mean expected reward of the chosen actions over the last episode
  last_mean_best   the same for the best actions
  late_mean_worth  mean expected reward of the chosen actions over the second half of the episodes
  late_mean_best   the same for the best actions";

/// Run virtual devices against a real controller.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// Controller or broker: tcp://HOST:PORT, tls://HOST:PORT, mqtt://HOST:PORT, mqtts://HOST:PORT or serial://PATH:BAUD.
    #[arg(long, value_name = "URL")]
    connect: String,
    /// CA certificate (PEM) used to verify the server with tls:// and mqtts://.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Directory with agent-N.blob files, as written by fedbandit enroll.
    #[arg(long, value_name = "DIR")]
    identities: PathBuf,
    /// Number of the first device.
    #[arg(long, value_name = "N", default_value_t = 1)]
    first: u32,
    /// Number of devices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u32,
    /// Behaviour of the devices: none, sign-flip, fake-parameter, zero, huge or silent.
    #[arg(long, value_name = "NAME", default_value = "none")]
    attack: Attack,
    /// Guard against liars and hostile controllers: off, on, or untrusting, which also takes one step in 16 on own data
    /// alone. Corrupted devices have none [default: on if the identity permits it].
    #[arg(long, value_name = "NAME")]
    guard: Option<GuardName>,
    /// Half-life of the guard's own data in steps, as the run's forget [default: none].
    #[arg(long, value_name = "H")]
    forget: Option<NonZeroU32>,
    /// Number of episodes after which the devices stop.
    #[arg(long, value_name = "K", default_value_t = 20)]
    episodes: u32,
    /// Milliseconds to wait for a new model before reusing the last, and at the end for acknowledgements; should exceed the
    /// deadline of episodes.
    #[arg(long, value_name = "MS", default_value_t = 90_000)]
    patience: u64,
    /// Environment: ball, skew, fixed-arms, shared, drifting (decision sets), drifting-theta (parameter), unequal, mixture or replay:FILE.
    #[arg(long, value_name = "NAME", default_value_t = Environment::Ball)]
    environment: Environment,
    /// Rewards: gaussian:R with noise level R, or bounded (1 or -1).
    #[arg(long, value_name = "KIND", default_value_t = RewardKind::Gaussian(0.5))]
    rewards: RewardKind,
    /// Random seed of the environment, the same for all devices of a fleet.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let target = Target::new(&self.connect, self.ca.as_deref())?;
        if self.count > 1 && !target.is_shared() {
            return Err(Failure::Usage(format!("--count {}: a serial port takes one device", self.count)));
        }
        let Self { attack, environment, rewards, .. } = self;
        let run = RunConfig { rewards, forget: self.forget.map(NonZeroU32::get), ..RunConfig::default() };
        let config = SimulationConfig { run, attack, environment, guard: self.guard, ..SimulationConfig::default() };
        let logs = read_logs([&config])?;
        let mut devices = Vec::new();
        for agent in self.first..self.first.saturating_add(self.count) {
            let (identity, boot) = read_blob(&self.identities.join(format!("agent-{agent}.blob")))?;
            let fleet = identity.fleet();
            let device = virtual_device(identity, boot, &config, &logs, self.seed);
            devices.push(Device {
                fleet,
                agent,
                device: device.map_err(|error| Failure::Usage(format!("--{error}")))?,
            });
        }
        let lifetime = Lifetime { episodes: self.episodes, patience: self.patience, ..Lifetime::endless() };
        let runtime = tokio::runtime::Runtime::new()?;
        let ends: Vec<[DeviceProgress; 2]> = runtime.block_on(async {
            let devices = devices.into_iter().map(|device| run_device(device, target.clone(), lifetime));
            devices.collect::<tokio::task::JoinSet<_>>().join_all().await
        });
        let mean =
            |value: fn(&DeviceProgress) -> f64| ends.iter().map(|[_, end]| value(end)).sum::<f64>() / ends.len() as f64;
        let steps = ends.iter().map(|[half, end]| end.steps - half.steps).sum::<u64>() as f64;
        let late = |sum: fn(&DeviceProgress) -> f64| {
            ends.iter().map(|[half, end]| sum(end) - sum(half)).sum::<f64>() / steps.max(1.0)
        };
        print_json(&serde_json::json!({
            "devices": ends.len(),
            "episodes": ends.iter().map(|[_, end]| end.episodes).min(),
            "acknowledged": ends.iter().map(|[_, end]| u64::from(end.acknowledged)).sum::<u64>(),
            "alarms": ends.iter().map(|[_, end]| end.alarms).sum::<u64>(),
            "last_mean_worth": mean(|end| end.last_mean_worth),
            "last_mean_best": mean(|end| end.last_mean_best),
            "late_mean_worth": late(|end| end.worth),
            "late_mean_best": late(|end| end.best),
        }))
    }
}

/// A virtual device and its address.
pub(super) struct Device {
    pub(super) fleet: u32,
    pub(super) agent: u32,
    pub(super) device: Box<dyn VirtualDevice>,
}

/// Lifetime and pace of a device.
#[derive(Clone, Copy)]
pub(super) struct Lifetime {
    /// Number of episodes after which the device stops.
    pub(super) episodes: u32,
    /// Milliseconds to wait for a new model before reusing the last, and at the end for acknowledgements.
    pub(super) patience: u64,
    /// Pause after each episode.
    pub(super) pace: Duration,
}

impl Lifetime {
    pub(super) const fn endless() -> Self {
        Self { episodes: u32::MAX, patience: 5_000, pace: Duration::ZERO }
    }
}

/// Shortest and longest time for which a device waits for a frame.
const PULSE: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(1)];

static CONNECT_WARNING: Once = Once::new();
static REWARDS_WARNING: Once = Once::new();

/// Timeline of a device, kept across connections.
struct Timeline {
    start: Instant,
    last_episode: Instant,
    /// Progress after the first half of the episodes.
    half: DeviceProgress,
    /// End of the last episode.
    finished: Option<Instant>,
}

/// Runs one device over any number of connections. Returns its progress after half of its episodes, and at the end.
pub(super) async fn run_device(device: Device, target: Target, lifetime: Lifetime) -> [DeviceProgress; 2] {
    let Device { fleet, agent, mut device } = device;
    let start = Instant::now();
    let mut timeline = Timeline { start, last_episode: start, half: DeviceProgress::default(), finished: None };
    let mut backoff = Backoff::default().spread(agent);
    loop {
        match target.open(fleet, agent).await {
            Ok(mut link) => {
                backoff.reset();
                device.link_up(start.elapsed().as_millis() as u64);
                if run_connected(&mut *device, &mut link, lifetime, &mut timeline).await.is_ok() {
                    link.close().await;
                }
            }
            // Reported once per process, not per device.
            Err(error) => CONNECT_WARNING.call_once(|| eprintln!("device {agent}: cannot connect, retrying: {error}")),
        }
        if is_over(&*device, lifetime, timeline.finished) {
            return [timeline.half, device.progress()];
        }
        backoff.wait().await;
    }
}

fn is_over(device: &dyn VirtualDevice, lifetime: Lifetime, finished: Option<Instant>) -> bool {
    let patience = Duration::from_millis(lifetime.patience);
    finished.is_some_and(|at| device.is_settled() || at.elapsed() > patience)
}

/// Runs a device on one connection, until the connection breaks or its lifetime is over.
async fn run_connected(
    device: &mut dyn VirtualDevice,
    link: &mut DeviceLink,
    lifetime: Lifetime,
    timeline: &mut Timeline,
) -> std::io::Result<()> {
    loop {
        let now = timeline.start.elapsed().as_millis() as u64;
        let episodes = device.progress().episodes;
        if episodes < lifetime.episodes {
            if timeline.last_episode.elapsed() >= lifetime.pace {
                device.run_episode(now, lifetime.patience);
            }
            let progress = device.progress();
            if progress.episodes > episodes {
                timeline.last_episode = Instant::now();
            }
            if progress.episodes <= lifetime.episodes / 2 {
                timeline.half = progress;
            }
        } else {
            timeline.finished.get_or_insert_with(Instant::now);
            if is_over(device, lifetime, timeline.finished) {
                return Ok(());
            }
        }
        while let Some(frame) = device.poll(now) {
            link.send(frame).await?;
        }
        let idle = Duration::from_millis(device.wake_at(lifetime.patience).saturating_sub(now));
        let pause = lifetime.pace.saturating_sub(timeline.last_episode.elapsed());
        let [shortest, longest] = PULSE;
        if let Some(mut frame) = link.receive(idle.max(pause).clamp(shortest, longest)).await? {
            // An invalid frame is ignored, as a real device does.
            let event = device.handle(&mut frame, timeline.start.elapsed().as_millis() as u64);
            if let Ok(Event::ModelRejected(reason @ ModelError::Rewards)) = event {
                REWARDS_WARNING.call_once(|| eprintln!("{reason}; start the devices with the --rewards of the run"));
            }
        }
    }
}
