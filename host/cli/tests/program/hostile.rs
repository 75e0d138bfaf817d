//! Four in ten of the enrolled devices run every attack and every abuse of the protocol at once against the service.
//! `FEDBANDIT_SECONDS` sets a minimum duration.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::broker::{ANYBODY, Broker};
use crate::process::wait_until;
use crate::test_fleet::Fleet;
use fedbandit::config::RunConfig;
use fedbandit::simulation::virtual_device;
use fedbandit::simulation::{Attack, Colluders, Logs, SimulationConfig};
use fedbandit_core::wire::{Channel, Fate, Identity, Message, SummaryMessage, cobs, max_frame_len};
use fedbandit_core::{Values, packed_len};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

const D: usize = 4;
const FRAME: usize = max_frame_len(D);
const HONEST: u32 = 24;
const HOSTILE: u32 = 16;
const EPISODE_LEN: u32 = 64;
/// Episodes of the honest devices between two starts: without a minimum duration, and with one.
const EPISODES: (u32, u32) = (20, 100);
/// Limit of the resident memory of the service, in kilobytes.
const MEMORY: u64 = 96 << 10;
/// Limits of the log: lines per episode, and lines beside.
const LINES: (usize, usize) = (4, 20);
/// Connections that a hostile device holds open and feeds byte by byte.
const DRIBBLING: usize = 12;

/// Attacks of each hostile device, in turn by episode. Summaries accumulate, so the attacks of one device are alike: some
/// add nothing, others pull as hard as possible. `asymmetric` is missing, because a frame has only one triangle of U.
const ATTACKS: [&[Attack]; HOSTILE as usize] = [
    &[Attack::Zero, Attack::NonFinite, Attack::NonPsd, Attack::Silent],
    &[Attack::Huge, Attack::Collude, Attack::Intermittent],
    &[Attack::SignFlip],
    &[Attack::FakeParameter],
    &[Attack::ALittleIsEnough],
    &[Attack::InnerProduct],
    &[Attack::MinMax],
    &[Attack::Mimic],
    &[Attack::GramInflate, Attack::Claim],
    &[Attack::GramDeflate],
    &[Attack::WeakDirection],
    &[Attack::Replay],
    &[Attack::Sleeper],
    &[Attack::Adaptive],
    &[Attack::Optimal],
    &[Attack::OptimalSleeper],
];

/// An attack, and its summary unless it was silent.
type Lie = (Attack, Option<Vec<f32>>);

/// State that the hostile devices share.
struct Gang {
    address: String,
    broker: u16,
    stop: AtomicBool,
    /// Episode in which sleepers wake.
    awake: u32,
    /// Lies by (agent, episode).
    lies: Mutex<BTreeMap<(u32, u32), Lie>>,
    abuses: [AtomicU64; ABUSES.len()],
}

fn stuffed(frame: &[u8]) -> Vec<u8> {
    cobs::encode(frame).collect()
}

/// The device's and the controller's end of a channel in run 1.
fn ends(identity: &Identity) -> [Channel; 2] {
    let mut device = Channel::device(identity.clone(), 1);
    device.enter_run(1);
    [device, Channel::controller(identity.clone(), 1, 1)]
}

fn encode(identity: &Identity, message: &Message<'_>) -> Vec<u8> {
    let [device, _] = ends(identity);
    encode_with(device, message)
}

fn encode_with(mut channel: Channel, message: &Message<'_>) -> Vec<u8> {
    let mut frame = vec![0; max_frame_len(64)];
    let length = channel.encode(message, &mut frame).unwrap();
    frame.truncate(length);
    frame
}

const HELLO: Message<'static> = Message::Hello { model: 0, boot: 1, challenge: 1 };

fn summary(identity: &Identity, episode: u32, values: &[f32]) -> Vec<u8> {
    let (gram, feature_sum) = values.split_at(packed_len(identity.dimension().into()));
    let (gram, feature_sum) = (Values::Native(gram), Values::Native(feature_sum));
    encode(
        identity,
        &Message::Summary(SummaryMessage { episode, steps: EPISODE_LEN, reward_sum: 0.0, gram, feature_sum }),
    )
}

