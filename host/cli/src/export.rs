//! `fedbandit export`: the contents of a store as CSV or JSON.

use std::io::{self, BufWriter, Write};
use std::mem;
use std::path::PathBuf;

use clap::ValueEnum;
use fedbandit::service::event::{Event, ModelEvent, SummaryEvent};
use fedbandit::service::store::Store;
use fedbandit::service::store::file::File;
use fedbandit::service::{EnrolledDevice, Registry, RunTerms, StartError, for_each_event};
use fedbandit_core::Rewards;
use serde_json::{Value, json};

use super::run_directory::RunDirectory;
use super::status::unreadable;
use super::{EXIT_CODES, Failure, VERSION, ignore_closed_pipe, write_file_with};

const HELP: &str = "\
Examples:
  fedbandit export --dir fleet --what releases --format csv --out models.csv
  fedbandit export --dir fleet --what devices --format json

Tables:
  releases  broadcast models: theta, and design, the upper triangle of Λ row by row
  messages  received summaries, admitted or not: gram, an upper triangle row by row, and feature_sum
  devices   enrolled devices

CSV has one column per value (theta_1, theta_2, …), JSON one object per line. The first line is an object with the
version, the run and its configuration; in CSV it is a comment that starts with #. Non-finite numbers are empty in CSV
and null in JSON. The store is opened read-only. While a service runs, only devices can be exported.

The privacy guarantee of a private run covers its releases. Its messages contain no noise, and need --raw.";

/// Export the releases, messages or devices of a run as CSV or JSON.
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
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Csv,
    Json,
}

enum Cell {
    Whole(Option<u64>),
    Flag(bool),
    Word(&'static str),
    Real(f32),
    Reals(Vec<f32>),
}

type Row = Vec<(&'static str, Cell)>;

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let directory = RunDirectory { path: self.dir.clone() };
        match self.what {
            What::Devices => {
                let (head, rows) = devices(&directory)?;
                self.write(&head, |table| rows.iter().try_for_each(|row| table.write(row)))
            }
            what => {
                let (store, terms) = open_store(&directory, what, self.raw)?;
                let head = json!({ "version": VERSION, "run": terms.run, "config": json!(terms)["config"] });
                self.write(&head, |table| {
                    let mut written = Ok(());
                    let each = &mut |_: u64, bytes: &[u8]| {
                        let row = Event::from_bytes(bytes, terms.config.dim).and_then(|event| row(event, what));
                        if let (Some(row), Ok(())) = (row, &written) {
                            written = table.write(&row);
                        }
                    };
                    store.replay(0, each).map_err(io::Error::other)?;
                    written
                })
            }
        }
    }

