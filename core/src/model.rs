//! Model broadcast by the controller, and the prior an agent uses before the first broadcast.

use crate::MAX_EPISODE_LEN;
use crate::error::ModelError;

/// Model (θ_k, Λ_k) of episode k with its width β_k, as broadcast by the controller (Algorithm 1, line 4).
///
/// A view of values in arrays or in a received frame; [`Agent::begin`](crate::Agent::begin) reads them once and checks
/// their dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Model<'a> {
    /// k, counted from 1.
    pub episode: u32,
    /// L, the number of steps in this episode, from 1 to [`MAX_EPISODE_LEN`].
    pub episode_len: u32,
    /// β_k ≥ 0, the width of the confidence region.
    pub beta: f32,
    /// Reward range of this run.
    pub rewards: Rewards,
    /// θ_k: D values.
    pub theta: Values<'a>,
    /// Λ_k: the D(D+1)/2 values of its upper triangle, row by row.
    pub design: Values<'a>,
}

impl<'a> Model<'a> {
    /// Creates a model from θ and the upper triangle of Λ, row by row; arrays and slices will do.
    pub fn new(
        episode: u32,
        episode_len: u32,
        beta: f32,
        rewards: Rewards,
        theta: impl Into<Values<'a>>,
        design: impl Into<Values<'a>>,
    ) -> Self {
        Self { episode, episode_len, beta, rewards, theta: theta.into(), design: design.into() }
    }
}

/// State of an agent before its first model: θ = 0, Λ = λI, in episode 1.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Prior {
    /// λ > 0.
    pub lambda: f32,
    /// β ≥ 0. With θ = 0, any positive value selects the longest action.
    pub beta: f32,
    /// L, the number of steps in an episode, from 1 to [`MAX_EPISODE_LEN`].
    pub episode_len: u32,
    /// Reward range of this run.
    pub rewards: Rewards,
}

impl Prior {
    /// Creates a prior; [`Agent::new`](crate::Agent::new) checks the values.
    pub const fn new(lambda: f32, beta: f32, episode_len: u32, rewards: Rewards) -> Self {
        Self { lambda, beta, episode_len, rewards }
    }
}

/// Range of rewards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Rewards {
    /// Any finite number up to [`REWARD_LIMIT`](crate::REWARD_LIMIT).
    #[default]
    Unbounded,
    /// Clipped to [−1, 1]. Differential privacy requires this bound on the influence of a single message.
    Clipped,
}

/// Sequence of f32 values, in memory or as little-endian bytes inside a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Values<'a> {
    /// Floats in memory.
    Native(&'a [f32]),
    /// Little-endian floats, at any alignment.
    Wire(&'a [[u8; 4]]),
}

impl<'a> Values<'a> {
    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        match self {
            Self::Native(values) => values.len(),
            Self::Wire(values) => values.len(),
        }
    }

    /// Returns true if there are no values.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the values.
    pub fn iter(&self) -> impl Iterator<Item = f32> + use<'a> {
        let (native, wire): (&[f32], &[[u8; 4]]) = match *self {
            Self::Native(values) => (values, &[]),
            Self::Wire(values) => (&[], values),
        };
        native.iter().copied().chain(wire.iter().map(|bytes| f32::from_le_bytes(*bytes)))
    }
}

impl<'a> From<&'a [f32]> for Values<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::Native(values)
    }
}

impl<'a, const N: usize> From<&'a [f32; N]> for Values<'a> {
    fn from(values: &'a [f32; N]) -> Self {
        Self::Native(values)
    }
}

impl<'a> From<&'a [[u8; 4]]> for Values<'a> {
    fn from(values: &'a [[u8; 4]]) -> Self {
        Self::Wire(values)
    }
}

/// Returns the number of values in a packed triangle of dimension D: D(D+1)/2.
pub const fn packed_len(dimension: usize) -> usize {
    dimension * (dimension + 1) / 2
}

pub(crate) fn check_episode_len(length: u32) -> Result<(), ModelError> {
    if length == 0 || length > MAX_EPISODE_LEN { Err(ModelError::EpisodeLen(length)) } else { Ok(()) }
}
