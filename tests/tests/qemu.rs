//! The agent on every board, under QEMU.

use fedbandit_tests::harness::firmware::{self, BOARDS, Board, Program, Run};

#[path = "../../core/examples/one_episode.rs"]
#[expect(dead_code, reason = "its main is not called here")]
mod example;

#[path = "../../core/tests/fingerprint.rs"]
mod fingerprint;

#[path = "../../core/tests/on_target.rs"]
mod on_target;

use fingerprint::{FINGERPRINTS, GUARDED_FINGERPRINTS};

fn run(bin: &str, board: Board, profile: &str) -> Run {
    let elf = Program::new(bin, board, profile).build().unwrap_or_else(|error| panic!("{board:?}:\n{error}"));
    firmware::run(board, &elf, &[]).unwrap()
}

/// Asserts that a program ran to its end, and printed exactly these lines before the last.
fn assert_proven(run: &Run, before: &[String], last: &str, what: &str) {
    let lines = run.proven(last).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(lines, before, "{what}");
}

#[test]
fn example_prints_the_same_on_every_board_and_on_the_host() {
    let expected = example::one_episode().unwrap().to_string();
    for board in BOARDS {
        assert_proven(&run("one_episode", board, "release"), &[], &expected, &format!("{board:?}"));
    }
}

/// 10,000 steps on each board, in code for speed and for size, match the fingerprints computed on a PC.
#[test]
fn every_board_computes_the_same_bits() {
    for board in BOARDS {
        for profile in ["release", "opt-s"] {
            let run = run("fingerprint", board, profile);
            let fitting = FINGERPRINTS.iter().filter(|(dimension, _)| *dimension < 32 || board.machine != "microbit");
            let mut expected: Vec<String> = fitting.map(|(dimension, hash)| format!("{dimension} {hash}")).collect();
            expected.extend(GUARDED_FINGERPRINTS.map(|(dimension, hash)| format!("guarded {dimension} {hash}")));
            assert_proven(&run, &expected, "done", &format!("{board:?}, {profile}"));
        }
    }
}

#[test]
fn every_on_target_test_passes_on_every_board() {
    let expected = on_target::TESTS.map(|(name, _)| format!("ok {name}"));
    for board in BOARDS {
        let last = format!("{} passed", expected.len());
        assert_proven(&run("on_target", board, "release"), &expected, &last, &format!("{board:?}"));
    }
}
