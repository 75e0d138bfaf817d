//! Service, broker and devices are killed again and again: `FEDBANDIT_KILLS` times, by default 100.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use crate::broker::{ANYBODY, Broker};
use crate::tap::Tap;
use crate::test_fleet::{Fleet, free_port};
use fedbandit::algorithm::AgentId;
use fedbandit::service::event::{Event, SummaryEvent};
use fedbandit::service::store::Store;
use fedbandit::service::store::file::File;
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

const KILLS: u32 = 100;
/// First agent and number of agents of each process. Agents 3 and 4 use TCP; 5 and 6 are sealed.
const PROCESSES: [(u32, u32); 4] = [(1, 1), (2, 1), (3, 2), (5, 2)];
const BY_TCP: [u32; 2] = [3, 4];
const AGENTS: u32 = 6;
/// Episodes after the last kill by which all devices must be back.
const LATER: u64 = 5;

/// Contents of the store when it was last read.
#[derive(Default)]
struct Known {
    log: Vec<Vec<u8>>,
    summaries: BTreeSet<(u32, u32)>,
    releases: u32,
    reads: u32,
}

impl Known {
    /// Reads the store of a killed service. Earlier events must be unchanged, new ones must come from a device and be
    /// distinct, and every acknowledged summary must be stored.
    fn check(&mut self, fleet: &Fleet, tap: &Tap) {
        let store = File::open(&fleet.path().join("fleet/run.redb")).unwrap();
        let seen = tap.seen();
        let mut at = 0;
        let mut each = |_, bytes: &[u8]| {
            match self.log.get(at) {
                Some(before) => assert_eq!(before, bytes, "event {at} has changed"),
                None => {
                    match Event::from_bytes(bytes, 4).expect("an event") {
                        Event::Summary(SummaryEvent { agent: AgentId(agent), episode, gram, feature_sum, .. }) => {
                            let (key, values) = ((agent, episode), [gram, feature_sum].concat());
                            assert!(self.summaries.insert(key), "two summaries of agent {agent}, episode {episode}");
                            let came = seen.summaries.get(&key).is_some_and(|came| came.contains(&values));
                            assert!(
                                came || BY_TCP.contains(&agent),
                                "agent {agent} never sent this summary of episode {episode}"
                            );
                        }
                        Event::Model(release) => {
                            self.releases += 1;
                            assert_eq!(release.episode, self.releases, "one release per episode");
                        }
                        other => panic!("{other:?} is stored"),
                    }
                    self.log.push(bytes.to_vec());
                }
            }
            at += 1;
        };
        store.replay(0, &mut each).unwrap();
        assert_eq!(at, self.log.len(), "events are lost");
        let lost: Vec<_> = seen.acknowledged.difference(&self.summaries).collect();
        assert!(lost.is_empty(), "acknowledged but not stored: {lost:?}");
        self.reads += 1;
    }
}

#[test]
fn kills_lose_nothing_and_count_nothing_twice() {
    let kills = std::env::var("FEDBANDIT_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let began = Instant::now();
    let fleet = Fleet::new("kills", 4);
    let sealed = fleet.command("enroll --dir fleet --count 2 --sealed").output().unwrap();
    assert!(sealed.status.success(), "{sealed:?}");
    let mut broker = Broker::start(&fleet, ANYBODY);
    let tap = Tap::start(broker.port, (1..=AGENTS).map(|agent| fleet.blob(agent)));
    // The devices expect the restarted service on the same port.
    let port = free_port();
    let mqtt = format!("mqtt = \"mqtt://127.0.0.1:{}\"\n", tap.port);
    fleet.configure_at(port, &(mqtt + "deadline = 5\nsteps = 4000000\nepisode-len = 4"));
    let live = |(first, count): (u32, u32), broker: &Broker<'_>| {
        let connect = if BY_TCP.contains(&first) { format!("tcp://127.0.0.1:{port}") } else { broker.url() };
        fleet.devices(&connect, &format!("--first {first} --count {count} --episodes 1000000 --patience 500"))
    };
    let mut service = fleet.serve();
    let mut devices = PROCESSES.map(|process| live(process, &broker));
    let mut known = Known::default();
    let mut rng = Pcg64::seed_from_u64(8);
    let mut killed: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..kills {
        // A kill may come at any time: what must hold does not depend on the progress in between.
        thread::sleep(Duration::from_millis(u64::from(rng.next_u32() % 300)));
        let target = match rng.next_u32() % 6 {
            0 | 1 => {
                drop(service);
                // Otherwise the service itself is the first to open its store again.
                if rng.next_u32() % 2 == 0 {
                    known.check(&fleet, &tap);
                }
                service = fleet.serve();
                "service"
            }
            2 | 3 => {
                broker.restart();
                "broker"
            }
            _ => {
                let at = rng.next_u32() as usize % devices.len();
                devices[at] = live(PROCESSES[at], &broker);
                "devices"
            }
        };
        *killed.entry(target).or_default() += 1;
    }
    let now = service.status()["episode"].as_u64().unwrap();
    service
        .wait_for(|status| status["episode"].as_u64() >= Some(now + LATER) && status["missing_in_last_episode"] == 0);
    drop((service, devices));
    known.check(&fleet, &tap);
    let seen = tap.seen();
    assert!(seen.acknowledged.len() > known.releases as usize, "{} acknowledgements", seen.acknowledged.len());
    let rivals = seen.summaries.values().filter(|came| came.len() > 1).count();
    let rows = [
        ("kills of the service", killed["service"] as usize),
        ("kills of the broker", killed["broker"] as usize),
        ("kills of device processes", killed["devices"] as usize),
        ("reads of the store in between", known.reads as usize),
        ("episodes", known.releases as usize),
        ("summaries stored, each once", known.summaries.len()),
        ("acknowledged through the broker, and stored", seen.acknowledged.len()),
        ("of which a device sent another one after a restart, and the first counts", rivals),
    ];
    for (what, number) in rows {
        println!("| {what} | {number} |");
    }
    eprintln!("{kills} kills in {:.0} s", began.elapsed().as_secs_f64());
}
