#![doc = include_str!("../README.md")]
// `!(x <= limit)` refuses a NaN together with what is too large.
#![allow(clippy::neg_cmp_op_on_partial_ord)]
// A module is pure unless it says otherwise: time and randomness are given to it. `clippy.toml` has the list.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

/// The version of this package, with the commit where it is known: what a result must carry.
pub const VERSION: &str = env!("FEDBANDIT_VERSION");

pub mod aggregate;
pub mod algorithm;
pub mod config;
pub mod math;
pub mod names;
pub mod privacy;
pub mod robust;
#[cfg(feature = "service")]
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it asks clocks")]
pub mod service;
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it draws, and measures what that takes")]
pub mod simulation;

pub use aggregate::{Aggregate, Aggregator, GeometricMedian, Points, Tolerance};
pub use algorithm::{AgentId, Controller, ControllerConfig, Episodes, Fault, Level, NoPrivacy, PaperRule, Rule};
pub use config::{AggregatorName, ConfigError, RunConfig};
#[doc(no_inline)]
pub use fedbandit_core::Model;
pub use simulation::{Attack, Environment, Outcome, SimulationConfig, simulate};
