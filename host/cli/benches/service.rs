//! The service under load, with its devices on the same machine.
//!
//! `cargo bench -p fedbandit-cli --bench service` prints the tables; `-- --write` also records them in docs/benchmarks.md.

#[path = "../../benches/record/mod.rs"]
mod record;

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fedbandit_core::session::{Event, Session};
use fedbandit_core::wire::{Identity, cobs, max_frame_len};
use fedbandit_core::{Action, Agent, Prior, Rewards};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::SeedableRng;
use record::{Table, clock, least, mark};
use rustix::time::ClockId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

const D: usize = 8;
const FRAME: usize = max_frame_len(D);
const CONNECTIONS: u32 = 1_000;
const EPISODES: u32 = 100;
const IDLE: u32 = 10_000;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("service");
    let _ = fs::remove_dir_all(&home);
    let tables = [load(&home.join("load"))?, idle(&home.join("idle"))?];
    fs::remove_dir_all(&home)?;
    if record::is_requested() {
        record::write("service", &[], &tables.join("\n\n"));
    }
    Ok(())
}

/// A running service, killed when dropped.
struct Service {
    child: Child,
    address: String,
    directory: PathBuf,
}

impl Service {
    fn start(directory: &Path, devices: u32) -> Outcome<Self> {
        fs::create_dir_all(directory)?;
        let command = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fedbandit"));
            command.current_dir(directory).stdout(Stdio::piped());
            command
        };
        let arguments = format!("enroll --dir fleet --dim {D} --count {devices}");
        assert!(command().args(arguments.split(' ')).output()?.status.success(), "enrollment failed");
        let settings = "dir = \"fleet\"\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\nsteps = 4000000\n";
        fs::write(directory.join("controller.toml"), settings)?;
        let mut child = command().args(["serve", "--config", "controller.toml"]).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let address = line.trim().strip_prefix("devices: tcp://").ok_or("no address")?.to_owned();
        Ok(Self { child, address, directory: directory.to_owned() })
    }

    fn identity(&self, agent: u32) -> Outcome<Identity> {
        let blob = fs::read(self.directory.join(format!("fleet/devices/agent-{agent}.blob")))?;
        Ok(Identity::from_blob(blob.as_slice().try_into()?)?)
    }

    /// Returns a field of the process status in MB.
    fn memory(&self, field: &str) -> Outcome<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field")?;
        Ok(line.split_whitespace().next().ok_or("no number")?.parse::<f64>()? * 1.024e-3)
    }

    /// Returns the CPU seconds of all threads so far.
    fn cpu(&self) -> Outcome<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        // utime and stime in hundredths of a second.
        Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A device with the firmware's agent and session. Its episodes have two recorded steps.
struct Device {
    agent: Agent<D>,
    session: Session<D, FRAME, 4>,
    rng: Pcg64,
    stream: TcpStream,
    decoder: cobs::Decoder<FRAME>,
    sent: Option<Instant>,
    /// Seconds from sending a summary to its acknowledgement.
    latencies: Vec<f64>,
}

impl Device {
    async fn connect(address: &str, identity: Identity) -> Outcome<Self> {
        let prior = Prior::new(1.0, 1.0, 64, Rewards::Unbounded);
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            agent: Agent::new(&prior).map_err(|error| error.to_string())?,
            rng: Pcg64::seed_from_u64(identity.agent().into()),
            session: {
                let mut session = Session::new(identity, 1)?;
                session.resume_run(1);
                session
            },
            stream,
            decoder: cobs::Decoder::new(),
            sent: None,
            latencies: Vec::new(),
        })
    }

    /// Sends all frames that are due.
    async fn send(&mut self, now: u64) -> Outcome<()> {
        while let Some(frame) = self.session.poll(now, &mut self.rng) {
            let bytes: Vec<u8> = cobs::encode(frame).collect();
            self.stream.write_all(&bytes).await?;
        }
        Ok(())
    }

    /// Handles received frames within a time limit. Returns true if one was a model.
    async fn receive(&mut self, now: u64, limit: Duration) -> Outcome<bool> {
        let mut buffer = [0; 1024];
        let Ok(read) = timeout(limit, self.stream.read(&mut buffer)).await else { return Ok(false) };
        let read = read?;
        if read == 0 {
            return Err("the service closed a connection".into());
        }
        let mut model = false;
        for byte in &buffer[..read] {
            let Some(frame) = self.decoder.push(*byte) else { continue };
            match self.session.handle(frame, &mut self.agent, now) {
                Ok(Event::Model { .. }) => model = true,
                Ok(Event::Acknowledged { .. }) => {
                    self.latencies.extend(self.sent.take().map(|sent| sent.elapsed().as_secs_f64()));
                }
                _ => {}
            }
        }
        Ok(model)
    }

    /// Runs some episodes, and returns the latencies.
    async fn run(mut self, start: Instant, episodes: u32) -> Outcome<Vec<f64>> {
        while self.latencies.len() < episodes as usize {
            let now = start.elapsed().as_millis() as u64;
            self.send(now).await?;
            if self.receive(now, Duration::from_millis(500)).await? {
                let arm = Action::<D>::from_fn(|i, _| if i as u32 == self.agent.episode() % 8 { 0.9 } else { 0.1 });
                for reward in [0.3, -0.2] {
                    self.agent.record(&arm, reward).map_err(|error| error.to_string())?;
                }
                let summary = self.agent.finish();
                self.session.submit(&summary, now);
                self.sent = Some(Instant::now());
            }
        }
        Ok(self.latencies)
    }
}

