//! Devices behind an MQTT broker. The topics are in `docs/wire.md`; a message is one frame.
//!
//! The broker is believed nothing: frames carry their own tags, and what a device trusts is the acknowledgement of the
//! service. What the broker's own acknowledgements are good for is that it keeps what comes while the service is away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fedbandit_core::wire::{claimed_address, is_model};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Filter, Packet, Publish};
use rumqttc::v5::{AsyncClient, ClientError, Event, MqttOptions};
use rumqttc::{TlsConfiguration, Transport};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::super::state_machine::{Dropped, Link};
use super::super::worker::{Peer, Receipt, WorkerHandle};
use super::backoff::Backoff;
use super::byte_stream::{Allowance, FRAME};
use super::outage::Outage;
use super::tls::Connector;

/// Frames that the broker may send before the first of them is acknowledged to it.
const UNACKNOWLEDGED: u16 = 1_024;
/// Models that the broker has not acknowledged, at the most.
const IN_FLIGHT: u16 = 256;
/// For how many seconds the broker keeps frames for a service that is away.
const ABSENCE: u32 = 24 * 60 * 60;
/// A topic and an MQTT header beside a frame.
const ENVELOPE: u32 = 256;

/// Where a broker is.
#[derive(Clone)]
pub struct Broker {
    host: String,
    port: u16,
    tls: Option<Connector>,
    credentials: Option<(String, String)>,
}

impl Broker {
    /// From `mqtt://[USER:PASSWORD@]HOST[:PORT]`, or `mqtts://…` with what it trusts.
    ///
    /// # Errors
    /// A sentence about what is wrong.
    pub fn new(url: &str, connector: Option<Connector>) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or("a broker is mqtt://HOST:PORT or mqtts://HOST:PORT")?;
        let (tls, port) = match (scheme, connector) {
            ("mqtt", None) => (None, 1883),
            ("mqtt", Some(_)) => return Err("a certificate authority is for mqtts:// only"),
            ("mqtts", Some(connector)) => (Some(connector), 8883),
            ("mqtts", None) => return Err("mqtts:// needs the certificate authority that the broker is known by"),
            _ => return Err("a broker is mqtt://HOST:PORT or mqtts://HOST:PORT"),
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
            // The colons of an address in brackets are its own.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| "the broker's port is no number")?)
            }
            _ => (address, port),
        };
        // Without brackets rumqttc connects to an IPv6 address as well, and finds it in a certificate.
        let host = host.trim_matches(['[', ']']);
        if host.is_empty() {
            return Err("the broker's host is missing");
        }
        Ok(Self { host: host.into(), port, tls, credentials })
    }

    /// The options of a client. The broker is told to hold back messages that are longer than any frame.
    pub fn options(&self, id: impl Into<String>) -> MqttOptions {
        let mut options = MqttOptions::new(id, &self.host, self.port);
        options.set_keep_alive(Duration::from_secs(30)).set_max_packet_size(Some(FRAME as u32 + ENVELOPE));
        if let Some(connector) = &self.tls {
            options.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(connector.config())));
        }
        if let Some((user, password)) = &self.credentials {
            options.set_credentials(user, password);
        }
        options
    }
}

/// The topics of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topics {
    prefix: String,
}

impl Topics {
    /// Those of a run's number.
    pub fn new(run: u32) -> Self {
        Self { prefix: format!("fedbandit/v1/{run}") }
    }

    /// What a device says.
    pub fn up(&self, agent: u32) -> String {
        format!("{}/up/{agent}", self.prefix)
    }

    /// What a device is told; its last model is retained.
    pub fn down(&self, agent: u32) -> String {
        format!("{}/down/{agent}", self.prefix)
    }

    /// Whether a device is there: `ready`, `disconnected` or, by its last will, `lost`. Retained.
    pub fn state(&self, agent: u32) -> String {
        format!("{}/state/{agent}", self.prefix)
    }

    /// The last two parts of a topic of this run: `up`, `down` or `state`, and the agent.
    pub fn parts<'a>(&self, topic: &'a [u8]) -> Option<(&'a str, u32)> {
        let rest = str::from_utf8(topic).ok()?.strip_prefix(&self.prefix)?.strip_prefix('/')?;
        let (kind, agent) = rest.split_once('/')?;
        Some((kind, agent.parse().ok()?))
    }
}

/// What the broker is asked for, beside frames for devices.
enum Order {
    Subscribe,
    /// An acknowledgement, on the link over which the message came, and its place among those that there may be.
    Acknowledge(Link, Box<Publish>, OwnedSemaphorePermit),
}

