//! Comparison of docs/simulation.md with a new measurement, and the output in README.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::repository;

/// Puts the output of `fedbandit simulate` into README.md.
pub(super) fn update_readme(program: &Path, scratch: &Path) -> Result<(), String> {
    let output = Command::new(program).arg("simulate").current_dir(scratch).output();
    let output = output.map_err(|error| error.to_string())?;
    let simulated = String::from_utf8_lossy(&output.stdout);
    let path = repository().join("README.md");
    let readme = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let (command, next) = (" -- simulate\n", "\n\n$ ./ci.sh\n");
    let parts = readme.split_once(command).and_then(|(before, rest)| Some((before, rest.split_once(next)?.1)));
    let (before, after) = parts.ok_or("README.md lacks the command simulate, followed by ./ci.sh")?;
    fs::write(path, [before, command, simulated.trim_end(), next, after].concat()).map_err(|error| error.to_string())
}

/// Compares simulation.md, except for the version, and all figures but the screenshot of the status page and those of the guide.
pub(super) fn compare(expected: &Path, found: &Path) -> Result<(), String> {
    let page = |directory: &Path| -> Result<Vec<String>, String> {
        let text = fs::read_to_string(directory.join("simulation.md")).map_err(|error| error.to_string())?;
        Ok(text.lines().filter(|line| !line.starts_with("Measured with fedbandit")).map(str::to_owned).collect())
    };
    let (expected_page, found_page) = (page(expected)?, page(found)?);
    if let Some((line, found)) = expected_page.iter().zip(&found_page).find(|(line, found)| line != found) {
        return Err(format!("docs/simulation.md has the line\n{line}\nbut the simulation gives\n{found}"));
    }
    if expected_page.len() != found_page.len() {
        return Err("docs/simulation.md has another number of lines than the simulation gives".into());
    }
    let (expected_figures, found_figures) = (figures(expected)?, figures(found)?);
    if let Some((name, _)) = expected_figures.iter().find(|(name, bytes)| found_figures.get(*name) != Some(bytes)) {
        return Err(format!("docs/figures/{name} is not the figure that the simulation gives"));
    }
    match found_figures.keys().find(|name| !expected_figures.contains_key(*name)) {
        Some(name) => Err(format!("docs/figures/{name} is missing")),
        None => Ok(()),
    }
}

fn figures(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let read = || {
        let mut figures = BTreeMap::new();
        for entry in fs::read_dir(directory.join("figures"))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "status.png" && !name.starts_with("guide-") {
                figures.insert(name, fs::read(entry.path())?);
            }
        }
        Ok(figures)
    };
    read().map_err(|error: std::io::Error| format!("{}: {error}", directory.display()))
}
