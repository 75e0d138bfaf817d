//! Table of all devices, read a page at a time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::state_machine::Dropped;
use crate::algorithm::Fault;

/// Request for a page of the device table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceQuery {
    /// Order of the rows.
    pub order: DeviceOrder,
    /// Number of the device after which the page starts, in that order; none for the first page.
    pub after: Option<u32>,
    /// Number of rows; values outside of 1 to [`Self::MAX_LIMIT`] are replaced by the nearest bound.
    pub limit: usize,
}

impl DeviceQuery {
    /// Largest number of rows in a page.
    pub const MAX_LIMIT: usize = 1_000;
}

impl Default for DeviceQuery {
    fn default() -> Self {
        Self { order: DeviceOrder::Number, after: None, limit: 100 }
    }
}

/// Order of the device table. Devices that are equal in it are ordered by their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DeviceOrder {
    /// By number.
    #[default]
    Number,
    /// The farthest from the centre first.
    Distance,
    /// The longest missing first.
    Missing,
    /// Those with the most summaries that counted as zero first.
    Zeroed,
}

impl DeviceOrder {
    /// Returns the name, as in a query.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Distance => "distance",
            Self::Missing => "missing",
            Self::Zeroed => "zeroed",
        }
    }
}

/// Page of the device table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DevicePage {
    /// Number of closed episodes, to which the rows refer.
    pub closed_episodes: u32,
    /// True if the run is private. Facts that depend on the content of messages are then absent.
    pub private: bool,
    /// Rows in the requested order.
    pub devices: Vec<DeviceReport>,
    /// Value of `after` for the next page; none if this is the last one.
    pub next: Option<u32>,
}

/// Report on a device. All fields but `since_start` cover the whole run: replaying the store restores them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceReport {
    /// Number of the device.
    pub agent: u32,
    /// True if the device is revoked.
    pub revoked: bool,
    /// Newest episode for which a summary was received.
    pub last_episode: Option<u32>,
    /// Number of episodes in a row, up to the last closed one, for which nothing was received.
    pub missing_streak: u32,
    /// Summaries that counted as zero, by reason; none in a private run.
    pub zeroed: Option<BTreeMap<Fault, u64>>,
    /// Distance from the centre when the last episode closed, as in [`Outlier::distance`](super::Outlier::distance); none in
    /// a private run.
    pub distance: Option<f64>,
    /// Observations of the running service; none if the store was read without a service.
    pub since_start: Option<SinceStart>,
}

/// Observations of a device since the service started.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SinceStart {
    /// Seconds since the last valid frame.
    pub seconds_since_seen: Option<u64>,
    /// True if the device is connected.
    pub connected: bool,
    /// Transport of the last valid frame.
    pub transport: Option<&'static str>,
    /// Boot counter in the last hello.
    pub boot: Option<u32>,
    /// Dropped frames that the device has certainly sent, by reason.
    pub dropped: BTreeMap<Dropped, u64>,
    /// Dropped frames with the address of the device, by reason. Their tags are wrong or were not verified, so anybody may
    /// have sent them.
    pub dropped_unverified: BTreeMap<Dropped, u64>,
}
