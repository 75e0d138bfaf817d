//! Stack usage of a call, by stack painting: free memory below the stack is filled with a pattern, and the deepest
//! overwritten word gives the depth.
#![expect(unsafe_code, reason = "memory below the stack is reachable by address only")]

use core::ptr;

use cortex_m::register::msp;

const PATTERN: u32 = 0xa5c3_96e1;
const WORD: usize = size_of::<u32>();

/// Unpainted bytes below the stack pointer, for calls made by the painting itself. The smallest depth that is reported.
const MARGIN: usize = 64;

/// Largest painted depth, beyond any measured call. On a small board the static variables limit it first.
const DEEPEST: usize = 16 * 1024;

unsafe extern "C" {
    /// End of the static variables, from the linker script of cortex-m-rt. The stack may grow down to it.
    static _stack_end: u32;
}

/// Returns the number of free bytes below the stack.
pub(crate) fn free() -> usize {
    msp::read() as usize - (&raw const _stack_end).addr()
}

/// Returns the bytes of stack that `work` used below this function's frame.
///
/// Returns `None` if the stack outgrew the painted area or the build is not optimised. Space that `work` reserves at the far
/// end of its stack but never writes is not detected.
#[inline(never)]
pub(crate) fn depth(work: &mut dyn FnMut()) -> Option<usize> {
    if cfg!(debug_assertions) {
        return None;
    }
    let stack_pointer = msp::read() as usize;
    let bottom = (&raw const _stack_end).addr().max(stack_pointer.saturating_sub(DEEPEST));
    let painted = || (bottom..stack_pointer.saturating_sub(MARGIN)).step_by(WORD);
    // SAFETY of both blocks: the addresses lie in [bottom, stack pointer − MARGIN), where bottom ≥ `_stack_end`.
    // - They are RAM: the linker script puts `_stack_end` into it, and the stack pointer started at its end.
    // - They are words: `_stack_end`, the stack pointer and DEEPEST are multiples of four.
    // - They belong to no variable. Static variables end at `_stack_end`, and there is no heap. The frames of this function
    //   and its callers lie at the stack pointer or above, since it does not move between a function's prologue and epilogue.
    //   Below it lie only the frames of calls from here: `work` has none before it starts and after it returns, and the
    //   loops are inlined in an optimised build; calls they might still make have MARGIN to themselves.
    // - An interrupt also writes below the stack pointer. It ends before the next access here and relies on nothing there.
    // Volatile accesses may go outside of all variables, and are neither removed nor moved across the call.
    painted().for_each(|address| unsafe { ptr::with_exposed_provenance_mut::<u32>(address).write_volatile(PATTERN) });
    work();
    let untouched = |address: &usize| {
        let word = unsafe { ptr::with_exposed_provenance::<u32>(*address).read_volatile() };
        word == PATTERN
    };
    match painted().find(|address| !untouched(address)) {
        Some(deepest) if deepest == bottom => None,
        Some(deepest) => Some(stack_pointer - deepest),
        None => Some(MARGIN),
    }
}
