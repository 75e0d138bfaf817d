//! The harness of the end-to-end tests: firmware built and run under QEMU, and what it costs; the service and its devices
//! in a world of faults, and its store on a disk that fails.

pub mod budget;
pub mod chance;
pub mod claims;
pub mod device;
pub mod disk;
pub mod faults;
pub mod firmware;
pub mod planted;
pub mod program;
pub mod record;
pub mod soak;
pub mod storage;
pub mod targets;
