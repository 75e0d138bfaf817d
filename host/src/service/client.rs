//! Client of the HTTP pages of a service.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::access::Token;
use super::transport::tls::Connector;

/// Largest answer in bytes.
const ANSWER: u64 = 64 << 20;
/// Largest head of an answer in bytes, and largest body of an error.
const HEAD: usize = 16 << 10;

/// Client of the pages of a service.
pub struct Client {
    address: SocketAddr,
    patience: Duration,
    tls: Option<Connector>,
}

impl Client {
    /// Creates a client, which uses TLS if there is a connector. Each step of an exchange may take `patience`.
    pub fn new(address: SocketAddr, patience: Duration, tls: Option<Connector>) -> Self {
        Self { address, patience, tls }
    }

    /// Returns the URL of the service.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Returns the body of a page, for which a token may be needed.
    ///
    /// # Errors
    /// As [`open`](Self::open); or the answer is incomplete.
    pub fn get(&self, path: &str, token: Option<&Token>) -> io::Result<String> {
        let (length, body) = self.open(path, token)?;
        let mut text = String::new();
        body.take(ANSWER).read_to_string(&mut text)?;
        match length {
            Some(length) if length != text.len() => Err(invalid("the answer is incomplete")),
            _ => Ok(text),
        }
    }

    /// Requests a page, and returns the length of its body, if it is known, with a reader of it.
    ///
    /// # Errors
    /// The service is not running or does not answer in time, is not the one that TLS verifies, or rejects the request; the
    /// error then has its words.
    pub fn open(&self, path: &str, token: Option<&Token>) -> io::Result<(Option<usize>, Box<dyn BufRead>)> {
        let stream = TcpStream::connect_timeout(&self.address, self.patience)?;
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_write_timeout(Some(self.patience))?;
        let authorization = token.map(|token| format!("Authorization: Bearer {}\r\n", token.as_str()));
        let head = format!("Host: {}\r\n{}", self.address, authorization.unwrap_or_default());
        let request = format!("GET {path} HTTP/1.0\r\n{head}\r\n");
        match &self.tls {
            Some(tls) => exchange(tls.wrap(stream)?, &request),
            None => exchange(stream, &request),
        }
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Sends a request, and returns the length of the answer's body, if it is known, with a reader of it.
fn exchange(mut stream: impl Read + Write + 'static, request: &str) -> io::Result<(Option<usize>, Box<dyn BufRead>)> {
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut answer = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let is_short = head.len() < HEAD;
        if !is_short || answer.by_ref().take(HEAD as u64).read_line(&mut head)? == 0 {
            return Err(invalid("not an HTTP answer"));
        }
    }
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split_once(' ')).map_or("", |(_, status)| status);
    if !status.starts_with("200") {
        let mut body = String::new();
        answer.take(HEAD as u64).read_to_string(&mut body)?;
        return Err(io::Error::other(format!("{status}: {}", body.trim_end())));
    }
    let length =
        lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = match length {
        Some((_, length)) => Some(length.trim().parse().map_err(|_| invalid("not an HTTP answer"))?),
        None => None,
    };
    Ok((length, Box::new(answer)))
}
