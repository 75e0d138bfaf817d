//! The service, its devices and its brokers as separate processes.

mod broker;
mod chain;
mod commands;
mod crash;
#[path = "../shared/directory.rs"]
mod directory;
mod guide;
mod hostile;
mod kills;
mod mqtt;
#[path = "../../../../tests/src/harness/process.rs"]
#[expect(unreachable_pub, reason = "shared with the end-to-end tests")]
mod process;
mod revocation;
mod run_directory;
mod serial;
mod settings;
mod signals;
mod status_page;
mod tap;
mod test_certificate;
mod test_fleet;
mod tls;
