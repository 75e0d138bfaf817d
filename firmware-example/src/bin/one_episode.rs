//! `fedbandit-core`'s example, unchanged, on a board.
#![no_std]
#![no_main]

#[path = "../semihosted.rs"]
mod semihosted;

#[path = "../../../core/examples/one_episode.rs"]
mod example;

use cortex_m_rt::entry;
use cortex_m_semihosting::hprintln;

#[entry]
fn main() -> ! {
    hprintln!("{}", example::one_episode().unwrap());
    semihosted::succeed()
}
