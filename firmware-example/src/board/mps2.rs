//! Arm MPS2+ FPGA images AN385 (Cortex-M3), AN386 (M4F) and AN505 (M33), with the UART of Arm's Cortex-M System Design Kit.

use super::enable_interrupt;
use crate::mmio::Register;

/// System clock; the AN505 image is slightly slower than the others.
pub const CLOCK_HZ: u32 = if cfg!(feature = "mps2-an505") { 20_000_000 } else { 25_000_000 };

/// Address of the provisioning blob: the last kilobyte of the code memory.
pub const IDENTITY: usize = if cfg!(feature = "mps2-an505") { 0x103f_fc00 } else { 0x003f_fc00 };

const UART0: usize = if cfg!(feature = "mps2-an505") { 0x5020_0000 } else { 0x4000_4000 };
const DATA: Register = Register::new(UART0);
const STATE: Register = Register::new(UART0 + 0x04);
const CTRL: Register = Register::new(UART0 + 0x08);
const INTCLEAR: Register = Register::new(UART0 + 0x0c);
const BAUDDIV: Register = Register::new(UART0 + 0x10);

const TX_FULL: u32 = 1 << 0;
const RX_FULL: u32 = 1 << 1;
const RX_INTERRUPT: usize = if cfg!(feature = "mps2-an505") { 32 } else { 0 };

/// Initialises UART 0.
pub fn init() {
    BAUDDIV.write(CLOCK_HZ / 115_200);
    // Transmitter, receiver, receive interrupt.
    CTRL.write(0b1011);
    enable_interrupt(RX_INTERRUPT);
}

/// Returns the next received byte, if any.
pub fn received() -> Option<u8> {
    INTCLEAR.write(0b10);
    (STATE.read() & RX_FULL != 0).then(|| DATA.read() as u8)
}

/// Sends a byte; blocks until the UART accepts it.
pub fn send(byte: u8) {
    while STATE.read() & TX_FULL != 0 {}
    DATA.write(byte.into());
}
