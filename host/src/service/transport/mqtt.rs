//! Devices behind an MQTT 5 broker. The topics are in `docs/wire.md`; a message is one frame.
//!
//! The broker is not trusted: frames carry their own tags, and a device relies on the acknowledgement of the service. A
//! message is acknowledged to the broker once its summary is stored, so the broker keeps messages while the service is away.

use std::collections::BTreeMap;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;

use fedbandit_core::wire::{is_model, unverified_address};
use rumqttc::{
    AckMode, AsyncClient, ClientError, Event, EventLoop, ManualAck, MqttOptions, Packet, PersistedAckMode,
    PersistedSession, PublishOptions, QoS, SessionStore, SessionStoreError, SessionStoreKey, SubscribeFilter,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::super::state_machine::{Dropped, Link};
use super::super::worker::{Receipt, Transport, WorkerHandle};
use super::backoff::Backoff;
use super::byte_stream::{Allowance, FRAME};
use super::outage::Outage;
use super::tls::Connector;

/// Maximum number of messages that the broker may send unacknowledged.
const UNACKNOWLEDGED: u16 = 1_024;
/// Maximum number of models that the broker has not acknowledged.
const IN_FLIGHT: u16 = 256;
/// Seconds for which the broker keeps messages while the service is away.
const SESSION_EXPIRY: u32 = 24 * 60 * 60;
/// Upper bound on the length of a topic and MQTT header.
const ENVELOPE: u32 = 256;

/// Address of a broker, with TLS settings and credentials.
#[derive(Clone)]
pub struct Broker {
    host: String,
    port: u16,
    tls: Option<Connector>,
    credentials: Option<(String, String)>,
}

impl Broker {
    /// Parses `mqtt://[USER:PASSWORD@]HOST[:PORT]`, or `mqtts://…` with a connector that verifies the broker.
    ///
    /// # Errors
    /// Describes the invalid part of the URL.
    pub fn new(url: &str, connector: Option<Connector>) -> Result<Self, &'static str> {
        let invalid = "invalid broker URL; expected mqtt://HOST:PORT or mqtts://HOST:PORT";
        let (scheme, rest) = url.split_once("://").ok_or(invalid)?;
        let (tls, port) = match (scheme, connector) {
            ("mqtt", None) => (None, 1883),
            ("mqtt", Some(_)) => return Err("a CA certificate requires mqtts://"),
            ("mqtts", Some(connector)) => (Some(connector), 8883),
            ("mqtts", None) => return Err("mqtts:// requires a CA certificate"),
            _ => return Err(invalid),
        };
        let (credentials, address) = match rest.rsplit_once('@') {
            Some((credentials, address)) => {
                let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
                (Some((user.into(), password.into())), address)
            }
            None => (None, rest),
        };
        let address = address.trim_end_matches('/');
        let (host, port) = match address.rsplit_once(':') {
            // Colons inside brackets belong to an IPv6 address.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| "the broker's port is not a number from 0 to 65535")?)
            }
            _ => (address, port),
        };
        let host = host.trim_matches(['[', ']']);
        if host.is_empty() {
            return Err("the broker's host is missing");
        }
        let host = if host.contains(':') { format!("[{host}]") } else { host.into() };
        Ok(Self { host, port, tls, credentials })
    }

    /// Returns the options of a client. The broker must not send messages longer than any frame.
    pub fn options(&self, id: impl Into<String>) -> MqttOptions {
        let mut options = MqttOptions::new(id, (&*self.host, self.port));
        options.set_keep_alive(30).set_max_packet_size(Some(FRAME as u32 + ENVELOPE));
        if let Some(connector) = self.tls.clone() {
            options.set_socket_connector(move |address, _| {
                let connector = connector.clone();
                async move { connector.connect(&address).await }
            });
        }
        if let Some((user, password)) = &self.credentials {
            options.set_credentials(user, password.clone());
        }
        options
    }
}

/// MQTT topics of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topics {
    prefix: String,
}

impl Topics {
    /// Returns the topics of a fleet.
    pub fn new(fleet: u32) -> Self {
        Self { prefix: format!("fedbandit/v2/{fleet}") }
    }

    /// Returns the topic for frames from a device.
    pub fn up(&self, agent: u32) -> String {
        format!("{}/up/{agent}", self.prefix)
    }

    /// Returns the topic for frames to a device; its last model is retained.
    pub fn down(&self, agent: u32) -> String {
        format!("{}/down/{agent}", self.prefix)
    }

    /// Returns the topic of a device's state: `ready`, `disconnected` or, by its last will, `lost`. Retained.
    pub fn state(&self, agent: u32) -> String {
        format!("{}/state/{agent}", self.prefix)
    }

