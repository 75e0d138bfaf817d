//! TLS on rustls, for TCP and MQTT.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Error in a certificate or key file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read.
    #[error("{path}: {1}", path = .0.display())]
    File(PathBuf, #[source] io::Error),
    /// The file has the wrong content.
    #[error("{path}: {1}", path = .0.display())]
    Content(PathBuf, String),
}

impl TlsError {
    fn content(path: &Path, reason: impl ToString) -> Self {
        Self::Content(path.into(), reason.to_string())
    }

    fn pem(path: &Path, error: pem::Error) -> Self {
        match error {
            pem::Error::Io(error) => Self::File(path.into(), error),
            other => Self::content(path, format!("invalid PEM: {other}")),
        }
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match all.map_err(|error| TlsError::pem(path, error))? {
        certificates if certificates.is_empty() => Err(TlsError::content(path, "contains no certificate")),
        certificates => Ok(certificates),
    }
}

/// Server side of TLS connections.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

impl Acceptor {
    /// Reads a certificate chain, the server's own certificate first, and its private key, both in PEM.
    ///
    /// # Errors
    /// A file cannot be read, or the key does not match the certificate.
    pub fn new(chain: &Path, key: &Path) -> Result<Self, TlsError> {
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError::pem(key, error))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::content(key, error))?
            .with_no_client_auth()
            .with_single_cert(certificates(chain)?, secret)
            .map_err(|error| TlsError::content(key, error))?;
        Ok(Self(Arc::new(config).into()))
    }

    /// Performs the handshake; none if it fails or exceeds its time limit.
    pub(super) async fn accept(&self, stream: TcpStream) -> Option<server::TlsStream<TcpStream>> {
        timeout(HANDSHAKE, self.0.accept(stream)).await.ok()?.ok()
    }
}

/// Client side of TLS connections.
#[derive(Clone)]
pub struct Connector(Arc<ClientConfig>);

impl Connector {
    /// Reads the CA certificates (PEM) used to verify servers; no other CA is trusted.
    ///
    /// # Errors
    /// The file cannot be read, or contains no CA certificate.
    pub fn new(authority: &Path) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority)? {
            roots.add(certificate).map_err(|error| TlsError::content(authority, error))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::content(authority, error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    /// Connects to `HOST:PORT`.
    ///
    /// # Errors
    /// The connection fails, or the server's certificate is not trusted for that host name.
    pub async fn connect(&self, address: &str) -> io::Result<client::TlsStream<TcpStream>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        timeout(HANDSHAKE, TlsConnector::from(Arc::clone(&self.0)).connect(name, stream)).await?
    }
}
