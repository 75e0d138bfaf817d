//! Builds `firmware-example` for a board and runs it under QEMU.
//!
//! The thumb targets and QEMU must be there (`./ci.sh setup`). The environment variable `FEDBANDIT_EMBEDDED_TOOLCHAIN` names the rustup
//! toolchain to build with, where it is not the default one.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{env, fs, mem, thread};

use object::read::elf::{ElfFile32, ProgramHeader};
use object::{Endianness, Object, ObjectSection, elf};

/// A board that QEMU knows, and its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Board {
    /// QEMU's name, and the firmware's feature.
    pub machine: &'static str,
    /// The compiler's target.
    pub target: &'static str,
    /// The processor.
    pub core: &'static str,
}

/// The boards of `firmware-example`. The first of each processor stands for it in the budget.
pub const BOARDS: [Board; 5] = [
    Board { machine: "mps2-an386", target: "thumbv7em-none-eabihf", core: "M4F" },
    Board { machine: "mps2-an505", target: "thumbv8m.main-none-eabihf", core: "M33" },
    Board { machine: "mps2-an385", target: "thumbv7m-none-eabi", core: "M3" },
    Board { machine: "microbit", target: "thumbv6m-none-eabi", core: "M0" },
    Board { machine: "netduinoplus2", target: "thumbv7em-none-eabihf", core: "M4F" },
];

/// One program of `firmware-example`.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// The binary's name.
    pub bin: &'a str,
    /// The board's.
    pub board: Board,
    /// The cargo profile: `release` (opt-level 3), `opt-s` or `opt-z`.
    pub profile: &'a str,
    /// Features beyond the board.
    pub features: &'a [&'a str],
    /// For programs that are built for one dimension.
    pub dimension: Option<usize>,
}

impl Program<'_> {
    /// Builds the program.
    ///
    /// # Errors
    /// What cargo printed, if it failed.
    pub fn build(&self) -> Result<PathBuf, String> {
        let mut features = vec![self.board.machine];
        features.extend(self.features);
        // Each dimension links at its own path, so that tests at the same time do not take each other's file.
        let dimension = self.dimension.map_or(String::new(), |dimension| dimension.to_string());
        let directory = repository().join("firmware-example");
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&directory).args([
            "build",
            "--locked",
            "--quiet",
            "--bin",
            self.bin,
            "--profile",
            self.profile,
        ]);
        cargo.args(["--target", self.board.target, "--features", &features.join(",")]);
        cargo.env("D", &dimension).env("DEFMT_LOG", "info").env("PATIENCE", "5000");
        for inherited in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET"] {
            cargo.env_remove(inherited);
        }
        if let Some(toolchain) = env::var_os("FEDBANDIT_EMBEDDED_TOOLCHAIN") {
            cargo.env("RUSTUP_TOOLCHAIN", toolchain);
        }
        let output = cargo.output().map_err(|error| format!("cargo does not start: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let built = directory.join("target").join(self.board.target).join(self.profile).join(self.bin);
        let Board { machine, core, .. } = self.board;
        let kept = directory.join("target").join(format!("{}-{machine}-{core}-{}-{dimension}", self.bin, self.profile));
        fs::copy(&built, &kept).map_err(|error| format!("{}: {error}", built.display()))?;
        Ok(kept)
    }
}

