//! Checks and tables of the recommended rule in every kind of fleet.

use std::collections::BTreeSet;
use std::fmt::Write;

use fedbandit::config::{AggregatorName, RunConfig};
use fedbandit::simulation::report::Record;
use fedbandit::simulation::{GuardName, Participation, SimulationConfig};

use super::checks::{AtMost, Check, Unlimited};
use super::tables::{by_setting, differing, mean_total, width};

/// Limits on the mean total under the worst attack at 30 % corruption, by kind of fleet.
const LIMITS: [(&str, f64); 9] = [
    ("ball", 0.006),
    ("skew", 0.025),
    ("fixed-arms", 0.045),
    ("shared", f64::INFINITY),
    ("unequal", 0.03),
    ("mixture", 0.04),
    ("late", 0.06),
    ("stretches", 0.015),
    ("sleepy", 0.012),
];

/// Returns the participation if it is not `always`, else the environment.
fn kind(config: &SimulationConfig) -> String {
    match config.participation {
        Participation::Always => config.environment.to_string(),
        other => other.to_string(),
    }
}

/// Returns the attack with the largest mean total, and that total.
fn worst<'a>(groups: &[Vec<&'a Record>], of: impl Fn(&SimulationConfig) -> bool) -> (f64, &'a str) {
    let of = groups.iter().filter(|group| of(&group[0].config));
    of.map(|group| (mean_total(group), group[0].outcome.attack.as_str()))
        .fold((0.0, "–"), |worst, cell| if cell.0 > worst.0 { cell } else { worst })
}

pub(super) fn limit_checks(records: &[Record]) -> Vec<Check> {
    let groups = by_setting(records);
    let mut checks = Vec::new();
    for (fleet, limit) in LIMITS {
        for (guard, text) in [(GuardName::Off, "unguarded"), (GuardName::On, "guarded")] {
            let (total, attack) = worst(&groups, |config| kind(config) == fleet && config.guard() == guard);
            let limit = if limit.is_finite() { AtMost(limit) } else { Unlimited };
            checks.push(Check::new(format!("{fleet}, {text}, worst attack ({attack}), total"), total, limit));
        }
    }
    let widest = groups.iter().map(|group| width(group)).fold(f64::NAN, f64::max);
    checks.push(Check::new("every fleet and attack, largest width ratio", widest, AtMost(1.0)));
    checks
}

/// A row for each attack, and a column of totals for each kind of fleet.
pub(super) fn limit_table(records: &[Record]) -> String {
    let groups = by_setting(records);
    let mut text = String::from("\n| attack | guard |");
    LIMITS.iter().for_each(|(fleet, _)| {
        let _ = write!(text, " {fleet} |");
    });
    let _ = writeln!(text, "\n|{}", "---|".repeat(2 + LIMITS.len()));
    let attacks: BTreeSet<_> = records.iter().map(|record| record.config.attack).collect();
    for attack in attacks {
        for guard in [GuardName::Off, GuardName::On] {
            let _ = write!(text, "| {attack} | {guard} |");
            for (fleet, _) in LIMITS {
                let of = |config: &SimulationConfig| {
                    kind(config) == fleet && config.attack == attack && config.guard() == guard
                };
                let _ = match groups.iter().find(|group| of(&group[0].config)) {
                    Some(group) => write!(text, " {:.4} |", mean_total(group)),
                    None => write!(text, " – |"),
                };
            }
            text.push('\n');
        }
    }
    text
}

/// Runs of one setting with several rules.
struct Cell<'a> {
    recommended: Vec<&'a Record>,
    others: Vec<Vec<&'a Record>>,
}

impl<'a> Cell<'a> {
    fn all(records: &'a [Record]) -> Vec<Self> {
        let groups = by_setting(records);
        let is_recommended = |group: &&Vec<&Record>| group[0].config.run.aggregator == AggregatorName::RECOMMENDED;
        let cell = |recommended: &Vec<&'a Record>| {
            let config = &recommended[0].config;
            let rival = |group: &&Vec<&Record>| {
                let other = &group[0].config;
                let run = RunConfig { aggregator: other.run.aggregator, ..config.run };
                !is_recommended(group) && *other == SimulationConfig { run, ..config.clone() }
            };
            Self { recommended: recommended.clone(), others: groups.iter().filter(rival).cloned().collect() }
        };
        groups.iter().filter(is_recommended).map(cell).collect()
    }

    fn best_other(&self) -> &[&'a Record] {
        let others = self.others.iter().min_by(|a, b| mean_total(a).total_cmp(&mean_total(b)));
        others.expect("each setting has another rule")
    }

    /// Returns the regret relative to the best other rule.
    fn ratio(&self) -> f64 {
        mean_total(&self.recommended) / mean_total(self.best_other())
    }

    fn config(&self) -> &SimulationConfig {
        &self.recommended[0].config
    }

    /// Returns true if no more agents are corrupted than the rule is designed for.
    fn is_designed_for(&self) -> bool {
        self.config().corrupt <= self.config().run.design_corruption.unwrap_or(0.3)
    }
}

pub(super) fn suite_checks(records: &[Record]) -> Vec<Check> {
    let cells = Cell::all(records);
    let worst = cells.iter().map(Cell::ratio).fold(f64::NAN, f64::max);
    let above = cells.iter().filter(|cell| cell.ratio() > 1.1).count();
    let mean = cells.iter().map(|cell| cell.ratio().ln()).sum::<f64>() / cells.len() as f64;
    let designed = cells.iter().filter(|cell| cell.is_designed_for());
    let widest = designed.map(|cell| width(&cell.recommended)).fold(f64::NAN, f64::max);
    vec![
        Check::new("regret relative to the best other rule, worst cell", worst, AtMost(1.1)),
        Check::new(format!("cells above 1.1, of {}", cells.len()), above as f64, AtMost(0.0)),
        Check::new("geometric mean over all cells", mean.exp(), Unlimited),
        Check::new("largest width ratio", widest, AtMost(1.0)),
    ]
}

/// A row for each setting, those in which the recommended rule does worst first.
pub(super) fn suite_table(records: &[Record]) -> String {
    let mut text = String::from(
        "\n| setting | participation | corrupted | attack | total | width | best other rule | its total | ratio |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let mut cells = Cell::all(records);
    cells.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
    for cell in &cells {
        let (config, other) = (cell.config(), cell.best_other());
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.4} | {:.2} | {} | {:.4} | {:.2} |",
            differing(config),
            config.participation,
            config.corrupt,
            config.attack,
            mean_total(&cell.recommended),
            width(&cell.recommended),
            other[0].outcome.aggregator,
            mean_total(other),
            cell.ratio()
        );
    }
    text
}
