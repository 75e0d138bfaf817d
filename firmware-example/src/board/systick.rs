//! Millisecond timer of boards with SysTick.

use cortex_m::peripheral::SYST;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m_rt::exception;

use super::chosen::CLOCK_HZ;
use crate::clock;

/// Starts SysTick from the processor's clock.
pub fn start_timer(mut systick: SYST) {
    systick.set_clock_source(SystClkSource::Core);
    systick.set_reload(CLOCK_HZ / 1_000 - 1);
    systick.clear_current();
    systick.enable_counter();
    systick.enable_interrupt();
}

/// Always false: SysTick has its own exception, [`SysTick`].
pub fn ticked() -> bool {
    false
}

#[exception]
fn SysTick() {
    clock::tick();
}
