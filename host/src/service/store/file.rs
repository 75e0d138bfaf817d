//! Store in a file, on redb.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, ReadableTable,
    StorageBackend, TableDefinition, TableError, WriteTransaction,
};

use super::{Reader, Store, StoreError, Table};

/// Events, numbered from 0.
const EVENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("events");
/// Entries of the audit log, numbered from 0.
const AUDIT: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("audit");
const VALUES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("values");

/// Bytes of redb's page cache. A log is read once from start to end and then only grows, so a small cache suffices.
const CACHE: usize = 64 << 20;

/// Store in one file, which is locked while it is open.
pub struct File {
    database: Access,
    next: u64,
}

#[derive(Clone)]
enum Access {
    Write(Arc<Database>),
    ReadOnly(Arc<ReadOnlyDatabase>),
}

impl Access {
    fn read(&self) -> Result<ReadTransaction, StoreError> {
        let read = match self {
            Self::Write(database) => database.begin_read(),
            Self::ReadOnly(database) => database.begin_read(),
        };
        read.map_err(StoreError::new)
    }
}

/// Read access to a store in a file. The file stays locked until the store and all of its readers are dropped.
#[derive(Clone)]
pub struct FileReader(Access);

impl Reader for FileReader {
    fn rows(&self, table: Table, from: u64, each: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<(), StoreError> {
        let definition = if table == Table::Events { EVENTS } else { AUDIT };
        let rows = match self.0.read()?.open_table(definition) {
            // Stores of earlier versions have no audit log.
            Err(TableError::TableDoesNotExist(_)) => return Ok(()),
            other => other.map_err(StoreError::new)?,
        };
        for row in rows.range(from..).map_err(StoreError::new)? {
            let (number, row) = row.map_err(StoreError::new)?;
            if !each(number.value(), row.value()) {
                break;
            }
        }
        Ok(())
    }
}

impl File {
    /// Opens a store, or creates it if the file does not exist.
    ///
    /// # Errors
    /// The file is not a store, or another process has it open.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        if !path.try_exists()? {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let directory = fs::File::open(parent.unwrap_or(Path::new(".")))?;
            // Serialises concurrent first starts. Some file systems cannot lock a directory; the hard link below is safe there.
            let _ = directory.lock();
            // Created under another name first: a crash must not leave a partial store, which could not be opened.
            let unfinished = path.with_extension("unfinished");
            match fs::remove_file(&unfinished) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            // Readable by its owner only: the store holds device data and the key of private noise.
            drop(Self::on(backend(fs::File::options().create_new(true).mode(0o600), &unfinished)?)?);
            match fs::hard_link(&unfinished, path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
                _ => fs::remove_file(&unfinished)?,
            }
            // The new name is durable once its directory is synced.
            directory.sync_all()?;
        }
        Self::on(backend(&mut fs::File::options(), path)?)
    }

    /// Opens or creates a store on a storage backend. A crash during creation can leave a backend that cannot be opened.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn on(backend: impl StorageBackend) -> Result<Self, StoreError> {
        let database = database(backend)?;
        let write = database.begin_write().map_err(StoreError::new)?;
        let next = {
            write.open_table(VALUES).map_err(StoreError::new)?;
            let events = write.open_table(EVENTS).map_err(StoreError::new)?;
            let last = events.last().map_err(StoreError::new)?;
            last.map_or(0, |(number, _)| number.value() + 1)
        };
        write.commit().map_err(StoreError::new)?;
        Ok(Self { database: Access::Write(Arc::new(database)), next })
    }

    /// Opens a store read-only. If a crash left the file unclean, redb repairs it first; committed events are unaffected.
    ///
    /// # Errors
    /// The file does not exist, is not a store, or another process has it open.
    pub fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let database = match Builder::new().set_cache_size(CACHE).open_read_only(path) {
            Err(DatabaseError::RepairAborted) => {
                Access::Write(Arc::new(database(backend(&mut fs::File::options(), path)?)?))
            }
            other => Access::ReadOnly(Arc::new(other.map_err(StoreError::new)?)),
        };
        Ok(Self { database, next: u64::MAX })
    }

    /// Returns true if the error means that another process has the store open.
    pub fn is_locked(error: &StoreError) -> bool {
        matches!(error.0.downcast_ref(), Some(DatabaseError::DatabaseAlreadyOpen))
    }

    /// Returns read access that can be used beside this store, in any thread.
    pub fn reader(&self) -> FileReader {
        FileReader(self.database.clone())
    }

    fn read(&self) -> Result<ReadTransaction, StoreError> {
        self.database.read()
    }

    fn write(&self) -> Result<WriteTransaction, StoreError> {
        match &self.database {
            Access::Write(database) if self.next < u64::MAX => database.begin_write().map_err(StoreError::new),
            _ => Err(io::Error::other("the store is open read-only").into()),
        }
    }
}

