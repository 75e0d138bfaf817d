//! The service, its devices and its brokers as processes of their own.

mod broker;
mod certificate;
mod commands;
mod crash;
#[path = "../shared/directory.rs"]
mod directory;
mod fleet;
mod hostile;
mod kills;
mod mqtt;
mod page;
mod revocation;
mod serial;
mod tap;
mod tls;
