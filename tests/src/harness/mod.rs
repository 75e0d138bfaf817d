//! Test harness: processes, firmware under QEMU, firmware devices and a seeded generator.

pub mod firmware;
pub mod firmware_device;
pub mod test_rng;
