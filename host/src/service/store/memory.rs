//! Store in memory, for tests and demonstrations.

use std::collections::BTreeMap;

use super::{Store, StoreError};

/// Store in memory; its content is lost with the process.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    events: Vec<Vec<u8>>,
    values: BTreeMap<String, Vec<u8>>,
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