/// Opens and locks a file.
fn backend(options: &mut fs::OpenOptions, path: &Path) -> Result<FileBackend, StoreError> {
    FileBackend::new(options.read(true).write(true).open(path)?).map_err(StoreError::new)
}

fn database(backend: impl StorageBackend) -> Result<Database, StoreError> {
    Builder::new().set_cache_size(CACHE).create_with_backend(backend).map_err(StoreError::new)
}

impl Store for File {
    fn append(&mut self, events: &[Vec<u8>]) -> Result<(), StoreError> {
        let write = self.write()?;
        {
            let mut table = write.open_table(EVENTS).map_err(StoreError::new)?;
            for (number, event) in (self.next..).zip(events) {
                table.insert(number, event.as_slice()).map_err(StoreError::new)?;
            }
        }
        // Returns after fsync.
        write.commit().map_err(StoreError::new)?;
        self.next += events.len() as u64;
        Ok(())
    }

    fn replay(&self, each: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        let read = self.read()?;
        let table = read.open_table(EVENTS).map_err(StoreError::new)?;
        for entry in table.iter().map_err(StoreError::new)? {
            each(entry.map_err(StoreError::new)?.1.value());
        }
        Ok(())
    }

    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let read = self.read()?;
        let table = read.open_table(VALUES).map_err(StoreError::new)?;
        Ok(table.get(name).map_err(StoreError::new)?.map(|value| value.value().to_vec()))
    }

    fn set_value(&mut self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        let write = self.write()?;
        write.open_table(VALUES).map_err(StoreError::new)?.insert(name, value).map_err(StoreError::new)?;
        write.commit().map_err(StoreError::new)
    }
    fn append_audit(&mut self, entries: &[Vec<u8>], values: &[(&str, Vec<u8>)]) -> Result<(), StoreError> {
        let write = self.write()?;
        {
            let mut table = write.open_table(AUDIT).map_err(StoreError::new)?;
            let next = table.last().map_err(StoreError::new)?.map_or(0, |(number, _)| number.value() + 1);
            for (number, entry) in (next..).zip(entries) {
                table.insert(number, entry.as_slice()).map_err(StoreError::new)?;
            }
            let mut table = write.open_table(VALUES).map_err(StoreError::new)?;
            for (name, value) in values {
                table.insert(name, value.as_slice()).map_err(StoreError::new)?;
            }
        }
        write.commit().map_err(StoreError::new)
    }
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;

    use super::*;

    /// The table of the audit log is created with its first entry, so that stores of earlier versions have none.
    #[test]
    fn reader_sees_entries_as_they_are_appended() {
        let mut store = File::on(InMemoryBackend::new()).unwrap();
        let reader = store.reader();
        let rows = |table, from| {
            let mut rows = Vec::new();
            let each = &mut |number, row: &[u8]| {
                rows.push((number, row.to_vec()));
                rows.len() < 2
            };
            reader.rows(table, from, each).unwrap();
            rows
        };
        assert_eq!((rows(Table::Audit, 0), rows(Table::Events, 0)), (vec![], vec![]));
        let entries = [b"a".to_vec(), b"b".to_vec()];
        store.append_audit(&entries, &[("state", b"1".to_vec())]).unwrap();
        store.append_audit(&[b"c".to_vec()], &[("state", b"2".to_vec())]).unwrap();
        store.append(&[b"event".to_vec()]).unwrap();
        assert_eq!(rows(Table::Audit, 0), [(0, b"a".to_vec()), (1, b"b".to_vec())], "until the function returns false");
        assert_eq!(rows(Table::Audit, 2), [(2, b"c".to_vec())]);
        assert_eq!(rows(Table::Events, 0), [(0, b"event".to_vec())]);
        assert_eq!(store.value("state").unwrap(), Some(b"2".to_vec()));
    }
}
