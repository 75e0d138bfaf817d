//! Exit of the test programs through semihosting: QEMU returns an exit code, also after a panic.

use core::panic::PanicInfo;

// Provides the critical section that printing locks.
use cortex_m as _;
use cortex_m_semihosting::{debug, hprintln};

/// Exits with success.
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
