//! The service, its devices and its brokers as processes of their own.

#[cfg(feature = "mqtt")]
mod broker;
#[cfg(feature = "tls")]
mod certificate;
mod commands;
mod crash;
#[path = "../shared/directory.rs"]
mod directory;
mod fleet;
#[cfg(feature = "mqtt")]
mod hostile;
#[cfg(feature = "mqtt")]
mod kills;
#[cfg(feature = "mqtt")]
mod mqtt;
mod page;
mod revocation;
#[cfg(feature = "serial")]
mod serial;
#[cfg(feature = "mqtt")]
mod tap;
#[cfg(feature = "tls")]
mod tls;
