//! Batches of runs, in parallel.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::config::SimulationConfig;
use super::outcome::Outcome;
use super::replay::Logs;
use super::run::simulate;
use crate::config::ConfigError;

/// A configuration and a seed to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Configuration of the run.
    pub config: SimulationConfig,
    /// Seed of the run.
    pub seed: u64,
}

impl Job {
    /// Returns a key that identifies the content of the job.
    pub fn key(&self) -> String {
        serde_json::json!([self.config, self.seed]).to_string()
    }

    fn oracle(&self) -> Self {
        Self { config: self.config.oracle(), seed: self.seed }
    }

    fn is_oracle(&self) -> bool {
        self.config.run.aggregator.is_oracle()
    }

    fn agent_steps(&self) -> u64 {
        let absent = if self.is_oracle() { self.config.corrupted() } else { 0 };
        (self.config.run.agents - absent) as u64 * u64::from(self.config.run.steps)
    }
}

/// Groups job indices by the oracle run that they share.
fn by_oracle(jobs: &[Job]) -> BTreeMap<String, Vec<usize>> {
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, job) in jobs.iter().enumerate() {
        groups.entry(job.oracle().key()).or_default().push(index);
    }
    groups
}

/// Returns the number of agent-steps that [`run_all`] will report.
pub fn agent_steps(jobs: &[Job]) -> u64 {
    let oracles = by_oracle(jobs).into_values().map(|group| jobs[group[0]].oracle().agent_steps());
    oracles.chain(jobs.iter().filter(|job| !job.is_oracle()).map(Job::agent_steps)).sum()
}

/// Runs all jobs on all threads, with one oracle run for all jobs that share it. `progress` is called with numbers of
/// agent-steps, and `finished` with the index and outcome of each finished job.
///
/// # Errors
/// A configuration is invalid.
pub fn run_all(
    jobs: &[Job],
    logs: &Logs,
    progress: &(dyn Fn(u64) + Sync),
    finished: &(dyn Fn(usize, &Outcome) + Sync),
) -> Result<Vec<Outcome>, ConfigError> {
    jobs.iter().try_for_each(|job| job.config.validate())?;
    let groups: Vec<Vec<usize>> = by_oracle(jobs).into_values().collect();
    let outcomes = groups.par_iter().map(|group| {
        let oracle = jobs[group[0]].oracle();
        let reference = simulate(&oracle.config, logs, oracle.seed, progress)?;
        let one = |index: &usize| {
            let job = &jobs[*index];
            let mut outcome = if job.is_oracle() {
                Outcome { attack: job.config.attack.to_string(), ..reference.clone() }
            } else {
                simulate(&job.config, logs, job.seed, progress)?
            };
            outcome.regret_oracle = Some(reference.regret);
            finished(*index, &outcome);
            Ok((*index, outcome))
        };
        group.par_iter().map(one).collect::<Result<Vec<_>, ConfigError>>()
    });
    let mut outcomes: Vec<_> = outcomes.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    outcomes.sort_by_key(|(index, _)| *index);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}
