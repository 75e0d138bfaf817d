//! Plots of records.

use std::collections::BTreeMap;

use super::plot::{Axis, COLOURS, Plot, Point, Series};
use super::{Record, Spread, describe, describe_without, grouped};
use crate::config::AggregatorName;
use crate::simulation::SimulationConfig;

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
