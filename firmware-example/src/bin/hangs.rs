//! Starts and then hangs. The test harness must stop this program and report a failure.
#![no_std]
#![no_main]

#[path = "common/semihosting.rs"]
mod semihosting;

use core::hint::black_box;
use cortex_m_rt::entry;
use cortex_m_semihosting::hprintln;

#[entry]
fn main() -> ! {
    hprintln!("started");
    while black_box(true) {}
    hprintln!("done");
    semihosting::succeed()
}
