//! Numbers on record: tables between marks in a document.

use std::path::PathBuf;

/// Puts a text between the marks of a name in docs/reliability.md, below the version that it was measured with.
///
/// # Errors
/// The document cannot be read or written, or has no such marks.
pub fn write(name: &str, command: &str, text: &str) -> Result<(), String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/reliability.md");
    let document = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let text = format!("Measured with fedbandit {}.\n\n{text}", fedbandit::VERSION);
    let replaced = between(&document, name, command, &text);
    let replaced = replaced.ok_or_else(|| format!("docs/reliability.md has no marks of {name} with {command}"))?;
    std::fs::write(&path, replaced).map_err(|error| error.to_string())
}

/// A document with another text between the marks of a name, which tell the command that writes it; none if it has no such marks.
pub(crate) fn between(document: &str, name: &str, command: &str, text: &str) -> Option<String> {
    let [begin, end] = [format!("<!-- {name}: {command} -->\n"), format!("<!-- end of {name} -->")];
    let (before, rest) = document.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some([before, &begin, text, &end, after].concat())
}

/// A number with its thousands apart.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}
