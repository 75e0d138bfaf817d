//! docs/benchmarks.md as a text: sections between marks, one of which follows from the tables of the others.

use std::fmt::Write as _;

/// The name of the section that follows from the others.
pub(crate) const LOSSES: &str = "losses";

fn marks(name: &str) -> [String; 2] {
    [format!("<!-- {name}: ./ci.sh bench --write -->\n"), format!("\n<!-- end of {name} -->\n")]
}

/// What is before a section, in it and after it.
pub(crate) fn section<'a>(page: &'a str, name: &str) -> Option<[&'a str; 3]> {
    let [begin, end] = marks(name);
    let (before, rest) = page.split_once(&begin)?;
    let (text, after) = rest.split_once(&end)?;
    Some([before, text, after])
}

/// The page with a text between the marks of a section, which are added at the end if there are none.
pub(crate) fn with(page: &str, name: &str, text: &str) -> String {
    let [begin, end] = marks(name);
    let at_the_end = format!("{page}\n");
    let [before, _, after] = section(page, name).unwrap_or([&at_the_end, "", ""]);
    [before, &begin, text, &end, after].concat()
}

/// Where a limit is missed, a peer is faster or something was not measured, and how far it is to what we are held to.
///
/// A column called × has how many times a peer takes what we take; one called ratio, how many times we take what something simpler takes.
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
    let none = if rows.is_empty() { "\nThere is no such row.\n" } else { "" };
    format!("{HEAD}{none}{rows}\n{RATIOS}{ratios}")
}

const HEAD: &str = "\
## Where we lose

Found in the tables below by the command that writes them: every row with a missed limit (✗), with a peer that is faster (a number
below 1 in a column ×) or with a peer that could not be measured.
";

const RATIOS: &str = "\
And how many times we take what a table holds us to, by its column `ratio`: a plain read, a disk, the paper's rule.

| table | at least | at most |
|---|---|---|";

fn is_lost(header: &str, row: &str) -> bool {
    row.contains('✗') || row.contains("not measured") || named(header, row, "×").any(|gain| gain < 1.0)
}

/// The numbers of a row in columns whose names begin so.
fn named(header: &str, row: &str, name: &str) -> impl Iterator<Item = f64> {
    let columns = header.split('|').zip(row.split('|')).filter(move |(column, _)| column.trim().starts_with(name));
    columns.filter_map(|(_, cell)| {
        let cell = cell.trim();
        cell[..cell.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(cell.len())].parse().ok()
    })
}
