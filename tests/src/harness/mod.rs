//! Test harness: processes, firmware under QEMU, firmware devices and a seeded generator.

pub mod firmware;
pub mod firmware_device;
pub mod process;
pub mod test_rng;

use std::path::PathBuf;

/// Root of the repository.
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
