//! Interrupt-driven UART: received bytes are queued, so a long computation loses none.
#![expect(unsafe_code, reason = "cortex-m-rt requires an unsafe function; its body is safe")]

use core::cell::RefCell;

use cortex_m_rt::exception;
use critical_section::Mutex;
use heapless::Deque;

use crate::{board, clock};

/// Received bytes, with room for two of the longest frames while the main loop is busy.
static RECEIVED: Mutex<RefCell<Deque<u8, 512>>> = Mutex::new(RefCell::new(Deque::new()));

/// Returns the next received byte.
pub fn receive() -> Option<u8> {
    critical_section::with(|token| RECEIVED.borrow_ref_mut(token).pop_front())
}

/// Returns true if no received byte is queued.
pub fn is_empty() -> bool {
    critical_section::with(|token| RECEIVED.borrow_ref(token).is_empty())
}

/// Sends bytes; blocks until the last one is handed to the UART.
pub fn send(bytes: impl Iterator<Item = u8>) {
    bytes.for_each(board::send);
}

/// Handles the enabled interrupts: the UART's and, on chips without SysTick, the timer's.
///
/// A byte is lost if the queue is full. Its frame then fails to decode, and the sender repeats it.
// SAFETY: the body is safe code; `unsafe` only marks that an exception handler must not be called directly.
#[exception]
unsafe fn DefaultHandler(_interrupt: i16) {
    if board::ticked() {
        clock::tick();
    }
    critical_section::with(|token| {
        let mut received = RECEIVED.borrow_ref_mut(token);
        while let Some(byte) = board::received() {
            _ = received.push_back(byte);
        }
    });
}
