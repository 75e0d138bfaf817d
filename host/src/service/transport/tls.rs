//! TLS on rustls, for TCP and MQTT.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use std::{io, net};

use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme, StreamOwned,
};
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

/// Server side of TLS connections. Clones share the certificate, which can be read again while the service runs.
#[derive(Clone)]
pub struct Acceptor {
    chain: PathBuf,
    key: PathBuf,
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl Acceptor {
    /// Reads a certificate chain, the server's own certificate first, and its private key, both in PEM.
    ///
    /// # Errors
    /// A file cannot be read, or the key does not match the certificate.
    pub fn new(chain: &Path, key: &Path) -> Result<Self, TlsError> {
        let config = Arc::new(RwLock::new(server_config(chain, key)?));
        Ok(Self { chain: chain.into(), key: key.into(), config })
    }

    /// Reads both files again for later connections. Open connections continue.
    ///
    /// # Errors
    /// As [`new`](Self::new); the former certificate then remains.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = server_config(&self.chain, &self.key)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Performs the handshake; none if it fails or exceeds its time limit.
    pub(in super::super) async fn accept(&self, stream: TcpStream) -> Option<server::TlsStream<TcpStream>> {
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
        timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await.ok()?.ok()
    }
}

fn server_config(chain: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError::pem(key, error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::content(key, error))?
        .with_no_client_auth()
        .with_single_cert(certificates(chain)?, secret)
        .map_err(|error| TlsError::content(key, error))?;
    Ok(Arc::new(config))
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

    /// Reads the certificate of one server, the first in a PEM file. Only that server is trusted, under any name.
    ///
    /// # Errors
    /// The file cannot be read, or contains no certificate.
    pub fn pinned(certificate: &Path) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let pinned = Pinned { certificate: certificates(certificate)?.swap_remove(0), provider: Arc::clone(&provider) };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::content(certificate, error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned))
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    /// Wraps a connection to a server that has this IP address.
    pub(in super::super) fn wrap(&self, stream: net::TcpStream) -> io::Result<impl io::Read + io::Write + use<>> {
        let name = ServerName::IpAddress(stream.peer_addr()?.ip().into());
        let connection = ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(connection, stream))
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

/// Verifier that trusts one certificate only.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match *certificate == self.certificate {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
