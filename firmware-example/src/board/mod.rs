//! Board support. Each board is one small module with
//!
//! - `CLOCK_HZ`: the frequency of SysTick; a chip without SysTick provides `start_timer` and `ticked` instead,
//! - `IDENTITY`: the address of the provisioning blob, in the last kilobyte of the flash,
//! - `init()`: initialises clocks, pins, the UART at 115,200 baud and its receive interrupt,
//! - `received()`: returns the next received byte, if any,
//! - `send(byte)`: blocks until the UART accepts the byte.
//!
//! To add a board, create its module here, add three lines below, a feature in `Cargo.toml` and a row in `build.rs`. If QEMU
//! models the board, also add a row in `tests/src/harness/firmware.rs` and the blob's address in `tests/src/harness/firmware_device.rs`.

#[cfg(any(feature = "mps2-an385", feature = "mps2-an386", feature = "mps2-an505"))]
#[path = "mps2.rs"]
mod chosen;

#[cfg(feature = "microbit")]
#[path = "microbit.rs"]
mod chosen;

#[cfg(feature = "netduinoplus2")]
#[path = "stm32f405.rs"]
mod chosen;

#[cfg(not(feature = "microbit"))]
mod systick;

pub use chosen::{IDENTITY, init, received, send};
#[cfg(feature = "microbit")]
pub use chosen::{start_timer, ticked};
#[cfg(not(feature = "microbit"))]
pub use systick::{start_timer, ticked};

use crate::mmio::Register;

/// Enables an interrupt: sets bit `number` of the NVIC's set-enable registers (Armv7-M manual, B3.4.4).
fn enable_interrupt(number: usize) {
    Register::new(0xe000_e100 + 4 * (number / 32)).write(1 << (number % 32));
}
