//! A program that does nothing: what is left of `public_api` without it is the agent's code.
#![no_std]
#![no_main]

use core::panic::PanicInfo;

use cortex_m_rt::entry;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}

#[entry]
fn main() -> ! {
    loop {}
}
