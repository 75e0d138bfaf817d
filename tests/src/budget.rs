//! What the agent costs on a microcontroller: measured, held to limits, and compared with the numbers on record.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::firmware::{self, BOARDS, Board, Program, repository};

/// Processor, dimension, quantity.
type Key = (String, usize, String);

/// Numbers by processor, dimension and quantity, and the compiler that they hold for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    compiler: String,
    values: BTreeMap<Key, u64>,
}

/// The dimensions of the table.
const DIMENSIONS: [usize; 3] = [8, 16, 32];

/// The processors, in the order of the tables.
const CORES: [&str; 4] = ["M4F", "M33", "M3", "M0"];

/// The dimension of the `device` program.
const DEVICE_DIMENSION: usize = 8;

/// The stack of each call of the agent; the table shows the worst.
const STACKS: [&str; 3] = ["stack_begin", "stack_select", "stack_record"];

/// The most that a quantity may be on a Cortex-M4F, for dimensions 8, 16 and 32.
const LIMITS: [(&str, [u64; 3]); 4] = [
    // 1.2 times two packed triangles and two vectors of f32.
    ("state_bytes", [422, 1_459, 5_376]),
    ("select_per_arm", [175, 600, 2_000]),
    ("record", [250, 900, 3_200]),
    ("code_bytes", [4_096, 5_120, 6_144]),
];

impl Budget {
    /// Builds and runs the `budget` program, and measures the code of `agent_code` and the whole of `device`.
    ///
    /// # Errors
    /// A program does not build, or did not run to its end.
    pub fn measure() -> Result<Self, String> {
        let mut budget = Self { compiler: compiler()?, values: BTreeMap::new() };
        for board in BOARDS.into_iter().filter(|board| board.machine != "netduinoplus2") {
            eprintln!("measuring {} ({})", board.core, board.machine);
            budget.count_instructions(board)?;
            budget.measure_code(board)?;
            budget.measure_device(board)?;
        }
        Ok(budget)
    }

    fn count_instructions(&mut self, board: Board) -> Result<(), String> {
        let elf = program("budget", board, "release", None).build()?;
        let run = firmware::run(board, &elf, &["-icount", "shift=0"], Duration::from_secs(120))?;
        for line in run.proven("done").map_err(|error| format!("{board:?}: {error}"))? {
            let fields: Vec<_> = line.split(' ').collect();
            let [dimension, quantity, value] = fields[..] else { return Err(format!("not a measurement: {line}")) };
            self.insert(board, dimension.parse().map_err(|_| line)?, quantity, value.parse().map_err(|_| line)?);
        }
        Ok(())
    }

    fn measure_code(&mut self, board: Board) -> Result<(), String> {
        let empty = firmware::flash_bytes(&program("empty", board, "opt-s", None).build()?)?;
        for dimension in DIMENSIONS {
            let whole = firmware::flash_bytes(&program("agent_code", board, "opt-s", Some(dimension)).build()?)?;
            self.insert(board, dimension, "code_bytes", whole - empty);
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

    fn get(&self, core: &str, dimension: usize, quantity: &str) -> Option<u64> {
        self.values.get(&(core.to_owned(), dimension, quantity.to_owned())).copied()
    }

    /// What is above its limit, a sentence each.
    pub fn over_limit(&self) -> Vec<String> {
        let mut over = Vec::new();
        for (quantity, limits) in LIMITS {
            for (dimension, limit) in DIMENSIONS.into_iter().zip(limits) {
                match self.get("M4F", dimension, quantity) {
                    Some(value) if value <= limit => {}
                    value => over.push(format!("{quantity} at D = {dimension} is {value:?}, the limit is {limit}")),
                }
            }
        }
        over
    }

    /// How `self` differs from the numbers on record by more than 1 % or 2, which is what the path of the checkout can do through the order
    /// of functions; none if the record is of another compiler, whose code differs anyway.
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
                .map(|key| format!("{key:?}: {:?}, on record {:?}", self.values.get(key), recorded.values.get(key)))
                .collect(),
        )
    }

    /// The numbers as lines `core,dimension,quantity,value` below a line that names the compiler.
    pub fn to_csv(&self) -> String {
        let mut csv = format!("# {}\ncore,dimension,quantity,value\n", self.compiler);
        for ((core, dimension, quantity), value) in &self.values {
            _ = writeln!(csv, "{core},{dimension},{quantity},{value}");
        }
        csv
    }

    /// Reads what [`to_csv`](Self::to_csv) wrote.
    ///
    /// # Errors
    /// The first line that is none.
    pub fn from_csv(csv: &str) -> Result<Self, String> {
        let mut lines = csv.lines();
        let compiler = lines.next().and_then(|line| line.strip_prefix("# ")).ok_or("no compiler in the first line")?;
        let mut values = BTreeMap::new();
        for line in lines.skip(1) {
            let fields: Vec<_> = line.split(',').collect();
            let [core, dimension, quantity, value] = fields[..] else { return Err(line.to_owned()) };
            let key = (core.to_owned(), dimension.parse().map_err(|_| line)?, quantity.to_owned());
            values.insert(key, value.parse().map_err(|_| line)?);
        }
        Ok(Self { compiler: compiler.to_owned(), values })
    }

