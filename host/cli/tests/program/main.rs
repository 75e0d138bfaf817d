//! The service, its devices and its brokers as separate processes.

mod access;
mod audit;
mod backup;
mod broker;
mod chain;
mod commands;
mod crash;
mod device_table;
#[path = "../shared/directory.rs"]
mod directory;
mod guide;
mod hostile;
mod kills;
mod mqtt;
#[path = "../../../../tests/src/harness/process.rs"]
#[expect(unreachable_pub, reason = "shared with the end-to-end tests")]
mod process;
mod promtool;
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
mod upgrade;
