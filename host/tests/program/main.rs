//! The program `fedbandit`: service, devices and brokers as processes of their own.

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
#[path = "../../../tests/src/harness/process.rs"]
#[expect(unreachable_pub, reason = "shared with the end-to-end tests")]
mod process;
mod revocation;
#[cfg(feature = "serial")]
mod serial;
#[cfg(feature = "mqtt")]
mod tap;
#[cfg(feature = "tls")]
mod tls;
