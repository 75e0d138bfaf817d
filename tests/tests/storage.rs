//! The store on a disk that stops or fails. `fedbandit-tests storage` tries every operation, this one some of them.

use std::fs;
use std::path::PathBuf;
use std::thread;

use fedbandit::service::store::Store;
use fedbandit::service::store::file::File;
use fedbandit_tests::faults::storage::{SHORT, check};

#[test]
fn what_was_promised_is_there_whatever_the_disk_does() {
    let tried = check(1, SHORT).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(tried.cuts > 30 && tried.recoveries > 30 && tried.errors > 30 && tried.service_errors > 30, "{tried:?}");
}

/// What a crash left of a store that was being made is no obstacle, and no store.
#[test]
fn a_store_comes_into_being_whole() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("unfinished");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("run.redb");
    // As redb leaves a file that it has just begun: long, and without its mark.
    fs::write(directory.join("run.unfinished"), vec![0; 1 << 20]).unwrap();
    File::open(&path).unwrap().append(&[b"event".to_vec()]).unwrap();
    let mut events = Vec::new();
    File::open(&path).unwrap().replay(&mut |event| events.push(event.to_vec())).unwrap();
    assert_eq!(events, [b"event"]);
    let files: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, ["run.redb"]);
}

/// Of starts at the same time, one makes the store; what any of them was promised is there.
#[test]
fn a_store_comes_into_being_once() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("at-once");
    for round in 0..20 {
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("run.redb");
        let append = || File::open(&path).and_then(|mut store| store.append(&[b"event".to_vec()])).is_ok();
        let promised = thread::scope(|scope| {
            let starts: Vec<_> = (0..4).map(|_| scope.spawn(append)).collect();
            starts.into_iter().filter_map(|start| start.join().unwrap().then_some(())).count()
        });
        let mut found = 0;
        File::open(&path).unwrap().replay(&mut |_| found += 1).unwrap();
        assert!(promised > 0 && found == promised, "round {round}: {found} of {promised}");
    }
}
