//! Snapshots: the state of a run after a number of events, from which a restart continues instead of replaying them.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::state_machine::device_history::DeviceHistory;
use super::status::EpisodeReport;
use crate::algorithm::{AgentId, SavedController, SavedSums};
use crate::privacy::SavedUnits;

/// Snapshot to store, with the events that it makes superfluous.
#[derive(Debug)]
#[must_use = "a snapshot is of use only once it is stored"]
pub struct Snapshot {
    /// Encoded state.
    pub bytes: Vec<u8>,
    /// Numbers of the events that may be removed together with it: old summaries. Models stay, and so does the last event.
    pub removable: Vec<Range<u64>>,
}

/// When snapshots are taken, and for how long summaries are kept after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// Least number of bytes of events between two snapshots.
    pub least_bytes: u64,
    /// Least number of bytes of events per byte of the last snapshot. It bounds the cost of snapshots, and with `least_bytes`
    /// the length of a replay.
    pub ratio: u64,
    /// Seconds after which a snapshot is taken although there are fewer events.
    pub most_seconds: u64,
    /// Number of closed episodes whose summaries are kept; all of them if `None`.
    pub retain: Option<u32>,
}

impl SnapshotPolicy {
    /// A snapshot after 256 KiB of events and four times its own length, or after six hours. All summaries are kept.
    pub const DEFAULT: Self = Self { least_bytes: 256 << 10, ratio: 4, most_seconds: 6 * 60 * 60, retain: None };
}

/// Error of a stored snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The bytes are damaged.
    #[error("the stored snapshot is corrupt; restore the last backup")]
    Corrupt,
    /// The snapshot is of a run with other terms.
    #[error("the stored snapshot belongs to a run with different settings; restore the last backup")]
    DifferentRun,
}

/// Decoded snapshot.
#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    /// Hash of the run's terms.
    pub(super) config_hash: u64,
    /// Number of events before the snapshot.
    pub(super) events: u64,
    /// Time of the snapshot in seconds since the Unix epoch.
    pub(super) taken_at: u64,
    pub(super) controller: SavedAnyController,
    /// Event of the model in force; none once the run has finished.
    pub(super) model: Option<Vec<u8>>,
    /// Numbers of the retained models, each with its episode.
    pub(super) models: Vec<(u32, u64)>,
    pub(super) statistics: SavedStatistics,
    /// Records of the devices that have one.
    pub(super) histories: Vec<(AgentId, DeviceHistory)>,
}

/// State of [`AnyController`](super::AnyController).
#[derive(Serialize, Deserialize)]
pub(super) enum SavedAnyController {
    Plain(SavedController<SavedSums>),
    Private(SavedController<SavedUnits>),
}

/// Counters and history that a replay restores.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedStatistics {
    pub(super) accepted: u64,
    pub(super) late: u64,
    pub(super) mean_rewards: Option<Vec<f64>>,
    pub(super) history: Vec<EpisodeReport>,
}

impl Saved {
    /// Encodes the snapshot: its fields, followed by their BLAKE3 hash.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = postcard::to_stdvec(self).unwrap_or_default();
        let hash = blake3::hash(&bytes);
        bytes.extend_from_slice(hash.as_bytes());
        bytes
    }

    /// Decodes a snapshot of a run with these terms.
    pub(super) fn from_bytes(bytes: &[u8], config_hash: u64) -> Result<Self, SnapshotError> {
        let (bytes, hash) = bytes.split_last_chunk::<32>().ok_or(SnapshotError::Corrupt)?;
        if blake3::hash(bytes) != *hash {
            return Err(SnapshotError::Corrupt);
        }
        let (saved, rest): (Self, _) = postcard::take_from_bytes(bytes).map_err(|_| SnapshotError::Corrupt)?;
        if saved.config_hash != config_hash {
            return Err(SnapshotError::DifferentRun);
        }
        if rest.is_empty() { Ok(saved) } else { Err(SnapshotError::Corrupt) }
    }
}
