//! Status page, status as JSON, Prometheus metrics and health over HTTP.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse};
use axum::routing::get as route;
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::sync::watch::Receiver;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;

use super::Status;
use super::metrics::{self, Meter};

/// Serves HTTP requests until the process ends. `name` identifies this instance of the service.
pub async fn serve(listener: TcpListener, status: Receiver<Status>, meter: Arc<Meter>, name: String) {
    let router = Router::new()
        .route("/", route(page))
        .route("/events", route(events))
        .route("/healthz", route(health))
        .route("/name", route(|| async { name }))
        .route("/metrics", route(move |status| metrics_text(status, meter)))
        .route("/status.json", route(status_json))
        .with_state(status);
    let _ = axum::serve(listener, router).await;
}

/// Returns the page with the current status embedded; updates come from [`events`].
async fn page(State(status): State<Receiver<Status>>) -> Html<String> {
    let status = serde_json::to_string(&*status.borrow()).unwrap_or_default();
    // Without `<`, the status cannot close the script element that contains it.
    Html(include_str!("page.html").replacen("null/* status */", &status.replace('<', "\\u003c"), 1))
}

/// Streams the current status and every later one.
async fn events(State(status): State<Receiver<Status>>) -> impl IntoResponse {
    let event = |status: Status| Event::default().json_data(status);
    Sse::new(WatchStream::new(status).map(event)).keep_alive(KeepAlive::default())
}

/// Reports health: the worker is alive as long as it holds the sender of the status.
async fn health(State(status): State<Receiver<Status>>) -> impl IntoResponse {
    match status.has_changed() {
        Ok(_) => (StatusCode::OK, "ok\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the service has stopped\n"),
    }
}

async fn status_json(State(status): State<Receiver<Status>>) -> impl IntoResponse {
    Json(status.borrow().clone())
}

async fn metrics_text(State(status): State<Receiver<Status>>, meter: Arc<Meter>) -> impl IntoResponse {
    let text = metrics::text(&meter.measure(&status.borrow(), Instant::now()));
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

/// Returns the body of a page of a service.
///
/// # Errors
/// The service is not running, does not answer within `patience`, or does not have the page.
pub fn get(address: SocketAddr, path: &str, patience: Duration) -> io::Result<String> {
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
