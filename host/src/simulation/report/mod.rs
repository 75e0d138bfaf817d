//! Reports of simulations: tables, plots and an HTML page.

mod plot;

pub use plot::{Axis, Plot, Point, Series, format_number};

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{AggregatorName, ScheduleName};
use crate::simulation::{Outcome, SimulationConfig};
use plot::{COLOURS, escape};

/// A finished run, with everything needed to reproduce it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the program.
    pub version: String,
    /// Configuration of the run.
    pub config: SimulationConfig,
    /// Results, with the seed.
    pub outcome: Outcome,
}

/// A plot of results over the values of a key.
struct KeyPlot {
    /// Keys that vary along a line.
    keys: &'static [&'static str],
    title: &'static str,
    x_label: &'static str,
    y_label: &'static str,
    log: (bool, bool),
    x: fn(&SimulationConfig) -> Option<f64>,
    y: fn(&Record) -> f64,
}

const KEY_PLOTS: [KeyPlot; 4] = [
    KeyPlot {
        keys: &["corrupt"],
        title: "Regret by share of corrupted agents",
        x_label: "share of corrupted agents",
        y_label: "regret relative to random",
        log: (false, true),
        x: |config| Some(config.corrupt),
        y: |record| record.outcome.total,
    },
    KeyPlot {
        keys: &["privacy"],
        title: "The cost of privacy",
        x_label: "μ (larger is less private)",
        y_label: "late regret relative to random",
        log: (true, true),
        x: |config| config.run.privacy.map(|privacy| privacy.0.mu()),
        y: |record| record.outcome.late,
    },
    KeyPlot {
        keys: &["steps", "episode-len"],
        title: "Regret by horizon",
        x_label: "steps T",
        y_label: "regret per honest agent after the first episode",
        log: (true, true),
        x: |config| Some(config.run.steps.into()),
        y: |record| record.outcome.after_first_episode / record.honest(),
    },
    KeyPlot {
        keys: &["episode-len"],
        title: "Regret by communication",
        x_label: "episode length L",
        y_label: "regret per honest agent",
        log: (true, true),
        x: |config| config.run.episode_len.map(f64::from),
        y: |record| record.outcome.regret / record.honest(),
    },
];

impl Record {
    fn honest(&self) -> f64 {
        (self.config.run.agents - self.config.corrupted()) as f64
    }

    /// Serializes the configuration without its aggregator and some keys. Records with the same text are comparable.
    fn config_without(&self, keys: &[&str]) -> String {
        let mut config = serde_json::to_value(&self.config).unwrap_or_default();
        if let Some(config) = config.as_object_mut() {
            config.retain(|key, _| key != "aggregator" && !keys.contains(&key.as_str()));
        }
        config.to_string()
    }
}

/// True if records differ in aggregator and seed only.
pub fn is_one_setting(records: &[&Record]) -> bool {
    grouped(records, |record| record.config_without(&[])).len() == 1
}

/// Groups records by a key, in order of first appearance.
fn grouped<'a>(records: &[&'a Record], key: impl Fn(&Record) -> String) -> Vec<Vec<&'a Record>> {
    let mut order: Vec<String> = Vec::new();
    let mut groups: BTreeMap<String, Vec<&Record>> = BTreeMap::new();
    for record in records {
        let key = key(record);
        if !groups.contains_key(&key) {
            order.push(key.clone());
        }
        groups.entry(key).or_default().push(record);
    }
    order.iter().filter_map(|key| groups.remove(key)).collect()
}

/// Mean and range of some values.
#[derive(Clone, Copy)]
struct Spread {
    mean: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.collect();
        Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn at(self, x: f64) -> Point {
        Point { x, y: self.mean, low: self.min, high: self.max }
    }
}

/// Plots cumulative regret per honest agent: mean and band over seeds. The records differ in aggregator and seed only.
pub fn regret_plot(records: &[&Record]) -> Plot {
    let line = |group: &Vec<&Record>| {
        let at = |index: usize| {
            let values = group.iter().filter_map(|r| Some(r.outcome.trace.get(index)?.regret / r.honest()));
            group[0].outcome.trace.get(index).map(|trace| Spread::of(values).at(trace.steps as f64))
        };
        let points = (0..group[0].outcome.trace.len()).filter_map(at).collect();
        series(group[0], points)
    };
    let mut lines: Vec<Series> =
        grouped(records, |record| record.outcome.aggregator.clone()).iter().map(line).collect();
    if let Some(first) = records.first() {
        let points = first
            .outcome
            .trace
            .iter()
            .map(|trace| Spread::of([trace.random / first.honest()].into_iter()).at(trace.steps as f64));
        lines.push(Series { name: "random".into(), colour: RANDOM, points: points.collect() });
    }
    Plot {
        title: "Regret under attack".into(),
        subtitle: records.first().map_or_else(String::new, |record| describe(&record.config)),
        x: Axis { label: "steps".into(), log: false },
        y: Axis { label: "cumulative regret per honest agent".into(), log: true },
        series: lines,
    }
}

