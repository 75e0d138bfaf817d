//! `fedbandit export`: what is in a store, for other programs.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::ValueEnum;
use fedbandit::service::event::{Event, Release, Summary};
use fedbandit::service::redb::File;
use fedbandit::service::setup::{Enrolled, Registry, StartError, Terms};
use fedbandit::service::store::Store;
use fedbandit_core::Rewards;
use serde_json::{Value, json};

use super::fleet::Directory;
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
    /// What.
    #[arg(long)]
    what: What,
    /// How.
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
        let (head, rows) = match self.what {
            What::Devices => devices(&Directory(self.dir))?,
            what => events(&Directory(self.dir), what, self.raw)?,
        };
        let format = self.format;
        let all = |writer: &mut dyn Write| write_all(&head, &rows, format, writer);
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
    let row = |device: Enrolled| {
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

fn events(directory: &Directory, what: What, raw: bool) -> Result<(Value, Vec<Row>), Failure> {
    let path = directory.store();
    let store = File::open_to_read(&path).map_err(|error| {
        let advice = if File::is_taken(&error) { ": stop the service first" } else { "" };
        unreadable(&error).about(format!("{}{advice}", path.display()))
    })?;
    let damaged = |error: StartError| Failure::data(error).about(path.display());
    let terms = Terms::of(&store).map_err(damaged)?;
    if what == What::Messages && terms.config.privacy.is_some() && !raw {
        let reason = "the run is private, and its messages have no noise on them: who reads them has nothing of the run's \
                      promise. With --raw they are written all the same";
        return Err(Failure::Usage(reason.into()));
    }
    let mut rows = Ok(Vec::new());
    let mut number = 0;
    let dimension = terms.config.dim;
    let each = &mut |bytes: &[u8]| {
        match (Event::from_bytes(bytes, dimension), &mut rows) {
            (Some(event), Ok(rows)) => rows.extend(row(event, what)),
            (None, Ok(_)) => rows = Err(StartError::Damaged(number)),
            _ => {}
        }
        number += 1;
    };
    store.replay(each).map_err(|error| unreadable(&error).about(path.display()))?;
    let head = json!({ "version": VERSION, "run": terms.run, "config": terms.config });
    rows.map(|rows| (head, rows)).map_err(damaged)
}

/// The row of an event, if it is one of those.
fn row(event: Event, what: What) -> Option<Row> {
    let whole = |number: u32| Cell::Whole(Some(number.into()));
    match event {
        Event::Summary(Summary { agent, episode, steps, reward_sum, gram, feature_sum }) if what == What::Messages => {
            Some(vec![
                ("agent", whole(agent.0)),
                ("episode", whole(episode)),
                ("steps", whole(steps)),
                ("reward_sum", Cell::Real(reward_sum)),
                ("gram", Cell::Reals(gram)),
                ("feature_sum", Cell::Reals(feature_sum)),
            ])
        }
        Event::Release(Release { episode, episode_len, beta, rewards, theta, design }) if what == What::Releases => {
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

fn write_all(head: &Value, rows: &[Row], format: Format, writer: &mut dyn Write) -> io::Result<()> {
    let mark = if let Format::Csv = format { "# " } else { "" };
    writeln!(writer, "{mark}{head}")?;
    if let (Format::Csv, Some(first)) = (format, rows.first()) {
        let name = |(name, cell): &(&str, Cell)| match cell {
            Cell::Reals(values) => (1..=values.len()).map(|i| format!("{name}_{i}")).collect(),
            _ => vec![(*name).to_owned()],
        };
        writeln!(writer, "{}", first.iter().flat_map(name).collect::<Vec<_>>().join(","))?;
    }
    for row in rows {
        match format {
            Format::Csv => {
                writeln!(writer, "{}", row.iter().map(|(_, cell)| cell.text("", ",")).collect::<Vec<_>>().join(","))?;
            }
            Format::Json => {
                let field = |(name, cell): &(&str, Cell)| match cell {
                    Cell::Reals(_) => format!("\"{name}\":[{}]", cell.text("null", ",")),
                    Cell::Word(word) => format!("\"{name}\":\"{word}\""),
                    _ => format!("\"{name}\":{}", cell.text("null", ",")),
                };
                writeln!(writer, "{{{}}}", row.iter().map(field).collect::<Vec<_>>().join(","))?;
            }
        }
    }
    writer.flush()
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
