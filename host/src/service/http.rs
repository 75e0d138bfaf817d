//! Status page, device table, status as JSON, Prometheus metrics and health over HTTP.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get as route;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::sync::watch::Receiver;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, WatchStream};

use super::Status;
use super::access::Access;
use super::backup;
use super::device_table::{DevicePage, DeviceQuery};
use super::export::{self, ExportError, PageQuery};
use super::metrics::{self, Meter};
use super::start::StartError;
use super::store::{Reader, StoreError};
use super::terms::RunTerms;
use super::transport::tcp;
use super::transport::tls::Acceptor;
use super::worker::WorkerHandle;
use crate::config::keys::number_or_text;

/// Connections that are served at a time.
const CONNECTIONS: usize = 256;
/// Time limit for the head of a request, and for the next request on an open connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest head of a request in bytes.
const HEAD: usize = 16 << 10;
/// Pages that need no token. `/healthz` is for supervisors. `/name` identifies the service to `fedbandit status`, which must
/// know whom it talks to before it sends the token; it is random and tells nothing else.
const OPEN: [&str; 2] = ["/healthz", "/name"];

/// Sources of the pages.
pub struct Pages {
    /// Status of the run.
    pub status: Receiver<Status>,
    /// Meter of the metrics.
    pub meter: Arc<Meter>,
    /// Random name of this instance of the service.
    pub name: String,
    /// Worker, which has the device table.
    pub worker: WorkerHandle,
    /// Store and terms of the run; none if the store is not durable.
    pub stored: Option<Stored>,
}

/// Store of a run beside its writer.
#[derive(Clone)]
pub struct Stored {
    /// Read access to the store.
    pub reader: Arc<dyn Reader>,
    /// Terms of the run.
    pub terms: Arc<RunTerms>,
}

/// Serves HTTP requests, over TLS if there is an acceptor, until the process ends.
pub async fn serve(listener: TcpListener, pages: Pages, access: Access, tls: Option<Acceptor>) {
    let router = router(pages).layer(from_fn_with_state(access, check));
    tcp::accept(listener, CONNECTIONS, move |stream| {
        let (router, tls) = (router.clone(), tls.clone());
        async move {
            match tls {
                None => answer(stream, router).await,
                Some(tls) => {
                    if let Some(stream) = tls.accept(stream).await {
                        answer(stream, router).await;
                    }
                }
            }
        }
    })
    .await;
}

fn router(Pages { status, meter, name, worker, stored }: Pages) -> Router {
    let copied = stored.clone();
    let table = |get: Get| route(move |query| rows(query, stored.clone(), get));
    Router::new()
        .route("/", route(page))
        .route("/events", route(events))
        .route("/healthz", route(health))
        .route("/name", route(|| async { name }))
        .route("/metrics", route(move |status| metrics_text(status, meter)))
        .route("/status.json", route(status_json))
        .route("/api/backup", route(move || backup_stream(copied)))
        .route("/api/devices", route(move |query| devices(query, worker)))
        .route("/api/run", table.clone()(|stored, _| json(&stored.terms.head())))
        .route(
            "/api/releases",
            table.clone()(|stored, query| json(&export::releases(&*stored.reader, &stored.terms, query)?)),
        )
        .route(
            "/api/messages",
            table.clone()(|stored, query| json(&export::messages(&*stored.reader, &stored.terms, query)?)),
        )
        .route("/api/audit", table(|stored, query| json(&export::audit(&*stored.reader, query)?)))
        .with_state(status)
}

/// Function that reads a page of a table from a store, as JSON.
/// Bytes of a backup that wait for the client, in pieces.
const PIECE: usize = 64 << 10;
const PIECES: usize = 4;

