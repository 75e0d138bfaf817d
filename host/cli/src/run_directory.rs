//! The directory of a run: its registry, its secrets and its store.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fedbandit::service::MasterKey;
use fedbandit::service::Registry;
use fedbandit_core::wire::Identity;

use super::{Failure, replace_with_mode, write_file};

/// A run's directory:
///
/// - `registry.json`: who is enrolled,
/// - `master.key`: the secret that all keys follow from; only its owner can read it,
/// - `devices/agent-N.blob`: what is flashed beside device N's firmware; only its owner can read it,
/// - `run.redb`: the store,
/// - `service`: where the page of its service is, and that service's name; from a service that is gone, if none runs.
pub(super) struct Directory(pub(super) PathBuf);

impl Directory {
    pub(super) fn store(&self) -> PathBuf {
        self.0.join("run.redb")
    }

    /// Leaves word where the service's page is.
    pub(super) fn write_service(&self, http: SocketAddr, name: &str) -> Result<(), Failure> {
        write_file(&self.0.join("service"), &format!("{http} {name}\n"))
    }

    /// Where the page of the last service is or was, and its name.
    pub(super) fn service(&self) -> Option<(SocketAddr, String)> {
        let text = fs::read_to_string(self.0.join("service")).ok()?;
        let (address, name) = text.trim_end().split_once(' ')?;
        Some((address.parse().ok()?, name.to_owned()))
    }

    pub(super) fn blob(&self, agent: u32) -> PathBuf {
        self.0.join("devices").join(format!("agent-{agent}.blob"))
    }

    /// Who is enrolled; none if nobody ever was.
    pub(super) fn registry(&self) -> Result<Option<Registry>, Failure> {
        let file = self.0.join("registry.json");
        match fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::from(error).about(file.display())),
            Ok(text) => {
                let registry =
                    serde_json::from_slice(&text).map_err(|error| Failure::data(error).about(file.display()))?;
                Ok(Some(registry))
            }
        }
    }

    /// The same, where somebody must be enrolled.
    pub(super) fn expect_registry(&self) -> Result<Registry, Failure> {
        let missing =
            || Failure::Config(format!("{}: no device is enrolled; see fedbandit enroll --help", self.0.display()));
        self.registry()?.ok_or_else(missing)
    }

    /// What changes when the registry is written.
    pub(super) fn registry_stamp(&self) -> Option<(SystemTime, u64)> {
        let metadata = fs::metadata(self.0.join("registry.json")).ok()?;
        Some((metadata.modified().ok()?, metadata.ino()))
    }

    pub(super) fn write_registry(&self, registry: &Registry) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(registry).map_err(io::Error::from)?;
        write_file(&self.0.join("registry.json"), &text)
    }

    /// The master secret, drawn before the first device is enrolled: another one would lock all devices out.
    pub(super) fn master(&self) -> Result<MasterKey, Failure> {
        let file = self.0.join("master.key");
        match fs::read(&file) {
            Ok(bytes) => MasterKey::from_bytes(&bytes).ok_or_else(|| {
                Failure::Data(format!("{}: not a master key of 32 bytes: restore the backup", file.display()))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.registry()?.is_some() {
                    let advice = "restore it from the backup; without it enrol in a new directory";
                    return Err(Failure::Io(format!("{}: missing: {advice}", file.display())));
                }
                let master = MasterKey::generate().map_err(|error| Failure::Io(error.to_string()))?;
                write_secret(&file, master.as_bytes())?;
                Ok(master)
            }
            Err(error) => Err(Failure::from(error).about(file.display())),
        }
    }
}

/// Writes a file durably, as a whole or not at all, that only its owner can read.
pub(super) fn write_secret(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    replace_with_mode(file, 0o600, |writer| writer.write_all(bytes))
}

/// Reads a device's identity. One that asks for sealed frames comes with the number of this start, which is counted in
/// a file beside it.
pub(super) fn read_blob(file: &Path) -> Result<(Identity, Option<u32>), Failure> {
    let bytes = fs::read(file).map_err(|error| Failure::from(error).about(file.display()))?;
    let no_identity =
        || Failure::Data(format!("{}: not an identity of 52 bytes; fedbandit enroll writes one", file.display()));
    let blob = bytes.as_slice().try_into().map_err(|_| no_identity())?;
    if let Some(identity) = Identity::from_blob(blob) {
        return Ok((identity, None));
    }
    let identity = Identity::from_sealed_blob(blob).ok_or_else(no_identity)?;
    Ok((identity, Some(count_start(&file.with_extension("blob.boot"))?)))
}

/// One more than last time, and on the disk before it is used.
fn count_start(file: &Path) -> Result<u32, Failure> {
    let failed = |what: &str| {
        let advice = "do not set it back, enrol the device in a new run";
        Failure::Data(format!("{}: {what}: {advice}", file.display()))
    };
    let last = match fs::read_to_string(file) {
        Ok(text) => text.trim().parse().map_err(|_| failed("not a start number"))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0_u32,
        Err(error) => return Err(Failure::from(error).about(file.display())),
    };
    let boot = last.checked_add(1).ok_or_else(|| failed("no start number is left"))?;
    write_secret(file, boot.to_string().as_bytes())?;
    Ok(boot)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The old file is whole until the new one is, and then has another name or none.
    #[test]
    fn secrets_are_replaced_and_not_overwritten() {
        let directory = std::env::temp_dir().join(format!("fedbandit-{}-secrets", std::process::id()));
        let [file, witness] = ["secret", "witness"].map(|name| directory.join(name));
        assert!(write_secret(&file, b"old").is_ok());
        fs::hard_link(&file, &witness).unwrap();
        assert!(write_secret(&file, b"new").is_ok());
        assert_eq!([&witness, &file].map(|file| fs::read(file).unwrap()), [b"old", b"new"]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "nothing unfinished is left");
        fs::remove_dir_all(&directory).unwrap();
    }
}
