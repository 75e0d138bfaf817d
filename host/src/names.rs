//! Names of enumeration values, the same on the command line, in files and in results.

use std::fmt;

use thiserror::Error;

/// Error returned when parsing a name that is not in the list of known names.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct UnknownName {
    kind: &'static str,
    name: String,
    known: Vec<&'static str>,
}

impl UnknownName {
    pub(crate) fn new(kind: &'static str, name: &str, known: impl IntoIterator<Item = &'static str>) -> Self {
        Self { kind, name: name.into(), known: known.into_iter().collect() }
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} '{}'; expected one of {}", self.kind, self.name, self.known.join(", "))
    }
}

/// Implements `Display`, `FromStr`, serde and a list of all values from a list of names.
macro_rules! named {
    ($type:ident, $kind:literal, $($value:ident = $name:literal),+ $(,)?) => {
        impl $type {
            /// All values, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$value),+];

            /// Returns the name of this value.
            pub fn name(self) -> &'static str {
                match self { $(Self::$value => $name),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::names::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let known = || Self::ALL.iter().map(|value| value.name());
                let found = Self::ALL.iter().copied().find(|value| value.name() == name);
                found.ok_or_else(|| $crate::names::UnknownName::new($kind, name, known()))
            }
        }

        $crate::names::serde_as_text!($type);
    };
}

/// Implements serde for a type as the text of its `Display` and `FromStr`.
macro_rules! serde_as_text {
    ($type:ident) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use {named, serde_as_text};
