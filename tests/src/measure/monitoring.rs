//! The Grafana dashboard and the table of metrics in the guide, both from the list of metrics.

use std::fs;

use fedbandit::service::metrics::{Group, LIST, Metric, Unit, Value};
use serde_json::{Value as Json, json};

use super::record;
use crate::harness::repository;

/// The dashboard in the repository.
pub const DASHBOARD: &str = "packaging/grafana/dashboard.json";
/// The page with the table of metrics.
const GUIDE: &str = "docs/guide/operations.md";
/// Command that writes both.
const COMMAND: &str = "./ci.sh packages --write";

/// Compares dashboard and table with the list of metrics, or writes them.
///
/// # Errors
/// A file differs, or cannot be read or written.
pub fn run(write: bool) -> Result<String, String> {
    let guide = read(GUIDE)?;
    let with_table = record::between(&guide, "metrics", COMMAND, &table());
    let with_table = with_table.ok_or_else(|| format!("{GUIDE} lacks the mark '<!-- metrics: {COMMAND} -->'"))?;
    let files = [(GUIDE, with_table), (DASHBOARD, format!("{:#}\n", dashboard()))];
    for (file, text) in files {
        if write {
            fs::write(repository().join(file), text).map_err(|error| format!("{file}: {error}"))?;
        } else if read(file)? != text {
            return Err(format!("{file} differs from the list of metrics; write it with {COMMAND}"));
        }
    }
    Ok(String::new())
}

fn read(file: &str) -> Result<String, String> {
    fs::read_to_string(repository().join(file)).map_err(|error| format!("{file}: {error}; write it with {COMMAND}"))
}

/// Returns the table of metrics in Markdown.
fn table() -> String {
    let mut table = String::from("| metric | type | meaning |\n|---|---|---|\n");
    for metric in LIST.iter().flat_map(|group| group.metrics) {
        let label = match metric.value {
            Value::Info(label, _) | Value::Counters(label, _) => format!("{{{label}}}"),
            _ => String::new(),
        };
        table += &format!("| `{}{label}` | {} | {} |\n", metric.full_name(), metric.kind(), metric.help);
    }
    table
}

/// Returns the dashboard.
pub fn dashboard() -> Json {
    // Panels of one value come first.
    let is_stat = |group: &&Group| group.unit == Unit::Flag || matches!(group.metrics[0].value, Value::Info(..));
    let (stats, graphs): (Vec<&Group>, Vec<&Group>) = LIST.iter().partition(is_stat);
    let (rows, places) = (
        stats.len().div_ceil(3),
        |index: usize, top: usize, height: usize| json!({ "x": index % 3 * 8, "y": top + index / 3 * height, "w": 8, "h": height }),
    );
    let stats = stats.iter().enumerate().map(|(index, group)| panel(group, "stat", places(index, 0, 4)));
    let graphs = graphs.iter().enumerate().map(|(index, group)| panel(group, "timeseries", places(index, rows * 4, 8)));
    let panels: Vec<Json> = stats.chain(graphs).collect();
    json!({
        "title": "fedbandit",
        "uid": "fedbandit",
        "tags": ["fedbandit"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "30s",
        "time": { "from": "now-6h", "to": "now" },
        "templating": { "list": [
            { "name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus" },
            {
                "name": "instance",
                "type": "query",
                "datasource": data_source(),
                "query": { "query": "label_values(fedbandit_build_info, instance)", "refId": "instance" },
                "refresh": 2,
                "multi": true,
                "includeAll": true,
                "current": { "text": "All", "value": "$__all" },
            },
        ] },
        "panels": panels,
    })
}

fn data_source() -> Json {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

fn panel(group: &Group, kind: &str, place: Json) -> Json {
    let is_rate = matches!(group.metrics[0].value, Value::Counter(_) | Value::Counters(..));
    let unit = match group.unit {
        _ if is_rate => "cps",
        Unit::Number => "short",
        Unit::Flag => "bool_yes_no",
        Unit::Share => "percentunit",
        Unit::Seconds => "s",
        Unit::Bytes => "bytes",
    };
    let targets: Vec<Json> = group.metrics.iter().flat_map(targets).zip('A'..).map(|((expression, legend), id)| {
        json!({ "refId": id.to_string(), "datasource": data_source(), "expr": expression, "legendFormat": legend })
    }).collect();
    let help: Vec<String> = group.metrics.iter().map(|metric| format!("`{}`: {}", metric.name, metric.help)).collect();
    let options = match kind {
        "stat" if group.unit != Unit::Flag => {
            json!({ "textMode": "name", "reduceOptions": { "calcs": ["lastNotNull"] } })
        }
        "stat" => json!({ "textMode": "value_and_name", "reduceOptions": { "calcs": ["lastNotNull"] } }),
        _ => json!({ "legend": { "displayMode": "list", "placement": "bottom" }, "tooltip": { "mode": "multi" } }),
    };
    json!({
        "title": group.title,
        "description": help.join("\n\n"),
        "type": kind,
        "gridPos": place,
        "datasource": data_source(),
        "fieldConfig": { "defaults": { "unit": unit }, "overrides": [] },
        "options": options,
        "targets": targets,
    })
}

/// Returns the queries of a metric with their legends.
fn targets(metric: &Metric) -> Vec<(String, String)> {
    let selected = |suffix: &str| format!("{}{suffix}{{instance=~\"$instance\"}}", metric.full_name());
    let rate = |suffix: &str| format!("rate({}[$__rate_interval])", selected(suffix));
    let legend = format!("{{{{instance}}}} {}", metric.name);
    match metric.value {
        Value::Gauge(_) => vec![(selected(""), legend)],
        Value::Info(label, _) => vec![(selected(""), format!("{{{{instance}}}} {{{{{label}}}}}"))],
        Value::Counter(_) => vec![(rate(""), legend)],
        Value::Counters(label, _) => vec![(rate(""), format!("{{{{instance}}}} {{{{{label}}}}}"))],
        Value::Histogram(_) => [0.5, 0.99]
            .map(|quantile| {
                let buckets = format!("sum by (instance, le) ({})", rate("_bucket"));
                (format!("histogram_quantile({quantile}, {buckets})"), format!("{{{{instance}}}} quantile {quantile}"))
            })
            .into(),
    }
}
