//! `fedbandit status`: the state of a run, from its service or from its store.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use fedbandit::service::http;
use fedbandit::service::store::StoreError;
use fedbandit::service::store::file::File;
use fedbandit::service::{StartError, inspect};
use fedbandit::simulation::report::format_number;
use serde_json::{Value, json};

use super::run_directory::RunDirectory;
use super::{EXIT_CODES, Failure, print_json, print_line};

const HELP: &str = "\
Examples:
  fedbandit status --dir fleet
  fedbandit status --http 10.0.0.5:7780 --json

With --dir, queries the running service, or reads the store if none is running.";

/// Show the state of a run.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// Directory of the run.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// HTTP address of a running service.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7780", conflicts_with = "dir")]
    http: SocketAddr,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Time limit for an answer of the service.
const ANSWER: Duration = Duration::from_secs(5);
/// Attempts, and pauses between them, while a service is starting or stopping.
const ATTEMPTS: u32 = 25;
const PAUSE: Duration = Duration::from_millis(200);

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let status = match self.dir {
            Some(path) => query_directory(&RunDirectory { path })?,
            None => query_service(self.http)?,
        };
        if self.json { print_json(&status) } else { print_line(&format_status(&status)) }
    }
}

/// Queries a running service.
fn query_service(address: SocketAddr) -> Result<Value, Failure> {
    let body = http::get(address, "/status.json", ANSWER);
    let body = body.map_err(|error| Failure::from(error).context(address))?;
    let mut status: Value = serde_json::from_str(&body).map_err(|error| Failure::data(error).context(address))?;
    status["service"] = json!(format!("http://{address}"));
    Ok(status)
}

/// Queries the run's service, or reads the store if none is running.
fn query_directory(directory: &RunDirectory) -> Result<Value, Failure> {
    let registry = directory.expect_registry()?;
    let path = directory.store();
    let not_begun = || {
        let enrolled = registry.devices.len();
        Failure::Config(format!("{}: the run has not begun; {enrolled} devices enrolled", directory.path.display()))
    };
    if !path.exists() {
        return Err(not_begun());
    }
    for _ in 0..ATTEMPTS {
        // After a crash the recorded address may belong to another service, which has another name.
        if let Some((address, name)) = directory.service()
            && http::get(address, "/name", ANSWER).is_ok_and(|answer| answer == name)
            && let Ok(status) = query_service(address)
        {
            return Ok(status);
        }
        match File::open_read_only(&path) {
            Ok(store) => {
                let status = inspect(&store, &registry).map_err(|error| match error {
                    StartError::NotBegun => not_begun(),
                    other => Failure::data(other).context(path.display()),
                })?;
                // Through text, so that numbers have the same digits as in a service's answer.
                let text = serde_json::to_string(&status).map_err(Failure::data)?;
                let mut status: Value = serde_json::from_str(&text).map_err(Failure::data)?;
                status["service"] = Value::Null;
                return Ok(status);
            }
            Err(error) if File::is_locked(&error) => thread::sleep(PAUSE),
            Err(error) => return Err(unreadable(&error).context(path.display())),
        }
    }
    Err(Failure::Io(format!("{}: in use by another process, and no service answers", path.display())))
}

/// Converts an error of opening a store.
pub(super) fn unreadable(error: &StoreError) -> Failure {
    if File::is_locked(error) {
        return Failure::Io("in use by another process; stop its service first".into());
    }
    Failure::Io(error.to_string())
}

