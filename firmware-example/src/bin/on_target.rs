//! The tests of `core/tests/on_target.rs` on a board: prints a line `ok NAME` for each, and `N passed` at the end.
#![no_std]
#![no_main]

#[path = "../semihosted.rs"]
mod semihosted;

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
    semihosted::succeed()
}
