//! What `serve` listens on.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use fedbandit::service::setup::Registry;
use fedbandit::service::transport::mqtt::{self, Broker};
use fedbandit::service::transport::serial::{self, Port};
use fedbandit::service::transport::tcp;
use fedbandit::service::transport::tls::{Acceptor, Connector, TlsError};
use fedbandit::service::worker::Door;
use tokio::net::TcpListener;

use super::line::without_password;
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

fn by_serial(name: &str) -> Result<Transport, Failure> {
    let port: Port = name.parse().map_err(|reason| Failure::Config(format!("serial: {reason}")))?;
    let start = move |door: Door, _: &Registry| {
        tokio::spawn(serial::serve(port, door));
        Ok(())
    };
    Ok(Transport { url: format!("serial://{name}"), start: Box::new(start) })
}

impl From<TlsError> for Failure {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::File(..) => Self::Io(error.to_string()),
            other => Self::Data(other.to_string()),
        }
    }
}
