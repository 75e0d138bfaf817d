//! The bit-exactness runs of `core/tests/fingerprint.rs` on a board: prints `dimension fingerprint` lines, and `done` at the end.
#![no_std]
#![no_main]

#[path = "../semihosted.rs"]
mod semihosted;

use cortex_m_rt::entry;
use cortex_m_semihosting::hprintln;
use fedbandit_core::fingerprint;
use rand_pcg::Pcg32;
use rand_pcg::rand_core::SeedableRng;

#[entry]
fn main() -> ! {
    run::<4>();
    run::<8>();
    run::<16>();
    // The run holds two matrices beside the agent, which fit 16 KiB with some compilers only.
    if !cfg!(feature = "microbit") {
        run::<32>();
    }
    hprintln!("done");
    semihosted::succeed()
}

fn run<const D: usize>() {
    let fingerprint = fingerprint::<D>(&mut Pcg32::seed_from_u64(2022), 10_000);
    hprintln!("{} {}", D, fingerprint.unwrap());
}
