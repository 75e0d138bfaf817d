//! Configuration of a controller.

use std::num::NonZeroU32;

use fedbandit_core::Rewards;

use super::admission::{Admission, AdmissionError, Level};
use super::episodes::{DOUBLINGS, Episodes};
use super::forgetting::Forgetting;

/// Configuration of a [`Controller`](super::Controller), fixed for the whole run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerConfig {
    /// D, from 1 to 255.
    pub dimension: u8,
    /// K and the L_k.
    pub episodes: Episodes,
    /// Strictness of the admission checks.
    pub level: Level,
    /// r_max with |r| ≤ r_max, if such a bound is declared. Devices clip rewards to [−1, 1] if it is at most 1.
    pub reward_bound: Option<f64>,
    /// W, the number of episodes after its own for which a summary is still accepted: at most [`MAX_WINDOW`]. A late summary
    /// counts from the next model on.
    pub window: u32,
    /// H, the half-life of all sums in steps, if θ* may drift ([`Forgetting`]). Not available with privacy.
    pub half_life: Option<NonZeroU32>,
}

/// The largest W.
pub const MAX_WINDOW: u32 = 63;

impl ControllerConfig {
    /// Creates a configuration for rewards without a declared bound, without late summaries and without a half-life.
    pub fn new(dimension: u8, episodes: Episodes, level: Level) -> Self {
        Self { dimension, episodes, level, reward_bound: None, window: 0, half_life: None }
    }

    /// Returns the admission checks of an episode.
    pub(crate) fn admission(&self, episode: u32, private: bool) -> Result<Admission, AdmissionError> {
        Admission::new(self.level, self.dimension.into(), self.episodes.length(episode), self.reward_bound, private)
    }

    /// Returns the admission checks, indexed by the [number of doublings](Episodes::doublings) of the episode length.
    pub(crate) fn admissions(&self, private: bool) -> Result<Vec<Admission>, AdmissionError> {
        let starts = self.episodes.starts();
        (starts..=starts + DOUBLINGS).map(|episode| self.admission(episode, private)).collect()
    }

    /// Returns the weights of past episodes.
    pub fn forgetting(&self) -> Forgetting {
        Forgetting::new(self.episodes, self.half_life)
    }

    /// Returns how devices treat rewards.
    pub(crate) fn rewards(&self) -> Rewards {
        if self.reward_bound.is_some_and(|bound| bound <= 1.0) { Rewards::Clipped } else { Rewards::Unbounded }
    }
}
