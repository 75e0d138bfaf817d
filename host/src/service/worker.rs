//! The one thread that has the service and the store, for all transports together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fedbandit_core::planted::{self, Bug};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::machine::{Dropped, Link, Service};
use super::status::Status;
use super::store::{Store, StoreError};
use crate::aggregate::AggregateError;

/// The largest dimension that the service takes devices of.
pub const MAX_DIMENSION: usize = 64;
/// Frames that wait for the service, from all links together.
const WAITING: usize = 4_096;
/// Events that are stored at once, at the most.
const BATCH: usize = 1_024;
/// Frames in a row that mean nothing, after which a link is hostile.
pub(super) const MEANINGLESS: u32 = 16;
/// How often time is told.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// Told once a frame need not come again: what it brought is stored, or it was dropped.
pub type Receipt = Box<dyn FnOnce() + Send>;

enum Inbound {
    Connected(Link, mpsc::Sender<Vec<u8>>, Peer),
    Frame(Link, Vec<u8>, Option<Receipt>),
    Dropped(Dropped),
    Left(Link, u32),
    Gone(Link),
    Revoked(u32),
    Tick,
}

/// Who is at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Anybody. Who brings nothing but frames that mean nothing is hostile: nothing more is sent to it, which ends the link.
    Stranger,
    /// A line with nobody else behind it.
    Trusted,
    /// Somebody who reaches every device, whether it has spoken over this link or not.
    Broker,
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
}

/// The way from transports to the service.
#[derive(Clone)]
pub struct Door {
    sender: mpsc::Sender<Inbound>,
    links: Arc<AtomicU64>,
}

/// Starts the worker. It ends when the store or the rule fails, or with the last door. `observe` is shown the status
/// several times a second.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn start(
    service: Service,
    store: Box<dyn Store + Send>,
    observe: impl FnMut(Status) + Send + 'static,
) -> (Door, JoinHandle<Result<(), ServeError>>) {
    let waiting = if planted::is(Bug::UnboundedQueue) { WAITING << 10 } else { WAITING };
    let (sender, receiver) = mpsc::channel(waiting);
    let worker = tokio::task::spawn_blocking(move || work(service, store, receiver, observe));
    let ticks = sender.downgrade();
    tokio::spawn(async move {
        // Who tells the time is no door.
        while let Some(sender) = ticks.upgrade() {
            if sender.send(Inbound::Tick).await.is_err() {
                return;
            }
            drop(sender);
            tokio::time::sleep(TICK).await;
        }
    });
    (Door { sender, links: Arc::default() }, worker)
}

impl Door {
    /// A device's identity is revoked.
    pub async fn revoke(&self, agent: u32) {
        let _ = self.sender.send(Inbound::Revoked(agent)).await;
    }

    /// A new link, on which frames for it are sent through the sender, for as long as there is one. None if the worker
    /// is gone.
    pub async fn connect(&self, outgoing: mpsc::Sender<Vec<u8>>, peer: Peer) -> Option<Link> {
        let link = Link(self.links.fetch_add(1, Ordering::Relaxed));
        self.sender.send(Inbound::Connected(link, outgoing, peer)).await.ok().map(|()| link)
    }

    /// A frame came over a link. Waits while too many others do; false if the worker is gone.
    pub async fn frame(&self, link: Link, frame: Vec<u8>, receipt: Option<Receipt>) -> bool {
        self.sender.send(Inbound::Frame(link, frame, receipt)).await.is_ok()
    }

    /// A link is gone.
    pub async fn disconnect(&self, link: Link) {
        let _ = self.sender.send(Inbound::Gone(link)).await;
    }

    /// A frame was dropped on its way.
    pub async fn dropped(&self, reason: Dropped) {
        let _ = self.sender.send(Inbound::Dropped(reason)).await;
    }

    /// A device is gone from a link that others share.
    pub async fn left(&self, link: Link, agent: u32) {
        let _ = self.sender.send(Inbound::Left(link, agent)).await;
    }
}

/// A link as the worker knows it.
struct Known {
    outgoing: mpsc::Sender<Vec<u8>>,
    peer: Peer,
    /// Frames in a row that meant nothing.
    meaningless: u32,
}

fn work(
    mut service: Service,
    mut store: Box<dyn Store + Send>,
    mut receiver: mpsc::Receiver<Inbound>,
    mut observe: impl FnMut(Status),
) -> Result<(), ServeError> {
    let start = Instant::now();
    let mut links: BTreeMap<Link, Known> = BTreeMap::new();
    let (mut batch, mut receipts) = (Vec::new(), Vec::new());
    let mut shown = None;
    loop {
        if receiver.blocking_recv_many(&mut batch, BATCH) == 0 {
            return Ok(());
        }
        let now = start.elapsed().as_millis() as u64;
        for inbound in batch.drain(..) {
            match inbound {
                Inbound::Connected(link, outgoing, peer) => {
                    links.insert(link, Known { outgoing, peer, meaningless: 0 });
                    if peer == Peer::Broker {
                        service.reaches_all(link);
                    }
                }
                Inbound::Gone(link) => {
                    links.remove(&link);
                    service.disconnected(link);
                }
                Inbound::Frame(link, mut frame, receipt) => {
                    judge(&mut links, link, service.handle(link, &mut frame));
                    receipts.extend(receipt);
                }
                Inbound::Dropped(reason) => service.count(reason),
                Inbound::Left(link, agent) => service.left(link, agent),
                Inbound::Revoked(agent) => service.revoke(agent),
                Inbound::Tick => {}
            }
        }
        settle(&mut service, &mut *store, now)?;
        receipts.drain(..).for_each(|receipt: Receipt| receipt());
        while let Some(outgoing) = service.poll() {
            if let Some(link) = links.get(&outgoing.link) {
                let _ = link.outgoing.try_send(outgoing.frame);
            }
        }
        if shown.is_none_or(|shown| now >= shown + 200) {
            observe(service.status(now));
            shown = Some(now);
        }
    }
}

