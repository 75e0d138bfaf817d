//! The configuration of a service.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::algorithm::MAX_WINDOW;
use crate::config::Learning;
use crate::config::keys::{self, line, table};
use crate::simulation::WORLD;

/// What a configuration file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The run's directory, as seen from the file.
    pub dir: PathBuf,
    /// Where devices connect by TCP.
    pub listen: SocketAddr,
    /// Where the status is.
    pub http: SocketAddr,
    /// Seconds that an episode may last.
    pub deadline: u32,
    /// Episodes for which a late summary is taken.
    pub window: u32,
    /// The keys about transports beside TCP, as they are.
    pub transports: toml::Table,
    /// How to learn.
    pub learning: Learning,
}

/// Keys about the service itself.
const SERVED: [&str; 5] = ["dir", "listen", "http", "deadline", "window"];
/// Keys of [`Learning`] that follow from who is enrolled.
const ENROLLED: [&str; 2] = ["agents", "dim"];
/// Keys about transports beside TCP.
const TRANSPORTS: [&str; 6] = ["tls", "certificate", "key", "mqtt", "mqtt-ca", "serial"];

impl Settings {
    /// Reads the text of a TOML file.
    ///
    /// # Errors
    /// It makes no sense; the reason names the file.
    pub fn read(file: &Path, text: &str) -> Result<Self, String> {
        let mut table = table(file, text)?;
        let invalid = |key: &str, reason: &str| format!("{}: {key}: {reason}", file.display());
        let transports = TRANSPORTS.iter().filter_map(|key| Some(((*key).to_owned(), table.remove(*key)?))).collect();
        let [dir, listen, http, deadline, window] = SERVED.map(|key| table.remove(key));
        let address = |key: &str, value: Option<toml::Value>, default: &str| {
            let text = value.as_ref().map_or(Some(default), |value| value.as_str());
            let address = text.and_then(|text| text.parse::<SocketAddr>().ok());
            address.ok_or_else(|| invalid(key, "an address and a port, as 127.0.0.1:7700"))
        };
        let number = |key: &str, value: Option<toml::Value>, default: i64| {
            let number = value.as_ref().map_or(Some(default), |value| value.as_integer());
            number.and_then(|number| u32::try_from(number).ok()).ok_or_else(|| invalid(key, "a whole number"))
        };
        let dir = dir.as_ref().and_then(|dir| dir.as_str());
        let dir = dir.ok_or_else(|| invalid("dir", "the run's directory is missing"))?.into();
        let deadline = number("deadline", deadline, 60)?;
        if deadline == 0 {
            return Err(invalid("deadline", "at least one second"));
        }
        let window = number("window", window, 4)?;
        if window > MAX_WINDOW {
            return Err(invalid("window", &format!("must be from 0 to {MAX_WINDOW}")));
        }
        let mut learning = Learning::default();
        for (key, value) in &table {
            let invalid = |reason: &str| format!("{}:{}: {reason}", file.display(), line(text, key));
            if !learned().contains(key) {
                return Err(invalid(&not_learned(key)));
            }
            if value.is_array() {
                return Err(invalid(&format!("{key}: a service has one, not a list")));
            }
            let value = serde_json::to_value(value).unwrap_or_default();
            learning = learning.with(key, value).map_err(|reason| invalid(&reason))?;
        }
        let said = learning.aggregator.check_noise(table.contains_key("rewards"));
        said.map_err(|reason| format!("{}: {reason}", file.display()))?;
        Ok(Self {
            dir,
            listen: address("listen", listen, "127.0.0.1:7700")?,
            http: address("http", http, "127.0.0.1:7780")?,
            deadline,
            window,
            transports,
            learning,
        })
    }
}

/// The keys about how to learn.
fn learned() -> Vec<String> {
    keys::of(&Learning::default()).into_iter().filter(|key| !ENROLLED.contains(&key.as_str())).collect()
}

/// Why a key is none of those about how to learn.
fn not_learned(key: &str) -> String {
    if ENROLLED.contains(&key) || WORLD.contains(&key) {
        return format!("{key}: it is about a simulated world, or follows from who is enrolled");
    }
    let served = SERVED.into_iter().chain(TRANSPORTS).collect::<Vec<_>>().join(", ");
    format!("no key is called {key}; there are {served}, {}", learned().join(", "))
}
