//! The store in a file, by redb.

use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::store::{Store, StoreError};

/// Events by their number, from 0.
const EVENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("events");
const VALUES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("values");

/// A store in one file. One process at a time can open it.
pub struct File {
    database: Database,
    next: u64,
}

impl File {
    /// Opens a store, and creates it if there is none.
    ///
    /// # Errors
    /// The file is no store, or another process has it open.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let database = Database::create(path).map_err(StoreError::new)?;
        let write = database.begin_write().map_err(StoreError::new)?;
        let next = {
            write.open_table(VALUES).map_err(StoreError::new)?;
            let events = write.open_table(EVENTS).map_err(StoreError::new)?;
            let last = events.last().map_err(StoreError::new)?;
            last.map_or(0, |(number, _)| number.value() + 1)
        };
        write.commit().map_err(StoreError::new)?;
        Ok(Self { database, next })
    }
}

impl Store for File {
    fn append(&mut self, events: &[Vec<u8>]) -> Result<(), StoreError> {
        let write = self.database.begin_write().map_err(StoreError::new)?;
        {
            let mut table = write.open_table(EVENTS).map_err(StoreError::new)?;
            for (number, event) in (self.next..).zip(events) {
                table.insert(number, event.as_slice()).map_err(StoreError::new)?;
            }
        }
        // Returns once the file system has it.
        write.commit().map_err(StoreError::new)?;
        self.next += events.len() as u64;
        Ok(())
    }

    fn replay(&self, each: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        let read = self.database.begin_read().map_err(StoreError::new)?;
        let table = read.open_table(EVENTS).map_err(StoreError::new)?;
        for entry in table.iter().map_err(StoreError::new)? {
            each(entry.map_err(StoreError::new)?.1.value());
        }
        Ok(())
    }

    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let read = self.database.begin_read().map_err(StoreError::new)?;
        let table = read.open_table(VALUES).map_err(StoreError::new)?;
        Ok(table.get(name).map_err(StoreError::new)?.map(|value| value.value().to_vec()))
    }

    fn set_value(&mut self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        let write = self.database.begin_write().map_err(StoreError::new)?;
        write.open_table(VALUES).map_err(StoreError::new)?.insert(name, value).map_err(StoreError::new)?;
        write.commit().map_err(StoreError::new)
    }
}
