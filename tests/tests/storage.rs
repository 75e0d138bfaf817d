//! The store on a disk that stops or fails. `fedbandit-tests storage` tries every operation, this one some of them.

use std::fs;
use std::path::PathBuf;

use fedbandit::service::redb::File;
use fedbandit::service::store::Store;
use fedbandit_tests::storage::{SHORT, check};

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