fn load(directory: &Path) -> Outcome<String> {
    let title =
        format!("Service: durable acknowledgements at d = {D} over {CONNECTIONS} connections (limit 10,000 a second)");
    let columns = "| summaries | seconds | per second | p50 ms | p99 ms | CPU µs each, service | CPU µs each, devices | disk alone, per second | ratio |";
    let service = Service::start(directory, CONNECTIONS)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let start = Instant::now();
    let (seconds, cpu, mut latencies) = runtime.block_on(async {
        let mut devices = Vec::new();
        for agent in 1..=CONNECTIONS {
            devices.push(Device::connect(&service.address, service.identity(agent)?).await?);
        }
        let mut tasks = JoinSet::new();
        for device in devices {
            tasks.spawn(device.run(start, EPISODES));
        }
        let own = clock(ClockId::ProcessCPUTime);
        let (began, before) = (Instant::now(), service.cpu()?);
        let mut latencies = Vec::new();
        while let Some(device) = tasks.join_next().await {
            latencies.extend(device??);
        }
        let cpu = [service.cpu()? - before, clock(ClockId::ProcessCPUTime) - own];
        Outcome::Ok((began.elapsed().as_secs_f64(), cpu, latencies))
    })?;
    latencies.sort_by(f64::total_cmp);
    let count = latencies.len();
    let quantile = |q: f64| 1e3 * latencies[((count as f64 * q) as usize).min(count - 1)];
    let rate = count as f64 / seconds;
    let [service_cpu, device_cpu] = cpu.map(|seconds| 1e6 * seconds / count as f64);
    let disk = f64::from(CONNECTIONS) / durable_write(directory)?;
    let mut table = Table::new(&title, columns);
    table.row(format!(
        "| {count} | {seconds:.1} | {rate:.0}{} | {:.0} | {:.0} | {service_cpu:.0} | {device_cpu:.0} | {disk:.0} | {:.1} |",
        mark(rate >= 10_000.0),
        quantile(0.5),
        quantile(0.99),
        disk / rate,
    ));
    Ok(table.0)
}

/// Seconds to write the summaries of an episode durably to a plain file.
fn durable_write(directory: &Path) -> Outcome<f64> {
    let mut file = fs::File::create(directory.join("disk"))?;
    let bytes = vec![0x5a; CONNECTIONS as usize * FRAME];
    Ok(least(ClockId::Monotonic, 20, || file.write_all(&bytes).and_then(|()| file.sync_data()).is_ok()))
}

fn idle(directory: &Path) -> Outcome<String> {
    let title = "Service: memory with idle connections (limit 1,074 MB at 10,000)";
    let mut table = Table::new(title, "| devices enrolled | connected | MB | kB a connection |");
    let service = Service::start(directory, IDLE)?;
    let empty = service.memory("VmRSS:")?;
    table.row(format!("| {IDLE} | 0 | {empty:.0} | |"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let peak = runtime.block_on(async {
        let mut devices = Vec::new();
        for agent in 1..=IDLE {
            let mut device = Device::connect(&service.address, service.identity(agent)?).await?;
            // A device is idle once it has its model.
            device.send(0).await?;
            assert!(device.receive(0, Duration::from_secs(10)).await?, "device {agent} received no model");
            devices.push(device);
        }
        service.memory("VmHWM:")
    })?;
    let each = (peak - empty) * 1e3 / f64::from(IDLE);
    table.row(format!("| {IDLE} | {IDLE} | {peak:.0}{} | {each:.1} |", mark(peak <= 1_074.0)));
    Ok(table.0)
}
