//! Starts well and never ends: what runs programs on boards must not wait for this forever, nor take it for a success.
#![no_std]
#![no_main]

#[path = "../semihosted.rs"]
mod semihosted;

use core::hint::black_box;
use cortex_m::asm;
use cortex_m_rt::entry;
use cortex_m_semihosting::hprintln;

#[entry]
fn main() -> ! {
    hprintln!("started");
    // No interrupt is enabled: the processor sleeps, and QEMU takes no time meanwhile.
    while black_box(true) {
        asm::wfi();
    }
    hprintln!("done");
    semihosted::succeed()
}
