//! Devices over TCP with TLS.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::test_certificate;
use crate::test_fleet::Fleet;

const SETTINGS: &str = "tls = \"127.0.0.1:0\"\ncertificate = \"our-cert.pem\"\nkey = \"our-key.pem\"";

#[test]
fn devices_verify_the_certificate_of_the_service() {
    let fleet = Fleet::new("tls", 3);
    test_certificate::write(fleet.path(), "our");
    test_certificate::write(fleet.path(), "other");
    fleet.configure(SETTINGS);
    let service = fleet.serve();
    let tls = service.devices[1].clone();
    assert!(tls.starts_with("tls://127.0.0.1:"), "{tls}");
    // Another authority has signed the other's certificate: not a frame is said to it.
    let complaint = fleet.devices(&tls, "--ca other-ca.pem").complaint();
    assert!(complaint.contains("invalid peer certificate"), "{complaint}");
    // Nor to somebody of another name.
    let named = tls.replace("127.0.0.1", "localhost");
    let complaint = fleet.devices(&named, "--ca our-ca.pem").complaint();
    assert!(complaint.contains("not valid for name"), "{complaint}");
    assert_eq!(service.wait_for(|_| true)["connected"], 0);
    // What is no TLS is dropped, and not taken for a frame.
    let mut plain = TcpStream::connect(tls.strip_prefix("tls://").unwrap()).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    plain.write_all(&[7; 4096]).unwrap();
    let mut answer = Vec::new();
    // An alert of TLS, or nothing; then the end.
    let ended = plain.read_to_end(&mut answer);
    assert!(ended.is_ok() || ended.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset);
    assert!(answer.len() < 32 && answer.first().is_none_or(|kind| *kind == 21), "{answer:?}");
    // TLS and TCP side by side.
    let without = fleet.devices(&service.devices[0], "--first 3 --episodes 5 --patience 60000");
    let with = fleet.devices(&tls, "--ca our-ca.pem --count 2 --episodes 5 --patience 60000");
    assert_eq!(with.lives()["acknowledged"], 10);
    assert_eq!(without.lives()["acknowledged"], 5);
    assert_eq!(service.wait_for(|_| true)["dropped"], serde_json::json!({}));
}

/// Who says nothing is not waited for.
#[test]
fn stalled_handshake_is_closed() {
    let fleet = Fleet::new("tls-silent", 1);
    test_certificate::write(fleet.path(), "our");
    fleet.configure(SETTINGS);
    let service = fleet.serve();
    let mut silent = TcpStream::connect(service.devices[1].strip_prefix("tls://").unwrap()).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    // The beginning of a handshake that does not go on.
    silent.write_all(&[22, 3, 1, 1, 0, 1]).unwrap();
    assert_eq!(silent.read(&mut [0; 16]).unwrap(), 0, "it is closed");
}

#[test]
fn invalid_tls_settings_are_refused() {
    let fleet = Fleet::new("tls-errors", 1);
    test_certificate::write(fleet.path(), "our");
    test_certificate::write(fleet.path(), "other");
    fs::write(fleet.path().join("empty.pem"), "").unwrap();
    let serve = "serve --config controller.toml";
    for (settings, code, sentence) in [
        ("tls = \"127.0.0.1:0\"", 78, "tls, certificate and key must be set together"),
        ("certificate = \"our-cert.pem\"", 78, "tls, certificate and key must be set together"),
        (&SETTINGS.replace("127.0.0.1:0", "here"), 78, "tls: invalid socket address"),
        (&SETTINGS.replace("our-cert", "no-cert"), 74, "no-cert.pem"),
        (&SETTINGS.replace("our-key", "no-key"), 74, "no-key.pem"),
        (&SETTINGS.replace("our-cert", "empty"), 65, "empty.pem: contains no certificate"),
        (&SETTINGS.replace("our-key", "our-cert"), 65, "our-cert.pem: invalid PEM"),
        (&SETTINGS.replace("our-key", "other-key"), 65, "other-key.pem"),
    ] {
        fleet.configure(settings);
        fleet.refuses(serve, code, sentence);
    }
    let device = "device --identities fleet/devices --connect";
    fleet.refuses(&format!("{device} tls://127.0.0.1:1"), 2, "tls:// requires --ca");
    fleet.refuses(&format!("{device} tls://127.0.0.1:1 --ca no.pem"), 74, "no.pem");
    fleet.refuses(&format!("{device} tls://127.0.0.1:1 --ca empty.pem"), 65, "contains no certificate");
    fleet.refuses(&format!("{device} tcp://127.0.0.1:1 --ca our-ca.pem"), 2, "--ca requires tls://");
}
