//! The list of metrics.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::state_machine::Dropped;
use super::{Group, Measured, Metric, Unit, Value};
use crate::algorithm::Fault;
use crate::robust::Identifiability;

const fn metric(name: &'static str, help: &'static str, value: Value) -> Metric {
    Metric { name, help, value }
}

fn flag(is_set: bool) -> Option<f64> {
    Some(f64::from(u8::from(is_set)))
}

fn directions(measured: &Measured<'_>, state: Identifiability) -> Option<f64> {
    measured.status.exploration.as_ref().map(|exploration| exploration.count(state) as f64)
}

/// Returns the count of each reason by its name. Counters start at 0, because Prometheus cannot see the increase of a new one.
fn counts<T: Ord + Serialize>(reasons: &[T], counted: &BTreeMap<T, u64>) -> impl Iterator<Item = (String, u64)> {
    reasons.iter().map(|reason| {
        let name = serde_json::json!(reason).as_str().unwrap_or_default().to_owned();
        (name, counted.get(reason).copied().unwrap_or_default())
    })
}

/// All metrics, grouped by panel.
pub const LIST: &[Group] = &[
    Group {
        title: "Version",
        unit: Unit::Number,
        metrics: &[metric(
            "build_info",
            "Version of the service, as a label; the value is 1.",
            Value::Info("version", |_| crate::VERSION.into()),
        )],
    },
    Group {
        title: "Uptime",
        unit: Unit::Seconds,
        metrics: &[metric(
            "uptime_seconds",
            "Seconds since the service started.",
            Value::Gauge(|measured| Some(measured.uptime.as_secs_f64())),
        )],
    },
    Group {
        title: "Run finished",
        unit: Unit::Flag,
        metrics: &[metric(
            "run_finished",
            "1 once all episodes are closed, else 0.",
            Value::Gauge(|measured| flag(measured.status.finished)),
        )],
    },
    Group {
        title: "Episode",
        unit: Unit::Number,
        metrics: &[
            metric(
                "episode",
                "Running episode; the last one once the run has finished.",
                Value::Gauge(|measured| Some(measured.status.episode.unwrap_or(measured.status.episodes).into())),
            ),
            metric(
                "episodes",
                "Number of episodes of the run.",
                Value::Gauge(|measured| Some(measured.status.episodes.into())),
            ),
        ],
    },
    Group {
        title: "Time of the episode",
        unit: Unit::Seconds,
        metrics: &[
            metric(
                "deadline_seconds",
                "Seconds until the running episode closes; absent once the run has finished.",
                Value::Gauge(|measured| measured.status.seconds_left.map(|seconds| seconds as f64)),
            ),
            metric(
                "episode_age_seconds",
                "Seconds since the running episode began or the service started; absent once the run has finished.",
                Value::Gauge(|measured| (!measured.status.finished).then_some(measured.episode_age.as_secs_f64())),
            ),
            metric(
                "episode_limit_seconds",
                "Longest duration of an episode, the setting deadline.",
                Value::Gauge(|measured| Some(measured.status.seconds_per_episode as f64)),
            ),
        ],
    },
    Group {
        title: "Devices",
        unit: Unit::Number,
        metrics: &[
            metric(
                "devices_enrolled",
                "Enrolled devices, including revoked ones.",
                Value::Gauge(|measured| Some(measured.status.enrolled as f64)),
            ),
            metric(
                "devices_revoked",
                "Devices whose frames are dropped.",
                Value::Gauge(|measured| Some(measured.status.revoked as f64)),
            ),
            metric(
                "devices_seen",
                "Devices that have sent a valid frame since the service started.",
                Value::Gauge(|measured| Some(measured.status.seen as f64)),
            ),
            metric(
                "devices_connected",
                "Connected devices.",
                Value::Gauge(|measured| Some(measured.status.connected as f64)),
            ),
            metric(
                "devices_missing",
                "Devices that have not reported in the running episode; 0 once the run has finished.",
                Value::Gauge(|measured| Some(measured.status.missing as f64)),
            ),
        ],
    },
    Group {
        title: "Missing and corrupted share",
        unit: Unit::Share,
        metrics: &[
            metric(
                "missing_ratio",
                "Share of devices that had not reported when the last episode closed; absent once the run has finished.",
                Value::Gauge(|measured| {
                    let missing = measured.status.missing_in_last_episode.filter(|_| !measured.status.finished);
                    missing.map(|missing| missing as f64 / measured.status.enrolled as f64)
                }),
            ),
            metric(
                "design_corruption_ratio",
                "Share of devices that may be corrupted, the setting design-corruption.",
                Value::Gauge(|measured| Some(measured.status.design_corruption)),
            ),
        ],
    },
    Group {
        title: "Absence tolerated",
        unit: Unit::Flag,
        metrics: &[metric(
            "absence_tolerated",
            "0 if the rule takes a missing device for a corrupted one, else 1.",
            Value::Gauge(|measured| flag(measured.status.tolerates_absence)),
        )],
    },
    Group {
        title: "Mean reward",
        unit: Unit::Number,
        metrics: &[metric(
            "mean_reward",
            "Median over devices of their mean reward in the last episode; absent in a private run.",
            Value::Gauge(|measured| measured.status.mean_reward),
        )],
    },
    Group {
        title: "Directions with too few explorers",
        unit: Unit::Number,
        metrics: &[
            metric(
                "directions_unidentified",
                "Directions along which too few devices have explored for any rule, of those found; absent in a private run.",
                Value::Gauge(|measured| directions(measured, Identifiability::NotIdentifiable)),
            ),
            metric(
                "directions_uncertain",
                "Directions along which too few devices have explored if some of their claims are false; absent in a private run.",
                Value::Gauge(|measured| directions(measured, Identifiability::Uncertain)),
            ),
        ],
    },
    Group {
        title: "Width and regularisation",
        unit: Unit::Number,
        metrics: &[
            metric("beta", "Width of the model.", Value::Gauge(|measured| measured.status.beta.map(f64::from))),
            metric("lambda", "Regularisation of the model.", Value::Gauge(|measured| Some(measured.status.lambda))),
        ],
    },
    Group {
        title: "Error of the aggregation",
        unit: Unit::Number,
        metrics: &[metric(
            "certified_gap",
            "Bound on the error of the last aggregation.",
            Value::Gauge(|measured| Some(measured.status.certified_gap)),
        )],
    },
    Group {
        title: "Passes of the aggregation",
        unit: Unit::Number,
        metrics: &[metric(
            "aggregation_passes",
            "Passes of the last aggregation.",
            Value::Gauge(|measured| Some(measured.status.passes.into())),
        )],
    },
    Group {
        title: "Repaired models",
        unit: Unit::Number,
        metrics: &[metric(
            "repaired_models_total",
            "Models whose design matrix was repaired. Includes earlier starts of the service.",
            Value::Counter(|measured| measured.status.repaired),
        )],
    },
    Group {
        title: "Privacy budget of the run",
        unit: Unit::Number,
        metrics: &[
            metric(
                "privacy_mu",
                "Privacy parameter mu of each message over the whole run.",
                Value::Gauge(|measured| measured.status.privacy.as_ref().map(|privacy| privacy.mu)),
            ),
            metric(
                "privacy_nu",
                "Privacy parameter nu of each message over the whole run.",
                Value::Gauge(|measured| measured.status.privacy.as_ref().map(|privacy| privacy.nu)),
            ),
        ],
    },
    Group {
        title: "Private releases",
        unit: Unit::Number,
        metrics: &[metric(
            "privacy_releases",
            "Private releases so far; a run has as many as episodes.",
            Value::Gauge(|measured| measured.status.privacy.as_ref().map(|privacy| privacy.releases.into())),
        )],
    },
    Group {
        title: "Summaries",
        unit: Unit::Number,
        metrics: &[
            metric(
                "summaries_accepted_total",
                "Summaries that count. Includes earlier starts of the service.",
                Value::Counter(|measured| measured.status.received.accepted),
            ),
            metric(
                "summaries_late_total",
                "Summaries accepted after their episode had closed. Includes earlier starts of the service.",
                Value::Counter(|measured| measured.status.received.late),
            ),
            metric(
                "summaries_duplicate_total",
                "Repeated summaries. Reset when the service starts.",
                Value::Counter(|measured| measured.status.received.duplicate),
            ),
        ],
    },
    Group {
        title: "Summaries refused or counted as zero",
        unit: Unit::Number,
        metrics: &[metric(
            "summaries_rejected_total",
            "Summaries refused (not-open) or counted as zero (other reasons). Includes earlier starts of the service, except for \
             not-open.",
            Value::Counters("reason", |measured| {
                let refused = ("not-open".to_owned(), measured.status.received.refused);
                [refused].into_iter().chain(counts(&Fault::ALL, &measured.status.faults)).collect()
            }),
        )],
    },
    Group {
        title: "Dropped frames",
        unit: Unit::Number,
        metrics: &[metric(
            "frames_dropped_total",
            "Invalid frames. Reset when the service starts.",
            Value::Counters("reason", |measured| counts(&Dropped::ALL, &measured.status.dropped).collect()),
        )],
    },
    Group {
        title: "Duration of commits",
        unit: Unit::Seconds,
        metrics: &[metric(
            "commit_seconds",
            "Duration of a commit of the store. Reset when the service starts.",
            Value::Histogram(|measured| measured.commits),
        )],
    },
    Group {
        title: "Disk",
        unit: Unit::Bytes,
        metrics: &[
            metric(
                "store_bytes",
                "Bytes of the store on disk.",
                Value::Gauge(|measured| measured.disk.map(|[used, _]| used as f64)),
            ),
            metric(
                "store_free_bytes",
                "Bytes that the service can still write to the file system of the store.",
                Value::Gauge(|measured| measured.disk.map(|[_, free]| free as f64)),
            ),
        ],
    },
    Group {
        title: "Age of the last snapshot",
        unit: Unit::Seconds,
        metrics: &[metric(
            "snapshot_age_seconds",
            "Seconds since the last snapshot of the run's state; absent before the first.",
            Value::Gauge(|measured| measured.status.snapshot_age_seconds.map(|seconds| seconds as f64)),
        )],
    },
];
