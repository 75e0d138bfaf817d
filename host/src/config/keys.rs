//! Configuration keys: one definition per key, and one reader for TOML files, environment variables and flags.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ConfigError;

/// A configuration key and its documentation.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The field's name; the key has dashes in place of underscores.
    pub field: &'static str,
    /// Placeholder for the value in help texts.
    pub value: &'static str,
    doc: &'static str,
    default: fn() -> Value,
}

impl Key {
    pub(crate) const fn new(
        field: &'static str,
        value: &'static str,
        doc: &'static str,
        default: fn() -> Value,
    ) -> Self {
        Self { field, value, doc, default }
    }

    /// Returns the key as it is written in files and on the command line.
    pub fn name(&self) -> String {
        self.field.replace('_', "-")
    }

    /// Returns the documentation in one line, with the default value if there is one.
    pub fn help(&self) -> String {
        let default = match (self.default)() {
            Value::Null => String::new(),
            Value::String(text) if text.is_empty() => String::new(),
            Value::String(text) => format!(" [default: {text}]"),
            Value::Array(values) if values.is_empty() => String::new(),
            other => format!(" [default: {other}]"),
        };
        format!("{}{default}", self.doc.trim())
    }
}

/// A set of configuration keys that can be read from files, the environment and the command line.
pub trait Configure {
    /// Returns all keys, in the order of the documentation.
    fn keys() -> Vec<Key>;

    /// Sets one key.
    ///
    /// # Errors
    /// The key is unknown, or the value does not have its type.
    fn set(&mut self, key: &str, value: Value) -> Result<(), ConfigError>;

    /// Sets one key from text, as a flag or an environment variable gives it.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    fn set_text(&mut self, key: &str, text: &str) -> Result<(), ConfigError> {
        self.set(key, number_or_text(text))
    }

    /// Sets the keys of a TOML table that was parsed from `text`.
    ///
    /// # Errors
    /// As [`set`](Self::set); the error names the file and the line.
    fn set_table(&mut self, file: &Path, text: &str, table: &toml::Table) -> Result<(), ConfigError> {
        table.iter().try_for_each(|(key, value)| {
            let value = serde_json::to_value(value).unwrap_or_default();
            self.set(key, value).map_err(|error| error.at(file, line_of(text, key)))
        })
    }

    /// Sets the keys of a TOML file.
    ///
    /// # Errors
    /// The text is not TOML, or as [`set`](Self::set); the error names the file and the line.
    fn set_toml(&mut self, file: &Path, text: &str) -> Result<(), ConfigError> {
        self.set_table(file, text, &parse_toml(file, text)?)
    }
}

/// Parses a TOML file.
///
/// # Errors
/// The text is not TOML; the error names the file.
pub fn parse_toml(file: &Path, text: &str) -> Result<toml::Table, ConfigError> {
    text.parse().map_err(|error| ConfigError::in_file(file, error))
}

/// Returns the error for a key that no field has.
pub(crate) fn unknown_key(key: &str, known: &[Key]) -> ConfigError {
    let known: Vec<String> = known.iter().map(Key::name).collect();
    ConfigError::new(key, format!("unknown key; expected one of {}", known.join(", ")))
}

/// Converts a JSON value to a field's type. A number may also stand for a text that looks like one.
pub(crate) fn parse_value<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, ConfigError> {
    let text = value.is_number().then(|| Value::String(value.to_string()));
    serde_json::from_value(value).or_else(|error| match text.map(serde_json::from_value) {
        // The error for the text is more specific, unless the field does not accept text.
        Some(Err(other)) if !other.to_string().contains("invalid type") => Err(ConfigError::new(key, other)),
        Some(Ok(parsed)) => Ok(parsed),
        _ if error.to_string().starts_with("invalid type: sequence") => {
            Err(ConfigError::new(key, "expected a single value, found a list"))
        }
        _ => Err(ConfigError::new(key, error)),
    })
}

/// Converts text to a number if it is one.
pub(crate) fn number_or_text(text: &str) -> Value {
    let number = text.parse::<u64>().map(Value::from).ok();
    let number = number.or_else(|| text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from));
    number.unwrap_or_else(|| text.into())
}

/// Returns the number of the first line that assigns a key.
fn line_of(text: &str, key: &str) -> usize {
    let assigns =
        |line: &str| line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
    text.lines().position(assigns).map_or(1, |index| index + 1)
}

/// Defines a configuration struct with defaults, serde and [`Configure`]. A field's documentation is its key's help.
///
/// `struct A in run: B { … }` contains the keys of `B`, as the field `run`.
macro_rules! configuration {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident $(in $base:ident: $base_type:ty)? {
            $($(#[doc = $doc:literal])+ $(#[serde($($serde:tt)+)])? $field:ident: $type:ty = $default:expr, $value:literal;)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(serde::Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub struct $name {
            $(
                /// Settings of the run.
                #[serde(flatten)]
                pub $base: $base_type,
            )?
            $($(#[doc = $doc])+ $(#[serde($($serde)+)])? pub $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($base: Default::default(),)? $($field: $default,)+ }
            }
        }

        impl $name {
            /// Keys of this struct's own fields.
            pub(crate) const OWN_KEYS: &[$crate::config::Key] =
                &[$($crate::config::Key::new(stringify!($field), $value, concat!($($doc),+), || {
                    serde_json::to_value::<$type>($default).unwrap_or_default()
                })),+];
        }

        impl $crate::config::Configure for $name {
            fn keys() -> Vec<$crate::config::Key> {
                #[allow(unused_mut, reason = "without a base there is nothing to add")]
                let mut keys: Vec<$crate::config::Key> = Vec::new();
                $(keys.extend(<$base_type as $crate::config::Configure>::keys());)?
                keys.extend_from_slice(Self::OWN_KEYS);
                keys
            }

            fn set(&mut self, key: &str, value: serde_json::Value) -> Result<(), $crate::config::ConfigError> {
                use $crate::config::keys::{parse_value, unknown_key};
                let field = if key.contains('_') { String::new() } else { key.replace('-', "_") };
                match field.as_str() {
                    $(stringify!($field) => self.$field = parse_value(key, value)?,)+
                    $(_ if <$base_type>::OWN_KEYS.iter().any(|known| known.field == field) => self.$base.set(key, value)?,)?
                    _ => return Err(unknown_key(key, &Self::keys())),
                }
                Ok(())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let mut all = Self::default();
                for (key, value) in <std::collections::BTreeMap<String, serde_json::Value>>::deserialize(deserializer)? {
                    $crate::config::Configure::set(&mut all, &key, value).map_err(serde::de::Error::custom)?;
                }
                Ok(all)
            }
        }
    };
}

pub(crate) use configuration;
