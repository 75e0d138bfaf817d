//! The directory of a run: its registry, its secrets and its store.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fedbandit::service::{MasterKey, Registry};
use fedbandit_core::wire::Identity;

use super::{Failure, write_file, write_file_with_mode};

/// The directory of a run:
///
/// | file | content |
/// |---|---|
/// | `registry.json` | enrolled devices |
/// | `master.key` | the secret from which all device keys are derived; readable by its owner only |
/// | `devices/agent-N.blob` | identity of device N, flashed beside its firmware; readable by its owner only |
/// | `run.redb` | the store |
/// | `service` | HTTP address and name of the last service, and the identity of the store that it opened |
pub(super) struct RunDirectory {
    pub(super) path: PathBuf,
}

impl RunDirectory {
    pub(super) fn store(&self) -> PathBuf {
        self.path.join("run.redb")
    }

    /// Returns device and inode of the store, which no copy shares.
    fn store_id(&self) -> io::Result<String> {
        let metadata = fs::metadata(self.store())?;
        Ok(format!("{}:{}", metadata.dev(), metadata.ino()))
    }

    /// Records the running service, so that [`service`](Self::service) finds it.
    pub(super) fn write_service(&self, http: SocketAddr, name: &str) -> Result<(), Failure> {
        let store = self.store_id().map_err(|error| Failure::from(error).context(self.store().display()))?;
        write_file(&self.path.join("service"), &format!("{http} {name} {store}\n"))
    }

    /// Returns the address and the name of the last service that opened this store. That service may have ended.
    ///
    /// A copy of the directory contains the original's `service` file, but another store. While a service runs, it holds
    /// its store open, so the inode cannot be reused.
    pub(super) fn service(&self) -> Option<(SocketAddr, String)> {
        let text = fs::read_to_string(self.path.join("service")).ok()?;
        let [address, name, store] = text.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        if store != self.store_id().ok()? {
            return None;
        }
        Some((address.parse().ok()?, name.to_owned()))
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
