//! `fedbandit status`: the state of a run, from its service or from its store.

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use fedbandit::service::access::Token;
use fedbandit::service::client::Client;
use fedbandit::service::store::StoreError;
use fedbandit::service::store::file::File;
use fedbandit::service::transport::tls::Connector;
use fedbandit::service::{DeviceOrder, DeviceQuery, Inspection, RunTerms, StartError, inspect};
use fedbandit::simulation::report::format_number;
use serde::Serialize;
use serde_json::{Value, json};

use super::run_directory::{PATIENCE, RunDirectory, read_token};
use super::{EXIT_CODES, Failure, print_json, print_line};

const HELP: &str = "\
Examples:
  fedbandit status --dir fleet
  fedbandit status --http 10.0.0.5:7780 --token http.token --ca ca.pem --json

With --dir, queries the running service, or reads the store if none is running. The token and the certificate of the
service are those in DIR. With --http, --token is a copy of DIR/http.token, and --ca is needed if the service has
http-tls = true. JSON contains the table of all devices.";

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
    /// File with the token of the service at the HTTP address.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    token: Option<PathBuf>,
    /// CA certificate (PEM) used to verify the service at the HTTP address, over TLS.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    ca: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Attempts, and pauses between them, while a service is starting or stopping.
const ATTEMPTS: u32 = 25;
const PAUSE: Duration = Duration::from_millis(200);

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let devices = if self.json { Devices::All } else { Devices::Alarming };
        let status = match &self.dir {
            Some(path) => query_directory(&RunDirectory { path: path.clone() }, devices)?,
            None => self.service()?.status(devices)?,
        };
        if self.json { print_json(&status) } else { print_line(&format_status(&status)) }
    }

    /// Returns the service at the HTTP address.
    fn service(&self) -> Result<RunningService, Failure> {
        let missing = |file: &Path| Failure::Io(format!("{}: no such file", file.display()));
        let read = |file: &PathBuf| read_token(file)?.ok_or_else(|| missing(file));
        let token = self.token.as_ref().map(read).transpose()?;
        let tls = self.ca.as_deref().map(Connector::new).transpose()?;
        Ok(RunningService { client: Client::new(self.http, PATIENCE, tls), token })
    }
}

/// A running service, and the token of its pages.
pub(super) struct RunningService {
    client: Client,
    token: Option<Token>,
}

impl RunningService {
    /// Returns the service that has the store of a run open, if it answers.
    pub(super) fn find(directory: &RunDirectory) -> Result<Option<Self>, Failure> {
        // After a crash the recorded address may belong to another service, which has another name and must not get the token.
        let Some((client, name)) = directory.service() else { return Ok(None) };
        match client.get("/name", None) {
            Ok(answer) if answer == name => Ok(Some(Self { client, token: directory.find_token()? })),
            _ => Ok(None),
        }
    }

    fn get(&self, path: &str) -> Result<String, Failure> {
        let failed = |error| Failure::from(error).context(self.client.url());
        self.client.get(path, self.token.as_ref()).map_err(failed)
    }

    /// Requests a page whose body is read as it arrives.
    pub(super) fn open(&self, path: &str) -> Result<impl Read, Failure> {
        let failed = |error| Failure::from(error).context(self.client.url());
        let (_, body) = self.client.open(path, self.token.as_ref()).map_err(failed)?;
        Ok(body)
    }

    /// Queries a page in JSON.
    pub(super) fn json(&self, path: &str) -> Result<Value, Failure> {
        serde_json::from_str(&self.get(path)?).map_err(|error| Failure::data(error).context(self.client.url()))
    }

    /// Queries the status with its devices.
    fn status(&self, devices: Devices) -> Result<Value, Failure> {
        let mut status = self.json("/status.json")?;
        devices.add(&mut status, |DeviceQuery { order, after, limit }| {
            let (order, after) = (order.name(), after.map(|agent| format!("&after={agent}")).unwrap_or_default());
            self.json(&format!("/api/devices?order={order}&limit={limit}{after}"))
        })?;
        status["service"] = json!(self.client.url());
        Ok(status)
    }
}

/// Devices that are added to a status.
#[derive(Clone, Copy)]
pub(super) enum Devices {
    /// All of them, as `devices`.
    All,
    /// The most alarming ones, as `alarming`.
    Alarming,
}

/// Number of devices that a status lists in each order.
const ALARMING: usize = 5;

impl Devices {
    fn add(self, status: &mut Value, page: impl Fn(DeviceQuery) -> Result<Value, Failure>) -> Result<(), Failure> {
        match self {
            Self::All => status["devices"] = all_devices(page)?,
            Self::Alarming => {
                for order in [DeviceOrder::Missing, DeviceOrder::Zeroed] {
                    let page = page(DeviceQuery { order, after: None, limit: ALARMING })?;
                    status["alarming"][order.name()] = page["devices"].clone();
                }
            }
        }
        Ok(())
    }
}

