//! What devices connect to, and the frames on the way.

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

/// What a device connects to.
#[derive(Clone)]
pub(super) enum Target {
    Tcp(String),
    Tls(String, Connector),
    /// The URL, in which `{agent}` stands for the device's number, and what it trusts.
    Mqtt(String, Option<Connector>),
    Serial(Port),
}

impl Target {
    /// From a URL and the certificate authority that its other end is known by.
    pub(super) fn new(url: &str, authority: Option<&Path>) -> Result<Self, Failure> {
        let usage = |reason: &str| Failure::Usage(format!("--connect {url}: {reason}"));
        let kinds = "it is tcp://HOST:PORT, tls://HOST:PORT, mqtt://HOST:PORT, mqtts://HOST:PORT or serial://PATH:BAUD";
        let (scheme, address) = url.split_once("://").ok_or_else(|| usage(kinds))?;
        if authority.is_some() && !matches!(scheme, "tls" | "mqtts") {
            return Err(usage("--ca is for tls:// and mqtts://"));
        }
        match scheme {
            "tcp" => Ok(Self::Tcp(address.into())),
            "tls" => {
                let authority = authority.ok_or_else(|| usage("it needs --ca, what the controller is known by"))?;
                Ok(Self::Tls(address.into(), Connector::new(authority)?))
            }
            "mqtt" | "mqtts" => {
                let connector = authority.map(Connector::new).transpose()?;
                Broker::new(url, connector.clone()).map_err(usage)?;
                Ok(Self::Mqtt(url.into(), connector))
            }
            "serial" => Self::serial(address).map_err(|reason| usage(&reason)),
            _ => Err(usage(kinds)),
        }
    }

    /// A serial port, as PATH:BAUD.
    pub(super) fn serial(port: &str) -> Result<Self, String> {
        Ok(Self::Serial(port.parse()?))
    }

    /// Whether more than one device of this process can be on it.
    pub(super) fn takes_many(&self) -> bool {
        !matches!(self, Self::Serial(_))
    }

    /// A connection for a device.
    pub(super) async fn open(&self, run: u32, agent: u32) -> io::Result<Line> {
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(Line::stream(stream))
            }
            Self::Tls(address, connector) => Ok(Line::stream(connector.connect(address).await?)),
            Self::Mqtt(url, connector) => {
                let url = url.replace("{agent}", &agent.to_string());
                let broker = Broker::new(&url, connector.clone()).map_err(io::Error::other)?;
                Ok(Line::Mqtt(super::mqtt_link::MqttLine::open(&broker, run, agent).await?))
            }
            Self::Serial(port) => Ok(Line::stream(port.open()?)),
        }
    }
}

/// A connection that carries frames.
pub(super) enum Line {
    Stream {
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        decoder: Box<cobs::Decoder<FRAME>>,
        received: VecDeque<Vec<u8>>,
    },
    Mqtt(super::mqtt_link::MqttLine),
}

impl Line {
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
            Self::Mqtt(line) => line.send(frame).await,
        }
    }

    /// The next frame, or none within some time.
    pub(super) async fn receive(&mut self, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Stream { reader, decoder, received, .. } => {
                if received.is_empty() {
                    let mut buffer = [0; 1024];
                    let Ok(read) = timeout(patience, reader.read(&mut buffer)).await else { return Ok(None) };
                    let read = read?;
                    if read == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    received.extend(buffer[..read].iter().filter_map(|byte| decoder.push(*byte).map(<[u8]>::to_vec)));
                }
                Ok(received.pop_front())
            }
            Self::Mqtt(line) => line.receive(patience).await,
        }
    }

    /// Ends it as one should.
    pub(super) async fn close(self) {
        match self {
            Self::Stream { mut writer, .. } => drop(writer.shutdown().await),
            Self::Mqtt(line) => line.close().await,
        }
    }
}

/// A URL for people.
pub(super) fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, address))) => format!("{scheme}://{address}"),
        _ => url.into(),
    }
}
