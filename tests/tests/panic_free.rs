//! No panic is reachable from the public API of `fedbandit-core`: a program that calls all of it links without a panic handler.

use fedbandit_tests::harness::firmware::{BOARDS, Program};

fn build(profile: &str, dimension: usize, features: &[&str]) -> Result<(), String> {
    let program = Program { features, dimension: Some(dimension), ..Program::new("panic_free", BOARDS[0], profile) };
    program.build().map(|_| ())
}

#[test]
fn public_api_links_without_a_panic_handler() {
    for profile in ["release", "opt-s", "opt-z"] {
        for dimension in [8, 16, 32] {
            for features in [&[][..], &["sealed"]] {
                build(profile, dimension, features)
                    .unwrap_or_else(|error| panic!("{profile}, D = {dimension}, {features:?}:\n{error}"));
            }
        }
    }
}

/// The check can fail: it finds one reachable panic at every optimisation level.
#[test]
fn reachable_panic_fails_to_link() {
    for profile in ["release", "opt-s", "opt-z"] {
        let error = build(profile, 8, &["reachable-panic"]).expect_err("the reachable panic went unnoticed");
        assert!(error.contains("a_panic_is_reachable"), "expected an undefined symbol, got:\n{error}");
    }
}
