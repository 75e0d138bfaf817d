//! Links between devices and the [worker](super::worker): TCP, TLS, MQTT and serial lines.

pub mod backoff;
pub mod byte_stream;
pub mod mqtt;
pub mod outage;
pub mod serial;
pub mod tcp;
pub mod tls;
