//! The boards. A board is one small module with
//!
//! - `CLOCK_HZ`: what SysTick counts, or `start_timer` and `ticked` in place of `systick.rs` if the chip has no SysTick,
//! - `IDENTITY`: where the provisioning blob is flashed, in the last kilobyte of the flash,
//! - `init()`: clocks, pins, the UART at 115,200 baud and its receive interrupt,
//! - `received()`: the next byte that arrived, if any,
//! - `send(byte)`: waits for room and sends.
//!
//! A new one is a file here, three lines below, a feature in `Cargo.toml`, and a row in `build.rs`, whose array gets longer by one. If QEMU has
//! the board, it is also a row in `tests/src/harness/firmware.rs` and its blob's address in `tests/src/harness/firmware_device.rs`.

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

/// Lets an interrupt through to the processor: bit `number` of the NVIC's set-enable registers (Armv7-M manual, B3.4.4).
fn enable_interrupt(number: usize) {
    Register::new(0xe000_e100 + 4 * (number / 32)).write(1 << (number % 32));
}
