//! How the test programs end: through semihosting, so that QEMU exits with a code, after a panic too.

use core::panic::PanicInfo;

// Its critical section is what printing locks with.
use cortex_m as _;
use cortex_m_semihosting::{debug, hprintln};

/// Ends the program well.
pub fn succeed() -> ! {
    debug::exit(debug::EXIT_SUCCESS);
    loop {}
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    hprintln!("{}", info);
    debug::exit(debug::EXIT_FAILURE);
    loop {}
}
