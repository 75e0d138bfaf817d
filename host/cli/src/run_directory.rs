//! The directory of a run: its registry, its secrets and its store.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fedbandit::service::access::Token;
use fedbandit::service::audit::Author;
use fedbandit::service::client::Client;
use fedbandit::service::store::file::File;
use fedbandit::service::transport::tls::Connector;
use fedbandit::service::{MasterKey, Registry, RunTerms, SCHEMA};
use fedbandit_core::wire::Identity;

use super::{Failure, write_file, write_file_with_mode};

/// Time limit for each step of an exchange with a service.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The directory of a run:
///
/// | file | content |
/// |---|---|
/// | `registry.json` | enrolled devices |
/// | `master.key` | the secret from which all device keys are derived; readable by its owner only |
/// | `devices/agent-N.blob` | identity of device N, flashed beside its firmware; readable by its owner only |
/// | `http.token` | the token that permits reading the pages of the service; readable by its owner only |
/// | `http.pem` | certificate of the last service that used TLS for its pages |
/// | `run.redb` | the store |
/// | `backup.hash` | in a backup: hash of the store's content, until a service starts on it |
/// | `run.schema-N.redb` | copy of the store before it was migrated from schema N |
/// | `service` | URL and name of the last service, and the identity of the store that it opened |
#[derive(Clone)]
pub(super) struct RunDirectory {
    pub(super) path: PathBuf,
}

impl RunDirectory {
    pub(super) fn store(&self) -> PathBuf {
        self.path.join("run.redb")
    }

    /// Returns the file with the hash of a backup's store, which the first start of a service on it removes.
    pub(super) fn backup_hash(&self) -> PathBuf {
        self.path.join("backup.hash")
    }

    /// Reads the hash of a backup's store; none if the directory is not a backup, or a service has used it.
    pub(super) fn find_backup_hash(&self) -> Result<Option<Vec<u8>>, Failure> {
        let file = self.backup_hash();
        match fs::read(&file) {
            Ok(hash) => Ok(Some(hash)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::from(error).context(file.display())),
        }
    }

