//! Builds `firmware-example` for a board and runs it under QEMU.
//!
//! The thumb targets and QEMU must be there (`./ci.sh setup`). The environment variable `FEDBANDIT_EMBEDDED_TOOLCHAIN` names the rustup
//! toolchain to build with, where it is not the default one.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use object::{Object, ObjectSection, SectionFlags, elf};

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
        cargo.env("D", &dimension).env("DEFMT_LOG", "info");
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
        let kept =
            directory.join("target").join(format!("{}-{}-{}-{dimension}", self.bin, self.board.machine, self.profile));
        fs::copy(&built, &kept).map_err(|error| format!("{}: {error}", built.display()))?;
        Ok(kept)
    }
}

/// What a program printed, and how it ended.
#[derive(Clone, Debug)]
pub struct Run {
    /// The lines of standard output.
    pub lines: Vec<String>,
    /// The exit code; none if QEMU was killed by a signal or by the timeout.
    pub code: Option<i32>,
}

/// Runs an ELF file on a board until it exits or the time is over.
///
/// # Errors
/// QEMU does not start.
pub fn run(board: Board, elf: &Path, arguments: &[&str], timeout: Duration) -> Result<Run, String> {
    let mut child = Command::new("qemu-system-arm")
        .args(["-M", board.machine, "-nographic", "-monitor", "none", "-serial", "none"])
        .args(["-semihosting-config", "enable=on,target=native", "-kernel"])
        .arg(elf)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("qemu-system-arm does not start ({error}): install it with ./ci.sh setup"))?;
    let output = child.stdout.take().ok_or("no output")?;
    let (sender, receiver) = mpsc::channel();
    let reader = thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).for_each(|line| _ = sender.send(line));
    });
    let deadline = Instant::now() + timeout;
    let mut lines = Vec::new();
    let ended = loop {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => lines.push(line),
            Err(RecvTimeoutError::Disconnected) => break true,
            Err(RecvTimeoutError::Timeout) => break false,
        }
    };
    if !ended {
        _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    _ = reader.join();
    Ok(Run { lines, code: status.code() })
}

/// The bytes that a program takes in flash: sections that are loaded, initial values of variables included.
///
/// # Errors
/// The file is no ELF file.
pub fn flash_bytes(elf: &Path) -> Result<u64, String> {
    let data = fs::read(elf).map_err(|error| format!("{}: {error}", elf.display()))?;
    let file = object::File::parse(data.as_slice()).map_err(|error| format!("{}: {error}", elf.display()))?;
    let loaded = file.sections().filter(|section| match section.flags() {
        SectionFlags::Elf { sh_flags } => {
            sh_flags & u64::from(elf::SHF_ALLOC) != 0 && section.kind() != object::SectionKind::UninitializedData
        }
        _ => false,
    });
    Ok(loaded.map(|section| section.size()).sum())
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
