//! Starts well and panics: what runs programs on boards must not take this for a success.
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
    // The compiler cannot know it, and so keeps the way to success.
    if black_box(true) {
        panic!("planted");
    }
    hprintln!("done");
    semihosted::succeed()
}
