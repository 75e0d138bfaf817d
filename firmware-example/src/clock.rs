//! Millisecond clock, counted from start-up.

use core::cell::Cell;

use critical_section::Mutex;

static MILLISECONDS: Mutex<Cell<u64>> = Mutex::new(Cell::new(0));

/// Returns the time since start-up, in milliseconds.
pub fn now() -> u64 {
    critical_section::with(|token| MILLISECONDS.borrow(token).get())
}

/// Advances the clock by one millisecond; called by the board's timer interrupt.
pub fn tick() {
    critical_section::with(|token| {
        let milliseconds = MILLISECONDS.borrow(token);
        milliseconds.set(milliseconds.get() + 1);
    });
}
