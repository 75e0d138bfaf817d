//! Access to the HTTP pages: token, TLS, and files that are read again while the service runs.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use fedbandit::service::access::Token;
use fedbandit::service::client::Client;
use fedbandit::service::transport::tls::Connector;
use serde_json::Value;

use crate::process::{LAST_RESORT, wait_for, wait_until};
use crate::test_certificate;
use crate::test_fleet::{Fleet, Service, connect};

/// Sends a request with header lines, and returns the answer.
fn request(service: &Service, path: &str, headers: &str) -> String {
    let mut stream = connect(&service.http);
    write!(stream, "GET {path} HTTP/1.0\r\n{headers}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn token(fleet: &Fleet) -> String {
    fs::read_to_string(fleet.path().join("fleet/http.token")).unwrap().trim().to_owned()
}

fn hang_up(service: &Service) {
    let id = service.process.0.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
}

#[test]
fn pages_need_the_token() {
    let fleet = Fleet::new("token", 2);
    fleet.configure("");
    let service = fleet.serve();
    let token = token(&fleet);
    let pages = ["/", "/events", "/metrics", "/status.json", "/api/devices", "/unknown", "//healthz"];
    let wrong = format!("Authorization: Bearer {}\r\n", token.to_lowercase());
    for (page, headers) in pages.into_iter().flat_map(|page| [(page, ""), (page, &*wrong)]) {
        let answer = request(&service, page, headers);
        assert!(answer.starts_with("HTTP/1.0 401 "), "{page}: {answer}");
        assert!(answer.contains("www-authenticate: Basic realm=") && answer.contains("DIR/http.token"), "{answer}");
        assert!(!answer.contains("enrolled"), "{answer}");
    }
    // For supervisors, and for `status`, which sends its token to its own service only.
    assert!(request(&service, "/healthz", "").ends_with("\r\n\r\nok\n"));
    let name = wait_for("recorded service", || fs::read_to_string(fleet.path().join("fleet/service")).ok());
    let name = name.split_whitespace().nth(1).unwrap();
    assert!(request(&service, "/name", "").ends_with(&format!("\r\n\r\n{name}")));
    let bearer = format!("authorization: bearer {token}\r\n");
    for page in ["/", "/metrics", "/status.json", "/api/devices"] {
        let answer = request(&service, page, &bearer);
        assert!(answer.starts_with("HTTP/1.0 200 ") && answer.contains("cache-control: no-store"), "{page}: {answer}");
    }
    assert!(request(&service, "/unknown", &bearer).starts_with("HTTP/1.0 404 "));
    // As a browser sends it.
    let url = format!("http://anybody:{token}@{}/status.json", service.http);
    let curl = Command::new("curl").args(["--silent", "--noproxy", "*", &url]).output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&curl.stdout).unwrap()["enrolled"], 2);
    let status = format!("status --http {}", service.http);
    fleet.refuses(&status, 74, "401 Unauthorized: missing or wrong token");
    fleet.refuses(&format!("{status} --token none"), 74, "none: no such file");
    fs::write(fleet.path().join("short"), "short").unwrap();
    fleet.refuses(&format!("{status} --token short"), 65, "short: expected 16 to 1024 visible ASCII characters");
    assert!(fleet.stdout(&format!("{status} --token fleet/http.token")).starts_with("run 1, at http://"));
}

#[test]
fn large_and_invalid_requests_are_rejected() {
    let fleet = Fleet::new("requests", 1);
    fleet.configure("");
    let service = fleet.serve();
    let code = |path: &str, headers: &str| {
        let answer = request(&service, path, &format!("{}{headers}", service.authorization));
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(code("/status.json", &format!("X: {}\r\n", "x".repeat(8_000))), "200");
    assert_eq!(code("/status.json", &"X: x\r\n".repeat(101)), "431");
    for query in ["limit=-1", "limit=x", "after=4294967296", "order=alarm", "order=", "page=1", "after"] {
        assert_eq!(code(&format!("/api/devices?{query}"), ""), "400", "{query}");
    }
    for query in ["", "limit=0", "limit=18446744073709551615", "after=4294967295", "order=zeroed&limit=5&after=1"] {
        assert_eq!(code(&format!("/api/devices?{query}"), ""), "200", "{query}");
    }
    // A head without an end is not kept beyond its limit: the server answers and closes.
    let mut endless = connect(&service.http);
    write!(endless, "GET / HTTP/1.1\r\nX: ").unwrap();
    (0..64).for_each(|_| drop(endless.write_all(&[b'x'; 16_384])));
    let mut answer = Vec::new();
    let ended = endless.read_to_end(&mut answer);
    assert!(ended.is_err() || answer.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&answer));
}