/// Collects the device table from its pages, each of which follows a device.
fn all_devices(page: impl Fn(DeviceQuery) -> Result<Value, Failure>) -> Result<Value, Failure> {
    let mut query = DeviceQuery { limit: DeviceQuery::MAX_LIMIT, ..DeviceQuery::default() };
    let mut devices = Vec::new();
    loop {
        let mut page = page(query)?;
        if let Value::Array(rows) = page["devices"].take() {
            devices.extend(rows);
        }
        let next = page["next"].as_u64().and_then(|next| u32::try_from(next).ok());
        // The numbers grow, so that a service cannot answer forever.
        match next.filter(|next| Some(*next) > query.after) {
            Some(next) => query.after = Some(next),
            None => return Ok(devices.into()),
        }
    }
}

/// Returns the device table of a run, from its service or its store; null before the run has begun.
pub(super) fn device_table(directory: &RunDirectory) -> Result<Value, Failure> {
    let has_begun = || File::open_read_only(&directory.store()).map_or(true, |store| RunTerms::load(&store).is_ok());
    if !directory.store().exists() || !has_begun() {
        return Ok(Value::Null);
    }
    Ok(query_directory(directory, Devices::All)?["devices"].take())
}

/// Source of the data of a run: its running service, or its store if none is running.
pub(super) enum Source {
    Service(RunningService),
    Store(File),
}

impl Source {
    /// Finds the source. Waits for a service that is starting or stopping.
    pub(super) fn find(directory: &RunDirectory) -> Result<Self, Failure> {
        let path = directory.store();
        for _ in 0..ATTEMPTS {
            if let Some(service) = RunningService::find(directory)? {
                return Ok(Self::Service(service));
            }
            match File::open_read_only(&path) {
                Ok(store) => return Ok(Self::Store(store)),
                Err(error) if File::is_locked(&error) => thread::sleep(PAUSE),
                Err(error) => return Err(unreadable(&error).context(path.display())),
            }
        }
        Err(Failure::Io(format!("{}: in use by another process, and no service answers", path.display())))
    }
}

/// Queries the run's service, or reads the store if none is running.
fn query_directory(directory: &RunDirectory, devices: Devices) -> Result<Value, Failure> {
    of_begun_run(directory, devices)?.ok_or_else(|| {
        let enrolled = directory.registry().ok().flatten().map_or(0, |registry| registry.devices.len());
        Failure::Config(format!("{}: the run has not begun; {enrolled} devices enrolled", directory.path.display()))
    })
}

/// As [`query_directory`]; none if the run has not begun.
pub(super) fn of_begun_run(directory: &RunDirectory, devices: Devices) -> Result<Option<Value>, Failure> {
    let registry = directory.expect_registry()?;
    let path = directory.store();
    if !path.exists() {
        return Ok(None);
    }
    let mut result = Err(Failure::Io(format!("{}: no service answers", directory.path.display())));
    for _ in 0..ATTEMPTS {
        result = match Source::find(directory)? {
            Source::Service(service) => service.status(devices),
            Source::Store(store) => {
                let inspection = match inspect(&store, &registry) {
                    Err(StartError::NotBegun) => return Ok(None),
                    inspection => inspection.map_err(|error| Failure::data(error).context(path.display()))?,
                };
                return stored_status(&inspection, devices).map(Some);
            }
        };
        if result.is_ok() {
            break;
        }
        // The service may have stopped between two answers, or be changing its certificate.
        thread::sleep(PAUSE);
    }
    result.map(Some)
}

fn stored_status(inspection: &Inspection, devices: Devices) -> Result<Value, Failure> {
    let mut status = as_answered(&inspection.status())?;
    devices.add(&mut status, |query| as_answered(&inspection.devices(query)))?;
    status["service"] = Value::Null;
    Ok(status)
}

/// Converts through text, so that numbers have the same digits as in a service's answer.
pub(super) fn as_answered(value: &impl Serialize) -> Result<Value, Failure> {
    serde_json::from_str(&serde_json::to_string(value).map_err(Failure::data)?).map_err(Failure::data)
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
        if let Some(reasons) = reasons(&status[key]) {
            line(name, reasons);
        }
    }
    let listed = |order: &str| status["alarming"][order].as_array().into_iter().flatten();
    let absent = listed("missing").filter(|device| device["revoked"] == false && device["missing_streak"] != 0);
    let absent: Vec<_> =
        absent.map(|device| format!("{} ({} episodes)", device["agent"], device["missing_streak"])).collect();
    if !absent.is_empty() {
        line("absent", absent.join(", "));
    }
    let zeroed: Vec<_> = listed("zeroed").filter_map(|device| Some((device, reasons(&device["zeroed"])?))).collect();
    if !zeroed.is_empty() {
        let zeroed = zeroed.into_iter().map(|(device, reasons)| format!("{} ({reasons})", device["agent"]));
        line("zeroed from", zeroed.collect::<Vec<_>>().join("; "));
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

/// Formats counts by reason; none if there are none.
fn reasons(counts: &Value) -> Option<String> {
    let counts: Vec<_> = counts.as_object()?.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
    (!counts.is_empty()).then(|| counts.join(", "))
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
