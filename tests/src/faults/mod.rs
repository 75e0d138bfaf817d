//! The service and its devices in one thread, in a world of faults that follows from a seed.
//!
//! The service, its start, its store and the devices' agents and sessions are the real ones; clock, network and disk are
//! not. Frames are lost, doubled, delayed, reordered and damaged, devices are cut off, clocks jump, either side loses power,
//! and the disk fails, is full, or keeps some of what was written. Some devices are hostile. After a while faults stop; then
//! all must come to its end. The [`oracle`] says what must hold meanwhile.

pub mod disk;
pub mod oracle;
mod scenario;
pub mod simulated_device;
pub mod storage;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fedbandit_core::wire::max_sealed_frame_len;

use oracle::Wrong;
use scenario::World;

/// The dimension of all runs.
pub const D: usize = 2;
/// The longest frame.
pub const FRAME: usize = max_sealed_frame_len(D);

/// What a run was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Of all that happened, in order.
    pub trace: u64,
    /// Episodes that began.
    pub episodes: u64,
    /// Summaries that were stored.
    pub summaries: u64,
    /// Answers and models that were checked.
    pub checked: u64,
    /// Starts of the service.
    pub starts: u64,
    /// Restarts of devices.
    pub restarts: u64,
    /// Troubles with the disk.
    pub troubles: u64,
    /// Frames that did not arrive as they were sent, or when.
    pub harmed: u64,
    /// Frames of hostile devices.
    pub abuses: u64,
    /// Simulated seconds.
    pub seconds: u64,
}

impl Outcome {
    /// The numbers of two runs together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            trace: self.trace.rotate_left(1) ^ other.trace,
            episodes: self.episodes + other.episodes,
            summaries: self.summaries + other.summaries,
            checked: self.checked + other.checked,
            starts: self.starts + other.starts,
            restarts: self.restarts + other.restarts,
            troubles: self.troubles + other.troubles,
            harmed: self.harmed + other.harmed,
            abuses: self.abuses + other.abuses,
            seconds: self.seconds + other.seconds,
        }
    }
}

/// Runs a seed. With `verbose`, all that happens is printed.
///
/// # Errors
/// What did not hold, and the command that shows it again.
pub fn run(seed: u64, verbose: bool) -> Result<Outcome, Wrong> {
    let attempt = || World::new(seed, verbose)?.run();
    let outcome = catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(format!("it panics: {}", text.unwrap_or_default()))
    });
    outcome.map_err(|wrong| {
        format!("seed {seed}: {wrong}\nagain: fedbandit-tests soak --seeds 1 --first {seed} --verbose")
    })
}
