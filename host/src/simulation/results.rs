//! Finished runs in a directory, one file each, so that an interrupted batch resumes where it stopped.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::batch::Job;
use super::report::Record;

/// Directory of finished runs.
#[derive(Clone, Debug)]
pub struct ResultDirectory(PathBuf);

impl ResultDirectory {
    /// Uses a directory, which [`write`](Self::write) creates if necessary.
    pub fn new(directory: &Path) -> Self {
        Self(directory.into())
    }

    /// Returns the result of a run, if it is there and complete.
    pub fn find(&self, job: &Job) -> Option<Record> {
        let text = fs::read_to_string(self.file(job)).ok()?;
        let record: Record = serde_json::from_str(&text).ok()?;
        (record.config == job.config && record.outcome.seed == job.seed).then_some(record)
    }

    /// Writes the result of a run.
    ///
    /// # Errors
    /// The file cannot be written; the error names it.
    pub fn write(&self, record: &Record) -> io::Result<()> {
        let file = self.file(&Job { config: record.config.clone(), seed: record.outcome.seed });
        // Several machines may share the directory.
        let partial = file.with_extension(format!("{}.tmp", std::process::id()));
        let write = || {
            fs::create_dir_all(&self.0)?;
            fs::write(&partial, serde_json::to_string(record)?)?;
            fs::rename(&partial, &file)
        };
        write().map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
    }

    /// Reads all results, in the order of their configurations and seeds.
    ///
    /// # Errors
    /// The directory or a file cannot be read, or a file is not a result ([`io::ErrorKind::InvalidData`]).
    pub fn read_all(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !(name.starts_with("run-") && name.ends_with(".json")) {
                continue;
            }
            let in_file =
                |kind, error: &dyn std::fmt::Display| io::Error::new(kind, format!("{}: {error}", path.display()));
            let text = fs::read_to_string(&path).map_err(|error| in_file(error.kind(), &error))?;
            let record = serde_json::from_str(&text).map_err(|error| in_file(io::ErrorKind::InvalidData, &error))?;
            records.push(record);
        }
        // The order must not depend on file names.
        records.sort_by_cached_key(|record: &Record| {
            (serde_json::to_string(&record.config).unwrap_or_default(), record.outcome.seed)
        });
        Ok(records)
    }

    fn file(&self, job: &Job) -> PathBuf {
        let hash = blake3::hash(job.key().as_bytes()).to_hex();
        self.0.join(format!("run-{}.json", &hash[..16]))
    }
}
