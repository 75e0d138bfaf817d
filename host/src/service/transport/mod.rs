//! Links between devices and the [worker](super::worker): TCP, TLS, MQTT and serial lines.

pub mod mqtt;
pub mod outage;
pub mod serial;
pub mod stream;
pub mod tcp;
pub mod tls;
