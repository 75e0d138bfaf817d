//! Cost of the agent on a microcontroller: measured, held to limits, and compared with the recorded numbers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use fedbandit_core::wire::{HEADER_LEN, TAG_LEN};
use fedbandit_core::{Action, GuardedAgent, packed_len};

use crate::harness::firmware::{self, BOARDS, Board, Program};
use crate::harness::repository;
use crate::measure::record::{between, thousands};

/// Core, dimension, quantity.
type Key = (String, usize, String);

/// Numbers by core, dimension and quantity, with one compiler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    compiler: String,
    values: BTreeMap<Key, u64>,
}

/// Dimensions of the tables.
const DIMENSIONS: [usize; 3] = [8, 16, 32];

/// Cores, in the order of the tables.
const CORES: [&str; 4] = ["M4F", "M33", "M3", "M0"];

/// Code for the M0 on a board with enough RAM for all dimensions, whose M3 executes the same instructions. For dimensions
/// that fit into the micro:bit, both boards must agree.
const ROOMY_M0: Board = Board { machine: "mps2-an385", target: "thumbv6m-none-eabi", core: "M0" };

/// Tolerance between two boards. Each clock is read to a tick, at most a third of an instruction per call.
const CLOCK_ERROR: u64 = 1;

/// The same for quantities of the guard, which are measured with fewer calls: four instructions per call.
const GUARD_CLOCK_ERROR: u64 = 8;

/// Actions per step in the sizing table of the firmware.
const ACTIONS: usize = 10;

/// Dimension of the program `device`.
const DEVICE_DIMENSION: usize = 8;

/// Vectors on the stack of `begin`, and of `begin` with a guard.
const BEGIN_VECTORS: usize = 2;
const GUARDED_VECTORS: usize = 13;

/// Stack of each call of the agent; the table shows the maximum.
const AGENT_STACKS: [&str; 3] = ["stack_begin", "stack_select", "stack_record"];

/// Stack of encoding and decoding a frame.
const FRAME_STACKS: [&str; 2] = ["stack_encode", "stack_decode"];

/// Limits on a Cortex-M4F, for dimensions 8, 16 and 32.
const LIMITS: [(&str, [u64; 3]); 5] = [
    // 1.2 times two packed triangles and two vectors of f32.
    ("state_bytes", [422, 1_459, 5_376]),
    ("select_per_arm", [175, 600, 2_000]),
    ("record", [250, 900, 3_200]),
    ("code_bytes", [4_096, 5_120, 6_144]),
    ("guard_bytes", [220, 700, 2_400]),
];

impl Budget {
    /// Runs the program `budget`, and measures the size of `agent_size` and `device`.
    ///
    /// # Errors
    /// A program does not build, or fails.
    pub fn measure() -> Result<Self, String> {
        let mut budget = Self { compiler: compiler()?, values: BTreeMap::new() };
        for board in BOARDS.into_iter().filter(|board| board.machine != "netduinoplus2") {
            eprintln!("measuring {} ({})", board.core, board.machine);
            budget.count_instructions(board)?;
            budget.measure_code(board)?;
            budget.measure_device(board)?;
        }
        budget.count_instructions(ROOMY_M0)?;
        Ok(budget)
    }

    fn count_instructions(&mut self, board: Board) -> Result<(), String> {
        let elf = program("budget", board, "release", None).build()?;
        let run = firmware::run(board, &elf, &["-icount", "shift=0"])?;
        for line in run.proven("done").map_err(|error| format!("{board:?}: {error}"))? {
            let fields: Vec<_> = line.split(' ').collect();
            let [dimension, quantity, value] = fields[..] else { return Err(format!("invalid measurement '{line}'")) };
            let key = (board.core.to_owned(), dimension.parse().map_err(|_| line)?, quantity.to_owned());
            let value: u64 = value.parse().map_err(|_| line)?;
            let before = *self.values.entry(key).or_insert(value);
            let tolerance = if quantity.starts_with("guarded_") { GUARD_CLOCK_ERROR } else { CLOCK_ERROR };
            if before.abs_diff(value) > tolerance {
                return Err(format!("{line} on {}, but {before} on another board with the same core", board.machine));
            }
        }
        Ok(())
    }

