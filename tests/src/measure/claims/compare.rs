//! Comparison of docs/simulation.md with a new measurement, and the output in README.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::MEASURED_WITH;
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

/// Compares simulation.md, except for versions, and all figures but the screenshot of the status page. Unless `all` sections were
/// found, those that were must be among the expected ones.
pub(super) fn compare(expected: &Path, found: &Path, all: bool) -> Result<(), String> {
    let page = |directory: &Path| -> Result<BTreeMap<String, String>, String> {
        Ok(sections(directory)?.into_iter().map(|(title, text)| (title, without_version(&text))).collect())
    };
    let (expected_page, found_page) = (page(expected)?, page(found)?);
    for (title, found) in &found_page {
        let expected = expected_page.get(title).ok_or(format!("docs/simulation.md lacks the section '{title}'"))?;
        if let Some((line, found)) = expected.lines().zip(found.lines()).find(|(line, found)| line != found) {
            return Err(format!("docs/simulation.md has the line\n{line}\nbut the simulation gives\n{found}"));
        }
        if expected.lines().count() != found.lines().count() {
            return Err(format!("docs/simulation.md: section '{title}' has another number of lines than measured"));
        }
    }
    if let Some(title) = expected_page.keys().find(|title| all && !found_page.contains_key(*title)) {
        return Err(format!("docs/simulation.md has the section '{title}', which was not measured"));
    }
    let (expected_figures, found_figures) = (figures(expected)?, figures(found)?);
    if let Some((name, _)) = found_figures.iter().find(|(name, bytes)| expected_figures.get(*name) != Some(bytes)) {
        return Err(format!("docs/figures/{name} is not the figure that the simulation gives"));
    }
    Ok(())
}

/// Replaces the measured sections of simulation.md and their figures. Sections keep the order of `titles`.
pub(super) fn replace(docs: &Path, measured: &Path, titles: &[&str]) -> Result<(), String> {
    let (mut page, new) = (sections(docs)?, sections(measured)?);
    page.extend(new);
    let text = [""].iter().chain(titles).filter_map(|title| page.get(*title)).map(String::as_str).collect::<Vec<_>>();
    let copied =
        figures(measured)?.into_iter().try_for_each(|(name, bytes)| fs::write(docs.join("figures").join(name), bytes));
    copied.and_then(|()| fs::write(docs.join("simulation.md"), text.join("\n## "))).map_err(|error| error.to_string())
}

/// Returns the sections of simulation.md by title. What precedes the first one has an empty title.
fn sections(directory: &Path) -> Result<BTreeMap<String, String>, String> {
    let file = directory.join("simulation.md");
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let sections = text.split("\n## ").enumerate();
    let title = |(index, section): (usize, &str)| {
        let title = if index == 0 { "" } else { section.lines().next().unwrap_or_default() };
        (title.to_owned(), section.to_owned())
    };
    Ok(sections.map(title).collect())
}

/// Returns a text without the lines that name the version of a measurement.
fn without_version(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with(MEASURED_WITH)).map(|line| format!("{line}\n")).collect()
}

fn figures(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let read = || {
        let mut figures = BTreeMap::new();
        if !directory.join("figures").exists() {
            return Ok(figures);
        }
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
