#![doc = include_str!("../README.md")]
// `!(x <= limit)` also rejects NaN.
#![allow(clippy::neg_cmp_op_on_partial_ord)]
// Modules are pure unless they allow these: time and randomness are arguments. See `clippy.toml` for the list.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

/// Version of this package, with the commit if known. Part of each result.
pub const VERSION: &str = env!("FEDBANDIT_VERSION");

pub mod aggregate;
pub mod algorithm;
pub mod config;
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "draws the accepted events")]
pub mod evaluation;
pub mod math;
pub mod names;
pub mod privacy;
pub mod robust;
#[cfg(feature = "service")]
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "reads clocks")]
pub mod service;
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "draws random numbers and measures CPU time")]
pub mod simulation;

pub use aggregate::{Aggregate, Aggregator, GeometricMedian, Points, Tolerance};
pub use algorithm::{AgentId, Controller, ControllerConfig, Episodes, Fault, Level, NoPrivacy, PaperRule, Rule};
pub use config::{AggregatorName, ConfigError, RunConfig};
#[doc(no_inline)]
pub use fedbandit_core::Model;
pub use simulation::{Attack, Environment, Logs, Outcome, SimulationConfig, simulate};
