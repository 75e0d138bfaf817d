//! The controller as a service that devices talk to.
//!
//! [`StateMachine`] is a state machine around a [`AnyController`], which is a [`controller`](crate::controller): it knows the devices' keys, answers their
//! frames, and says what must be stored before what is sent. [`store`] is where events are kept, [`redb`] in a file,
//! [`observed`] watched;
//! [`config`] reads a configuration, [`setup`] makes a service of it and a store, [`worker`] gives it a clock and transports: [`tcp`], and
//! with features of their names TLS, MQTT and serial ports. [`http`] shows its status, [`outage`] tells the log of lines that are away. [`edge`] has virtual devices that talk to it as real ones do.

mod any_controller;
pub mod config;
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
pub use master_key::MasterKey;
pub use registry::{EnrolledDevice, Registry};
pub use start::{StartError, StartOptions, check, for_each_event, inspect, start};
pub use state_machine::{
    Batch, Dropped, Link, Outgoing, RestoreError, Restoring, RunInfo, StateMachine, StateMachineConfig,
};
pub use status::{Outlier, Promise, Quality, Received, Status};
pub use terms::RunTerms;
