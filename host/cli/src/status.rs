//! `fedbandit status`: how a run stands, whether its service runs or not.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use fedbandit::service::http;
use fedbandit::service::store::StoreError;
use fedbandit::service::store::file::File;
use fedbandit::service::{StartError, inspect};
use serde_json::{Value, json};

use super::run_directory::Directory;
use super::{EXIT_CODES, Failure, print, write};

const HELP: &str = "\
Examples:
  fedbandit status --dir fleet          asks the service of the run, or reads its store while no service has it
  fedbandit status --http 10.0.0.5:7780 asks a service";

/// How a run stands.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// The run's directory.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The HTTP address of a running service.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7780", conflicts_with = "dir")]
    http: SocketAddr,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// How long a service may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often, and with which pauses, a run is asked whose service is about to start or to end.
const ATTEMPTS: u32 = 25;
const PAUSE: Duration = Duration::from_millis(200);

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let status = match self.dir {
            Some(dir) => of_directory(&Directory(dir))?,
            None => ask(self.http)?,
        };
        if self.json { print(&status) } else { write(&text(&status)) }
    }
}

/// A service's own words, and where they are from.
fn ask(address: SocketAddr) -> Result<Value, Failure> {
    let body = http::get(address, "/status.json", ANSWER);
    let body = body.map_err(|error| Failure::from(error).about(address))?;
    let mut status: Value = serde_json::from_str(&body).map_err(|error| Failure::data(error).about(address))?;
    status["service"] = json!(format!("http://{address}"));
    Ok(status)
}

/// The service's words, or the store's while no service has it.
fn of_directory(directory: &Directory) -> Result<Value, Failure> {
    let registry = directory.expect_registry()?;
    let path = directory.store();
    let not_begun = || {
        let enrolled = registry.devices.len();
        Failure::Config(format!(
            "{}: {enrolled} devices are enrolled, and the run has not begun",
            directory.0.display()
        ))
    };
    if !path.exists() {
        return Err(not_begun());
    }
    for _ in 0..ATTEMPTS {
        // An address that a service left when it was killed may be another's by now.
        if let Some((address, name)) = directory.service()
            && http::get(address, "/name", ANSWER).is_ok_and(|answer| answer == name)
            && let Ok(status) = ask(address)
        {
            return Ok(status);
        }
        match File::open_read_only(&path) {
            Ok(store) => {
                let status = inspect(&store, &registry).map_err(|error| match error {
                    StartError::NotBegun => not_begun(),
                    other => Failure::data(other).about(path.display()),
                })?;
                // Through text, since numbers then have the digits that a service gives them.
                let text = serde_json::to_string(&status).map_err(Failure::data)?;
                let mut status: Value = serde_json::from_str(&text).map_err(Failure::data)?;
                status["service"] = Value::Null;
                return Ok(status);
            }
            Err(error) if File::is_locked(&error) => thread::sleep(PAUSE),
            Err(error) => return Err(unreadable(&error).about(path.display())),
        }
    }
    Err(Failure::Io(format!("{}: another process has it open, and no service answers", path.display())))
}

pub(super) fn unreadable(error: &StoreError) -> Failure {
    if File::is_locked(error) {
        return Failure::Io("another process has this run open: stop that service first".into());
    }
    Failure::Io(error.to_string())
}

/// A status for people.
fn text(status: &Value) -> String {
    let number = |key: &str| short(&status[key]);
    let service = status["service"].as_str().map_or_else(|| "no service is running".into(), |at| format!("at {at}"));
    let mut text = format!("run {}, {service}\n", number("run"));
    let mut line = |name: &str, words: String| text += &format!("  {name:<12} {words}\n");
    let (running, episodes) = (!status["service"].is_null(), number("episodes"));
    let left = if running { format!(", {} s to its deadline", number("seconds_left")) } else { String::new() };
    match status["episode"].as_u64() {
        Some(episode) => line("episode", format!("{episode} of {episodes}{left}")),
        None => line("episode", format!("all {episodes} are over")),
    }
    let revoked = number("revoked");
    if running {
        let heard = format!("{} connected, {} heard since the start", number("connected"), number("seen"));
        line("devices", format!("{} enrolled, {heard}, {revoked} revoked", number("enrolled")));
    } else {
        line("devices", format!("{} enrolled, {revoked} revoked", number("enrolled")));
    }
    line("missing", format!("{}, and {} in the episode before", number("missing"), number("missing_in_last_episode")));
    if !status["mean_reward"].is_null() {
        line("mean reward", format!("{} in the episode before, the median over devices", number("mean_reward")));
    }
    line("width", format!("β {}, λ {}, {} repairs", number("beta"), number("lambda"), number("repaired")));
    line("aggregation", format!("{} passes, certified gap {}", number("passes"), number("certified_gap")));
    let received = |key: &str| format!("{} {key}", short(&status["received"][key]));
    line("summaries", ["accepted", "late", "duplicate", "refused"].map(received).join(", "));
    for (name, key) in [("zeroed", "faults"), ("dropped", "dropped")] {
        let counts: Vec<_> =
            status[key].as_object().into_iter().flatten().map(|(why, n)| format!("{n} {why}")).collect();
        if !counts.is_empty() {
            line(name, counts.join(", "));
        }
    }
    let far = |suspect: &Value| format!("{} ({} median radii)", suspect["agent"], short(&suspect["distance"]));
    let far: Vec<_> = status["suspicious"].as_array().into_iter().flatten().map(far).collect();
    if !far.is_empty() {
        line("farthest", far.join(", "));
    }
    if let privacy @ Value::Object(_) = &status["privacy"] {
        let [mu, nu, releases] = ["mu", "nu", "releases"].map(|key| short(&privacy[key]));
        line(
            "privacy",
            format!("({mu}, {nu}) for each message over all {episodes} releases, {releases} of them so far"),
        );
    }
    line("terms", status["config_hash"].as_str().unwrap_or_default().into());
    text.trim_end().into()
}

/// Three digits of what is no whole number.
fn short(value: &Value) -> String {
    match value.as_f64() {
        None => "–".into(),
        Some(number) if number.fract() == 0.0 && number.abs() < 1e15 => format!("{number:.0}"),
        Some(number) if !(1e-3..1e5).contains(&number.abs()) => format!("{number:.1e}"),
        Some(number) => {
            let digits = 2 - number.abs().log10().floor().min(2.0) as i32;
            format!("{number:.*}", digits as usize)
        }
    }
}