impl Gang {
    fn connect(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_write_timeout(Some(Duration::from_millis(200)))?;
        stream.set_read_timeout(Some(Duration::from_millis(5)))?;
        Ok(stream)
    }

    fn runs(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// A hostile device that takes part and lies.
struct Liar<'a> {
    gang: &'a Gang,
    identity: &'a Identity,
    /// Attacks, in turn by episode.
    colluders: Vec<(Attack, Colluders)>,
    /// Its frames of the last episodes.
    frames: BTreeMap<u32, Vec<Vec<u8>>>,
}

impl<'a> Liar<'a> {
    fn new(gang: &'a Gang, identity: &'a Identity) -> Self {
        let colluders = |attack: &Attack| {
            let steps = 2 * EPISODE_LEN * (gang.awake - 1);
            let (agents, first_episode) = ((HONEST + HOSTILE) as usize, Some(EPISODE_LEN));
            let run = RunConfig { agents, dim: D, steps, first_episode, ..RunConfig::default() };
            let config = SimulationConfig { run, corrupt: 0.4, attack: *attack, ..SimulationConfig::default() };
            (*attack, Colluders::new(&config, HONEST as usize, 1).unwrap())
        };
        let colluders = ATTACKS[(identity.agent() - HONEST - 1) as usize].iter().map(colluders).collect();
        Self { gang, identity, colluders, frames: BTreeMap::new() }
    }

    /// Makes up the frames of a model's episode.
    fn invent(&mut self, frame: &[u8]) {
        let ([device, _], mut frame) = (ends(self.identity), frame.to_vec());
        let Ok(Message::Model(model)) = device.decode(&mut frame) else { return };
        let episode = model.episode;
        if self.frames.last_key_value().is_some_and(|(last, _)| *last >= episode) {
            return;
        }
        let turn = episode as usize % self.colluders.len();
        let (attack, colluders) = &mut self.colluders[turn];
        let lies = colluders.messages(model).swap_remove((self.identity.agent() - HONEST - 1) as usize);
        let frames = lies.iter().map(|(episode, forged)| summary(self.identity, *episode, &forged.to_f32())).collect();
        self.frames.insert(episode, frames);
        if self.frames.len() > 4 {
            self.frames.pop_first();
        }
        if !matches!(attack, Attack::Sleeper | Attack::OptimalSleeper) || episode >= self.gang.awake {
            let lie = lies.last().map(|(_, forged)| forged.to_f32());
            self.gang.lies.lock().unwrap().insert((self.identity.agent(), episode), (*attack, lie));
        }
    }

    /// Replaces a frame of an honest device. If the lie is silence, returns an acknowledgement for the honest device.
    fn instead(&self, frame: &[u8], spoke: &AtomicU32) -> Result<Vec<Vec<u8>>, Vec<u8>> {
        let ([_, controller], mut copy) = (ends(self.identity), frame.to_vec());
        let Ok(Message::Summary(honest)) = controller.decode(&mut copy) else { return Ok(vec![frame.to_vec()]) };
        let frames = self.frames.get(&honest.episode).filter(|frames| !frames.is_empty());
        let episode = honest.episode;
        let nothing = || {
            let [_, controller] = ends(self.identity);
            encode_with(controller, &Message::Ack { episode, fate: Fate::Counts, wait: 0 })
        };
        let frames = frames.cloned().ok_or_else(nothing)?;
        spoke.fetch_max(episode, Ordering::Relaxed);
        Ok(frames)
    }

