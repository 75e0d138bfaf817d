//! The derived section of docs/benchmarks.md.

#[path = "../../../benches/record/markdown.rs"]
mod page;

#[test]
fn recorded_losses_match_the_tables() {
    let page = include_str!("../../../../docs/benchmarks.md");
    let [_, losses, _] = page::section(page, page::LOSSES).expect("the section exists");
    assert_eq!(losses, page::losses(page));
    assert_eq!(page::replace_section(page, page::LOSSES, losses), page);
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
fn missed_limits_faster_peers_and_unmeasured_peers_are_losses() {
    let page = page::replace_section(PAGE, page::LOSSES, "placeholder");
    let losses = page::losses(&page);
    let rows: Vec<&str> = losses.lines().filter(|line| line.starts_with("| ")).collect();
    let expected = [
        "| N | ratio | × | × slow |",
        "| 2 | 2.50 ✗ | 3.0 | 1.1 |",
        "| 3 | 1.25 | 2.0 | 0.99 |",
        "| N | peer ms | × |",
        "| 1 | not measured: no network | – |",
        "| table | smallest | largest |",
        "| Speed (limit 2) | 1.25 | 2.50 |",
    ];
    assert_eq!(rows, expected);
    assert!(!losses.contains("No such row"));
    // The derived section itself is not searched.
    let page = page::replace_section(&page, page::LOSSES, &losses);
    assert_eq!(page::losses(&page), losses);
    let won = PAGE.replace(" ✗", "").replace("0.99", "1.00").replace("not measured: no network | –", "9 | 2.0");
    assert!(page::losses(&won).contains("No such row"));
}
