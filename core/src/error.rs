//! Error types, one small enum per operation. A failed call leaves the agent unchanged.

use core::fmt;

use crate::MAX_EPISODE_LEN;

/// Reason why a vector is not an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ActionError {
    /// An entry is NaN or infinite.
    NotFinite,
    /// ‖x‖₂ > 1, beyond rounding ([`norm_squared_limit`](crate::norm_squared_limit)).
    NormAboveOne,
}

/// Error returned by [`Agent::select`](crate::Agent::select).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum SelectError {
    /// The decision set has no action.
    EmptyDecisionSet,
    /// The vector at `index` is not an action.
    Action {
        /// Position in the decision set, from zero.
        index: usize,
        /// Reason for the rejection.
        reason: ActionError,
    },
}

/// Error returned by [`Agent::record`](crate::Agent::record).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum RecordError {
    /// All L steps of the episode are recorded: call [`Agent::finish`](crate::Agent::finish).
    EpisodeFull,
    /// The vector is not an action.
    Action(ActionError),
    /// The reward is NaN, infinite or beyond ±[`REWARD_LIMIT`](crate::REWARD_LIMIT).
    Reward,
}

/// Error returned by [`Agent::new`](crate::Agent::new) and [`Agent::begin`](crate::Agent::begin).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ModelError {
    /// The number of values in θ or in the packed Λ does not match the agent's dimension.
    Dimension {
        /// Number of values in θ.
        theta: usize,
        /// Number of values in the packed upper triangle of Λ.
        design: usize,
    },
    /// β or a value of θ or Λ is NaN, infinite or beyond ±[`VALUE_LIMIT`](crate::VALUE_LIMIT), or β is negative.
    OutOfRange,
    /// Λ is not positive definite in f32: the pivot of this row is zero, negative or lost to rounding.
    NotPositiveDefinite {
        /// Row index, from zero.
        row: usize,
    },
    /// The episode length is zero or above [`MAX_EPISODE_LEN`](crate::MAX_EPISODE_LEN).
    EpisodeLen(u32),
    /// The model is for an episode that has ended.
    OldEpisode {
        /// The model's episode.
        model: u32,
        /// The agent's episode.
        agent: u32,
    },
    /// The model changes the reward range that a guarded agent was created with.
    Rewards,
    /// The running episode has recorded steps, and the model is for a later episode or changes L or the reward range.
    /// Call [`Agent::finish`](crate::Agent::finish) first.
    EpisodeUnfinished {
        /// Number of recorded steps.
        steps: u32,
    },
}

/// Error returned by [`Agent::restore`](crate::Agent::restore) and [`Agent::save`](crate::Agent::save).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum StateError {
    /// The buffer does not have [`Agent::SAVED_LEN`](crate::Agent::SAVED_LEN) bytes.
    Length {
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The bytes do not start with the magic number of a saved agent.
    NotASavedAgent,
    /// The layout version is not supported.
    Version(u8),
    /// The state belongs to an agent of another dimension.
    Dimension(u16),
    /// The checksum does not match, for example after a torn write or in worn flash.
    Corrupt,
}

impl fmt::Display for ActionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFinite => "an entry is NaN or infinite",
            Self::NormAboveOne => "the norm exceeds 1; scale the action with `project`",
        })
    }
}

impl fmt::Display for SelectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyDecisionSet => f.write_str("decision set is empty"),
            Self::Action { index, reason } => write!(f, "invalid action at index {index}: {reason}"),
        }
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EpisodeFull => f.write_str("all steps of the episode are recorded; call `finish`"),
            Self::Action(reason) => write!(f, "invalid action: {reason}"),
            Self::Reward => f.write_str("reward must be finite and at most 2^96 in magnitude"),
        }
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dimension { theta, design } => {
                write!(
                    f,
                    "model with {theta} values of theta and {design} of Lambda does not match the agent's dimension"
                )
            }
            Self::OutOfRange => {
                f.write_str("model values must be finite and at most 2^60 in magnitude, and beta must not be negative")
            }
            Self::NotPositiveDefinite { row } => write!(f, "design matrix is not positive definite at row {row}"),
            Self::EpisodeLen(length) => write!(f, "episode length must be from 1 to {MAX_EPISODE_LEN}, got {length}"),
            Self::OldEpisode { model, agent } => {
                write!(f, "model is for episode {model}, but the agent is already in episode {agent}")
            }
            Self::Rewards => f.write_str("model changes the reward range of a guarded agent"),
            Self::EpisodeUnfinished { steps } => {
                write!(f, "running episode has {steps} recorded steps; call `finish` before this model")
            }
        }
    }
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { expected, found } => write!(f, "saved state must have {expected} bytes, got {found}"),
            Self::NotASavedAgent => f.write_str("not a saved agent"),
            Self::Version(version) => write!(f, "unsupported state layout version {version}"),
            Self::Dimension(dimension) => write!(f, "saved state has dimension {dimension}, which is not the agent's"),
            Self::Corrupt => f.write_str("saved state is corrupt: checksum mismatch"),
        }
    }
}

impl core::error::Error for ActionError {}
impl core::error::Error for SelectError {}
impl core::error::Error for RecordError {}
impl core::error::Error for ModelError {}
impl core::error::Error for StateError {}
