//! Lengths of the episodes.

use fedbandit_core::MAX_EPISODE_LEN;

use super::admission::AdmissionError;

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
pub(super) const DOUBLINGS: u32 = MAX_EPISODE_LEN.ilog2();

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

    /// s.
    pub(super) fn starts(&self) -> u32 {
        self.starts
    }

    /// K.
    pub fn count(&self) -> u32 {
        self.count
    }
}
