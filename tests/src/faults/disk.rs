//! A simulated disk under the real store.
//!
//! A power cut may keep any unsynced writes, in any order, and parts of single writes. An operation may fail with an error.
//! After a power cut every operation of the process fails.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fedbandit::service::store::file::File;
use redb::StorageBackend;

use crate::harness::test_rng::TestRng;

/// Bytes of a sector. A torn write keeps some sectors, and within a sector any number of bytes.
const SECTOR: usize = 512;

/// A disk. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<State>>);

/// Fault of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// Power cut.
    PowerCut,
    /// I/O error of one operation.
    Error,
    /// No space for a write, or for a longer file.
    Full,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes as of the last sync.
    synced: Vec<u8>,
    /// Changes since the last sync.
    unsynced: Vec<Change>,
    /// Bytes that a process reads.
    seen: Vec<u8>,
    operations: u64,
    fault: Option<(u64, DiskFault)>,
    stopped: bool,
    /// True once a fault has occurred.
    had_fault: bool,
    record: Option<Vec<Change>>,
}

/// Change of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bytes written at an offset.
    Write(usize, Vec<u8>),
    /// New length of the file.
    Length(usize),
    /// All changes before are durable.
    Sync,
    /// Mark of the test: number of its committed steps.
    Mark(usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(offset, data) => {
                let end = offset + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*offset..end].copy_from_slice(data);
            }
            Self::Length(length) => bytes.resize(*length, 0),
            Self::Sync | Self::Mark(_) => {}
        }
    }

    /// Returns the part that a failure in the middle leaves.
    fn half(&self) -> Self {
        match self {
            Self::Write(offset, data) => Self::Write(*offset, data[..data.len() / 2].to_vec()),
            other => other.clone(),
        }
    }
}

/// Unsynced changes that a power cut keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// None.
    Lost,
    /// All.
    Kept,
    /// All but the second half of the last.
    Torn,
    /// Any of them, each whole or in part.
    Mixed,
}

impl Tail {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Lost, Self::Kept, Self::Torn, Self::Mixed];
}

/// Returns the contents of a disk after a power cut.
pub fn after_power_cut(synced: &[u8], changes: &[Change], tail: Tail, rng: &mut TestRng) -> Vec<u8> {
    let mut bytes = synced.to_vec();
    match (tail, changes) {
        (Tail::Lost, _) | (_, []) => {}
        (Tail::Kept, changes) => changes.iter().for_each(|change| change.apply(&mut bytes)),
        (Tail::Torn, [first @ .., last]) => {
            first.iter().for_each(|change| change.apply(&mut bytes));
            last.half().apply(&mut bytes);
        }
        (Tail::Mixed, changes) => {
            changes.iter().for_each(|change| leave_some(change, &mut bytes, rng));
        }
    }
    bytes
}

fn leave_some(change: &Change, bytes: &mut Vec<u8>, rng: &mut TestRng) {
    match (rng.below(3), change) {
        (0, _) => {}
        (1, Change::Write(offset, data)) => {
            let mut at = 0;
            for sector in data.chunks(SECTOR) {
                match rng.below(4) {
                    0 | 1 => Change::Write(offset + at, sector.to_vec()).apply(bytes),
                    2 => {
                        let cut = rng.below(sector.len() as u64 + 1) as usize;
                        Change::Write(offset + at, sector[..cut].to_vec()).apply(bytes);
                    }
                    _ => {}
                }
                at += sector.len();
            }
        }
        _ => change.apply(bytes),
    }
}

impl Disk {
    /// Creates a disk with a new store. On a real disk a store is created atomically, by renaming it.
    ///
    /// # Panics
    /// The store cannot be made.
    pub fn with_store() -> Self {
        let disk = Self::default();
        drop(File::on(disk.clone()).expect("the disk has no fault"));
        Self::with(disk.image())
    }

    /// Returns all bytes, as a process reads them.
    pub fn image(&self) -> Vec<u8> {
        self.state().seen.clone()
    }

    /// Creates a disk with these bytes, all of them synced.
    pub fn with(bytes: Vec<u8>) -> Self {
        let state = State { seen: bytes.clone(), synced: bytes, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic of the holder is a finding of its own.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts recording changes.
    pub fn record(&self) {
        self.state().record = Some(Vec::new());
    }

    /// Records a mark.
    pub fn mark(&self, promised: usize) {
        self.state().record.iter_mut().for_each(|record| record.push(Change::Mark(promised)));
    }

    /// Returns the recorded changes.
    pub fn recorded(&self) -> Vec<Change> {
        self.state().record.take().unwrap_or_default()
    }

    /// Returns the number of operations so far.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Injects a fault into an operation, counted from 0 for the next one.
    pub fn inject(&self, after: u64, fault: DiskFault) {
        let mut state = self.state();
        state.fault = Some((state.operations + after, fault));
    }

    /// Removes an injected fault that has not occurred.
    pub fn clear_faults(&self) {
        self.state().fault = None;
    }

    /// Returns true once a fault has occurred.
    pub fn had_fault(&self) -> bool {
        self.state().had_fault
    }

    /// Stops the disk: every operation fails.
    pub fn stop(&self) {
        self.state().stopped = true;
    }

    /// Cuts the power, and returns the disk as the next process finds it. Operations on this one fail.
    pub fn after_power_cut(&self, tail: Tail, rng: &mut TestRng) -> Self {
        let mut state = self.state();
        state.stopped = true;
        Self::with(after_power_cut(&state.synced, &state.unsynced, tail, rng))
    }
}

impl State {
    /// Counts an operation, and fails it if a fault is due.
    fn operate(&mut self, writes: bool) -> io::Result<()> {
        let number = self.operations;
        self.operations += 1;
        match self.fault {
            _ if self.stopped => Err(io::Error::other("the disk has stopped")),
            // A full disk fails only writes.
            Some((at, DiskFault::Full)) if number >= at && !writes => Ok(()),
            Some((at, fault)) if number >= at => {
                self.fault = None;
                self.had_fault = true;
                self.stopped = fault == DiskFault::PowerCut;
                Err(match fault {
                    DiskFault::PowerCut => io::Error::other("power cut"),
                    DiskFault::Error => io::Error::from_raw_os_error(5),
                    DiskFault::Full => io::Error::from(io::ErrorKind::StorageFull),
                })
            }
            _ => Ok(()),
        }
    }

    /// Applies a change. A fault may apply a part of it.
    fn change(&mut self, change: Change) -> io::Result<()> {
        let was_stopped = self.stopped;
        let outcome = self.operate(true);
        match &outcome {
            Err(error) if was_stopped || error.kind() == io::ErrorKind::StorageFull => {}
            Err(_) if self.stopped => self.unsynced.push(change),
            Err(_) => self.apply(change.half()),
            Ok(()) => self.apply(change),
        }
        outcome
    }

    fn apply(&mut self, change: Change) {
        change.apply(&mut self.seen);
        if let Some(record) = &mut self.record {
            record.push(change.clone());
        }
        self.unsynced.push(change);
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        let mut state = self.state();
        state.operate(false)?;
        Ok(state.seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        state.operate(false)?;
        let offset = offset as usize;
        let bytes = state.seen.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.state().change(Change::Length(length as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        // A failed sync makes nothing durable.
        state.operate(false)?;
        let state = &mut *state;
        state.unsynced.drain(..).for_each(|change| change.apply(&mut state.synced));
        state.record.iter_mut().for_each(|record| record.push(Change::Sync));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.state().change(Change::Write(offset as usize, data.to_vec()))
    }
}
