//! Commands of the program `fedbandit-tests`.

pub mod budget;
pub mod claims;
pub mod long_runs;
pub mod monitoring;
pub mod peers;
pub mod publish;
pub mod record;
pub mod soak;

use std::process::Command;

use crate::harness::repository;

/// Reason for which a command does not succeed.
#[derive(Debug)]
pub enum Failure {
    /// A check failed.
    Failed(String),
    /// A tool that the command needs cannot be installed here.
    Skipped(String),
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

/// Runs a program in the repository, with its output on this one's.
fn run_command(program: &str, arguments: &[&str]) -> Result<(), String> {
    let command = format!("{program} {}", arguments.join(" "));
    eprintln!("==> {command}");
    match Command::new(program).current_dir(repository()).args(arguments).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command}: {status}")),
        Err(error) => Err(format!("{command}: {error}")),
    }
}
