//! Transports on which `serve` accepts devices.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use fedbandit::service::Registry;
use fedbandit::service::config::Endpoints;
use fedbandit::service::transport::backoff::Backoff;
use fedbandit::service::transport::mqtt::{self, Broker};
use fedbandit::service::transport::serial::{self, Port};
use fedbandit::service::transport::tcp;
use fedbandit::service::transport::tls::{Acceptor, Connector, TlsError};
use fedbandit::service::worker::WorkerHandle;
use tokio::net::TcpListener;

use super::link::without_password;
use super::{Failure, print_line};

/// Configured transports.
pub(super) struct Transports {
    listen: SocketAddr,
    tls: Option<(SocketAddr, Acceptor)>,
    others: Vec<Transport>,
}

/// A transport besides TCP: the URL for devices, and the function that starts it.
struct Transport {
    url: String,
    start: Box<Start>,
}

type Start = dyn FnOnce(WorkerHandle, &Registry);

impl Transports {
    /// TCP only.
    pub(super) fn tcp(listen: SocketAddr) -> Self {
        Self { listen, tls: None, others: Vec::new() }
    }

    /// Reads the files and addresses of a configuration. `acceptor` is for TLS, if that is configured.
    pub(super) fn new(endpoints: &Endpoints, acceptor: Option<&Acceptor>) -> Result<Self, Failure> {
        let tls = endpoints.tls.zip(acceptor.cloned());
        let mut others = Vec::new();
        if let Some(url) = &endpoints.mqtt {
            others.push(mqtt_transport(url, endpoints.mqtt_ca.as_deref())?);
        }
        for port in &endpoints.serial {
            others.push(serial_transport(port)?);
        }
        Ok(Self { listen: endpoints.listen, tls, others })
    }

    /// Binds the TCP and TLS addresses.
    pub(super) async fn bind(self) -> Result<BoundTransports, Failure> {
        let (devices, mut others) = (bind(self.listen).await?, self.others);
        if let Some((address, acceptor)) = self.tls {
            others.insert(0, tls_transport(bind(address).await?, acceptor)?);
        }
        Ok(BoundTransports { devices, others })
    }
}

/// Retries to bind an address, spread over 7.75 seconds.
const BIND_RETRIES: u32 = 5;

/// Binds an address. An address in use is retried: the kernel may still be closing the sockets of a killed service.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    let (mut backoff, mut retries) = (Backoff::default(), 0..BIND_RETRIES);
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && retries.next().is_some() => {
                tracing::warn!(%address, "address already in use; retrying");
                backoff.wait().await;
            }
            result => return result.map_err(|error| Failure::from(error).context(address)),
        }
    }
}

/// Transports that are ready to start.
pub(super) struct BoundTransports {
    devices: TcpListener,
    others: Vec<Transport>,
}

impl BoundTransports {
    /// Prints the URLs for devices.
    pub(super) fn announce(&self) -> Result<(), Failure> {
        print_line(&format!("devices: tcp://{}", self.devices.local_addr()?))?;
        self.others.iter().try_for_each(|transport| print_line(&format!("devices: {}", transport.url)))
    }

    /// Starts accepting devices, and returns the TCP address.
    pub(super) fn start(self, handle: &WorkerHandle, registry: &Registry) -> io::Result<SocketAddr> {
        let address = self.devices.local_addr()?;
        tokio::spawn(tcp::serve(self.devices, handle.clone()));
        self.others.into_iter().for_each(|transport| (transport.start)(handle.clone(), registry));
        Ok(address)
    }
}

fn tls_transport(listener: TcpListener, acceptor: Acceptor) -> Result<Transport, Failure> {
    let url = format!("tls://{}", listener.local_addr()?);
    let start = move |handle: WorkerHandle, _: &Registry| {
        tokio::spawn(tcp::serve_tls(listener, acceptor, handle));
    };
    Ok(Transport { url, start: Box::new(start) })
}

fn mqtt_transport(url: &str, ca: Option<&Path>) -> Result<Transport, Failure> {
    let connector = ca.map(Connector::new).transpose()?;
    let broker = Broker::new(url, connector).map_err(|reason| Failure::Config(format!("mqtt: {reason}")))?;
    let start = move |handle: WorkerHandle, registry: &Registry| {
        tokio::spawn(mqtt::serve(broker, registry.fleet, handle));
    };
    Ok(Transport { url: without_password(url), start: Box::new(start) })
}

fn serial_transport(name: &str) -> Result<Transport, Failure> {
    let port: Port = name.parse().map_err(|reason| Failure::Config(format!("serial: {reason}")))?;
    let start = move |handle: WorkerHandle, _: &Registry| {
        tokio::spawn(serial::serve(port, handle));
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

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn address_in_use_is_bound_once_it_is_free() {
        let occupied = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = occupied.local_addr().unwrap();
        let mut binding = pin!(bind(address));
        let is_waiting = poll_fn(|context| Poll::Ready(binding.as_mut().poll(context).is_pending())).await;
        assert!(is_waiting, "bind of an address in use returned at once");
        drop(occupied);
        let bound = binding.await.unwrap_or_else(|_| panic!("{address} is free"));
        assert_eq!(bound.local_addr().unwrap(), address);
    }

    /// 192.0.2.0/24 is reserved for documentation, so no machine has the address.
    #[tokio::test]
    async fn address_of_another_machine_is_refused_at_once() {
        let mut binding = pin!(bind("192.0.2.1:7700".parse().unwrap()));
        let result = poll_fn(|context| Poll::Ready(binding.as_mut().poll(context))).await;
        assert!(matches!(result, Poll::Ready(Err(_))));
    }
}
