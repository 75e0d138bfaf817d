//! Store in memory, for tests and demonstrations.

use std::collections::BTreeMap;

use super::super::backup::Entry;
use super::{Reader, Snapshot, Store, StoreError, Table};

/// Store in memory; its content is lost with the process.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    events: BTreeMap<u64, Vec<u8>>,
    /// Number of the next event.
    next: u64,
    snapshot: Option<Vec<u8>>,
    values: BTreeMap<String, Vec<u8>>,
    audit: Vec<Vec<u8>>,
}

impl Store for Memory {
    fn append(&mut self, events: &[Vec<u8>]) -> Result<(), StoreError> {
        self.events.extend((self.next..).zip(events.iter().cloned()));
        self.next += events.len() as u64;
        Ok(())
    }

    fn replay(&self, from: u64, each: &mut dyn FnMut(u64, &[u8])) -> Result<(), StoreError> {
        self.events.range(from..).for_each(|(number, event)| each(*number, event));
        Ok(())
    }

    fn set_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), StoreError> {
        self.events.retain(|number, _| !snapshot.removable.iter().any(|range| range.contains(number)));
        self.snapshot = Some(snapshot.bytes.clone());
        Ok(())
    }

    fn snapshot(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.snapshot.clone())
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
        match table {
            Table::Events => self.events.range(from..).all(|(number, row)| each(*number, row)),
            Table::Audit => (0..).zip(&self.audit).skip(from as usize).all(|(number, row)| each(number, row)),
        };
        Ok(())
    }

    fn copy(&self, each: &mut dyn FnMut(Entry) -> bool) -> Result<(), StoreError> {
        let values = self.values.iter().map(|(name, value)| Entry::Value(name.clone(), value.clone()));
        let snapshot = self.snapshot.iter().map(|bytes| Entry::Snapshot(bytes.clone()));
        let events = self.events.iter().map(|(number, event)| Entry::Event(*number, event.clone()));
        let audit = (0..).zip(&self.audit).map(|(number, entry)| Entry::Audit(number, entry.clone()));
        values.chain(snapshot).chain(events).chain(audit).all(each);
        Ok(())
    }
}
