//! Prometheus metrics of a service. The [list](LIST) is the only place that names them: the text format, the dashboard and the
//! table of the guide follow from it.

mod list;

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Status;
use super::store::metered::Commits;

pub use list::LIST;

/// Prefix of all names.
pub const PREFIX: &str = "fedbandit_";

/// Metrics of one unit that belong on one panel of a dashboard.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Title of the panel.
    pub title: &'static str,
    /// Unit of the metrics.
    pub unit: Unit,
    /// Metrics in the order of their output.
    pub metrics: &'static [Metric],
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things, or no unit.
    Number,
    /// 1 for yes, 0 for no.
    Flag,
    /// A share from 0 to 1.
    Share,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
}

/// A metric: name, help and value.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name without [`PREFIX`].
    pub name: &'static str,
    /// Meaning, in a sentence. That of a counter states whether it includes earlier starts of the service.
    pub help: &'static str,
    /// Type and value.
    pub value: Value,
}

/// Type of a metric, and the function that reads its value.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A gauge; absent without a value.
    Gauge(fn(&Measured<'_>) -> Option<f64>),
    /// A gauge of value 1 whose label has the information.
    Info(&'static str, fn(&Measured<'_>) -> String),
    /// A counter.
    Counter(fn(&Measured<'_>) -> u64),
    /// A counter for each value of a label.
    Counters(&'static str, fn(&Measured<'_>) -> Vec<(String, u64)>),
    /// A histogram.
    Histogram(fn(&Measured<'_>) -> Commits),
}

/// State of a service at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// State of the run.
    pub status: &'a Status,
    /// Commits of the store.
    pub commits: Commits,
    /// Time since the service started.
    pub uptime: Duration,
    /// Time since the running episode began, or the service started.
    pub episode_age: Duration,
    /// Bytes of the store on disk, and free bytes of its file system. None for a store in memory.
    pub disk: Option<[u64; 2]>,
}

impl Metric {
    /// Returns the name with [`PREFIX`].
    pub fn full_name(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// Returns the type, as Prometheus calls it.
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Gauge(_) | Value::Info(..) => "gauge",
            Value::Counter(_) | Value::Counters(..) => "counter",
            Value::Histogram(_) => "histogram",
        }
    }

    /// Returns the samples: suffix of the name with labels, and value.
    fn samples(&self, measured: &Measured<'_>) -> Vec<(String, f64)> {
        // JSON escapes quotes, backslashes and line feeds as the text format does.
        let labelled = |label: &str, value: &str| format!("{{{label}={}}}", serde_json::json!(value));
        match self.value {
            Value::Gauge(value) => value(measured).map(|value| (String::new(), value)).into_iter().collect(),
            Value::Info(label, value) => vec![(labelled(label, &value(measured)), 1.0)],
            Value::Counter(count) => vec![(String::new(), count(measured) as f64)],
            Value::Counters(label, counts) => {
                counts(measured).iter().map(|(value, count)| (labelled(label, value), *count as f64)).collect()
            }
            Value::Histogram(commits) => {
                let Commits { count, seconds, within } = commits(measured);
                let buckets = Commits::LIMITS.iter().zip(within).map(|(limit, count)| (limit.to_string(), count));
                let buckets = buckets.chain([("+Inf".into(), count)]);
                let buckets =
                    buckets.map(|(limit, count)| (format!("_bucket{}", labelled("le", &limit)), count as f64));
                buckets.chain([("_sum".into(), seconds), ("_count".into(), count as f64)]).collect()
            }
        }
    }
}

/// Returns all metrics in the order of their output.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    LIST.iter().flat_map(|group| group.metrics)
}

/// Formats metrics as Prometheus text. Devices have no labels of their own.
pub fn text(measured: &Measured<'_>) -> String {
    let mut text = String::new();
    for metric in all() {
        let (name, samples) = (metric.full_name(), metric.samples(measured));
        if samples.is_empty() {
            continue;
        }
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {}", metric.help, metric.kind());
        for (suffix, value) in samples {
            let value = if value.is_infinite() { "+Inf".into() } else { value.to_string() };
            let _ = writeln!(text, "{name}{suffix} {value}");
        }
    }
    text
}

/// Measures a running service beyond its status.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    commits: Arc<Mutex<Commits>>,
    store: Option<PathBuf>,
    /// Running episode and the time at which it was first reported.
    episode: Mutex<(Option<u32>, Instant)>,
}

impl Meter {
    /// Starts to measure a service with the commits and the file of its store.
    pub fn new(commits: Arc<Mutex<Commits>>, store: Option<PathBuf>, now: Instant) -> Self {
        Self { started: now, commits, store, episode: Mutex::new((None, now)) }
    }

    /// Notes a report of the status. Call for each.
    pub fn observe(&self, status: &Status, now: Instant) {
        if let Ok(mut episode) = self.episode.lock()
            && episode.0 != status.episode
        {
            *episode = (status.episode, now);
        }
    }

    /// Measures the service, whose last status is given.
    pub fn measure<'a>(&self, status: &'a Status, now: Instant) -> Measured<'a> {
        let commits = self.commits.lock().map(|commits| *commits).unwrap_or_default();
        let began = self.episode.lock().map_or(self.started, |episode| episode.1);
        let [uptime, episode_age] = [self.started, began].map(|start| now.saturating_duration_since(start));
        Measured { status, commits, uptime, episode_age, disk: self.disk() }
    }

    fn disk(&self) -> Option<[u64; 2]> {
        let file = self.store.as_ref()?;
        // Blocks are units of 512 bytes on every file system.
        let used = file.metadata().ok()?.blocks() * 512;
        let system = rustix::fs::statvfs(file).ok()?;
        Some([used, system.f_bavail * system.f_frsize])
    }
}

#[cfg(test)]
mod tests;
