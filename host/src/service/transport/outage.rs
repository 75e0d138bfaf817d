//! What the log hears of a line that is away.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// After an outage was told, the next one is not told for so long: what comes and goes must not fill a log.
const QUIET: Duration = Duration::from_secs(60);

/// The outages of a line. Each is told once, when it begins and when it is over, however often it is tried meanwhile.
pub struct Outage {
    line: String,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    connected: Option<bool>,
    outage: Option<Instant>,
}

impl Outage {
    /// Of a line by its name.
    pub fn new(line: String) -> Self {
        Self { line, told: Mutex::default() }
    }

    /// An attempt failed, or the line broke.
    pub fn failed(&self, reason: impl Display) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.connected != Some(false) && told.outage.is_none_or(|at| at.elapsed() >= QUIET) {
            *told = Told { connected: Some(false), outage: Some(Instant::now()) };
            tracing::warn!("{}: {reason}; trying again", self.line);
        }
    }

    /// The line is there.
    pub fn connected(&self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.connected.replace(true) != Some(true) {
            tracing::info!("{}: connected", self.line);
        }
    }
}