    /// Removes the hash of a backup, whose store will change.
    pub(super) fn remove_backup_hash(&self) -> Result<(), Failure> {
        match fs::remove_file(self.backup_hash()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Failure::from(error).context(self.backup_hash().display()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the files of a backup besides the store, with their names: registry, master key, token and identities.
    pub(super) fn files(&self) -> Result<Vec<(PathBuf, Vec<u8>)>, Failure> {
        let mut names: Vec<PathBuf> = ["registry.json", "master.key", "http.token"].map(PathBuf::from).into();
        let blobs = fs::read_dir(self.path.join("devices")).into_iter().flatten().flatten();
        let blobs = blobs.map(|entry| Path::new("devices").join(entry.file_name()));
        names.extend(blobs.filter(|name| name.extension().is_some_and(|extension| extension == "blob")));
        let mut files = Vec::new();
        for name in names {
            let path = self.path.join(&name);
            match fs::read(&path) {
                Ok(bytes) => files.push((name, bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Failure::from(error).context(path.display())),
            }
        }
        Ok(files)
    }

    /// Copies a store that the present version will migrate, and returns the path of the copy. Nothing happens to a store with
    /// the present schema, or if the copy exists.
    pub(super) fn copy_older_schema(&self) -> Result<Option<PathBuf>, Failure> {
        let path = self.store();
        if !path.exists() {
            return Ok(None);
        }
        // Errors are those of the start that follows.
        let terms = File::open_read_only(&path).ok().and_then(|store| RunTerms::load(&store).ok());
        let Some(terms) = terms.filter(|terms| terms.schema() < SCHEMA) else { return Ok(None) };
        let copy = self.path.join(format!("run.schema-{}.redb", terms.schema()));
        if copy.exists() {
            return Ok(None);
        }
        let mut original = fs::File::open(&path)?;
        write_file_with_mode(&copy, 0o600, |writer| io::copy(&mut original, writer).map(drop))?;
        Ok(Some(copy))
    }

    /// Returns device and inode of the store, which no copy shares.
    fn store_id(&self) -> io::Result<String> {
        let metadata = fs::metadata(self.store())?;
        Ok(format!("{}:{}", metadata.dev(), metadata.ino()))
    }

    /// Records the running service, so that [`service`](Self::service) finds it.
    pub(super) fn write_service(&self, url: &str, name: &str) -> Result<(), Failure> {
        let store = self.store_id().map_err(|error| Failure::from(error).context(self.store().display()))?;
        write_file(&self.path.join("service"), &format!("{url} {name} {store}\n"))
    }

    /// Returns a client and the name of the last service that opened this store. That service may have ended.
    ///
    /// A copy of the directory contains the original's `service` file, but another store. While a service runs, it holds
    /// its store open, so the inode cannot be reused.
    pub(super) fn service(&self) -> Option<(Client, String)> {
        let text = fs::read_to_string(self.path.join("service")).ok()?;
        let [url, name, store] = text.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        if store != self.store_id().ok()? {
            return None;
        }
        let (scheme, address) = url.split_once("://")?;
        let tls = match scheme {
            "http" => None,
            "https" => Some(Connector::pinned(&self.http_certificate()).ok()?),
            _ => return None,
        };
        Some((Client::new(address.parse().ok()?, PATIENCE, tls), name.to_owned()))
    }

    fn http_certificate(&self) -> PathBuf {
        self.path.join("http.pem")
    }

    /// Copies the certificate chain of the HTTP pages, by which [`service`](Self::service) knows the service.
    pub(super) fn write_http_certificate(&self, chain: &Path) -> Result<(), Failure> {
        let text = fs::read_to_string(chain).map_err(|error| Failure::from(error).context(chain.display()))?;
        write_file(&self.http_certificate(), &text)
    }

    /// Reads the token of the HTTP pages, or generates it if it is missing.
    pub(super) fn token(&self) -> Result<Token, Failure> {
        let file = self.path.join("http.token");
        match read_token(&file)? {
            Some(token) => Ok(token),
            None => {
                let token = Token::generate().map_err(|error| Failure::Io(error.to_string()))?;
                self.write_token(&token)?;
                Ok(token)
            }
        }
    }

    pub(super) fn write_token(&self, token: &Token) -> Result<(), Failure> {
        write_secret(&self.path.join("http.token"), format!("{}\n", token.as_str()).as_bytes())
    }

    /// Reads the token of the HTTP pages, if there is one.
    pub(super) fn find_token(&self) -> Result<Option<Token>, Failure> {
        read_token(&self.path.join("http.token"))
    }

    pub(super) fn master_key(&self) -> PathBuf {
        self.path.join("master.key")
    }

    pub(super) fn blob(&self, agent: u32) -> PathBuf {
        self.path.join("devices").join(format!("agent-{agent}.blob"))
    }

    /// Reads the registry, if any device was ever enrolled.
    pub(super) fn registry(&self) -> Result<Option<Registry>, Failure> {
        let file = self.path.join("registry.json");
        match fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::from(error).context(file.display())),
            Ok(text) => {
                let registry =
                    serde_json::from_slice(&text).map_err(|error| Failure::data(error).context(file.display()))?;
                Ok(Some(registry))
            }
        }
    }

    /// As [`registry`](Self::registry), but fails if no device is enrolled.
    pub(super) fn expect_registry(&self) -> Result<Registry, Failure> {
        let missing =
            || Failure::Config(format!("{}: no device is enrolled; run fedbandit enroll first", self.path.display()));
        self.registry()?.ok_or_else(missing)
    }

    /// Returns a value that changes whenever the registry is written.
    pub(super) fn registry_stamp(&self) -> Option<(SystemTime, u64)> {
        let metadata = fs::metadata(self.path.join("registry.json")).ok()?;
        Some((metadata.modified().ok()?, metadata.ino()))
    }

    /// Returns who wrote the registry, and when: every command writes a new file, so its owner is the command's user.
    pub(super) fn registry_author(&self) -> Option<Author> {
        let metadata = fs::metadata(self.path.join("registry.json")).ok()?;
        Some(Author { at: metadata.mtime().try_into().ok()?, uid: Some(metadata.uid()) })
    }

    pub(super) fn write_registry(&self, registry: &Registry) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(registry).map_err(io::Error::from)?;
        write_file(&self.path.join("registry.json"), &text)
    }

    /// Reads the master key, or generates it before the first enrollment. A later one would lock out all devices.
    pub(super) fn master(&self) -> Result<MasterKey, Failure> {
        let file = self.master_key();
        match fs::read(&file) {
            Ok(bytes) => MasterKey::from_bytes(&bytes).ok_or_else(|| {
                let found = bytes.len();
                Failure::Data(format!("{}: found {found} bytes, expected 32; restore the backup", file.display()))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.registry()?.is_some() {
                    let remedy = "restore it from the backup, or enroll the devices in a new directory";
                    return Err(Failure::Config(format!("{}: missing; {remedy}", file.display())));
                }
                let master = MasterKey::generate().map_err(|error| Failure::Io(error.to_string()))?;
                write_secret(&file, master.as_bytes())?;
                Ok(master)
            }
            Err(error) => Err(Failure::from(error).context(file.display())),
        }
    }
}

/// Reads a token from a file, if the file exists.
pub(super) fn read_token(file: &Path) -> Result<Option<Token>, Failure> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => result.map_err(|error| Failure::from(error).context(file.display()))?,
    };
    let (least, most) = (Token::LENGTHS.start(), Token::LENGTHS.end());
    let invalid = || {
        let remedy = "remove the file and start the service again, which writes a new one";
        Failure::Data(format!("{}: expected {least} to {most} visible ASCII characters; {remedy}", file.display()))
    };
    Token::parse(&text).map(Some).ok_or_else(invalid)
}

