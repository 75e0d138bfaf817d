//! Settings of a service.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::registry::Registry;
use crate::algorithm::MAX_WINDOW;
use crate::config::keys::{configuration, unknown_key};
use crate::config::{ConfigError, Configure, Key, RewardKind, RunConfig};
use crate::simulation::SimulationConfig;

configuration! {
    /// Addresses and time limits of a service.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Endpoints {
        /// Directory of the run, as made by fedbandit enroll
        dir: PathBuf = PathBuf::new(), "DIR";
        /// Address for devices over TCP
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 7700)), "ADDRESS";
        /// Address of the status page, metrics, device table and health checks
        http: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 7780)), "ADDRESS";
        /// Serve the HTTP address over TLS; needs certificate and key
        http_tls: bool = false, "BOOL";
        /// Longest duration of an episode in seconds
        deadline: u32 = 60, "SECONDS";
        /// Number of episodes after its own for which a late summary is accepted
        window: u32 = 4, "W";
        /// Number of closed episodes whose summaries stay in the store; older ones are removed after a snapshot
        retain: u32 = 256, "EPISODES";
        /// Address for devices over TLS; needs certificate and key
        tls: Option<SocketAddr> = None, "ADDRESS";
        /// Certificate chain for TLS (PEM)
        certificate: Option<PathBuf> = None, "FILE";
        /// Private key for TLS (PEM)
        key: Option<PathBuf> = None, "FILE";
        /// MQTT broker: mqtt://HOST:PORT or mqtts://HOST:PORT, with USER:PASSWORD@ before HOST if needed
        mqtt: Option<String> = None, "URL";
        /// CA certificate (PEM) used to verify the broker with mqtts://
        mqtt_ca: Option<PathBuf> = None, "FILE";
        /// Serial ports and their speeds (e.g. /dev/ttyUSB0:115200)
        serial: Vec<String> = Vec::new(), "PORTS";
        /// Allow unencrypted device frames on MQTT or a non-loopback TCP address in a private run
        allow_plain_frames: bool = false, "BOOL";
    }
}

/// Settings of a service: the run, and where and how it is served.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceConfig {
    /// Settings of the run, except those that follow from the registry.
    pub run: RunConfig,
    /// Addresses and time limits.
    pub endpoints: Endpoints,
    /// Keys of [`FROM_ENROLMENT`] that were set.
    declared: [bool; 2],
}

/// Keys of [`RunConfig`] that follow from the registry.
const FROM_REGISTRY: [&str; 2] = ["agents", "dim"];

/// Keys whose defaults are the constants that devices were enrolled with.
const FROM_ENROLMENT: [&str; 2] = ["rewards", "theta-norm"];

impl Configure for ServiceConfig {
    fn keys() -> Vec<Key> {
        let run = RunConfig::keys().into_iter().filter(|key| !FROM_REGISTRY.contains(&key.field));
        Endpoints::keys().into_iter().chain(run).collect()
    }

    fn set(&mut self, key: &str, value: Value) -> Result<(), ConfigError> {
        let is_one_of = |keys: &[Key]| keys.iter().any(|known| known.name() == key);
        if FROM_REGISTRY.contains(&key) {
            return Err(ConfigError::new(key, "follows from the enrolled devices; remove the key"));
        }
        if is_one_of(SimulationConfig::OWN_KEYS) {
            return Err(ConfigError::new(key, "describes a simulated world; remove the key"));
        }
        if !is_one_of(&Self::keys()) {
            return Err(unknown_key(key, &Self::keys()));
        }
        self.declared.iter_mut().zip(FROM_ENROLMENT).for_each(|(declared, name)| *declared |= key == name);
        if is_one_of(Endpoints::OWN_KEYS) { self.endpoints.set(key, value) } else { self.run.set(key, value) }
    }

    /// Text is a comma-separated list where the key takes a list.
    fn set_text(&mut self, key: &str, text: &str) -> Result<(), ConfigError> {
        match key {
            "serial" => self.set(key, text.split(',').map(Value::from).collect()),
            "allow-plain-frames" | "http-tls" => self.set(key, text.parse().map_or_else(|_| text.into(), Value::Bool)),
            _ => self.set(key, crate::config::keys::number_or_text(text)),
        }
    }
}

impl ServiceConfig {
    /// Reads a TOML file; paths in it are relative to the file.
    ///
    /// # Errors
    /// The file is not TOML, a key is unknown or a value is invalid; the error names the file and the line.
    pub fn read(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        config.set_toml(file, text)?;
        let base = file.parent().unwrap_or(Path::new(""));
        let Endpoints { dir, certificate, key, mqtt_ca, .. } = &mut config.endpoints;
        let paths = [Some(dir), certificate.as_mut(), key.as_mut(), mqtt_ca.as_mut()];
        paths
            .into_iter()
            .flatten()
            .filter(|path| !path.as_os_str().is_empty())
            .for_each(|path| *path = base.join(&path));
        Ok(config)
    }

    /// Validates what does not depend on the registry.
    ///
    /// # Errors
    /// The first invalid value, by its key.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let Endpoints { dir, deadline, window, http_tls, tls, certificate, key, mqtt, mqtt_ca, .. } = &self.endpoints;
        let fail = |key: &str, reason: &str| Err(ConfigError::new(key, reason));
        if dir.as_os_str().is_empty() {
            return fail("dir", "missing; set it to the run's directory");
        }
        if *deadline == 0 {
            return fail("deadline", "must be at least 1 second");
        }
        if *window > MAX_WINDOW {
            return fail("window", &format!("must be from 0 to {MAX_WINDOW}, not {window}"));
        }
        let has_certificate = [certificate.is_some(), key.is_some()];
        if *http_tls && has_certificate != [true; 2] {
            return fail("http-tls", "needs certificate and key");
        }
        if !http_tls && has_certificate != [tls.is_some(); 2] {
            return fail("tls", "tls, certificate and key must be set together");
        }
        if mqtt.is_none() && mqtt_ca.is_some() {
            return fail("mqtt-ca", "needs mqtt, the broker that it verifies");
        }
        Ok(())
    }

    /// Sets R and S to the constants that devices were enrolled with, unless the configuration has its own.
    pub fn complete(&mut self, registry: &Registry) {
        let [rewards, theta_norm] = self.declared;
        // The shortest decimal, as it was given: 0.1 and not the f32 next to it.
        let decimal = |value: f32| value.to_string().parse().unwrap_or_else(|_| f64::from(value));
        if !rewards {
            self.run.rewards = RewardKind::Gaussian(decimal(registry.noise));
        }
        if !theta_norm {
            self.run.theta_norm = decimal(registry.theta_norm);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_the_enrolment_are_defaults() {
        let registry = Registry { noise: 0.1, theta_norm: 2.3, ..Registry::new(1, 1, 2) };
        let read = |text: &str| {
            let mut config = ServiceConfig::read(Path::new("controller.toml"), text).unwrap();
            config.complete(&registry);
            (config.run.rewards, config.run.theta_norm)
        };
        assert_eq!(read(""), (RewardKind::Gaussian(0.1), 2.3));
        assert_eq!(read("rewards = \"bounded\""), (RewardKind::Bounded, 2.3));
        assert_eq!(read("theta-norm = 4.0"), (RewardKind::Gaussian(0.1), 4.0));
    }
}
