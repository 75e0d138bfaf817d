//! Tables of the page.

use std::collections::BTreeSet;
use std::fmt::Write;

use fedbandit::config::RunConfig;
use fedbandit::simulation::SimulationConfig;
use fedbandit::simulation::report::{self, Record};

pub(super) fn whitened_table(records: &[Record]) -> String {
    let mut text = String::from(
        "\n| setting | corrupted | attack | aggregator | total | late | width | × oracle |\n|---|---|---|---|---|---|---|---|\n",
    );
    let groups = by_setting(records);
    for group in &groups {
        let Record { config, outcome, .. } = group[0];
        let same = |other: &&Vec<&Record>| {
            let other = &other[0].config;
            let run = RunConfig { aggregator: other.run.aggregator, ..config.run };
            *other == SimulationConfig { run, ..config.clone() }
        };
        let rivals: Vec<f64> = groups.iter().filter(same).map(|group| mean_total(group)).collect();
        let best = rivals.len() > 1 && rivals.iter().all(|rival| mean_total(group) <= *rival);
        let mark = if best { "**" } else { "" };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {mark}{}{mark} | {} | {:.2} | {:.2} |",
            differing(config),
            config.corrupt,
            outcome.attack,
            outcome.aggregator,
            spread(group, |r| r.outcome.total),
            spread(group, |r| r.outcome.late),
            width(group),
            of_oracle(group)
        );
    }
    text
}

/// A row for each setting, and a column of totals for each half-life. The smallest total of a row is bold.
pub(super) fn forget_table(records: &[Record]) -> String {
    let half_lives: BTreeSet<u32> = records.iter().filter_map(|record| record.config.run.forget).collect();
    let columns: Vec<Option<u32>> = [None].into_iter().chain(half_lives.into_iter().map(Some)).collect();
    let mut text = String::from("\n| environment | corrupted | attack | guard | aggregator |");
    for half_life in &columns {
        let _ = write!(text, " {} |", half_life.map_or_else(|| "no H".into(), |half_life| format!("H = {half_life}")));
    }
    text += &format!("\n|{}\n", "---|".repeat(5 + columns.len()));
    let groups = by_setting(records);
    let with = |config: &SimulationConfig, forget| SimulationConfig {
        run: RunConfig { forget, ..config.run },
        ..config.clone()
    };
    for group in groups.iter().filter(|group| group[0].config.run.forget.is_none()) {
        let Record { config, outcome, .. } = group[0];
        let cells: Vec<Option<f64>> = columns
            .iter()
            .map(|half_life| groups.iter().find(|other| other[0].config == with(config, *half_life)))
            .map(|group| group.map(|group| mean_total(group)))
            .collect();
        let least = cells.iter().copied().flatten().fold(f64::MAX, f64::min);
        let _ = write!(
            text,
            "| {} | {} | {} | {} | {} |",
            outcome.environment,
            config.corrupt,
            outcome.attack,
            config.guard(),
            outcome.aggregator
        );
        for cell in cells {
            let _ = match cell {
                Some(total) if total == least => write!(text, " **{total:.4}** |"),
                Some(total) => write!(text, " {total:.4} |"),
                None => write!(text, " – |"),
            };
        }
        text.push('\n');
    }
    text
}

/// Describes the environment and the settings that differ from the table of attacks.
pub(super) fn differing(config: &SimulationConfig) -> String {
    let mut text = config.environment.to_string();
    let (own, usual) = (config.run, RunConfig::default());
    let mut add = |differs: bool, what: String| {
        if differs {
            text.push_str(&what);
        }
    };
    add(own.agents != usual.agents, format!(", N = {}", own.agents));
    add(own.dim != usual.dim, format!(", d = {}", own.dim));
    add(own.steps != usual.steps, format!(", T = {}", own.steps));
    add(own.theta_norm != usual.theta_norm, format!(", ‖θ*‖ = {:.2}", own.theta_norm));
    add(own.rewards != usual.rewards, format!(", {}", own.rewards));
    add(own.design_corruption.is_some(), format!(", a = {}", own.design_corruption.unwrap_or_default()));
    add(own.first_episode.is_some(), format!(", L₁ = {}", own.first_episode.unwrap_or_default()));
    add(own.first_episodes.is_some(), format!(", {} of L₁", own.first_episodes.unwrap_or_default()));
    text
}

/// Groups runs that differ in their seed only.
pub(super) fn by_setting(records: &[Record]) -> Vec<Vec<&Record>> {
    let mut groups: Vec<Vec<&Record>> = Vec::new();
    for record in records {
        match groups.iter_mut().find(|group| group[0].config == record.config) {
            Some(group) => group.push(record),
            None => groups.push(vec![record]),
        }
    }
    groups
}

