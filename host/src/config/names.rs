//! Types whose values have names, the same on the command line, in files and in results.

use std::fmt;

use thiserror::Error;

/// A name that nothing has.
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
        write!(f, "no {} is called '{}'; there are {}", self.kind, self.name, self.known.join(", "))
    }
}

/// `Display`, `FromStr` and a list of all values, from a list of names.
macro_rules! named {
    ($type:ident, $kind:literal, $($value:ident = $name:literal),+ $(,)?) => {
        impl $type {
            /// All of them, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$value),+];

            /// Its name.
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
            type Err = $crate::config::names::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let known = || Self::ALL.iter().map(|value| value.name());
                let found = Self::ALL.iter().copied().find(|value| value.name() == name);
                found.ok_or_else(|| $crate::config::names::UnknownName::new($kind, name, known()))
            }
        }
    };
}

pub(crate) use named;

/// Serialises by name, for `#[serde(with = "names::text")]`.
pub(crate) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// [`text`] for what may be missing.
pub(crate) mod optional_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse()).transpose().map_err(D::Error::custom)
    }
}
