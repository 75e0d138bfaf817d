//! Building `firmware-example` for a board and running it under QEMU.
//!
//! Requires the thumb targets and QEMU (`./ci.sh setup`). The environment variable `FEDBANDIT_EMBEDDED_TOOLCHAIN` names the
//! rustup toolchain, if it is not the default one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use object::read::elf::{ElfFile32, ProgramHeader};
use object::{Endianness, Object, ObjectSection, elf};

use super::process::{Lines, Process};
use super::repository;

/// A board that QEMU emulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Board {
    /// QEMU's name of the board, which is also a feature of the firmware.
    pub machine: &'static str,
    /// Rust target.
    pub target: &'static str,
    /// Processor core.
    pub core: &'static str,
}

/// Boards of `firmware-example`. The budget measures each core on its first board.
pub const BOARDS: [Board; 5] = [
    Board { machine: "mps2-an386", target: "thumbv7em-none-eabihf", core: "M4F" },
    Board { machine: "mps2-an505", target: "thumbv8m.main-none-eabihf", core: "M33" },
    Board { machine: "mps2-an385", target: "thumbv7m-none-eabi", core: "M3" },
    Board { machine: "microbit", target: "thumbv6m-none-eabi", core: "M0" },
    Board { machine: "netduinoplus2", target: "thumbv7em-none-eabihf", core: "M4F" },
];

/// One program of `firmware-example`, and how to build it.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// Name of the binary.
    pub bin: &'a str,
    /// Board to build for.
    pub board: Board,
    /// Cargo profile: `release` (opt-level 3), `opt-s` or `opt-z`.
    pub profile: &'a str,
    /// Features beside the board.
    pub features: &'a [&'a str],
    /// Dimension, for programs that are built for one.
    pub dimension: Option<usize>,
    /// Milliseconds that `device` waits for a model, if not its default.
    pub patience: Option<u32>,
}

/// Programs built by this process, which need no second look by cargo.
static BUILT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

impl<'a> Program<'a> {
    /// A program with default options.
    pub const fn new(bin: &'a str, board: Board, profile: &'a str) -> Self {
        Self { bin, board, profile, features: &[], dimension: None, patience: None }
    }

    /// Builds the program, and returns the path of its ELF file.
    ///
    /// # Errors
    /// Cargo fails; the error is its output.
    pub fn build(&self) -> Result<PathBuf, String> {
        let [dimension, patience] =
            [self.dimension.map(|number| number.to_string()), self.patience.map(|number| number.to_string())];
        let [features, board] = [self.features.join("+"), format!("{}-{}", self.board.machine, self.board.core)];
        let mut name = vec![self.bin, &board, self.profile, &features];
        name.extend(dimension.iter().chain(&patience).map(String::as_str));
        let directory = repository().join("firmware-example");
        // One path for each set of options, because cargo has the same path for all.
        let kept = directory.join("target").join(name.join("-"));
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        if built.contains(&kept) {
            return Ok(kept);
        }
        let features = [&[self.board.machine], self.features].concat().join(",");
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&directory).args(["build", "--locked", "--quiet", "--bin", self.bin]);
        cargo.args(["--profile", self.profile, "--target", self.board.target, "--features", &features]);
        cargo.env("D", dimension.unwrap_or_default()).env("DEFMT_LOG", "info").env_remove("PATIENCE");
        cargo.envs(patience.map(|patience| ("PATIENCE", patience)));
        for inherited in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET"] {
            cargo.env_remove(inherited);
        }
        if let Some(toolchain) = env::var_os("FEDBANDIT_EMBEDDED_TOOLCHAIN") {
            cargo.env("RUSTUP_TOOLCHAIN", toolchain);
        }
        run_cargo(&mut cargo)?;
        let elf = directory.join("target").join(self.board.target).join(self.profile).join(self.bin);
        fs::copy(&elf, &kept).map_err(|error| format!("{}: {error}", elf.display()))?;
        built.insert(kept.clone());
        Ok(kept)
    }
}

/// Builds the program `fedbandit` with all features.
///
/// # Errors
/// Cargo fails; the error is its output.
pub fn build_host() -> Result<PathBuf, String> {
    let mut cargo = Command::new("cargo");
    // A test builds the program of its package, with the features that `./ci.sh` has already built.
    cargo.current_dir(repository()).args(["test", "--no-run", "--test", "program", "--profile", "checks"]);
    cargo.args(["--locked", "--quiet", "--workspace", "--all-features"]);
    // Cargo sets these for a test. Passed on, they cause a rebuild of ring and its dependents.
    let package = |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| name.starts_with(start));
    env::vars_os()
        .filter(|(name, _)| name.to_str().is_some_and(package))
        .for_each(|(name, _)| _ = cargo.env_remove(name));
    run_cargo(&mut cargo)?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from);
    Ok(target.join("checks/fedbandit"))
}

