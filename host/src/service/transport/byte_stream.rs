//! Devices on a byte stream: COBS frames both ways, with an idle timeout and a rate limit.

use std::time::{Duration, Instant};

use fedbandit_core::wire::{cobs, max_frame_len};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::worker::{MAX_DIMENSION, MAX_INVALID_FRAMES, Peer, Transport, WorkerHandle};

/// Length of the longest frame in bytes.
pub const FRAME: usize = max_frame_len(MAX_DIMENSION);
/// Time without a complete frame after which a stream is closed; devices on streams send heartbeats every 30 seconds.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Capacity of a stream's send queue. Frames beyond it are dropped; the device asks again later.
const SEND_QUEUE: usize = 16;
/// Frames that a peer may send at once.
const BURST: f64 = 64.0;
/// Frames per second that a peer may send in the long run.
const RATE: f64 = 32.0;

/// Serves one stream until either side closes it. A transport that carries bytes both ways needs nothing else.
///
/// A stream to a trusted peer is not closed for silence or invalid frames. This is for serial lines: no third party can send on
/// one, and reopening it may reset the board.
pub async fn converse(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin + Send + 'static,
    handle: &WorkerHandle,
    transport: Transport,
) {
    let (sender, mut outgoing) = mpsc::channel::<Vec<u8>>(SEND_QUEUE);
    let trusted = transport.peer == Peer::Trusted;
    let Some(link) = handle.connect(sender, transport).await else { return };
    let mut sending = tokio::spawn(async move {
        while let Some(frame) = outgoing.recv().await {
            let bytes: Vec<u8> = cobs::encode(&frame).collect();
            let written = timeout(IDLE_TIMEOUT, async {
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
    while let Some(left) = IDLE_TIMEOUT.checked_sub(last_frame.elapsed()) {
        let read = tokio::select! {
            read = timeout(left, reader.read(&mut buffer)) => read,
            // The writer failed, or the worker has closed the link.
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
            if !handle.deliver(link, frame.to_vec(), None).await {
                break;
            }
        }
        if !trusted && decoder.dropped() >= MAX_INVALID_FRAMES {
            break;
        }
    }
    sending.abort();
    handle.disconnect(link).await;
}

/// Token bucket that limits the frames of one peer. A stream is slowed down, never closed.
pub(super) struct Allowance {
    tokens: f64,
    at: Instant,
}

impl Allowance {
    pub(super) fn new() -> Self {
        Self { tokens: BURST, at: Instant::now() }
    }

    /// Takes a token for one frame, and returns the delay after which the frame conforms to the rate.
    pub(super) fn take(&mut self) -> Duration {
        self.tokens = (self.tokens + self.at.elapsed().as_secs_f64() * RATE).min(BURST) - 1.0;
        self.at = Instant::now();
        Duration::from_secs_f64((-self.tokens / RATE).max(0.0))
    }

    /// Returns the token of a frame that was dropped instead of delayed.
    pub(super) fn give_back(&mut self) {
        self.tokens += 1.0;
    }
}
