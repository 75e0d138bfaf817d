//! Backups: a copy of a store as a stream of entries, and the check of a store by replaying it.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::registry::Registry;
use super::start::{StartError, inspect_from};
use super::status::Status;
use super::store::{Reader, Store, StoreError};

/// Entry of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// Named value.
    Value(String, Vec<u8>),
    /// Snapshot of the state.
    Snapshot(Vec<u8>),
    /// Event with its number.
    Event(u64, Vec<u8>),
    /// Entry of the audit log with its number.
    Audit(u64, Vec<u8>),
    /// End of the backup: the BLAKE3 hash of everything before. A backup without it is incomplete.
    End([u8; 32]),
}

/// Largest encoded entry in bytes: the snapshot of a million devices.
const LARGEST: u32 = 2 << 30;

/// Writes a copy of a store, as it is at one moment: each entry in the postcard format, after its length as a little-endian
/// `u32`. Returns the hash in the end.
///
/// # Errors
/// The store cannot be read, or the writer fails.
pub fn write(reader: &dyn Reader, writer: &mut dyn Write) -> Result<[u8; 32], StoreError> {
    let (mut hash, mut result) = (blake3::Hasher::new(), Ok(()));
    reader.copy(&mut |entry| {
        result = encode(&entry).and_then(|bytes| {
            hash.update(&bytes);
            writer.write_all(&bytes)
        });
        result.is_ok()
    })?;
    result?;
    let hash = *hash.finalize().as_bytes();
    writer.write_all(&encode(&Entry::End(hash))?)?;
    writer.flush()?;
    Ok(hash)
}

/// Returns the hash of the content of a store: that of its backups.
///
/// # Errors
/// The store cannot be read.
pub fn hash(reader: &dyn Reader) -> Result<[u8; 32], StoreError> {
    write(reader, &mut io::sink())
}

fn encode(entry: &Entry) -> io::Result<Vec<u8>> {
    let bytes = postcard::to_stdvec(entry).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= LARGEST);
    let length = length.ok_or_else(|| io::Error::other("an entry of the store is too large for a backup"))?;
    Ok([&length.to_le_bytes(), bytes.as_slice()].concat())
}

/// Reads a backup, and passes each entry before its end to a function.
///
/// # Errors
/// The backup is incomplete or damaged, or the function fails. Entries may have been passed before.
pub fn read(mut reader: impl Read, mut each: impl FnMut(Entry) -> Result<(), StoreError>) -> Result<(), StoreError> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the backup is damaged");
    let mut hash = blake3::Hasher::new();
    loop {
        let mut length = [0; 4];
        reader.read_exact(&mut length)?;
        let bound = u32::from_le_bytes(length);
        let mut bytes = Vec::new();
        // Grows with what arrives, whatever length is claimed.
        if bound > LARGEST || reader.by_ref().take(bound.into()).read_to_end(&mut bytes)? != bound as usize {
            return Err(damaged().into());
        }
        match postcard::from_bytes(&bytes).map_err(|_| damaged())? {
            Entry::End(expected) if *hash.finalize().as_bytes() == expected => return Ok(()),
            Entry::End(_) => return Err(damaged().into()),
            entry => {
                hash.update(&length).update(&bytes);
                each(entry)?;
            }
        }
    }
}

/// Result of a [`check`].
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// State of the run.
    pub status: Status,
    /// Number of stored events.
    pub events: u64,
    /// True if all events since the start of the run are stored and give the state of the snapshot, too.
    pub replayed: bool,
}

/// Checks a store: every event can be read and fits those before it, and if no event was removed, the snapshot is the state
/// after the events before it.
///
/// # Errors
/// The first defect that is found.
pub fn check(store: &dyn Store, registry: &Registry) -> Result<Checked, StartError> {
    let mut numbers = Vec::new();
    store.replay(0, &mut |number, _| numbers.push(number))?;
    let state = inspect_from(store, registry, store.snapshot()?.as_deref())?;
    let is_complete = (0..).zip(&numbers).all(|(expected, number)| expected == *number);
    if is_complete && inspect_from(store, registry, None)?.fingerprint() != state.fingerprint() {
        return Err(StartError::Snapshot(super::SnapshotError::Corrupt));
    }
    Ok(Checked { status: state.status(0), events: numbers.len() as u64, replayed: is_complete })
}
