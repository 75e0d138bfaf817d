//! Runs the example of `fedbandit-core`, unchanged, on a board.
#![no_std]
#![no_main]

#[path = "common/semihosting.rs"]
mod semihosting;

#[path = "../../../core/examples/one_episode.rs"]
mod example;

use cortex_m_rt::entry;
use cortex_m_semihosting::hprintln;

#[entry]
fn main() -> ! {
    hprintln!("{}", example::one_episode().unwrap());
    semihosting::succeed()
}
