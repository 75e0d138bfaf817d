//! Starts and then panics. The QEMU runner must report a failure.
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
    // Opaque to the compiler, so that the success path stays in the program.
    if black_box(true) {
        panic!("deliberate panic");
    }
    hprintln!("done");
    semihosting::succeed()
}
