//! Lengths of the episodes.

use fedbandit_core::MAX_EPISODE_LEN;
use thiserror::Error;

/// Lengths of the episodes: L_k = L_1 for the first s episodes, then min(L, L_1·2^{k−s}).
///
/// With L_1 = L all lengths are equal, as in the paper. Short first episodes cost little regret while nothing is known. If
/// devices always choose among the same d actions, s = d such episodes try each action once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Episodes {
    first: u32,
    starts: u32,
    longest: u32,
    count: u32,
}

/// Error returned for an episode length that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("episode length must be from 1 to {limit}, got {length}")]
pub struct EpisodeLenError {
    /// The rejected length.
    pub length: u32,
    /// The largest length allowed: [`MAX_EPISODE_LEN`], or L for the first episode.
    pub limit: u32,
}

/// Returns an episode length if it is from 1 to `limit`.
pub(crate) fn check_episode_len(length: u32, limit: u32) -> Result<u32, EpisodeLenError> {
    if (1..=limit).contains(&length) { Ok(length) } else { Err(EpisodeLenError { length, limit }) }
}

/// Number of doublings from a length of 1 to [`MAX_EPISODE_LEN`].
pub(super) const DOUBLINGS: u32 = MAX_EPISODE_LEN.ilog2();

impl Episodes {
    /// Creates as many episodes as cover the T steps of the horizon, with s = 1.
    ///
    /// # Errors
    /// Not 1 ≤ L_1 ≤ L ≤ [`MAX_EPISODE_LEN`].
    pub fn new(horizon: u32, first: u32, longest: u32) -> Result<Self, EpisodeLenError> {
        Self::with_starts(horizon, first, 1, longest)
    }

    /// As [`new`](Self::new), with s clamped to 1 to [`MAX_EPISODE_LEN`].
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_starts(horizon: u32, first: u32, starts: u32, longest: u32) -> Result<Self, EpisodeLenError> {
        let longest = check_episode_len(longest, MAX_EPISODE_LEN)?;
        let first = check_episode_len(first, longest)?;
        let mut episodes = Self { first, starts: starts.clamp(1, MAX_EPISODE_LEN), longest, count: 0 };
        let mut left = horizon;
        while left > 0 && episodes.length(episodes.count + 1) < longest {
            left = left.saturating_sub(episodes.length(episodes.count + 1));
            episodes.count += 1;
        }
        episodes.count += left.div_ceil(longest);
        Ok(episodes)
    }

    /// Returns L_k; k counts from 1.
    pub fn length(&self, episode: u32) -> u32 {
        self.longest.min(self.first.saturating_mul(1 << self.doublings(episode)))
    }

    /// Returns the number of times that the length has doubled up to episode k, at most [`DOUBLINGS`].
    pub(crate) fn doublings(&self, episode: u32) -> u32 {
        episode.saturating_sub(self.starts).min(DOUBLINGS)
    }

    /// Returns the number of steps before episode k.
    pub fn steps_before(&self, episode: u32) -> u64 {
        let before = episode.saturating_sub(1);
        let starts = before.min(self.starts);
        let growing = (before - starts).min(DOUBLINGS);
        let grown: u64 = (1..=growing).map(|j| u64::from(self.length(self.starts + j))).sum();
        u64::from(starts) * u64::from(self.first)
            + grown
            + u64::from(before - starts - growing) * u64::from(self.longest)
    }

    /// Returns s.
    pub(super) fn starts(&self) -> u32 {
        self.starts
    }

    /// Returns K.
    pub fn count(&self) -> u32 {
        self.count
    }
}
