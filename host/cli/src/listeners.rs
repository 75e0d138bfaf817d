//! What `serve` listens on.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use fedbandit::service::Registry;
use fedbandit::service::config::Endpoints;
use fedbandit::service::transport::mqtt::{self, Broker};
use fedbandit::service::transport::serial::{self, Port};
use fedbandit::service::transport::tcp;
use fedbandit::service::transport::tls::{Acceptor, Connector, TlsError};
use fedbandit::service::worker::WorkerHandle;
use tokio::net::TcpListener;

use super::link::without_password;
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

type Start = dyn FnOnce(WorkerHandle, &Registry) -> io::Result<()>;

impl Transports {
    /// TCP alone.
    pub(super) fn tcp(listen: SocketAddr) -> Self {
        Self { listen, others: Vec::new() }
    }

    /// Opens the transports of a configuration.
    pub(super) fn new(endpoints: &Endpoints) -> Result<Self, Failure> {
        let mut others = Vec::new();
        if let (Some(address), Some(certificate), Some(key)) = (endpoints.tls, &endpoints.certificate, &endpoints.key) {
            others.push(with_tls(address, certificate, key)?);
        }
        if let Some(url) = &endpoints.mqtt {
            others.push(by_mqtt(url, endpoints.mqtt_ca.as_deref())?);
        }
        for port in &endpoints.serial {
            others.push(by_serial(port)?);
        }
        Ok(Self { listen: endpoints.listen, others })
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
    pub(super) fn start(self, handle: &WorkerHandle, registry: &Registry) -> io::Result<SocketAddr> {
        let address = self.devices.local_addr()?;
        tokio::spawn(tcp::serve(self.devices, handle.clone()));
        self.others.into_iter().try_for_each(|transport| (transport.start)(handle.clone(), registry))?;
        Ok(address)
    }
}

fn with_tls(address: SocketAddr, certificate: &Path, key: &Path) -> Result<Transport, Failure> {
    let acceptor = Acceptor::new(certificate, key)?;
    let listener = std::net::TcpListener::bind(address).map_err(|error| Failure::from(error).about(address))?;
    listener.set_nonblocking(true)?;
    let url = format!("tls://{}", listener.local_addr()?);
    let start = move |handle: WorkerHandle, _: &Registry| {
        let listener = TcpListener::from_std(listener)?;
        tokio::spawn(tcp::serve_tls(listener, acceptor, handle));
        Ok(())
    };
    Ok(Transport { url, start: Box::new(start) })
}

fn by_mqtt(url: &str, authority: Option<&Path>) -> Result<Transport, Failure> {
    let connector = authority.map(Connector::new).transpose()?;
    let broker = Broker::new(url, connector).map_err(|reason| Failure::Config(format!("mqtt: {reason}")))?;
    let start = move |handle: WorkerHandle, registry: &Registry| {
        let agents: Vec<u32> = registry.devices.iter().map(|device| device.agent).collect();
        tokio::spawn(mqtt::serve(broker, registry.run, agents, handle));
        Ok(())
    };
    Ok(Transport { url: without_password(url), start: Box::new(start) })
}

fn by_serial(name: &str) -> Result<Transport, Failure> {
    let port: Port = name.parse().map_err(|reason| Failure::Config(format!("serial: {reason}")))?;
    let start = move |handle: WorkerHandle, _: &Registry| {
        tokio::spawn(serial::serve(port, handle));
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
