//! The program `fedbandit`. Results go to stdout, errors and logs to stderr.

mod aggregate;
mod backup;
mod continue_run;
mod device;
mod enroll;
mod evaluate;
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
mod service_manager;
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
   0  success
   2  invalid command line
  65  invalid data
  74  input/output error
  78  invalid configuration";

/// Byzantine-robust federated linear bandits for microcontroller fleets.
#[derive(Parser)]
#[command(name = "fedbandit", version = VERSION, after_help = EXIT_CODES)]
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
    Evaluate(evaluate::Args),
    Serve(serve::Args),
    Device(device::Args),
    Gateway(gateway::Args),
    Enroll(enroll::EnrollArgs),
    Continue(continue_run::Args),
    Rekey(enroll::RekeyArgs),
    Revoke(enroll::RevokeArgs),
    Status(status::Args),
    Export(export::Args),
    Backup(backup::BackupArgs),
    Check(backup::CheckArgs),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
}

/// Error of a command. Each kind has its own exit code.
enum Failure {
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

    /// Prefixes the reason with the file or address that it is about.
    fn context(self, subject: impl Display) -> Self {
        let prefixed = |reason| format!("{subject}: {reason}");
        match self {
            Self::Usage(reason) => Self::Usage(prefixed(reason)),
            Self::Data(reason) => Self::Data(prefixed(reason)),
            Self::Io(reason) => Self::Io(prefixed(reason)),
            Self::Config(reason) => Self::Config(prefixed(reason)),
        }
    }

    fn reason(&self) -> &str {
        let (Self::Usage(reason) | Self::Data(reason) | Self::Io(reason) | Self::Config(reason)) = self;
        reason
    }

    fn report(&self) -> ExitCode {
        let (code, reason, advice) = match self {
            Self::Usage(reason) => (2, reason, "\n\nFor more information, try '--help'."),
            Self::Data(reason) => (65, reason, ""),
            Self::Io(reason) => (74, reason, ""),
            Self::Config(reason) => (78, reason, ""),
        };
        // A closed stderr leaves nowhere to report to.
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
        Command::Evaluate(args) => args.run(),
        Command::Serve(args) => args.run(),
        Command::Device(args) => args.run(),
        Command::Gateway(args) => args.run(),
        Command::Enroll(args) => args.run(),
        Command::Continue(args) => args.run(),
        Command::Rekey(args) => args.run(),
        Command::Revoke(args) => args.run(),
        Command::Status(args) => args.run(),
        Command::Export(args) => args.run(),
        Command::Backup(args) => args.run(),
        Command::Check(args) => args.run(),
        Command::Completions(args) => args.run(),
        Command::Man(args) => args.run(),
    };
    result.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS)
}

/// Returns the Unix time in seconds, 0 if the clock is before 1970.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A result with the version and the configuration that reproduce it.
#[derive(Serialize)]
struct Provenance<'a, T> {
    #[serde(flatten)]
    result: &'a T,
    version: &'static str,
    config: serde_json::Value,
}

/// Prints a result as JSON, with the version of this program and the configuration including seeds.
fn print_result(result: &impl Serialize, config: serde_json::Value) -> Result<(), Failure> {
    print_json(&Provenance { result, version: VERSION, config })
}

/// Prints JSON: indented on a terminal, else in one line.
fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let pretty = io::stdout().is_terminal();
    let text = if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    print_line(&text.map_err(io::Error::from)?)
}

/// Prints a line of text.
fn print_line(text: &impl Display) -> Result<(), Failure> {
    ignore_closed_pipe(writeln!(io::stdout().lock(), "{text}"))
}

/// Treats a reader of stdout that stops early, such as `head`, as success.
fn ignore_closed_pipe(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Failure::from(error).context("stdout")),
    }
}

/// Writes a file atomically and durably. Creates its directory if missing.
fn write_file(file: &Path, text: &str) -> Result<(), Failure> {
    write_file_with(file, |writer| writer.write_all(text.as_bytes()))
}

/// As [`write_file`], for content that a function writes.
fn write_file_with(file: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    write_file_with_mode(file, 0o666, content)
}

/// As [`write_file_with`], with permission bits, which the umask restricts.
fn write_file_with_mode(
    file: &Path,
    mode: u32,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::from(error).context(file.display());
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(format!(".{}.tmp", std::process::id()));
    let write = || {
        let mut options = fs::File::options();
        let options = options.write(true).create(true).truncate(true).mode(mode);
        let mut writer = BufWriter::new(options.open(&unfinished)?);
        content(&mut writer)?;
        // The content must be durable before the rename, and the rename before success is reported.
        writer.into_inner()?.sync_all()?;
        fs::rename(&unfinished, file)?;
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(&unfinished))).map_err(failed)
}
