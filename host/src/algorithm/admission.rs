//! Which summaries may count (Algorithm 1, lines 14 to 17 and 22).
//!
//! A summary that no honest device can have sent is a [`Fault`] of its sender, and the controller counts the sender's message as
//! zero. Honest summaries always pass: what rounding on the device may cost is in the tolerance,
//! [`rounding::sums`].

use fedbandit_core::{MAX_EPISODE_LEN, packed_len, rounding};
use serde::Serialize;
use thiserror::Error;

use crate::aggregate::norm;
use crate::math::symmetric::on_diagonal;
use crate::names::named;

/// How much is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Level {
    /// What the paper checks: the numbers are finite, and with privacy ‖U‖_F ≤ L and ‖u‖₂ ≤ L.
    Paper,
    /// What every honest summary satisfies: also U ⪰ 0, tr U ≤ L and, with bounded rewards, uuᵀ ⪯ r_max²·L·U.
    #[default]
    Strict,
    /// The checks of `Strict`, and who fails one is out for good, with all that it ever sent. No honest device fails one.
    /// Not with privacy: who is left would tell what a message said.
    Drop,
}

named!(Level, "admission level", Paper = "paper", Strict = "strict", Drop = "drop");

/// The checks of one episode.
///
/// A packed upper triangle cannot be asymmetric; a full matrix becomes one by [`pack_symmetric`].
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

/// What is wrong with a summary: its sender's doing, to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Error, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fault {
    /// The sender is not enrolled.
    #[error("the sender is not enrolled")]
    UnknownAgent,
    /// The episode has not begun, or is too long ago.
    #[error("the summary is of an episode that is not open")]
    WrongEpisode,
    /// The sender's summary of this episode came before, whatever it was worth.
    #[error("the sender's summary of this episode came before")]
    Duplicate,
    /// Another number of values than the dimension asks for.
    #[error("the summary is of another dimension")]
    WrongDimension,
    /// A value is NaN or infinite.
    #[error("a value is not finite")]
    NonFinite,
    /// The matrix differs from its transpose.
    #[error("the Gram matrix is not symmetric")]
    Asymmetric,
    /// ‖U‖_F, ‖u‖₂ or tr U is above what L steps can give.
    #[error("a norm is above what an episode can give")]
    Norm,
    /// U has a negative eigenvalue.
    #[error("the Gram matrix is not positive semidefinite")]
    NotPositiveSemidefinite,
    /// uuᵀ ⪯ r_max²·L·U fails: no rewards within the bound give this u with this U.
    #[error("the feature sum does not fit the Gram matrix")]
    Inconsistent,
    /// The sender is out since an earlier fault ([`Level::Drop`]).
    #[error("the sender is out since an earlier fault")]
    Dropped,
}

impl Fault {
    /// Whether no honest device can have sent such a thing, however its frames were delayed or repeated.
    pub fn is_a_lie(self) -> bool {
        !matches!(self, Self::UnknownAgent | Self::WrongEpisode | Self::Duplicate | Self::Dropped)
    }
}

/// Why no [`Admission`] can be made of some settings.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum AdmissionError {
    /// L must be from 1 to 65,536.
    #[error("an episode has 1 to {MAX_EPISODE_LEN} steps, not {0}")]
    EpisodeLen(u32),
    /// A bound on rewards is a positive number.
    #[error("rewards cannot be bounded by {0}")]
    RewardBound(f64),
    /// Privacy needs |r| ≤ 1: without a bound one message could change the sums without limit.
    #[error("privacy needs rewards bounded by 1")]
    PrivacyNeedsBoundedRewards,
    /// Who is left would tell what a message said.
    #[error("with privacy nobody can be dropped for what a message said")]
    PrivacyCannotDrop,
}

impl Admission {
    /// The checks for episodes of `episode_len` steps and rewards with |r| ≤ `reward_bound`, if any bound was declared.
    ///
    /// # Errors
    /// The episode length or the bound makes no sense, or privacy is asked for without rewards bounded by 1.
    pub fn new(
        level: Level,
        dimension: usize,
        episode_len: u32,
        reward_bound: Option<f64>,
        private: bool,
    ) -> Result<Self, AdmissionError> {
        if episode_len == 0 || episode_len > MAX_EPISODE_LEN {
            return Err(AdmissionError::EpisodeLen(episode_len));
        }
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

    /// Checks U, as its packed upper triangle, and u. D³/3 operations at the strict level.
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
        let most = self.episode_len * (1.0 + self.tolerance);
        if self.private && !(frobenius_norm(gram, self.dimension) <= most && norm(feature_sum) <= most) {
            return Err(Fault::Norm);
        }
        match self.level {
            Level::Paper => Ok(()),
            Level::Strict | Level::Drop => self.check_strictly(gram, feature_sum, most),
        }
    }

    fn check_strictly(&self, gram: &[f64], feature_sum: &[f64], most: f64) -> Result<(), Fault> {
        let delta = self.tolerance;
        let trace: f64 =
            gram.iter().zip(on_diagonal(self.dimension)).filter(|(_, on)| *on).map(|(value, _)| value).sum();
        if !(trace <= most) {
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

/// What rounding in f64 may cost in [`inverse_form`]: its matrix has a condition below 1/(2δ) ≤ 4·10⁵.
const F64_SLACK: f64 = 1e-9;

/// The packed upper triangle of a full matrix.
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
            // A NaN is a fault of its own, found later.
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

/// R, upper triangular and packed, with A + shift·I = RᵀR; none if that matrix is not positive definite.
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

/// xᵀ(RᵀR)⁻¹x = ‖R⁻ᵀx‖², by forward substitution.
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
