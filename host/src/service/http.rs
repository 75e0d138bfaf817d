//! A service's status, metrics and health over HTTP.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
use super::store::metered::Commits;

/// Answers until the process ends.
pub async fn serve(listener: TcpListener, status: Receiver<Status>, commits: Arc<Mutex<Commits>>, name: String) {
    let router = Router::new()
        .route("/", route(page))
        .route("/events", route(events))
        .route("/healthz", route(health))
        .route("/name", route(|| async { name }))
        .route("/metrics", route(move |status| metrics(status, commits)))
        .route("/status.json", route(status_json))
        .with_state(status);
    let _ = axum::serve(listener, router).await;
}

/// The page: all that it needs is in it, and what changes comes from [`events`].
async fn page(State(status): State<Receiver<Status>>) -> Html<String> {
    let status = serde_json::to_string(&*status.borrow()).unwrap_or_default();
    // Nothing in it can end the script that it stands in.
    Html(include_str!("page.html").replacen("null/* status */", &status.replace('<', "\\u003c"), 1))
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

async fn metrics(State(status): State<Receiver<Status>>, commits: Arc<Mutex<Commits>>) -> impl IntoResponse {
    let commits = commits.lock().map(|commits| *commits).unwrap_or_default();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], prometheus(&status.borrow(), &commits))
}

/// The status in Prometheus' text format. No device has a label of its own.
fn prometheus(status: &Status, commits: &Commits) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        let _ = writeln!(text, "# HELP fedbandit_{name} {help}\n# TYPE fedbandit_{name} {kind}");
        for (labels, value) in values {
            let value = if value.is_infinite() { "+Inf".into() } else { value.to_string() };
            let _ = writeln!(text, "fedbandit_{name}{labels} {value}");
        }
    };
    let gauges = [
        ("episode", "The running episode, 0 when the run is over.", Some(status.episode.unwrap_or(0).into())),
        ("episodes", "The episodes of the whole run.", Some(status.episodes.into())),
        ("deadline_seconds", "Until the running episode ends.", Some(status.seconds_left as f64)),
        ("devices_enrolled", "Devices that count.", Some(status.enrolled as f64)),
        ("devices_revoked", "Devices whose frames are dropped.", Some(status.revoked as f64)),
        ("devices_seen", "Devices that were heard since the service started.", Some(status.seen as f64)),
        ("devices_connected", "Devices with a connection.", Some(status.connected as f64)),
        ("devices_missing", "Devices that sent nothing for the running episode.", Some(status.missing as f64)),
        (
            "missing_ratio",
            "The share of devices that had sent nothing when the last episode closed.",
            status.missing_in_last_episode.map(|missing| missing as f64 / status.enrolled as f64),
        ),
        ("mean_reward", "The median over devices of their mean reward in the last episode.", status.mean_reward),
        ("beta", "The width of the model.", status.beta.map(f64::from)),
        ("lambda", "The regularisation of the model.", Some(status.lambda)),
        ("certified_gap", "A bound on the last aggregation's error.", Some(status.certified_gap)),
        ("aggregation_passes", "Passes of the last aggregation.", Some(status.passes.into())),
        ("privacy_mu", "The mu that each message is promised.", status.privacy.as_ref().map(|promise| promise.mu)),
        ("privacy_nu", "The nu that each message is promised.", status.privacy.as_ref().map(|promise| promise.nu)),
        (
            "privacy_releases",
            "Private releases so far, of as many as there are episodes.",
            status.privacy.as_ref().map(|promise| promise.releases.into()),
        ),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            metric(name, "gauge", help, &[(String::new(), value)]);
        }
    }
    let received = status.received;
    for (name, help, count) in [
        ("summaries_accepted_total", "Summaries that count.", received.accepted),
        ("summaries_late_total", "Summaries that count, although their episode had closed.", received.late),
        ("summaries_duplicate_total", "Summaries that were there before.", received.duplicate),
        ("repaired_models_total", "Models whose design matrix was repaired.", status.repaired),
    ] {
        metric(name, "counter", help, &[(String::new(), count as f64)]);
    }
    let label = |reason: serde_json::Value| format!("{{reason={reason}}}");
    let mut rejected = vec![(label("not-open".into()), received.refused as f64)];
    rejected.extend(status.faults.iter().map(|(fault, n)| (label(serde_json::json!(fault)), *n as f64)));
    metric("summaries_rejected_total", "counter", "Summaries that were refused, or count as zero.", &rejected);
    let dropped: Vec<_> = status.dropped.iter().map(|(why, n)| (label(serde_json::json!(why)), *n as f64)).collect();
    metric("frames_dropped_total", "counter", "Frames that meant nothing.", &dropped);
    let _ = writeln!(text, "# HELP fedbandit_commit_seconds What it takes to store events.");
    let _ = writeln!(text, "# TYPE fedbandit_commit_seconds histogram");
    for (limit, count) in Commits::LIMITS.into_iter().zip(commits.within) {
        let _ = writeln!(text, "fedbandit_commit_seconds_bucket{{le=\"{limit}\"}} {count}");
    }
    let Commits { count, seconds, .. } = commits;
    let _ = writeln!(text, "fedbandit_commit_seconds_bucket{{le=\"+Inf\"}} {count}");
    let _ = writeln!(text, "fedbandit_commit_seconds_sum {seconds}\nfedbandit_commit_seconds_count {count}");
    text
}

/// The body of a page of a service on this machine.
///
/// # Errors
/// There is no service, it does not answer in time, or has no such page.
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
