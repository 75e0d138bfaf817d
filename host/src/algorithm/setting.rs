//! What a run agrees on before it begins.

use fedbandit_core::{MAX_EPISODE_LEN, Rewards};
use thiserror::Error;

use crate::aggregate::{AggregateError, ShapeError};
use crate::algorithm::AgentId;
use crate::algorithm::{Admission, AdmissionError, Level};

/// What a run agrees on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerConfig {
    /// D, from 1 to 255.
    pub dimension: u8,
    /// K and the L_k.
    pub episodes: Episodes,
    /// How much of a summary is checked.
    pub level: Level,
    /// |r| ≤ r_max, if such a bound is declared. Devices clip rewards to [−1, 1] where it is at most 1.
    pub reward_bound: Option<f64>,
    /// W, for how many episodes after its own a summary is still taken: up to [`MAX_WINDOW`]. It then counts from the
    /// next model on.
    pub window: u32,
}

impl ControllerConfig {
    /// The checks of an episode.
    pub(crate) fn admission(&self, episode: u32, private: bool) -> Result<Admission, AdmissionError> {
        Admission::new(self.level, self.dimension.into(), self.episodes.length(episode), self.reward_bound, private)
    }

    /// The checks by [how often lengths have doubled](Episodes::doublings).
    pub(crate) fn admissions(&self, private: bool) -> Result<Vec<Admission>, AdmissionError> {
        let starts = self.episodes.starts;
        (starts..=starts + DOUBLINGS).map(|episode| self.admission(episode, private)).collect()
    }

    /// What devices do with rewards.
    pub(crate) fn rewards(&self) -> Rewards {
        if self.reward_bound.is_some_and(|bound| bound <= 1.0) { Rewards::Clipped } else { Rewards::Unbounded }
    }
}

/// The largest W.
pub const MAX_WINDOW: u32 = 63;

/// The lengths of the episodes: L_k = L_1 for the first of them, s in number, then min(L, L_1·2^{k−s}).
///
/// With L_1 = L all are equal, as in the paper. Short first episodes cost little regret while nothing is known; where devices meet
/// the same d actions all the time, s = d of them try each action once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Episodes {
    first: u32,
    starts: u32,
    longest: u32,
    count: u32,
}

/// The number of times that 1 doubles to the largest length.
const DOUBLINGS: u32 = MAX_EPISODE_LEN.ilog2();

impl Episodes {
    /// As many episodes as it takes for the T steps of the horizon, rounded up.
    ///
    /// # Errors
    /// Not 1 ≤ L_1 ≤ L ≤ [`MAX_EPISODE_LEN`].
    pub fn new(horizon: u32, first: u32, longest: u32) -> Result<Self, AdmissionError> {
        Self::with_starts(horizon, first, 1, longest)
    }

    /// [`new`](Self::new) with so many episodes of length L_1, at least 1 and at most [`MAX_EPISODE_LEN`].
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_starts(horizon: u32, first: u32, starts: u32, longest: u32) -> Result<Self, AdmissionError> {
        if !(1..=MAX_EPISODE_LEN).contains(&longest) {
            return Err(AdmissionError::EpisodeLen(longest));
        }
        if !(1..=longest).contains(&first) {
            return Err(AdmissionError::EpisodeLen(first));
        }
        let mut episodes = Self { first, starts: starts.clamp(1, MAX_EPISODE_LEN), longest, count: 0 };
        let mut left = horizon;
        while left > 0 && episodes.length(episodes.count + 1) < longest {
            left = left.saturating_sub(episodes.length(episodes.count + 1));
            episodes.count += 1;
        }
        episodes.count += left.div_ceil(longest);
        Ok(episodes)
    }

    /// L_k, k counted from 1.
    pub fn length(&self, episode: u32) -> u32 {
        self.longest.min(self.first.saturating_mul(1 << self.doublings(episode)))
    }

    /// How often lengths have doubled until episode k; no more than it takes from 1 to the largest.
    pub(crate) fn doublings(&self, episode: u32) -> u32 {
        episode.saturating_sub(self.starts).min(DOUBLINGS)
    }

    /// How many steps come before episode k.
    pub fn steps_before(&self, episode: u32) -> u64 {
        let before = episode.saturating_sub(1);
        let starts = before.min(self.starts);
        let growing = (before - starts).min(DOUBLINGS);
        let grown: u64 = (1..=growing).map(|j| u64::from(self.length(self.starts + j))).sum();
        u64::from(starts) * u64::from(self.first)
            + grown
            + u64::from(before - starts - growing) * u64::from(self.longest)
    }

    /// K.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// Why a run cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Somebody is enrolled twice.
    #[error("agent {} is enrolled twice", .0.0)]
    EnrolledTwice(AgentId),
    /// W must be at most [`MAX_WINDOW`].
    #[error("summaries cannot be taken for {0} episodes, only up to {MAX_WINDOW}")]
    Window(u32),
    /// Nothing that admission could check by.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The dimension is 0.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The rule is not defined for this number of units; none at all, for one.
    #[error(transparent)]
    Rule(#[from] AggregateError),
    /// λ_1 or β_1 is not what a device can use.
    #[error("the schedule gives no usable first model")]
    FirstModel,
}