    fn measure_code(&mut self, board: Board) -> Result<(), String> {
        let baseline = firmware::flash_bytes(&program("agent_size_baseline", board, "opt-s", None).build()?)?;
        for dimension in DIMENSIONS {
            let whole = firmware::flash_bytes(&program("agent_size", board, "opt-s", Some(dimension)).build()?)?;
            self.insert(board, dimension, "code_bytes", whole - baseline);
        }
        Ok(())
    }

    fn measure_device(&mut self, board: Board) -> Result<(), String> {
        let elf = program("device", board, "opt-s", None).build()?;
        self.insert(board, DEVICE_DIMENSION, "device_flash", firmware::flash_bytes(&elf)?);
        self.insert(board, DEVICE_DIMENSION, "device_ram", firmware::ram_bytes(&elf)?);
        Ok(())
    }

    fn insert(&mut self, board: Board, dimension: usize, quantity: &str, value: u64) {
        self.values.insert((board.core.to_owned(), dimension, quantity.to_owned()), value);
    }

    fn get(&self, core: &str, dimension: usize, quantity: &str) -> Result<u64, String> {
        let value = self.values.get(&(core.to_owned(), dimension, quantity.to_owned()));
        value.copied().ok_or_else(|| format!("{quantity} at D = {dimension} on {core} was not measured"))
    }

    fn worst(&self, core: &str, dimension: usize, quantities: &[&str]) -> Result<u64, String> {
        quantities.iter().try_fold(0, |worst: u64, quantity| Ok(worst.max(self.get(core, dimension, quantity)?)))
    }

    /// Returns the minimum and maximum stack of a call beyond its matrix and `vectors` vectors.
    fn stack_beyond(&self, quantity: &str, vectors: usize) -> Result<[u64; 2], String> {
        let mut range = [u64::MAX, 0];
        for (core, dimension) in CORES.into_iter().flat_map(|core| DIMENSIONS.map(|dimension| (core, dimension))) {
            let beyond = self.get(core, dimension, quantity)? - matrix_bytes(dimension, vectors);
            range = [range[0].min(beyond), range[1].max(beyond)];
        }
        Ok(range)
    }

    /// Describes each quantity above its limit.
    pub fn over_limit(&self) -> Vec<String> {
        let mut over = Vec::new();
        for (quantity, limits) in LIMITS {
            for (dimension, limit) in DIMENSIONS.into_iter().zip(limits) {
                match self.get("M4F", dimension, quantity) {
                    Ok(value) if value <= limit => {}
                    value => {
                        over.push(format!("{quantity} at D = {dimension} is {value:?}, above the limit of {limit}"))
                    }
                }
            }
        }
        over
    }

    /// Describes each difference from the record of more than 1 % or 2, the effect that the path of the checkout can have on
    /// the order of functions. Returns none if the record is from another compiler, whose code differs anyway.
    pub fn differences(&self, recorded: &Self) -> Option<Vec<String>> {
        if self.compiler != recorded.compiler {
            return None;
        }
        let keys = self.values.keys().chain(recorded.values.keys().filter(|key| !self.values.contains_key(*key)));
        let changed = keys.filter(|key| match (self.values.get(*key), recorded.values.get(*key)) {
            (Some(now), Some(then)) => now.abs_diff(*then) > (then / 100).max(2),
            _ => true,
        });
        Some(
            changed
                .map(|key| format!("{key:?}: {:?}, recorded {:?}", self.values.get(key), recorded.values.get(key)))
                .collect(),
        )
    }

    /// Formats the numbers as lines `core,dimension,quantity,value`, below a line with the compiler.
    pub fn to_csv(&self) -> String {
        let mut csv = format!("# {}\ncore,dimension,quantity,value\n", self.compiler);
        for ((core, dimension, quantity), value) in &self.values {
            _ = writeln!(csv, "{core},{dimension},{quantity},{value}");
        }
        csv
    }

    /// Parses the format of [`to_csv`](Self::to_csv).
    ///
    /// # Errors
    /// A line is invalid.
    pub fn from_csv(csv: &str) -> Result<Self, String> {
        let mut lines = csv.lines();
        let compiler =
            lines.next().and_then(|line| line.strip_prefix("# ")).ok_or("the first line lacks the compiler")?;
        let mut values = BTreeMap::new();
        for line in lines.skip(1) {
            let fields: Vec<_> = line.split(',').collect();
            let [core, dimension, quantity, value] = fields[..] else { return Err(line.to_owned()) };
            let key = (core.to_owned(), dimension.parse().map_err(|_| line)?, quantity.to_owned());
            values.insert(key, value.parse().map_err(|_| line)?);
        }
        Ok(Self { compiler: compiler.to_owned(), values })
    }