/// Formats a status for a terminal.
fn format_status(status: &Value) -> String {
    let number = |key: &str| format_value(&status[key]);
    let service = status["service"].as_str().map_or_else(|| "no service is running".into(), |url| format!("at {url}"));
    let mut text = format!("run {}, {service}\n", number("run"));
    let mut line = |name: &str, words: String| text += &format!("  {name:<12} {words}\n");
    let (running, episodes) = (!status["service"].is_null(), number("episodes"));
    let left = if running { format!(", {} s to the deadline", number("seconds_left")) } else { String::new() };
    match status["episode"].as_u64() {
        Some(episode) => line("episode", format!("{episode} of {episodes}{left}")),
        None => line("episode", format!("all {episodes} finished")),
    }
    let revoked = number("revoked");
    if running {
        let seen = format!("{} connected, {} seen since start", number("connected"), number("seen"));
        line("devices", format!("{} enrolled, {seen}, {revoked} revoked", number("enrolled")));
    } else {
        line("devices", format!("{} enrolled, {revoked} revoked", number("enrolled")));
    }
    line("missing", format!("{}, previous episode {}", number("missing"), number("missing_in_last_episode")));
    if !status["mean_reward"].is_null() {
        line("mean reward", format!("{} in the previous episode, median over devices", number("mean_reward")));
    }
    line("width", format!("β {}, λ {}, {} repairs", number("beta"), number("lambda"), number("repaired")));
    line("aggregation", format!("{} passes, certified gap {}", number("passes"), number("certified_gap")));
    let received = |key: &str| format!("{} {key}", format_value(&status["received"][key]));
    line("summaries", ["accepted", "late", "duplicate", "refused"].map(received).join(", "));
    for (name, key) in [("zeroed", "faults"), ("dropped", "dropped")] {
        let counts: Vec<_> =
            status[key].as_object().into_iter().flatten().map(|(reason, n)| format!("{n} {reason}")).collect();
        if !counts.is_empty() {
            line(name, counts.join(", "));
        }
    }
    let distance =
        |suspect: &Value| format!("{} ({} median radii)", suspect["agent"], format_value(&suspect["distance"]));
    let farthest: Vec<_> = status["suspicious"].as_array().into_iter().flatten().map(distance).collect();
    if !farthest.is_empty() {
        line("farthest", farthest.join(", "));
    }
    match &status["exploration"] {
        Value::Null => line("exploration", "not available in private runs".into()),
        exploration => {
            let [needed, units] = ["needed", "units"].map(|key| format_value(&exploration[key]));
            line("exploration", format!("more than {needed} of {units} devices needed along each direction"));
            for direction in exploration["directions"].as_array().into_iter().flatten() {
                let [name, state] = ["name", "state"].map(|key| direction[key].as_str().unwrap_or_default());
                line("", format!("{name}: {}, {}", format_value(&direction["explorers"]), state.replace('-', " ")));
            }
        }
    }
    if let privacy @ Value::Object(_) = &status["privacy"] {
        let [mu, nu, releases] = ["mu", "nu", "releases"].map(|key| format_value(&privacy[key]));
        line("privacy", format!("({mu}, {nu}) per message over all {episodes} releases, {releases} so far"));
    }
    for (name, words) in format_chain(&status["chain"]) {
        line(name, words);
    }
    line("terms", status["config_hash"].as_str().unwrap_or_default().into());
    text.trim_end().into()
}

/// Formats the lines of a run that continues others.
fn format_chain(chain: &Value) -> Vec<(&'static str, String)> {
    let number = |key: &str| format_value(&chain[key]);
    let earlier = |run: &Value| {
        let [number, agents, episode] = ["run", "agents", "episode"].map(|key| format_value(&run[key]));
        format!("run {number} ({agents} devices, model of episode {episode})")
    };
    let Some(runs) = chain["runs"].as_array() else { return Vec::new() };
    let mut lines = vec![("continues", runs.iter().rev().map(earlier).collect::<Vec<_>>().join(", "))];
    let contradicted = format!("{} models contradicted it", number("contradicted"));
    lines.push(("prior", format!("weight {}, discount {}, {contradicted}", number("weight"), number("discount"))));
    if let privacy @ Value::Object(_) = &chain["privacy"] {
        let [runs, mu, nu] = ["runs", "mu", "nu"].map(|key| format_value(&privacy[key]));
        lines.push(("", format!("({mu}, {nu}) for one message in each of {runs} private runs together")));
    }
    lines
}

/// Formats a count in full, and any other number with three digits.
fn format_value(value: &Value) -> String {
    match (value.as_u64(), value.as_f64()) {
        (Some(count), _) => count.to_string(),
        (None, Some(number)) => format_number(number),
        (None, None) => "–".into(),
    }
}
