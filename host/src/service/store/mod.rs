//! Where events are kept.

pub mod file;
pub mod metered;

use std::io;

use thiserror::Error;

/// A log of events, and a few named values beside it.
///
/// The contract: what [`append`](Self::append) returned `Ok` for is there after any crash, whole and in order; of what it
/// did not return for, all or nothing is there. After an error nothing more may be appended: whoever holds a store that
/// failed stops.
pub trait Store {
    /// Adds events at the end, durably and all at once.
    ///
    /// # Errors
    /// They are not sure to be there.
    fn append(&mut self, events: &[Vec<u8>]) -> Result<(), StoreError>;

    /// Calls a function for all events, in order.
    ///
    /// # Errors
    /// The store cannot be read.
    fn replay(&self, each: &mut dyn FnMut(&[u8])) -> Result<(), StoreError>;

    /// A named value, if it is there.
    ///
    /// # Errors
    /// The store cannot be read.
    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Sets a named value, durably.
    ///
    /// # Errors
    /// It is not sure to be there.
    fn set_value(&mut self, name: &str, value: &[u8]) -> Result<(), StoreError>;
}

/// A store failed.
#[derive(Debug, Error)]
#[error("the store failed: {0}")]
pub struct StoreError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

impl StoreError {
    /// Why.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Box::new(error))
    }
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        Self::new(error)
    }
}

/// A store in memory, for tests and demonstrations.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    events: Vec<Vec<u8>>,
    values: std::collections::BTreeMap<String, Vec<u8>>,
}

impl Store for Memory {
    fn append(&mut self, events: &[Vec<u8>]) -> Result<(), StoreError> {
        self.events.extend_from_slice(events);
        Ok(())
    }

    fn replay(&self, each: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        self.events.iter().for_each(|event| each(event));
        Ok(())
    }

    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.values.get(name).cloned())
    }

    fn set_value(&mut self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        self.values.insert(name.into(), value.to_vec());
        Ok(())
    }
}
