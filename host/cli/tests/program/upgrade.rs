//! Stores of earlier schemas: read as they are, migrated by a start, with a copy.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::test_fleet::Fleet;

/// Settings of the stored runs.
const SETTINGS: &str = "deadline = 3600\nepisode-len = 4\nfirst-episode = 4\nsteps = 400";

/// Stored run of a schema: three devices, and the episode that is open. That of schema 4 has a snapshot, which has removed the
/// summaries of the first episodes.
struct Stored {
    schema: u32,
    episode: u32,
    /// Number of summaries that count.
    accepted: u64,
}

const STORED: [Stored; 2] =
    [Stored { schema: 3, episode: 7, accepted: 18 }, Stored { schema: 4, episode: 8, accepted: 19 }];

impl Stored {
    fn unpack(&self) -> Fleet {
        let fleet = Fleet::empty(&format!("schema-{}", self.schema));
        let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/stored/schema-{}.tar.gz", self.schema));
        let unpacked = Command::new("tar").current_dir(fleet.path()).arg("xzf").arg(stored).status();
        assert!(unpacked.expect("tar is a part of Debian").success());
        fleet.configure(SETTINGS);
        fleet
    }
}

fn releases(fleet: &Fleet) -> Vec<String> {
    let text = fleet.stdout("export --dir fleet --what releases");
    text.lines().skip(1).map(str::to_owned).collect()
}

/// Every schema since the first that was released stays readable.
#[test]
fn stores_of_all_schemas_are_resumed() {
    // The models that devices have received, as the program that stored them has exported them.
    let sent: Vec<&str> = include_str!("../stored/schema-3.releases.csv").lines().skip(1).collect();
    for stored in STORED {
        let fleet = stored.unpack();
        let before = releases(&fleet);
        assert_eq!(before[..sent.len()], sent[..], "schema {}, not migrated", stored.schema);
        assert_eq!(before.len(), stored.episode as usize + 1);
        let status = fleet.json("status --dir fleet --json");
        let expected = (&stored.episode.into(), &stored.accepted.into());
        assert_eq!((&status["episode"], &status["received"]["accepted"]), expected);
        let bytes = fs::read(fleet.path().join("fleet/run.redb")).unwrap();
        let service = fleet.serve();
        assert_eq!(fleet.devices(&service.devices[0], "--count 3 --episodes 2").report()["acknowledged"], 6);
        let status = service.wait_for(|status| status["episode"] == stored.episode + 2);
        // Two devices of the first run have reported in its open episode before.
        let more = status["received"]["accepted"].as_u64().unwrap() - stored.accepted;
        assert!((4..=6).contains(&more), "{more} more summaries count");
        drop(service);
        assert_eq!(releases(&fleet)[..before.len()], before[..]);
        let copy = fs::read(fleet.path().join("fleet/run.schema-3.redb"));
        assert_eq!(copy.ok(), (stored.schema == 3).then_some(bytes));
        let checked = fleet.stdout("check fleet");
        let replay = if stored.schema == 3 { "all " } else { "older summaries were removed" };
        assert!(checked.starts_with("run 1 is intact: ") && checked.contains(replay), "{checked}");
    }
}
