//! RAM that keeps its content over a reset.
#![expect(
    unsafe_code,
    reason = "memory that survives a reset must stay uninitialised; each use carries its safety argument"
)]

use core::mem::MaybeUninit;
use core::ptr::{addr_of, addr_of_mut};

/// Number of retained bytes.
pub const LEN: usize = 2_112;

#[unsafe(link_section = ".uninit.RETAINED")]
static mut RETAINED: MaybeUninit<[u8; LEN]> = MaybeUninit::uninit();

/// Reads N bytes from `offset` on; bytes beyond the end are 0. After power-up they are arbitrary, so the caller must validate them.
pub fn load<const N: usize>(offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    // Byte by byte: a volatile read of the whole array would compile to N loads, each spilled to a word of stack.
    for (i, byte) in bytes.iter_mut().enumerate().take(LEN.saturating_sub(offset)) {
        // SAFETY: offset + i < LEN, so the pointer stays inside the static, which is valid for reads. The runtime does not
        // initialise `.uninit`, but RAM always holds some bytes, every byte is a valid u8, and the volatile read keeps the
        // compiler from assuming a value. Interrupt handlers do not access it.
        *byte = unsafe { addr_of!(RETAINED).cast::<u8>().add(offset + i).read_volatile() };
    }
    bytes
}

/// Writes bytes from `offset` on; bytes beyond the end are discarded.
pub fn store(offset: usize, bytes: &[u8]) {
    for (i, byte) in bytes.iter().enumerate().take(LEN.saturating_sub(offset)) {
        // SAFETY: offset + i < LEN, so the pointer stays inside the static, which only the main loop accesses.
        unsafe { addr_of_mut!(RETAINED).cast::<u8>().add(offset + i).write_volatile(*byte) }
    }
}