/// The token of a directory that was enrolled by an earlier version.
#[test]
fn missing_token_is_written_at_the_start() {
    let fleet = Fleet::new("old-directory", 1);
    fleet.configure("");
    let file = fleet.path().join("fleet/http.token");
    let enrolled = token(&fleet);
    fs::remove_file(&file).unwrap();
    let service = fleet.serve();
    assert!(token(&fleet).len() >= 43 && token(&fleet) != enrolled);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(service.status()["enrolled"], 1);
    drop(service);
    fs::write(&file, "short").unwrap();
    fleet.refuses("serve --config controller.toml", 65, "http.token: expected 16 to 1024 visible ASCII characters");
}

#[test]
fn demonstration_needs_a_token_beyond_loopback_only() {
    let fleet = Fleet::empty("demo-token");
    let service = Service::start(fleet.command("serve --demo --http 127.0.0.1:0").stderr(Stdio::null()));
    assert!(request(&service, "/status.json", "").starts_with("HTTP/1.0 200 "));
    drop(service);
    let mut command = fleet.command("serve --demo --http 0.0.0.0:0");
    let mut process = crate::process::Process::spawn(command.stderr(Stdio::null()));
    let lines: Vec<String> = process.stdout().take(4).collect();
    let after = |start: &str| lines.iter().find_map(|line| line.strip_prefix(start)).unwrap().to_owned();
    let (token, http) = (after("token:   "), after("status:  http://").replace("0.0.0.0", "127.0.0.1"));
    let service = Service { process, devices: Vec::new(), http, authorization: String::new() };
    assert!(request(&service, "/status.json", "").starts_with("HTTP/1.0 401 "));
    let header = format!("Authorization: Bearer {token}\r\n");
    assert!(request(&service, "/status.json", &header).starts_with("HTTP/1.0 200 "));
}

/// A replaced file is valid after SIGHUP, an invalid one changes nothing, and open connections stay open.
#[test]
fn token_is_read_again_on_sighup() {
    let fleet = Fleet::new("token-again", 1);
    fleet.configure("");
    let log = fleet.path().join("log");
    let service = fleet.serve_and_log("info", fs::File::create(&log).unwrap().into());
    let mut events = connect(&service.http);
    write!(events, "GET /events HTTP/1.1\r\nHost: x\r\n{}\r\n", service.authorization).unwrap();
    let mut events = BufReader::new(events).lines().map_while(Result::ok).filter(|line| line.starts_with("data: "));
    events.next().unwrap();
    let file = fleet.path().join("fleet/http.token");
    let header = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let is_valid = |token: &str| request(&service, "/status.json", &header(token)).starts_with("HTTP/1.0 200 ");
    let old = token(&fleet);
    let new = "a-token-of-the-operator";
    fs::write(&file, new).unwrap();
    assert!(is_valid(&old) && !is_valid(new), "the file is read on SIGHUP only");
    hang_up(&service);
    wait_until("new token", || is_valid(new));
    assert!(!is_valid(&old));
    assert_eq!(fleet.json("status --dir fleet --json")["enrolled"], 1);
    fs::write(&file, "short").unwrap();
    hang_up(&service);
    wait_until("error in the log", || fs::read_to_string(&log).unwrap().contains("the token cannot be read again"));
    assert!(is_valid(new));
    events.next().expect("the stream of the old token continues");
}

const TLS: &str = "http-tls = true\ncertificate = \"our-cert.pem\"\nkey = \"our-key.pem\"";

/// Returns the error of a request over TLS, with a CA certificate. docs/guide/operations.md does the same with curl.
fn refusal(fleet: &Fleet, service: &Service, authority: &str) -> Option<String> {
    let connector = Connector::new(&fleet.path().join(authority)).unwrap();
    let client = Client::new(service.http.parse().unwrap(), LAST_RESORT, Some(connector));
    client.get("/metrics", Token::parse(&token(fleet)).as_ref()).err().map(|error| error.to_string())
}