/// Builds the program `fedbandit` with all that it can do.
///
/// # Errors
/// What cargo printed, if it failed.
pub fn build_host() -> Result<PathBuf, String> {
    let mut cargo = Command::new("cargo");
    // As ./ci.sh builds its tests, so that it is there: a test brings its package's program. With `build` other features would be chosen.
    cargo.current_dir(repository()).args(["test", "--no-run", "--test", "service", "--profile", "checks"]);
    cargo.args(["--locked", "--quiet", "--workspace", "--all-features"]);
    // What cargo tells a test about its package would have ring, and all above it, built anew.
    let told = |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| name.starts_with(start));
    env::vars_os().filter(|(name, _)| name.to_str().is_some_and(told)).for_each(|(name, _)| _ = cargo.env_remove(name));
    let output = cargo.output().map_err(|error| format!("cargo does not start: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from);
    Ok(target.join("checks/fedbandit"))
}

/// What a program printed, and how it ended.
#[derive(Clone, Debug)]
pub struct Run {
    /// The lines of standard output.
    pub lines: Vec<String>,
    /// The exit code; none if QEMU was killed by a signal or by the timeout.
    pub code: Option<i32>,
}

impl Run {
    /// The lines before the last, if the program proves that it came to its end: it exited with success, and its last line is
    /// this one.
    ///
    /// # Errors
    /// How it ended instead, with all that it printed.
    pub fn proven(&self, last_line: &str) -> Result<&[String], String> {
        match self.lines.split_last() {
            Some((last, before)) if last == last_line && self.code == Some(0) => Ok(before),
            _ => Err(format!(
                "no success, which is exit code 0 after the line {last_line:?}: {:?} after\n{}",
                self.code,
                self.lines.join("\n")
            )),
        }
    }
}

/// A program that runs under QEMU. Dropped, it is ended.
#[derive(Debug)]
pub struct Running {
    qemu: Child,
    output: Receiver<String>,
    lines: Vec<String>,
}

/// Starts an ELF file on a board.
///
/// # Errors
/// QEMU does not start.
pub fn start(board: Board, elf: &Path, arguments: &[&str]) -> Result<Running, String> {
    let mut qemu = Command::new("qemu-system-arm")
        .args(["-M", board.machine, "-nographic", "-monitor", "none", "-serial", "none"])
        .args(["-semihosting-config", "enable=on,target=native", "-kernel"])
        .arg(elf)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("qemu-system-arm does not start ({error}): install it with ./ci.sh setup"))?;
    let stdout = qemu.stdout.take().ok_or("no output")?;
    let (sender, output) = mpsc::channel();
    thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| _ = sender.send(line));
    });
    Ok(Running { qemu, output, lines: Vec::new() })
}

impl Running {
    /// Takes in lines until this one comes. No if the program ends or the time is over before.
    pub fn wait_for_line(&mut self, line: &str, timeout: Duration) -> bool {
        self.read_lines(timeout, |read| read == line) == Reading::Found
    }

    /// Ends QEMU, whatever the program does.
    ///
    /// # Errors
    /// The system's, if it cannot.
    pub fn kill(&mut self) -> Result<(), String> {
        self.qemu.kill().map_err(|error| error.to_string())
    }

    /// Waits until the program exits, and ends it when the time is over.
    ///
    /// # Errors
    /// The system's, if it lost the process.
    pub fn wait(mut self, timeout: Duration) -> Result<Run, String> {
        if self.read_lines(timeout, |_| false) == Reading::TimeOver {
            self.kill()?;
            // What was printed up to then still counts.
            self.lines.extend(self.output.iter());
        }
        let status = self.qemu.wait().map_err(|error| error.to_string())?;
        Ok(Run { lines: mem::take(&mut self.lines), code: status.code() })
    }

    fn read_lines(&mut self, timeout: Duration, found: impl Fn(&str) -> bool) -> Reading {
        let deadline = Instant::now() + timeout;
        loop {
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let found = found(&line);
                    self.lines.push(line);
                    if found {
                        return Reading::Found;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Reading::Ended,
                Err(RecvTimeoutError::Timeout) => return Reading::TimeOver,
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Neither does harm to a process that was waited for.
        _ = self.qemu.kill();
        _ = self.qemu.wait();
    }
}

/// Why no more lines are read.
#[derive(PartialEq, Eq)]
enum Reading {
    Found,
    Ended,
    TimeOver,
}

/// Runs an ELF file on a board until it exits or the time is over.
///
/// # Errors
/// QEMU does not start.
pub fn run(board: Board, elf: &Path, arguments: &[&str], timeout: Duration) -> Result<Run, String> {
    start(board, elf, arguments)?.wait(timeout)
}

/// The bytes that a program takes in flash: what its segments load, initial values of variables included.
///
/// # Errors
/// The file is no ELF file for a 32-bit processor.
pub fn flash_bytes(path: &Path) -> Result<u64, String> {
    let data = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let wrong = |error| format!("{}: {error}", path.display());
    let file = ElfFile32::<Endianness>::parse(data.as_slice()).map_err(wrong)?;
    let loaded = file.elf_program_headers().iter().filter(|segment| segment.p_type(file.endian()) == elf::PT_LOAD);
    Ok(loaded.map(|segment| u64::from(segment.p_filesz(file.endian()))).sum())
}

/// The bytes of RAM that a program's static variables take: set to initial values, to zero, or left as a reset finds them.
/// Its stack comes on top.
///
/// # Errors
/// The file is no ELF file.
pub fn ram_bytes(path: &Path) -> Result<u64, String> {
    let data = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let file = object::File::parse(data.as_slice()).map_err(|error| format!("{}: {error}", path.display()))?;
    let variables = [".data", ".bss", ".uninit"].into_iter().filter_map(|name| file.section_by_name(name));
    Ok(variables.map(|section| section.size()).sum())
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
