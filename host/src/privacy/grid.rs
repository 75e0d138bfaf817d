//! Messages as integers, and how much noise they need.
//!
//! With floating-point sums a message could move a release by more than it is large, and floating-point noise has gaps
//! that tell what it was added to (Mironov 2012; Casacuberta et al. 2022). Hence all private numbers are multiples of a
//! power of two, g, and their sums are exact.

use thiserror::Error;

use super::blt::ROUNDING;
use super::calibration::{Budget, Fleet, Mechanism, Noise, NoiseBound, NoiseNorms, sensitivity, truncated};
use super::gaussian::DiscreteGaussian;
use crate::algorithm::{Admission, AdmissionError, Level};
use crate::algorithm::{ControllerConfig, Episodes};
use crate::math::symmetric;
use fedbandit_core::{packed_len, rounding};

/// Everything about a private run that is fixed before its first message, and no secret.
///
/// A message is the vector x of the scaled packing of U and then u. It counts as q, x/g truncated toward zero, if
/// [`Admission`] lets x pass for the longest episode *and* ‖q_U‖₂ and ‖q_u‖₂, computed in integers, are at most ℓ/g for
/// ℓ = (1 + δ)L with the tolerance δ of [`rounding::sums`]; else as 0. Two messages are then at most Δ apart, where
/// Δ is that of [`sensitivity`] and [`truncated`]:
///
/// * At [`Level::Paper`] by the check on integers alone: g²·‖q − q′‖² ≤ (2ℓ)² + (2ℓ)². Nothing rests on
///   floating-point arithmetic with the message.
/// * At [`Level::Strict`] x and x′ are in the set for which [`sensitivity`] is derived, and truncation adds no more than
///   g√(D(D+1)/2 + D) to their distance ([`truncated`]). It takes q out of that set, by less than g in each coordinate,
///   and that is all that this term says.
///
/// The factor √2 of the packing is rounded, too, relatively by 2⁻⁵²; [`sensitivity`] has 10⁻⁹ to spare.
///
/// **The grid.** g is the power of two for which σ/g is in [2²⁴, 2²⁵), so that the truncation's share of Δ, at most
/// 2⁻²⁴·√(D(D+1)/2 + D)·σ/Δ, is small; but at least 2⁻²⁶·ℓ, which matters only where σ < ℓ/2. So |q_i| ≤ 2²⁶, and the
/// sum of 2²⁶ messages of a unit is within [`RANGE`].
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

/// Why a run cannot be private.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A message has at least one coordinate.
    #[error("a private run needs a dimension of at least 1")]
    Dimension,
    /// Nothing that admission could check by, or rewards without a bound.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// Rounding alone would need more noise than can be sampled: the budget is tiny for so many coordinates.
    #[error("the budget is too small for so many episodes and coordinates")]
    TooMuchNoise,
}

/// The largest magnitude of a sum of integers, 2⁵².
///
/// Sums stay in there by clamping. No run that [`Plan`] foresees gets so far; if one did, a message would still move a
/// clamped sum by no more than an exact one, so privacy does not depend on it.
pub const RANGE: i64 = 1 << 52;

/// σ/g is at least 2²⁴.
const SIGMA_BITS: i32 = 24;
/// ℓ/g is at most 2²⁶.
const VALUE_BITS: i32 = 26;
/// How far the floating-point norms of [`Admission`] may be off for 2¹⁵ values, twice.
const NORM_SLACK: f64 = 1.0 / (1_u64 << 36) as f64;

impl Plan {
    /// The plan for a controller's setting. Runs under one key must have different numbers.
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
        // A single episode has no release; its noise is never used.
        let sigma = |delta| Noise::new(budget, mechanism, delta, episodes.count().max(2)).node_sigma();
        let bound = f64::from(length) * (1.0 + rounding::sums(length, dimension)) * (1.0 + NORM_SLACK);
        let step = power_of_two(sigma(delta), -SIGMA_BITS).max(power_of_two(bound, 1 - VALUE_BITS));
        let delta = truncated(delta, step, dimension) + encoding(mechanism, step, episodes.count(), dimension);
        // What is larger than a u64 is more than can be sampled, anyhow.
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

