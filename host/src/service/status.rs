//! What an operator sees of a run.

use std::collections::BTreeMap;

use serde::Serialize;

use super::state_machine::Dropped;
use crate::algorithm::Fault;

/// What is promised to each message of a private run: (μ, ν)-differential privacy, over all K releases together. So it
/// is spent on the run as a whole, however many of them there were so far.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Promise {
    /// μ, elsewhere called ε.
    pub mu: f64,
    /// ν, elsewhere called δ.
    pub nu: f64,
    /// The zero-concentrated privacy that implies them.
    pub rho: f64,
    /// What keeps it.
    pub mechanism: String,
    /// The releases so far, of K.
    pub releases: u32,
}

/// A run at a glance. The numbers are exact: with privacy, they are for the operator alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// The run's number.
    pub run: u32,
    /// Of all that the store and the service must agree on: the same for the same terms.
    pub config_hash: String,
    /// k; none when the run is over.
    pub episode: Option<u32>,
    /// K.
    pub episodes: u32,
    /// Until the running episode ends.
    pub seconds_left: u64,
    /// How long an episode may last.
    pub seconds_per_episode: u64,
    /// N.
    pub enrolled: usize,
    /// How many of them are revoked.
    pub revoked: usize,
    /// How many of them were heard since the service started.
    pub seen: usize,
    /// How many of them are connected.
    pub connected: usize,
    /// How many have sent nothing for the running episode.
    pub missing: usize,
    /// How many had sent nothing when the last one closed.
    pub missing_in_last_episode: Option<usize>,
    /// How the last one went: see [`Quality::mean_reward`].
    pub mean_reward: Option<f64>,
    /// β_k.
    pub beta: Option<f32>,
    /// λ_k.
    pub lambda: f64,
    /// The larger one of the last two aggregations.
    pub certified_gap: f64,
    /// Of the last two aggregations together.
    pub passes: u32,
    /// Models whose Λ was repaired.
    pub repaired: u64,
    /// Summaries by what became of them.
    pub received: Received,
    /// Summaries that counted as zero, by reason.
    pub faults: BTreeMap<Fault, u64>,
    /// Frames that were dropped, by reason.
    pub dropped: BTreeMap<Dropped, u64>,
    /// Whether streams are private.
    pub private: bool,
    /// What a private run promises.
    pub privacy: Option<Promise>,
    /// The devices farthest from the centre; nobody where streams are private.
    pub suspicious: Vec<Outlier>,
    /// The last episodes.
    pub history: Vec<Quality>,
}

/// Summaries by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Received {
    /// Stored, and counted as they are.
    pub accepted: u64,
    /// Of these, after their episode had closed.
    pub late: u64,
    /// Stored before, and acknowledged again; since the service started.
    pub duplicate: u64,
    /// Of another dimension or of no open episode, and refused; since the service started.
    pub refused: u64,
}

/// A device and how far from the centre its sums are, in median radii.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outlier {
    /// Its number.
    pub agent: u32,
    /// The larger distance of its two sums.
    pub distance: f64,
}

/// How well an episode went.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// k, the episode that was closed.
    pub episode: u32,
    /// β_k, the width that its choices were made with.
    pub beta: f32,
    /// How many devices had sent nothing for it.
    pub missing: usize,
    /// The median over devices of the mean reward that they say they had: fewer than half of them, if they lie, cannot
    /// move it beyond what others had. None if nobody said, and never where streams are private.
    pub mean_reward: Option<f64>,
}
