//! Devices on a byte stream: stuffed frames both ways, and limits on what a stream may cost.

use std::time::{Duration, Instant};

use fedbandit_core::wire::{cobs, max_sealed_frame_len};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::worker::{MAX_DIMENSION, MEANINGLESS, Peer, WorkerHandle};

/// The longest frame.
pub const FRAME: usize = max_sealed_frame_len(MAX_DIMENSION);
/// A stream that brings no whole frame for so long is closed; devices speak at least every 30 seconds.
pub const SILENCE: Duration = Duration::from_secs(90);
/// Frames that wait to be sent on one stream. A device that does not take them asks again later.
const UNSENT: usize = 16;
/// Frames that a peer may bring at once, and per second from then on.
const BURST: f64 = 64.0;
const RATE: f64 = 32.0;

/// One stream, until either side ends it. A transport that carries bytes both ways needs no more than this.
///
/// A stream that is `trusted` is not closed for silence or garbage. That is for serial lines: nobody else is behind one, and
/// opening it again may reset a board.
pub async fn converse(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin + Send + 'static,
    handle: &WorkerHandle,
    trusted: bool,
) {
    let (sender, mut outgoing) = mpsc::channel::<Vec<u8>>(UNSENT);
    let peer = if trusted { Peer::Trusted } else { Peer::Stranger };
    let Some(link) = handle.connect(sender, peer).await else { return };
    let mut sending = tokio::spawn(async move {
        while let Some(frame) = outgoing.recv().await {
            let bytes: Vec<u8> = cobs::encode(&frame).collect();
            let written = timeout(SILENCE, async {
                writer.write_all(&bytes).await?;
                writer.flush().await
            });
            if !matches!(written.await, Ok(Ok(()))) {
                return;
            }
        }
    });
    let mut decoder = Box::new(cobs::Decoder::<FRAME>::new());
    let mut buffer = [0; 1024];
    let mut allowance = Allowance::new();
    let mut last_frame = Instant::now();
    while let Some(left) = SILENCE.checked_sub(last_frame.elapsed()) {
        let read = tokio::select! {
            read = timeout(left, reader.read(&mut buffer)) => read,
            // Nothing can be sent any more, or the worker wants nothing more to be.
            _ = &mut sending => break,
        };
        let read = match read {
            Ok(Ok(read @ 1..)) => read,
            Err(_) if trusted => 0,
            _ => break,
        };
        if trusted {
            last_frame = Instant::now();
        }
        for byte in &buffer[..read] {
            let Some(frame) = decoder.push(*byte) else { continue };
            last_frame = Instant::now();
            let early = allowance.take();
            if !early.is_zero() {
                tokio::time::sleep(early).await;
            }
            if !handle.frame(link, frame.to_vec(), None).await {
                break;
            }
        }
        if !trusted && decoder.dropped() >= MEANINGLESS {
            break;
        }
    }
    sending.abort();
    handle.disconnect(link).await;
}

/// The pauses before what went away is tried again: longer each time.
pub(super) struct Pauses(Duration);

impl Pauses {
    pub(super) const fn new() -> Self {
        Self(Duration::from_millis(250))
    }

    /// Waits for the next one to be over.
    pub(super) async fn pause(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (2 * self.0).min(Duration::from_secs(8));
    }
}

/// How many frames a peer may still bring. A stream is slowed down, and with it its peer, never refused.
pub(super) struct Allowance {
    tokens: f64,
    at: Instant,
}

impl Allowance {
    pub(super) fn new() -> Self {
        Self { tokens: BURST, at: Instant::now() }
    }

    /// Takes one more frame, and returns how long that is too early.
    pub(super) fn take(&mut self) -> Duration {
        self.tokens = (self.tokens + self.at.elapsed().as_secs_f64() * RATE).min(BURST) - 1.0;
        self.at = Instant::now();
        Duration::from_secs_f64((-self.tokens / RATE).max(0.0))
    }

    /// Gives back what was taken too early.
    pub(super) fn give_back(&mut self) {
        self.tokens += 1.0;
    }
}
