//! Sections of docs/benchmarks.md between markers. One section is derived from the tables of the others.

use std::fmt::Write as _;

/// Name of the derived section.
pub(crate) const LOSSES: &str = "losses";

fn markers(name: &str) -> [String; 2] {
    [format!("<!-- {name}: ./ci.sh bench --write -->\n"), format!("\n<!-- end of {name} -->\n")]
}

/// Splits a page into the text before, in and after a section.
pub(crate) fn section<'a>(page: &'a str, name: &str) -> Option<[&'a str; 3]> {
    let [begin, end] = markers(name);
    let (before, rest) = page.split_once(&begin)?;
    let (text, after) = rest.split_once(&end)?;
    Some([before, text, after])
}

/// Replaces the text of a section, which is added at the end if missing.
pub(crate) fn replace_section(page: &str, name: &str, text: &str) -> String {
    let [begin, end] = markers(name);
    let at_the_end = format!("{page}\n");
    let [before, _, after] = section(page, name).unwrap_or([&at_the_end, "", ""]);
    [before, &begin, text, &end, after].concat()
}

/// Derives the section of losses: missed limits, faster peers and peers that were not measured, and the range of ratios.
///
/// A column × is a peer's time relative to ours. A column `ratio` is our time relative to a baseline.
pub(crate) fn losses(page: &str) -> String {
    let others = section(page, LOSSES).map_or_else(|| page.to_owned(), |[before, _, after]| [before, after].concat());
    let mut rows = String::new();
    let mut ratios = String::new();
    for (title, table) in others.split("\n## ").skip(1).filter_map(|section| section.split_once('\n')) {
        let lines: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).collect();
        let [header, rule, data @ ..] = &lines[..] else { continue };
        let lost: Vec<&str> = data.iter().filter(|row| is_lost(header, row)).copied().collect();
        if !lost.is_empty() {
            let _ = write!(rows, "\n### {title}\n\n{header}\n{rule}\n{}\n", lost.join("\n"));
        }
        let all = || data.iter().flat_map(|row| named(header, row, "ratio"));
        let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
        if least <= most {
            let _ = write!(ratios, "\n| {title} | {least:.2} | {most:.2} |");
        }
    }
    let none = if rows.is_empty() { "\nNo such row.\n" } else { "" };
    format!("{HEAD}{none}{rows}\n{RATIOS}{ratios}")
}

const HEAD: &str = "\
## Where we lose

Derived from the tables below by the command that writes them: every row with a missed limit (✗), a faster peer (a number
below 1 in a column ×) or a peer that was not measured.
";

const RATIOS: &str = "\
Range of the columns `ratio`, which compare with a baseline: a plain read, the disk alone, the paper's rule.

| table | smallest | largest |
|---|---|---|";

fn is_lost(header: &str, row: &str) -> bool {
    row.contains('✗') || row.contains("not measured") || named(header, row, "×").any(|gain| gain < 1.0)
}

/// Returns the numbers of a row in the columns whose names start with a prefix.
fn named(header: &str, row: &str, name: &str) -> impl Iterator<Item = f64> {
    let columns = header.split('|').zip(row.split('|')).filter(move |(column, _)| column.trim().starts_with(name));
    columns.filter_map(|(_, cell)| {
        let cell = cell.trim();
        cell[..cell.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(cell.len())].parse().ok()
    })
}
