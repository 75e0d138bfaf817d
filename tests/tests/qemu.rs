//! The agent on every board, under QEMU.

use fedbandit_core::fingerprint;
use fedbandit_tests::harness::firmware::{self, BOARDS, Board, Program, Run};
use rand_pcg::Pcg32;
use rand_pcg::rand_core::SeedableRng;

#[path = "../../core/examples/one_episode.rs"]
#[expect(dead_code, reason = "its main is not called here")]
mod example;

#[path = "../../core/tests/on_target.rs"]
mod on_target;

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

/// 10,000 steps on each board, built for speed and for size.
#[test]
fn every_board_computes_the_bits_of_the_host() {
    let on_host = |dimension| {
        let rng = &mut Pcg32::seed_from_u64(2022);
        let fingerprint = match dimension {
            4 => fingerprint::<4>(rng, 10_000),
            8 => fingerprint::<8>(rng, 10_000),
            16 => fingerprint::<16>(rng, 10_000),
            _ => fingerprint::<32>(rng, 10_000),
        };
        format!("{dimension} {}", fingerprint.unwrap())
    };
    for board in BOARDS {
        for profile in ["release", "opt-s"] {
            let run = run("fingerprint", board, profile);
            let dimensions: &[_] = if board.machine == "microbit" { &[4, 8, 16] } else { &[4, 8, 16, 32] };
            let expected: Vec<String> = dimensions.iter().map(|dimension| on_host(*dimension)).collect();
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
