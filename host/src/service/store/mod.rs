//! Durable event log: [`file`](mod@file) on redb, [`Memory`] for tests, [`metered`] to measure either.

pub mod file;
mod memory;
pub mod metered;

use std::io;

use thiserror::Error;

pub use memory::Memory;

use super::backup::Entry;
use super::snapshot::Snapshot;

/// Log of events with a snapshot and a few named values beside it.
///
/// Once [`append`](Self::append) has returned `Ok`, its events survive any crash, complete and in order. An `append` that
/// was interrupted leaves all of its events or none. After an error the store must not be used again: its owner stops.
pub trait Store {
    /// Appends events durably and atomically.
    ///
    /// # Errors
    /// The events may not be durable.
    fn append(&mut self, events: &[Vec<u8>]) -> Result<(), StoreError>;

    /// Calls a function with each event from a number on, in order, with its number. Events are numbered from 0 as they were
    /// appended; removed ones are left out.
    ///
    /// # Errors
    /// The store cannot be read.
    fn replay(&self, from: u64, each: &mut dyn FnMut(u64, &[u8])) -> Result<(), StoreError>;

    /// Replaces the snapshot and removes ranges of events, durably and atomically.
    ///
    /// # Errors
    /// The snapshot may not be durable.
    fn set_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), StoreError>;

    /// Returns the bytes of the snapshot, if there is one.
    ///
    /// # Errors
    /// The store cannot be read.
    fn snapshot(&self) -> Result<Option<Vec<u8>>, StoreError>;

    /// Returns a named value.
    ///
    /// # Errors
    /// The store cannot be read.
    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Sets a named value durably.
    ///
    /// # Errors
    /// The value may not be durable.
    fn set_value(&mut self, name: &str, value: &[u8]) -> Result<(), StoreError>;

    /// Appends entries to the audit log and sets named values, durably and atomically.
    ///
    /// # Errors
    /// The entries and values may not be durable.
    fn append_audit(&mut self, entries: &[Vec<u8>], values: &[(&str, Vec<u8>)]) -> Result<(), StoreError>;
}

/// Numbered table of a store. Rows keep their numbers; a snapshot may remove events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Log of events.
    Events,
    /// Audit log.
    Audit,
}

/// Read access to a store beside its writer. A call sees everything that was committed before it.
pub trait Reader: Send + Sync {
    /// Calls a function with the rows of a table from a number on, in order, until it returns false.
    ///
    /// # Errors
    /// The store cannot be read.
    fn rows(&self, table: Table, from: u64, each: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<(), StoreError>;

    /// Calls a function with everything that the store contains at one moment, until it returns false.
    ///
    /// # Errors
    /// The store cannot be read.
    fn copy(&self, each: &mut dyn FnMut(Entry) -> bool) -> Result<(), StoreError>;
}

/// Error of a store; wraps the error of its backend.
#[derive(Debug, Error)]
#[error("the store failed: {0}")]
pub struct StoreError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

impl StoreError {
    /// Wraps an error of the backend.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Box::new(error))
    }
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        Self::new(error)
    }
}
