//! Four in ten of the enrolled devices run every attack and every abuse of the protocol at once, against the real program.
//! `FEDBANDIT_EPISODES` says for how long; an episode takes a second at the most.

mod fleet;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fedbandit::service::edge::edge;
use fedbandit::simulation::{Attack, Config, Logs, forged};
use fedbandit_core::wire::{Identity, Message, Summary, cobs, max_frame_len};
use fedbandit_core::{Values, packed_len};
use fleet::Fleet;
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

const D: usize = 4;
const FRAME: usize = max_frame_len(D);
const HONEST: u32 = 24;
const HOSTILE: u32 = 16;
const EPISODES: u32 = 20;
const EPISODE_LEN: u32 = 64;
/// What the service may have in memory, in kilobytes.
const MEMORY: u64 = 96 << 10;
/// Lines that it may log: in an episode, and beside.
const LINES: (usize, usize) = (4, 20);
/// By how much the hostile devices come first.
const HEAD_START: Duration = Duration::from_secs(4);
/// Connections that each hostile device holds open and feeds byte by byte.
const DRIBBLING: usize = 12;

/// What the hostile devices share.
struct Gang {
    address: String,
    stop: AtomicBool,
    /// What each of them would have sent honestly in the last episodes.
    honest: Mutex<BTreeMap<u32, BTreeMap<u32, Vec<f32>>>>,
    episode: AtomicU64,
    lies: AtomicU64,
    abuses: [AtomicU64; ABUSES.len()],
}

fn stuffed(frame: &[u8]) -> Vec<u8> {
    cobs::encode(frame).collect()
}

fn encode(identity: &Identity, message: &Message<'_>) -> Vec<u8> {
    let mut frame = vec![0; max_frame_len(identity.dimension.into())];
    let length = identity.encode(message, &mut frame).unwrap();
    frame.truncate(length);
    frame
}

fn summary(identity: &Identity, episode: u32, values: &[f32]) -> Vec<u8> {
    let (gram, feature_sum) = values.split_at(packed_len(identity.dimension.into()));
    let (gram, feature_sum) = (Values::Native(gram), Values::Native(feature_sum));
    encode(identity, &Message::Summary(Summary { episode, steps: EPISODE_LEN, reward_sum: 0.0, gram, feature_sum }))
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

    /// What a device sends instead of its honest summary: each in each episode by another attack.
    fn lie(&self, identity: &Identity, honest: &Summary<'_>) -> Option<Vec<u8>> {
        let Summary { episode, gram, feature_sum, .. } = *honest;
        let mut board = self.honest.lock().unwrap();
        let rows = board.entry(episode).or_default();
        rows.insert(identity.agent, gram.iter().chain(feature_sum.iter()).collect());
        let own = rows.keys().position(|agent| *agent == identity.agent).unwrap();
        let rows: Vec<Vec<f32>> = rows.values().cloned().collect();
        while board.len() > 4 {
            board.pop_first();
        }
        drop(board);
        self.episode.fetch_max(episode.into(), Ordering::Relaxed);
        self.lies.fetch_add(1, Ordering::Relaxed);
        // The last one reports nothing, ever.
        let turn = (identity.agent + episode) as usize % Attack::ALL.len();
        let attack = if identity.agent == HONEST + HOSTILE { Attack::Silent } else { Attack::ALL[turn] };
        forged(attack, EPISODE_LEN, D, &rows, own).map(|values| summary(identity, episode, &values))
    }
}

