//! The real program, killed again and again while devices talk to it: nothing that was acknowledged is lost, nothing
//! counts twice, and no model differs from what was sent before.

mod directory;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use directory::Directory;
use fedbandit::service::event::{Event, Release, Summary};
use fedbandit::service::redb::File;
use fedbandit::service::store::Store;
use fedbandit::streams::AgentId;
use fedbandit_core::session::{self, Session};
use fedbandit_core::wire::{Identity, Message, cobs, max_frame_len};
use fedbandit_core::{Action, Agent, Prior, Rewards};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

const D: usize = 4;
const FRAME: usize = max_frame_len(D);
const DEVICES: u32 = 6;
const KILLS: u32 = 100;
/// The episodes of each device that are acknowledged in the end.
const ACKNOWLEDGED: usize = 60;

/// A running service, which goes with the test.
struct Service(Child);

impl Service {
    /// Starts it and waits until it listens.
    fn start(directory: &Directory) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedbandit"));
        let command = command.current_dir(&directory.0).args(["serve", "--config", "controller.toml"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(first.starts_with("devices: tcp://"), "it said {first:?}");
        Self(child)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a device knows of its life.
#[derive(Default)]
struct Memory {
    /// The summaries that it sent, by episode: U packed, then u.
    sent: BTreeMap<u32, Vec<f32>>,
    acknowledged: BTreeSet<u32>,
    /// The models that it was sent, by episode.
    models: BTreeMap<u32, Vec<u8>>,
}

/// A device that lives until it is told to stop, whatever happens to its connection.
fn device(identity: Identity, port: u16, stop: &AtomicBool, acknowledged: &AtomicUsize) -> Memory {
    let mut memory = Memory::default();
    let mut rng = Pcg64::seed_from_u64(identity.agent.into());
    let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 4, rewards: Rewards::Unbounded };
    let mut agent = Agent::<D>::new(&prior).unwrap();
    let mut session = Session::<FRAME, 4>::new(identity.clone(), 1);
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
            thread::yield_now();
            continue;
        };
        stream.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        let mut decoder = cobs::Decoder::<FRAME>::new();
        let (mut buffer, mut frame) = ([0; 512], [0; FRAME]);
        while !stop.load(Ordering::Relaxed) {
            // A second of the device's clock is ten milliseconds here.
            let now = start.elapsed().as_millis() as u64 * 100;
            if !session.wants_model() {
                live(&mut agent, &mut session, &mut memory, &mut rng, now);
            }
            if let Some(length) = session.poll(agent.episode(), now, &mut rng, &mut frame)
                && stream.write_all(&cobs::encode(&frame[..length]).collect::<Vec<_>>()).is_err()
            {
                break;
            }
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => buffer[..read].iter().for_each(|byte| {
                    let Some(frame) = decoder.push(*byte) else { return };
                    if let Ok(Message::Model(model)) = identity.decode(frame) {
                        let before = memory.models.entry(model.episode).or_insert_with(|| frame.to_vec());
                        assert_eq!(before, frame, "another model of episode {}", model.episode);
                    }
                    if let Ok(session::Event::Acknowledged { episode }) = session.handle(frame, &mut agent, now) {
                        memory.acknowledged.insert(episode);
                        acknowledged.store(memory.acknowledged.len(), Ordering::Relaxed);
                    }
                }),
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                }
                Err(_) => break,
            }
        }
    }
    memory
}

fn live(agent: &mut Agent<D>, session: &mut Session<FRAME, 4>, memory: &mut Memory, rng: &mut Pcg64, now: u64) {
    for _ in agent.steps()..agent.episode_len() {
        let mut arm = || Action::<D>::from_fn(|_, _| (rng.next_u32() >> 8) as f32 / 33_554_432.0 - 0.25);
        let arms = [arm(), arm(), arm()];
        let choice = agent.select(&arms).unwrap();
        agent.record(&arms[choice.index], arms[choice.index][0]).unwrap();
    }
    let summary = agent.finish();
    memory.sent.insert(summary.episode(), summary.gram().chain(*summary.feature_sum()).collect());
    session.submit(&summary, now);
}