fn run_cargo(cargo: &mut Command) -> Result<(), String> {
    let output = cargo.output().map_err(|error| format!("cannot start cargo: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Output and exit code of a program.
#[derive(Clone, Debug)]
pub struct Run {
    /// Lines of standard output.
    pub lines: Vec<String>,
    /// Exit code; none if a signal ended QEMU.
    pub code: Option<i32>,
}

impl Run {
    /// Returns all lines but the last of a run that succeeded. Success takes both: exit code 0, and this last line.
    ///
    /// # Errors
    /// The run failed; the error is its output.
    pub fn proven(&self, last_line: &str) -> Result<&[String], String> {
        match self.lines.split_last() {
            Some((last, before)) if last == last_line && self.code == Some(0) => Ok(before),
            _ => Err(format!(
                "expected exit code 0 after the line {last_line:?}, found {:?} after\n{}",
                self.code,
                self.lines.join("\n")
            )),
        }
    }
}

/// CPU seconds of QEMU after which a program counts as hung. The slowest takes fewer than ten.
pub const CPU_SECONDS: u32 = 300;

/// The command `qemu-system-arm`, killed by the kernel after some CPU seconds. CPU time measures executed instructions,
/// however busy the machine is.
pub(super) fn qemu(board: Board, cpu_seconds: u32) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--cpu={cpu_seconds}")).args(["qemu-system-arm", "-M", board.machine]);
    command.args(["-semihosting-config", "enable=on,target=native"]).stdin(Stdio::null());
    command
}

/// A program that runs under QEMU.
#[derive(Debug)]
pub struct Running {
    qemu: Process,
    output: Lines,
    lines: Vec<String>,
}

impl Running {
    /// Starts an ELF file on a board. A program that uses up its CPU time is killed.
    pub fn start(board: Board, elf: &Path, arguments: &[&str], cpu_seconds: u32) -> Self {
        let mut command = qemu(board, cpu_seconds);
        command.args(["-nographic", "-monitor", "none", "-serial", "none"]).args(arguments);
        let mut qemu = Process::spawn(command.arg("-kernel").arg(elf));
        let output = qemu.stdout();
        Self { qemu, output, lines: Vec::new() }
    }

    /// Reads lines up to this one. Returns false if the program ends before.
    pub fn wait_for_line(&mut self, expected: &str) -> bool {
        for line in self.output.by_ref() {
            let found = line == expected;
            self.lines.push(line);
            if found {
                return true;
            }
        }
        false
    }

    /// Kills QEMU.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn kill(&mut self) -> Result<(), String> {
        self.qemu.0.kill().map_err(|error| error.to_string())
    }

    /// Waits for the end of the program.
    ///
    /// # Errors
    /// The exit status cannot be read.
    pub fn wait(mut self) -> Result<Run, String> {
        self.lines.extend(self.output);
        let status = self.qemu.0.wait().map_err(|error| error.to_string())?;
        Ok(Run { lines: self.lines, code: status.code() })
    }
}

/// Runs an ELF file on a board to its end.
///
/// # Errors
/// The exit status cannot be read.
pub fn run(board: Board, elf: &Path, arguments: &[&str]) -> Result<Run, String> {
    Running::start(board, elf, arguments, CPU_SECONDS).wait()
}

/// Returns the bytes of flash that a program takes: its loaded segments, initial values of variables included.
///
/// # Errors
/// The file is not a 32-bit ELF file.
pub fn flash_bytes(path: &Path) -> Result<u64, String> {
    let data = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let wrong = |error| format!("{}: {error}", path.display());
    let file = ElfFile32::<Endianness>::parse(data.as_slice()).map_err(wrong)?;
    let loaded = file.elf_program_headers().iter().filter(|segment| segment.p_type(file.endian()) == elf::PT_LOAD);
    Ok(loaded.map(|segment| u64::from(segment.p_filesz(file.endian()))).sum())
}

/// Returns the bytes of RAM that a program's static variables take, initialised or not. The stack is not included.
///
/// # Errors
/// The file is not an ELF file.
pub fn ram_bytes(path: &Path) -> Result<u64, String> {
    let data = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let file = object::File::parse(data.as_slice()).map_err(|error| format!("{}: {error}", path.display()))?;
    let variables = [".data", ".bss", ".uninit"].into_iter().filter_map(|name| file.section_by_name(name));
    Ok(variables.map(|section| section.size()).sum())
}