/// Takes part as a device does, and lies.
fn liar(gang: &Gang, identity: &Identity) {
    let config = Config { attack: Attack::None, ..Config::default() };
    let mut device = edge(identity.clone(), None, &config, &Logs::new(), 1).unwrap();
    let start = Instant::now();
    let mut frame = [0; FRAME];
    while gang.runs() {
        let Ok(mut stream) = gang.connect() else { continue };
        let mut decoder = cobs::Decoder::<FRAME>::new();
        let mut buffer = [0; 512];
        while gang.runs() {
            let now = start.elapsed().as_millis() as u64;
            device.live(now, 5_000);
            let mut sent = Ok(());
            while let Some(length) = device.poll(now, &mut frame) {
                let frame = &frame[..length];
                let lie = match identity.decode(frame) {
                    Ok(Message::Summary(honest)) => gang.lie(identity, &honest),
                    _ => Some(frame.to_vec()),
                };
                sent = sent.and(lie.map_or(Ok(()), |lie| stream.write_all(&stuffed(&lie))));
            }
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => buffer[..read].iter().for_each(|byte| {
                    let Some(frame) = decoder.push(*byte) else { return };
                    let _ = device.handle(frame, now);
                }),
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                }
                Err(_) => break,
            }
            if sent.is_err() {
                break;
            }
        }
    }
}

/// A hostile device's means beside its lies.
struct Abuser {
    gang: Arc<Gang>,
    identity: Identity,
    rng: Pcg64,
    /// Its frames of former episodes.
    recorded: VecDeque<Vec<u8>>,
    /// Connections that it feeds byte by byte.
    dribbling: VecDeque<TcpStream>,
}

type Abuse = fn(&mut Abuser) -> std::io::Result<()>;

const ABUSES: [(&str, Abuse); 13] = [
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
];

impl Abuser {
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.rng.next_u32() as u8).collect()
    }

    fn episode(&self) -> u32 {
        self.gang.episode.load(Ordering::Relaxed) as u32
    }

    /// A summary of an episode with small values.
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
        let frame = encode(&self.identity, &Message::Hello { episode: 1, boot: 1 });
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
        let episodes = [0, 1, now.saturating_sub(10), now + 1, now + 2, now + 100, u32::MAX];
        let frames = episodes.map(|episode| self.summary(episode));
        self.send(&frames)
    }

    fn other_names(&mut self) -> std::io::Result<()> {
        let names = [0, 1, 2, HONEST, HONEST + HOSTILE + 1, u32::MAX, self.rng.next_u32()];
        let own = self.identity.clone();
        let frames = names.map(|agent| {
            self.identity.agent = agent;
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
        let small = Identity { dimension: 2, ..self.identity.clone() };
        let large = Identity { dimension: 64, ..self.identity.clone() };
        let episode = self.episode();
        let frames = [
            summary(&small, episode, &[0.5; 5]),
            summary(&large, episode, &vec![0.5; packed_len(64) + 64]),
            encode(&self.identity, &Message::Ack { episode }),
            Identity::to_sealed_blob(&self.identity).to_vec(),
            vec![0x81; FRAME],
            vec![2; FRAME],
        ];
        self.send(&frames)
    }

    fn connect_and_drop(&mut self) -> std::io::Result<()> {
        (0..32).try_for_each(|_| self.gang.connect().map(drop))
    }

    /// Asks for models, and takes none of them.
    fn never_read(&mut self) -> std::io::Result<()> {
        let stream = self.gang.connect()?;
        let hello = stuffed(&encode(&self.identity, &Message::Hello { episode: 1, boot: 1 }));
        (0..60).try_for_each(|_| (&stream).write_all(&hello))?;
        self.dribbling.push_back(stream);
        Ok(())
    }

    fn not_numbers(&mut self) -> std::io::Result<()> {
        let values = [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE / 2.0];
        let frames = values.map(|value| summary(&self.identity, self.episode(), &[value; packed_len(D) + D]));
        self.send(&frames)
    }

    fn run(&mut self) {
        while self.gang.runs() {
            let which = self.rng.next_u32() as usize % ABUSES.len();
            // That the service ends the connection is what is to be expected.
            let _ = ABUSES[which].1(self);
            self.gang.abuses[which].fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(u64::from(self.rng.next_u32() % 40)));
        }
    }
}

