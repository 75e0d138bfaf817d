//! Conversion of messages to integers, and the noise that these need.
//!
//! In floating-point sums, rounding could let a message move a release by more than its own size. Gaps in floating-point
//! noise reveal the number that it was added to (Mironov 2012; Casacuberta et al. 2022). Hence all private numbers are
//! multiples of a power of two, g, and their sums are exact.

use thiserror::Error;

use super::blt::ROUNDING;
use super::calibration::{Budget, Fleet, Mechanism, Noise, NoiseBound, NoiseNorms, sensitivity, truncated};
use super::gaussian::DiscreteGaussian;
use crate::algorithm::{Admission, AdmissionError, Level};
use crate::algorithm::{ControllerConfig, Episodes};
use crate::math::symmetric;
use fedbandit_core::{packed_len, rounding};

/// Public parameters of a private run, fixed before its first message.
///
/// **Definition.** A message is the vector x of the scaled packing of U, followed by u. Let ℓ = (1 + δ)L with the
/// tolerance δ of [`rounding::sums`], and let q be x/g, truncated toward zero. The message counts as q if
///
/// 1. [`Admission`] accepts x for the longest episode, and
/// 2. ‖q_U‖₂ ≤ ℓ/g and ‖q_u‖₂ ≤ ℓ/g, computed in integers;
///
/// otherwise it counts as 0.
///
/// **Lemma.** Two messages are at most Δ apart, with the Δ of [`sensitivity`] and [`truncated`].
///
/// *Proof.*
/// * At [`Level::Paper`] the check on integers suffices: g²·‖q − q′‖² ≤ (2ℓ)² + (2ℓ)². No floating-point operation on
///   the message is involved.
/// * At [`Level::Strict`] x and x′ are in the set for which [`sensitivity`] is derived. Truncation takes q out of that
///   set by less than g in each coordinate, and adds at most g√(D(D+1)/2 + D) to the distance ([`truncated`]).
///
/// The factor √2 of the packing has a relative rounding error of 2⁻⁵², which the slack of 10⁻⁹ in [`sensitivity`] covers.
/// ∎
///
/// **The grid.** g is the power of two with σ/g in [2²⁴, 2²⁵). The share of truncation in Δ is then small: at most
/// 2⁻²⁴·√(D(D+1)/2 + D)·σ/Δ. In addition g ≥ 2⁻²⁶·ℓ, which matters only if σ < ℓ/2. So |q_i| ≤ 2²⁶, and the sum of 2²⁶
/// messages of a unit is within [`RANGE`].
#[derive(Clone, Debug)]
pub struct Plan {
    run: u64,
    budget: Budget,
    mechanism: Mechanism,
    level: Level,
    episodes: Episodes,
    dimension: usize,
    admission: Admission,
    step: f64,
    gaussian: DiscreteGaussian,
    noise: Noise,
    /// ⌊(ℓ/g)²⌋.
    most: u128,
}

/// Error returned by [`Plan::new`].
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Dimension 0.
    #[error("a private run requires a dimension of at least 1, got 0")]
    Dimension,
    /// Invalid parameters of admission, or unbounded rewards.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// Rounding alone requires more noise than can be sampled.
    #[error("privacy budget is too small for this number of episodes and coordinates; increase mu or nu")]
    TooMuchNoise,
}

/// Largest magnitude of a sum of integers, 2⁵².
///
/// Sums are clamped to it. No run within the limits of [`Plan`] reaches it. Privacy does not depend on this: a message
/// moves a clamped sum by no more than an exact one.
pub const RANGE: i64 = 1 << 52;

/// σ/g is at least 2²⁴.
const SIGMA_BITS: i32 = 24;
/// ℓ/g is at most 2²⁶.
const VALUE_BITS: i32 = 26;
/// Twice the relative error of the floating-point norms of [`Admission`] for 2¹⁵ values.
const NORM_SLACK: f64 = 1.0 / (1_u64 << 36) as f64;

