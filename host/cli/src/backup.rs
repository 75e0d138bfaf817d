//! `fedbandit backup` and `fedbandit check`.

use std::fs;
use std::mem;
use std::path::{Path, PathBuf};

use fedbandit::service::backup::{self, Entry};
use fedbandit::service::store::file::File;
use fedbandit::service::store::{Reader, StoreError};

use super::run_directory::{RunDirectory, write_secret};
use super::status::{Source, unreadable};
use super::{EXIT_CODES, Failure, print_line};

const BACKUP_HELP: &str = "\
Examples:
  fedbandit backup --dir fleet --out fleet-backup
  fedbandit check fleet-backup

Copies the run as it is at one moment, also while its service runs. The copy is a directory like the original: status,
export and continue read it, and a service can be started on it after the original is lost. It contains the master key,
and in a private run the noise key: keep it as secret as the original. Boot counters of sealed virtual devices are left
out, because an older one must never be used again.";

/// Copy a run while its service goes on.
#[derive(clap::Args)]
#[command(after_long_help = format!("{BACKUP_HELP}\n\n{EXIT_CODES}"))]
pub(super) struct BackupArgs {
    /// Directory of the run.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Directory to create for the copy.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl BackupArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let directory = RunDirectory { path: self.dir };
        directory.expect_registry()?;
        if self.out.exists() {
            return Err(Failure::Usage(format!("{}: exists; choose another --out", self.out.display())));
        }
        let unfinished = RunDirectory { path: self.out.with_extension(format!("{}.tmp", std::process::id())) };
        let copied = copy(&directory, &unfinished).and_then(|events| {
            fs::rename(&unfinished.path, &self.out)
                .map_err(|error| Failure::from(error).context(self.out.display()))?;
            Ok(events)
        });
        // Nothing is left of a copy that failed.
        let events = copied.inspect_err(|_| drop(fs::remove_dir_all(&unfinished.path)))?;
        print_line(&format!("{}: {events} events; verify it with fedbandit check", self.out.display()))
    }
}

/// Copies a run, the store before the registry: a device of the store is then in the registry. Returns the number of events.
fn copy(from: &RunDirectory, to: &RunDirectory) -> Result<usize, Failure> {
    fs::create_dir_all(&to.path).map_err(|error| Failure::from(error).context(to.path.display()))?;
    let failed = |error: StoreError| unreadable(&error).context(from.path.display());
    let mut copy = Copy::new(&to.store()).map_err(failed)?;
    match Source::find(from)? {
        Source::Service(service) => backup::read(service.open("/api/backup")?, |entry| copy.add(entry)),
        Source::Store(store) => {
            let mut result = Ok(());
            let read = store.reader().copy(&mut |entry| {
                result = copy.add(entry);
                result.is_ok()
            });
            read.and(result)
        }
    }
    .map_err(failed)?;
    let (events, hash) = copy.finish().map_err(failed)?;
    write_secret(&to.backup_hash(), &hash)?;
    for (name, bytes) in from.files()? {
        write_secret(&to.path.join(name), &bytes)?;
    }
    Ok(events)
}

/// Bytes of entries that are inserted into a store at once.
const BATCH: usize = 8 << 20;

/// New store that is filled from another one.
struct Copy {
    store: File,
    batch: Vec<Entry>,
    bytes: usize,
    events: usize,
}

impl Copy {
    fn new(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { store: File::open(path)?, batch: Vec::new(), bytes: 0, events: 0 })
    }

    fn add(&mut self, entry: Entry) -> Result<(), StoreError> {
        let (Entry::Value(_, bytes) | Entry::Snapshot(bytes) | Entry::Event(_, bytes) | Entry::Audit(_, bytes)) =
            &entry
        else {
            return Ok(());
        };
        self.bytes += bytes.len();
        self.events += usize::from(matches!(entry, Entry::Event(..)));
        self.batch.push(entry);
        if self.bytes > BATCH {
            self.bytes = 0;
            self.store.insert(&mem::take(&mut self.batch))?;
        }
        Ok(())
    }

    /// Stores the rest, and returns the number of events and the hash of all that is stored.
    fn finish(mut self) -> Result<(usize, [u8; 32]), StoreError> {
        self.store.insert(&self.batch)?;
        Ok((self.events, backup::hash(&self.store.reader())?))
    }
}

const CHECK_HELP: &str = "\
Example:
  fedbandit check fleet-backup

Reads the registry, the master key and every stored event, and restores the state of the run. If no summary was removed,
all events are also replayed from the first one, and must give the state of the stored snapshot. A backup must also have
the content with which it was made, up to the first start of a service on it. Nothing is written.";

/// Check a run or its backup.
#[derive(clap::Args)]
#[command(after_long_help = format!("{CHECK_HELP}\n\n{EXIT_CODES}"))]
pub(super) struct CheckArgs {
    /// Directory of a run that no service has open, or of its backup.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl CheckArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let directory = RunDirectory { path: self.dir };
        let registry = directory.expect_registry()?;
        directory.master()?;
        let path = directory.store();
        let store = File::open_read_only(&path).map_err(|error| unreadable(&error).context(path.display()))?;
        if let Some(expected) = directory.find_backup_hash()? {
            let found = backup::hash(&store.reader()).map_err(|error| unreadable(&error).context(path.display()))?;
            if found.as_slice() != expected {
                let reason = "differs from what was backed up; use another backup";
                return Err(Failure::Data(format!("{}: {reason}", path.display())));
            }
        }
        let checked = backup::check(&store, &registry).map_err(|error| Failure::data(error).context(path.display()))?;
        let status = checked.status;
        let episode = match status.episode {
            Some(episode) => format!("episode {episode} of {}", status.episodes),
            None => format!("all {} episodes closed", status.episodes),
        };
        let events = checked.events;
        let extent = match checked.replayed {
            true => format!("all {events} events replayed"),
            false => format!("{events} events read; older summaries were removed, so their replay was skipped"),
        };
        print_line(&format!("run {} is intact: {episode}, {} devices, {extent}", status.run, status.enrolled))
    }
}
