//! Comparison with other implementations, which are Python packages.

use super::{Failure, run_command};
use crate::harness::repository;

/// Packages of a peer, and the script that compares with them.
const PEERS: [(&str, &[&str], &str); 2] = [
    ("byzfl", &["byzfl==0.0.11", "numpy"], "host/tests/peers/rules.py"),
    ("dp_accounting", &["dp-accounting==0.6.0"], "host/tests/peers/privacy.py"),
];

/// Compares the program `fedbandit` with each peer, which is installed into `target` first.
///
/// # Errors
/// A comparison fails, or a peer cannot be installed.
pub fn run() -> Result<String, Failure> {
    run_command("cargo", &["build", "--locked", "--release", "-p", "fedbandit"])?;
    for (name, packages, script) in PEERS {
        let environment = format!("target/peers/{name}");
        let python = format!("{environment}/bin/python");
        let installed = repository().join(&environment).join("installed");
        if !installed.exists() {
            let pip = [&["-m", "pip", "install", "-q"], packages].concat();
            run_command("python3", &["-m", "venv", &environment])
                .and_then(|()| run_command(&python, &pip))
                .and_then(|()| std::fs::write(installed, "").map_err(|error| error.to_string()))
                .map_err(|reason| Failure::Skipped(format!("{name} cannot be installed: {reason}")))?;
        }
        run_command(&python, &[script, "target/release/fedbandit"])?;
    }
    Ok(String::new())
}
