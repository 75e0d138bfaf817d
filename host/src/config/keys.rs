//! Values by their keys, as files and options give them.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The keys of a TOML file.
///
/// # Errors
/// The text is not TOML; the reason names the file.
pub fn table(file: &Path, text: &str) -> Result<toml::Table, String> {
    text.parse().map_err(|error| format!("{}: {error}", file.display()))
}

/// The first line of a file that sets a key.
pub(crate) fn line(text: &str, key: &str) -> usize {
    let sets = |line: &str| line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
    text.lines().position(sets).map_or(1, |index| index + 1)
}

/// A structure with another value of one key.
pub(crate) fn with<T: Serialize + DeserializeOwned>(all: &T, key: &str, value: Value) -> Result<T, String> {
    let mut object = serde_json::to_value(all).map_err(|error| error.to_string())?;
    if object.get(key).is_none() {
        return Err(format!("no key is called {key}; there are {}", of(all).join(", ")));
    }
    let mut attempt = |value: Value| {
        object[key] = value;
        serde_json::from_value(object.clone()).map_err(|error| format!("{key}: {error}"))
    };
    // A text may look like a number: then the text's own error says more.
    let text = value.is_number().then(|| value.to_string());
    attempt(value).or_else(|error| match text.map(|text| attempt(text.into())) {
        Some(Err(other)) if other.contains("invalid type") => Err(error),
        Some(result) => result,
        None => Err(error),
    })
}

/// The keys of a structure, by the alphabet.
pub(crate) fn of(all: &impl Serialize) -> Vec<String> {
    let object = serde_json::to_value(all).unwrap_or_default();
    object.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
}
