//! The two places where this firmware touches memory that the compiler does not know: device registers and the flash beside it.
#![expect(unsafe_code, reason = "registers and flash are addresses; the proofs stand at each use")]

/// A 32-bit device register.
#[derive(Clone, Copy)]
pub struct Register(usize);

impl Register {
    /// The register at an address of the board's reference manual.
    ///
    /// Only the modules of `board` make registers, from constants: word-aligned addresses in the peripheral (`0x4…`, `0x5…`) or
    /// system (`0xe…`) region of the Cortex-M memory map, which hold no Rust object.
    pub const fn new(address: usize) -> Self {
        assert!(address & 3 == 0 && address >= 0x4000_0000);
        Self(address)
    }

    /// Reads it.
    pub fn read(self) -> u32 {
        // SAFETY: by `new`, the address is aligned and is a device register. A volatile read of it has the device's side effects
        // and no others: no Rust reference points there.
        unsafe { core::ptr::read_volatile(self.0 as *const u32) }
    }

    /// Writes it.
    pub fn write(self, value: u32) {
        // SAFETY: as in `read`.
        unsafe { core::ptr::write_volatile(self.0 as *mut u32, value) }
    }
}

/// The bytes at an address of the flash that the linker leaves alone.
pub fn flash<const N: usize>(address: usize) -> [u8; N] {
    let mut bytes = [0; N];
    for (i, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: callers pass their board's `IDENTITY`, the last kilobyte of its flash, which `build.rs` keeps out of the linker's
        // FLASH region: it is readable, and no Rust object is there.
        *byte = unsafe { core::ptr::read_volatile((address + i) as *const u8) };
    }
    bytes
}