    /// The noise of each coordinate of a node, in units of g.
    pub fn gaussian(&self) -> DiscreteGaussian {
        self.gaussian
    }

    /// The noise of all releases, as it is sampled: with what truncation and rounding add.
    pub fn noise(&self) -> &Noise {
        &self.noise
    }

    /// N agents of this run, whose bounds on noise hold with probability 1 − δ/4. The size is that of the smallest
    /// group, 1 without groups.
    pub fn fleet(&self, agents: u32, group_size: u32, delta: f64) -> Fleet {
        let episode_len = self.episodes.length(u32::MAX);
        Fleet { agents, group_size, dimension: self.dimension, episode_len, delta }
    }

    /// Bounds on (H_i, h_i), the noise in the streams that the model of an episode is made of, for every unit i: an
    /// agent, or a group's mean. They hold for all units and episodes at once. For [`NoiseBound::Exact`] those of
    /// episode 1 are 0.
    ///
    /// In the theorems' λ_k and β_k, B·L·√D stands for [`NoiseNorms::frobenius`] and B·L for [`NoiseNorms::vector`].
    pub fn noise_norms(&self, bound: NoiseBound, fleet: &Fleet, episode: u32) -> NoiseNorms {
        bound.norms(&self.noise, fleet, episode.min(self.episodes()).saturating_sub(1))
    }

    /// Which prefix sums are noised, and how.
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

    /// The number of coordinates of a message: D(D + 1)/2 + D.
    pub fn coordinates(&self) -> usize {
        packed_len(self.dimension) + self.dimension
    }

    /// The integers that a message counts as; none if it counts as zero. U is given as its packed triangle.
    pub fn quantise(&self, gram: &[f64], feature_sum: &[f64]) -> Option<Vec<i64>> {
        self.admission.check(gram, feature_sum).ok()?;
        let values = symmetric::scaled(gram, self.dimension).chain(feature_sum.iter().copied());
        // Division by a power of two is exact; what is too large for the cast is so for the norm.
        let integers: Vec<i64> = values.map(|value| (value / self.step) as i64).collect();
        let (gram, feature_sum) = integers.split_at(gram.len());
        (squares(gram) <= self.most && squares(feature_sum) <= self.most).then_some(integers)
    }

    /// What distinguishes the noise of this run from that of all others, but for the key.
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

/// 2^(⌊log₂ x⌋ + shift) for a positive x.
fn power_of_two(x: f64, shift: i32) -> f64 {
    2.0_f64.powi((x.to_bits() >> 52) as i32 - 1023 + shift)
}

/// What the rounding of a mechanism's own sums adds to Δ.
///
/// A tree's are exact. [`Mechanism::Blt`] rounds every coordinate of every step, which adds up to g·[`ROUNDING`]·√(K·D′)
/// to the distance Δ·‖C‖ of all steps together, by the triangle inequality; as part of Δ it is counted ‖C‖ ≥ 1 times.
fn encoding(mechanism: Mechanism, step: f64, episodes: u32, dimension: usize) -> f64 {
    let coordinates = packed_len(dimension) + dimension;
    match mechanism {
        Mechanism::Tree | Mechanism::Honaker => 0.0,
        Mechanism::Blt => step * ROUNDING * (f64::from(episodes) * coordinates as f64).sqrt(),
    }
}

fn squares(values: &[i64]) -> u128 {
    values.iter().fold(0, |sum: u128, value| sum.saturating_add(u128::from(value.unsigned_abs()).pow(2)))
}

/// Adds to a sum, within [`RANGE`].
pub(super) fn accumulate(sum: &mut [i64], more: &[i64]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = (*sum + more).clamp(-RANGE, RANGE);
    }
}
