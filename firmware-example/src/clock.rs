//! Milliseconds since the start, by SysTick.

use core::sync::atomic::{AtomicU32, Ordering};

use cortex_m::peripheral::SYST;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m_rt::exception;

use crate::board::CLOCK_HZ;

static MILLISECONDS: AtomicU32 = AtomicU32::new(0);

/// Starts counting.
pub fn start(mut systick: SYST) {
    systick.set_clock_source(SystClkSource::Core);
    systick.set_reload(CLOCK_HZ / 1_000 - 1);
    systick.clear_current();
    systick.enable_counter();
    systick.enable_interrupt();
}

/// Now. Enough for 49 days; a device that runs longer than that without a reset needs a wider counter.
pub fn now() -> u64 {
    MILLISECONDS.load(Ordering::Relaxed).into()
}

#[exception]
fn SysTick() {
    // Only here is it written, so that load and store need not be one.
    MILLISECONDS.store(MILLISECONDS.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}
