//! `fedbandit export`: the tables of a run as CSV or JSON, from its service or from its store.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::mem;
use std::path::PathBuf;

use clap::ValueEnum;
use fedbandit::service::export::{self, ExportError, PageQuery};
use fedbandit::service::store::file::FileReader;
use fedbandit::service::{EnrolledDevice, Registry, RunTerms, StartError, for_each_event};
use serde_json::{Value, json};

use super::run_directory::RunDirectory;
use super::status::{RunningService, Source, as_answered, device_table, unreadable};
use super::{EXIT_CODES, Failure, VERSION, ignore_closed_pipe, write_file_with};

const HELP: &str = "\
Examples:
  fedbandit export --dir fleet --what releases --format csv --out models.csv
  fedbandit export --dir fleet --what devices --format json
  fedbandit export --dir fleet --what audit

Tables:
  releases  broadcast models: theta, and design, the upper triangle of Λ row by row
  messages  received summaries, admitted or not: gram, an upper triangle row by row, and feature_sum
  devices   enrolled devices, what they have sent, and observations of the running service since its start
  audit     starts, stops and changed settings of the service; enrolled, revoked and re-keyed devices. at is a Unix time,
            uid the user

CSV has one column per value (theta_1, theta_2, …), JSON one object per line. The first line is an object with the
version, the run and its configuration; in CSV it is a comment that starts with #. Non-finite numbers are empty in CSV
and null in JSON. Data come from the running service, or from the store, opened read-only, if none is running.

The privacy guarantee of a private run covers its releases. Its messages contain no noise, and need --raw.";

/// Export the releases, messages, devices or audit log of a run as CSV or JSON.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// Directory of the run.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Table to export.
    #[arg(long)]
    what: What,
    /// File format.
    #[arg(long, default_value = "csv")]
    format: Format,
    /// Output file, written atomically [default: stdout].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Export the messages of a private run, which have no privacy guarantee.
    #[arg(long)]
    raw: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum What {
    Releases,
    Messages,
    Devices,
    Audit,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Csv,
    Json,
}

const PRIVATE: &str = "--what messages: the run is private and its messages contain no noise; add --raw to export them";

impl What {
    fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Releases => &["episode", "episode_len", "rewards", "beta", "theta", "design"],
            Self::Messages => &["agent", "episode", "steps", "reward_sum", "gram", "feature_sum"],
            Self::Devices => &[
                "agent",
                "sealed",
                "revoked",
                "enrolled_at",
                "generation",
                "last_episode",
                "missing_streak",
                "zeroed",
                "distance",
                "seconds_since_seen",
                "connected",
                "transport",
                "boot",
                "dropped",
                "dropped_unverified",
            ],
            Self::Audit => {
                &["at", "uid", "event", "agent", "generation", "key", "old", "new", "version", "config_hash", "reason"]
            }
        }
    }

    /// Returns the path of the service's page.
    fn path(self) -> &'static str {
        match self {
            Self::Releases => "/api/releases",
            Self::Messages => "/api/messages",
            Self::Devices => "/api/devices",
            Self::Audit => "/api/audit",
        }
    }
}

/// Source of the tables of a run.
enum Tables {
    Service(RunningService),
    Store(FileReader, Box<RunTerms>),
}

impl Tables {
    /// Finds the running service of a run, or opens its store.
    fn find(directory: &RunDirectory, what: What) -> Result<Self, Failure> {
        let store = match Source::find(directory)? {
            Source::Service(service) => return Ok(Self::Service(service)),
            Source::Store(store) => store,
        };
        let path = directory.store();
        let failed = |error: StartError| match error {
            StartError::Store(error) => unreadable(&error).context(path.display()),
            other => Failure::data(other).context(path.display()),
        };
        let terms = RunTerms::load(&store).map_err(failed)?;
        if what != What::Audit {
            // Checked before the first row, because a reader may not notice that a table is cut short.
            for_each_event::<StartError>(&store, &terms, 0, |_, _| Ok(())).map_err(failed)?;
        }
        Ok(Self::Store(store.reader(), Box::new(terms)))
    }

    /// Returns the first line.
    fn head(&self) -> Result<Value, Failure> {
        match self {
            Self::Service(service) => service.json("/api/run"),
            Self::Store(_, terms) => Ok(terms.head()),
        }
    }

    fn is_private(&self) -> Result<bool, Failure> {
        Ok(!self.head()?["config"]["privacy"].is_null())
    }

