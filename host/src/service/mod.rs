//! The controller as a service that devices talk to.
//!
//! [`Service`] is a state machine around the [`controller`](crate::controller): it knows the devices' keys, answers their
//! frames, and says what must be stored before what is sent. [`store`] is where events are kept, [`redb`] in a file;
//! [`setup`] makes a service of a configuration and a store, [`worker`] gives it a clock and transports, of which [`tcp`] is
//! one. [`edge`] has virtual devices that talk to it as real ones do.

pub mod edge;
pub mod event;
pub mod identity;
mod machine;
pub mod redb;
pub mod setup;
pub mod store;
pub mod tcp;
pub mod worker;

pub use machine::{Dropped, End, Learner, Link, Outgoing, Quality, RestoreError, Service, Start, Status, Suspect};
