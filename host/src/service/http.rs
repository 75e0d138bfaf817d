//! Status page, device table, status as JSON, Prometheus metrics and health over HTTP.

use std::fmt::{Display, Write as _};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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
use tokio::sync::watch::Receiver;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;

use super::Status;
use super::access::Access;
use super::device_table::{DevicePage, DeviceQuery};
use super::export::{self, ExportError, PageQuery};
use super::start::StartError;
use super::store::metered::Commits;
use super::store::{Reader, StoreError};
use super::terms::RunTerms;
use super::transport::tcp;
use super::transport::tls::Acceptor;
use super::worker::WorkerHandle;
use crate::config::keys::number_or_text;
use crate::robust::Identifiability;

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
    /// Durations of the store's commits.
    pub commits: Arc<Mutex<Commits>>,
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

fn router(Pages { status, commits, name, worker, stored }: Pages) -> Router {
    let started = Instant::now();
    let table = |get: Get| route(move |query| rows(query, stored.clone(), get));
    Router::new()
        .route("/", route(page))
        .route("/events", route(events))
        .route("/healthz", route(health))
        .route("/name", route(|| async { name }))
        .route("/metrics", route(move |status| metrics(status, commits, started)))
        .route("/status.json", route(status_json))
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
    let stored = stored.ok_or_else(|| (StatusCode::NOT_FOUND, "a demonstration stores nothing\n".into()))?;
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

async fn metrics(
    State(status): State<Receiver<Status>>,
    commits: Arc<Mutex<Commits>>,
    started: Instant,
) -> impl IntoResponse {
    let commits = commits.lock().map(|commits| *commits).unwrap_or_default();
    let text = prometheus(&status.borrow(), &commits, started.elapsed());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

/// Suffix of the help of a counter that replaying the store restores.
const RESTORED: &str = "Includes earlier starts of the service.";
/// Suffix of the help of a counter that starts at 0.
const SINCE_START: &str = "Reset when the service starts.";

/// Formats the status as Prometheus text. Devices have no labels of their own.
fn prometheus(status: &Status, commits: &Commits, uptime: Duration) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        let _ = writeln!(text, "# HELP fedbandit_{name} {help}\n# TYPE fedbandit_{name} {kind}");
        for (labels, value) in values {
            let value = if value.is_infinite() { "+Inf".into() } else { value.to_string() };
            let _ = writeln!(text, "fedbandit_{name}{labels} {value}");
        }
    };
    let build = format!("{{version={}}}", serde_json::json!(crate::VERSION));
    metric("build_info", "gauge", "Version of the service, as a label; the value is 1.", &[(build, 1.0)]);
    let (enrolled, privacy) = (status.enrolled as f64, status.privacy.as_ref());
    let last_missing = status.missing_in_last_episode.filter(|_| !status.finished);
    let directions = |state| status.exploration.as_ref().map(|exploration| exploration.count(state) as f64);
    let gauges = [
        ("uptime_seconds", "Seconds since the service started.", Some(uptime.as_secs_f64())),
        ("run_finished", "1 once all episodes are closed, else 0.", Some(f64::from(u8::from(status.finished)))),
        (
            "episode",
            "Running episode; the last one once the run has finished.",
            Some(status.episode.unwrap_or(status.episodes).into()),
        ),
        ("episodes", "Number of episodes of the run.", Some(status.episodes.into())),
        (
            "deadline_seconds",
            "Seconds until the running episode closes; absent once the run has finished.",
            status.seconds_left.map(|seconds| seconds as f64),
        ),
        ("devices_enrolled", "Enrolled devices, including revoked ones.", Some(enrolled)),
        ("devices_revoked", "Devices whose frames are dropped.", Some(status.revoked as f64)),
        ("devices_seen", "Devices that have sent a valid frame since the service started.", Some(status.seen as f64)),
        ("devices_connected", "Connected devices.", Some(status.connected as f64)),
        (
            "devices_missing",
            "Devices that have not reported in the running episode; 0 once the run has finished.",
            Some(status.missing as f64),
        ),
        (
            "missing_ratio",
            "Share of devices that had not reported when the last episode closed; absent once the run has finished.",
            last_missing.map(|missing| missing as f64 / enrolled),
        ),
        ("mean_reward", "Median over devices of their mean reward in the last episode.", status.mean_reward),
        (
            "directions_unidentified",
            "Directions along which too few devices have explored for any rule, of those found; absent in a private run.",
            directions(Identifiability::NotIdentifiable),
        ),
        (
            "directions_uncertain",
            "Directions along which too few devices have explored if some of their claims are false; absent in a private run.",
            directions(Identifiability::Uncertain),
        ),
        ("beta", "Width of the model.", status.beta.map(f64::from)),
        ("lambda", "Regularisation of the model.", Some(status.lambda)),
        ("certified_gap", "Bound on the error of the last aggregation.", Some(status.certified_gap)),
        ("aggregation_passes", "Passes of the last aggregation.", Some(status.passes.into())),
        ("privacy_mu", "Privacy parameter mu of each message over the whole run.", privacy.map(|privacy| privacy.mu)),
        ("privacy_nu", "Privacy parameter nu of each message over the whole run.", privacy.map(|privacy| privacy.nu)),
        (
            "privacy_releases",
            "Private releases so far; a run has as many as episodes.",
            privacy.map(|privacy| privacy.releases.into()),
        ),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            metric(name, "gauge", help, &[(String::new(), value)]);
        }
    }
    let received = status.received;
    for (name, help, scope, count) in [
        ("summaries_accepted_total", "Summaries that count.", RESTORED, received.accepted),
        ("summaries_late_total", "Summaries accepted after their episode had closed.", RESTORED, received.late),
        ("summaries_duplicate_total", "Repeated summaries.", SINCE_START, received.duplicate),
        ("repaired_models_total", "Models whose design matrix was repaired.", RESTORED, status.repaired),
    ] {
        metric(name, "counter", &format!("{help} {scope}"), &[(String::new(), count as f64)]);
    }
    let label = |reason: serde_json::Value| format!("{{reason={reason}}}");
    let mut rejected = vec![(label("not-open".into()), received.refused as f64)];
    rejected.extend(status.faults.iter().map(|(fault, n)| (label(serde_json::json!(fault)), *n as f64)));
    let help = format!("Summaries refused (not-open: {SINCE_START}) or counted as zero (other reasons: {RESTORED})");
    metric("summaries_rejected_total", "counter", &help, &rejected);
    let dropped: Vec<_> = status.dropped.iter().map(|(why, n)| (label(serde_json::json!(why)), *n as f64)).collect();
    metric("frames_dropped_total", "counter", &format!("Invalid frames. {SINCE_START}"), &dropped);
    let _ = writeln!(text, "# HELP fedbandit_commit_seconds Duration of a commit of the store. {SINCE_START}");
    let _ = writeln!(text, "# TYPE fedbandit_commit_seconds histogram");
    for (limit, count) in Commits::LIMITS.into_iter().zip(commits.within) {
        let _ = writeln!(text, "fedbandit_commit_seconds_bucket{{le=\"{limit}\"}} {count}");
    }
    let Commits { count, seconds, .. } = commits;
    let _ = writeln!(text, "fedbandit_commit_seconds_bucket{{le=\"+Inf\"}} {count}");
    let _ = writeln!(text, "fedbandit_commit_seconds_sum {seconds}\nfedbandit_commit_seconds_count {count}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunConfig;
    use crate::service::store::Memory;
    use crate::service::worker::commit_and_tick;
    use crate::service::{MasterKey, Registry, StartOptions, start};

    /// Status of a run of three episodes, after some of them have passed without reports.
    fn status_after(episodes: u64) -> Status {
        let registry = Registry::new(1, 1, 2).with_devices(1..=3);
        let master = MasterKey::from_bytes(&[1; 32]).unwrap();
        let options = StartOptions { time_limit: 1_000, window: 0, unix_seconds: 0 };
        let config = RunConfig { steps: 24, episode_len: Some(8), first_episode: Some(8), ..RunConfig::default() };
        let mut store = Memory::default();
        let mut service = start(&mut store, &config, &registry, &master, options, 0).unwrap();
        (0..=episodes).for_each(|episode| commit_and_tick(&mut service, &mut store, episode * 1_000).unwrap());
        service.status(episodes * 1_000)
    }

    fn sample(text: &str, name: &str) -> Option<f64> {
        let sample = text.lines().find_map(|line| line.strip_prefix(&format!("fedbandit_{name} ")));
        sample.map(|value| value.parse().unwrap())
    }

    #[test]
    fn metrics_of_finished_run_report_no_missing_devices_and_no_deadline() {
        let running = prometheus(&status_after(2), &Commits::default(), Duration::ZERO);
        let value = |name: &str| sample(&running, name);
        assert_eq!((value("run_finished"), value("episode"), value("episodes")), (Some(0.0), Some(3.0), Some(3.0)));
        assert_eq!((value("devices_missing"), value("missing_ratio")), (Some(3.0), Some(1.0)));
        assert_eq!(value("deadline_seconds"), Some(1.0));
        let finished = prometheus(&status_after(3), &Commits::default(), Duration::ZERO);
        let value = |name: &str| sample(&finished, name);
        assert_eq!((value("run_finished"), value("episode"), value("episodes")), (Some(1.0), Some(3.0), Some(3.0)));
        assert_eq!((value("devices_missing"), value("missing_ratio")), (Some(0.0), None));
        assert_eq!(value("deadline_seconds"), None);
    }

    #[test]
    fn metrics_count_directions_that_nobody_has_explored() {
        let status = status_after(1);
        let text = prometheus(&status, &Commits::default(), Duration::ZERO);
        let value =
            |text: &str| ["unidentified", "uncertain"].map(|state| sample(text, &format!("directions_{state}")));
        assert_eq!(value(&text), [Some(2.0), Some(0.0)]);
        let private = prometheus(&Status { exploration: None, ..status }, &Commits::default(), Duration::ZERO);
        assert_eq!(value(&private), [None, None]);
    }

    #[test]
    fn metrics_include_version_and_uptime() {
        let text = prometheus(&status_after(0), &Commits::default(), Duration::from_millis(1_500));
        assert!(text.contains(&format!("\nfedbandit_build_info{{version=\"{}\"}} 1\n", crate::VERSION)), "{text}");
        assert_eq!(sample(&text, "uptime_seconds"), Some(1.5));
    }

    #[test]
    fn counters_tell_if_they_survive_a_restart() {
        let text = prometheus(&status_after(0), &Commits::default(), Duration::ZERO);
        let counters =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).filter(|line| !line.ends_with("gauge"));
        for counter in counters.map(|line| line.split_once(' ').unwrap().0) {
            let help = text.lines().find(|line| line.starts_with(&format!("# HELP {counter} "))).unwrap();
            assert!(help.contains(RESTORED) || help.contains(SINCE_START), "{help}");
        }
    }
}
