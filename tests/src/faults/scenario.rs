//! One scenario: service, devices, network and disk on a simulated clock.

use std::collections::BTreeMap;

use fedbandit::algorithm::{Admission, Level};
use fedbandit::algorithm::{ControllerConfig, Episodes};
use fedbandit::config::{AggregatorName, Privacy, RewardKind, RunConfig};
use fedbandit::privacy::Plan;
use fedbandit::privacy::calibration::Mechanism;
use fedbandit::service::MasterKey;
use fedbandit::service::store::Store;
use fedbandit::service::store::file::File;
use fedbandit::service::worker::{commit_and_tick, store_snapshot};
use fedbandit::service::{Continuation, EnrolledDevice, Registry, SnapshotPolicy, StartError, StartOptions, start};
use fedbandit::service::{Link, StateMachine};
use fedbandit_core::session::Event;
use fedbandit_core::wire::cobs;

use super::disk::{Disk, DiskFault, Tail};
use super::oracle::{Oracle, RunTerms, Violation, WAIT_AFTER_END, Watched};
use super::simulated_device::{Device, Role};
use super::{D, FRAME, Outcome};
use crate::harness::test_rng::TestRng;

/// Number of the fleet.
const FLEET: u32 = 3;
/// Steps of an episode.
const EPISODE_LEN: u32 = 4;
/// Resolution of the simulated clock, in milliseconds.
const STEP: u64 = 20;
/// Simulated time after the last fault by which the run must complete: an hour. During a run, devices retry at least every
/// minute.
const RECOVERY_LIMIT: u64 = 3_600_000;
/// Number of recorded frames that the network may replay.
const RECORDED: usize = 64;
/// Largest number of devices.
const MOST_DEVICES: usize = 12;
/// Stored noise key of private runs, the same for all. Runs differ by their number.
const NOISE_KEY: &str = "4bfa4ba3fac43910da9491d8bc8f79e7a2c185c44346315345e3c5da5f1c9526\
                         93970254d7b48f8302883feb43098f42837800c1d9dee254c2cbaf8d7e951706";

/// Fault rates per mille.
#[derive(Debug)]
struct Rates {
    lost: u64,
    duplicated: u64,
    damaged: u64,
    /// A recorded frame is sent again, at any time later.
    replayed: u64,
    /// Maximum delay of a frame, in milliseconds.
    delay: u64,
    cut_off: u64,
    reconnect: u64,
    device_restart: u64,
    crash: u64,
    disk: u64,
    jump: u64,
    abuse: u64,
}

impl Rates {
    /// Draws the rates of a scenario; some are zero.
    fn draw(rng: &mut TestRng) -> Self {
        let mut up_to = |most: u64| if rng.per_mille(300) { 0 } else { rng.below(most + 1) };
        Self {
            lost: up_to(300),
            duplicated: up_to(200),
            damaged: up_to(100),
            replayed: up_to(40),
            delay: up_to(4_000),
            cut_off: up_to(3),
            reconnect: up_to(5),
            device_restart: up_to(3),
            crash: up_to(8),
            disk: up_to(15),
            jump: up_to(2),
            abuse: up_to(300),
        }
    }
}

pub(super) struct Scenario {
    rng: TestRng,
    rates: Rates,
    now: u64,
    /// Time of the last fault.
    quiet_from: u64,
    /// Time by which the run must complete.
    limit: u64,
    /// Time at which the service of the next run replaces this one.
    next_run_at: Option<u64>,
    config: RunConfig,
    registry: Registry,
    master: MasterKey,
    timing: StartOptions,
    oracle: Oracle,
    disk: Disk,
    controller: Option<Controller>,
    /// Time at which a stopped service starts again.
    start_at: u64,
    devices: Vec<Device>,
    /// By device: its link, and the time until which it is disconnected.
    links: Vec<(Link, u64)>,
    next_link: u64,
    /// Packets in flight, by time of arrival.
    in_flight: BTreeMap<(u64, u64), Packet>,
    sent: u64,
    /// Recorded frames, each with its device and direction.
    recorded: Vec<(usize, bool, Vec<u8>)>,
    trace: Trace,
    outcome: Outcome,
}

