//! Memory outside the compiler's view: device registers and the flash beside the program.
#![expect(unsafe_code, reason = "registers and flash are raw addresses; each use carries its safety argument")]

/// A 32-bit device register.
#[derive(Clone, Copy)]
pub struct Register(usize);

impl Register {
    /// Creates a register from its address in the board's reference manual.
    ///
    /// Only the modules of `board` do so, from constants. These are word-aligned addresses in the peripheral (`0x4…`, `0x5…`)
    /// or system (`0xe…`) region of the Cortex-M memory map, which contains no Rust object.
    pub const fn new(address: usize) -> Self {
        assert!(address & 3 == 0 && address >= 0x4000_0000);
        Self(address)
    }

    /// Reads the register.
    pub fn read(self) -> u32 {
        // SAFETY: by `new`, the address is aligned and is a device register. A volatile read of it has the device's side effects
        // and no others: no Rust reference points there.
        unsafe { core::ptr::read_volatile(self.0 as *const u32) }
    }

    /// Writes the register.
    pub fn write(self, value: u32) {
        // SAFETY: as in `read`.
        unsafe { core::ptr::write_volatile(self.0 as *mut u32, value) }
    }
}

/// Reads bytes from the part of the flash that the linker does not use.
pub fn flash<const N: usize>(address: usize) -> [u8; N] {
    let mut bytes = [0; N];
    for (i, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: callers pass their board's `IDENTITY`, the last kilobyte of its flash, which `build.rs` excludes from the
        // linker's FLASH region. It is readable and contains no Rust object.
        *byte = unsafe { core::ptr::read_volatile((address + i) as *const u8) };
    }
    bytes
}
