//! The store on a disk that stops or fails. `fedbandit-tests storage` tries every operation, this one some of them.

use fedbandit_tests::storage::{SHORT, check};

#[test]
fn what_was_promised_is_there_whatever_the_disk_does() {
    let tried = check(1, SHORT).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(tried.cuts > 30 && tried.recoveries > 30 && tried.errors > 30 && tried.service_errors > 30, "{tried:?}");
}
