//! The controller as a network service.
//!
//! The core is [`StateMachine`], which is sans-IO: it authenticates frames, drives the
//! [`Controller`](crate::Controller) and emits a [`Batch`] of events that must be durable before any reply is sent.
//! Around it:
//!
//! | module | role |
//! |---|---|
//! | [`audit`] | who changed the service and its devices, and when |
//! | [`config`] | settings of a service, read from flags, environment and TOML |
//! | [`event`] | entries of the event log and their encoding |
//! | [`store`] | durable event log (`file` on redb, `memory` for tests) |
//! | [`worker`] | the thread that owns state machine and store |
//! | [`transport`] | TCP, TLS, MQTT and serial links |
//! | [`backup`] | copy of a store as a stream of entries, and its check |
//! | [`export`] | models, messages and the audit log, a page at a time |
//! | [`http`], [`access`], [`client`] | status page, device table, metrics, health; the token that permits them; their client |
//! | [`metrics`] | list of metrics, from which their text, the dashboard and the documentation follow |
//!
//! [`start`] checks the [`RunTerms`] of a store, derives the devices' keys from the [`MasterKey`] and replays the stored
//! events; [`inspect`] does the same for a [`Status`] without a running service.

pub mod access;
mod any_controller;
pub mod audit;
pub mod backup;
pub mod client;
pub mod config;
mod continuation;
mod device_table;
pub mod event;
pub mod export;
pub mod http;
mod master_key;
pub mod metrics;
mod registry;
mod snapshot;
mod start;
mod state_machine;
mod status;
pub mod store;
mod terms;
pub mod transport;
pub mod worker;

pub use any_controller::AnyController;
pub use continuation::{Chain, ChainPrivacy, Continuation, EarlierRun};
pub use device_table::{DeviceOrder, DevicePage, DeviceQuery, DeviceReport, SinceStart};
pub use master_key::MasterKey;
pub use registry::{EnrolledDevice, Registry};
pub use snapshot::{Snapshot, SnapshotError, SnapshotPolicy};
pub use start::{Inspection, StartError, StartOptions, check, for_each_event, inspect, start};
pub use state_machine::{
    Batch, Dropped, Link, Outgoing, RestoreError, Restoring, RunInfo, StateMachine, StateMachineConfig,
};
pub use status::{EpisodeReport, Outlier, PrivacyGuarantee, Status, SummaryCounts};
pub use terms::{RunTerms, SCHEMA};
