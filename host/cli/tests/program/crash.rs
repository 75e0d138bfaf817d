//! The service is killed again and again while devices talk to it. No acknowledged summary is lost, none counts twice, and
//! no model changes after it was sent.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::wait_until;
use crate::test_fleet::{Fleet, free_port};
use fedbandit::service::event::{Event, ModelEvent};
use fedbandit::service::store::Store;
use fedbandit::service::store::file::File;
use fedbandit_core::session::{self, Session};
use fedbandit_core::wire::{Channel, Fate, Identity, Message, cobs, max_frame_len};
use fedbandit_core::{Action, Agent, Prior, Rewards};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

const D: usize = 4;
const FRAME: usize = max_frame_len(D);
const DEVICES: u32 = 6;

type Link = Session<D, FRAME, 4>;
const KILLS: u32 = 100;
/// Acknowledged episodes of each device at the end.
const ACKNOWLEDGED: usize = 60;

/// Frames that a device has sent and received.
#[derive(Default)]
struct Memory {
    /// Sent summaries by episode: U packed, then u.
    sent: BTreeMap<u32, Vec<f32>>,
    acknowledged: BTreeSet<u32>,
    /// Received models by episode.
    models: BTreeMap<u32, Vec<u8>>,
}

/// Runs a device until it is told to stop, over any number of connections.
fn device(identity: Identity, channel: Channel, port: u16, stop: &AtomicBool, acknowledged: &AtomicUsize) -> Memory {
    let mut memory = Memory::default();
    let mut rng = Pcg64::seed_from_u64(identity.agent().into());
    let prior = Prior::new(1.0, 1.0, 4, Rewards::Unbounded);
    let mut agent = Agent::<D>::new(&prior).unwrap();
    let mut session = Link::new(identity, 1).unwrap();
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        stream.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        let mut decoder = cobs::Decoder::<FRAME>::new();
        let mut buffer = [0; 512];
        session.link_up(start.elapsed().as_millis() as u64 * 100);
        while !stop.load(Ordering::Relaxed) {
            // The device's clock is a hundred times faster.
            let now = start.elapsed().as_millis() as u64 * 100;
            if !session.wants_model() {
                live(&mut agent, &mut session, &mut memory, &mut rng, now);
            }
            if let Some(frame) = session.poll(now, &mut rng)
                && stream.write_all(&cobs::encode(frame).collect::<Vec<_>>()).is_err()
            {
                break;
            }
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => buffer[..read].iter().for_each(|byte| {
                    let Some(frame) = decoder.push(*byte) else { return };
                    if let Ok(Message::Model(model)) = channel.decode(&mut frame.to_vec()) {
                        let before = memory.models.entry(model.episode).or_insert_with(|| frame.to_vec());
                        assert_eq!(before, frame, "the model of episode {} has changed", model.episode);
                    }
                    if let Ok(session::Event::Acknowledged { episode, fate: Fate::Counts }) =
                        session.handle(frame, &mut agent, now)
                    {
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

fn live(agent: &mut Agent<D>, session: &mut Link, memory: &mut Memory, rng: &mut Pcg64, now: u64) {
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
fn killed_service_keeps_its_promises() {
    let fleet = Fleet::new("crash", DEVICES);
    // The devices expect the restarted service on the same port.
    let port = free_port();
    fleet.configure_at(port, "deadline = 1\nsteps = 4000000\nepisode-len = 4");

    let stop = Arc::new(AtomicBool::new(false));
    let progress: Vec<_> = (0..DEVICES).map(|_| Arc::new(AtomicUsize::new(0))).collect();
    let mut service = fleet.serve();
    let devices: Vec<_> = (1..=DEVICES)
        .map(|agent| {
            let (identity, channel) = (fleet.identity(agent), fleet.channel(agent));
            let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&progress[agent as usize - 1]));
            thread::spawn(move || device(identity, channel, port, &stop, &acknowledged))
        })
        .collect();
    let mut rng = Pcg64::seed_from_u64(5);
    for _ in 0..KILLS {
        // A kill may come at any time: what must hold does not depend on the progress in between.
        thread::sleep(Duration::from_millis(u64::from(rng.next_u32() % 120)));
        drop(service);
        service = fleet.serve();
    }
    wait_until("progress after the last kill", || {
        progress.iter().all(|count| count.load(Ordering::Relaxed) >= ACKNOWLEDGED)
    });
    stop.store(true, Ordering::Relaxed);
    let memories: Vec<Memory> = devices.into_iter().map(|device| device.join().unwrap()).collect();
    drop(service);

    let summaries = fleet.summaries();
    let mut releases: Vec<ModelEvent> = Vec::new();
    let store = File::open(&fleet.path().join("fleet/run.redb")).unwrap();
    store
        .replay(0, &mut |_, bytes| {
            if let Some(Event::Model(release)) = Event::from_bytes(bytes, D) {
                releases.push(release);
            }
        })
        .unwrap();
    assert!((1..).zip(&releases).all(|(episode, release)| release.episode == episode), "one release per episode");
    assert!(releases.len() > KILLS as usize / 2, "only {} episodes", releases.len());
    for (agent, memory) in (1..).zip(&memories) {
        assert!(memory.acknowledged.len() >= ACKNOWLEDGED, "{agent}: {}", memory.acknowledged.len());
        for episode in &memory.acknowledged {
            let stored = summaries.get(&(agent, *episode)).expect("an acknowledged summary is stored");
            assert_eq!(stored, &memory.sent[episode], "{agent}, {episode}");
        }
        for (episode, frame) in &memory.models {
            let (channel, mut frame) = (fleet.channel(agent), frame.clone());
            let Message::Model(model) = channel.decode(&mut frame).unwrap() else { panic!() };
            assert_eq!(ModelEvent::of(&model), releases[*episode as usize - 1]);
        }
    }
}
