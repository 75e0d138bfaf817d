//! Record of a device that replaying the store restores.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::algorithm::Fault;

/// Record of a device over the whole run. It follows from the stored events alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct DeviceHistory {
    /// Number of episodes that were closed when the device was enrolled.
    pub(super) enrolled_after: u32,
    /// Newest episode for which a summary was received; 0 before the first.
    pub(super) last_episode: u32,
    /// Summaries that counted as zero, by reason. Empty in a private run, where the reasons depend on the messages.
    pub(super) zeroed: BTreeMap<Fault, u64>,
}

impl DeviceHistory {
    /// Returns the number of episodes in a row since the enrolment, up to the last closed one, for which nothing was received.
    pub(super) fn missing_streak(&self, closed: u32) -> u32 {
        closed.saturating_sub(self.last_episode.max(self.enrolled_after))
    }

    /// Returns the number of summaries that counted as zero.
    pub(super) fn zeroed_total(&self) -> u64 {
        self.zeroed.values().sum()
    }
}
