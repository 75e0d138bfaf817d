//! docs/benchmarks.md: what it says of itself follows from its tables.

#[path = "../../../benches/record/markdown.rs"]
mod page;

/// `./ci.sh bench --write` finds the losses; nobody else may.
#[test]
fn the_losses_on_record_are_those_of_the_tables() {
    let page = include_str!("../../../../docs/benchmarks.md");
    let [_, losses, _] = page::section(page, page::LOSSES).expect("the section is there");
    assert_eq!(losses, page::losses(page));
    assert_eq!(page::with(page, page::LOSSES, losses), page);
}

const PAGE: &str = "\
# Benchmarks

## Speed (limit 2)

| N | ratio | × | × slow |
|---|---|---|---|
| 1 | 1.50 | 3.0 | 1.2 |
| 2 | 2.50 ✗ | 3.0 | 1.1 |
| 3 | 1.25 | 2.0 | 0.99 |

## Peers

| N | peer ms | × |
|---|---|---|
| 1 | not measured: no network | – |
| 2 | 7 | 1.0 |

## Memory

| MB |
|---|
| 0.5 |
";

#[test]
fn a_missed_limit_a_faster_peer_and_an_absent_one_are_losses() {
    let page = page::with(PAGE, page::LOSSES, "nothing yet");
    let losses = page::losses(&page);
    let rows: Vec<&str> = losses.lines().filter(|line| line.starts_with("| ")).collect();
    let expected = [
        "| N | ratio | × | × slow |",
        "| 2 | 2.50 ✗ | 3.0 | 1.1 |",
        "| 3 | 1.25 | 2.0 | 0.99 |",
        "| N | peer ms | × |",
        "| 1 | not measured: no network | – |",
        "| table | at least | at most |",
        "| Speed (limit 2) | 1.25 | 2.50 |",
    ];
    assert_eq!(rows, expected);
    assert!(!losses.contains("There is no such row"));
    // It does not find itself.
    let page = page::with(&page, page::LOSSES, &losses);
    assert_eq!(page::losses(&page), losses);
    let won = PAGE.replace(" ✗", "").replace("0.99", "1.00").replace("not measured: no network | –", "9 | 2.0");
    assert!(page::losses(&won).contains("There is no such row"));
}
