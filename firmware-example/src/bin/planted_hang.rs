//! Starts and never ends: the test harness must stop this program, and must not take it for a success.
#![no_std]
#![no_main]

#[path = "../semihosted.rs"]
mod semihosted;

use core::hint::black_box;
use cortex_m_rt::entry;
use cortex_m_semihosting::hprintln;

#[entry]
fn main() -> ! {
    hprintln!("started");
    while black_box(true) {}
    hprintln!("done");
    semihosted::succeed()
}
