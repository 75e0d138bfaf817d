//! STM32F405 and relatives: USART2 on PA2 (TX) and PA3 (RX), clocked by the internal 16 MHz oscillator.
//!
//! The README lists the source of each register and bit. On Nucleo-64 boards of the F4 family, PA2 and PA3 connect to the
//! debug probe's virtual serial port.

use super::enable_interrupt;
use crate::mmio::Register;

/// HSI, the clock after reset.
pub const CLOCK_HZ: u32 = 16_000_000;

/// Address of the provisioning blob: the last kilobyte of the first 512 KiB of flash.
pub const IDENTITY: usize = 0x0807_fc00;

const RCC: usize = 0x4002_3800;
const AHB1ENR: Register = Register::new(RCC + 0x30);
const APB1ENR: Register = Register::new(RCC + 0x40);

const GPIOA: usize = 0x4002_0000;
const MODER: Register = Register::new(GPIOA);
const AFRL: Register = Register::new(GPIOA + 0x20);

const USART2: usize = 0x4000_4400;
const SR: Register = Register::new(USART2);
const DR: Register = Register::new(USART2 + 0x04);
const BRR: Register = Register::new(USART2 + 0x08);
const CR1: Register = Register::new(USART2 + 0x0c);

/// Byte received (RXNE) or overrun (ORE); reading SR, then DR clears both.
const RXNE_OR_OVERRUN: u32 = 1 << 5 | 1 << 3;
const TXE: u32 = 1 << 7;

/// Initialises USART2.
pub fn init() {
    AHB1ENR.write(AHB1ENR.read() | 1 << 0);
    APB1ENR.write(APB1ENR.read() | 1 << 17);
    // A peripheral may ignore writes right after its clock is enabled (ES0182, 2.1.13).
    cortex_m::asm::dsb();
    // Alternate function 7 on PA2 and PA3, selected before the mode so that no other function drives the pins in between.
    AFRL.write(AFRL.read() & !(0xff << 8) | 0x77 << 8);
    MODER.write(MODER.read() & !(0b1111 << 4) | 0b1010 << 4);
    // 16 MHz / 115,200 in sixteenths, rounded from 138.9 to 139: an error of 0.08 %.
    BRR.write((CLOCK_HZ + 57_600) / 115_200);
    // USART, transmitter, receiver, receive interrupt.
    CR1.write(1 << 13 | 1 << 3 | 1 << 2 | 1 << 5);
    enable_interrupt(38);
}

/// Returns the next received byte, if any.
pub fn received() -> Option<u8> {
    (SR.read() & RXNE_OR_OVERRUN != 0).then(|| DR.read() as u8)
}

/// Sends a byte; blocks until the UART accepts it.
pub fn send(byte: u8) {
    while SR.read() & TXE == 0 {}
    DR.write(byte.into());
}
