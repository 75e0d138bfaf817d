//! Recorded numbers: tables between marks in a document.

use std::path::PathBuf;

/// Writes a text between the marks of a name in docs/reliability.md, below the measured version.
///
/// # Errors
/// The document cannot be read or written, or lacks the marks.
pub fn write(name: &str, command: &str, text: &str) -> Result<(), String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/reliability.md");
    let document = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let text = format!("Measured with fedbandit {}.\n\n{text}", fedbandit::VERSION);
    let replaced = between(&document, name, command, &text);
    let replaced =
        replaced.ok_or_else(|| format!("docs/reliability.md lacks the mark '<!-- {name}: {command} -->'"))?;
    std::fs::write(&path, replaced).map_err(|error| error.to_string())
}

/// Replaces the text between the marks of a name, which include the command that writes it. Returns none if they are missing.
pub(crate) fn between(document: &str, name: &str, command: &str, text: &str) -> Option<String> {
    let [begin, end] = [format!("<!-- {name}: {command} -->\n"), format!("<!-- end of {name} -->")];
    let (before, rest) = document.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some([before, &begin, text, &end, after].concat())
}

/// Formats a number with separated thousands.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}
