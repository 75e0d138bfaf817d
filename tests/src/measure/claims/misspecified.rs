//! Checks and table of the section about wrong constants.

use std::fmt::Write;

use fedbandit::simulation::SimulationConfig;
use fedbandit::simulation::report::Record;

use super::checks::{AtMost, Check, Limit, Unlimited};
use super::tables::{by_setting, mean_total, width};

/// Assumption of the rule: a column of the table.
struct Assumed {
    title: &'static str,
    rewards: Option<&'static str>,
    theta_norm: Option<f64>,
    /// Limits of the regret relative to known R and S, and of the width ratio.
    limits: (Limit, Limit),
}

const ASSUMED: [Assumed; 6] = [
    Assumed { title: "R and S", rewards: None, theta_norm: None, limits: (Unlimited, AtMost(1.0)) },
    Assumed { title: "R/2", rewards: Some("gaussian:0.25"), theta_norm: None, limits: (Unlimited, Unlimited) },
    Assumed { title: "2R", rewards: Some("gaussian:1"), theta_norm: None, limits: (Unlimited, AtMost(1.0)) },
    Assumed { title: "auto", rewards: Some("auto:2"), theta_norm: None, limits: (AtMost(2.0), AtMost(1.0)) },
    Assumed { title: "S/2", rewards: None, theta_norm: Some(0.5), limits: (Unlimited, Unlimited) },
    Assumed { title: "2S", rewards: None, theta_norm: Some(2.0), limits: (AtMost(2.0), AtMost(1.0)) },
];

impl Assumed {
    fn is_of(&self, config: &SimulationConfig) -> bool {
        let rewards = config.assumed_rewards.map(|rewards| rewards.to_string());
        rewards.as_deref() == self.rewards && config.assumed_theta_norm == self.theta_norm
    }
}

/// Returns, for each environment and attack, the runs of each assumption.
fn rows(records: &[Record]) -> Vec<[Vec<&Record>; 6]> {
    let groups = by_setting(records);
    let world = |config: &SimulationConfig| SimulationConfig {
        assumed_rewards: None,
        assumed_theta_norm: None,
        ..config.clone()
    };
    let known = groups.iter().filter(|group| ASSUMED[0].is_of(&group[0].config));
    known
        .map(|row| {
            ASSUMED.map(|assumed| {
                let of =
                    |group: &&Vec<&Record>| assumed.is_of(&group[0].config) && world(&group[0].config) == row[0].config;
                groups.iter().find(of).cloned().unwrap_or_default()
            })
        })
        .collect()
}

pub(super) fn checks(records: &[Record]) -> Vec<Check> {
    let rows = rows(records);
    let mut checks = Vec::new();
    for (at, Assumed { title, limits, .. }) in ASSUMED.iter().enumerate() {
        if at > 0 {
            let ratios = rows.iter().map(|row| mean_total(&row[at]) / mean_total(&row[0]));
            let what = format!("{title}, largest regret relative to known R and S");
            checks.push(Check::new(what, ratios.fold(f64::NAN, f64::max), limits.0));
        }
        let widest = rows.iter().map(|row| width(&row[at])).fold(f64::NAN, f64::max);
        checks.push(Check::new(format!("{title}, largest width ratio"), widest, limits.1));
    }
    checks
}

/// A row for each environment and attack; total and, in brackets, width ratio for each assumption.
pub(super) fn table(records: &[Record]) -> String {
    let titles = ASSUMED.map(|assumed| assumed.title).join(" | ");
    let mut text = format!("\n| environment | attack | {titles} |\n|{}\n", "---|".repeat(2 + ASSUMED.len()));
    for row in rows(records) {
        let outcome = &row[0][0].outcome;
        let _ = write!(text, "| {} | {} |", outcome.environment, outcome.attack);
        for group in &row {
            let _ = write!(text, " {:.4} ({:.2}) |", mean_total(group), width(group));
        }
        text.push('\n');
    }
    text
}
