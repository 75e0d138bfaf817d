//! Store in a file, on redb.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, ReadOnlyDatabase, ReadOnlyTable, ReadTransaction, ReadableDatabase,
    ReadableTable, StorageBackend, TableDefinition, TableError, WriteTransaction,
};

use super::super::backup::Entry;
use super::{Reader, Snapshot, Store, StoreError, Table};

/// Events, numbered from 0.
const EVENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("events");
/// Entries of the audit log, numbered from 0.
const AUDIT: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("audit");
/// Snapshot in chunks, numbered from 0.
const SNAPSHOT: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("snapshot");
const VALUES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("values");

/// Bytes of a chunk of a snapshot: a database without large values reuses its pages better.
const CHUNK: usize = 64 << 10;
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
        let Some(rows) = self::table(&self.0.read()?, definition)? else { return Ok(()) };
        for row in rows.range(from..).map_err(StoreError::new)? {
            let (number, row) = row.map_err(StoreError::new)?;
            if !each(number.value(), row.value()) {
                break;
            }
        }
        Ok(())
    }

    fn copy(&self, each: &mut dyn FnMut(Entry) -> bool) -> Result<(), StoreError> {
        let read = self.0.read()?;
        for value in table(&read, VALUES)?.iter().map(|values| values.iter().map_err(StoreError::new)) {
            for row in value? {
                let (name, value) = row.map_err(StoreError::new)?;
                if !each(Entry::Value(name.value().into(), value.value().into())) {
                    return Ok(());
                }
            }
        }
        if !stored_snapshot(&read)?.is_none_or(|bytes| each(Entry::Snapshot(bytes))) {
            return Ok(());
        }
        for (definition, entry) in [(EVENTS, Entry::Event as fn(u64, Vec<u8>) -> Entry), (AUDIT, Entry::Audit)] {
            let Some(rows) = table(&read, definition)? else { continue };
            for row in rows.iter().map_err(StoreError::new)? {
                let (number, row) = row.map_err(StoreError::new)?;
                if !each(entry(number.value(), row.value().into())) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Opens a table; none if it does not exist in the store, which an earlier version may have written.
fn table<K: redb::Key + 'static, V: redb::Value + 'static>(
    read: &ReadTransaction,
    definition: TableDefinition<'_, K, V>,
) -> Result<Option<ReadOnlyTable<K, V>>, StoreError> {
    match read.open_table(definition) {
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        table => table.map(Some).map_err(StoreError::new),
    }
}

fn replace_snapshot(write: &WriteTransaction, bytes: &[u8]) -> Result<(), StoreError> {
    let mut chunks = write.open_table(SNAPSHOT).map_err(StoreError::new)?;
    chunks.retain(|_, _| false).map_err(StoreError::new)?;
    for (number, chunk) in (0..).zip(bytes.chunks(CHUNK)) {
        chunks.insert(number, chunk).map_err(StoreError::new)?;
    }
    Ok(())
}

fn stored_snapshot(read: &ReadTransaction) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(chunks) = table(read, SNAPSHOT)? else { return Ok(None) };
    let mut bytes = Vec::new();
    for chunk in chunks.iter().map_err(StoreError::new)? {
        bytes.extend_from_slice(chunk.map_err(StoreError::new)?.1.value());
    }
    Ok((!bytes.is_empty()).then_some(bytes))
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

    /// Inserts entries of a backup into a new store, durably.
    ///
    /// # Errors
    /// The entries may not be durable.
    pub fn insert(&mut self, entries: &[Entry]) -> Result<(), StoreError> {
        let write = self.write()?;
        {
            let mut values = write.open_table(VALUES).map_err(StoreError::new)?;
            let mut events = write.open_table(EVENTS).map_err(StoreError::new)?;
            let mut audit = write.open_table(AUDIT).map_err(StoreError::new)?;
            for entry in entries {
                match entry {
                    Entry::Value(name, value) => {
                        values.insert(name.as_str(), value.as_slice()).map_err(StoreError::new)?;
                    }
                    Entry::Event(number, event) => {
                        events.insert(number, event.as_slice()).map_err(StoreError::new)?;
                        self.next = number + 1;
                    }
                    Entry::Audit(number, entry) => {
                        audit.insert(number, entry.as_slice()).map_err(StoreError::new)?;
                    }
                    Entry::Snapshot(bytes) => replace_snapshot(&write, bytes)?,
                    Entry::End(_) => {}
                }
            }
        }
        write.commit().map_err(StoreError::new)
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

    fn replay(&self, from: u64, each: &mut dyn FnMut(u64, &[u8])) -> Result<(), StoreError> {
        let read = self.read()?;
        let table = read.open_table(EVENTS).map_err(StoreError::new)?;
        for entry in table.range(from..).map_err(StoreError::new)? {
            let (number, event) = entry.map_err(StoreError::new)?;
            each(number.value(), event.value());
        }
        Ok(())
    }

    fn set_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), StoreError> {
        let write = self.write()?;
        {
            let mut events = write.open_table(EVENTS).map_err(StoreError::new)?;
            for range in &snapshot.removable {
                events.retain_in(range.clone(), |_, _| false).map_err(StoreError::new)?;
            }
        }
        replace_snapshot(&write, &snapshot.bytes)?;
        write.commit().map_err(StoreError::new)
    }

    fn snapshot(&self) -> Result<Option<Vec<u8>>, StoreError> {
        stored_snapshot(&self.read()?)
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
