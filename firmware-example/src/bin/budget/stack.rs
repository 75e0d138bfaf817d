//! How deep a call's stack is, by painting: the free memory below the stack is filled with a pattern, and after the call
//! the deepest word that is something else tells.
#![expect(unsafe_code, reason = "memory below the stack belongs to no variable: only its address leads there")]

use core::ptr;

use cortex_m::register::msp;

const PATTERN: u32 = 0xa5c3_96e1;
const WORD: usize = size_of::<u32>();

/// What is left unpainted below the stack pointer, for calls that the painting itself makes. No depth comes out smaller.
const MARGIN: usize = 64;

/// Painting ends here: deeper than any call measured. On a small board the variables end it before.
const DEEPEST: usize = 16 * 1024;

unsafe extern "C" {
    /// The end of the variables in RAM, by the linker script of cortex-m-rt: the stack may grow down to it.
    static _stack_end: u32;
}

/// The bytes that the stack may still grow by.
pub(crate) fn room() -> usize {
    msp::read() as usize - (&raw const _stack_end).addr()
}

/// The bytes of stack that `work` used below this function's frame; none if there was not enough to paint, or if the build
/// is not optimised.
///
/// What `work` reserves at the very end of its stack and never writes goes unseen.
#[inline(never)]
pub(crate) fn depth(work: &mut dyn FnMut()) -> Option<usize> {
    if cfg!(debug_assertions) {
        return None;
    }
    let stack_pointer = msp::read() as usize;
    let bottom = (&raw const _stack_end).addr().max(stack_pointer.saturating_sub(DEEPEST));
    let painted = || (bottom..stack_pointer.saturating_sub(MARGIN)).step_by(WORD);
    // SAFETY, of both blocks. The addresses lie in [bottom, stack pointer − MARGIN), where bottom ≥ `_stack_end`.
    // - They are RAM: the linker script puts `_stack_end` into it, and the stack pointer started at its end.
    // - They are words: `_stack_end`, the stack pointer and DEEPEST are multiples of four.
    // - They are no variable's. Static ones end at `_stack_end`, and there is no heap. The frames of this function and its
    //   callers lie at the stack pointer or above, since it stays where it is from a function's prologue to its epilogue.
    //   Below it lie only the frames of calls from here: `work` has none before it starts and after it returns, and the
    //   loops are inlined in an optimised build; what they might still call has MARGIN to itself.
    // - An interrupt writes below the stack pointer too. It is over before the next access here and relies on nothing there.
    // Volatile accesses may lead outside of all variables, and are neither left out nor moved across the call.
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