    /// Parses a topic of this fleet into `up`, `down` or `state`, and the agent.
    pub fn parts<'a>(&self, topic: &'a [u8]) -> Option<(&'a str, u32)> {
        let rest = str::from_utf8(topic).ok()?.strip_prefix(&self.prefix)?.strip_prefix('/')?;
        let (kind, agent) = rest.split_once('/')?;
        Some((kind, agent.parse().ok()?))
    }
}

/// Serves the enrolled devices through a broker, and reconnects for as long as the worker lives.
pub async fn serve(broker: Broker, fleet: u32, handle: WorkerHandle) {
    let mut options = broker.options(format!("fedbandit-{fleet}"));
    options
        .set_clean_start(false)
        .set_session_expiry_interval(Some(SESSION_EXPIRY))
        .set_session_store(EmptySession)
        .set_receive_maximum(Some(UNACKNOWLEDGED))
        .set_outgoing_inflight_upper_limit(IN_FLIGHT)
        .set_ack_mode(AckMode::Manual);
    let mut bridge = Bridge {
        topics: Topics::new(fleet),
        allowances: BTreeMap::new(),
        places: Arc::new(Semaphore::new(2 * usize::from(UNACKNOWLEDGED))),
        handle,
    };
    let (mut backoff, outage) = (Backoff::default(), Outage::new(format!("mqtt {}:{}", broker.host, broker.port)));
    loop {
        // Each connection has its own client. Nothing is sent again: the worker sends all models over a new link.
        let (client, mut connection) = AsyncClient::builder(options.clone()).capacity(IN_FLIGHT.into()).build();
        match connection.poll().await {
            Ok(_) => {
                backoff.reset();
                outage.connected();
                match bridge.run(&client, connection).await {
                    Some(failure) => outage.failed(failure),
                    None => return,
                }
            }
            Err(error) => outage.failed(error),
        }
        backoff.wait().await;
    }
}

/// Acknowledgement to the broker, with the permit of its message.
type Acknowledgement = (ManualAck, OwnedSemaphorePermit);

/// Link between a broker and the worker.
struct Bridge {
    topics: Topics,
    /// Allowances of the devices that have sent a frame.
    allowances: BTreeMap<u32, Allowance>,
    /// Permits for unacknowledged messages of a connection, and for those of the previous one that the worker still holds.
    places: Arc<Semaphore>,
    handle: WorkerHandle,
}

impl Bridge {
    /// Passes messages in both directions. Returns the reason why the connection ended, or `None` if the worker has stopped.
    async fn run(&mut self, client: &AsyncClient, mut connection: EventLoop) -> Option<String> {
        // The session is resumed by now. Otherwise each request would copy all messages in flight for the session store.
        connection.options.set_clean_start(true);
        // Before any model: the service hears every device that has one.
        let filter = |kind: &str| SubscribeFilter::new(format!("{}/{kind}/+", self.topics.prefix), QoS::AtLeastOnce);
        client.try_subscribe_many(["up", "state"].map(filter)).expect("an empty queue has room");
        // A model for each device, and acknowledgements.
        let (sender, frames) = mpsc::channel(2 * self.handle.enrolled() + usize::from(UNACKNOWLEDGED));
        let (done, acknowledgements) = mpsc::unbounded_channel();
        let link = self.handle.connect(sender, Transport::MQTT).await?;
        let topics = self.topics.clone();
        let failure = tokio::select! {
            failure = self.receive(client, connection, link, &done) => failure,
            Err(error) = acknowledge(client, acknowledgements) => error.to_string(),
            Err(error) = publish(client, &topics, frames) => error.to_string(),
        };
        self.handle.disconnect(link).await;
        Some(failure)
    }

