//! RAM that a reset leaves as it was: what the device was doing.
#![expect(
    unsafe_code,
    reason = "memory that survives a reset is memory that nobody initialises; the proof stands at each use"
)]

use core::mem::MaybeUninit;
use core::ptr::{addr_of, addr_of_mut};

/// Bytes that are kept.
pub const LEN: usize = 1_792;

#[unsafe(link_section = ".uninit.RETAINED")]
static mut RETAINED: MaybeUninit<[u8; LEN]> = MaybeUninit::uninit();

/// The bytes of before the reset; after power-up, anything. Their owner checks them.
pub fn load() -> [u8; LEN] {
    let mut bytes = [0; LEN];
    // Byte by byte: a volatile read of the whole array becomes LEN instructions, each with a word of stack for its byte.
    for (i, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: i < LEN, so the pointer stays inside the static, which is valid for reads. The runtime does not initialise `.uninit`,
        // but RAM always holds some bytes, every byte is a valid u8, and the volatile read keeps the compiler from assuming which.
        // Interrupt handlers do not use it.
        *byte = unsafe { addr_of!(RETAINED).cast::<u8>().add(i).read_volatile() };
    }
    bytes
}

/// Keeps bytes from `offset` on; what does not fit is left out.
pub fn store(offset: usize, bytes: &[u8]) {
    for (i, byte) in bytes.iter().enumerate().take(LEN.saturating_sub(offset)) {
        // SAFETY: offset + i < LEN, so the pointer stays inside the static, which only the main loop uses.
        unsafe { addr_of_mut!(RETAINED).cast::<u8>().add(offset + i).write_volatile(*byte) }
    }
}
