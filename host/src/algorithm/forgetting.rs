//! Forgetting: weights of past episodes, for a θ* that drifts.

use std::num::NonZeroU32;

use super::episodes::Episodes;

/// Weights of episodes, which halve every H steps.
///
/// A step that is h steps old counts with the weight 2^(−h/H). Its age is counted from the end of its episode, so all steps of
/// an episode have the same weight: with S_k steps before episode k, that of episode j in the model of episode k > j is
///
/// ```text
/// w_jk = 2^(−(S_k − S_{j+1})/H).
/// ```
///
/// The latest episode has the weight 1. Without a half-life all weights are 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgetting {
    episodes: Episodes,
    half_life: Option<NonZeroU32>,
}

impl Forgetting {
    /// Creates the weights of a run.
    pub fn new(episodes: Episodes, half_life: Option<NonZeroU32>) -> Self {
        Self { episodes, half_life }
    }

    /// Returns w_jk, or `None` without a half-life.
    pub fn weight(&self, episode: u32, model: u32) -> Option<f64> {
        let age =
            self.episodes.steps_before(model).saturating_sub(self.episodes.steps_before(episode.saturating_add(1)));
        self.after(age as f64)
    }

    /// Returns 2^(−L_k/H), the factor by which episode k reduces the weights of all earlier ones, or `None` without a half-life.
    pub fn retention(&self, episode: u32) -> Option<f64> {
        self.after(self.episodes.length(episode).into())
    }

    /// Returns 2^(−h/H). Computed in software, so that every machine gets the same bits.
    fn after(&self, steps: f64) -> Option<f64> {
        self.half_life.map(|half_life| libm::exp2(-steps / f64::from(half_life.get())))
    }
}
