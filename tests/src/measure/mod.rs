//! Commands of the program `fedbandit-tests`.

pub mod budget;
pub mod long_runs;
pub mod record;
pub mod soak;
