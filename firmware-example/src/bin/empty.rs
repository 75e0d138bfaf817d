//! A program that only moves and clears memory, as every firmware does: `agent_code` is measured against it.
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
        // A move and a fresh value of an unknown place: the library's memcpy and memset.
        let mut here = black_box([0_u32; 128]);
        let there = here;
        black_box(&mut here);
        black_box(&there);
    }
}
