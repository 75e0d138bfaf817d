//! The tests under QEMU can fail: a program that panics, hangs or is killed does not count as a success.

use std::path::PathBuf;

use fedbandit_tests::harness::firmware::{self, BOARDS, Board, CPU_SECONDS, Program, Run, Running};

fn build(bin: &str, board: Board) -> PathBuf {
    Program::new(bin, board, "release").build().unwrap_or_else(|error| panic!("{board:?}:\n{error}"))
}

fn board(machine: &str) -> Board {
    BOARDS.into_iter().find(|board| board.machine == machine).unwrap()
}

/// Asserts that neither the exit code nor the lines report success.
fn assert_not_proven(run: &Run, board: Board) {
    assert_ne!(run.code, Some(0), "{board:?}: {:?}", run.lines);
    assert!(!run.lines.iter().any(|line| line == "done"), "{board:?}: {:?}", run.lines);
    run.proven("done").expect_err("a failure counts as a success");
}

#[test]
fn panicking_program_is_not_a_success() {
    for board in BOARDS {
        let run = firmware::run(board, &build("panics", board), &[]).unwrap();
        assert_not_proven(&run, board);
        assert_eq!(run.code, Some(1), "{board:?}");
        assert_eq!(run.lines.first().map(String::as_str), Some("started"), "{board:?}");
        assert!(run.lines.iter().any(|line| line == "deliberate panic"), "{board:?}: {:?}", run.lines);
    }
}

/// The program is linked for another flash address: the processor finds no vector table and locks up, which aborts QEMU.
#[test]
fn program_of_another_board_is_not_a_success() {
    let (linked_for, run_on) = (board("netduinoplus2"), board("microbit"));
    let run = firmware::run(run_on, &build("fingerprint", linked_for), &[]).unwrap();
    assert_not_proven(&run, run_on);
    assert_eq!((run.lines.len(), run.code), (0, None));
}

#[test]
fn killed_qemu_is_not_a_success() {
    let board = BOARDS[0];
    let mut running = Running::start(board, &build("hangs", board), &[], CPU_SECONDS);
    assert!(running.wait_for_line("started"), "the program did not start");
    running.kill().unwrap();
    let run = running.wait().unwrap();
    assert_not_proven(&run, board);
    assert_eq!((run.lines, run.code), (vec!["started".to_owned()], None));
}

#[test]
fn hanging_program_is_killed_and_not_a_success() {
    let board = BOARDS[0];
    let run = Running::start(board, &build("hangs", board), &[], 2).wait().unwrap();
    assert_not_proven(&run, board);
    assert_eq!((run.lines, run.code), (vec!["started".to_owned()], None));
}

/// Neither the exit code without the last line nor the last line without the exit code is a proof.
#[test]
fn half_a_proof_is_rejected() {
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
