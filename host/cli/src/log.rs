//! Logs, to stderr: stdout is for results.

use std::io;

use tracing_subscriber::filter::LevelFilter;

/// What is logged, and how.
#[derive(clap::Args)]
pub(super) struct Options {
    /// How much is logged, to stderr: off, error, warn, info or debug.
    #[arg(long, value_name = "LEVEL", env = "FEDBANDIT_LOG", default_value = "info")]
    log: LevelFilter,
    /// How: text for people, or json, one object in a line.
    #[arg(long, value_name = "FORMAT", env = "FEDBANDIT_LOG_FORMAT", default_value = "text")]
    log_format: Format,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

impl Options {
    /// From now on what happens is logged.
    pub(super) fn start(&self) {
        let log = tracing_subscriber::fmt().with_writer(io::stderr).with_max_level(self.log).with_target(false);
        match self.log_format {
            Format::Text => log.with_ansi(false).init(),
            Format::Json => log.json().flatten_event(true).init(),
        }
    }
}