/// Writes a file atomically and durably, readable by its owner only.
pub(super) fn write_secret(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_file_with_mode(file, 0o600, |writer| writer.write_all(bytes))
}

/// Reads a device's identity. For a sealed device, also increments and returns its boot counter, kept in `FILE.boot`; 1 for
/// any other.
pub(super) fn read_blob(file: &Path) -> Result<(Identity, u32), Failure> {
    let bytes = fs::read(file).map_err(|error| Failure::from(error).context(file.display()))?;
    let invalid = |reason: String| {
        Failure::Data(format!("{}: {reason}; create the identity with fedbandit enroll", file.display()))
    };
    let blob = bytes.as_slice().try_into().map_err(|_| {
        invalid(format!("not a device identity of {} bytes, found {}", Identity::BLOB_LEN, bytes.len()))
    })?;
    let identity = Identity::from_blob(blob).map_err(|error| invalid(error.to_string()))?;
    let boot = match identity.is_sealed() {
        true => increment_boot_counter(&file.with_extension("blob.boot"))?,
        false => 1,
    };
    Ok((identity, boot))
}

/// Increments a boot counter durably and returns it.
fn increment_boot_counter(file: &Path) -> Result<u32, Failure> {
    let failed = |reason: &str| {
        let remedy = "never reset it; issue the device a new key with fedbandit rekey, then remove the file";
        Failure::Data(format!("{}: boot counter is {reason}; {remedy}", file.display()))
    };
    let last = match fs::read_to_string(file) {
        Ok(text) => text.trim().parse().map_err(|_| failed("corrupt"))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0_u32,
        Err(error) => return Err(Failure::from(error).context(file.display())),
    };
    let boot = last.checked_add(1).ok_or_else(|| failed("exhausted"))?;
    write_secret(file, boot.to_string().as_bytes())?;
    Ok(boot)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secrets_are_replaced_atomically() {
        let directory = std::env::temp_dir().join(format!("fedbandit-{}-secrets", std::process::id()));
        let [file, witness] = ["secret", "witness"].map(|name| directory.join(name));
        assert!(write_secret(&file, b"old").is_ok());
        fs::hard_link(&file, &witness).unwrap();
        assert!(write_secret(&file, b"new").is_ok());
        assert_eq!([&witness, &file].map(|file| fs::read(file).unwrap()), [b"old", b"new"]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "a temporary file is left");
        fs::remove_dir_all(&directory).unwrap();
    }
}