    /// The tables of `core/README.md`.
    pub fn to_table(&self) -> String {
        let mut table = String::from(
            "| D | core | state RAM | worst stack | `select`, per arm | `record` | `begin` | `encode` | `decode` | agent code |\n\
             |---|---|---|---|---|---|---|---|---|---|\n",
        );
        let show = |value: Option<u64>| value.map_or("–".to_owned(), thousands);
        for dimension in DIMENSIONS {
            for core in CORES {
                let cell = |quantity| show(self.get(core, dimension, quantity));
                let stack = STACKS.iter().filter_map(|quantity| self.get(core, dimension, quantity)).max();
                _ = writeln!(
                    table,
                    "| {dimension} | {core} | {} B | {} B | {} | {} | {} | {} | {} | {} B |",
                    cell("state_bytes"),
                    show(stack),
                    cell("select_per_arm"),
                    cell("record"),
                    cell("begin"),
                    cell("encode"),
                    cell("decode"),
                    cell("code_bytes"),
                );
            }
        }
        table += "\n| core | device flash | device static RAM |\n|---|---|---|\n";
        for core in CORES {
            let cell = |quantity| show(self.get(core, DEVICE_DIMENSION, quantity));
            _ = writeln!(table, "| {core} | {} B | {} B |", cell("device_flash"), cell("device_ram"));
        }
        _ = writeln!(
            table,
            "\nInstructions and stack of code built for speed (opt-level 3), flash of code built for size (opt-level s); {}.",
            self.compiler
        );
        table
    }

    /// The table of the project's README: the agent on a Cortex-M4F.
    pub fn to_short_table(&self) -> String {
        let mut table = String::from(
            "| D | state RAM | worst stack | instructions per arm of `select` | per `record` | flash |\n|---|---|---|---|---|---|\n",
        );
        for dimension in DIMENSIONS {
            let cell = |quantity| self.get("M4F", dimension, quantity).map_or("–".to_owned(), thousands);
            let [ram, stack, code] = ["state_bytes", "stack_begin", "code_bytes"].map(cell);
            let [select, record] = ["select_per_arm", "record"].map(cell);
            _ = writeln!(table, "| {dimension} | {ram} B | {stack} B | {select} | {record} | {code} B |");
        }
        table
    }
}

/// Measures; then compares with the record, or with `write` replaces it and the tables of the READMEs.
///
/// # Errors
/// Something is above its limit or differs from the record, a sentence each.
pub fn check(write: bool) -> Result<String, String> {
    let budget = Budget::measure()?;
    let record = repository().join("core/budget.csv");
    if write {
        fs::write(&record, budget.to_csv()).map_err(|error| error.to_string())?;
    }
    let recorded = Budget::from_csv(&fs::read_to_string(&record).map_err(|error| error.to_string())?)?;
    let mut wrong = budget.over_limit();
    for (readme, table) in [("core/README.md", recorded.to_table()), ("README.md", recorded.to_short_table())] {
        let path = repository().join(readme);
        let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let shown = with_table(&text, &table).ok_or_else(|| format!("no place for the table in {readme}"))?;
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
        None => format!("\nThe record is of {}: only the limits were checked.\n", recorded.compiler),
    };
    if wrong.is_empty() { Ok(budget.to_table() + &note) } else { Err(wrong.join("\n")) }
}

/// A text with the table between its marks.
fn with_table(text: &str, table: &str) -> Option<String> {
    const MARKS: [&str; 2] = ["<!-- budget: ./ci.sh budget --write -->\n", "<!-- end of budget -->"];
    let (before, rest) = text.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some([before, MARKS[0], table, MARKS[1], after].concat())
}

fn program<'a>(bin: &'a str, board: Board, profile: &'a str, dimension: Option<usize>) -> Program<'a> {
    Program { bin, board, profile, features: &[], dimension }
}

/// The version of the compiler that builds the firmware.
fn compiler() -> Result<String, String> {
    let mut rustc = Command::new("rustc");
    if let Some(toolchain) = std::env::var_os("FEDBANDIT_EMBEDDED_TOOLCHAIN") {
        rustc.env("RUSTUP_TOOLCHAIN", toolchain);
    }
    let output = rustc.arg("--version").output().map_err(|error| format!("rustc does not start: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn thousands(value: u64) -> String {
    match value {
        0..1_000 => value.to_string(),
        _ => format!("{},{:03}", thousands(value / 1_000), value % 1_000),
    }
}