/// What is done after frames were handled and before any is sent: all is stored, time is told, and what follows from
/// that is stored, too. After an error nothing may be sent any more.
///
/// # Errors
/// The store's and the rule's.
pub fn settle(service: &mut Service, store: &mut dyn Store, now: u64) -> Result<(), ServeError> {
    commit(service, store)?;
    service.tick(now)?;
    Ok(commit(service, store)?)
}

/// Stores what is to be stored, and lets it count.
fn commit(service: &mut Service, store: &mut dyn Store) -> Result<(), StoreError> {
    if let Some(batch) = service.take_batch() {
        let stored = store.append(&batch.to_bytes());
        if !planted::is(Bug::ErrorIgnored) {
            stored?;
        }
        service.committed(batch);
    }
    Ok(())
}

/// Remembers what a frame was worth; a hostile link is forgotten.
fn judge(links: &mut BTreeMap<Link, Known>, link: Link, result: Result<(), Dropped>) {
    let Some(known) = links.get_mut(&link) else { return };
    known.meaningless = if result.is_ok() { 0 } else { known.meaningless.saturating_add(1) };
    if known.peer == Peer::Stranger && known.meaningless >= MEANINGLESS {
        links.remove(&link);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::learning::Learning;
    use crate::service::identity::Master;
    use crate::service::setup::{self, Enrolled, Registry, Timing};
    use crate::service::store::Memory;

    /// A store that takes no event before it is let go, and then none.
    struct Stuck {
        entered: Sender<()>,
        let_go: Receiver<()>,
    }

    impl Store for Stuck {
        fn append(&mut self, _: &[Vec<u8>]) -> Result<(), StoreError> {
            self.entered.send(()).expect("it is not asked again after it failed");
            let _ = self.let_go.recv();
            Err(std::io::Error::other("it was stuck").into())
        }

        fn replay(&self, _: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
            Ok(())
        }

        fn value(&self, _: &str) -> Result<Option<Vec<u8>>, StoreError> {
            Ok(None)
        }

        fn set_value(&mut self, _: &str, _: &[u8]) -> Result<(), StoreError> {
            Ok(())
        }
    }

    fn service() -> Service {
        let enrolled = |agent| Enrolled { agent, revoked: false, sealed: false, enrolled_at: None };
        let registry = Registry { run: 1, dimension: 2, devices: (1..=3).map(enrolled).collect() };
        let master = Master::from_bytes(&[1; 32]).unwrap();
        let timing = Timing { time_limit: 1_000, window: 0, unix_seconds: 0 };
        setup::start(&mut Memory::default(), &Learning::default(), &registry, &master, timing, 0).unwrap()
    }

    /// The worker ends with the last door, however often it was told the time.
    #[test]
    fn the_last_door_ends_the_worker() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
        let (shown, is_shown) = channel();
        let observe = move |status| drop(shown.send(status));
        let (door, worker) = runtime.block_on(async { start(service(), Box::<Memory>::default(), observe) });
        let other = door.clone();
        drop(door);
        // Twice: it goes on, a tick after the other.
        (0..2).for_each(|_| drop(is_shown.recv().unwrap()));
        drop(other);
        // A status may be under way; a worker that continues shows many, and must not be waited for.
        let stopped = is_shown.iter().take(10).count() < 10;
        let ended = stopped.then(|| runtime.block_on(worker));
        runtime.shutdown_background();
        assert!(ended.expect("the worker continues without a door").unwrap().is_ok());
    }

    /// While the store takes its time, frames wait up to a limit; when it fails, the worker ends.
    #[test]
    fn a_slow_store_holds_up_links_and_fills_no_memory() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
        let ((entered, has_entered), (go, let_go)) = (channel(), channel());
        let (door, worker) = runtime.block_on(async { start(service(), Box::new(Stuck { entered, let_go }), |_| {}) });
        // The first release is on its way into the store.
        has_entered.recv().unwrap();
        let frame = || door.sender.try_send(Inbound::Frame(Link(0), Vec::new(), None));
        let waiting = (0..2 * WAITING).take_while(|_| frame().is_ok()).count();
        assert!(waiting <= WAITING, "{waiting} frames wait");
        drop((go, has_entered));
        assert!(matches!(runtime.block_on(worker).unwrap(), Err(ServeError::Store(_))));
    }
}
