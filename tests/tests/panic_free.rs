//! No panic can be reached from the public API of `fedbandit-core`: a program that uses all of it links without a panic handler.

use fedbandit_tests::harness::firmware::{BOARDS, Program};

fn build(profile: &str, dimension: usize, features: &[&str]) -> Result<(), String> {
    let program = Program { bin: "public_api", board: BOARDS[0], profile, features, dimension: Some(dimension) };
    program.build().map(|_| ())
}

#[test]
fn the_whole_api_links_without_a_panic_handler() {
    for profile in ["release", "opt-s", "opt-z"] {
        for dimension in [8, 16, 32] {
            for features in [&[][..], &["sealed"]] {
                build(profile, dimension, features)
                    .unwrap_or_else(|error| panic!("{profile}, D = {dimension}, {features:?}:\n{error}"));
            }
        }
    }
}

/// The check can fail: one planted index is found at every level.
#[test]
fn a_planted_panic_is_found() {
    for profile in ["release", "opt-s", "opt-z"] {
        let error = build(profile, 8, &["planted-panic"]).expect_err("the planted panic went unnoticed");
        assert!(error.contains("a_panic_is_reachable"), "another failure than the one planted:\n{error}");
    }
}
