//! Deterministic fault simulation.
//!
//! The real service, store and device sessions run in one thread. Clock, network and disk are simulated and follow from a
//! seed. Injected faults:
//!
//! - frames are lost, duplicated, delayed, reordered, damaged and, much later, replayed; devices are disconnected;
//! - clocks jump; devices and service lose power, also during a commit or a start;
//! - in some scenarios, the service of the next run replaces that of the first;
//! - the disk fails, is full, or keeps only some unsynced writes;
//! - fewer than half of the devices are hostile.
//!
//! Devices start without knowing their run. After some time the faults stop; then the run must complete, and every honest
//! device must be in it. The [`oracle`] checks every promise of the service.

pub mod disk;
pub mod oracle;
mod scenario;
pub mod simulated_device;
pub mod storage;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fedbandit_core::wire::max_frame_len;

use oracle::Violation;
use scenario::Scenario;

/// Dimension of all scenarios.
pub const D: usize = 2;
/// Maximum length of a frame.
pub const FRAME: usize = max_frame_len(D);

/// Statistics of one or more scenarios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Hash of all events, in order.
    pub trace: u64,
    /// Episodes that began.
    pub episodes: u64,
    /// Stored summaries.
    pub summaries: u64,
    /// Checked frames of the service.
    pub checked: u64,
    /// Starts of the service.
    pub starts: u64,
    /// Restarts of devices.
    pub restarts: u64,
    /// Starts and commits that a disk fault ended.
    pub disk_faults: u64,
    /// Frames lost, duplicated or damaged.
    pub frame_faults: u64,
    /// Recorded frames that were replayed.
    pub replays: u64,
    /// Stored snapshots.
    pub snapshots: u64,
    /// Devices that were enrolled during a run.
    pub enrolled: u64,
    /// Services that were replaced by that of the next run.
    pub next_runs: u64,
    /// Those of `next_runs` that continue the run before.
    pub continued: u64,
    /// Entries of devices into a run.
    pub moves: u64,
    /// Frames of hostile devices.
    pub abuses: u64,
    /// Simulated seconds.
    pub seconds: u64,
}

impl Outcome {
    /// Adds the statistics of another scenario.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            trace: self.trace.rotate_left(1) ^ other.trace,
            episodes: self.episodes + other.episodes,
            summaries: self.summaries + other.summaries,
            checked: self.checked + other.checked,
            starts: self.starts + other.starts,
            restarts: self.restarts + other.restarts,
            disk_faults: self.disk_faults + other.disk_faults,
            frame_faults: self.frame_faults + other.frame_faults,
            replays: self.replays + other.replays,
            snapshots: self.snapshots + other.snapshots,
            enrolled: self.enrolled + other.enrolled,
            next_runs: self.next_runs + other.next_runs,
            continued: self.continued + other.continued,
            moves: self.moves + other.moves,
            abuses: self.abuses + other.abuses,
            seconds: self.seconds + other.seconds,
        }
    }
}

/// Runs the scenario of a seed. With `verbose`, prints every event.
///
/// # Errors
/// The service violates a promise. The error names it, and the command that repeats the scenario.
pub fn run(seed: u64, verbose: bool) -> Result<Outcome, Violation> {
    let attempt = || Scenario::new(seed, verbose)?.run();
    let outcome = catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    });
    outcome.map_err(|violation| {
        format!("seed {seed}: {violation}\nrepeat with: fedbandit-tests soak --seeds 1 --first {seed} --verbose")
    })
}
