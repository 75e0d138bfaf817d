//! A device's connection to an MQTT broker.

use std::io;
use std::time::Duration;

use fedbandit::service::transport::mqtt::{Broker, Topics};
use rumqttc::{AsyncClient, Event, EventLoop, LastWill, Packet, PublishOptions, QoS};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Limit of frames that the broker has not acknowledged, and of received frames that the device has not read.
const IN_FLIGHT: u16 = 8;
/// Time limit for an answer of the broker.
const ANSWER: Duration = Duration::from_secs(10);

/// Connection of one device, with its own last will.
pub(super) struct MqttLink {
    client: AsyncClient,
    up: String,
    state: String,
    received: mpsc::Receiver<Vec<u8>>,
    polling: JoinHandle<()>,
}

impl MqttLink {
    pub(super) async fn open(broker: &Broker, fleet: u32, agent: u32) -> io::Result<Self> {
        let topics = Topics::new(fleet);
        let state = topics.state(agent);
        let mut options = broker.options(format!("fedbandit-{fleet}-{agent}"));
        options
            .set_last_will(LastWill::new(&state, "lost", QoS::AtLeastOnce, true, None))
            .set_outgoing_inflight_upper_limit(IN_FLIGHT);
        let (client, mut connection) = AsyncClient::builder(options).capacity(IN_FLIGHT.into()).build();
        // The first event is CONNACK.
        timeout(ANSWER, connection.poll()).await?.map_err(io::Error::other)?;
        // The queue has room for both.
        client.try_subscribe(topics.down(agent), QoS::AtLeastOnce).map_err(io::Error::other)?;
        client
            .try_publish(&state, "ready", PublishOptions::new(QoS::AtLeastOnce).retained())
            .map_err(io::Error::other)?;
        let (sender, received) = mpsc::channel(IN_FLIGHT.into());
        let polling = tokio::spawn(poll(connection, sender));
        Ok(Self { client, up: topics.up(agent), state, received, polling })
    }

    pub(super) async fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.client.publish(&self.up, frame, PublishOptions::new(QoS::AtLeastOnce)).await.map_err(io::Error::other)
    }

    pub(super) async fn receive(&mut self, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        match timeout(patience, self.received.recv()).await {
            Ok(Some(frame)) => Ok(Some(frame)),
            Ok(None) => Err(io::ErrorKind::ConnectionAborted.into()),
            Err(_) => Ok(None),
        }
    }

    /// Disconnects cleanly, so that the broker does not publish the last will.
    pub(super) async fn close(mut self) {
        let retained = PublishOptions::new(QoS::AtLeastOnce).retained();
        if let Ok(notice) = self.client.publish_tracked(&self.state, "disconnected", retained).await {
            let _ = timeout(ANSWER, notice.wait_async()).await;
        }
        let _ = self.client.disconnect().await;
        self.received.close();
        let _ = timeout(ANSWER, &mut self.polling).await;
    }
}

impl Drop for MqttLink {
    fn drop(&mut self) {
        self.polling.abort();
    }
}

/// Polls the connection until it ends. A frame that exceeds the device's queue is dropped; the controller sends it again.
async fn poll(mut connection: EventLoop, sender: mpsc::Sender<Vec<u8>>) {
    while let Ok(event) = connection.poll().await {
        if let Event::Incoming(Packet::Publish(publish)) = event {
            let _ = sender.try_send(publish.payload.into());
        }
    }
}