/// Formats the mean [minimum, maximum].
fn spread(group: &[&Record], value: impl Fn(&Record) -> f64) -> String {
    let values: Vec<f64> = group.iter().map(|record| value(record)).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
    if values.len() == 1 { format!("{mean:.4}") } else { format!("{mean:.4} [{least:.4}, {most:.4}]") }
}

pub(super) fn width(group: &[&Record]) -> f64 {
    group.iter().filter_map(|record| record.outcome.width_ratio_max).fold(f64::NAN, f64::max)
}

pub(super) fn no_table(_: &[Record]) -> String {
    String::new()
}

pub(super) fn attack_table(records: &[Record]) -> String {
    let mut text = String::from(
        "\n| environment | corrupted | attack | aggregator | total | late | R_T | width |\n|---|---|---|---|---|---|---|---|\n",
    );
    for group in by_setting(records) {
        let Record { config, outcome, .. } = group[0];
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {:.0} | {:.2} |",
            outcome.environment,
            config.corrupt,
            outcome.attack,
            outcome.aggregator,
            spread(&group, |r| r.outcome.total),
            spread(&group, |r| r.outcome.late),
            robust_regret(&group),
            width(&group)
        );
    }
    text
}

pub(super) fn setting_table(records: &[Record]) -> String {
    let mut text = String::from("\n| setting | aggregator | total | late | width |\n|---|---|---|---|---|\n");
    for group in by_setting(records) {
        let Record { config, outcome, .. } = group[0];
        let mut setting = report::describe(config);
        if config.run.privacy.is_some() {
            let _ = write!(setting, ", {}", config.run.mechanism);
        }
        if let Some(length) = config.run.episode_len {
            let _ = write!(setting, ", L = {length}");
        }
        let (total, late) = (spread(&group, |r| r.outcome.total), spread(&group, |r| r.outcome.late));
        let _ = writeln!(text, "| {setting} | {} | {total} | {late} | {:.2} |", outcome.aggregator, width(&group));
    }
    text
}

pub(super) fn horizon_table(records: &[Record]) -> String {
    let mut text = String::from(
        "\n| T | aggregator | regret per honest agent | without the first episode | bytes sent per agent |\n|---|---|---|---|---|\n",
    );
    for record in records {
        let honest = (record.config.run.agents - record.config.corrupted()) as f64;
        let _ = writeln!(
            text,
            "| {} | {} | {:.1} | {:.1} | {} |",
            record.config.run.steps,
            record.outcome.aggregator,
            record.outcome.regret / honest,
            record.outcome.after_first_episode / honest,
            record.outcome.bytes_up / record.config.run.agents as u64
        );
    }
    text
}

pub(super) fn solo_table(records: &[Record]) -> String {
    let mut text =
        String::from("\n| T | aggregator | attacked agents | honest agents | R_T |\n|---|---|---|---|---|\n");
    for group in by_setting(records) {
        let attacked = spread(&group, |r| r.outcome.attacked_total.unwrap_or(f64::NAN));
        let honest = spread(&group, |r| r.outcome.total);
        let _ = writeln!(
            text,
            "| {} | {} | {attacked} | {honest} | {:.0} |",
            group[0].config.run.steps,
            group[0].outcome.aggregator,
            robust_regret(&group)
        );
    }
    text
}

pub(super) fn theorem_table(records: &[Record]) -> String {
    let mut text =
        String::from("\n| T | schedule | λ, last | β, last | total | late | width |\n|---|---|---|---|---|---|---|\n");
    for record in records {
        let last = record.outcome.trace.last();
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {:.1} | {:.3} | {:.3} | {:.2} |",
            record.config.run.steps,
            record.config.run.schedule,
            last.and_then(|trace| trace.lambda).unwrap_or(f64::NAN),
            last.and_then(|trace| trace.beta).unwrap_or(f64::NAN),
            record.outcome.total,
            record.outcome.late,
            width(&[record])
        );
    }
    text
}

/// Returns the mean of the paper's R_T.
fn robust_regret(group: &[&Record]) -> f64 {
    group.iter().map(|record| record.outcome.robust_regret).sum::<f64>() / group.len() as f64
}

/// Returns the regret relative to the oracle's, over runs that differ in their seed only.
pub(super) fn of_oracle(group: &[&Record]) -> f64 {
    let oracle: f64 = group.iter().filter_map(|record| record.outcome.regret_oracle).sum();
    group.iter().map(|record| record.outcome.regret).sum::<f64>() / oracle
}

pub(super) fn mean_total(group: &[&Record]) -> f64 {
    group.iter().map(|record| record.outcome.total).sum::<f64>() / group.len() as f64
}
