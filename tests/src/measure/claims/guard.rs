//! Checks and tables of the guard.

use std::fmt::Write;

use fedbandit::simulation::report::Record;
use fedbandit::simulation::{Attack, GuardName};

use super::checks::{AtMost, Check, Unlimited};
use super::tables::{by_setting, mean_total, width};

/// Guarded runs that differ in their seed only, with the runs that they are compared with on the same draws.
struct Cell<'a> {
    guarded: Vec<&'a Record>,
    unguarded: Option<Vec<&'a Record>>,
    solo: Vec<&'a Record>,
}

/// Quantiles of Student's t at 97.5 %, by degrees of freedom, for three, five and twenty seeds.
const STUDENT: [(usize, f64); 3] = [(2, 4.303), (4, 2.776), (19, 2.093)];

impl<'a> Cell<'a> {
    fn all(records: &'a [Record]) -> Vec<Self> {
        let groups = by_setting(records);
        let is_solo = |group: &Vec<&Record>| group[0].outcome.aggregator == "solo";
        let guard = |group: &Vec<&Record>| group[0].config.guard();
        let guarded = groups.iter().filter(|group| !is_solo(group) && guard(group) != GuardName::Off);
        let cell = |guarded: &Vec<&'a Record>| {
            let config = &guarded[0].config;
            let same_fleet = |other: &&Vec<&Record>| {
                let other = &other[0].config;
                (&config.environment, config.corrupted(), config.run.agents)
                    == (&other.environment, other.corrupted(), other.run.agents)
            };
            let is_unguarded = |other: &&Vec<&Record>| {
                let other_config = &other[0].config;
                let same = (config.attack, config.run.aggregator) == (other_config.attack, other_config.run.aggregator);
                same && guard(other) == GuardName::Off && config.attack.is_by_agents()
            };
            // Some settings have more seeds than others.
            let paired = |other: &Vec<&'a Record>| -> Vec<&'a Record> {
                let of_seed = |record: &&Record| {
                    let seed = record.outcome.seed;
                    *other.iter().find(|other| other.outcome.seed == seed).expect("a run of the same seed")
                };
                guarded.iter().map(of_seed).collect()
            };
            let of_fleet = || groups.iter().filter(same_fleet);
            Self {
                guarded: guarded.clone(),
                unguarded: of_fleet().find(is_unguarded).map(paired),
                solo: of_fleet().find(|group| is_solo(group)).map(paired).expect("the same devices alone"),
            }
        };
        guarded.map(cell).collect()
    }

    /// Returns the runs that the guarded ones are compared with: those with less regret.
    fn reference(&self) -> &[&'a Record] {
        match &self.unguarded {
            Some(unguarded) if mean_total(unguarded) < mean_total(&self.solo) => unguarded,
            _ => &self.solo,
        }
    }

    /// Returns the regret relative to the reference.
    fn ratio(&self) -> f64 {
        regret(&self.guarded) / regret(self.reference())
    }

    /// Returns half the length of a 95 % interval of the ratio, by the delta method over paired seeds.
    fn uncertainty(&self) -> f64 {
        let (ratio, n) = (self.ratio(), self.guarded.len());
        let pairs = self.guarded.iter().zip(self.reference());
        let squares: f64 = pairs.map(|(a, b)| (a.outcome.regret - ratio * b.outcome.regret).powi(2)).sum();
        let t = STUDENT.iter().find(|(freedom, _)| freedom + 1 == n).map_or(f64::NAN, |(_, t)| *t);
        t * (squares / (n - 1) as f64 * n as f64).sqrt() / regret(self.reference())
    }

    fn is(&self, aggregator: &str) -> bool {
        self.guarded[0].outcome.aggregator == aggregator
    }

    fn guard(&self) -> GuardName {
        self.guarded[0].config.guard()
    }

    fn device_width(&self) -> f64 {
        self.guarded.iter().filter_map(|record| record.outcome.device_width_ratio_max).fold(f64::NAN, f64::max)
    }
}

fn regret(records: &[&Record]) -> f64 {
    records.iter().map(|record| record.outcome.regret).sum()
}

fn worst<'a>(cells: impl IntoIterator<Item = &'a Cell<'a>>) -> f64 {
    cells.into_iter().map(Cell::ratio).fold(f64::NAN, f64::max)
}

