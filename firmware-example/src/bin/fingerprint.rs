//! The bit-exactness runs of `core/tests/fingerprint.rs` on a board: prints `dimension fingerprint` lines, and `done` at the end.
#![no_std]
#![no_main]

use core::panic::PanicInfo;

use cortex_m as _;
use cortex_m_rt::entry;
use cortex_m_semihosting::{debug, hprintln};
use fedbandit_core::fingerprint;
use rand_pcg::Pcg32;
use rand_pcg::rand_core::SeedableRng;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    hprintln!("{}", info);
    debug::exit(debug::EXIT_FAILURE);
    loop {}
}

#[entry]
fn main() -> ! {
    run::<4>();
    run::<8>();
    run::<16>();
    // The run holds two matrices beside the agent: more than 16 KiB at this dimension.
    if !cfg!(feature = "microbit") {
        run::<32>();
    }
    hprintln!("done");
    debug::exit(debug::EXIT_SUCCESS);
    loop {}
}

fn run<const D: usize>() {
    let fingerprint = fingerprint::<D>(&mut Pcg32::seed_from_u64(2022), 10_000);
    hprintln!("{} {}", D, fingerprint.unwrap());
}
