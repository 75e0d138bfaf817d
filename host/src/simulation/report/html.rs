//! Records as tables for a terminal and as an HTML page.

use std::fmt::Write;

use super::plot::{escape, format_number};
use super::{Record, Spread, describe_with, distinct, grouped, omitted_keys, regret_plot, seeds, varied_plots};

/// A row of the table: runs that differ in their seed only.
struct Row {
    cells: [String; 8],
}

const COLUMNS: [&str; 8] =
    ["aggregator", "regret/agent", "of random", "late", "of oracle", "width ratio", "rejected", "repairs"];

impl Row {
    fn new(records: &[&Record]) -> Self {
        let mean = |value: fn(&Record) -> f64| Spread::of(records.iter().map(|record| value(record))).mean;
        // A ratio to zero regret is not finite.
        let hundredths = |value: f64, unit: &str| match value.is_finite() {
            true => format!("{} {unit}", format_number(value.round() / 100.0)),
            false => "–".into(),
        };
        let percent = |value: f64| hundredths(value * 1e4, "%");
        let ratio = |record: &Record| record.outcome.regret / record.outcome.regret_oracle.unwrap_or(f64::NAN);
        let widths = records.iter().filter_map(|record| record.outcome.width_ratio_max);
        let rejected: u64 = records.iter().flat_map(|record| record.outcome.rejected.values()).sum();
        let repairs: u64 = records.iter().map(|record| record.outcome.repairs).sum();
        Self {
            cells: [
                records[0].outcome.aggregator.clone(),
                format_number(mean(|record| record.outcome.regret / record.honest())),
                percent(mean(|record| record.outcome.total)),
                percent(mean(|record| record.outcome.late)),
                hundredths(mean(ratio) * 100.0, "×"),
                widths.reduce(f64::max).map_or_else(|| "–".into(), |width| format!("{width:.2}")),
                rejected.to_string(),
                repairs.to_string(),
            ],
        }
    }
}

/// Formats records as tables for a terminal, one per configuration.
pub fn text_table(records: &[&Record]) -> String {
    let mut text = String::new();
    let omitted = omitted_keys(records);
    for group in grouped(records, |record| record.config_without(&[])) {
        let _ = writeln!(text, "{}; {}", describe_with(&group[0].config, &omitted), seeds(&group));
        let rows = grouped(&group, |record| record.outcome.aggregator.clone());
        let mut cells = vec![COLUMNS.map(String::from)];
        cells.extend(rows.iter().map(|row| Row::new(row).cells));
        let widths: [usize; 8] =
            std::array::from_fn(|j| cells.iter().map(|row| row[j].chars().count()).max().unwrap_or(0));
        for row in &cells {
            let line =
                row.iter().zip(widths).enumerate().map(|(j, (cell, width))| {
                    if j == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                });
            let _ = writeln!(text, "  {}", line.collect::<Vec<_>>().join("  "));
        }
        text.push('\n');
    }
    text
}

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;font-size:.9rem;width:100%}\
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #8883}th:first-child,td:first-child{text-align:left}\
.scroll{overflow-x:auto}svg{width:100%;height:auto}code{font-size:.9em}small{opacity:.75}";

const GLOSSARY: &str = "\
<p><small><b>regret/agent</b>: cumulative pseudo-regret per honest agent, over the steps at which it was present. <b>of random</b>: regret relative to uniformly random \
choices on the same decision sets. <b>late</b>: the same over the second half of the steps. <b>of oracle</b>: regret relative \
to the mean over the honest agents only, on the same draws. <b>width ratio</b>: the largest \
‖θ<sub>k</sub> − θ*‖<sub>Λ</sub>/β<sub>k</sub>; above 1 the confidence region missed θ*. <b>rejected</b>: messages that \
counted as zero. <b>repairs</b>: models whose Λ was not positive definite. Numbers are means over seeds; bands show the range.</small></p>";

/// Renders a self-contained HTML page that loads nothing.
pub fn html(records: &[Record]) -> String {
    let all: Vec<&Record> = records.iter().collect();
    let settings = grouped(&all, |record| record.config_without(&[]));
    let omitted = omitted_keys(&all);
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>fedbandit report</title>\
         <style>{PAGE_STYLE}</style></head><body><h1>fedbandit report</h1>\
         <p>Regret of a federated linear bandit with corrupted agents, by aggregator.</p>"
    );
    // The configuration with the most runs comes first.
    let main = settings.iter().rev().max_by_key(|group| group.len());
    if let Some(main) = main {
        let _ = write!(page, "<figure>{}</figure>{}{GLOSSARY}", regret_plot(main).svg(), html_table(main, &omitted));
    }
    for plot in varied_plots(&all) {
        let _ = write!(page, "<figure>{}</figure>", plot.svg());
    }
    page.push_str("<details><summary>All configurations</summary>");
    settings.iter().for_each(|group| page.push_str(&html_table(group, &omitted)));
    let versions = distinct(&all, |record| record.version.clone());
    let _ = writeln!(page, "</details><p><small>fedbandit {}</small></p></body></html>", escape(&versions));
    page
}

fn html_table(group: &[&Record], omitted: &[String]) -> String {
    let setting = escape(&describe_with(&group[0].config, omitted));
    let mut page = format!("<h2>{setting}</h2><div class=\"scroll\"><table><tr>");
    COLUMNS.iter().for_each(|column| page.push_str(&format!("<th>{column}</th>")));
    page.push_str("</tr>");
    for row in grouped(group, |record| record.outcome.aggregator.clone()) {
        let cells = Row::new(&row).cells.map(|cell| format!("<td>{}</td>", escape(&cell)));
        let _ = write!(page, "<tr>{}</tr>", cells.concat());
    }
    let config = serde_json::to_string(&group[0].config).unwrap_or_default();
    let _ = write!(
        page,
        "</table></div><details><summary><small>configuration</small></summary><code>{}</code>; {}</details>",
        escape(&config),
        seeds(group)
    );
    page
}