#[test]
fn a_killed_service_keeps_its_promises() {
    let directory = Directory::new("crash");
    let mut enroll = Command::new(env!("CARGO_BIN_EXE_fedbandit"));
    let arguments = format!("enroll --dir fleet --dim {D} --count {DEVICES}");
    let enrolled = enroll.current_dir(&directory.0).args(arguments.split(' ')).stdout(Stdio::null()).status().unwrap();
    assert!(enrolled.success());
    // A port that is free now: the service must come back to where its devices look for it.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = format!("dir = \"fleet\"\nlisten = \"127.0.0.1:{port}\"\nhttp = \"127.0.0.1:0\"\n");
    let settings = settings + "deadline = 1\nsteps = 4000000\nepisode-len = 4\n";
    fs::write(directory.0.join("controller.toml"), settings).unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let progress: Vec<_> = (0..DEVICES).map(|_| Arc::new(AtomicUsize::new(0))).collect();
    let mut service = Service::start(&directory);
    let devices: Vec<_> = (1..=DEVICES)
        .map(|agent| {
            let blob = fs::read(directory.0.join(format!("fleet/devices/agent-{agent}.blob"))).unwrap();
            let identity = Identity::from_blob(blob.as_slice().try_into().unwrap()).unwrap();
            let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&progress[agent as usize - 1]));
            thread::spawn(move || device(identity, port, &stop, &acknowledged))
        })
        .collect();
    let mut rng = Pcg64::seed_from_u64(5);
    for _ in 0..KILLS {
        // How far it gets differs from run to run; what must hold does not depend on it.
        thread::sleep(Duration::from_millis(u64::from(rng.next_u32() % 120)));
        drop(service);
        service = Service::start(&directory);
    }
    // Once nobody kills it any more, it goes on.
    let deadline = Instant::now() + Duration::from_secs(120);
    while progress.iter().any(|count| count.load(Ordering::Relaxed) < ACKNOWLEDGED) {
        assert!(Instant::now() < deadline, "no progress: {progress:?}");
        thread::yield_now();
    }
    stop.store(true, Ordering::Relaxed);
    let memories: Vec<Memory> = devices.into_iter().map(|device| device.join().unwrap()).collect();
    drop(service);

    let store = File::open(&directory.0.join("fleet/run.redb")).unwrap();
    let mut summaries: BTreeMap<(u32, u32), Vec<f32>> = BTreeMap::new();
    let mut releases: Vec<Release> = Vec::new();
    store
        .replay(&mut |bytes| match Event::from_bytes(bytes, D).unwrap() {
            Event::Summary(Summary { agent: AgentId(agent), episode, gram, feature_sum, .. }) => {
                let values = [gram, feature_sum].concat();
                assert!(summaries.insert((agent, episode), values).is_none(), "{agent} counts twice in {episode}");
            }
            Event::Release(release) => releases.push(release),
        })
        .unwrap();
    assert!((1..).zip(&releases).all(|(episode, release)| release.episode == episode), "one release per episode");
    assert!(releases.len() > KILLS as usize / 2, "there was progress: {} episodes", releases.len());
    for (agent, memory) in (1..).zip(&memories) {
        assert!(memory.acknowledged.len() >= ACKNOWLEDGED, "{agent}: {}", memory.acknowledged.len());
        for episode in &memory.acknowledged {
            let stored = summaries.get(&(agent, *episode)).expect("what was acknowledged is there");
            assert_eq!(stored, &memory.sent[episode], "{agent}, {episode}");
        }
        for (episode, frame) in &memory.models {
            let blob = fs::read(directory.0.join(format!("fleet/devices/agent-{agent}.blob"))).unwrap();
            let identity = Identity::from_blob(blob.as_slice().try_into().unwrap()).unwrap();
            let Message::Model(model) = identity.decode(frame).unwrap() else { panic!() };
            assert_eq!(Release::of(&model), releases[*episode as usize - 1]);
        }
    }
}
