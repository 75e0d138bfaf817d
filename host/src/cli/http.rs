//! A service's status, metrics and health over HTTP.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse};
use axum::routing::get as route;
use axum::{Json, Router};
use fedbandit::service::Status;
use tokio::net::TcpListener;
use tokio::sync::watch::Receiver;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;

/// Answers until the process ends.
pub(super) async fn serve(listener: TcpListener, status: Receiver<Status>) {
    let router = Router::new()
        .route("/", route(page))
        .route("/events", route(events))
        .route("/healthz", route(health))
        .route("/metrics", route(metrics))
        .route("/status.json", route(status_json))
        .with_state(status);
    let _ = axum::serve(listener, router).await;
}

/// The page: all that it needs is in it, and what it shows comes from [`events`].
async fn page() -> Html<&'static str> {
    Html(include_str!("page.html"))
}

/// The status, and each new one.
async fn events(State(status): State<Receiver<Status>>) -> impl IntoResponse {
    let event = |status: Status| Event::default().json_data(status);
    Sse::new(WatchStream::new(status).map(event)).keep_alive(KeepAlive::default())
}

/// Healthy as long as the service's thread is there to change the status.
async fn health(State(status): State<Receiver<Status>>) -> impl IntoResponse {
    match status.has_changed() {
        Ok(_) => (StatusCode::OK, "ok\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the service has stopped\n"),
    }
}

async fn status_json(State(status): State<Receiver<Status>>) -> impl IntoResponse {
    Json(status.borrow().clone())
}

async fn metrics(State(status): State<Receiver<Status>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], prometheus(&status.borrow()))
}

/// The status in Prometheus' text format. No device has a label of its own.
fn prometheus(status: &Status) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        let _ = writeln!(text, "# HELP fedbandit_{name} {help}\n# TYPE fedbandit_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "fedbandit_{name}{labels} {value}");
        }
    };
    let one = |value: f64| [(String::new(), value)];
    let over = f64::from(status.episode.unwrap_or(0));
    metric("episode", "gauge", "The running episode, 0 when the run is over.", &one(over));
    metric("devices_enrolled", "gauge", "Devices that count.", &one(status.enrolled as f64));
    metric("devices_connected", "gauge", "Devices with a connection.", &one(status.connected as f64));
    metric(
        "devices_missing",
        "gauge",
        "Devices that sent nothing for the running episode.",
        &one(status.missing as f64),
    );
    metric("beta", "gauge", "The width of the model.", &one(status.beta.unwrap_or(0.0).into()));
    metric("lambda", "gauge", "The regularisation of the model.", &one(status.lambda));
    metric("certified_gap", "gauge", "A bound on the last aggregation's error.", &one(status.certified_gap));
    metric("aggregation_passes", "gauge", "Passes of the last aggregation.", &one(status.passes.into()));
    metric(
        "repaired_models_total",
        "counter",
        "Models whose design matrix was repaired.",
        &one(status.repaired as f64),
    );
    let label = |reason: serde_json::Value| format!("{{reason={reason}}}");
    let faults: Vec<_> = status.faults.iter().map(|(fault, n)| (label(serde_json::json!(fault)), *n as f64)).collect();
    metric("summaries_zeroed_total", "counter", "Summaries that counted as zero.", &faults);
    let dropped: Vec<_> = status.dropped.iter().map(|(why, n)| (label(serde_json::json!(why)), *n as f64)).collect();
    metric("frames_dropped_total", "counter", "Frames that meant nothing.", &dropped);
    text
}

/// The body of a page of a service on this machine.
pub(super) fn get(address: SocketAddr, path: &str, patience: Duration) -> io::Result<String> {
    let mut stream = std::net::TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(1 << 20).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    if head.split_whitespace().nth(1) == Some("200") {
        Ok(body.to_owned())
    } else {
        Err(io::Error::other(head.to_owned()))
    }
}