    /// Formats the tables of `core/README.md`.
    ///
    /// # Errors
    /// A number was not measured.
    pub fn to_table(&self) -> Result<String, String> {
        let mut table = String::from(
            "| D | core | state RAM | worst stack | `select`, per arm | `record` | `begin` | `encode` | `decode` | agent code |\n\
             |---|---|---|---|---|---|---|---|---|---|\n",
        );
        let mut frame_stack = 0;
        for dimension in DIMENSIONS {
            for core in CORES {
                let cell = |quantity| self.get(core, dimension, quantity).map(thousands);
                frame_stack = frame_stack.max(self.worst(core, dimension, &FRAME_STACKS)?);
                _ = writeln!(
                    table,
                    "| {dimension} | {core} | {} B | {} B | {} | {} | {} | {} | {} | {} B |",
                    cell("state_bytes")?,
                    thousands(self.worst(core, dimension, &AGENT_STACKS)?),
                    cell("select_per_arm")?,
                    cell("record")?,
                    cell("begin")?,
                    cell("encode")?,
                    cell("decode")?,
                    cell("code_bytes")?,
                );
            }
        }
        table += "\nThe guard adds:\n\n\
                  | D | core | RAM | stack of `begin` | `begin` | `record` and `finish` |\n|---|---|---|---|---|---|\n";
        for dimension in DIMENSIONS {
            for core in CORES {
                let cell = |quantity| self.get(core, dimension, quantity).map(thousands);
                _ = writeln!(
                    table,
                    "| {dimension} | {core} | {} B | {} B | {} | {} |",
                    cell("guard_bytes")?,
                    cell("stack_guarded_begin")?,
                    cell("guarded_begin")?,
                    cell("guarded_finish")?,
                );
            }
        }
        table += "\n| core | device flash | device static RAM |\n|---|---|---|\n";
        for core in CORES {
            let cell = |quantity| self.get(core, DEVICE_DIMENSION, quantity).map(thousands);
            _ = writeln!(table, "| {core} | {} B | {} B |", cell("device_flash")?, cell("device_ram")?);
        }
        let [least, most] = self.stack_beyond("stack_begin", BEGIN_VECTORS)?;
        _ = writeln!(
            table,
            "\nInstructions and stack are measured at opt-level 3, flash at opt-level s, with {}.\n\
             At D = 32 the measuring program exceeds the micro:bit's 16 KiB of RAM. Its M0 code therefore ran on {}, whose M3\n\
             executes all M0 instructions. At D = 8 and 16 the two boards agree exactly in stack, and in instructions within {CLOCK_ERROR}, the\n\
             resolution of their clocks.\n\
             Among the agent's calls `begin` has the worst stack: 4·(D² + {BEGIN_VECTORS}D) bytes for the factorisation, plus {least} to {most} bytes.\n\
             `encode` and `decode` need up to {} bytes.",
            self.compiler,
            ROOMY_M0.machine,
            thousands(frame_stack),
        );
        Ok(table)
    }

    /// Formats the table of the project's README: the agent on a Cortex-M4F.
    ///
    /// # Errors
    /// A number was not measured.
    pub fn to_short_table(&self) -> Result<String, String> {
        let mut table = String::from(
            "| D | state RAM | worst stack | instructions per arm of `select` | per `record` | flash |\n|---|---|---|---|---|---|\n",
        );
        for dimension in DIMENSIONS {
            let cell = |quantity| self.get("M4F", dimension, quantity).map(thousands);
            let [ram, stack, code] = [cell("state_bytes")?, cell("stack_begin")?, cell("code_bytes")?];
            let [select, record] = [cell("select_per_arm")?, cell("record")?];
            _ = writeln!(table, "| {dimension} | {ram} B | {stack} B | {select} | {record} | {code} B |");
        }
        Ok(table)
    }

