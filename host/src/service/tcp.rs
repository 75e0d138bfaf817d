//! Devices on TCP: stuffed frames both ways, and limits on what a connection may cost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fedbandit_core::wire::{cobs, max_sealed_frame_len};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::worker::{Door, PATIENCE, TICK};

/// The largest dimension that the service takes devices of.
pub const MAX_DIMENSION: usize = 64;
const FRAME: usize = max_sealed_frame_len(MAX_DIMENSION);

/// Connections at a time.
const CONNECTIONS: usize = 20_000;
/// A connection that brings no whole frame for so long is closed; devices speak at least every 30 seconds.
const SILENCE: Duration = Duration::from_secs(90);
/// Frames that wait to be sent on one connection. A device that does not take them asks again later.
const UNSENT: usize = 16;
/// Frames that a connection may bring at once, and per second from then on.
const BURST: f64 = 64.0;
const RATE: f64 = 32.0;

/// Serves devices on a listener for as long as the process lives.
pub async fn serve(listener: TcpListener, door: Door) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // A peer that is gone again, or too many open files: nothing that a pause does not mend.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(TICK).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let door = door.clone();
        tokio::spawn(async move {
            connection(stream, &door).await;
            drop(permit);
        });
    }
}

/// One connection, until either side ends it.
async fn connection(stream: TcpStream, door: &Door) {
    let _ = stream.set_nodelay(true);
    let (mut reader, mut writer) = stream.into_split();
    let (sender, mut outgoing) = mpsc::channel::<Vec<u8>>(UNSENT);
    let Some(link) = door.connect(sender).await else { return };
    let sending = tokio::spawn(async move {
        while let Some(frame) = outgoing.recv().await {
            let bytes: Vec<u8> = cobs::encode(&frame).collect();
            if !matches!(timeout(SILENCE, writer.write_all(&bytes)).await, Ok(Ok(()))) {
                return;
            }
        }
    });
    let mut decoder = Box::new(cobs::Decoder::<FRAME>::new());
    let mut buffer = [0; 1024];
    let mut allowance = Allowance { tokens: BURST, at: Instant::now() };
    let mut last_frame = Instant::now();
    while let Some(left) = SILENCE.checked_sub(last_frame.elapsed()) {
        let Ok(Ok(read @ 1..)) = timeout(left, reader.read(&mut buffer)).await else { break };
        for byte in &buffer[..read] {
            let Some(frame) = decoder.push(*byte) else { continue };
            last_frame = Instant::now();
            allowance.wait().await;
            if !door.frame(link, frame.to_vec()).await {
                break;
            }
        }
        if door.is_hostile(link) || decoder.dropped() >= PATIENCE {
            break;
        }
    }
    sending.abort();
    door.disconnect(link).await;
}

/// How many frames a connection may still bring: it is slowed down, and with it its peer, never refused.
struct Allowance {
    tokens: f64,
    at: Instant,
}

impl Allowance {
    async fn wait(&mut self) {
        self.tokens = (self.tokens + self.at.elapsed().as_secs_f64() * RATE).min(BURST) - 1.0;
        self.at = Instant::now();
        if self.tokens < 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(-self.tokens / RATE)).await;
        }
    }
}
