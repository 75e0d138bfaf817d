//! Runs the tests of `core/tests/on_target.rs` on a board. Prints `ok NAME` for each, then `N passed`.
#![no_std]
#![no_main]

#[path = "common/semihosting.rs"]
mod semihosting;

#[path = "../../../core/tests/on_target.rs"]
mod on_target;

use cortex_m_rt::entry;
use cortex_m_semihosting::hprintln;

#[entry]
fn main() -> ! {
    for (name, test) in on_target::TESTS {
        test();
        hprintln!("ok {}", name);
    }
    hprintln!("{} passed", on_target::TESTS.len());
    semihosting::succeed()
}
