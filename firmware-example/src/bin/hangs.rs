//! Starts and then hangs. The QEMU runner must time out and report a failure.
#![no_std]
#![no_main]

#[path = "common/semihosting.rs"]
mod semihosting;

use core::hint::black_box;
use cortex_m::asm;
use cortex_m_rt::entry;
use cortex_m_semihosting::hprintln;

#[entry]
fn main() -> ! {
    hprintln!("started");
    // No interrupt is enabled, so the processor sleeps and QEMU uses no CPU time.
    while black_box(true) {
        asm::wfi();
    }
    hprintln!("done");
    semihosting::succeed()
}
