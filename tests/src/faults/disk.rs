//! A disk in memory that fails as disks do, under the store's own code.
//!
//! What was written since the last sync is not safe: a power cut may leave any of it, in any order, and parts of single
//! writes. An operation may fail with an error; when the power goes, the process gets nothing else any more.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fedbandit::service::store::file::File;
use redb::StorageBackend;

use crate::harness::test_rng::TestRng;

/// The unit in which a torn write is there or not, as disks promise it; within one a write can be cut at any byte.
const SECTOR: usize = 512;

/// A disk, shared by whoever holds a copy of it.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<State>>);

/// How a disk stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The power goes.
    PowerCut,
    /// An operation reports an input or output error.
    Error,
    /// There is no room for a write, or for a longer file.
    Full,
}

#[derive(Debug, Default)]
struct State {
    /// What a power cut leaves for sure.
    safe: Vec<u8>,
    /// What came after that.
    unsafe_changes: Vec<Change>,
    /// What a process reads.
    seen: Vec<u8>,
    operations: u64,
    trouble: Option<(u64, Trouble)>,
    stopped: bool,
    /// Whether any trouble came.
    troubled: bool,
    record: Option<Vec<Change>>,
}

/// What was done to a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bytes were written at an offset.
    Write(usize, Vec<u8>),
    /// The file got another length.
    Length(usize),
    /// All before is safe.
    Sync,
    /// A mark of the test's own: so many steps of it were promised to be safe.
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

    /// As much of it as a failure in the middle leaves.
    fn half(&self) -> Self {
        match self {
            Self::Write(offset, data) => Self::Write(*offset, data[..data.len() / 2].to_vec()),
            other => other.clone(),
        }
    }
}

/// What of unsafe changes a power cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Lost,
    /// Everything.
    Kept,
    /// Everything up to the last, of which the first half is there.
    Torn,
    /// Any of them, each whole, in part or not at all, later ones before earlier ones.
    Mixed,
}

impl Tail {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Lost, Self::Kept, Self::Torn, Self::Mixed];
}

/// What is left of a disk after a power cut.
pub fn after_power_cut(safe: &[u8], changes: &[Change], tail: Tail, rng: &mut TestRng) -> Vec<u8> {
    let mut bytes = safe.to_vec();
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
    /// A disk with a new store on it. On a real one a store comes into being whole, by a change of its name.
    ///
    /// # Panics
    /// The store cannot be made.
    pub fn with_store() -> Self {
        let disk = Self::default();
        drop(File::on(disk.clone()).expect("nothing fails here"));
        Self::with(disk.image())
    }

    /// All bytes, as a process reads them.
    pub fn image(&self) -> Vec<u8> {
        self.state().seen.clone()
    }

    /// A disk with these bytes on it, all of them safe.
    pub fn with(bytes: Vec<u8>) -> Self {
        let state = State { seen: bytes.clone(), safe: bytes, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic of whoever holds the disk is a finding, and no second one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on all changes are recorded.
    pub fn record(&self) {
        self.state().record = Some(Vec::new());
    }

    /// Puts a mark among the recorded changes.
    pub fn mark(&self, promised: usize) {
        self.state().record.iter_mut().for_each(|record| record.push(Change::Mark(promised)));
    }

    /// What was recorded.
    pub fn recorded(&self) -> Vec<Change> {
        self.state().record.take().unwrap_or_default()
    }

    /// How many operations there were.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Trouble comes with an operation, the next one being 0.
    pub fn expect(&self, after: u64, trouble: Trouble) {
        let mut state = self.state();
        state.trouble = Some((state.operations + after, trouble));
    }

    /// No trouble comes.
    pub fn expect_nothing(&self) {
        self.state().trouble = None;
    }

    /// Whether trouble has come.
    pub fn had_trouble(&self) -> bool {
        self.state().troubled
    }

    /// The process that uses the disk is gone: it gets nothing but errors.
    pub fn stop(&self) {
        self.state().stopped = true;
    }

    /// The disk after a power cut, as the next process finds it. Whoever still holds this one gets errors.
    pub fn after_power_cut(&self, tail: Tail, rng: &mut TestRng) -> Self {
        let mut state = self.state();
        state.stopped = true;
        Self::with(after_power_cut(&state.safe, &state.unsafe_changes, tail, rng))
    }
}

impl State {
    /// Counts an operation; an error if it fails.
    fn operate(&mut self, writes: bool) -> io::Result<()> {
        let number = self.operations;
        self.operations += 1;
        match self.trouble {
            _ if self.stopped => Err(io::Error::other("the disk is gone")),
            // What takes no room goes on until something does.
            Some((at, Trouble::Full)) if number >= at && !writes => Ok(()),
            Some((at, trouble)) if number >= at => {
                self.trouble = None;
                self.troubled = true;
                self.stopped = trouble == Trouble::PowerCut;
                Err(match trouble {
                    Trouble::PowerCut => io::Error::other("the power is gone"),
                    Trouble::Error => io::Error::from_raw_os_error(5),
                    Trouble::Full => io::Error::from(io::ErrorKind::StorageFull),
                })
            }
            _ => Ok(()),
        }
    }

    /// A change that was asked for. Where the power goes or an error comes, it may be there in part.
    fn change(&mut self, change: Change) -> io::Result<()> {
        let gone = self.stopped;
        let outcome = self.operate(true);
        match &outcome {
            Err(error) if gone || error.kind() == io::ErrorKind::StorageFull => {}
            Err(_) if self.stopped => self.unsafe_changes.push(change),
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
        self.unsafe_changes.push(change);
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
        // What a sync that fails leaves is as unsafe as before.
        state.operate(false)?;
        let state = &mut *state;
        state.unsafe_changes.drain(..).for_each(|change| change.apply(&mut state.safe));
        state.record.iter_mut().for_each(|record| record.push(Change::Sync));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.state().change(Change::Write(offset as usize, data.to_vec()))
    }
}