/// Returns a plot for each key that varies: corruption, privacy, horizon and episode length.
pub fn varied_plots(records: &[&Record]) -> Vec<Plot> {
    let mut plots = Vec::new();
    for plot in &KEY_PLOTS {
        for group in grouped(records, |record| record.config_without(plot.keys)) {
            let series: Vec<Series> = grouped(&group, |record| record.outcome.aggregator.clone())
                .iter()
                .map(|line| plot.line(line))
                .filter(|series| series.points.len() >= 3)
                .collect();
            if !series.is_empty() {
                plots.push(Plot {
                    title: plot.title.into(),
                    subtitle: describe_without(&group[0].config, plot.keys),
                    x: Axis { label: plot.x_label.into(), log: plot.log.0 },
                    y: Axis { label: plot.y_label.into(), log: plot.log.1 },
                    series,
                });
            }
        }
    }
    plots
}

impl KeyPlot {
    fn line(&self, records: &[&Record]) -> Series {
        let mut by_x: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for record in records {
            if let Some(x) = (self.x)(&record.config) {
                // Bits of non-negative floats are ordered like the floats.
                by_x.entry(x.to_bits()).or_default().push((self.y)(record));
            }
        }
        let points = by_x.into_iter().map(|(x, values)| Spread::of(values.into_iter()).at(f64::from_bits(x)));
        series(records[0], points.collect())
    }
}

/// Colour of random choices, which no aggregator uses.
const RANDOM: usize = 9;

/// Creates the line of an aggregator, which has the same colour in all plots.
fn series(record: &Record, points: Vec<Point>) -> Series {
    const { assert!(AggregatorName::ALL.len() < COLOURS.len(), "too few colours for aggregators and random choices") };
    let place = AggregatorName::ALL.iter().position(|other| *other == record.config.run.aggregator).unwrap_or(0);
    let colour = if place < RANDOM { place } else { place + 1 };
    Series { name: record.outcome.aggregator.clone(), colour, points }
}

/// Lists the seeds of some records.
fn seeds(records: &[&Record]) -> String {
    format!("seeds {}", distinct(records, |record| record.outcome.seed.to_string()))
}

/// Lists the distinct keys of some records.
fn distinct(records: &[&Record], key: impl Fn(&Record) -> String) -> String {
    let groups = grouped(records, &key);
    groups.iter().map(|group| key(group[0])).collect::<Vec<_>>().join(", ")
}

/// Describes a configuration in a few words.
pub fn describe(config: &SimulationConfig) -> String {
    describe_without(config, &[])
}

fn describe_without(config: &SimulationConfig, keys: &[&str]) -> String {
    let run = &config.run;
    let mut text = format!("{} agents, d = {}", run.agents, run.dim);
    if !keys.contains(&"steps") {
        let _ = write!(text, ", {} steps", run.steps);
    }
    let _ = write!(text, ", {}", config.environment);
    if !keys.contains(&"corrupt") {
        let _ = write!(text, ", {} corrupted", config.corrupted());
    }
    let _ = write!(text, " ({})", config.attack);
    if run.schedule == ScheduleName::Theorem {
        text.push_str(", schedule of the theorem");
    }
    if let Some(privacy) = run.privacy.filter(|_| !keys.contains(&"privacy")) {
        let _ = write!(text, ", privacy {privacy}");
    }
    text
}

/// Returns the keys in which some records differ and that [`describe`] omits.
fn omitted_keys(records: &[&Record]) -> Vec<String> {
    const DESCRIBED: [&str; 9] =
        ["agents", "aggregator", "attack", "corrupt", "dim", "environment", "privacy", "schedule", "steps"];
    let configs: Vec<Value> =
        records.iter().map(|record| serde_json::to_value(&record.config).unwrap_or_default()).collect();
    let Some(Value::Object(first)) = configs.first() else { return Vec::new() };
    let differ = |(key, value): &(&String, &Value)| configs.iter().any(|config| config[key.as_str()] != **value);
    first.iter().filter(differ).map(|(key, _)| key.clone()).filter(|key| !DESCRIBED.contains(&key.as_str())).collect()
}

/// As [`describe`], with some more keys unless they are unset.
fn describe_with(config: &SimulationConfig, keys: &[String]) -> String {
    let mut text = describe(config);
    let values = serde_json::to_value(config).unwrap_or_default();
    for key in keys {
        let _ = match &values[key] {
            Value::Null => Ok(()),
            Value::String(value) => write!(text, ", {key} {value}"),
            value => write!(text, ", {key} {value}"),
        };
    }
    text
}

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
<p><small><b>regret/agent</b>: cumulative pseudo-regret per honest agent. <b>of random</b>: regret relative to uniformly random \
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
