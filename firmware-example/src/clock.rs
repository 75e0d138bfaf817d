//! Milliseconds since the start.

use core::cell::Cell;

use critical_section::Mutex;

static MILLISECONDS: Mutex<Cell<u64>> = Mutex::new(Cell::new(0));

/// Now.
pub fn now() -> u64 {
    critical_section::with(|token| MILLISECONDS.borrow(token).get())
}

/// One more has passed: for the board's timer.
pub fn tick() {
    critical_section::with(|token| {
        let milliseconds = MILLISECONDS.borrow(token);
        milliseconds.set(milliseconds.get() + 1);
    });
}