struct Controller {
    service: StateMachine,
    store: File,
    started: u64,
    /// Offset of its clock, in milliseconds.
    ahead: u64,
    /// Frame decoders by link.
    decoders: BTreeMap<Link, cobs::Decoder<FRAME>>,
}

impl Controller {
    fn clock(&self, now: u64) -> u64 {
        now - self.started + self.ahead
    }
}

struct Packet {
    device: usize,
    link: Link,
    up: bool,
    bytes: Vec<u8>,
}

/// Hash of all events, which are printed if `verbose`.
struct Trace {
    hash: u64,
    verbose: bool,
}

impl Trace {
    fn note(&mut self, now: u64, what: impl FnOnce() -> String, bytes: &[u8]) {
        if self.verbose {
            let hex: String = bytes.iter().take(48).map(|byte| format!("{byte:02x}")).collect();
            println!("{now:>8} {} {hex}", what());
        }
        // FNV-1a.
        for byte in now.to_le_bytes().iter().chain(bytes) {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

impl Scenario {
    pub(super) fn new(seed: u64, verbose: bool) -> Result<Self, Violation> {
        let mut rng = TestRng::new(seed, 0);
        let agents = rng.within(3, 9) as u32;
        let run = (seed & 0x7fff_ffff).max(1) as u32;
        let master = MasterKey::from_bytes(&[7; 32]).ok_or("invalid master key")?;
        let hostile = rng.below(u64::from(agents).div_ceil(2)) as u32;
        let mut registry = Registry::new(FLEET, run, D as u8);
        let mut devices = Vec::new();
        for agent in 1..=agents {
            let role = match agent {
                _ if agent <= hostile => Role::Hostile,
                _ if rng.per_mille(80) => Role::Revoked,
                _ if rng.per_mille(300) => Role::Forgetful,
                _ => Role::Durable,
            };
            let (sealed, revoked) = (rng.per_mille(400), role == Role::Revoked);
            let enrolled = EnrolledDevice { sealed, revoked, ..EnrolledDevice::new(agent) };
            devices.push(Device::new(&registry, &master, &enrolled, role, TestRng::new(seed, u64::from(agent))));
            registry.devices.push(enrolled);
        }
        let mut timing = StartOptions::new(rng.within(1, 8) * 1_000, rng.below(4) as u32, 1_000_000);
        timing.snapshots = snapshots(&mut rng);
        let episodes = rng.within(3, 24) as u32;
        let config = config(&mut rng, episodes);
        let terms = terms(&config, &registry, timing)?;
        let identities = registry.devices.iter().map(|device| (registry.identity(device, &master), device.revoked));
        let oracle = Oracle::new(terms, identities);
        let disk = Disk::with_store();
        let quiet_from = u64::from(episodes) * timing.time_limit * rng.within(3, 9) / 10;
        let next_run_at = rng.per_mille(400).then(|| rng.below(2 * quiet_from));
        let mut scenario = Self {
            rates: Rates::draw(&mut rng),
            rng,
            now: 0,
            quiet_from,
            limit: quiet_from.max(next_run_at.unwrap_or(0)) + RECOVERY_LIMIT,
            next_run_at,
            config,
            registry,
            master,
            timing,
            oracle,
            disk,
            controller: None,
            start_at: 0,
            links: vec![(Link(0), 0); devices.len()],
            devices,
            next_link: 1,
            in_flight: BTreeMap::new(),
            sent: 0,
            recorded: Vec::new(),
            trace: Trace { hash: 0xcbf2_9ce4_8422_2325, verbose },
            outcome: Outcome::default(),
        };
        scenario.store_key()?;
        if verbose {
            println!("{agents} agents, {hostile} hostile, {episodes} episodes, {:?}", scenario.timing);
            println!("faults until {quiet_from}, next run at {next_run_at:?}");
            println!(
                "{:?}, private: {}, {:?}",
                scenario.config.aggregator,
                scenario.config.privacy.is_some(),
                scenario.rates
            );
        }
        Ok(scenario)
    }

    /// Stores a fixed noise key, so that the same seed gives the same run.
    fn store_key(&mut self) -> Result<(), Violation> {
        let key: Vec<u8> = (0..NOISE_KEY.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&NOISE_KEY[at..at + 2], 16).unwrap_or_default())
            .collect();
        let mut store = File::on(self.disk.clone()).map_err(|error| error.to_string())?;
        let mut store = Watched { store: &mut store, oracle: &mut self.oracle };
        store.set_value("run-key", &key).map_err(|error| error.to_string())
    }

    pub(super) fn run(mut self) -> Result<Outcome, Violation> {
        while !self.is_done() {
            if self.now > self.limit {
                return Err("the run does not complete after the last fault".into());
            }
            self.now = self.next_time();
            if self.next_run_at.is_some_and(|at| self.now >= at) {
                self.begin_next_run()?;
            }
            if self.now >= self.quiet_from {
                self.disk.clear_faults();
            } else {
                self.inject_faults();
                if self.rng.per_mille(2) {
                    self.enroll()?;
                }
            }
            self.run_devices()?;
            self.deliver()?;
            self.serve()?;
        }
        self.replay()?;
        let (episodes, summaries) = self.oracle.counts();
        self.outcome.episodes = episodes as u64;
        self.outcome.summaries = summaries as u64;
        self.outcome.checked = self.oracle.checked;
        self.outcome.snapshots = self.oracle.snapshots;
        self.outcome.seconds = self.now / 1000;
        self.outcome.trace = self.trace.hash;
        Ok(self.outcome)
    }

    /// Returns the time of the next step. Once the run is over, it is the time of the next event.
    fn next_time(&self) -> u64 {
        let soon = self.now + STEP;
        if self.now < self.quiet_from || !self.is_over() {
            return soon;
        }
        let arrival = self.in_flight.keys().next().map(|(at, _)| *at);
        let wakes = self.devices.iter().map(|device| device.wake_at(self.now, self.timing.time_limit));
        wakes.chain(arrival).chain(self.next_run_at).min().map_or(soon, |at| at.max(soon))
    }

    fn is_over(&self) -> bool {
        self.controller.as_ref().is_some_and(|controller| controller.service.is_finished())
    }

    /// Returns true if all episodes are closed, and every honest device is in this run and has an answer to each of its
    /// summaries.
    fn is_done(&self) -> bool {
        let is_settled = |device: &Device| device.is_drained() && device.run() == self.registry.run;
        let is_last = self.next_run_at.is_none() && self.now >= self.quiet_from;
        is_last && self.is_over() && self.devices.iter().filter(|device| device.is_honest()).all(is_settled)
    }

    /// Replaces the service by that of the next run: a new store, the same devices and keys. Devices have to find out.
    fn begin_next_run(&mut self) -> Result<(), Violation> {
        self.trace.note(self.now, || "the next run begins".into(), &[]);
        self.outcome.next_runs += 1;
        (self.next_run_at, self.controller) = (None, None);
        if self.oracle.is_over() {
            // Devices ask again after the wait, up to 1/16 of it and a second.
            self.limit += WAIT_AFTER_END + WAIT_AFTER_END / 16 + 1_000;
        }
        self.registry = self.next_registry()?;
        let terms = terms(&self.config, &self.registry, self.timing)?;
        self.oracle.next_run(terms);
        self.disk = Disk::with_store();
        self.start_at = self.now + self.rng.below(4_000);
        self.store_key()
    }

    /// Returns the registry of the next run, which continues this one in half of the scenarios that have a model by now.
    fn next_registry(&mut self) -> Result<Registry, Violation> {
        match Continuation::of(&self.oracle.copy()?, self.registry.devices.len(), 0.5) {
            Ok(continues) if self.rng.per_mille(500) => {
                self.outcome.continued += 1;
                self.registry.next_run(continues).ok_or_else(|| "no run numbers left".into())
            }
            Ok(_) | Err(StartError::NotBegun) => Ok(Registry { run: self.registry.run + 1, ..self.registry.clone() }),
            Err(error) => Err(format!("the run cannot be continued: {error}")),
        }
    }

    /// Replays the stored events into a new service, which must have the same state, noise included.
    fn replay(&mut self) -> Result<(), Violation> {
        let Some(controller) = &self.controller else { return Ok(()) };
        let mut copy = self.oracle.copy()?;
        let again = start(&mut copy, &self.config, &self.registry, &self.master, self.timing, 0);
        let again = again.map_err(|error| format!("the replay is refused: {error}"))?;
        if !again.is_finished() {
            return Err("the replayed run is not over".into());
        }
        let bits = |service: &StateMachine| -> Vec<u64> {
            let streams = service.controller().streams();
            streams.gram.values().iter().chain(streams.feature_sum.values()).map(|x| x.to_bits()).collect()
        };
        if bits(&again) != bits(&controller.service) {
            return Err("the replay gives other streams".into());
        }
        if again.fingerprint() != controller.service.fingerprint() {
            return Err("the replay gives another state".into());
        }
        Ok(())
    }

    // --- faults ---

    /// Enrolls a device if the run accepts devices. A service that is down finds it in the registry.
    fn enroll(&mut self) -> Result<(), Violation> {
        let (count, has_begun) = (self.registry.devices.len(), self.oracle.episode() > 0);
        let accepts = self.config.aggregator == AggregatorName::CappedFilter && has_begun && !self.oracle.is_over();
        if !accepts || count >= MOST_DEVICES {
            return Ok(());
        }
        let agent = count as u32 + 1;
        let enrolled = EnrolledDevice { sealed: self.rng.per_mille(400), ..EnrolledDevice::new(agent) };
        let identity = self.registry.identity(&enrolled, &self.master);
        let rng = TestRng::new(self.trace.hash, u64::from(agent));
        self.devices.push(Device::new(&self.registry, &self.master, &enrolled, Role::Durable, rng));
        self.registry.devices.push(enrolled);
        self.links.push((Link(0), 0));
        self.oracle.enrolled(identity.clone());
        self.outcome.enrolled += 1;
        self.trace.note(self.now, || format!("device {agent} is enrolled"), &[]);
        if let Some(controller) = &mut self.controller {
            controller.service.enroll(identity, false).map_err(|error| error.to_string())?;
            self.connect(count);
        }
        Ok(())
    }

    fn inject_faults(&mut self) {
        for index in 0..self.devices.len() {
            if self.rng.per_mille(self.rates.cut_off) {
                self.links[index].1 = self.now + self.rng.within(100, 20_000);
                self.trace.note(self.now, || format!("device {index} is disconnected"), &[]);
            }
            if self.rng.per_mille(self.rates.reconnect) {
                self.connect(index);
            }
            if self.rng.per_mille(self.rates.device_restart) {
                self.outcome.restarts += 1;
                self.trace.note(self.now, || format!("device {index} restarts"), &[]);
                self.devices[index].restart(self.now);
                self.connect(index);
            }
            if self.rng.per_mille(self.rates.jump) {
                self.devices[index].ahead += self.rng.below(120_000);
            }
        }
        if self.rng.per_mille(self.rates.replayed) && !self.recorded.is_empty() {
            let (device, up, bytes) = self.rng.pick(&self.recorded).clone();
            self.outcome.replays += 1;
            self.transmit(device, up, bytes);
        }
        if self.rng.per_mille(self.rates.disk) {
            let fault = *self.rng.pick(&[DiskFault::PowerCut, DiskFault::Error, DiskFault::Full]);
            self.disk.inject(self.rng.below(60), fault);
        }
        if self.controller.is_some() && self.rng.per_mille(self.rates.crash) {
            self.crash();
        }
        let jump = self.rng.per_mille(self.rates.jump).then(|| self.rng.below(30_000));
        if let (Some(controller), Some(jump)) = (&mut self.controller, jump) {
            controller.ahead += jump;
        }
        if self.rng.per_mille(self.rates.jump) {
            // The wall clock jumps forwards or backwards.
            self.timing.unix_seconds = self.rng.below(2_000_000) as u32;
        }
    }

    /// Kills the service, or its machine.
    fn crash(&mut self) {
        let tail = *self.rng.pick(&Tail::ALL);
        self.trace.note(self.now, || format!("the service is killed, tail {tail:?}"), &[]);
        self.disk = self.disk.after_power_cut(tail, &mut self.rng);
        self.controller = None;
        self.start_at = self.now + self.rng.below(4_000);
    }

    /// Gives a device a new connection.
    fn connect(&mut self, index: usize) {
        let (link, _) = self.links[index];
        if let Some(controller) = &mut self.controller {
            controller.service.remove_link(link);
            controller.decoders.remove(&link);
        }
        self.links[index].0 = Link(self.next_link);
        self.devices[index].connect(self.now);
        self.next_link += 1;
    }

    // --- network ---

    /// Sends a frame, which may be lost, duplicated, delayed or damaged, and is recorded.
    fn send(&mut self, device: usize, up: bool, frame: &[u8]) {
        let bytes: Vec<u8> = cobs::encode(frame).collect();
        if self.recorded.len() < RECORDED {
            self.recorded.push((device, up, bytes.clone()));
        } else {
            let place = self.rng.below(RECORDED as u64) as usize;
            self.recorded[place] = (device, up, bytes.clone());
        }
        let (_, cut_off_until) = self.links[device];
        let quiet = self.now >= self.quiet_from;
        if !quiet && (self.now < cut_off_until || self.rng.per_mille(self.rates.lost)) {
            self.outcome.frame_faults += 1;
            return;
        }
        let copies = if !quiet && self.rng.per_mille(self.rates.duplicated) { 2 } else { 1 };
        for copy in 0..copies {
            let mut bytes = bytes.clone();
            if !quiet && self.rng.per_mille(self.rates.damaged) {
                self.outcome.frame_faults += 1;
                damage(&mut bytes, &mut self.rng);
            }
            self.outcome.frame_faults += u64::from(copy > 0);
            self.transmit(device, up, bytes);
        }
    }

    /// Sends bytes over the connection of a device.
    fn transmit(&mut self, device: usize, up: bool, bytes: Vec<u8>) {
        let most = if self.now >= self.quiet_from { 50 } else { self.rates.delay.max(50) };
        let delay = self.rng.within(1, most);
        let link = self.links[device].0;
        self.sent += 1;
        self.in_flight.insert((self.now + delay, self.sent), Packet { device, link, up, bytes });
    }

    fn deliver(&mut self) -> Result<(), Violation> {
        while let Some(entry) = self.in_flight.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let Packet { device, link, up, bytes } = entry.remove();
            if self.links[device].0 != link {
                // Sent over an earlier connection.
                continue;
            }
            let way = if up { "from" } else { "to" };
            self.trace.note(self.now, || format!("{way} device {device}:"), &bytes);
            if !up {
                self.deliver_to_device(device, &bytes)?;
                continue;
            }
            let Some(controller) = &mut self.controller else { continue };
            let clock = controller.clock(self.now);
            let decoder = controller.decoders.entry(link).or_default();
            for byte in bytes {
                if let Some(frame) = decoder.push(byte) {
                    self.oracle.received(frame);
                    let _ = controller.service.handle_frame(link, frame, clock);
                }
            }
        }
        Ok(())
    }

    fn deliver_to_device(&mut self, index: usize, bytes: &[u8]) -> Result<(), Violation> {
        let device = &mut self.devices[index];
        for (run, event) in device.receive(bytes, self.now)? {
            match event {
                Event::Acknowledged { episode, fate } if fate.counts() && device.is_honest() => {
                    self.oracle.check_counting(device.number, run, episode)?;
                }
                Event::NextRun { .. } => {
                    self.outcome.moves += 1;
                    self.trace.note(self.now, || format!("device {index}: {event:?}"), &[]);
                }
                _ => {}
            }
        }
        Ok(())
    }

    // --- devices ---

    fn run_devices(&mut self) -> Result<(), Violation> {
        let mut made = Vec::new();
        for index in 0..self.devices.len() {
            let device = &mut self.devices[index];
            if let Some(frame) = device.step(self.now, self.timing.time_limit, &mut made) {
                self.oracle.sent_by_device(device.number, &frame)?;
                self.send(index, true, &frame);
                for hostile in self.devices.iter_mut().filter(|device| device.role == Role::Hostile) {
                    hostile.overhear(&frame);
                }
            }
            let device = &mut self.devices[index];
            if device.role == Role::Hostile && self.now < self.quiet_from && self.rng.per_mille(self.rates.abuse) {
                let (episode, agents) = (self.oracle.episode(), self.registry.devices.len() as u32);
                let (frame, times) = device.abuse(self.registry.run, episode, agents, &mut made);
                self.outcome.abuses += times;
                (0..times).for_each(|_| self.send(index, true, &frame));
            }
            made.drain(..).for_each(|made| self.oracle.made(made));
        }
        Ok(())
    }

    // --- the service ---

    fn serve(&mut self) -> Result<(), Violation> {
        if self.controller.is_none() && self.now >= self.start_at {
            self.start()?;
        }
        if let Some(controller) = &self.controller {
            self.oracle.clock = controller.clock(self.now);
        }
        // A transport may poll at any time: no frame may depend on an event that is not stored.
        if self.rng.per_mille(300) {
            self.send_answers()?;
        }
        let Some(controller) = &mut self.controller else { return Ok(()) };
        let clock = controller.clock(self.now);
        let Controller { service, store, .. } = controller;
        let mut store = Watched { store, oracle: &mut self.oracle };
        match commit_and_tick(service, &mut store, clock) {
            Ok(()) => self.oracle.settled(service)?,
            Err(error) => {
                if !self.disk.had_fault() {
                    return Err(format!("the service ends without a disk fault: {error}"));
                }
                self.oracle.verdict()?;
                // Frames that are still queued must not depend on events that are not stored.
                while let Some(outgoing) = service.poll() {
                    self.oracle.sent(&outgoing)?;
                }
                self.outcome.disk_faults += 1;
                self.trace.note(self.now, || format!("the service ends: {error}"), &[]);
                self.crash();
                return Ok(());
            }
        }
        self.send_answers()?;
        self.oracle.answered()?;
        self.store_snapshot()
    }

    fn store_snapshot(&mut self) -> Result<(), Violation> {
        let Some(Controller { service, store, .. }) = &mut self.controller else { return Ok(()) };
        let mut store = Watched { store, oracle: &mut self.oracle };
        if let Err(error) = store_snapshot(service, &mut store) {
            if !self.disk.had_fault() {
                return Err(format!("the service ends without a disk fault: {error}"));
            }
            self.outcome.disk_faults += 1;
            self.trace.note(self.now, || format!("the service ends: {error}"), &[]);
            self.crash();
        }
        self.oracle.verdict()
    }

    /// Sends the queued frames of the service.
    fn send_answers(&mut self) -> Result<(), Violation> {
        while let Some(outgoing) = self.controller.as_mut().and_then(|controller| controller.service.poll()) {
            self.oracle.sent(&outgoing)?;
            if let Some(device) = self.links.iter().position(|(link, _)| *link == outgoing.link) {
                self.send(device, false, &outgoing.frame);
            }
        }
        Ok(())
    }

    fn start(&mut self) -> Result<(), Violation> {
        self.outcome.starts += 1;
        match self.open()? {
            Ok((service, store)) => {
                self.trace.note(self.now, || "the service starts".into(), &[]);
                self.oracle.started();
                let (started, ahead) = (self.now, 0);
                self.controller = Some(Controller { service, store, started, ahead, decoders: BTreeMap::new() });
                // All connections are new.
                (0..self.devices.len()).for_each(|index| self.connect(index));
                Ok(())
            }
            Err(error) if self.disk.had_fault() => {
                self.outcome.disk_faults += 1;
                self.trace.note(self.now, || format!("the service does not start: {error}"), &[]);
                self.crash();
                Ok(())
            }
            Err(error) => Err(format!("the service does not start: {error}")),
        }
    }

    /// Opens the store and starts a service. A failure because of a disk fault is the inner error.
    fn open(&mut self) -> Result<Result<(StateMachine, File), String>, Violation> {
        let mut store = match File::on(self.disk.clone()) {
            Ok(store) => store,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let read = self.oracle.reopened(&store);
        if let (Err(error), true) = (&read, self.disk.had_fault()) {
            return Ok(Err(error.clone()));
        }
        read?;
        let mut watched = Watched { store: &mut store, oracle: &mut self.oracle };
        let service = start(&mut watched, &self.config, &self.registry, &self.master, self.timing, 0);
        Ok(service.map(|service| (service, store)).map_err(|error| error.to_string()))
    }
}

/// Truncates, extends or changes some bytes.
fn damage(bytes: &mut Vec<u8>, rng: &mut TestRng) {
    match rng.below(4) {
        0 => bytes.truncate(rng.below(bytes.len() as u64) as usize),
        1 => bytes.extend((0..rng.within(1, 9)).map(|_| rng.below(256) as u8)),
        _ => {
            for _ in 0..rng.within(1, 3) {
                let place = rng.below(bytes.len() as u64) as usize;
                bytes[place] ^= 1 << rng.below(8);
            }
        }
    }
}

/// Snapshots after at least no, little or too much data, which keep all summaries or those of a few episodes.
fn snapshots(rng: &mut TestRng) -> SnapshotPolicy {
    let least_bytes = *rng.pick(&[0, 300, 2_000, u64::MAX]);
    let retain = rng.per_mille(600).then(|| rng.below(4) as u32);
    SnapshotPolicy { least_bytes, ratio: rng.below(2), most_seconds: rng.within(1, 1_000_000), retain }
}

fn config(rng: &mut TestRng, episodes: u32) -> RunConfig {
    let private = rng.per_mille(400);
    let rules = [AggregatorName::GeometricMedian, AggregatorName::MedianOfMeans, AggregatorName::CappedFilter];
    let aggregator = *rng.pick(if private { &rules[..2] } else { &rules });
    // Little noise, so that a message too many or too few shows.
    let privacy: Option<Privacy> = private.then(|| "10000,0.1".parse().expect("a valid budget"));
    let mechanism = match rng.below(4) {
        0 => Mechanism::Honaker,
        1 => Mechanism::Blt,
        _ => Mechanism::Tree,
    };
    RunConfig {
        steps: episodes * EPISODE_LEN,
        episode_len: Some(EPISODE_LEN),
        first_episode: Some(EPISODE_LEN),
        first_episodes: Some(1),
        admission: Some(Level::Strict),
        rewards: RewardKind::Bounded,
        aggregator,
        privacy,
        mechanism,
        ..RunConfig::default()
    }
}

fn terms(config: &RunConfig, registry: &Registry, timing: StartOptions) -> Result<RunTerms, Violation> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let private = config.privacy.is_some();
    let admission = Admission::new(Level::Strict, D, EPISODE_LEN, Some(1.0), private).map_err(|error| text(&error))?;
    let setting = ControllerConfig {
        dimension: D as u8,
        episodes: Episodes::new(config.steps, EPISODE_LEN, EPISODE_LEN).map_err(|error| text(&error))?,
        level: Level::Strict,
        reward_bound: Some(1.0),
        window: timing.window,
        half_life: None,
    };
    let plan = |privacy: Privacy| Plan::new(&setting, privacy.0, config.mechanism, registry.run.into());
    let plan = config.privacy.map(plan).transpose().map_err(|error| text(&error))?;
    Ok(RunTerms {
        run: registry.run,
        agents: registry.devices.iter().map(|device| device.agent).collect(),
        window: timing.window,
        time_limit: timing.time_limit,
        episodes: setting.episodes.count(),
        admission,
        plan,
        retain: timing.snapshots.retain,
        is_papers_rule: config.aggregator != AggregatorName::CappedFilter,
    })
}