    /// Takes part as a device does, and lies. `spoke` is the last episode with a lie.
    fn run(&mut self, spoke: &AtomicU32) {
        let config = SimulationConfig { attack: Attack::None, ..SimulationConfig::default() };
        let mut device = virtual_device(self.identity.clone(), 1, &config, &Logs::new(), 1).unwrap();
        let start = Instant::now();
        while self.gang.runs() {
            let Ok(mut stream) = self.gang.connect() else { continue };
            device.link_up(start.elapsed().as_millis() as u64);
            let mut decoder = cobs::Decoder::<FRAME>::new();
            let mut buffer = [0; 512];
            while self.gang.runs() {
                let now = start.elapsed().as_millis() as u64;
                device.run_episode(now, 5_000);
                let mut sent = Ok(());
                while let Some(frame) = device.poll(now) {
                    match self.instead(frame, spoke) {
                        Ok(frames) => {
                            let mut frames = frames.iter();
                            sent = sent.and(frames.try_for_each(|frame| stream.write_all(&stuffed(frame))));
                        }
                        Err(mut acknowledged) => drop(device.handle(&mut acknowledged, now)),
                    }
                }
                match stream.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(read) => buffer[..read].iter().for_each(|byte| {
                        let Some(frame) = decoder.push(*byte) else { return };
                        self.invent(frame);
                        let _ = device.handle(frame, now);
                    }),
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                    Err(_) => break,
                }
                if sent.is_err() {
                    break;
                }
            }
        }
    }
}

/// A hostile device that abuses the protocol.
struct Abuser {
    gang: Arc<Gang>,
    identity: Identity,
    key: [u8; 32],
    /// Last episode in which the device lied.
    spoke: Arc<AtomicU32>,
    rng: Pcg64,
    /// Its frames of former episodes.
    recorded: VecDeque<Vec<u8>>,
    /// Connections that it feeds byte by byte.
    dribbling: VecDeque<TcpStream>,
}

type Abuse = fn(&mut Abuser) -> std::io::Result<()>;

const ABUSES: [(&str, Abuse); 16] = [
    ("garbage", Abuser::garbage),
    ("half frames", Abuser::half_frames),
    ("floods", Abuser::flood),
    ("replays", Abuser::replay),
    ("slow-loris", Abuser::dribble),
    ("wrong episodes", Abuser::wrong_episodes),
    ("other agents' ids", Abuser::other_names),
    ("frames without an end", Abuser::endless),
    ("wrong tags", Abuser::wrong_tags),
    ("wrong types, versions and dimensions", Abuser::wrong_kinds),
    ("connect and drop", Abuser::connect_and_drop),
    ("never reading", Abuser::never_read),
    ("not numbers", Abuser::not_numbers),
    ("garbage through the broker", Abuser::publish_garbage),
    ("floods through the broker", Abuser::publish_flood),
    ("others' topics at the broker", Abuser::publish_for_others),
];

