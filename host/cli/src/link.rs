//! Links from a device to its controller or broker.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::Duration;

use fedbandit::service::transport::byte_stream::FRAME;
use fedbandit::service::transport::mqtt::Broker;
use fedbandit::service::transport::serial::Port;
use fedbandit::service::transport::tls::Connector;
use fedbandit_core::wire::cobs;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Failure;
use super::mqtt_link::MqttLink;

/// Address that a device connects to.
#[derive(Clone)]
pub(super) enum Target {
    Tcp(String),
    Tls(String, Connector),
    /// Broker URL, in which `{agent}` stands for the device's number.
    Mqtt(String, Option<Connector>),
    Serial(Port),
}

impl Target {
    /// Parses a URL. `ca` is the CA certificate that verifies the server.
    pub(super) fn new(url: &str, ca: Option<&Path>) -> Result<Self, Failure> {
        let usage = |reason: &str| Failure::Usage(format!("--connect {url}: {reason}"));
        let expected =
            "expected tcp://HOST:PORT, tls://HOST:PORT, mqtt://HOST:PORT, mqtts://HOST:PORT or serial://PATH:BAUD";
        let (scheme, address) = url.split_once("://").ok_or_else(|| usage(expected))?;
        if ca.is_some() && !matches!(scheme, "tls" | "mqtts") {
            return Err(usage("--ca requires tls:// or mqtts://"));
        }
        match scheme {
            "tcp" => Ok(Self::Tcp(address.into())),
            "tls" => {
                let ca = ca.ok_or_else(|| usage("tls:// requires --ca"))?;
                Ok(Self::Tls(address.into(), Connector::new(ca)?))
            }
            "mqtt" | "mqtts" => {
                let connector = ca.map(Connector::new).transpose()?;
                Broker::new(url, connector.clone()).map_err(usage)?;
                Ok(Self::Mqtt(url.into(), connector))
            }
            "serial" => Self::serial(address).map_err(|reason| usage(&reason)),
            _ => Err(usage(expected)),
        }
    }

    /// Parses a serial port, PATH:BAUD.
    pub(super) fn serial(port: &str) -> Result<Self, String> {
        Ok(Self::Serial(port.parse()?))
    }

    /// True if several devices can connect to it.
    pub(super) fn is_shared(&self) -> bool {
        !matches!(self, Self::Serial(_))
    }

    /// Connects a device.
    pub(super) async fn open(&self, fleet: u32, agent: u32) -> io::Result<DeviceLink> {
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(DeviceLink::stream(stream))
            }
            Self::Tls(address, connector) => Ok(DeviceLink::stream(connector.connect(address).await?)),
            Self::Mqtt(url, connector) => {
                let url = url.replace("{agent}", &agent.to_string());
                let broker = Broker::new(&url, connector.clone()).map_err(io::Error::other)?;
                Ok(DeviceLink::Mqtt(MqttLink::open(&broker, fleet, agent).await?))
            }
            Self::Serial(port) => Ok(DeviceLink::stream(port.open()?)),
        }
    }
}

/// A connection that carries frames.
pub(super) enum DeviceLink {
    Stream {
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        decoder: Box<cobs::Decoder<FRAME>>,
        received: VecDeque<Vec<u8>>,
    },
    Mqtt(MqttLink),
}

impl DeviceLink {
    pub(super) fn stream(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let decoder = Box::new(cobs::Decoder::new());
        Self::Stream { reader: Box::new(reader), writer: Box::new(writer), decoder, received: VecDeque::new() }
    }

    /// Sends a frame.
    pub(super) async fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        match self {
            Self::Stream { writer, .. } => {
                let bytes: Vec<u8> = cobs::encode(frame).collect();
                writer.write_all(&bytes).await?;
                writer.flush().await
            }
            Self::Mqtt(link) => link.send(frame).await,
        }
    }

    /// Receives the next frame, or none within a time limit.
    pub(super) async fn receive(&mut self, limit: Duration) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Stream { reader, decoder, received, .. } => {
                if received.is_empty() {
                    let mut buffer = [0; 1024];
                    let Ok(read) = timeout(limit, reader.read(&mut buffer)).await else { return Ok(None) };
                    let read = read?;
                    if read == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    received.extend(
                        buffer[..read].iter().filter_map(|byte| decoder.push(*byte).map(|frame| frame.to_vec())),
                    );
                }
                Ok(received.pop_front())
            }
            Self::Mqtt(link) => link.receive(limit).await,
        }
    }

    /// Closes the link gracefully.
    pub(super) async fn close(self) {
        match self {
            Self::Stream { mut writer, .. } => drop(writer.shutdown().await),
            Self::Mqtt(link) => link.close().await,
        }
    }
}

/// Returns a URL without user and password, for display.
pub(super) fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, address))) => format!("{scheme}://{address}"),
        _ => url.into(),
    }
}