#[test]
fn pages_over_tls_are_verified_by_status() {
    let fleet = Fleet::new("https", 2);
    ["our", "other"].iter().for_each(|name| test_certificate::write(fleet.path(), name));
    fleet.configure("http-tls = true");
    fleet.refuses("serve --config controller.toml", 78, "http-tls: needs certificate and key");
    fleet.configure(TLS);
    let service = fleet.serve();
    let url = format!("https://{}", service.http);
    let status = fleet.json("status --dir fleet --json");
    assert_eq!((&status["service"], &status["devices"][1]["agent"]), (&url.into(), &2.into()));
    let with = |authority: &str| format!("status --http {} --token fleet/http.token --ca {authority}", service.http);
    assert!(fleet.stdout(&with("our-ca.pem")).starts_with("run 1, at https://127.0.0.1:"));
    fleet.refuses(&with("other-ca.pem"), 74, "invalid peer certificate");
    // Without TLS there is no answer, and no other service gets the token.
    let mut plain = connect(&service.http);
    write!(plain, "GET /name HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
    fs::copy(fleet.path().join("other-cert.pem"), fleet.path().join("fleet/http.pem")).unwrap();
    fleet.refuses("status --dir fleet", 74, "in use by another process, and no service answers");
}

fn install(fleet: &Path, name: &str) {
    for file in ["cert", "key"] {
        fs::copy(fleet.join(format!("{name}-{file}.pem")), fleet.join(format!("our-{file}.pem"))).unwrap();
    }
}

/// New connections of devices and browsers see the new certificate, and a device that was connected stays so.
#[test]
fn certificate_is_read_again_on_sighup() {
    let fleet = Fleet::new("certificate-again", 2);
    ["our", "new"].iter().for_each(|name| test_certificate::write(fleet.path(), name));
    fleet.configure(&format!("{TLS}\ntls = \"127.0.0.1:0\"\nepisode-len = 4\nsteps = 4000000"));
    let log = fleet.path().join("log");
    let service = fleet.serve_and_log("info", fs::File::create(&log).unwrap().into());
    let tls = service.devices[1].clone();
    let connected = || fleet.json("status --dir fleet --json");
    let old = fleet.devices(&tls, "--ca our-ca.pem --episodes 1000000");
    wait_until("device", || connected()["connected"] == 1);
    // A key that does not match its certificate.
    fs::copy(fleet.path().join("new-key.pem"), fleet.path().join("our-key.pem")).unwrap();
    hang_up(&service);
    wait_until("error", || fs::read_to_string(&log).unwrap().contains("the certificate cannot be read again"));
    assert_eq!(refusal(&fleet, &service, "our-ca.pem"), None, "the former certificate remains");
    install(fleet.path(), "new");
    hang_up(&service);
    wait_until("new certificate", || refusal(&fleet, &service, "new-ca.pem").is_none());
    assert!(refusal(&fleet, &service, "our-ca.pem").unwrap().contains("invalid peer certificate"));
    assert!(fleet.devices(&tls, "--ca our-ca.pem --first 2").complaint().contains("invalid peer certificate"));
    let other = fleet.devices(&tls, "--ca new-ca.pem --first 2 --episodes 1000000");
    wait_until("both devices", || connected()["connected"] == 2);
    let before = connected()["received"]["accepted"].as_u64().unwrap();
    wait_until("episode of both", || connected()["received"]["accepted"].as_u64() >= Some(before + 4));
    drop((old, other));
}

#[test]
fn pages_on_the_network_without_tls_cause_a_warning() {
    let fleet = Fleet::new("readable", 1);
    test_certificate::write(fleet.path(), "our");
    fleet.configure("");
    let log = fleet.path().join("log");
    let logged = |arguments: &str| {
        let command = format!("serve --config controller.toml --log warn {arguments}");
        drop(Service::start(fleet.command(&command).stderr(fs::File::create(&log).unwrap())));
        fs::read_to_string(&log).unwrap()
    };
    assert!(logged("--http 0.0.0.0:0").contains("set http-tls = true"));
    assert_eq!(logged(""), "");
    assert_eq!(logged("--http 0.0.0.0:0 --http-tls true --certificate our-cert.pem --key our-key.pem"), "");
}
