//! The service, its devices and its brokers as processes of their own.

mod broker;
mod commands;
mod crash;
#[path = "../shared/directory.rs"]
mod directory;
mod hostile;
mod kills;
mod mqtt;
mod page;
mod revocation;
mod serial;
mod tap;
mod test_certificate;
mod test_fleet;
mod tls;
