//! Baseline for `agent_size`: only copies and clears memory, as every firmware does.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::panic::PanicInfo;

use cortex_m_rt::entry;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}

#[entry]
fn main() -> ! {
    loop {
        // A copy and an initialisation behind `black_box`: pulls in memcpy and memset.
        let mut here = black_box([0_u32; 128]);
        let copy = here;
        black_box(&mut here);
        black_box(&copy);
    }
}
