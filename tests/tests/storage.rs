//! Crash consistency of the store at some operations of the disk. `fedbandit-tests storage` tests all of them.

use std::fs;
use std::path::PathBuf;
use std::thread;

use fedbandit::service::store::Store;
use fedbandit::service::store::file::File;
use fedbandit_tests::faults::storage::{SHORT, check};

#[test]
fn commits_survive_every_disk_fault() {
    let tried = check(1, SHORT).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(tried.cuts > 30 && tried.recoveries > 30 && tried.errors > 30 && tried.service_errors > 30, "{tried:?}");
}

/// A crash during the creation leaves a file that the next start replaces.
#[test]
fn unfinished_store_is_replaced() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("unfinished");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("run.redb");
    // As redb leaves a file that it has just created: long, and without its magic number.
    fs::write(directory.join("run.unfinished"), vec![0; 1 << 20]).unwrap();
    File::open(&path).unwrap().append(&[b"event".to_vec()]).unwrap();
    let mut events = Vec::new();
    File::open(&path).unwrap().replay(0, &mut |_, event| events.push(event.to_vec())).unwrap();
    assert_eq!(events, [b"event"]);
    let files: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, ["run.redb"]);
}

/// Of concurrent starts, one creates the store. Every successful commit is there.
#[test]
fn concurrent_starts_create_one_store() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("at-once");
    for round in 0..20 {
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("run.redb");
        let append = || File::open(&path).and_then(|mut store| store.append(&[b"event".to_vec()])).is_ok();
        let committed = thread::scope(|scope| {
            let starts: Vec<_> = (0..4).map(|_| scope.spawn(append)).collect();
            starts.into_iter().filter_map(|start| start.join().unwrap().then_some(())).count()
        });
        let mut found = 0;
        File::open(&path).unwrap().replay(0, &mut |_, _| found += 1).unwrap();
        assert!(committed > 0 && found == committed, "round {round}: {found} of {committed} commits");
    }
}
