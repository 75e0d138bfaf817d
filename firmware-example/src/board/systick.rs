//! The millisecond timer of the boards that have SysTick.

use cortex_m::peripheral::SYST;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m_rt::exception;

use super::chosen::CLOCK_HZ;
use crate::clock;

/// Starts it, from the processor's clock.
pub fn start_timer(mut systick: SYST) {
    systick.set_clock_source(SystClkSource::Core);
    systick.set_reload(CLOCK_HZ / 1_000 - 1);
    systick.clear_current();
    systick.enable_counter();
    systick.enable_interrupt();
}

/// Never by an interrupt: SysTick has an exception of its own.
pub fn ticked() -> bool {
    false
}

#[exception]
fn SysTick() {
    clock::tick();
}
