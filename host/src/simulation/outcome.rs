//! Outcome of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// Outcome of a run.
///
/// An agent's regret at a step is the expected reward of the best action minus that of its choice, both under θ* at that step.
/// The *honest* agents are those that are never attacked. The others may be attacked on some steps only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Seed of the run.
    pub seed: u64,
    /// Name of the aggregator.
    pub aggregator: String,
    /// Name of the attack.
    pub attack: String,
    /// α.
    pub corrupt: f64,
    /// Name of the environment.
    pub environment: String,
    /// Privacy budget as `MU,NU`, if the run was private.
    pub privacy: Option<String>,
    /// Regret over all steps of the honest agents. Steps at which a device is absent count nowhere.
    pub regret: f64,
    /// Regret of uniformly random choices on the same decision sets.
    pub regret_random: f64,
    /// `regret` of [`SimulationConfig::oracle`](super::SimulationConfig::oracle), on the same draws.
    pub regret_oracle: Option<f64>,
    /// `regret` without the first episode.
    pub after_first_episode: f64,
    /// `regret` over `regret_random`: 0 is perfect, 1 is random. NaN, in files null, if there was never a choice.
    #[serde(deserialize_with = "or_nan")]
    pub total: f64,
    /// `total` over the second half of the steps.
    #[serde(deserialize_with = "or_nan")]
    pub late: f64,
    /// Regret of the other agents over the steps on which they were not attacked.
    pub attacked_regret: f64,
    /// `attacked_regret` over that of random choices; `None` if there are no such steps.
    pub attacked_total: Option<f64>,
    /// The paper's R_T: regret over all steps that were not attacked, of any agent (i ∈ 𝒩_0^t). The sum of `regret` and
    /// `attacked_regret`.
    pub robust_regret: f64,
    /// ‖θ − θ*‖₂ of the last model; `None` without a true θ*. For `solo`, the mean over honest agents. A θ* that moves is taken
    /// at the first step of the model's episode.
    pub theta_error: Option<f64>,
    /// Largest ‖θ_k − θ*‖_Λ/β_k of all models with k > 1, with θ* as in `theta_error`. Above 1, a width was too small. For
    /// `solo`, the largest over all honest agents as well.
    pub width_ratio_max: Option<f64>,
    /// Share of the models of `width_ratio_max` whose ratio is above 1; for `solo`, of the models of all honest agents. 0 if there is
    /// no such model, and `None` where `width_ratio_max` is.
    #[serde(default)]
    pub width_ratio_share: Option<f64>,
    /// Largest ‖θ − θ*‖_Λ/β of the ellipsoids that honest guarded devices used; `None` without guards.
    #[serde(default)]
    pub device_width_ratio_max: Option<f64>,
    /// Bytes of all summary frames, without serial framing.
    pub bytes_up: u64,
    /// Bytes of all model frames.
    pub bytes_down: u64,
    /// Number of messages that counted as zero, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Number of models whose Λ was repaired.
    pub repairs: u64,
    /// Number of alarms of all guards.
    #[serde(default)]
    pub alarms: u64,
    /// Agent-steps per second of CPU time of the virtual devices. All other values are reproducible.
    pub agent_steps_per_cpu_second: f64,
    /// Up to [`MAX_TRACE_LEN`] episodes.
    pub trace: Vec<Trace>,
}

fn or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// State of a run at the end of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// k.
    pub episode: u32,
    /// Steps since the start of the run.
    pub steps: u64,
    /// Cumulative regret of the honest agents.
    pub regret: f64,
    /// Cumulative regret of random choices.
    pub random: f64,
    /// λ_k; `None` for `solo`, where each agent has its own model.
    pub lambda: Option<f64>,
    /// β_k; `None` for `solo`.
    pub beta: Option<f64>,
    /// ‖θ_k − θ*‖_Λ/β_k; `None` for `solo` and without a true θ*.
    pub width_ratio: Option<f64>,
}

/// Largest number of entries of a trace.
pub const MAX_TRACE_LEN: usize = 128;
