//! The serial line: an interrupt collects what arrives, so that a long computation loses nothing.
#![expect(unsafe_code, reason = "cortex-m-rt asks for an unsafe function; its body is safe")]

use core::cell::RefCell;

use cortex_m_rt::exception;
use critical_section::Mutex;
use heapless::Deque;

use crate::{board, clock};

/// Room for what arrives while the main loop is busy: two of the longest frames.
static ARRIVED: Mutex<RefCell<Deque<u8, 512>>> = Mutex::new(RefCell::new(Deque::new()));

/// The next byte that arrived.
pub fn receive() -> Option<u8> {
    critical_section::with(|token| ARRIVED.borrow_ref_mut(token).pop_front())
}

/// Sends bytes, and waits until the last one is on its way.
pub fn send(bytes: impl Iterator<Item = u8>) {
    bytes.for_each(board::send);
}

/// The interrupts that are enabled are the UART's and, where there is no SysTick, the timer's. A byte that finds no room is lost, and
/// its frame with it; the sender repeats.
// SAFETY: the body is safe code; `unsafe` only marks that an exception handler must not be called like a function.
#[exception]
unsafe fn DefaultHandler(_interrupt: i16) {
    if board::ticked() {
        clock::tick();
    }
    critical_section::with(|token| {
        let mut arrived = ARRIVED.borrow_ref_mut(token);
        while let Some(byte) = board::received() {
            _ = arrived.push_back(byte);
        }
    });
}