/// Serves the enrolled devices through a broker for as long as the process lives, whatever happens to the broker.
pub async fn serve(broker: Broker, run: u32, agents: impl IntoIterator<Item = u32>, handle: WorkerHandle) {
    let mut allowances: BTreeMap<u32, Allowance> = agents.into_iter().map(|agent| (agent, Allowance::new())).collect();
    let topics = Topics::new(run);
    let mut options = broker.options(format!("fedbandit-{run}"));
    options
        .set_clean_start(false)
        .set_session_expiry_interval(Some(ABSENCE))
        .set_receive_maximum(Some(UNACKNOWLEDGED))
        .set_outgoing_inflight_upper_limit(IN_FLIGHT)
        .set_manual_acks(true);
    let (client, mut connection) = AsyncClient::new(options, IN_FLIGHT.into());
    // A model for each device, and acknowledgements beside.
    let (sender, outgoing) = mpsc::channel(2 * allowances.len() + usize::from(UNACKNOWLEDGED));
    let (orders, ordered) = mpsc::unbounded_channel();
    // What the broker may send unacknowledged, and as much again of a connection before.
    let places = Arc::new(Semaphore::new(2 * usize::from(UNACKNOWLEDGED)));
    let current = Arc::new(AtomicU64::new(u64::MAX));
    tokio::spawn(send(client, topics.clone(), outgoing, ordered, Arc::clone(&current)));
    let mut link = None;
    let (mut backoff, outage) = (Backoff::default(), Outage::new(format!("mqtt {}:{}", broker.host, broker.port)));
    loop {
        let goes_on = match connection.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(_))) => {
                backoff.reset();
                outage.connected();
                // First of all: who sees a model can be sure to be heard.
                let _ = orders.send(Order::Subscribe);
                link = handle.connect(sender.clone(), Peer::Broker).await;
                let Some(link) = link else { return };
                current.store(link.0, Ordering::Relaxed);
                true
            }
            Ok(Event::Incoming(Packet::Publish(mut publish))) => {
                let Some(link) = link else { continue };
                let payload = std::mem::take(&mut publish.payload);
                let topic = topics.parts(&publish.topic).map(|(kind, agent)| (kind == "up", agent));
                publish.topic = Default::default();
                let receipt = receipt(publish, link, &orders, &places);
                let goes_on = receipt.is_some();
                if !goes_on {
                    outage.failed("the broker sends more than it was told that it may");
                }
                match (topic, receipt) {
                    (Some((true, agent)), Some(receipt)) => match admit(&mut allowances, agent, &payload) {
                        Ok(()) => drop(handle.deliver(link, payload.into(), Some(receipt)).await),
                        Err(reason) => {
                            receipt();
                            handle.count_dropped(reason).await;
                        }
                    },
                    (Some((false, agent)), Some(receipt)) => {
                        receipt();
                        if payload != "ready" {
                            handle.detach(link, agent).await;
                        }
                    }
                    (None, Some(receipt)) => receipt(),
                    (_, None) => {}
                }
                goes_on
            }
            Ok(_) => true,
            Err(error) => {
                outage.failed(error);
                false
            }
        };
        if !goes_on {
            connection.clean();
            // Over the next connection everything is sent anew.
            connection.pending.clear();
            if let Some(link) = link.take() {
                handle.disconnect(link).await;
            }
            backoff.wait().await;
        }
    }
}

/// What acknowledges a message to the broker; none if the broker sends more than it was told that it may. A message of QoS 0
/// wants no acknowledgement, and so takes no place.
fn receipt(
    publish: Publish,
    link: Link,
    orders: &mpsc::UnboundedSender<Order>,
    places: &Arc<Semaphore>,
) -> Option<Receipt> {
    if publish.qos == QoS::AtMostOnce {
        return Some(Box::new(|| ()));
    }
    let (place, orders) = (Arc::clone(places).try_acquire_owned().ok()?, orders.clone());
    Some(Box::new(move || drop(orders.send(Order::Acknowledge(link, Box::new(publish), place)))))
}

/// Whether a message may cost the service a look: it is in the name that its topic says, and not one of too many.
fn admit(allowances: &mut BTreeMap<u32, Allowance>, agent: u32, frame: &[u8]) -> Result<(), Dropped> {
    let (_, claimed) = claimed_address(frame).filter(|_| frame.len() <= FRAME).ok_or(Dropped::Length)?;
    let allowance = allowances.get_mut(&agent).filter(|_| claimed == agent).ok_or(Dropped::Unknown)?;
    if allowance.take().is_zero() {
        return Ok(());
    }
    // To wait would hold up everybody.
    allowance.give_back();
    Err(Dropped::TooMany)
}

/// Sends what there is to send. What waits when a connection breaks is left out: models are sent anew over the next one, and
/// devices ask for the rest.
async fn send(
    client: AsyncClient,
    topics: Topics,
    mut outgoing: mpsc::Receiver<Vec<u8>>,
    mut ordered: mpsc::UnboundedReceiver<Order>,
    current: Arc<AtomicU64>,
) {
    loop {
        let sent = tokio::select! {
            biased;
            Some(order) = ordered.recv() => match order {
                Order::Subscribe => subscribe(&client, &topics).await,
                // The number of a message means another one in another connection.
                Order::Acknowledge(link, ..) if link.0 != current.load(Ordering::Relaxed) => Ok(()),
                Order::Acknowledge(_, publish, place) => {
                    let acknowledged = client.ack(&publish).await;
                    drop(place);
                    acknowledged
                }
            },
            Some(frame) = outgoing.recv() => publish(&client, &topics, frame).await,
            else => return,
        };
        if sent.is_err() {
            return;
        }
    }
}

async fn subscribe(client: &AsyncClient, topics: &Topics) -> Result<(), ClientError> {
    let filter = |kind: &str| Filter::new(format!("{}/{kind}/+", topics.prefix), QoS::AtLeastOnce);
    client.subscribe_many(["up", "state"].map(filter)).await
}

/// Models are retained, so that a device that comes later finds its own. All else may get lost: devices ask until they have an answer.
async fn publish(client: &AsyncClient, topics: &Topics, frame: Vec<u8>) -> Result<(), ClientError> {
    let Some((_, agent)) = claimed_address(&frame) else { return Ok(()) };
    let model = is_model(&frame);
    let quality = if model { QoS::AtLeastOnce } else { QoS::AtMostOnce };
    client.publish(topics.down(agent), quality, model, frame).await
}

#[cfg(test)]
mod tests {
    use super::Broker;

    #[test]
    fn addresses_of_brokers() {
        for (url, host, port) in [
            ("mqtt://host", "host", 1883),
            ("mqtt://host/", "host", 1883),
            ("mqtt://host:1/", "host", 1),
            ("mqtt://[::1]", "::1", 1883),
            ("mqtt://[::1]:1", "::1", 1),
            ("mqtt://user:p@ss:word@[fe80::2]/", "fe80::2", 1883),
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
