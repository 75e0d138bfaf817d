//! Admission checks for summaries (Algorithm 1, lines 14 to 17 and 22).
//!
//! A summary that no honest device can have sent is a [`Fault`] of its sender, and the controller counts it as zero. Honest
//! summaries always pass: the tolerance covers the rounding errors of a device ([`rounding::sums`]).

use fedbandit_core::{MAX_EPISODE_LEN, packed_len, rounding};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::episodes::{EpisodeLenError, check_episode_len};
use crate::aggregate::norm;
use crate::math::symmetric::on_diagonal;
use crate::names::named;

/// Strictness of the admission checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Level {
    /// The paper's checks: all values are finite, and with privacy ‖U‖_F ≤ L and ‖u‖₂ ≤ L.
    Paper,
    /// All properties of an honest summary: also U ⪰ 0, tr U ≤ L and, with bounded rewards, uuᵀ ⪯ r_max²·L·U.
    #[default]
    Strict,
    /// The checks of `Strict`; a sender that fails one is excluded permanently, with everything it ever sent. No honest
    /// device fails one. Not available with privacy, since exclusions would reveal what a message contained.
    Drop,
}

named!(Level, "admission level", Paper = "paper", Strict = "strict", Drop = "drop");

/// Admission checks of one episode.
///
/// A packed upper triangle is symmetric by construction; [`pack_symmetric`] converts a full matrix.
#[derive(Clone, Debug)]
pub struct Admission {
    level: Level,
    dimension: usize,
    episode_len: f64,
    reward_bound: Option<f64>,
    private: bool,
    /// δ of [`rounding::sums`].
    tolerance: f64,
}

/// Defect of a received summary, attributed to its sender and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fault {
    /// The sender is not enrolled.
    #[error("sender is not enrolled")]
    UnknownAgent,
    /// The episode has not begun, or its window has passed.
    #[error("episode of the summary is not open")]
    WrongEpisode,
    /// A summary of this episode was received before, valid or not.
    #[error("summary of this episode was received before")]
    Duplicate,
    /// The number of values does not match the dimension.
    #[error("summary has the wrong dimension")]
    WrongDimension,
    /// A value is NaN or infinite.
    #[error("summary contains a value that is not finite")]
    NonFinite,
    /// The matrix differs from its transpose.
    #[error("Gram matrix is not symmetric")]
    Asymmetric,
    /// ‖U‖_F, ‖u‖₂ or tr U exceeds the maximum of L steps.
    #[error("norm exceeds the maximum of an episode")]
    Norm,
    /// U has a negative eigenvalue.
    #[error("Gram matrix is not positive semidefinite")]
    NotPositiveSemidefinite,
    /// uuᵀ ⪯ r_max²·L·U fails: no rewards within the bound give this u with this U.
    #[error("feature sum is inconsistent with the Gram matrix")]
    Inconsistent,
    /// The sender was excluded after an earlier fault ([`Level::Drop`]).
    #[error("sender was excluded after an earlier fault")]
    Dropped,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 10] = [
        Self::UnknownAgent,
        Self::WrongEpisode,
        Self::Duplicate,
        Self::WrongDimension,
        Self::NonFinite,
        Self::Asymmetric,
        Self::Norm,
        Self::NotPositiveSemidefinite,
        Self::Inconsistent,
        Self::Dropped,
    ];

    /// Returns true if no honest device can cause this fault, however its frames are delayed or repeated.
    pub fn proves_corruption(self) -> bool {
        !matches!(self, Self::UnknownAgent | Self::WrongEpisode | Self::Duplicate | Self::Dropped)
    }
}

