//! `fedbandit export`: what is in a store, for other programs.

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

use super::run_directory::Directory;
use super::status::unreadable;
use super::{EXIT_CODES, Failure, VERSION, replace_file};

const HELP: &str = "\
Examples:
  fedbandit export --dir fleet --what releases --format csv --out models.csv
  fedbandit export --dir fleet --what devices --format json

releases  the models that were broadcast: theta, and design, the upper triangle of the matrix row by row
messages  the summaries that devices sent, admitted or not: gram, the upper triangle row by row, and feature_sum
devices   who is enrolled

CSV has one column for each value, as theta_1, theta_2; JSON has one object in a line. The first line is an object with
the version of this program, the run and its configuration; in CSV it is a comment, after a #. Numbers that are not finite are
empty in CSV and null in JSON. The store is only read; while a service has it, only devices can be exported.

With privacy, releases are what the promise covers: whoever has them learns no more than it allows. Messages are what it
protects, without any noise.";

/// Write releases, messages or devices of a run as CSV or JSON.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// The run's directory.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Which table to write.
    #[arg(long)]
    what: What,
    /// The file format.
    #[arg(long, default_value = "csv")]
    format: Format,
    /// Where to, instead of stdout: the file is there as a whole or not at all.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Take messages out of a private run, although its promise is not kept for who reads them.
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
        let directory = Directory(self.dir.clone());
        match self.what {
            What::Devices => {
                let (head, rows) = devices(&directory)?;
                self.write(&head, |table| rows.iter().try_for_each(|row| table.write(row)))
            }
            what => {
                let (store, terms) = stored(&directory, what, self.raw)?;
                let head = json!({ "version": VERSION, "run": terms.run, "config": json!(terms)["config"] });
                self.write(&head, |table| {
                    let mut written = Ok(());
                    let each = &mut |bytes: &[u8]| {
                        let row = Event::from_bytes(bytes, terms.config.dim).and_then(|event| row(event, what));
                        if let (Some(row), Ok(())) = (row, &written) {
                            written = table.write(&row);
                        }
                    };
                    store.replay(each).map_err(io::Error::other)?;
                    written
                })
            }
        }
    }

    /// Writes a table, of which each row is gone from memory before the next comes.
    fn write(&self, head: &Value, rows: impl FnOnce(&mut Table<'_>) -> io::Result<()>) -> Result<(), Failure> {
        let all = |writer: &mut dyn Write| {
            rows(&mut Table::new(writer, self.format, head)?)?;
            writer.flush()
        };
        match &self.out {
            Some(file) => replace_file(file, all),
            None => match all(&mut BufWriter::new(io::stdout().lock())) {
                // Who stops reading has read enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                other => other.map_err(|error| Failure::from(error).about("stdout")),
            },
        }
    }
}

fn devices(directory: &Directory) -> Result<(Value, Vec<Row>), Failure> {
    let row = |device: EnrolledDevice| {
        vec![
            ("agent", Cell::Whole(Some(device.agent.into()))),
            ("sealed", Cell::Flag(device.sealed)),
            ("revoked", Cell::Flag(device.revoked)),
            ("enrolled_at", Cell::Whole(device.enrolled_at)),
        ]
    };
    let Registry { run, dimension, devices } = directory.expect_registry()?;
    let head = json!({ "version": VERSION, "run": run, "config": { "dim": dimension } });
    Ok((head, devices.into_iter().map(row).collect()))
}

/// A store that has events of this kind to give away; all of them can be read.
fn stored(directory: &Directory, what: What, raw: bool) -> Result<(File, RunTerms), Failure> {
    let path = directory.store();
    let store = File::open_read_only(&path).map_err(|error| unreadable(&error).about(path.display()))?;
    let damaged = |error: StartError| Failure::data(error).about(path.display());
    let terms = RunTerms::of(&store).map_err(damaged)?;
    if what == What::Messages && terms.config.privacy.is_some() && !raw {
        let reason = "the run is private, and its messages have no noise on them: who reads them has nothing of the run's \
                      promise. With --raw they are written all the same";
        return Err(Failure::Usage(reason.into()));
    }
    // Before the first is written: who reads half of a table may not notice that it ends in an error.
    for_each_event::<StartError>(&store, &terms, |_| Ok(())).map_err(|error| match error {
        StartError::Store(error) => unreadable(&error).about(path.display()),
        other => damaged(other),
    })?;
    Ok((store, terms))
}

/// The row of an event, if it is one of those.
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

/// A table that is written row by row.
struct Table<'a> {
    writer: &'a mut dyn Write,
    format: Format,
    /// Whether the names of its columns are still to come.
    nameless: bool,
}

impl<'a> Table<'a> {
    /// With its first line, which tells what it is of.
    fn new(writer: &'a mut dyn Write, format: Format, head: &Value) -> io::Result<Self> {
        let mark = if let Format::Csv = format { "# " } else { "" };
        writeln!(writer, "{mark}{head}")?;
        Ok(Self { writer, format, nameless: true })
    }

    fn write(&mut self, row: &Row) -> io::Result<()> {
        match self.format {
            Format::Csv => {
                if mem::take(&mut self.nameless) {
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
    /// With what stands for no number, and between numbers. Numbers are as short as they can be and still be the same.
    fn text(&self, none: &str, between: &str) -> String {
        let real = |value: &f32| if value.is_finite() { format!("{value:?}") } else { none.into() };
        match self {
            Self::Whole(number) => number.map_or_else(|| none.into(), |number| number.to_string()),
            Self::Flag(flag) => flag.to_string(),
            Self::Word(word) => (*word).into(),
            Self::Real(value) => real(value),
            Self::Reals(values) => values.iter().map(real).collect::<Vec<_>>().join(between),
        }
    }
}
