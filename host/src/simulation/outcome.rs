//! What comes out of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// What came out of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The run's seed.
    pub seed: u64,
    /// The aggregator's name.
    pub aggregator: String,
    /// The attack's name.
    pub attack: String,
    /// α.
    pub corrupt: f64,
    /// The environment's name.
    pub environment: String,
    /// `MU,NU`, if the run was private.
    pub privacy: Option<String>,
    /// Regret over all steps of the honest agents.
    pub regret: f64,
    /// The same for choices that are uniformly random, on the same decision sets.
    pub regret_random: f64,
    /// The same for [`SimulationConfig::oracle`](super::Config::oracle), on the same draws.
    pub regret_oracle: Option<f64>,
    /// `regret` without the first episode.
    pub after_first_episode: f64,
    /// `regret` over `regret_random`: 0 is perfect, 1 is random. NaN, in files null, where nobody had a choice.
    #[serde(deserialize_with = "or_nan")]
    pub total: f64,
    /// The same over the second half of the steps.
    #[serde(deserialize_with = "or_nan")]
    pub late: f64,
    /// The regret of attacked agents over the steps on which they were not attacked; with `regret`, the paper's R_T.
    pub attacked_regret: f64,
    /// The same over that of random choices on these steps; none without such steps.
    pub attacked_total: Option<f64>,
    /// ‖θ − θ*‖₂ of the last model; none without a true θ*. For `solo` the mean over honest agents.
    pub theta_error: Option<f64>,
    /// The largest ‖θ_k − θ*‖_Λ/β_k of all models with k > 1; above 1, a width was too small.
    pub width_ratio_max: Option<f64>,
    /// Bytes of all summaries' frames, before they are framed for a serial line.
    pub bytes_up: u64,
    /// Bytes of all models' frames.
    pub bytes_down: u64,
    /// Messages that counted as zero, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Models whose Λ was repaired.
    pub repairs: u64,
    /// Agent-steps per second of CPU time that the virtual devices took. All else is the same in every rerun.
    pub agent_steps_per_cpu_second: f64,
    /// Up to [`MAX_TRACE_LEN`] episodes.
    pub trace: Vec<Trace>,
}

fn or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// A run at the end of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// k.
    pub episode: u32,
    /// Steps since the start of the run.
    pub steps: u64,
    /// Cumulative regret of the honest agents.
    pub regret: f64,
    /// The same for random choices.
    pub random: f64,
    /// λ_k; none where everybody has their own.
    pub lambda: Option<f64>,
    /// β_k.
    pub beta: Option<f64>,
    /// ‖θ_k − θ*‖_Λ/β_k.
    pub width_ratio: Option<f64>,
}

/// The most entries of a trace.
pub const MAX_TRACE_LEN: usize = 128;
