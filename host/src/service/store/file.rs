//! The store in a file, by redb.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::{fs, io};

use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, ReadableTable,
    StorageBackend, TableDefinition, WriteTransaction,
};

use super::{Store, StoreError};

/// Events by their number, from 0.
const EVENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("events");
const VALUES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("values");

/// Bytes of the file that are kept in memory, at the most. A log is read once, from its start to its end, and then only grows.
const CACHE: usize = 64 << 20;

/// A store in one file. One process at a time can open it.
pub struct File {
    database: Access,
    next: u64,
}

enum Access {
    All(Database),
    Read(ReadOnlyDatabase),
}

impl File {
    /// Opens a store, and creates it if there is none.
    ///
    /// # Errors
    /// The file is no store, or another process has it open.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        if !path.try_exists()? {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let directory = fs::File::open(parent.unwrap_or(Path::new(".")))?;
            // One first start after the other. Not all file systems lock a directory; none replaces a file by a link.
            let _ = directory.lock();
            // Under another name first: a crash in the middle must not leave half of a store, which nothing could open.
            let unfinished = path.with_extension("unfinished");
            match fs::remove_file(&unfinished) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            // Its owner's alone: it has what devices sent, and the key of private noise.
            drop(Self::on(backend(fs::File::options().create_new(true).mode(0o600), &unfinished)?)?);
            match fs::hard_link(&unfinished, path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
                _ => fs::remove_file(&unfinished)?,
            }
            // The name is not safe before its directory is.
            directory.sync_all()?;
        }
        Self::on(backend(&mut fs::File::options(), path)?)
    }

    /// [`open`](Self::open) for what is not a file of the file system. A crash while it is empty can leave what is no store.
    ///
    /// # Errors
    /// As [`open`](Self::open).
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
        Ok(Self { database: Access::All(database), next })
    }

    /// Opens a store to read it. What a crash left unfinished is tidied up first, as at any start; what was stored stays as it is.
    ///
    /// # Errors
    /// There is no store, or another process has it open.
    pub fn open_to_read(path: &Path) -> Result<Self, StoreError> {
        let database = match Builder::new().set_cache_size(CACHE).open_read_only(path) {
            Err(DatabaseError::RepairAborted) => Access::All(database(backend(&mut fs::File::options(), path)?)?),
            other => Access::Read(other.map_err(StoreError::new)?),
        };
        Ok(Self { database, next: u64::MAX })
    }

    /// Whether a store could not be opened because another process has it.
    pub fn is_taken(error: &StoreError) -> bool {
        matches!(error.0.downcast_ref(), Some(DatabaseError::DatabaseAlreadyOpen))
    }

    fn read(&self) -> Result<ReadTransaction, StoreError> {
        let read = match &self.database {
            Access::All(database) => database.begin_read(),
            Access::Read(database) => database.begin_read(),
        };
        read.map_err(StoreError::new)
    }

    fn write(&self) -> Result<WriteTransaction, StoreError> {
        match &self.database {
            Access::All(database) if self.next < u64::MAX => database.begin_write().map_err(StoreError::new),
            _ => Err(io::Error::other("it was opened to be read").into()),
        }
    }
}

/// A file with a lock.
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
        // Returns once the file system has it.
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
}
