//! The commands that need no devices, from outside, and the documentation that shows what they print.

mod aggregate;
mod benchmarks;
#[path = "../shared/directory.rs"]
mod directory;
mod docs;
mod privacy;
mod simulate;
