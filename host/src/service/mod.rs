//! The controller as a network service.
//!
//! The core is [`StateMachine`], which is sans-IO: it authenticates frames, drives the
//! [`Controller`](crate::Controller) and emits a [`Batch`] of events that must be durable before any reply is sent.
//! Around it:
//!
//! | module | role |
//! |---|---|
//! | [`config`] | settings of a service, read from flags, environment and TOML |
//! | [`event`] | entries of the event log and their encoding |
//! | [`store`] | durable event log (`file` on redb, `memory` for tests) |
//! | [`worker`] | the thread that owns state machine and store |
//! | [`transport`] | TCP, TLS, MQTT and serial links |
//! | [`http`] | status page, metrics, health |
//!
//! [`start`] checks the [`RunTerms`] of a store, derives the devices' keys from the [`MasterKey`] and replays the stored
//! events; [`inspect`] does the same for a [`Status`] without a running service.

mod any_controller;
pub mod config;
mod continuation;
pub mod event;
pub mod http;
mod master_key;
mod registry;
mod start;
mod state_machine;
mod status;
pub mod store;
mod terms;
pub mod transport;
pub mod worker;

pub use any_controller::AnyController;
pub use continuation::{Chain, ChainPrivacy, Continuation, EarlierRun};
pub use master_key::MasterKey;
pub use registry::{EnrolledDevice, Registry};
pub use start::{StartError, StartOptions, check, for_each_event, inspect, start};
pub use state_machine::{
    Batch, Dropped, Link, Outgoing, RestoreError, Restoring, RunInfo, StateMachine, StateMachineConfig,
};
pub use status::{EpisodeReport, Outlier, PrivacyGuarantee, Status, SummaryCounts};
pub use terms::RunTerms;
