//! Devices on TCP: stuffed frames both ways, and limits on what a connection may cost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fedbandit_core::wire::{cobs, max_sealed_frame_len};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::machine::{Dropped, Link, Service, Status};
use super::store::{Store, StoreError};
use crate::aggregate::AggregateError;

/// The largest dimension that the service takes devices of.
pub const MAX_DIMENSION: usize = 64;
const FRAME: usize = max_sealed_frame_len(MAX_DIMENSION);

/// Connections at a time.
const CONNECTIONS: usize = 20_000;
/// A connection that brings no whole frame for so long is closed; devices speak at least every 30 seconds.
const SILENCE: Duration = Duration::from_secs(90);
/// Frames that wait for the service, from all connections together.
const WAITING: usize = 4_096;
/// Frames that wait to be sent on one connection. A device that does not take them asks again later.
const UNSENT: usize = 16;
/// Events that are stored at once, at the most.
const BATCH: usize = 1_024;
/// Frames that a connection may bring at once, and per second from then on.
const BURST: f64 = 64.0;
const RATE: f64 = 32.0;
/// Frames in a row that mean nothing, after which a connection is closed.
const PATIENCE: u32 = 16;
/// How often time is told.
const TICK: Duration = Duration::from_millis(20);

enum Inbound {
    Connected(Link, mpsc::Sender<Vec<u8>>),
    Frame(Link, Vec<u8>),
    Gone(Link),
    Tick,
}

/// Why a service ended before its time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The store failed: what was not acknowledged may be lost, what was is not.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The rule failed.
    #[error(transparent)]
    Rule(#[from] AggregateError),
    /// The listener failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Serves devices on a listener until the store fails. `observe` is shown the status several times a second.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(
    listener: TcpListener,
    service: Service,
    store: Box<dyn Store + Send>,
    observe: impl FnMut(Status) + Send + 'static,
) -> Result<(), ServeError> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let hostile = Arc::new(Mutex::new(BTreeMap::new()));
    let verdicts = Arc::clone(&hostile);
    let mut worker = tokio::task::spawn_blocking(move || work(service, store, receiver, &verdicts, observe));
    let ticks = sender.clone();
    tokio::spawn(async move {
        while ticks.send(Inbound::Tick).await.is_ok() {
            tokio::time::sleep(TICK).await;
        }
    });
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    for number in 0.. {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            ended = &mut worker => return ended.unwrap_or_else(|error| Err(std::io::Error::other(error).into())),
        };
        // A peer that is gone again, or too many open files: nothing that a pause does not mend.
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(TICK).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let (sender, hostile) = (sender.clone(), Arc::clone(&hostile));
        tokio::spawn(async move {
            let link = Link(number);
            connection(stream, link, &sender, &hostile).await;
            let _ = sender.send(Inbound::Gone(link)).await;
            drop(permit);
        });
    }
    Ok(())
}

/// Frames in a row that meant nothing, by connection.
type Verdicts = Mutex<BTreeMap<Link, u32>>;

/// The one thread that has the service and the store.
fn work(
    mut service: Service,
    mut store: Box<dyn Store + Send>,
    mut receiver: mpsc::Receiver<Inbound>,
    verdicts: &Verdicts,
    mut observe: impl FnMut(Status),
) -> Result<(), ServeError> {
    let start = Instant::now();
    let mut links: BTreeMap<Link, mpsc::Sender<Vec<u8>>> = BTreeMap::new();
    let mut batch = Vec::new();
    let mut shown = None;
    loop {
        if receiver.blocking_recv_many(&mut batch, BATCH) == 0 {
            return Ok(());
        }
        let now = start.elapsed().as_millis() as u64;
        for inbound in batch.drain(..) {
            match inbound {
                Inbound::Connected(link, sender) => {
                    links.insert(link, sender);
                }
                Inbound::Gone(link) => {
                    links.remove(&link);
                    service.disconnected(link);
                    if let Ok(mut verdicts) = verdicts.lock() {
                        verdicts.remove(&link);
                    }
                }
                Inbound::Frame(link, mut frame) => judge(verdicts, link, service.handle(link, &mut frame)),
                Inbound::Tick => {}
            }
        }
        commit(&mut service, &mut *store)?;
        service.tick(now)?;
        commit(&mut service, &mut *store)?;
        while let Some(outgoing) = service.poll() {
            if let Some(sender) = links.get(&outgoing.link) {
                let _ = sender.try_send(outgoing.frame);
            }
        }
        if shown.is_none_or(|shown| now >= shown + 200) {
            observe(service.status(now));
            shown = Some(now);
        }
    }
}

/// Stores what is to be stored, and lets it count.
fn commit(service: &mut Service, store: &mut dyn Store) -> Result<(), StoreError> {
    if !service.uncommitted().is_empty() {
        store.append(&service.uncommitted().iter().map(|event| event.to_bytes()).collect::<Vec<_>>())?;
        service.committed();
    }
    Ok(())
}

fn judge(verdicts: &Verdicts, link: Link, result: Result<(), Dropped>) {
    let Ok(mut verdicts) = verdicts.lock() else { return };
    match result {
        Ok(()) => drop(verdicts.remove(&link)),
        Err(_) => *verdicts.entry(link).or_default() += 1,
    }
}

/// One connection, until either side ends it.
async fn connection(stream: TcpStream, link: Link, service: &mpsc::Sender<Inbound>, verdicts: &Verdicts) {
    let _ = stream.set_nodelay(true);
    let (mut reader, mut writer) = stream.into_split();
    let (sender, mut outgoing) = mpsc::channel::<Vec<u8>>(UNSENT);
    if service.send(Inbound::Connected(link, sender)).await.is_err() {
        return;
    }
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
            if service.send(Inbound::Frame(link, frame.to_vec())).await.is_err() {
                break;
            }
        }
        let hostile = verdicts.lock().is_ok_and(|verdicts| verdicts.get(&link).is_some_and(|count| *count >= PATIENCE));
        if hostile || decoder.dropped() >= PATIENCE {
            break;
        }
    }
    sending.abort();
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