/// Checks of guarded devices among a minority of corrupted ones, with one rule.
fn minority_checks(cells: &[Cell<'_>], aggregator: &str) -> Vec<Check> {
    let cells: Vec<&Cell<'_>> = minority(cells, aggregator).collect();
    let covered = cells.iter().filter(|cell| width(&cell.guarded) <= 1.0);
    let device_width = covered.map(|cell| cell.device_width()).fold(f64::NAN, f64::max);
    let title = aggregator.replace('-', " ");
    let name = |limit: &str| format!("{title}, regret relative to the better of alone and unguarded, {limit}");
    let in_use = format!("{title}, largest width in use where that of models is at most 1");
    vec![
        Check::new(name("mean over all cells"), mean(&cells), AtMost(1.02)),
        Check::new(name("worst cell"), worst(cells.iter().copied()), AtMost(1.15)),
        Check::new(in_use, device_width, AtMost(1.0)),
    ]
}

/// Returns the cells of a rule with the guard `on` and at most a minority of corrupted devices.
fn minority<'a, 'b>(cells: &'a [Cell<'b>], aggregator: &str) -> impl Iterator<Item = &'a Cell<'b>> {
    cells.iter().filter(move |cell| {
        let config = &cell.guarded[0].config;
        cell.is(aggregator) && cell.guard() == GuardName::On && config.attack.is_by_agents() && config.corrupt < 0.5
    })
}

fn mean(cells: &[&Cell<'_>]) -> f64 {
    cells.iter().map(|cell| cell.ratio()).sum::<f64>() / cells.len() as f64
}

pub(super) fn checks(records: &[Record]) -> Vec<Check> {
    let cells = Cell::all(records);
    let median: Vec<&Cell<'_>> = minority(&cells, "geometric-median").collect();
    let paper = |limit: &str| format!("geometric median, the same, {limit}");
    let mut checks = minority_checks(&cells, "whitened-filter");
    checks.push(Check::new(paper("mean over all cells"), mean(&median), Unlimited));
    checks.push(Check::new(paper("worst cell"), worst(median.iter().copied()), Unlimited));
    checks
}

/// Checks of the recommended rule among a minority and among a majority.
pub(super) fn recommended_checks(records: &[Record]) -> Vec<Check> {
    let mut checks = minority_checks(&Cell::all(records), "capped-filter");
    checks.extend(majority_checks(records));
    checks
}

pub(super) fn majority_checks(records: &[Record]) -> Vec<Check> {
    let cells = Cell::all(records);
    let check = |share: f64| {
        let of = cells.iter().filter(|cell| cell.guarded[0].config.corrupt == share);
        let what = format!("{:.0} % corrupted, regret relative to alone, worst cell", 100.0 * share);
        Check::new(what, worst(of), AtMost(1.5))
    };
    vec![check(0.6), check(0.9)]
}

pub(super) fn hostile_checks(records: &[Record]) -> Vec<Check> {
    let cells = Cell::all(records);
    let check = |guard: GuardName, limit| {
        let of = cells.iter().filter(|cell| cell.guard() == guard);
        Check::new(format!("guard {guard}, regret relative to alone, worst cell"), worst(of), limit)
    };
    vec![check(GuardName::Untrusting, AtMost(2.5)), check(GuardName::On, Unlimited)]
}

pub(super) fn table(records: &[Record]) -> String {
    let mut text = String::from(
        "\n| environment | corrupted | attack | aggregator | guard | alone | unguarded | guarded | ratio | width | width in use | alarms per device \
         |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for cell in Cell::all(records) {
        let Record { config, outcome, .. } = cell.guarded[0];
        let attack = match config.attack {
            Attack::HostileController => format!("{}, {}", outcome.attack, config.forgery),
            _ => outcome.attack.clone(),
        };
        let alarms: u64 = cell.guarded.iter().map(|record| record.outcome.alarms).sum();
        let width = if config.attack == Attack::HostileController { f64::NAN } else { width(&cell.guarded) };
        let _ = writeln!(
            text,
            "| {} | {} | {attack} | {} | {} | {:.4} | {} | {:.4} | {:.2} ± {:.2} | {} | {:.2} | {:.2} |",
            outcome.environment,
            config.corrupted() as f64 / config.run.agents as f64,
            outcome.aggregator,
            cell.guard(),
            mean_total(&cell.solo),
            cell.unguarded.as_ref().map_or("–".into(), |group| format!("{:.4}", mean_total(group))),
            mean_total(&cell.guarded),
            cell.ratio(),
            cell.uncertainty(),
            if width.is_nan() { "–".into() } else { format!("{width:.2}") },
            cell.device_width(),
            alarms as f64 / (config.run.agents * cell.guarded.len()) as f64,
        );
    }
    text
}
