//! How devices and the service reach each other: what `serve` listens on, and what `device` connects to.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

#[cfg(feature = "mqtt")]
use fedbandit::service::mqtt::{self, Broker};
#[cfg(feature = "serial")]
use fedbandit::service::serial::{self, Port};
use fedbandit::service::setup::Registry;
use fedbandit::service::stream::FRAME;
use fedbandit::service::tcp;
#[cfg(feature = "tls")]
use fedbandit::service::tls::{Acceptor, Connector, TlsError};
use fedbandit::service::worker::Door;
use fedbandit_core::wire::cobs;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{Failure, write};

/// What `serve` listens on.
pub(super) struct Transports {
    listen: SocketAddr,
    others: Vec<Transport>,
}

/// A transport beside TCP: the URL of its devices, and how it lets them in.
struct Transport {
    url: String,
    start: Box<Start>,
}

type Start = dyn FnOnce(Door, &Registry) -> io::Result<()>;

impl Transports {
    /// TCP alone.
    pub(super) fn tcp(listen: SocketAddr) -> Self {
        Self { listen, others: Vec::new() }
    }

    /// TCP, and what a configuration asks for beside; paths are meant from a directory.
    pub(super) fn new(listen: SocketAddr, keys: &toml::Table, base: &Path) -> Result<Self, Failure> {
        let mut others = Vec::new();
        let invalid = |key: &str, reason: &str| Failure::Config(format!("{key}: {reason}"));
        let text = |key: &str| match keys.get(key).map(|value| value.as_str()) {
            Some(None) => Err(invalid(key, "a text")),
            other => Ok(other.flatten()),
        };
        match (text("tls")?, text("certificate")?, text("key")?) {
            (None, None, None) => {}
            (Some(address), Some(certificate), Some(key)) => {
                others.push(with_tls(address, &base.join(certificate), &base.join(key))?);
            }
            _ => return Err(invalid("tls", "tls, certificate and key go together: an address and two PEM files")),
        }
        match (text("mqtt")?, text("mqtt-ca")?.map(|file| base.join(file))) {
            (None, None) => {}
            (Some(url), authority) => others.push(by_mqtt(url, authority.as_deref())?),
            (None, Some(_)) => return Err(invalid("mqtt-ca", "it needs mqtt, the broker that it is for")),
        }
        if let Some(ports) = keys.get("serial") {
            let ports = ports.as_array().ok_or_else(|| invalid("serial", "a list, as [\"/dev/ttyUSB0:115200\"]"))?;
            for port in ports {
                others.push(by_serial(port.as_str().unwrap_or_default())?);
            }
        }
        Ok(Self { listen, others })
    }

    /// Binds what is to be bound.
    pub(super) async fn bind(self) -> Result<Bound, Failure> {
        Ok(Bound { devices: bind(self.listen).await?, others: self.others })
    }
}

pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| Failure::from(error).about(address))
}

/// Transports that can start.
pub(super) struct Bound {
    devices: TcpListener,
    others: Vec<Transport>,
}

impl Bound {
    /// Says where devices connect.
    pub(super) fn tell(&self) -> Result<(), Failure> {
        write(&format!("devices: tcp://{}", self.devices.local_addr()?))?;
        self.others.iter().try_for_each(|transport| write(&format!("devices: {}", transport.url)))
    }

    /// Lets devices in, and returns where they connect by TCP.
    pub(super) fn start(self, door: &Door, registry: &Registry) -> io::Result<SocketAddr> {
        let address = self.devices.local_addr()?;
        tokio::spawn(tcp::serve(self.devices, door.clone()));
        self.others.into_iter().try_for_each(|transport| (transport.start)(door.clone(), registry))?;
        Ok(address)
    }
}

#[cfg(feature = "tls")]
fn with_tls(address: &str, certificate: &Path, key: &Path) -> Result<Transport, Failure> {
    let acceptor = Acceptor::new(certificate, key)?;
    let wrong = |_| Failure::Config("tls: an address and a port, as 0.0.0.0:7701".into());
    let address: SocketAddr = address.parse().map_err(wrong)?;
    let listener = std::net::TcpListener::bind(address).map_err(|error| Failure::from(error).about(address))?;
    listener.set_nonblocking(true)?;
    let url = format!("tls://{}", listener.local_addr()?);
    let start = move |door: Door, _: &Registry| {
        let listener = TcpListener::from_std(listener)?;
        tokio::spawn(tcp::serve_tls(listener, acceptor, door));
        Ok(())
    };
    Ok(Transport { url, start: Box::new(start) })
}

#[cfg(feature = "mqtt")]
fn by_mqtt(url: &str, authority: Option<&Path>) -> Result<Transport, Failure> {
    let connector = authority.map(Connector::new).transpose()?;
    let broker = Broker::new(url, connector).map_err(|reason| Failure::Config(format!("mqtt: {reason}")))?;
    let start = move |door: Door, registry: &Registry| {
        let agents: Vec<u32> = registry.devices.iter().map(|device| device.agent).collect();
        tokio::spawn(mqtt::serve(broker, registry.run, agents, door));
        Ok(())
    };
    Ok(Transport { url: without_password(url), start: Box::new(start) })
}