    /// Passes messages to the worker until the connection ends, and returns the reason.
    async fn receive(
        &mut self,
        client: &AsyncClient,
        mut connection: EventLoop,
        link: Link,
        done: &mpsc::UnboundedSender<Acknowledgement>,
    ) -> String {
        loop {
            let publish = match connection.poll().await {
                Ok(Event::Incoming(Packet::Publish(publish))) => publish,
                Ok(_) => continue,
                Err(error) => return error.to_string(),
            };
            let receipt: Receipt = match client.prepare_ack(&publish) {
                Some(ack) => {
                    let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                        return format!("the broker exceeds the receive maximum of {UNACKNOWLEDGED} messages");
                    };
                    let done = done.clone();
                    Box::new(move || drop(done.send((ack, place))))
                }
                None => Box::new(|| ()),
            };
            match self.topics.parts(&publish.topic) {
                Some(("up", agent)) => match self.admit(agent, &publish.payload) {
                    Ok(()) => drop(self.handle.deliver(link, publish.payload.into(), Some(receipt)).await),
                    Err(reason) => {
                        receipt();
                        let sender = Some(agent).filter(|_| reason == Dropped::TooMany);
                        self.handle.count_dropped(sender, reason).await;
                    }
                },
                Some(("state", agent)) => {
                    receipt();
                    if publish.payload != "ready" {
                        self.handle.detach(link, agent).await;
                    }
                }
                _ => receipt(),
            }
        }
    }

    /// Checks the length, the sender and the rate of a frame before the worker sees it.
    fn admit(&mut self, agent: u32, frame: &[u8]) -> Result<(), Dropped> {
        let (_, claimed) = unverified_address(frame).filter(|_| frame.len() <= FRAME).ok_or(Dropped::Length)?;
        if claimed != agent || !self.handle.is_enrolled(agent) {
            return Err(Dropped::Unknown);
        }
        let allowance = self.allowances.entry(agent).or_insert_with(Allowance::new);
        if allowance.take().is_zero() {
            return Ok(());
        }
        // Waiting would delay all other devices.
        allowance.give_back();
        Err(Dropped::TooMany)
    }
}

/// Passes acknowledgements to the broker. A task of its own, since [`publish`] waits for the broker's acknowledgements.
async fn acknowledge(
    client: &AsyncClient,
    mut acknowledgements: mpsc::UnboundedReceiver<Acknowledgement>,
) -> Result<(), ClientError> {
    while let Some((ack, _place)) = acknowledgements.recv().await {
        client.manual_ack(ack).await?;
    }
    Ok(())
}

/// Publishes frames. Models are retained for devices that connect later. Any other frame may get lost: devices ask again.
async fn publish(
    client: &AsyncClient,
    topics: &Topics,
    mut frames: mpsc::Receiver<Vec<u8>>,
) -> Result<(), ClientError> {
    while let Some(frame) = frames.recv().await {
        let Some((_, agent)) = unverified_address(&frame) else { continue };
        let model = is_model(&frame);
        let qos = if model { QoS::AtLeastOnce } else { QoS::AtMostOnce };
        client.publish(topics.down(agent), frame, PublishOptions::new(qos).retain(model)).await?;
    }
    Ok(())
}

/// Session store that always loads an empty session.
///
/// rumqttc refuses to resume a session that only the broker has kept, as after a restart of the service. At QoS 1 the empty
/// session is correct: the broker delivers unacknowledged messages again, and the worker sends all models again.
#[derive(Debug)]
struct EmptySession;

type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, SessionStoreError>> + Send + 'a>>;

impl SessionStore for EmptySession {
    fn load<'a>(&'a self, key: &'a SessionStoreKey) -> StoreFuture<'a, Option<PersistedSession>> {
        Box::pin(ready(Ok(Some(PersistedSession {
            format_version: 1,
            client_id: key.client_id().into(),
            clean_start: false,
            session_expiry_interval: Some(SESSION_EXPIRY),
            outgoing_inflight_upper_limit: Some(IN_FLIGHT),
            ack_mode: PersistedAckMode::Manual,
            last_pkid: 0,
            last_puback: 0,
            replay: Vec::new(),
            incoming_qos2: Vec::new(),
        }))))
    }

    fn save<'a>(&'a self, _: &'a SessionStoreKey, _: &'a PersistedSession) -> StoreFuture<'a, ()> {
        Box::pin(ready(Ok(())))
    }

    fn clear<'a>(&'a self, _: &'a SessionStoreKey) -> StoreFuture<'a, ()> {
        Box::pin(ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::Broker;

    #[test]
    fn broker_urls_are_parsed_or_rejected() {
        for (url, host, port) in [
            ("mqtt://host", "host", 1883),
            ("mqtt://host/", "host", 1883),
            ("mqtt://host:1/", "host", 1),
            ("mqtt://[::1]", "[::1]", 1883),
            ("mqtt://[::1]:1", "[::1]", 1),
            ("mqtt://user:p@ss:word@[fe80::2]/", "[fe80::2]", 1883),
        ] {
            let broker = Broker::new(url, None).unwrap_or_else(|reason| panic!("{url}: {reason}"));
            assert_eq!((&*broker.host, broker.port), (host, port), "{url}");
        }
        for url in
            ["mqtt://", "mqtt:///", "mqtt://:1", "mqtt://host:", "mqtt://host:65536", "mqtt://[::1]:x", "mqtt://[]:1"]
        {
            assert!(Broker::new(url, None).is_err(), "{url}");
        }
    }
}
