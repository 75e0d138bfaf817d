//! The program `fedbandit`: arguments in, results on stdout, reasons on stderr.

mod aggregate;
mod device;
mod enroll;
mod export;
mod flags;
mod gateway;
mod link;
mod listeners;
mod log;
mod mqtt_link;
mod privacy;
mod run_directory;
mod serve;
mod shell;
mod simulate;
mod status;
mod sweep;

use std::fmt::Display;
use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Parser, Subcommand};
use fedbandit::VERSION;
use serde::Serialize;

const EXIT_CODES: &str = "\
Exit codes:
   0  done
   1  a check failed
   2  invalid command line
  65  invalid data
  74  a file cannot be read or written
  78  invalid configuration";

/// Byzantine-robust federated linear bandits for microcontroller fleets.
#[derive(Parser)]
#[command(version = VERSION, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Aggregate(aggregate::Args),
    Privacy(privacy::Args),
    Simulate(simulate::Args),
    Sweep(sweep::Args),
    Serve(serve::Args),
    Device(device::Args),
    Gateway(gateway::Args),
    Enroll(enroll::EnrollArgs),
    Revoke(enroll::RevokeArgs),
    Status(status::Args),
    Export(export::Args),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
}

/// Why a command has no result; each kind has its exit code.
enum Failure {
    Check(String),
    Usage(String),
    Data(String),
    Io(String),
    Config(String),
}

impl Failure {
    fn data(reason: impl Display) -> Self {
        Self::Data(reason.to_string())
    }

    fn config(reason: impl Display) -> Self {
        Self::Config(reason.to_string())
    }

    /// With what the failure is about in front.
    fn about(self, what: impl Display) -> Self {
        let prefixed = |reason| format!("{what}: {reason}");
        match self {
            Self::Check(reason) => Self::Check(prefixed(reason)),
            Self::Usage(reason) => Self::Usage(prefixed(reason)),
            Self::Data(reason) => Self::Data(prefixed(reason)),
            Self::Io(reason) => Self::Io(prefixed(reason)),
            Self::Config(reason) => Self::Config(prefixed(reason)),
        }
    }

    fn report(&self) -> ExitCode {
        let (code, reason, advice) = match self {
            Self::Check(reason) => (1, reason, ""),
            Self::Usage(reason) => (2, reason, "\n\nFor more information, try '--help'."),
            Self::Data(reason) => (65, reason, ""),
            Self::Io(reason) => (74, reason, ""),
            Self::Config(reason) => (78, reason, ""),
        };
        // Nobody is left to tell if this fails.
        let _ = writeln!(io::stderr(), "error: {reason}{advice}");
        code.into()
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Aggregate(args) => args.run(),
        Command::Privacy(args) => args.run(),
        Command::Simulate(args) => args.run(),
        Command::Sweep(args) => args.run(),
        Command::Serve(args) => args.run(),
        Command::Device(args) => args.run(),
        Command::Gateway(args) => args.run(),
        Command::Enroll(args) => args.run(),
        Command::Revoke(args) => args.run(),
        Command::Status(args) => args.run(),
        Command::Export(args) => args.run(),
        Command::Completions(args) => args.run(),
        Command::Man(args) => args.run(),
    };
    result.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS)
}

/// Seconds of the Unix epoch; 0 if the clock is before it.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What a command found, and what it takes to find it again.
#[derive(Serialize)]
struct Provenance<'a, T> {
    #[serde(flatten)]
    result: &'a T,
    version: &'static str,
    config: serde_json::Value,
}

/// Writes a result to stdout as JSON, with the version of this program and a configuration, seeds included.
fn print_result(result: &impl Serialize, config: serde_json::Value) -> Result<(), Failure> {
    print(&Provenance { result, version: VERSION, config })
}

/// Writes JSON to stdout: indented for people, in one line for programs.
fn print(value: &impl Serialize) -> Result<(), Failure> {
    let pretty = io::stdout().is_terminal();
    let text = if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    write(&text.map_err(io::Error::from)?)
}

/// Writes a text to a file durably, as a whole or not at all, and its directory if need be.
fn write_file(file: &Path, text: &str) -> Result<(), Failure> {
    replace_file(file, |writer| writer.write_all(text.as_bytes()))
}

/// The same for what a function writes.
fn replace_file(file: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    replace_with_mode(file, 0o666, content)
}

/// The same for who may read it, as far as the process lets anybody.
fn replace_with_mode(
    file: &Path,
    mode: u32,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let about = |error: io::Error| Failure::from(error).about(file.display());
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory).map_err(about)?;
    }
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(format!(".{}.tmp", std::process::id()));
    let write = || {
        let mut options = fs::File::options();
        let options = options.write(true).create(true).truncate(true).mode(mode);
        let mut writer = BufWriter::new(options.open(&unfinished)?);
        content(&mut writer)?;
        // A name must not be safe before what it names is.
        writer.into_inner()?.sync_all()?;
        fs::rename(&unfinished, file)?;
        // Nor is the name before its directory is.
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(&unfinished))).map_err(about)
}

/// Writes a text to stdout.
fn write(text: &impl Display) -> Result<(), Failure> {
    match writeln!(io::stdout().lock(), "{text}") {
        // Who stops reading has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Failure::from(error).about("stdout")),
    }
}