/// A URL for people.
pub(super) fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, address))) => format!("{scheme}://{address}"),
        _ => url.into(),
    }
}

#[cfg(feature = "serial")]
fn by_serial(name: &str) -> Result<Transport, Failure> {
    let port: Port = name.parse().map_err(|reason| Failure::Config(format!("serial: {reason}")))?;
    let start = move |door: Door, _: &Registry| {
        tokio::spawn(serial::serve(port, door));
        Ok(())
    };
    Ok(Transport { url: format!("serial://{name}"), start: Box::new(start) })
}

/// What a build leaves out is named, and how to have it.
mod left_out {
    #![allow(dead_code, reason = "what is left out depends on the build")]
    use super::{Failure, Path, Transport};

    pub(super) fn advice(what: &str, feature: &str) -> String {
        format!("this build has no {what}: build it with cargo build --release -p fedbandit --features {feature}")
    }

    pub(super) fn with_tls(_: &str, _: &Path, _: &Path) -> Result<Transport, Failure> {
        Err(Failure::Config(format!("tls: {}", advice("TLS", "tls"))))
    }

    pub(super) fn by_mqtt(_: &str, _: Option<&Path>) -> Result<Transport, Failure> {
        Err(Failure::Config(format!("mqtt: {}", advice("MQTT", "mqtt"))))
    }

    pub(super) fn by_serial(_: &str) -> Result<Transport, Failure> {
        Err(Failure::Config(format!("serial: {}", advice("serial ports", "serial"))))
    }
}
#[cfg(not(feature = "mqtt"))]
use left_out::by_mqtt;
#[cfg(not(feature = "serial"))]
use left_out::by_serial;
#[cfg(not(feature = "tls"))]
use left_out::with_tls;

#[cfg(feature = "tls")]
impl From<TlsError> for Failure {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::File(..) => Self::Io(error.to_string()),
            other => Self::Data(other.to_string()),
        }
    }
}

/// What a device connects to.
#[derive(Clone)]
pub(super) enum Target {
    Tcp(String),
    #[cfg(feature = "tls")]
    Tls(String, Connector),
    /// The URL, in which `{agent}` stands for the device's number, and what it trusts.
    #[cfg(feature = "mqtt")]
    Mqtt(String, Option<Connector>),
    #[cfg(feature = "serial")]
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
            #[cfg(feature = "tls")]
            "tls" => {
                let authority = authority.ok_or_else(|| usage("it needs --ca, what the controller is known by"))?;
                Ok(Self::Tls(address.into(), Connector::new(authority)?))
            }
            #[cfg(feature = "mqtt")]
            "mqtt" | "mqtts" => {
                let connector = authority.map(Connector::new).transpose()?;
                Broker::new(url, connector.clone()).map_err(usage)?;
                Ok(Self::Mqtt(url.into(), connector))
            }
            "serial" => Self::serial(address).map_err(|reason| usage(&reason)),
            #[cfg(not(feature = "tls"))]
            "tls" => Err(usage(&left_out::advice("TLS", "tls"))),
            #[cfg(not(feature = "mqtt"))]
            "mqtt" | "mqtts" => Err(usage(&left_out::advice("MQTT", "mqtt"))),
            _ => Err(usage(kinds)),
        }
    }

    /// A serial port, as PATH:BAUD.
    #[cfg_attr(not(feature = "serial"), expect(unused_variables))]
    pub(super) fn serial(port: &str) -> Result<Self, String> {
        #[cfg(feature = "serial")]
        return Ok(Self::Serial(port.parse()?));
        #[cfg(not(feature = "serial"))]
        Err(left_out::advice("serial ports", "serial"))
    }

    /// Whether more than one device of this process can be on it.
    pub(super) fn takes_many(&self) -> bool {
        #[cfg(feature = "serial")]
        return !matches!(self, Self::Serial(_));
        #[cfg(not(feature = "serial"))]
        true
    }

    /// A connection for a device.
    #[cfg_attr(not(feature = "mqtt"), expect(unused_variables))]
    pub(super) async fn open(&self, run: u32, agent: u32) -> io::Result<Line> {
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(Line::stream(stream))
            }
            #[cfg(feature = "tls")]
            Self::Tls(address, connector) => Ok(Line::stream(connector.connect(address).await?)),
            #[cfg(feature = "mqtt")]
            Self::Mqtt(url, connector) => {
                let url = url.replace("{agent}", &agent.to_string());
                let broker = Broker::new(&url, connector.clone()).map_err(io::Error::other)?;
                Ok(Line::Mqtt(super::mqtt_line::MqttLine::open(&broker, run, agent).await?))
            }
            #[cfg(feature = "serial")]
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
    #[cfg(feature = "mqtt")]
    Mqtt(super::mqtt_line::MqttLine),
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
            #[cfg(feature = "mqtt")]
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
            #[cfg(feature = "mqtt")]
            Self::Mqtt(line) => line.receive(patience).await,
        }
    }

    /// Ends it as one should.
    pub(super) async fn close(self) {
        match self {
            Self::Stream { mut writer, .. } => drop(writer.shutdown().await),
            #[cfg(feature = "mqtt")]
            Self::Mqtt(line) => line.close().await,
        }
    }
}
