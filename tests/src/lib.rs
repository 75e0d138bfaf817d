//! End-to-end tests and measurements of fedbandit.
//!
//! | module | contents |
//! |---|---|
//! | [`harness`] | starts what the tests need: processes, firmware under QEMU, firmware devices |
//! | [`faults`] | deterministic fault simulation: service, devices, network and disk in one thread |
//! | [`fuzz`] | bodies of the fuzz targets, shared by libFuzzer and the test `fuzz_targets` |
//! | [`measure`] | commands of the program `fedbandit-tests`, which measure what the documentation records |
//! | [`planted`] | planted bugs, each of which the suite must find |

pub mod faults;
pub mod fuzz;
pub mod harness;
pub mod measure;
pub mod planted;

pub use measure::record;
