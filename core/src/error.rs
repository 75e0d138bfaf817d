//! What can be refused, one small enum per operation. An error leaves the agent as it was.

use core::fmt;

/// Why a vector is not an action.
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

/// Why [`Agent::select`](crate::Agent::select) made no choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum SelectError {
    /// The decision set has no action.
    EmptyDecisionSet,
    /// What stands at `index` is not an action.
    Action {
        /// Its place in the decision set, from zero.
        index: usize,
        /// What is wrong with it.
        reason: ActionError,
    },
}

/// Why [`Agent::record`](crate::Agent::record) took nothing in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum RecordError {
    /// The episode has its L records: call [`Agent::finish`](crate::Agent::finish).
    EpisodeFull,
    /// The vector is not an action.
    Action(ActionError),
    /// The reward is NaN, infinite or beyond ±[`REWARD_LIMIT`](crate::REWARD_LIMIT).
    Reward,
}

/// Why [`Agent::new`](crate::Agent::new) or [`Agent::begin`](crate::Agent::begin) refused a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ModelError {
    /// θ or the packed Λ has another number of values than the agent's dimension asks for.
    Dimension {
        /// Values in θ.
        theta: usize,
        /// Values in the packed upper triangle of Λ.
        design: usize,
    },
    /// β or a value of θ or Λ is NaN, infinite or beyond ±[`VALUE_LIMIT`](crate::VALUE_LIMIT), or β is negative.
    OutOfRange,
    /// Λ is not positive definite in f32: the pivot of this row is zero, negative or lost to rounding.
    NotPositiveDefinite {
        /// The row, from zero.
        row: usize,
    },
    /// The episode length is zero or above [`MAX_EPISODE_LEN`](crate::MAX_EPISODE_LEN).
    EpisodeLen(u32),
    /// The model is for an episode that is over.
    OldEpisode {
        /// The model's episode.
        model: u32,
        /// The agent's episode.
        agent: u32,
    },
    /// The running episode has records, and this model is for a later one or changes the episode's length or reward
    /// rule: call [`Agent::finish`](crate::Agent::finish) first.
    EpisodeUnfinished {
        /// Records so far.
        steps: u32,
    },
}

/// Why [`Agent::restore`](crate::Agent::restore) or [`Agent::save`](crate::Agent::save) failed.
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
    /// The bytes do not start as a saved agent.
    NotASavedAgent,
    /// Saved by a version of the layout that this one cannot read.
    Version(u8),
    /// Saved by an agent of another dimension.
    Dimension(u16),
    /// The checksum does not match: a torn write or worn flash.
    Corrupt,
}

impl fmt::Display for ActionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFinite => "an entry of the action is not finite",
            Self::NormAboveOne => "the action's norm is above 1",
        })
    }
}

impl fmt::Display for SelectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyDecisionSet => f.write_str("the decision set is empty"),
            Self::Action { index, reason } => write!(f, "action {index}: {reason}"),
        }
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EpisodeFull => f.write_str("the episode has all its records; finish it"),
            Self::Action(reason) => reason.fmt(f),
            Self::Reward => f.write_str("the reward is not finite or too large"),
        }
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dimension { theta, design } => {
                write!(f, "the model has {theta} and {design} values, which is another dimension than the agent's")
            }
            Self::OutOfRange => f.write_str("a value of the model is not finite or too large"),
            Self::NotPositiveDefinite { row } => write!(f, "the design matrix is not positive definite at row {row}"),
            Self::EpisodeLen(length) => write!(f, "an episode cannot have {length} steps"),
            Self::OldEpisode { model, agent } => {
                write!(f, "the model is for episode {model}, the agent is in episode {agent}")
            }
            Self::EpisodeUnfinished { steps } => {
                write!(f, "the running episode has {steps} records; finish it before this model")
            }
        }
    }
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { expected, found } => write!(f, "the state takes {expected} bytes, not {found}"),
            Self::NotASavedAgent => f.write_str("these bytes are not a saved agent"),
            Self::Version(version) => write!(f, "state layout {version} is not known"),
            Self::Dimension(dimension) => write!(f, "the state is of dimension {dimension}"),
            Self::Corrupt => f.write_str("the state's checksum does not match"),
        }
    }
}

impl core::error::Error for ActionError {}
impl core::error::Error for SelectError {}
impl core::error::Error for RecordError {}
impl core::error::Error for ModelError {}
impl core::error::Error for StateError {}
