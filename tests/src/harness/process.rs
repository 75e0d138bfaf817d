//! Child processes of tests, and waiting for events.
//!
//! A wait ends with the awaited event, or with the process that should have caused it. No outcome depends on the speed of
//! the machine.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Limit of every wait. It ends deadlocks; a slow machine does not come near it.
pub const LAST_RESORT: Duration = Duration::from_secs(30 * 60);

/// Interval between two polls of an event.
const POLL: Duration = Duration::from_millis(10);

/// Polls until an event happens, and returns its value.
///
/// # Panics
/// After [`LAST_RESORT`].
pub fn wait_for<T>(what: &str, mut event: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = event() {
            return value;
        }
        assert!(start.elapsed() < LAST_RESORT, "deadlock: no {what} within {LAST_RESORT:?}");
        thread::sleep(POLL);
    }
}

/// Polls until a condition holds.
///
/// # Panics
/// After [`LAST_RESORT`].
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Lines of a stream, as they arrive. Ends with the stream.
#[derive(Debug)]
pub struct Lines(Receiver<String>);

impl Lines {
    /// Reads a stream in a thread.
    pub fn new(stream: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            BufReader::new(stream).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self(receiver)
    }
}

impl Iterator for Lines {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        match self.0.recv_timeout(LAST_RESORT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("deadlock: no line within {LAST_RESORT:?}"),
        }
    }
}

/// A child process. Dropping it sends SIGKILL.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// Starts a command with its standard output piped.
    ///
    /// # Panics
    /// The command cannot be started.
    pub fn spawn(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).spawn();
        let program = command.get_program().display();
        Self(child.unwrap_or_else(|error| panic!("cannot start {program}: {error}; ./ci.sh installs it")))
    }

    /// Takes the standard output.
    ///
    /// # Panics
    /// It was taken before.
    pub fn stdout(&mut self) -> Lines {
        Lines::new(self.0.stdout.take().expect("stdout is piped and not yet taken"))
    }

    /// Takes the standard error, which the command must have piped.
    ///
    /// # Panics
    /// It is not piped, or was taken before.
    pub fn stderr(&mut self) -> Lines {
        Lines::new(self.0.stderr.take().expect("stderr is piped and not yet taken"))
    }

    /// Returns true once the process has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Waits for the end of the process, and returns its standard output.
    ///
    /// # Panics
    /// The process fails.
    pub fn output(mut self) -> String {
        let lines: Vec<String> = self.stdout().collect();
        let status = self.0.wait();
        assert!(status.as_ref().is_ok_and(|status| status.success()), "{status:?} after {lines:?}");
        lines.join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
