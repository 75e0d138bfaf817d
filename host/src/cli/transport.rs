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
use fedbandit::service::tcp;
#[cfg(feature = "tls")]
use fedbandit::service::tls::{Acceptor, Connector, TlsError};
use fedbandit::service::worker::{Door, MAX_DIMENSION};
use fedbandit_core::wire::{cobs, max_sealed_frame_len};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{Failure, write};

/// The longest frame.
pub(super) const FRAME: usize = max_sealed_frame_len(MAX_DIMENSION);

#[cfg(not(all(feature = "mqtt", feature = "serial")))]
fn not_built(what: &str, feature: &str) -> String {
    format!("this build has no {what}: build it with cargo build --release -p fedbandit --features {feature}")
}

/// The keys of `serve` about transports beside TCP.
pub(super) const KEYS: [&str; 6] = ["tls", "certificate", "key", "mqtt", "mqtt-ca", "serial"];

/// What `serve` listens on.
pub(super) struct Transports {
    listen: SocketAddr,
    #[cfg(feature = "tls")]
    tls: Option<(SocketAddr, Acceptor)>,
    #[cfg(feature = "mqtt")]
    mqtt: Option<(String, Broker)>,
    #[cfg(feature = "serial")]
    serial: Vec<(String, Port)>,
}

impl Transports {
    /// TCP alone.
    pub(super) fn tcp(listen: SocketAddr) -> Self {
        Self {
            listen,
            #[cfg(feature = "tls")]
            tls: None,
            #[cfg(feature = "mqtt")]
            mqtt: None,
            #[cfg(feature = "serial")]
            serial: Vec::new(),
        }
    }

    /// TCP, and what a configuration asks for beside; paths are meant from a directory.
    pub(super) fn new(listen: SocketAddr, keys: &toml::Table, base: &Path) -> Result<Self, Failure> {
        #[cfg_attr(not(any(feature = "mqtt", feature = "serial")), expect(unused_mut))]
        let mut transports = Self::tcp(listen);
        let invalid = |key: &str, reason: &str| Failure::Config(format!("{key}: {reason}"));
        let text = |key: &str| match keys.get(key).map(|value| value.as_str()) {
            Some(None) => Err(invalid(key, "a text")),
            other => Ok(other.flatten()),
        };
        let needs = |key: &str, other: &str| invalid(key, &format!("it needs {other}"));
        match (text("tls")?, text("certificate")?, text("key")?) {
            (None, None, None) => {}
            (None, ..) => return Err(needs("certificate", "tls, the address that it is for")),
            (_, None, _) | (_, _, None) => return Err(needs("tls", "certificate and key, two PEM files")),
            #[cfg(feature = "tls")]
            (Some(address), Some(certificate), Some(key)) => {
                let address = address.parse().map_err(|_| invalid("tls", "an address and a port, as 0.0.0.0:7701"))?;
                transports.tls = Some((address, Acceptor::new(&base.join(certificate), &base.join(key))?));
            }
            #[cfg(not(feature = "tls"))]
            _ => return Err(invalid("tls", &not_built("TLS", "tls"))),
        }
        match (text("mqtt")?, text("mqtt-ca")?) {
            (None, None) => {}
            (None, Some(_)) => return Err(needs("mqtt-ca", "mqtt, the broker that it is for")),
            #[cfg(feature = "mqtt")]
            (Some(url), authority) => {
                let connector = authority.map(|file| Connector::new(&base.join(file))).transpose()?;
                let broker = Broker::new(url, connector).map_err(|reason| invalid("mqtt", reason))?;
                transports.mqtt = Some((shown(url), broker));
            }
            #[cfg(not(feature = "mqtt"))]
            _ => return Err(invalid("mqtt", &not_built("MQTT", "mqtt"))),
        }
        let Some(ports) = keys.get("serial") else { return Ok(transports) };
        #[cfg(feature = "serial")]
        for port in ports.as_array().ok_or_else(|| invalid("serial", "a list, as [\"/dev/ttyUSB0:115200\"]"))? {
            let text = port.as_str().unwrap_or_default();
            transports.serial.push((text.into(), text.parse().map_err(|reason| invalid("serial", reason))?));
        }
        #[cfg(feature = "serial")]
        return Ok(transports);
        #[cfg(not(feature = "serial"))]
        Err(invalid("serial", &not_built(&format!("serial ports, and so no {ports}"), "serial")))
    }

    /// Binds what is to be bound and says where devices connect.
    pub(super) async fn bind(self) -> Result<Bound, Failure> {
        let devices = bind(self.listen).await?;
        let listening = devices.local_addr()?;
        write(&format!("devices: tcp://{listening}"))?;
        #[cfg(feature = "tls")]
        let tls = match self.tls {
            Some((address, acceptor)) => {
                let listener = bind(address).await?;
                write(&format!("devices: tls://{}", listener.local_addr()?))?;
                Some((listener, acceptor))
            }
            None => None,
        };
        #[cfg(feature = "mqtt")]
        if let Some((url, _)) = &self.mqtt {
            write(&format!("devices: {url}"))?;
        }
        #[cfg(feature = "serial")]
        for (name, _) in &self.serial {
            write(&format!("devices: serial://{name}"))?;
        }
        Ok(Bound {
            devices,
            listening,
            #[cfg(feature = "tls")]
            tls,
            #[cfg(feature = "mqtt")]
            mqtt: self.mqtt.map(|(_, broker)| broker),
            #[cfg(feature = "serial")]
            serial: self.serial.into_iter().map(|(_, port)| port).collect(),
        })
    }
}

/// A URL without the password in it.
#[cfg(feature = "mqtt")]
fn shown(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, address))) => format!("{scheme}://{address}"),
        _ => url.into(),
    }
}

pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| Failure::from(error).about(address))
}

/// Transports that can start.
pub(super) struct Bound {
    devices: TcpListener,
    /// Where devices connect by TCP.
    pub(super) listening: SocketAddr,
    #[cfg(feature = "tls")]
    tls: Option<(TcpListener, Acceptor)>,
    #[cfg(feature = "mqtt")]
    mqtt: Option<Broker>,
    #[cfg(feature = "serial")]
    serial: Vec<Port>,
}

impl Bound {
    /// Lets devices in.
    #[cfg_attr(not(feature = "mqtt"), expect(unused_variables))]
    pub(super) fn start(self, door: &Door, run: u32, agents: Vec<u32>) {
        tokio::spawn(tcp::serve(self.devices, door.clone()));
        #[cfg(feature = "tls")]
        if let Some((listener, acceptor)) = self.tls {
            tokio::spawn(tcp::serve_tls(listener, acceptor, door.clone()));
        }
        #[cfg(feature = "mqtt")]
        if let Some(broker) = self.mqtt {
            tokio::spawn(mqtt::serve(broker, run, agents, door.clone()));
        }
        #[cfg(feature = "serial")]
        for port in self.serial {
            tokio::spawn(serial::serve(port, door.clone()));
        }
    }
}

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
            #[cfg(feature = "serial")]
            "serial" => Ok(Self::Serial(address.parse().map_err(usage)?)),
            #[cfg(not(feature = "tls"))]
            "tls" => Err(usage(&not_built("TLS", "tls"))),
            #[cfg(not(feature = "mqtt"))]
            "mqtt" | "mqtts" => Err(usage(&not_built("MQTT", "mqtt"))),
            #[cfg(not(feature = "serial"))]
            "serial" => Err(usage(&not_built("serial ports", "serial"))),
            _ => Err(usage(kinds)),
        }
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
    fn stream(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
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
