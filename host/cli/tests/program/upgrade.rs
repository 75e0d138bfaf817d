//! Stores of earlier schemas: read as they are, migrated by a start, with a copy.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::test_fleet::Fleet;

/// Settings of the stored runs.
const SETTINGS: &str = "deadline = 3600\nepisode-len = 4\nfirst-episode = 4\nsteps = 400";

/// Unpacks the stored run of a schema: three devices, six closed episodes, 18 summaries.
fn stored(schema: u32) -> Fleet {
    let fleet = Fleet::empty(&format!("schema-{schema}"));
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/stored/schema-{schema}.tar.gz"));
    let unpacked = Command::new("tar").current_dir(fleet.path()).arg("xzf").arg(stored).status();
    assert!(unpacked.expect("./ci.sh needs tar").success());
    fleet.configure(SETTINGS);
    fleet
}

fn releases(fleet: &Fleet, directory: &str) -> Vec<String> {
    let text = fleet.stdout(&format!("export --dir {directory} --what releases"));
    text.lines().skip(1).map(str::to_owned).collect()
}

/// Every schema since the first that was released stays readable.
#[test]
fn stores_of_all_schemas_are_resumed() {
    let expected: Vec<&str> = include_str!("../stored/schema-3.releases.csv").lines().skip(1).collect();
    for schema in 3..=4 {
        let fleet = stored(schema);
        assert_eq!(releases(&fleet, "fleet"), expected, "schema {schema}, not migrated");
        let status = fleet.json("status --dir fleet --json");
        assert_eq!((&status["episode"], &status["received"]["accepted"]), (&7.into(), &18.into()), "{status}");
        let before = fs::read(fleet.path().join("fleet/run.redb")).unwrap();
        let service = fleet.serve();
        assert_eq!(fleet.devices(&service.devices[0], "--count 3 --episodes 2").report()["acknowledged"], 6);
        let status = service.wait_for(|status| status["episode"] == 9);
        assert_eq!(status["received"]["accepted"], 24);
        drop(service);
        assert_eq!(releases(&fleet, "fleet")[..expected.len()], expected[..]);
        let copy = fleet.path().join("fleet/run.schema-3.redb");
        assert_eq!(copy.exists(), schema < 4, "schema {schema}");
        if copy.exists() {
            assert_eq!(fs::read(&copy).unwrap(), before);
        }
        assert!(fleet.stdout("check fleet").contains("run 1 is intact: episode 9 of 100, 3 devices, all "));
    }
}