/// Streams a copy of the store, as it is now. If it cannot be read to its end, the answer ends before the end of the backup.
async fn backup_stream(stored: Option<Stored>) -> Result<Body, (StatusCode, &'static str)> {
    let Stored { reader, .. } = stored.ok_or((StatusCode::NOT_FOUND, NOTHING_STORED))?;
    let (sender, receiver) = mpsc::channel(PIECES);
    tokio::task::spawn_blocking(move || {
        let mut writer = io::BufWriter::with_capacity(PIECE, Pieces(sender));
        if let Err(error) = backup::write(&*reader, &mut writer) {
            tracing::warn!(%error, "backup not completed");
        }
    });
    Ok(Body::from_stream(ReceiverStream::new(receiver)))
}

/// Writer that sends what is written.
struct Pieces(mpsc::Sender<io::Result<Vec<u8>>>);

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.blocking_send(Ok(bytes.to_vec())).map_err(|_| io::Error::other("the client has left"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const NOTHING_STORED: &str = "a demonstration stores nothing\n";

type Get = fn(&Stored, PageQuery) -> Result<String, ExportError>;

fn json(page: &impl Serialize) -> Result<String, ExportError> {
    Ok(serde_json::to_string(page).map_err(StoreError::new).map_err(StartError::from)?)
}

/// Answers with a page of a table, read in a thread of its own.
async fn rows(
    RawQuery(query): RawQuery,
    stored: Option<Stored>,
    get: Get,
) -> Result<impl IntoResponse, (StatusCode, String)> {
    let query = parameters(query.as_deref())?;
    let stored = stored.ok_or_else(|| (StatusCode::NOT_FOUND, NOTHING_STORED.into()))?;
    let page = tokio::task::spawn_blocking(move || get(&stored, query)).await;
    let failed = |reason: &dyn Display| (StatusCode::INTERNAL_SERVER_ERROR, format!("{reason}\n"));
    let page = page.map_err(|error| failed(&error))?.map_err(|error| match error {
        ExportError::Private => (StatusCode::FORBIDDEN, format!("{error}; add raw=true to read them\n")),
        other => failed(&other),
    })?;
    Ok(([(header::CONTENT_TYPE, "application/json")], page))
}

/// Answers the requests of one connection.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD);
    // The peer may leave at any time.
    let _ = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await;
}

const UNAUTHORIZED: &str = "\
missing or wrong token; send the content of DIR/http.token, with DIR the run's directory, as Authorization: Bearer TOKEN, or
as the password in a browser
";

/// Rejects requests without the token, unless the page is open.
async fn check(State(access): State<Access>, request: Request, next: Next) -> Response {
    let is_permitted = OPEN.contains(&request.uri().path()) || access.permits(request.headers());
    let mut response = match is_permitted {
        true => next.run(request).await,
        false => {
            let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"fedbandit\", charset=\"UTF-8\"")];
            (StatusCode::UNAUTHORIZED, challenge, UNAUTHORIZED).into_response()
        }
    };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Reads the parameters of a request. Their values are numbers and words without escapes.
fn parameters<T: DeserializeOwned>(query: Option<&str>) -> Result<T, (StatusCode, String)> {
    let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let value = |text: &str| text.parse().map_or_else(|_| number_or_text(text), serde_json::Value::Bool);
    let map: serde_json::Map<_, _> = pairs.map(|(key, text)| (key.into(), value(text))).collect();
    serde_json::from_value(map.into())
        .map_err(|error| (StatusCode::BAD_REQUEST, format!("invalid parameters: {error}\n")))
}

async fn devices(RawQuery(query): RawQuery, worker: WorkerHandle) -> Result<Json<DevicePage>, (StatusCode, String)> {
    let query: DeviceQuery = parameters(query.as_deref())?;
    let page = worker.devices(query).await;
    page.map(Json).ok_or_else(|| (StatusCode::SERVICE_UNAVAILABLE, STOPPED.into()))
}

const STOPPED: &str = "the service has stopped\n";

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
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, STOPPED),
    }
}

async fn status_json(State(status): State<Receiver<Status>>) -> impl IntoResponse {
    Json(status.borrow().clone())
}

async fn metrics_text(State(status): State<Receiver<Status>>, meter: Arc<Meter>) -> impl IntoResponse {
    let text = metrics::text(&meter.measure(&status.borrow(), Instant::now()));
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}
