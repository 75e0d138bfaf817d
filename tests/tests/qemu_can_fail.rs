//! The tests under QEMU can fail: programs that end badly, or not at all, are not taken for successes.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fedbandit_tests::harness::firmware::{self, BOARDS, Board, Program, Run};

/// Longer than any of these programs takes to print its first line.
const PATIENCE: Duration = Duration::from_secs(60);

/// Built once, as two tests run it at the same time.
static HANG: LazyLock<PathBuf> = LazyLock::new(|| build("planted_hang", BOARDS[0]));

fn build(bin: &str, board: Board) -> PathBuf {
    let program = Program { bin, board, profile: "release", features: &[], dimension: None };
    program.build().unwrap_or_else(|error| panic!("{board:?}:\n{error}"))
}

fn board(machine: &str) -> Board {
    BOARDS.into_iter().find(|board| board.machine == machine).unwrap()
}

/// Neither the exit code nor the lines speak of success.
fn assert_not_proven(run: &Run, board: Board) {
    assert_ne!(run.code, Some(0), "{board:?}: {:?}", run.lines);
    assert!(!run.lines.iter().any(|line| line == "done"), "{board:?}: {:?}", run.lines);
    run.proven("done").expect_err("a failure was taken for a success");
}

#[test]
fn a_panic_is_no_success() {
    for board in BOARDS {
        let run = firmware::run(board, &build("planted_panic", board), &[], PATIENCE).unwrap();
        assert_not_proven(&run, board);
        assert_eq!(run.code, Some(1), "{board:?}");
        assert_eq!(run.lines.first().map(String::as_str), Some("started"), "{board:?}");
        assert!(run.lines.iter().any(|line| line == "planted"), "{board:?}: {:?}", run.lines);
    }
}

/// A program linked for where another board's flash is: the processor finds no vector table and locks up, which aborts QEMU.
#[test]
fn a_program_for_another_board_is_no_success() {
    let (its_own, another) = (board("netduinoplus2"), board("microbit"));
    let run = firmware::run(another, &build("fingerprint", its_own), &[], PATIENCE).unwrap();
    assert_not_proven(&run, another);
    assert_eq!((run.lines.len(), run.code), (0, None));
}

#[test]
fn a_killed_qemu_is_no_success() {
    let board = BOARDS[0];
    let mut running = firmware::start(board, &HANG, &[]).unwrap();
    assert!(running.wait_for_line("started", PATIENCE), "the program did not start");
    running.kill().unwrap();
    let run = running.wait(PATIENCE).unwrap();
    assert_not_proven(&run, board);
    assert_eq!((run.lines, run.code), (vec!["started".to_owned()], None));
}

#[test]
fn a_program_that_hangs_is_ended_and_no_success() {
    let (board, timeout) = (BOARDS[0], Duration::from_secs(3));
    let elf = &*HANG;
    let start = Instant::now();
    let run = firmware::run(board, elf, &[], timeout).unwrap();
    assert!((timeout..PATIENCE).contains(&start.elapsed()), "ended after {:?}", start.elapsed());
    assert_not_proven(&run, board);
    assert_eq!((run.lines, run.code), (vec!["started".to_owned()], None));
}

/// Each half of the proof is needed: the exit code without the line, and the line without the exit code, are none.
#[test]
fn half_a_proof_is_none() {
    let run = |lines: &[&str], code| Run { lines: lines.iter().map(|line| (*line).to_owned()).collect(), code };
    assert_eq!(run(&["8 1", "done"], Some(0)).proven("done"), Ok(&["8 1".to_owned()][..]));
    for half in [
        run(&["8 1", "done"], Some(1)),
        run(&["8 1", "done"], None),
        run(&["8 1"], Some(0)),
        run(&["done", "8 1"], Some(0)),
        run(&[], Some(0)),
    ] {
        half.proven("done").unwrap_err();
    }
}
