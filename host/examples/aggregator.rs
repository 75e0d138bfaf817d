//! A custom aggregator against simulated attacks: the medoid, the point with the smallest mean distance from all points.
//! `cargo run --release -p fedbandit --example aggregator`

use std::fmt::Write as _;

use fedbandit::aggregate::{Aggregate, AggregateError, Aggregator, Points, certify, objective};
use fedbandit::algorithm::{Calibrated, PaperRule, Rule};
use fedbandit::config::{AggregatorName, ConfigError, RunConfig};
use fedbandit::simulation::{Attack, Logs, SimulationConfig, simulate, simulate_rule};

#[derive(Clone)]
struct Medoid;

impl Aggregator for Medoid {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        let distances = points.rows().map(|row| (objective(points, row), row));
        let nearest = distances.min_by(|a, b| a.0.total_cmp(&b.0)).ok_or(AggregateError::Empty)?;
        // Adds its quality as a geometric median, for logs and reports.
        Ok(certify(points, nearest.1.to_vec()))
    }
}

fn medoid() -> Box<dyn Rule + Send> {
    let schedule = Calibrated { corruption: 0.3, theta_bound: 1.0, noise: None };
    Box::new(PaperRule::new(Medoid, Medoid, schedule))
}

fn output() -> Result<String, ConfigError> {
    let run = RunConfig { agents: 40, dim: 4, steps: 1024, aggregator: AggregatorName::Mean, ..RunConfig::default() };
    let mut text = String::from("attack                  medoid    mean   (regret relative to random choices)\n");
    for attack in [Attack::Collude, Attack::Huge, Attack::WeakDirection, Attack::Adaptive] {
        let config = SimulationConfig { run, attack, ..SimulationConfig::default() };
        let medoid = simulate_rule(&config, &Logs::new(), 1, &medoid, &|_| {})?.total;
        let mean = simulate(&config, &Logs::new(), 1, &|_| {})?.total;
        let _ = writeln!(text, "{attack:<20} {:7.2} % {:5.0} %", 100.0 * medoid, 100.0 * mean);
        assert!(medoid < 0.2 && mean > 5.0 * medoid, "{attack}");
    }
    Ok(text)
}

fn main() -> Result<(), ConfigError> {
    output().map(|text| print!("{text}"))
}

#[test]
fn example_runs() {
    let block = format!("--example aggregator\n{}```\n", output().unwrap());
    assert!(include_str!("../../docs/guide/extend.md").contains(&block), "docs/guide/extend.md lacks\n{block}");
}
