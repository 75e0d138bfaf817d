//! Settings of a run, the same for a simulation and a service.

use super::choices::{AggregatorName, Privacy, RewardKind, ScheduleName};
use super::keys::configuration;
use super::resolve::ResolvedRun;
use crate::algorithm::Level;
use crate::privacy::calibration::{Mechanism, NoiseBound};

configuration! {
    /// Settings of a run: N agents of dimension d learn together. Keys that a file does not set keep their defaults.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct RunConfig {
        /// Number of agents
        agents: usize = 100, "N";
        /// Dimension of actions
        dim: usize = 8, "D";
        /// Number of steps of each agent
        steps: u32 = 4096, "T";
        /// Steps between two communications [default: 64, or the theorem's]
        episode_len: Option<u32> = None, "L";
        /// Length of the first episode; lengths then double up to L [default: 4; L with privacy or schedule theorem]
        first_episode: Option<u32> = None, "L";
        /// Number of initial episodes of that length before lengths start doubling [default: 1; 2d for whitened rules]
        first_episodes: Option<u32> = None, "S";
        /// Half-life of all data in steps, for a parameter that drifts: a step that is H steps old counts half [default: none]
        #[serde(skip_serializing_if = "Option::is_none")]
        forget: Option<u32> = None, "H";
        /// Rewards: gaussian:R with noise level R, bounded (1 or -1), or auto:MAX to estimate R, which is at most MAX
        rewards: RewardKind = RewardKind::Gaussian(0.5), "KIND";
        /// Bound S on the norm of the true parameter; a simulation draws a parameter of this norm
        theta_norm: f64 = 1.0, "S";
        /// Aggregation rule of the controller
        aggregator: AggregatorName = AggregatorName::RECOMMENDED, "NAME";
        /// Corrupted share that widths, groups and trimming are designed for [default: 0.3; 0.25 for median-of-means]
        design_corruption: Option<f64> = None, "SHARE";
        /// Admission checks: paper, strict or drop [default: strict; drop for whitened rules without privacy]
        admission: Option<Level> = None, "LEVEL";
        /// Source of the widths: calibrated or theorem
        schedule: ScheduleName = ScheduleName::Calibrated, "NAME";
        /// Differential privacy with respect to messages, e.g. 4,1e-6 [default: none]
        privacy: Option<Privacy> = None, "MU,NU";
        /// Mechanism for private noise: tree, honaker or blt
        mechanism: Mechanism = Mechanism::Tree, "NAME";
        /// Noise bound that widths assume: exact or paper [default: exact; paper with schedule theorem]
        noise_bound: Option<NoiseBound> = None, "NAME";
        /// Failure probability of the bounds
        delta: f64 = 0.1, "DELTA";
        /// Spread σ of actions in the theorems [default: √2; 0 if all simulated agents have the same actions]
        sigma: Option<f64> = None, "SIGMA";
    }
}

impl RunConfig {
    /// Default σ of Assumption 1, ‖xxᵀ − M‖_F ≤ σ with M = E\[xxᵀ\]: √2 holds for all decision sets.
    ///
    /// ‖x‖₂ ≤ 1 gives ‖xxᵀ‖_F = ‖x‖₂² ≤ 1. M ⪰ 0 gives ⟨xxᵀ, M⟩ = xᵀMx ≥ 0 and ‖M‖_F ≤ tr M = E‖x‖₂² ≤ 1. Hence
    /// ‖xxᵀ − M‖_F² = ‖xxᵀ‖_F² − 2⟨xxᵀ, M⟩ + ‖M‖_F² ≤ 2. No smaller constant holds: for x = e₁ with probability p and x = e₂
    /// otherwise, ‖e₁e₁ᵀ − M‖_F = √2·(1 − p).
    pub(crate) const SIGMA: f64 = std::f64::consts::SQRT_2;

    /// Resolves all defaults. `sigma` is used unless the configuration sets another value.
    pub(crate) fn resolve(&self, sigma: f64) -> ResolvedRun {
        let Self { rewards, theta_norm, .. } = *self;
        ResolvedRun { config: *self, sigma: self.sigma.unwrap_or(sigma), noise: rewards, theta_bound: theta_norm }
    }
}
