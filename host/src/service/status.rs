//! State of a run as reported to the operator.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::continuation::Chain;
use super::state_machine::Dropped;
use crate::algorithm::Fault;
use crate::robust::Exploration;

/// Guarantee of a private run: (μ, ν)-differential privacy of each message, over all K releases together.
///
/// The budget covers the run as a whole, however many releases there have been.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrivacyGuarantee {
    /// μ, usually called ε.
    pub mu: f64,
    /// ν, usually called δ.
    pub nu: f64,
    /// Parameter of the zero-concentrated differential privacy that implies (μ, ν).
    pub rho: f64,
    /// Name of the noise mechanism.
    pub mechanism: String,
    /// Number of releases so far, of K.
    pub releases: u32,
}

/// State of a run. Counts are exact, so those of a private run are for the operator only.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// Number of the run.
    pub run: u32,
    /// Hash of the run's terms.
    pub config_hash: String,
    /// True once all K episodes are closed.
    pub finished: bool,
    /// Running episode k; none once the run has finished.
    pub episode: Option<u32>,
    /// K.
    pub episodes: u32,
    /// Seconds until the deadline of the running episode; none once the run has finished.
    pub seconds_left: Option<u64>,
    /// Longest duration of an episode in seconds.
    pub seconds_per_episode: u64,
    /// N.
    pub enrolled: usize,
    /// Number of revoked devices.
    pub revoked: usize,
    /// Number of devices that have sent a valid frame since the service started.
    pub seen: usize,
    /// Number of connected devices.
    pub connected: usize,
    /// Number of devices that have not reported in the running episode; 0 once the run has finished.
    pub missing: usize,
    /// Number of devices that had not reported when the last episode closed.
    pub missing_in_last_episode: Option<usize>,
    /// Mean reward of the last episode; see [`EpisodeReport::mean_reward`].
    pub mean_reward: Option<f64>,
    /// β_k.
    pub beta: Option<f32>,
    /// λ_k.
    pub lambda: f64,
    /// Larger certified gap of the last two aggregations (U and u).
    pub certified_gap: f64,
    /// Passes of the last two aggregations together.
    pub passes: u32,
    /// Number of models whose Λ was repaired.
    pub repaired: u64,
    /// Summaries by outcome.
    pub received: SummaryCounts,
    /// Summaries that counted as zero, by reason.
    pub faults: BTreeMap<Fault, u64>,
    /// Dropped frames by reason, since the service started.
    pub dropped: BTreeMap<Dropped, u64>,
    /// True if the streams are private.
    pub private: bool,
    /// Guarantee of a private run.
    pub privacy: Option<PrivacyGuarantee>,
    /// The earlier runs that this one continues; none in a first run.
    pub chain: Option<Chain>,
    /// Devices farthest from the centre, the farthest first; empty in a private run.
    #[serde(rename = "suspicious")]
    pub outliers: Vec<Outlier>,
    /// False if the rule takes a missing device for a corrupted one.
    pub tolerates_absence: bool,
    /// True if devices may be enrolled while the run goes on.
    pub accepts_devices: bool,
    /// Share of devices that may be corrupted, for which the rule is designed.
    pub design_corruption: f64,
    /// Seconds since the last snapshot of the run's state; none before the first.
    pub snapshot_age_seconds: Option<u64>,
    /// Exploration by all devices up to the last closed episode; none in a private run.
    pub exploration: Option<Exploration>,
    /// Last closed episodes, the oldest first.
    pub history: Vec<EpisodeReport>,
}

/// Summaries by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SummaryCounts {
    /// Stored and admitted.
    pub accepted: u64,
    /// Accepted after their episode had closed; included in `accepted`.
    pub late: u64,
    /// Stored before and acknowledged again, since the service started.
    pub duplicate: u64,
    /// Refused for a wrong dimension or episode, since the service started.
    pub refused: u64,
}

/// Device far from the centre of all devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outlier {
    /// Number of the device.
    pub agent: u32,
    /// Distance from the centre in median radii: 1 is the distance of the median device. Of the distances of V_i and v_i,
    /// the larger one.
    pub distance: f64,
}

/// Report on a closed episode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeReport {
    /// k.
    pub episode: u32,
    /// β_k.
    pub beta: f32,
    /// Number of devices that had not reported.
    pub missing: usize,
    /// Median over devices of their reported mean reward. A corrupted minority cannot move it beyond the rewards of honest
    /// devices. None if no device reported, and always in a private run.
    pub mean_reward: Option<f64>,
}
