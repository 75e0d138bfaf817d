//! The tests of `core/tests/on_target.rs` on a board: prints a line `ok NAME` for each, and `N passed` at the end.
#![no_std]
#![no_main]

#[path = "../../../core/tests/on_target.rs"]
#[expect(
    clippy::needless_borrows_for_generic_args,
    reason = "a decision set is lent, even where it could be given away"
)]
mod on_target;

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
    for (name, test) in on_target::TESTS {
        test();
        hprintln!("ok {}", name);
    }
    hprintln!("{} passed", on_target::TESTS.len());
    debug::exit(debug::EXIT_SUCCESS);
    loop {}
}
