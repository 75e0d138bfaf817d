//! Thread that owns the state machine and the store, shared by all transports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use fedbandit_core::wire::Identity;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::audit::{AuditEvent, AuditRecord, Author};
use super::device_table::{DevicePage, DeviceQuery};
use super::state_machine::{Dropped, Link, StateMachine};
use super::status::Status;
use super::store::{Store, StoreError};
use crate::aggregate::AggregateError;

/// Largest dimension that the service supports.
pub const MAX_DIMENSION: usize = 64;
/// Capacity of the worker's queue, shared by all links.
const QUEUE_CAPACITY: usize = 4_096;
/// Maximum number of queued requests whose events are committed together.
const MAX_BATCH: usize = 1_024;
/// Consecutive invalid frames after which an untrusted link is closed.
pub(super) const MAX_INVALID_FRAMES: u32 = 16;
/// Interval between two ticks of the state machine.
pub(super) const TICK: Duration = Duration::from_millis(20);
/// Milliseconds between two reports of the status.
const REPORT_INTERVAL: u64 = 200;

/// Callback invoked once a frame is durable or discarded, so that the broker can be acknowledged.
pub type Receipt = Box<dyn FnOnce() + Send>;

enum Request {
    Connect(Link, mpsc::Sender<Vec<u8>>, Transport),
    Deliver(Link, Vec<u8>, Option<Receipt>),
    CountDropped(Option<u32>, Dropped),
    Detach(Link, u32),
    Disconnect(Link),
    SetRevoked(u32, bool),
    Rekey(Identity),
    Enroll(Identity, bool),
    Devices(DeviceQuery, oneshot::Sender<DevicePage>),
    Audit(Box<AuditRecord>, oneshot::Sender<()>),
    Tick,
}

/// Transport of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Name in the device table.
    pub name: &'static str,
    /// Kind of peer.
    pub peer: Peer,
}

impl Transport {
    /// TCP without TLS.
    pub const TCP: Self = Self { name: "tcp", peer: Peer::Untrusted };
    /// TCP with TLS.
    pub const TLS: Self = Self { name: "tls", peer: Peer::Untrusted };
    /// Serial line.
    pub const SERIAL: Self = Self { name: "serial", peer: Peer::Trusted };
    /// MQTT broker.
    pub const MQTT: Self = Self { name: "mqtt", peer: Peer::Broker };
}

/// Kind of peer at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Any host. After too many consecutive invalid frames its sender is dropped, which closes the link.
    Untrusted,
    /// Point-to-point line that no third party can send on. It is never closed for invalid frames.
    Trusted,
    /// Broker that reaches every device, including those that have not sent on this link.
    Broker,
}

/// Error that stopped the worker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The store failed. Acknowledged summaries are safe; others may be lost, and devices send them again.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The rule failed.
    #[error(transparent)]
    Rule(#[from] AggregateError),
}

/// Handle through which transports reach the worker.
#[derive(Clone)]
pub struct WorkerHandle {
    sender: mpsc::Sender<Request>,
    links: Arc<AtomicU64>,
    /// Numbers of the enrolled devices.
    agents: Arc<RwLock<BTreeSet<u32>>>,
}

/// Starts the worker. It stops when the store or the rule fails, or when the last handle is dropped. `observe` is called
/// with the status several times per second.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn start(
    service: StateMachine,
    store: Box<dyn Store + Send>,
    observe: impl FnMut(Status) + Send + 'static,
) -> (WorkerHandle, JoinHandle<Result<(), ServeError>>) {
    let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
    let agents = Arc::new(RwLock::new(service.agents().collect()));
    let worker = tokio::task::spawn_blocking(move || run(service, store, receiver, observe));
    // The ticker must not keep the worker alive.
    let ticks = sender.downgrade();
    tokio::spawn(async move {
        while let Some(sender) = ticks.upgrade() {
            if sender.send(Request::Tick).await.is_err() {
                return;
            }
            drop(sender);
            tokio::time::sleep(TICK).await;
        }
    });
    (WorkerHandle { sender, links: Arc::default(), agents }, worker)
}

impl WorkerHandle {
    /// Replaces a device's identity after its key was issued again.
    pub async fn rekey(&self, identity: Identity) {
        let _ = self.sender.send(Request::Rekey(identity)).await;
    }

    /// Revokes or reinstates a device.
    pub async fn set_revoked(&self, agent: u32, revoked: bool) {
        let _ = self.sender.send(Request::SetRevoked(agent, revoked)).await;
    }

    /// Enrolls a device while the run goes on, if the run accepts devices.
    pub async fn enroll(&self, identity: Identity, revoked: bool) {
        self.agents.write().unwrap_or_else(PoisonError::into_inner).insert(identity.agent());
        let _ = self.sender.send(Request::Enroll(identity, revoked)).await;
    }

    /// Returns true if a device is enrolled.
    pub fn is_enrolled(&self, agent: u32) -> bool {
        self.agents.read().unwrap_or_else(PoisonError::into_inner).contains(&agent)
    }

