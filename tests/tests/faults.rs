//! Simulated fault scenarios. `fedbandit-tests soak` runs more of them.

use fedbandit_tests::{faults, measure::soak};

#[test]
fn two_hundred_scenarios_violate_no_promise() {
    let outcome = soak::seeds(1, 200, false).unwrap_or_else(|violation| panic!("{violation}"));
    // Every kind of fault occurred, and the runs made progress.
    assert!(outcome.disk_faults > 100 && outcome.starts > 500 && outcome.restarts > 500, "{outcome:?}");
    assert!(outcome.frame_faults > 10_000 && outcome.abuses > 10_000 && outcome.summaries > 5_000, "{outcome:?}");
    assert!(outcome.snapshots > 500 && outcome.enrolled > 50, "{outcome:?}");
    assert!(outcome.replays > 3_000 && outcome.next_runs > 50 && outcome.moves > 1_000, "{outcome:?}");
    assert!(outcome.continued > 20, "{outcome:?}");
}

#[test]
fn same_seed_gives_the_same_run() {
    let mut traces = Vec::new();
    for seed in 1..=12 {
        let [one, other] = [faults::run(seed, false).unwrap(), faults::run(seed, false).unwrap()];
        assert_eq!(one, other, "seed {seed}");
        traces.push(one.trace);
    }
    traces.dedup();
    assert_eq!(traces.len(), 12, "two seeds give the same run");
}
