//! Logging to stderr.

use std::io;

use tracing_subscriber::filter::LevelFilter;

/// Log level and format.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Log level: off, error, warn, info or debug.
    #[arg(long, value_name = "LEVEL", env = "FEDBANDIT_LOG", default_value = "info")]
    log: LevelFilter,
    /// Log format: text, or json with one object per line.
    #[arg(long, value_name = "FORMAT", env = "FEDBANDIT_LOG_FORMAT", default_value = "text")]
    log_format: Format,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

impl Options {
    /// Starts logging for the rest of the process.
    pub(super) fn start(&self) {
        let log = tracing_subscriber::fmt().with_writer(io::stderr).with_max_level(self.log).with_target(false);
        match self.log_format {
            Format::Text => log.with_ansi(false).init(),
            Format::Json => log.json().flatten_event(true).init(),
        }
    }
}
