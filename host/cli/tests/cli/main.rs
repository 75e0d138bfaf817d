//! Commands that need no devices, and the documentation that shows their output.

mod aggregate;
mod benchmarks;
#[path = "../shared/directory.rs"]
mod directory;
mod docs;
mod evaluate;
mod privacy;
mod simulate;
