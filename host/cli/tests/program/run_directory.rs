//! Copies of a run's directory.

use std::fs;
use std::path::Path;

use crate::test_fleet::Fleet;
use serde_json::Value;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The copy contains the file `service`, which names the running service of the original.
#[test]
fn status_of_a_copy_does_not_query_the_service_of_the_original() {
    let fleet = Fleet::new("copy", 3);
    // No episode ends during the test, so that the store is not written while it is copied.
    fleet.configure("deadline = 86400");
    let service = fleet.serve();
    let url = format!("http://{}", service.http);
    assert_eq!(fleet.json("status --dir fleet --json")["service"], url);
    let original = fleet.path().join("fleet");
    copy(&original, &fleet.path().join("copy"));
    assert!(fs::read_to_string(fleet.path().join("copy/service")).unwrap().starts_with(&url));
    let copied = fleet.json("status --dir copy --json");
    assert_eq!((&copied["service"], &copied["episode"]), (&Value::Null, &1.into()));
    // A moved directory still has the store that the service has open.
    fs::rename(&original, fleet.path().join("moved")).unwrap();
    assert_eq!(fleet.json("status --dir moved --json")["service"], url);
}