/// Error returned by [`Admission::new`].
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum AdmissionError {
    /// The episode length is out of range.
    #[error(transparent)]
    EpisodeLen(#[from] EpisodeLenError),
    /// The reward bound is not positive and finite.
    #[error("reward bound must be positive and finite, got {0}")]
    RewardBound(f64),
    /// Privacy needs |r| ≤ 1: without a bound, one message could change the sums without limit.
    #[error("privacy requires rewards bounded by 1")]
    PrivacyNeedsBoundedRewards,
    /// Exclusions would reveal what a message contained.
    #[error("drop is not available with privacy, since exclusions would reveal what a message contained; use strict")]
    PrivacyCannotDrop,
}

impl Admission {
    /// Creates the checks for episodes of `episode_len` steps and rewards with |r| ≤ `reward_bound`, if one is declared.
    ///
    /// # Errors
    /// The episode length or the reward bound is out of range, or privacy is combined with rewards that are not bounded by
    /// 1 or with [`Level::Drop`].
    pub fn new(
        level: Level,
        dimension: usize,
        episode_len: u32,
        reward_bound: Option<f64>,
        private: bool,
    ) -> Result<Self, AdmissionError> {
        let episode_len = check_episode_len(episode_len, MAX_EPISODE_LEN)?;
        if let Some(bound) = reward_bound.filter(|bound| !(bound.is_finite() && *bound > 0.0)) {
            return Err(AdmissionError::RewardBound(bound));
        }
        if private && reward_bound.is_none_or(|bound| bound > 1.0) {
            return Err(AdmissionError::PrivacyNeedsBoundedRewards);
        }
        if private && level == Level::Drop {
            return Err(AdmissionError::PrivacyCannotDrop);
        }
        let tolerance = rounding::sums(episode_len, dimension);
        Ok(Self { level, dimension, episode_len: episode_len.into(), reward_bound, private, tolerance })
    }

    /// Checks U, as its packed upper triangle, and u. Takes D³/3 operations at the strict level.
    ///
    /// # Errors
    /// The first fault found, in the order of [`Fault`].
    pub fn check(&self, gram: &[f64], feature_sum: &[f64]) -> Result<(), Fault> {
        if gram.len() != packed_len(self.dimension) || feature_sum.len() != self.dimension {
            return Err(Fault::WrongDimension);
        }
        if !gram.iter().chain(feature_sum).all(|value| value.is_finite()) {
            return Err(Fault::NonFinite);
        }
        let limit = self.episode_len * (1.0 + self.tolerance);
        if self.private && !(frobenius_norm(gram, self.dimension) <= limit && norm(feature_sum) <= limit) {
            return Err(Fault::Norm);
        }
        match self.level {
            Level::Paper => Ok(()),
            Level::Strict | Level::Drop => self.check_strictly(gram, feature_sum, limit),
        }
    }

    fn check_strictly(&self, gram: &[f64], feature_sum: &[f64], trace_limit: f64) -> Result<(), Fault> {
        let delta = self.tolerance;
        let trace: f64 =
            gram.iter().zip(on_diagonal(self.dimension)).filter(|(_, on)| *on).map(|(value, _)| value).sum();
        if !(trace <= trace_limit) {
            return Err(Fault::Norm);
        }
        if cholesky(gram, self.dimension, delta * self.episode_len).is_none() {
            return Err(Fault::NotPositiveSemidefinite);
        }
        let Some(bound) = self.reward_bound else { return Ok(()) };
        // uuᵀ ⪯ c·A with A ≻ 0 is uᵀA⁻¹u ≤ c.
        let shift = 3.0 * delta * (1.0 + delta) * self.episode_len;
        let limit = bound * bound * self.episode_len * (1.0 + F64_SLACK);
        match cholesky(gram, self.dimension, shift) {
            Some(factor) if inverse_form(&factor, feature_sum) <= limit => Ok(()),
            _ => Err(Fault::Inconsistent),
        }
    }
}

/// Relative rounding error in f64 of [`inverse_form`], whose matrix has a condition number below 1/(2δ) ≤ 4·10⁵.
const F64_SLACK: f64 = 1e-9;

/// Packs the upper triangle of a full matrix.
///
/// # Errors
/// The matrix is not square of this dimension, or not symmetric.
pub fn pack_symmetric(matrix: &[f64], dimension: usize) -> Result<Vec<f64>, Fault> {
    if matrix.len() != dimension * dimension {
        return Err(Fault::WrongDimension);
    }
    let mut packed = Vec::with_capacity(packed_len(dimension));
    for i in 0..dimension {
        for j in i..dimension {
            let (upper, lower) = (matrix[i * dimension + j], matrix[j * dimension + i]);
            // NaN is reported later, as a fault of its own.
            if upper != lower && !(upper.is_nan() && lower.is_nan()) {
                return Err(Fault::Asymmetric);
            }
            packed.push(upper);
        }
    }
    Ok(packed)
}

fn frobenius_norm(packed: &[f64], dimension: usize) -> f64 {
    let squares =
        packed.iter().zip(on_diagonal(dimension)).map(|(value, on)| value * value * if on { 1.0 } else { 2.0 });
    squares.sum::<f64>().sqrt()
}

/// Returns the packed upper triangular R with A + shift·I = RᵀR, or `None` if that matrix is not positive definite.
fn cholesky(packed: &[f64], dimension: usize, shift: f64) -> Option<Vec<f64>> {
    let mut rows = packed.to_vec();
    let mut rest = rows.as_mut_slice();
    for k in 0..dimension {
        let (row, mut below) = rest.split_at_mut(dimension - k);
        let pivot = row[0] + shift;
        if !(pivot > 0.0) {
            return None;
        }
        let root = pivot.sqrt();
        row[0] = root;
        row[1..].iter_mut().for_each(|entry| *entry /= root);
        for j in 1..row.len() {
            let (target, next) = below.split_at_mut(row.len() - j);
            for (entry, r) in target.iter_mut().zip(&row[j..]) {
                *entry -= row[j] * r;
            }
            below = next;
        }
        rest = &mut rest[dimension - k..];
    }
    Some(rows)
}

/// Returns xᵀ(RᵀR)⁻¹x = ‖R⁻ᵀx‖², by forward substitution.
fn inverse_form(factor: &[f64], x: &[f64]) -> f64 {
    let mut y = x.to_vec();
    let mut rest = factor;
    for k in 0..y.len() {
        let (row, below) = rest.split_at(y.len() - k);
        y[k] /= row[0];
        for j in 1..row.len() {
            y[k + j] -= row[j] * y[k];
        }
        rest = below;
    }
    y.iter().map(|y| y * y).sum()
}