    /// Streams a table to the file or to stdout.
    fn write(&self, head: &Value, rows: impl FnOnce(&mut Table<'_>) -> io::Result<()>) -> Result<(), Failure> {
        let all = |writer: &mut dyn Write| {
            rows(&mut Table::new(writer, self.format, head)?)?;
            writer.flush()
        };
        match &self.out {
            Some(file) => write_file_with(file, all),
            None => ignore_closed_pipe(all(&mut BufWriter::new(io::stdout().lock()))),
        }
    }
}

fn devices(directory: &RunDirectory) -> Result<(Value, Vec<Row>), Failure> {
    let row = |device: EnrolledDevice| {
        vec![
            ("agent", Cell::Whole(Some(device.agent.into()))),
            ("sealed", Cell::Flag(device.sealed)),
            ("revoked", Cell::Flag(device.revoked)),
            ("enrolled_at", Cell::Whole(device.enrolled_at)),
            ("generation", Cell::Whole(Some(device.generation.into()))),
        ]
    };
    let Registry { fleet, run, dimension, devices, .. } = directory.expect_registry()?;
    let head = json!({ "version": VERSION, "fleet": fleet, "run": run, "config": { "dim": dimension } });
    Ok((head, devices.into_iter().map(row).collect()))
}

/// Opens a store for the export of a table, after checking that every event can be read.
fn open_store(directory: &RunDirectory, what: What, raw: bool) -> Result<(File, RunTerms), Failure> {
    let path = directory.store();
    let store = File::open_read_only(&path).map_err(|error| unreadable(&error).context(path.display()))?;
    let damaged = |error: StartError| Failure::data(error).context(path.display());
    let terms = RunTerms::load(&store).map_err(damaged)?;
    if what == What::Messages && terms.config.privacy.is_some() && !raw {
        let reason = "--what messages: the run is private and its messages contain no noise; add --raw to export them";
        return Err(Failure::Usage(reason.into()));
    }
    // Checked before the first row, because a reader may not notice that a table is cut short.
    for_each_event::<StartError>(&store, &terms, 0, |_| Ok(())).map_err(|error| match error {
        StartError::Store(error) => unreadable(&error).context(path.display()),
        other => damaged(other),
    })?;
    Ok((store, terms))
}

/// Returns the row of an event, if it belongs to the table.
fn row(event: Event, what: What) -> Option<Row> {
    let whole = |number: u32| Cell::Whole(Some(number.into()));
    match event {
        Event::Summary(SummaryEvent { agent, episode, steps, reward_sum, gram, feature_sum })
            if what == What::Messages =>
        {
            Some(vec![
                ("agent", whole(agent.0)),
                ("episode", whole(episode)),
                ("steps", whole(steps)),
                ("reward_sum", Cell::Real(reward_sum)),
                ("gram", Cell::Reals(gram)),
                ("feature_sum", Cell::Reals(feature_sum)),
            ])
        }
        Event::Model(ModelEvent { episode, episode_len, beta, rewards, theta, design }) if what == What::Releases => {
            Some(vec![
                ("episode", whole(episode)),
                ("episode_len", whole(episode_len)),
                ("rewards", Cell::Word(if rewards == Rewards::Clipped { "clipped" } else { "unbounded" })),
                ("beta", Cell::Real(beta)),
                ("theta", Cell::Reals(theta)),
                ("design", Cell::Reals(design)),
            ])
        }
        _ => None,
    }
}

/// Table writer.
struct Table<'a> {
    writer: &'a mut dyn Write,
    format: Format,
    /// True until the column names are written.
    needs_names: bool,
}

impl<'a> Table<'a> {
    /// Writes the first line, which describes the table.
    fn new(writer: &'a mut dyn Write, format: Format, head: &Value) -> io::Result<Self> {
        let mark = if let Format::Csv = format { "# " } else { "" };
        writeln!(writer, "{mark}{head}")?;
        Ok(Self { writer, format, needs_names: true })
    }

    fn write(&mut self, row: &Row) -> io::Result<()> {
        match self.format {
            Format::Csv => {
                if mem::take(&mut self.needs_names) {
                    let name = |(name, cell): &(&str, Cell)| match cell {
                        Cell::Reals(values) => (1..=values.len()).map(|i| format!("{name}_{i}")).collect(),
                        _ => vec![(*name).to_owned()],
                    };
                    writeln!(self.writer, "{}", row.iter().flat_map(name).collect::<Vec<_>>().join(","))?;
                }
                let cells: Vec<_> = row.iter().map(|(_, cell)| cell.text("", ",")).collect();
                writeln!(self.writer, "{}", cells.join(","))
            }
            Format::Json => {
                let field = |(name, cell): &(&str, Cell)| match cell {
                    Cell::Reals(_) => format!("\"{name}\":[{}]", cell.text("null", ",")),
                    Cell::Word(word) => format!("\"{name}\":\"{word}\""),
                    _ => format!("\"{name}\":{}", cell.text("null", ",")),
                };
                writeln!(self.writer, "{{{}}}", row.iter().map(field).collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl Cell {
    /// Formats the cell with a text for missing numbers and a separator. Floats have the shortest digits that round-trip.
    fn text(&self, none: &str, separator: &str) -> String {
        let real = |value: &f32| if value.is_finite() { format!("{value:?}") } else { none.into() };
        match self {
            Self::Whole(number) => number.map_or_else(|| none.into(), |number| number.to_string()),
            Self::Flag(flag) => flag.to_string(),
            Self::Word(word) => (*word).into(),
            Self::Real(value) => real(value),
            Self::Reals(values) => values.iter().map(real).collect::<Vec<_>>().join(separator),
        }
    }
}