/// What a process has in memory, in kilobytes.
fn memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn hostile_devices_stop_nobody_from_learning() {
    let episodes = std::env::var("FEDBANDIT_EPISODES").map_or(EPISODES, |episodes| episodes.parse().unwrap());
    let fleet = Fleet::new("hostile", HONEST + HOSTILE);
    fleet.configure(&format!(
        "deadline = 1\nsteps = {}\nfirst-episode = {EPISODE_LEN}",
        2 * EPISODE_LEN * (episodes + 100)
    ));
    let mut service = fleet.serve_and_log("info", Stdio::piped());
    let log = BufReader::new(service.process.0.stderr.take().unwrap());
    let lines = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lines);
    thread::spawn(move || log.lines().for_each(|_| _ = counted.fetch_add(1, Ordering::Relaxed)));

    let gang = Arc::new(Gang {
        address: service.devices[0].strip_prefix("tcp://").unwrap().into(),
        stop: AtomicBool::new(false),
        honest: Mutex::default(),
        episode: AtomicU64::new(1),
        lies: AtomicU64::new(0),
        abuses: [const { AtomicU64::new(0) }; ABUSES.len()],
    });
    let began = Instant::now();
    let mut samples = Vec::new();
    let lives = thread::scope(|scope| {
        for agent in HONEST + 1..=HONEST + HOSTILE {
            let (gang, identity) = (Arc::clone(&gang), fleet.identity(agent));
            let (others, abuser) = (Arc::clone(&gang), identity.clone());
            scope.spawn(move || liar(&others, &identity));
            scope.spawn(move || {
                let rng = Pcg64::seed_from_u64(agent.into());
                let (recorded, dribbling) = (VecDeque::new(), VecDeque::new());
                Abuser { gang, identity: abuser, rng, recorded, dribbling }.run();
            });
        }
        // What they can fill, they fill before the honest ones come.
        thread::sleep(HEAD_START);
        let mut honest =
            fleet.devices(&service.devices[0], &format!("--count {HONEST} --episodes {episodes} --patience 60000"));
        while honest.0.try_wait().unwrap().is_none() {
            samples.push(memory(service.process.0.id()));
            thread::sleep(Duration::from_millis(200));
        }
        gang.stop.store(true, Ordering::Relaxed);
        honest.lives()
    });
    let seconds = began.elapsed().as_secs();
    let status = service.wait_for(|_| true);
    let (early, late, most) = (samples[samples.len() / 10], samples[samples.len() - 1], samples.iter().max().unwrap());
    let (lines, closed) = (lines.load(Ordering::Relaxed), status["episode"].as_u64().unwrap() as usize);
    let [worth, best] = ["late_mean_worth", "late_mean_best"].map(|key| lives[key].as_f64().unwrap());
    let acknowledged = lives["acknowledged"].as_u64().unwrap();

    println!("| seconds | {seconds} |");
    println!("| honest devices, hostile devices | {HONEST}, {HOSTILE} |");
    println!("| episodes that the honest ones lived through | {episodes} |");
    println!("| of their summaries acknowledged | {acknowledged} of {} |", HONEST * episodes);
    println!("| what they reached of the best, in the second half | {:.3} |", worth / best);
    println!("| lies, by all attacks in turn | {} |", gang.lies.load(Ordering::Relaxed));
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

    assert!(worth >= 0.9 * best && best > 0.0, "{worth} of {best}");
    assert!(acknowledged * 10 >= u64::from(HONEST * episodes) * 9, "{acknowledged} acknowledged");
    assert!(2 * late <= 3 * early && *most <= MEMORY, "memory: {early}, {late}, at the most {most} kB");
    assert!(lines <= LINES.0 * closed + LINES.1, "{lines} lines in {closed} episodes");
    // All that they did was seen for what it is.
    for reason in ["length", "unknown", "tag", "type", "version"] {
        assert!(status["dropped"][reason].as_u64() > Some(0), "{reason}: {status}");
    }
    for fault in ["non-finite", "not-positive-semidefinite"] {
        assert!(status["faults"][fault].as_u64() > Some(0), "{fault}: {status}");
    }
    assert!(gang.abuses.iter().all(|count| count.load(Ordering::Relaxed) > 0));
    drop(service);
    fleet.stored();
}
