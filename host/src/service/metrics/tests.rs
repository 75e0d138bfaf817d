use super::*;
use crate::config::RunConfig;
use crate::service::store::Memory;
use crate::service::worker::commit_and_tick;
use crate::service::{MasterKey, Registry, StartOptions, start};

/// Status of a run of three episodes, after some of them have passed without reports.
fn status_after(episodes: u64) -> Status {
    let registry = Registry::new(1, 1, 2).with_devices(1..=3);
    let master = MasterKey::from_bytes(&[1; 32]).unwrap();
    let options = StartOptions::new(1_000, 0, 0);
    let config = RunConfig { steps: 24, episode_len: Some(8), first_episode: Some(8), ..RunConfig::default() };
    let mut store = Memory::default();
    let mut service = start(&mut store, &config, &registry, &master, options, 0).unwrap();
    (0..=episodes).for_each(|episode| commit_and_tick(&mut service, &mut store, episode * 1_000).unwrap());
    service.status(episodes * 1_000)
}

fn measured(status: &Status) -> Measured<'_> {
    Measured { status, commits: Commits::default(), uptime: Duration::ZERO, episode_age: Duration::ZERO, disk: None }
}

fn format(status: &Status) -> String {
    text(&measured(status))
}

fn sample(text: &str, name: &str) -> Option<f64> {
    let sample = text.lines().find_map(|line| line.strip_prefix(&format!("fedbandit_{name} ")));
    sample.map(|value| value.parse().unwrap())
}

#[test]
fn metrics_of_finished_run_report_no_missing_devices_and_no_deadline() {
    let running = format(&status_after(2));
    let value = |name: &str| sample(&running, name);
    assert_eq!((value("run_finished"), value("episode"), value("episodes")), (Some(0.0), Some(3.0), Some(3.0)));
    assert_eq!((value("devices_missing"), value("missing_ratio")), (Some(3.0), Some(1.0)));
    assert_eq!((value("deadline_seconds"), value("episode_age_seconds")), (Some(1.0), Some(0.0)));
    let finished = format(&status_after(3));
    let value = |name: &str| sample(&finished, name);
    assert_eq!((value("run_finished"), value("episode"), value("episodes")), (Some(1.0), Some(3.0), Some(3.0)));
    assert_eq!((value("devices_missing"), value("missing_ratio")), (Some(0.0), None));
    assert_eq!((value("deadline_seconds"), value("episode_age_seconds")), (None, None));
}

#[test]
fn metrics_count_directions_that_nobody_has_explored() {
    let status = status_after(1);
    let text = format(&status);
    let value = |text: &str| ["unidentified", "uncertain"].map(|state| sample(text, &format!("directions_{state}")));
    assert_eq!(value(&text), [Some(2.0), Some(0.0)]);
    let private = format(&Status { exploration: None, ..status });
    assert_eq!(value(&private), [None, None]);
}

#[test]
fn metrics_include_version_and_uptime() {
    let text = text(&Measured { uptime: Duration::from_millis(1_500), ..measured(&status_after(0)) });
    assert!(text.contains(&format!("\nfedbandit_build_info{{version=\"{}\"}} 1\n", crate::VERSION)), "{text}");
    assert_eq!(sample(&text, "uptime_seconds"), Some(1.5));
}

#[test]
fn counters_tell_if_they_survive_a_restart() {
    let text = format(&status_after(0));
    let counters = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).filter(|line| !line.ends_with("gauge"));
    for counter in counters.map(|line| line.split_once(' ').unwrap().0) {
        let help = text.lines().find(|line| line.starts_with(&format!("# HELP {counter} "))).unwrap();
        assert!(
            help.contains(". Includes earlier starts of the service")
                || help.ends_with(". Reset when the service starts."),
            "{help}"
        );
    }
}

#[test]
fn counters_of_reasons_have_one_label() {
    let faults = [(crate::algorithm::Fault::NonFinite, 2)].into();
    let dropped = [(crate::service::Dropped::Unknown, 3)].into();
    let text = format(&Status { faults, dropped, ..status_after(0) });
    assert_eq!(sample(&text, "summaries_rejected_total{reason=\"non-finite\"}"), Some(2.0));
    assert_eq!(sample(&text, "summaries_rejected_total{reason=\"not-open\"}"), Some(0.0));
    assert_eq!(sample(&text, "summaries_rejected_total{reason=\"norm\"}"), Some(0.0));
    assert_eq!(sample(&text, "frames_dropped_total{reason=\"unknown\"}"), Some(3.0));
    assert_eq!(sample(&text, "frames_dropped_total{reason=\"too-many\"}"), Some(0.0));
}

#[test]
fn values_of_disk_and_snapshot_are_absent_until_known() {
    let names = ["store_bytes", "store_free_bytes", "snapshot_age_seconds"];
    let values = |text: &str| names.map(|name| sample(text, name));
    let status = status_after(0);
    assert_eq!(values(&format(&status)), [None; 3]);
    let status = Status { snapshot_age_seconds: Some(7), ..status };
    let text = text(&Measured { disk: Some([1 << 40, 5]), ..measured(&status) });
    assert_eq!(values(&text), [Some(2.0_f64.powi(40)), Some(5.0), Some(7.0)]);
}

/// Blocks of the file are those that were written; the file system has room for them.
#[test]
fn meter_measures_the_file_of_the_store() {
    let file = std::env::temp_dir().join(format!("fedbandit-{}-meter", std::process::id()));
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    std::fs::File::open(&file).unwrap().sync_all().unwrap();
    let text =
        text(&Meter::new(Arc::default(), Some(file.clone()), Instant::now()).measure(&status_after(0), Instant::now()));
    std::fs::remove_file(file).unwrap();
    let bytes = sample(&text, "store_bytes").unwrap();
    assert!((1_048_576.0..2_097_152.0).contains(&bytes), "{bytes}");
    assert!(sample(&text, "store_free_bytes").unwrap() >= 0.0);
}

#[test]
fn age_of_an_episode_starts_again_with_each_episode() {
    let start = Instant::now();
    let meter = Meter::new(Arc::default(), None, start);
    let status = status_after(0);
    let mut ages = Vec::new();
    for (episode, seconds) in [(1, 10), (1, 15), (2, 17), (2, 40)] {
        let (status, now) = (Status { episode: Some(episode), ..status.clone() }, start + Duration::from_secs(seconds));
        meter.observe(&status, now);
        let Measured { episode_age, uptime, .. } = meter.measure(&status, now);
        assert_eq!(uptime.as_secs(), seconds);
        ages.push(episode_age.as_secs());
    }
    assert_eq!(ages, [0, 5, 0, 23]);
    // Time goes on although the worker reports nothing.
    assert_eq!(meter.measure(&status, start + Duration::from_secs(100)).episode_age.as_secs(), 83);
}

#[test]
fn names_are_distinct_and_have_their_units() {
    let names: std::collections::BTreeSet<&str> = all().map(|metric| metric.name).collect();
    assert_eq!(names.len(), all().count());
    for group in LIST {
        for Metric { name, help, value } in group.metrics {
            assert_eq!(name.ends_with("_total"), matches!(value, Value::Counter(_) | Value::Counters(..)), "{name}");
            assert_eq!(name.ends_with("_seconds"), group.unit == Unit::Seconds, "{name}");
            assert_eq!(name.ends_with("_bytes"), group.unit == Unit::Bytes, "{name}");
            assert_eq!(name.ends_with("_ratio"), group.unit == Unit::Share, "{name}");
            assert!(help.ends_with('.') && !help.contains('\n') && !help.contains('\\'), "{name}: {help}");
        }
    }
}
