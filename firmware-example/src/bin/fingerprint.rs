//! Runs the bit-exactness test of `core/tests/fingerprint.rs` on a board. Prints `dimension fingerprint` lines, the same for guarded agents,
//! then `done`.
#![no_std]
#![no_main]

#[path = "common/semihosting.rs"]
mod semihosting;

#[path = "../../../core/tests/fingerprint.rs"]
mod fingerprint;

use cortex_m_rt::entry;
use cortex_m_semihosting::hprintln;
use fedbandit_core::packed_len;
use fingerprint::{fingerprint, guarded_fingerprint};

#[entry]
fn main() -> ! {
    hprintln!("4 {}", fingerprint::<4>());
    hprintln!("8 {}", fingerprint::<8>());
    hprintln!("16 {}", fingerprint::<16>());
    // The run holds two matrices beside the agent. Whether those fit into 16 KiB depends on the compiler.
    if !cfg!(feature = "microbit") {
        hprintln!("32 {}", fingerprint::<32>());
    }
    hprintln!("guarded 4 {}", guarded_fingerprint::<4, { packed_len(4) }>());
    hprintln!("guarded 8 {}", guarded_fingerprint::<8, { packed_len(8) }>());
    hprintln!("guarded 16 {}", guarded_fingerprint::<16, { packed_len(16) }>());
    hprintln!("done");
    semihosting::succeed()
}
