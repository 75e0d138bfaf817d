//! Log lines about connections that break and come back.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two logged outages of one line: a flapping line must not flood the log.
const QUIET: Duration = Duration::from_secs(60);

/// Outage log of one line. Each outage is logged once when it begins and once when it ends, however many attempts fail.
pub struct Outage {
    line: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Last logged state of the connection.
    connected: Option<bool>,
    /// Time of the last logged outage.
    last_outage: Option<Instant>,
}

impl Outage {
    /// Creates the outage log of a line with a name.
    pub fn new(line: String) -> Self {
        Self { line, state: Mutex::default() }
    }

    /// Reports that an attempt failed or the connection broke.
    pub fn failed(&self, reason: impl Display) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.connected != Some(false) && state.last_outage.is_none_or(|at| at.elapsed() >= QUIET) {
            *state = State { connected: Some(false), last_outage: Some(Instant::now()) };
            tracing::warn!("{}: {reason}; retrying", self.line);
        }
    }

    /// Reports that the connection is up.
    pub fn connected(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.connected.replace(true) != Some(true) {
            tracing::info!("{}: connected", self.line);
        }
    }
}
