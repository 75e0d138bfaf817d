//! `fedbandit-core`'s example, unchanged, on a board.
#![no_std]
#![no_main]

#[path = "../../../core/examples/one_episode.rs"]
mod example;

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
    match example::one_episode() {
        Ok(outcome) => {
            hprintln!("{}", outcome);
            debug::exit(debug::EXIT_SUCCESS);
        }
        Err(reason) => {
            hprintln!("{}", reason);
            debug::exit(debug::EXIT_FAILURE);
        }
    }
    loop {}
}