impl Plan {
    /// Creates the plan for a controller's setting. Runs under one key must have different numbers.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn new(setting: &ControllerConfig, budget: Budget, mechanism: Mechanism, run: u64) -> Result<Self, PlanError> {
        let ControllerConfig { level, episodes, reward_bound, .. } = *setting;
        let dimension = usize::from(setting.dimension);
        let length = episodes.length(u32::MAX);
        if dimension == 0 {
            return Err(PlanError::Dimension);
        }
        let admission = Admission::new(level, dimension, length, reward_bound, true)?;
        let delta = sensitivity(level, length, dimension);
        // A single episode has no release, so its noise is never used.
        let sigma = |delta| Noise::new(budget, mechanism, delta, episodes.count().max(2)).node_sigma();
        let bound = f64::from(length) * (1.0 + rounding::sums(length, dimension)) * (1.0 + NORM_SLACK);
        let step = power_of_two(sigma(delta), -SIGMA_BITS).max(power_of_two(bound, 1 - VALUE_BITS));
        let delta = truncated(delta, step, dimension) + encoding(mechanism, step, episodes.count(), dimension);
        // The cast saturates, far beyond the largest σ that can be sampled.
        let gaussian = DiscreteGaussian::new((sigma(delta) / step).ceil() as u64).ok_or(PlanError::TooMuchNoise)?;
        let noise = Noise::new(budget, mechanism, delta, episodes.count());
        let noise = noise.with_node_sigma(gaussian.sigma() as f64 * step);
        let most = (bound / step).powi(2) as u128;
        Ok(Self { run, budget, mechanism, level, episodes, dimension, admission, step, gaussian, noise, most })
    }

    /// g.
    pub fn step(&self) -> f64 {
        self.step
    }

    /// Noise of each coordinate of a node, in units of g.
    pub fn gaussian(&self) -> DiscreteGaussian {
        self.gaussian
    }

    /// Noise of all releases as sampled, including the additions for truncation and rounding.
    pub fn noise(&self) -> &Noise {
        &self.noise
    }

    /// Returns the fleet of N agents for bounds on noise that hold with probability 1 − δ/4. `group_size` is the size of the
    /// smallest group, 1 without groups.
    pub fn fleet(&self, agents: u32, group_size: u32, delta: f64) -> Fleet {
        let episode_len = self.episodes.length(u32::MAX);
        Fleet { agents, group_size, dimension: self.dimension, episode_len, delta }
    }

    /// Returns bounds on the noise (H_i, h_i) of every unit's stream in an episode. A unit is an agent or the mean of a
    /// group. The bounds hold for all units and episodes at once, and are 0 for episode 1 with [`NoiseBound::Exact`].
    ///
    /// In the theorems' λ_k and β_k, B·L·√D corresponds to [`NoiseNorms::frobenius`] and B·L to [`NoiseNorms::vector`].
    pub fn noise_norms(&self, bound: NoiseBound, fleet: &Fleet, episode: u32) -> NoiseNorms {
        bound.norms(&self.noise, fleet, episode.min(self.episodes()).saturating_sub(1))
    }

    /// Mechanism that adds noise to prefix sums.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// K.
    pub fn episodes(&self) -> u32 {
        self.episodes.count()
    }

    /// D.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Number of coordinates of a message: D(D + 1)/2 + D.
    pub fn coordinates(&self) -> usize {
        packed_len(self.dimension) + self.dimension
    }

    /// Converts a message to integers, or returns `None` if it counts as 0. U is given as its packed triangle.
    pub fn quantise(&self, gram: &[f64], feature_sum: &[f64]) -> Option<Vec<i64>> {
        self.admission.check(gram, feature_sum).ok()?;
        let values = symmetric::scaled(gram, self.dimension).chain(feature_sum.iter().copied());
        // Division by a power of two is exact. A value that saturates in the cast also exceeds the norm.
        let integers: Vec<i64> = values.map(|value| (value / self.step) as i64).collect();
        let (gram, feature_sum) = integers.split_at(gram.len());
        (squares(gram) <= self.most && squares(feature_sum) <= self.most).then_some(integers)
    }

    /// Returns a hash of all parameters, which separates the noise of this run from other runs under the same key.
    pub(super) fn digest(&self, units: &[usize]) -> blake3::Hash {
        let Self { run, mechanism, level, episodes, dimension, step, .. } = self;
        let text = format!(
            "run {run} mu {} nu {} K {} L {} to {} level {level:?} D {dimension} g {step} sigma {} {mechanism} {units:?}",
            self.budget.mu(),
            self.budget.nu(),
            episodes.count(),
            episodes.length(1),
            episodes.length(u32::MAX),
            self.gaussian.sigma(),
        );
        blake3::hash(text.as_bytes())
    }
}

/// Returns 2^(⌊log₂ x⌋ + shift) for a positive x.
fn power_of_two(x: f64, shift: i32) -> f64 {
    2.0_f64.powi((x.to_bits() >> 52) as i32 - 1023 + shift)
}

/// Returns the addition to Δ for rounding within a mechanism.
///
/// Sums in a tree are exact. [`Mechanism::Blt`] rounds each of the D′ coordinates in every step. By the triangle
/// inequality this adds at most g·[`ROUNDING`]·√(K·D′) to the distance Δ·‖C‖ of all steps. As a part of Δ it counts
/// ‖C‖ ≥ 1 times.
fn encoding(mechanism: Mechanism, step: f64, episodes: u32, dimension: usize) -> f64 {
    let coordinates = packed_len(dimension) + dimension;
    match mechanism {
        Mechanism::Tree | Mechanism::Honaker => 0.0,
        Mechanism::Blt => step * ROUNDING * (f64::from(episodes) * coordinates as f64).sqrt(),
    }
}

/// Returns the sum of squares, saturating.
fn squares(values: &[i64]) -> u128 {
    values.iter().fold(0, |sum: u128, value| sum.saturating_add(u128::from(value.unsigned_abs()).pow(2)))
}

/// Adds to a sum, clamped to [`RANGE`].
pub(super) fn accumulate(sum: &mut [i64], more: &[i64]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = (*sum + more).clamp(-RANGE, RANGE);
    }
}