    /// Returns a page of a table.
    fn page(&self, what: What, query: PageQuery) -> Result<Value, Failure> {
        let PageQuery { after, limit, raw } = query;
        match self {
            Self::Service(service) => {
                let after = after.map(|after| format!("&after={after}")).unwrap_or_default();
                service.json(&format!("{}?limit={limit}&raw={raw}{after}", what.path()))
            }
            Self::Store(reader, terms) => match what {
                What::Releases => as_answered(&export::releases(reader, terms, query).map_err(Failure::data)?),
                What::Audit => as_answered(&export::audit(reader, query).map_err(Failure::data)?),
                _ => as_answered(&export::messages(reader, terms, query).map_err(|error| match error {
                    ExportError::Private => Failure::Usage(PRIVATE.into()),
                    other => Failure::data(other),
                })?),
            },
        }
    }
}

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let directory = RunDirectory { path: self.dir.clone() };
        if self.what == What::Devices {
            let (head, rows) = devices(&directory)?;
            return self.write(&head, |table| rows.iter().try_for_each(|row| Ok(table.write(row)?)));
        }
        let source = Tables::find(&directory, self.what)?;
        if self.what == What::Messages && !self.raw && source.is_private()? {
            return Err(Failure::Usage(PRIVATE.into()));
        }
        self.write(&source.head()?, |table| {
            let mut query = PageQuery { after: None, limit: PageQuery::MAX_LIMIT, raw: self.raw };
            loop {
                let page = source.page(self.what, query)?;
                for row in page["rows"].as_array().into_iter().flatten() {
                    table.write(row)?;
                }
                // The positions grow, so that a service cannot answer forever.
                match page["next"].as_u64().filter(|next| Some(*next) > query.after) {
                    Some(next) => query.after = Some(next),
                    None => return Ok(()),
                }
            }
        })
    }

    /// Streams a table to the file or to stdout.
    fn write(&self, head: &Value, rows: impl FnOnce(&mut Table<'_>) -> Result<(), TableError>) -> Result<(), Failure> {
        let mut failure = None;
        let all = |writer: &mut dyn Write| match rows(&mut Table::new(writer, self.format, self.what.columns(), head)?)
        {
            Ok(()) => writer.flush(),
            Err(TableError::Write(error)) => Err(error),
            Err(TableError::Read(error)) => {
                failure = Some(error);
                Err(io::ErrorKind::Other.into())
            }
        };
        let written = match &self.out {
            Some(file) => write_file_with(file, all),
            None => ignore_closed_pipe(all(&mut BufWriter::new(io::stdout().lock()))),
        };
        failure.map_or(written, Err)
    }
}

/// Error while a table is copied.
enum TableError {
    Read(Failure),
    Write(io::Error),
}

impl From<Failure> for TableError {
    fn from(failure: Failure) -> Self {
        Self::Read(failure)
    }
}

impl From<io::Error> for TableError {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

/// Returns the enrolled devices with their reports. Before the run has begun there are no reports.
fn devices(directory: &RunDirectory) -> Result<(Value, Vec<Value>), Failure> {
    let Registry { fleet, run, dimension, devices, .. } = directory.expect_registry()?;
    let head = json!({ "version": VERSION, "fleet": fleet, "run": run, "config": { "dim": dimension } });
    let reports: BTreeMap<u64, Value> = match device_table(directory)? {
        Value::Array(reports) => {
            reports.into_iter().filter_map(|report| Some((report["agent"].as_u64()?, report))).collect()
        }
        _ => BTreeMap::new(),
    };
    let row = |device: EnrolledDevice| {
        let mut row = reports.get(&device.agent.into()).cloned().unwrap_or_else(|| json!({}));
        if let Value::Object(observed) = row["since_start"].take() {
            observed.into_iter().for_each(|(name, value)| row[&name] = value);
        }
        let enrolled = json!(device);
        ["agent", "sealed", "revoked", "enrolled_at", "generation"]
            .iter()
            .for_each(|name| row[name] = enrolled[name].clone());
        row
    };
    Ok((head, devices.into_iter().map(row).collect()))
}

/// Table writer.
struct Table<'a> {
    writer: &'a mut dyn Write,
    format: Format,
    columns: &'static [&'static str],
    /// True until the column names are written.
    needs_names: bool,
}

impl<'a> Table<'a> {
    /// Writes the first line, which describes the table.
    fn new(
        writer: &'a mut dyn Write,
        format: Format,
        columns: &'static [&'static str],
        head: &Value,
    ) -> io::Result<Self> {
        let mark = if let Format::Csv = format { "# " } else { "" };
        writeln!(writer, "{mark}{head}")?;
        Ok(Self { writer, format, columns, needs_names: true })
    }

    fn write(&mut self, row: &Value) -> io::Result<()> {
        let cells = || self.columns.iter().map(|name| (*name, &row[name]));
        match self.format {
            Format::Csv => {
                let names = mem::take(&mut self.needs_names);
                if names {
                    let name = |(name, cell): (&str, &Value)| match cell {
                        Value::Array(values) => (1..=values.len()).map(|i| format!("{name}_{i}")).collect(),
                        _ => vec![name.to_owned()],
                    };
                    writeln!(self.writer, "{}", cells().flat_map(name).collect::<Vec<_>>().join(","))?;
                }
                writeln!(self.writer, "{}", cells().map(|(_, cell)| csv(cell)).collect::<Vec<_>>().join(","))
            }
            Format::Json => {
                let present = cells().filter(|(name, _)| row.get(name).is_some());
                let field = |(name, cell): (&str, &Value)| format!("\"{name}\":{}", json_text(cell));
                writeln!(self.writer, "{{{}}}", present.map(field).collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// Formats a value for CSV. Counts by reason are separated by spaces.
fn csv(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Array(values) => values.iter().map(csv).collect::<Vec<_>>().join(","),
        Value::Object(counts) => {
            counts.iter().map(|(reason, count)| format!("{reason}={count}")).collect::<Vec<_>>().join(" ")
        }
        Value::String(text) if text.contains([',', '"', '\n', '\r']) => format!("\"{}\"", text.replace('"', "\"\"")),
        Value::String(text) => text.clone(),
        other => json_text(other),
    }
}

/// Formats a value as JSON. Floats have the shortest digits from which an `f32` can be read again.
fn json_text(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => format!("{:?}", number.as_f64().unwrap_or_default() as f32),
        Value::Array(values) => format!("[{}]", values.iter().map(json_text).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}
