//! BBC micro:bit 1: nRF51822, Cortex-M0 with 16 KiB of RAM; UART on the pins of the USB interface chip.
//!
//! The nRF51 has no SysTick, so TIMER0 counts milliseconds. QEMU's model of the chip has both.

use cortex_m::peripheral::SYST;

use super::enable_interrupt;
use crate::mmio::Register;

/// Address of the provisioning blob: the last kilobyte of the 256 KiB flash.
pub const IDENTITY: usize = 0x0003_fc00;

const HFCLKSTART: Register = Register::new(0x4000_0000);
const HFCLKSTARTED: Register = Register::new(0x4000_0100);

const GPIO: usize = 0x5000_0000;
const OUTSET: Register = Register::new(GPIO + 0x508);
const PIN_CNF: usize = GPIO + 0x700;

const TX: u32 = 24;
const RX: u32 = 25;

const UART: usize = 0x4000_2000;
const STARTRX: Register = Register::new(UART);
const STARTTX: Register = Register::new(UART + 0x008);
const RXDRDY: Register = Register::new(UART + 0x108);
const TXDRDY: Register = Register::new(UART + 0x11c);
const INTENSET: Register = Register::new(UART + 0x304);
const ENABLE: Register = Register::new(UART + 0x500);
const PSELTXD: Register = Register::new(UART + 0x50c);
const PSELRXD: Register = Register::new(UART + 0x514);
const RXD: Register = Register::new(UART + 0x518);
const TXD: Register = Register::new(UART + 0x51c);
const BAUDRATE: Register = Register::new(UART + 0x524);

const TIMER0: usize = 0x4000_8000;
const START: Register = Register::new(TIMER0);
const COMPARE0: Register = Register::new(TIMER0 + 0x140);
const SHORTS: Register = Register::new(TIMER0 + 0x200);
const TIMER_INTENSET: Register = Register::new(TIMER0 + 0x304);
const PRESCALER: Register = Register::new(TIMER0 + 0x510);
const CC0: Register = Register::new(TIMER0 + 0x540);

/// Starts TIMER0: the crystal's 16 MHz divided by 2⁴, so that 1,000 counts are a millisecond.
pub fn start_timer(_: SYST) {
    PRESCALER.write(4);
    CC0.write(1_000);
    // Clears the counter at CC0.
    SHORTS.write(1 << 0);
    TIMER_INTENSET.write(1 << 16);
    START.write(1);
    enable_interrupt(8);
}

/// Returns true if a millisecond has passed since the last call.
pub fn ticked() -> bool {
    let ticked = COMPARE0.read() != 0;
    if ticked {
        COMPARE0.write(0);
    }
    ticked
}

/// Starts the crystal, whose precision the baud rate requires, and initialises the UART.
pub fn init() {
    HFCLKSTART.write(1);
    // Takes less than a millisecond; a board without a crystal continues with the internal oscillator.
    for _ in 0..10_000 {
        if HFCLKSTARTED.read() != 0 {
            break;
        }
    }
    // TX: output, idle high, input buffer disconnected. RX: input.
    OUTSET.write(1 << TX);
    Register::new(PIN_CNF + 4 * TX as usize).write(0b11);
    Register::new(PIN_CNF + 4 * RX as usize).write(0);
    PSELTXD.write(TX);
    PSELRXD.write(RX);
    // The reference value for 115,200 baud.
    BAUDRATE.write(0x01d7_e000);
    ENABLE.write(4);
    INTENSET.write(1 << 2);
    STARTRX.write(1);
    STARTTX.write(1);
    enable_interrupt(2);
}

/// Returns the next received byte, if any.
pub fn received() -> Option<u8> {
    if RXDRDY.read() == 0 {
        return None;
    }
    // Clears the event first, so that a byte received meanwhile sets it again.
    RXDRDY.write(0);
    Some(RXD.read() as u8)
}

/// Sends a byte; blocks until the UART accepts it.
pub fn send(byte: u8) {
    TXDRDY.write(0);
    TXD.write(byte.into());
    while TXDRDY.read() == 0 {}
}
