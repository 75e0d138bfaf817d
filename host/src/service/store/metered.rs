//! Measures and logs the commits of a store.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Snapshot, Store, StoreError};

/// Duration above which a commit is logged as slow.
const SLOW: Duration = Duration::from_secs(1);

/// Store that measures the commits of another store.
pub struct MeteredStore {
    store: Box<dyn Store + Send>,
    commits: Arc<Mutex<Commits>>,
}

/// Histogram of commit durations since the service started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Commits {
    /// Number of commits.
    pub count: u64,
    /// Total duration in seconds.
    pub seconds: f64,
    /// Number of commits within each of [`Self::LIMITS`], cumulative.
    pub within: [u64; 6],
}

impl Commits {
    /// Upper bounds of the histogram's buckets, in seconds.
    pub const LIMITS: [f64; 6] = [0.001, 0.003, 0.01, 0.03, 0.1, 1.0];

    fn add(&mut self, seconds: f64) {
        self.count += 1;
        self.seconds += seconds;
        for (within, limit) in self.within.iter_mut().zip(Self::LIMITS) {
            *within += u64::from(seconds <= limit);
        }
    }
}

impl MeteredStore {
    /// Wraps a store. The second value is updated with each commit.
    pub fn new(store: Box<dyn Store + Send>) -> (Self, Arc<Mutex<Commits>>) {
        let commits = Arc::default();
        (Self { store, commits: Arc::clone(&commits) }, commits)
    }
}

impl Store for MeteredStore {
    fn append(&mut self, events: &[Vec<u8>]) -> Result<(), StoreError> {
        let start = Instant::now();
        self.store.append(events).inspect_err(|error| tracing::error!(%error, "commit failed; the service stops"))?;
        let elapsed = start.elapsed();
        if elapsed > SLOW {
            tracing::warn!(events = events.len(), seconds = elapsed.as_secs_f64(), "slow commit");
        }
        if let Ok(mut commits) = self.commits.lock() {
            commits.add(elapsed.as_secs_f64());
        }
        Ok(())
    }

    fn replay(&self, from: u64, each: &mut dyn FnMut(u64, &[u8])) -> Result<(), StoreError> {
        self.store.replay(from, each)
    }

    fn set_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), StoreError> {
        self.store.set_snapshot(snapshot)
    }

    fn snapshot(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.snapshot()
    }

    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.value(name)
    }

    fn set_value(&mut self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        self.store.set_value(name, value)
    }
    fn append_audit(&mut self, entries: &[Vec<u8>], values: &[(&str, Vec<u8>)]) -> Result<(), StoreError> {
        self.store.append_audit(entries, values)
    }
}
