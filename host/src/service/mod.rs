//! The controller as a service that devices talk to.
//!
//! [`Service`] is a state machine around a [`AnyController`], which is a [`controller`](crate::controller): it knows the devices' keys, answers their
//! frames, and says what must be stored before what is sent. [`store`] is where events are kept, [`redb`] in a file,
//! [`observed`] watched;
//! [`config`] reads a configuration, [`setup`] makes a service of it and a store, [`worker`] gives it a clock and transports: [`tcp`], and
//! with features of their names TLS, MQTT and serial ports. [`http`] shows its status, [`outage`] tells the log of lines that are away. [`edge`] has virtual devices that talk to it as real ones do.

pub mod config;
pub mod event;
pub mod http;
pub mod identity;
mod learner;
pub mod setup;
mod state_machine;
mod status;
pub mod store;
pub mod transport;
pub mod worker;

pub use learner::AnyController;
pub use state_machine::{About, Batch, Dropped, Link, Outgoing, RestoreError, Restoring, Service, Start};
pub use status::{Promise, Quality, Received, Status, Suspect};