    /// Returns the number of enrolled devices.
    pub fn enrolled(&self) -> usize {
        self.agents.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Appends to the audit log. Returns once the entries are durable, or false if the worker has stopped.
    pub async fn audit(&self, record: AuditRecord) -> bool {
        let (sender, durable) = oneshot::channel();
        self.sender.send(Request::Audit(Box::new(record), sender)).await.is_ok() && durable.await.is_ok()
    }

    /// Registers a link. The worker sends the link's frames to `outgoing`, and drops it to close the link. Returns none if
    /// the worker has stopped.
    pub async fn connect(&self, outgoing: mpsc::Sender<Vec<u8>>, transport: Transport) -> Option<Link> {
        let link = Link(self.links.fetch_add(1, Ordering::Relaxed));
        self.sender.send(Request::Connect(link, outgoing, transport)).await.ok().map(|()| link)
    }

    /// Delivers a frame that arrived on a link. Waits while the queue is full. Returns false if the worker has stopped.
    pub async fn deliver(&self, link: Link, frame: Vec<u8>, receipt: Option<Receipt>) -> bool {
        self.sender.send(Request::Deliver(link, frame, receipt)).await.is_ok()
    }

    /// Removes a closed link.
    pub async fn disconnect(&self, link: Link) {
        let _ = self.sender.send(Request::Disconnect(link)).await;
    }

    /// Counts a frame that the transport dropped, and the device that it is addressed from, if known.
    pub async fn count_dropped(&self, agent: Option<u32>, reason: Dropped) {
        let _ = self.sender.send(Request::CountDropped(agent, reason)).await;
    }

    /// Returns a page of the device table, or none if the worker has stopped.
    pub async fn devices(&self, query: DeviceQuery) -> Option<DevicePage> {
        let (sender, page) = oneshot::channel();
        self.sender.send(Request::Devices(query, sender)).await.ok()?;
        page.await.ok()
    }

    /// Detaches a device from a link that it shares with others.
    pub async fn detach(&self, link: Link, agent: u32) {
        let _ = self.sender.send(Request::Detach(link, agent)).await;
    }
}

/// Open link.
struct Connection {
    outgoing: mpsc::Sender<Vec<u8>>,
    peer: Peer,
    /// Number of consecutive invalid frames.
    invalid: u32,
}

fn run(
    mut service: StateMachine,
    mut store: Box<dyn Store + Send>,
    mut receiver: mpsc::Receiver<Request>,
    mut observe: impl FnMut(Status),
) -> Result<(), ServeError> {
    let start = Instant::now();
    let mut connections: BTreeMap<Link, Connection> = BTreeMap::new();
    let (mut batch, mut receipts) = (Vec::new(), Vec::new());
    let mut reported = None;
    loop {
        if receiver.blocking_recv_many(&mut batch, MAX_BATCH) == 0 {
            return Ok(());
        }
        let now = start.elapsed().as_millis() as u64;
        for request in batch.drain(..) {
            match request {
                Request::Connect(link, outgoing, Transport { name, peer }) => {
                    service.add_link(link, name);
                    connections.insert(link, Connection { outgoing, peer, invalid: 0 });
                    if peer == Peer::Broker {
                        service.add_broker(link);
                    }
                }
                Request::Disconnect(link) => {
                    connections.remove(&link);
                    service.remove_link(link);
                }
                Request::Deliver(link, mut frame, receipt) => {
                    let is_valid = service.handle_frame(link, &mut frame, now).is_ok();
                    count_invalid(&mut connections, link, is_valid);
                    receipts.extend(receipt);
                }
                Request::CountDropped(agent, reason) => service.count_dropped(agent, reason),
                Request::Detach(link, agent) => service.detach(link, agent),
                Request::SetRevoked(agent, revoked) => service.set_revoked(agent, revoked),
                Request::Rekey(identity) => service.rekey(identity),
                Request::Enroll(identity, revoked) => {
                    if let Err(error) = service.enroll(identity, revoked) {
                        tracing::warn!(%error, "device not enrolled");
                    }
                }
                // The client may have left.
                Request::Devices(query, sender) => drop(sender.send(service.devices(query, now))),
                Request::Audit(record, sender) => {
                    record.append(&mut *store)?;
                    // The caller may have left.
                    let _ = sender.send(());
                }
                Request::Tick => {}
            }
        }
        if let Err(error) = commit_and_tick(&mut service, &mut *store, now) {
            return Err(audit_error(error, &mut *store));
        }
        receipts.drain(..).for_each(|receipt: Receipt| receipt());
        while let Some(outgoing) = service.poll() {
            if let Some(connection) = connections.get(&outgoing.link) {
                let _ = connection.outgoing.try_send(outgoing.frame);
            }
        }
        store_snapshot(&mut service, &mut *store)?;
        if reported.is_none_or(|reported| now >= reported + REPORT_INTERVAL) {
            observe(service.status(now));
            reported = Some(now);
        }
    }
}

/// Records an error that stops the service. After an error of the store nothing can be recorded.
fn audit_error(error: ServeError, store: &mut dyn Store) -> ServeError {
    if let ServeError::Rule(reason) = &error {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let stop = Author { at, uid: None }.entry(AuditEvent::Stop { reason: reason.to_string() });
        if let Err(error) = AuditRecord::event(stop).append(store) {
            tracing::error!(%error, "the stop is not in the audit log");
        }
    }
    error
}

/// Commits the events of handled frames, advances the time, and commits the events that follow from it. Frames may be sent
/// afterwards; after an error, none may.
///
/// # Errors
/// The store or the rule failed.
pub fn commit_and_tick(service: &mut StateMachine, store: &mut dyn Store, now: u64) -> Result<(), ServeError> {
    commit(service, store)?;
    service.tick(now)?;
    Ok(commit(service, store)?)
}

/// Stores a snapshot if one is due. Models are sent before, since this takes longer than a commit.
///
/// # Errors
/// The store failed.
pub fn store_snapshot(service: &mut StateMachine, store: &mut dyn Store) -> Result<(), StoreError> {
    service.take_snapshot().map_or(Ok(()), |snapshot| store.set_snapshot(&snapshot))
}

fn commit(service: &mut StateMachine, store: &mut dyn Store) -> Result<(), StoreError> {
    if let Some(batch) = service.take_batch() {
        store.append(&batch.to_bytes())?;
        service.mark_committed(batch);
    }
    Ok(())
}

/// Counts consecutive invalid frames of a link, and closes an untrusted link that has too many.
fn count_invalid(connections: &mut BTreeMap<Link, Connection>, link: Link, is_valid: bool) {
    let Some(connection) = connections.get_mut(&link) else { return };
    connection.invalid = if is_valid { 0 } else { connection.invalid.saturating_add(1) };
    if connection.peer == Peer::Untrusted && connection.invalid >= MAX_INVALID_FRAMES {
        connections.remove(&link);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::config::RunConfig;
    use crate::service::store::Memory;
    use crate::service::{self, MasterKey, Registry, Snapshot, StartOptions};

    /// Store whose first append blocks until released, then fails.
    struct BlockingStore {
        entered: Sender<()>,
        released: Receiver<()>,
    }

    impl Store for BlockingStore {
        fn append(&mut self, _: &[Vec<u8>]) -> Result<(), StoreError> {
            self.entered.send(()).expect("no append after a failed one");
            let _ = self.released.recv();
            Err(std::io::Error::other("append failed").into())
        }

        fn replay(&self, _: u64, _: &mut dyn FnMut(u64, &[u8])) -> Result<(), StoreError> {
            Ok(())
        }

        fn set_snapshot(&mut self, _: &Snapshot) -> Result<(), StoreError> {
            Ok(())
        }

        fn snapshot(&self) -> Result<Option<Vec<u8>>, StoreError> {
            Ok(None)
        }

        fn value(&self, _: &str) -> Result<Option<Vec<u8>>, StoreError> {
            Ok(None)
        }

        fn set_value(&mut self, _: &str, _: &[u8]) -> Result<(), StoreError> {
            Ok(())
        }

        fn append_audit(&mut self, _: &[Vec<u8>], _: &[(&str, Vec<u8>)]) -> Result<(), StoreError> {
            Ok(())
        }
    }

    fn service() -> StateMachine {
        let registry = Registry::new(1, 1, 2).with_devices(1..=3);
        let master = MasterKey::from_bytes(&[1; 32]).unwrap();
        let options = StartOptions::new(1_000, 0, 0);
        service::start(&mut Memory::default(), &RunConfig::default(), &registry, &master, options, 0).unwrap()
    }

    #[test]
    fn worker_stops_when_last_handle_is_dropped() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
        let (reported, reports) = channel();
        let observe = move |status| drop(reported.send(status));
        let (handle, worker) = runtime.block_on(async { start(service(), Box::<Memory>::default(), observe) });
        let other = handle.clone();
        drop(handle);
        // Two reports: ticks arrive while a handle is left.
        (0..2).for_each(|_| drop(reports.recv().unwrap()));
        drop(other);
        // A report may be pending; a worker that continues sends many, and must not be awaited.
        let stopped = reports.iter().take(10).count() < 10;
        let ended = stopped.then(|| runtime.block_on(worker));
        runtime.shutdown_background();
        assert!(ended.expect("the worker continues without a handle").unwrap().is_ok());
    }

    #[test]
    fn slow_store_applies_backpressure() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
        let ((entered, has_entered), (release, released)) = (channel(), channel());
        let (handle, worker) =
            runtime.block_on(async { start(service(), Box::new(BlockingStore { entered, released }), |_| {}) });
        // The first model is being stored.
        has_entered.recv().unwrap();
        let frame = || handle.sender.try_send(Request::Deliver(Link(0), Vec::new(), None));
        let waiting = (0..2 * QUEUE_CAPACITY).take_while(|_| frame().is_ok()).count();
        assert!(waiting <= QUEUE_CAPACITY, "queue grew to {waiting} frames, limit {QUEUE_CAPACITY}");
        drop((release, has_entered));
        assert!(matches!(runtime.block_on(worker).unwrap(), Err(ServeError::Store(_))));
    }
}