impl Abuser {
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.rng.next_u32() as u8).collect()
    }

    fn episode(&self) -> u32 {
        self.spoke.load(Ordering::Relaxed)
    }

    /// Encodes a summary with small values.
    fn summary(&mut self, episode: u32) -> Vec<u8> {
        let values: Vec<f32> = (0..packed_len(D) + D).map(|_| (self.rng.next_u32() % 100) as f32 / 100.0).collect();
        summary(&self.identity, episode, &values)
    }

    fn send(&self, frames: &[Vec<u8>]) -> std::io::Result<()> {
        let mut stream = self.gang.connect()?;
        frames.iter().try_for_each(|frame| stream.write_all(&stuffed(frame)))
    }

    fn garbage(&mut self) -> std::io::Result<()> {
        let bytes = self.bytes(20_000);
        self.gang.connect()?.write_all(&bytes)
    }

    fn half_frames(&mut self) -> std::io::Result<()> {
        let frame = stuffed(&self.summary(self.episode()));
        (0..8).try_for_each(|cut| self.gang.connect()?.write_all(&frame[..frame.len() * (cut + 1) / 9]))
    }

    fn flood(&mut self) -> std::io::Result<()> {
        let frame = encode(&self.identity, &HELLO);
        self.send(&vec![frame; 2_000])
    }

    fn replay(&mut self) -> std::io::Result<()> {
        let new = self.summary(self.episode());
        self.recorded.push_back(new);
        if self.recorded.len() > 64 {
            self.recorded.pop_front();
        }
        self.send(&self.recorded.iter().cloned().collect::<Vec<_>>())
    }

    fn dribble(&mut self) -> std::io::Result<()> {
        self.dribbling.push_back(self.gang.connect()?);
        while self.dribbling.len() > DRIBBLING {
            self.dribbling.pop_front();
        }
        self.dribbling.retain_mut(|stream| stream.write_all(&[7]).is_ok());
        Ok(())
    }

    fn wrong_episodes(&mut self) -> std::io::Result<()> {
        let now = self.episode();
        let episodes = [0, 1, now.saturating_sub(10), now + 2, now + 5, now + 100, u32::MAX];
        let frames = episodes.map(|episode| self.summary(episode));
        self.send(&frames)
    }

    fn other_names(&mut self) -> std::io::Result<()> {
        let names = [0, 1, 2, HONEST, HONEST + HOSTILE + 1, u32::MAX, self.rng.next_u32()];
        let own = self.identity.clone();
        let frames = names.map(|agent| {
            self.identity = Identity::new(1, agent, D as u8, self.key);
            self.summary(self.episode())
        });
        self.identity = own;
        self.send(&frames)
    }

    fn endless(&mut self) -> std::io::Result<()> {
        self.gang.connect()?.write_all(&vec![255; 1_000_000])
    }

    fn wrong_tags(&mut self) -> std::io::Result<()> {
        let frames = [0; 24].map(|_| {
            let mut frame = self.summary(self.episode());
            let at = self.rng.next_u32() as usize % frame.len();
            frame[at] ^= 1 << (self.rng.next_u32() % 8);
            frame
        });
        self.send(&frames)
    }

    fn wrong_kinds(&mut self) -> std::io::Result<()> {
        let [small, large] = [2, 64].map(|dimension| Identity::new(1, self.identity.agent(), dimension, self.key));
        let episode = self.episode();
        let frames = [
            summary(&small, episode, &[0.5; 5]),
            summary(&large, episode, &vec![0.5; packed_len(64) + 64]),
            encode(&self.identity, &Message::Ack { episode, fate: Fate::Counts, wait: 0 }),
            self.identity.to_blob().to_vec(),
            vec![0x82; FRAME],
            vec![1; FRAME],
        ];
        self.send(&frames)
    }

    fn connect_and_drop(&mut self) -> std::io::Result<()> {
        (0..32).try_for_each(|_| self.gang.connect().map(drop))
    }

    /// Asks for models without reading them.
    fn never_read(&mut self) -> std::io::Result<()> {
        let stream = self.gang.connect()?;
        let hello = stuffed(&encode(&self.identity, &HELLO));
        (0..60).try_for_each(|_| (&stream).write_all(&hello))?;
        self.dribbling.push_back(stream);
        Ok(())
    }

    fn not_numbers(&mut self) -> std::io::Result<()> {
        let values = [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE / 2.0];
        let frames = values.map(|value| summary(&self.identity, self.episode(), &[value; packed_len(D) + D]));
        self.send(&frames)
    }

    /// Publishes messages as an anonymous client of MQTT 3.1.1.
    fn publish(&self, messages: &[(String, Vec<u8>)]) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.gang.broker))?;
        stream.write_all(b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0")?;
        stream.read_exact(&mut [0; 4])?;
        for (topic, message) in messages {
            let topic = format!("fedbandit/v2/1/{topic}");
            let mut length = 2 + topic.len() + message.len();
            let mut packet = vec![0x30];
            while length > 127 {
                packet.push(length as u8 | 128);
                length >>= 7;
            }
            packet.push(length as u8);
            packet.extend((topic.len() as u16).to_be_bytes());
            stream.write_all(&[&packet, topic.as_bytes(), message].concat())?;
        }
        stream.write_all(&[0xe0, 0])
    }

    fn publish_garbage(&mut self) -> std::io::Result<()> {
        let topics =
            [format!("up/{}", self.identity.agent()), format!("state/{}", self.identity.agent()), "up/x".into()];
        let messages = [20, 300, 100_000].map(|length| topics.clone().map(|topic| (topic, self.bytes(length))));
        self.publish(&messages.concat())
    }

    fn publish_flood(&mut self) -> std::io::Result<()> {
        let frame = encode(&self.identity, &Message::Heartbeat { model: self.episode() });
        self.publish(&vec![(format!("up/{}", self.identity.agent()), frame); 500])
    }

    fn publish_for_others(&mut self) -> std::io::Result<()> {
        let summary = self.summary(self.episode());
        let frames = (0..=HONEST).map(|agent| (format!("up/{agent}"), summary.clone()));
        let states = (0..=HONEST).map(|agent| (format!("state/{agent}"), b"lost".to_vec()));
        self.publish(&frames.chain(states).collect::<Vec<_>>())
    }

    fn run(&mut self) {
        while self.gang.runs() {
            let which = self.rng.next_u32() as usize % ABUSES.len();
            // The service is expected to end the connection.
            let _ = ABUSES[which].1(self);
            self.gang.abuses[which].fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(u64::from(self.rng.next_u32() % 40)));
        }
    }
}

