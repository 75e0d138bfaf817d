//! Measurements in child processes: Python peers, and memory of this program.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a Python interpreter with a module, which is installed on first use.
pub(crate) fn python(module: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
    let python = home.join("bin/python");
    if !python.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    }
    if run(Command::new(&python).args(["-c", &format!("import {module}")])).is_err() {
        run(Command::new(&python).args(["-m", "pip", "install", "-q"]).args(packages))?;
    }
    Ok(python)
}

/// Returns the names and versions of Python packages.
pub(crate) fn versions(packages: &[&str]) -> Vec<String> {
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers/bin/python");
    let version = |package: &&str| {
        let script = format!("from importlib.metadata import version; print('{package}', version('{package}'))");
        run(Command::new(&python).args(["-c", &script]))
            .map_or_else(|_| format!("no {package}"), |text| text.trim().into())
    };
    packages.iter().map(version).collect()
}

/// Runs a script with one thread, and parses the numbers that it prints.
pub(crate) fn script(python: &Path, script: &str, arguments: &[String]) -> Result<Vec<f64>, String> {
    let threads = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"].map(|name| (name, "1"));
    let output = run(Command::new(python).args(["-c", script]).args(arguments).envs(threads))?;
    output.split_whitespace().map(|number| number.parse().map_err(|_| format!("not a number: {number}"))).collect()
}

/// Runs this program with other arguments, and returns its output.
pub(crate) fn run_self(arguments: &[&str]) -> String {
    let program = std::env::current_exe().expect("the program has a path");
    run(Command::new(program).args(arguments)).expect("the program runs").trim().to_owned()
}

/// Returns the peak memory of this process in MB.
pub(crate) fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status is readable");
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<f64>().ok());
    peak.expect("VmHWM in kB") * 1.024e-3
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let error = || String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
    if output.status.success() { Ok(String::from_utf8_lossy(&output.stdout).into_owned()) } else { Err(error()) }
}