    /// Formats the table of the firmware's README: RAM of a device by dimension and window.
    ///
    /// # Errors
    /// A number was not measured.
    pub fn to_sizing_table(&self) -> Result<String, String> {
        let [_, most] = self.stack_beyond("stack_guarded_begin", GUARDED_VECTORS)?;
        let rows = [
            sizing_row::<4, { packed_len(4) }>(4, most),
            sizing_row::<8, { packed_len(8) }>(4, most),
            sizing_row::<16, { packed_len(16) }>(4, most),
            sizing_row::<16, { packed_len(16) }>(2, most),
            sizing_row::<32, { packed_len(32) }>(4, most),
        ];
        Ok(format!(
            "For A = {ACTIONS} and B = {most}, the largest measured, without the items marked \"about\":\n\n\
             | D | W | F | agent | session | decoder | queue | retained | `begin` | decision set | sum | with 4 KiB reserve | fits 16 KiB |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|\n{}",
            rows.concat()
        ))
    }
}

/// Formats the RAM of a guarded device with a window, if `begin` takes `beyond` bytes of stack beyond its matrix and vectors.
fn sizing_row<const D: usize, const T: usize>(window: usize, beyond: u64) -> String {
    // Of plain frames: `max_frame_len` includes the nonce here, because the tests are built with the feature `sealed`.
    let frame = HEADER_LEN + 8 + 4 * (D + packed_len(D)) + TAG_LEN;
    let queue = if D > 8 { 2 * frame } else { 512 };
    let retained = 16 + 2 * GuardedAgent::<D, T>::SAVED_LEN + window * (frame + 2);
    let decision_set = size_of::<Action<D>>() * ACTIONS;
    let parts =
        [size_of::<GuardedAgent<D, T>>(), window * (frame + 8), frame, queue, retained].map(|bytes| bytes as u64);
    let parts = [&parts[..], &[matrix_bytes(D, GUARDED_VECTORS) + beyond, decision_set as u64]].concat();
    let sum = parts.iter().sum::<u64>();
    let with_reserve = sum + 4 * 1_024;
    let cells = [&[D as u64, window as u64, frame as u64], &parts[..], &[sum, with_reserve]].concat();
    let fits = if with_reserve <= 16 * 1_024 { "yes" } else { "no" };
    format!("| {} | {fits} |\n", cells.into_iter().map(thousands).collect::<Vec<_>>().join(" | "))
}

/// Measures, and compares with the record. With `write`, replaces the record and the tables in the READMEs.
///
/// # Errors
/// A number exceeds its limit, or differs from the record.
pub fn check(write: bool) -> Result<String, String> {
    let budget = Budget::measure()?;
    let record = repository().join("core/budget.csv");
    if write {
        fs::write(&record, budget.to_csv()).map_err(|error| error.to_string())?;
    }
    let recorded = Budget::from_csv(&fs::read_to_string(&record).map_err(|error| error.to_string())?)?;
    let mut wrong = budget.over_limit();
    for (readme, table) in [
        ("core/README.md", recorded.to_table()?),
        ("README.md", recorded.to_short_table()?),
        ("firmware-example/README.md", recorded.to_sizing_table()?),
    ] {
        let path = repository().join(readme);
        let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let shown = between(&text, "budget", "./ci.sh budget --write", &table)
            .ok_or_else(|| format!("{readme} lacks the marks of the table"))?;
        if write {
            fs::write(&path, shown).map_err(|error| error.to_string())?;
        } else if shown != text {
            wrong.push(format!("{readme} does not show the numbers of core/budget.csv"));
        }
    }
    let note = match budget.differences(&recorded) {
        Some(differences) => {
            wrong.extend(differences);
            String::new()
        }
        None => format!("\nThe record is from {}: only the limits were checked.\n", recorded.compiler),
    };
    if wrong.is_empty() { Ok(budget.to_table()? + &note) } else { Err(wrong.join("\n")) }
}

fn program<'a>(bin: &'a str, board: Board, profile: &'a str, dimension: Option<usize>) -> Program<'a> {
    Program { dimension, ..Program::new(bin, board, profile) }
}

/// Returns the version of the compiler that builds the firmware.
fn compiler() -> Result<String, String> {
    let mut rustc = Command::new("rustc");
    if let Some(toolchain) = std::env::var_os("FEDBANDIT_EMBEDDED_TOOLCHAIN") {
        rustc.env("RUSTUP_TOOLCHAIN", toolchain);
    }
    let output = rustc.arg("--version").output().map_err(|error| format!("cannot start rustc: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Bytes of the matrix that `begin` factorises on its stack, and of some vectors.
fn matrix_bytes(dimension: usize, vectors: usize) -> u64 {
    4 * (dimension * dimension + vectors * dimension) as u64
}
