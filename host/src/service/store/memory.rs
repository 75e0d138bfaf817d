//! Store in memory, for tests and demonstrations.

use std::collections::BTreeMap;

use super::{Reader, Store, StoreError, Table};

/// Store in memory; its content is lost with the process.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    events: Vec<Vec<u8>>,
    values: BTreeMap<String, Vec<u8>>,
    audit: Vec<Vec<u8>>,
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
    fn append_audit(&mut self, entries: &[Vec<u8>], values: &[(&str, Vec<u8>)]) -> Result<(), StoreError> {
        self.audit.extend_from_slice(entries);
        self.values.extend(values.iter().map(|(name, value)| ((*name).into(), value.clone())));
        Ok(())
    }
}

impl Reader for Memory {
    fn rows(&self, table: Table, from: u64, each: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<(), StoreError> {
        let rows = if table == Table::Events { &self.events } else { &self.audit };
        let mut rows = (0..).zip(rows).skip_while(|(number, _)| *number < from);
        rows.all(|(number, row)| each(number, row));
        Ok(())
    }
}
