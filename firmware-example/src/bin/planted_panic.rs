//! Starts well and panics: what runs programs on boards must not take this for a success.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::panic::PanicInfo;

// Its critical section is what printing locks with.
use cortex_m as _;
use cortex_m_rt::entry;
use cortex_m_semihosting::{debug, hprintln};

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    hprintln!("{}", info);
    debug::exit(debug::EXIT_FAILURE);
    loop {}
}

#[entry]
fn main() -> ! {
    hprintln!("started");
    // The compiler cannot know it, and so keeps the way to success.
    if black_box(true) {
        panic!("planted");
    }
    hprintln!("done");
    debug::exit(debug::EXIT_SUCCESS);
    loop {}
}
