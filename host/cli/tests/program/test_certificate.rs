//! Certificates for 127.0.0.1 and ::1.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// Writes `NAME-ca.pem`, and `NAME-cert.pem` and `NAME-key.pem` that it signed.
pub(crate) fn write(directory: &Path, name: &str) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = ["127.0.0.1", "::1"].map(str::to_owned);
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
    for (file, text) in [("ca", authority.pem()), ("cert", certificate.pem()), ("key", key.serialize_pem())] {
        fs::write(directory.join(format!("{name}-{file}.pem")), text).unwrap();
    }
}
