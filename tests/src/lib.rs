//! The harness of the end-to-end tests: firmware built and run under QEMU, and what it costs.

pub mod budget;
pub mod device;
pub mod firmware;