/// Returns the resident memory of a process, in kilobytes.
fn memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn hostile_devices_do_not_keep_others_from_learning() {
    let time = std::env::var("FEDBANDIT_SECONDS").map_or(0, |seconds| seconds.parse().unwrap());
    let episodes = if time == 0 { EPISODES.0 } else { EPISODES.1 };
    let fleet = Fleet::new("hostile", HONEST + HOSTILE);
    let broker = Broker::start(&fleet, ANYBODY);
    // More than the test can use.
    let steps = EPISODE_LEN * (10 * time as u32 + 1000);
    fleet.configure(&format!(
        "mqtt = \"{}\"\ndeadline = 1\nsteps = {steps}\nfirst-episode = {EPISODE_LEN}",
        broker.url()
    ));
    let mut service = fleet.serve_and_log("info", Stdio::piped());
    let log = service.process.0.stderr.take().unwrap();
    let lines = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lines);
    thread::spawn(move || BufReader::new(log).lines().for_each(|_| _ = counted.fetch_add(1, Ordering::Relaxed)));

    let gang = Arc::new(Gang {
        address: service.tcp().into(),
        broker: broker.port,
        stop: AtomicBool::new(false),
        // An episode takes about a second.
        awake: episodes.max(time as u32) / 2 + 1,
        lies: Mutex::default(),
        abuses: [const { AtomicU64::new(0) }; ABUSES.len()],
    });
    let began = Instant::now();
    let (mut samples, mut reports) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        for agent in HONEST + 1..=HONEST + HOSTILE {
            let (gang, identity, spoke) = (Arc::clone(&gang), fleet.identity(agent), Arc::new(AtomicU32::new(1)));
            let key = fleet.key(agent);
            let (others, abuser, heard) = (Arc::clone(&gang), identity.clone(), Arc::clone(&spoke));
            scope.spawn(move || Liar::new(&others, &identity).run(&spoke));
            scope.spawn(move || {
                let rng = Pcg64::seed_from_u64(agent.into());
                let (recorded, dribbling) = (VecDeque::new(), VecDeque::new());
                Abuser { gang, identity: abuser, key, spoke: heard, rng, recorded, dribbling }.run();
            });
        }
        // The hostile devices come first, so that they can fill what can be filled.
        wait_until("every abuse", || gang.abuses.iter().all(|count| count.load(Ordering::Relaxed) > 100));
        let arguments = format!("--count {HONEST} --episodes {episodes}");
        while reports.is_empty() || began.elapsed().as_secs() < time {
            let mut honest = fleet.devices(&service.devices[0], &arguments);
            while !honest.0.has_ended() {
                samples.push(memory(service.process.0.id()));
                thread::sleep(Duration::from_millis(200));
            }
            reports.push(honest.report());
        }
        gang.stop.store(true, Ordering::Relaxed);
    });
    let seconds = began.elapsed().as_secs();
    let status = service.status();
    let (early, late, most) = (samples[samples.len() / 10], samples[samples.len() - 1], samples.iter().max().unwrap());
    let (lines, closed) = (lines.load(Ordering::Relaxed), status["episode"].as_u64().unwrap() as usize - 1);
    let number = |report: &serde_json::Value, key: &str| report[key].as_f64().unwrap();
    let reached = reports.iter().map(|report| number(report, "late_mean_worth") / number(report, "late_mean_best"));
    let reached = reached.fold(f64::INFINITY, f64::min);
    let acknowledged: u64 = reports.iter().map(|report| report["acknowledged"].as_u64().unwrap()).sum();
    let sent = u64::from(HONEST * episodes) * reports.len() as u64;
    drop(service);
    // A lie counts if it is stored; silence counts if nothing is.
    let stored = fleet.summaries();
    let bits = |values: &Vec<f32>| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let mut lies: BTreeMap<Attack, [u64; 2]> = BTreeMap::new();
    for (at, (attack, lie)) in &*gang.lies.lock().unwrap() {
        let [told, counts] = lies.entry(*attack).or_default();
        *told += 1;
        *counts += u64::from(stored.get(at).map(bits) == lie.as_ref().map(bits));
    }

    println!("| seconds | {seconds} |");
    println!("| honest devices, hostile devices | {HONEST}, {HOSTILE} |");
    println!("| episodes that the service closed meanwhile | {closed} |");
    println!(
        "| episodes that each honest device lived through, starts | {}, {} |",
        episodes * reports.len() as u32,
        reports.len()
    );
    println!("| of their summaries acknowledged | {acknowledged} of {sent} |");
    println!("| what they reached of the best, in the second half after the worst of these starts | {reached:.3} |");
    for (attack, [told, counts]) in &lies {
        println!("| attack {attack}: lies, and how many of them count | {told}, {counts} |");
    }
    for ((what, _), count) in ABUSES.iter().zip(&gang.abuses) {
        println!("| abuses: {what} | {} |", count.load(Ordering::Relaxed));
    }
    println!(
        "| the service's memory after a tenth, at the end, at the most | {} MB, {} MB, {} MB |",
        early >> 10,
        late >> 10,
        most >> 10
    );
    println!("| lines logged, per episode | {:.2} |", lines as f64 / closed as f64);
    eprintln!("{status}");

    assert!(reached >= 0.9, "{reports:?}");
    assert!(acknowledged * 10 >= sent * 9, "{acknowledged} acknowledged of {sent}");
    assert!(2 * late <= 3 * early && *most <= MEMORY, "memory: {early}, {late}, at the most {most} kB");
    assert!(lines <= LINES.0 * closed + LINES.1, "{lines} lines in {closed} episodes");
    // Each abuse is counted under its reason.
    for reason in ["length", "unknown", "tag", "type", "version", "too-many"] {
        assert!(status["dropped"][reason].as_u64() > Some(0), "{reason}: {status}");
    }
    for fault in ["non-finite", "not-positive-semidefinite"] {
        assert!(status["faults"][fault].as_u64() > Some(0), "{fault}: {status}");
    }
    assert!(gang.abuses.iter().all(|count| count.load(Ordering::Relaxed) > 0));
    let sent = |attack: &&Attack| attack.is_by_agents() && !matches!(attack, Attack::None | Attack::Asymmetric);
    let all = Attack::ALL.iter().filter(sent);
    assert!(
        time == 0 || all.into_iter().all(|attack| lies.get(attack).is_some_and(|[_, counts]| *counts > 0)),
        "{lies:?}"
    );
}
