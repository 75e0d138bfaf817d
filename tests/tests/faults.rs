//! The service and its devices in worlds of faults. `fedbandit-tests soak` runs more of them.

use fedbandit_tests::{faults, measure::soak};

#[test]
fn two_hundred_worlds_hold() {
    let outcome = soak::seeds(1, 200, false).unwrap_or_else(|wrong| panic!("{wrong}"));
    // It was worth it: every kind of fault came, and yet much was learnt.
    assert!(outcome.troubles > 100 && outcome.starts > 500 && outcome.restarts > 500, "{outcome:?}");
    assert!(outcome.harmed > 10_000 && outcome.abuses > 10_000 && outcome.summaries > 5_000, "{outcome:?}");
}

#[test]
fn a_seed_is_all_that_a_run_depends_on() {
    let mut traces = Vec::new();
    for seed in 1..=12 {
        let [one, other] = [faults::run(seed, false).unwrap(), faults::run(seed, false).unwrap()];
        assert_eq!(one, other, "seed {seed}");
        traces.push(one.trace);
    }
    traces.dedup();
    assert_eq!(traces.len(), 12, "and runs differ");
}
