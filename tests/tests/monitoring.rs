//! Alert rules and dashboard against the list of metrics, and under promtool.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use fedbandit::service::metrics::{self, PREFIX, Value};
use fedbandit_tests::harness::repository;
use fedbandit_tests::measure::monitoring::{self, DASHBOARD};

const RULES: &str = "packaging/prometheus/alerts.yml";
const RULE_TESTS: &str = "packaging/prometheus/alerts.test.yml";

fn read(file: &str) -> String {
    fs::read_to_string(repository().join(file)).unwrap()
}

/// Returns the names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with(PREFIX)).collect()
}

/// Returns the names under which Prometheus stores the metrics of the list.
fn series() -> BTreeSet<String> {
    let suffixes = |value: &Value| match value {
        Value::Histogram(_) => ["_bucket", "_sum", "_count"].as_slice(),
        _ => &[""],
    };
    let stored = metrics::all()
        .flat_map(|metric| suffixes(&metric.value).iter().map(|suffix| format!("{}{suffix}", metric.full_name())));
    stored.collect()
}

/// Returns the values of a key of the rules and their tests.
fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| line.trim_start_matches([' ', '-']).strip_prefix(key)?.strip_prefix(": "))
}

fn promtool(arguments: &[&str]) {
    let output = Command::new("promtool").current_dir(repository()).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("cannot start promtool: {error}; ./ci.sh packages installs it"));
    assert!(output.status.success(), "promtool {arguments:?}: {output:?}");
}

#[test]
fn dashboard_and_table_follow_from_the_list() {
    monitoring::run(false).unwrap();
}

#[test]
fn rules_and_dashboard_use_metrics_of_the_list() {
    let (series, dashboard) = (series(), read(DASHBOARD));
    for text in [&read(RULES), &read(RULE_TESTS), &dashboard] {
        let unknown: Vec<_> = names(text).into_iter().filter(|name| !series.contains(*name)).collect();
        assert!(unknown.is_empty(), "not in the list of metrics: {unknown:?}");
    }
    assert!(names(&read(RULES)).len() > 10);
    // The dashboard shows all of them; of a histogram, the buckets.
    let shown = names(&dashboard);
    let is_hidden = |name: &&String| !name.ends_with("_seconds_sum") && !name.ends_with("_seconds_count");
    let missing: Vec<_> = series.iter().filter(is_hidden).filter(|name| !shown.contains(&***name)).collect();
    assert!(missing.is_empty(), "not on the dashboard: {missing:?}");
}

/// An alert that never fires under test could never fire at all.
#[test]
fn alerts_are_tested_both_ways_and_documented() {
    let (rules, tests, guide) = (read(RULES), read(RULE_TESTS), read("docs/guide/operations.md"));
    let alerts: Vec<&str> = values(&rules, "alert").collect();
    assert!(alerts.len() >= 10, "{alerts:?}");
    for alert in alerts {
        let cases = tests.split("- alertname: ").skip(1).filter(|case| case.lines().next() == Some(alert));
        let fires: BTreeSet<bool> = cases.map(|case| case.contains("exp_labels:")).collect();
        assert_eq!(fires.len(), 2, "{alert} needs a case in which it fires and one in which it does not: {fires:?}");
        assert!(guide.contains(&format!("| `{alert}` |")), "{alert} is not documented");
    }
}

#[test]
fn rules_pass_promtool() {
    promtool(&["check", "rules", RULES]);
    promtool(&["test", "rules", RULE_TESTS]);
}

/// Expressions of the dashboard as recording rules, which promtool parses.
#[test]
fn dashboard_expressions_pass_promtool() {
    let dashboard = monitoring::dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let expressions = targets.map(|target| target["expr"].as_str().unwrap().replace("$__rate_interval", "5m"));
    let rules: Vec<_> = (1..)
        .zip(expressions)
        .map(|(n, expr)| serde_json::json!({ "record": format!("panel:{n}"), "expr": expr }))
        .collect();
    assert!(rules.len() > 20, "{} expressions", rules.len());
    let file = std::env::temp_dir().join(format!("fedbandit-{}-dashboard.yml", std::process::id()));
    // JSON is YAML.
    fs::write(&file, serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] }).to_string()).unwrap();
    promtool(&["check", "rules", file.to_str().unwrap()]);
    fs::remove_file(file).unwrap();
}
