//! Differential privacy with respect to messages: the tree mechanism and its relatives, on integers (Algorithm 1, line 20).
//!
//! 1. An admitted message is converted to integers ([`grid`]), which are summed exactly by agent or by group.
//! 2. Every released sum gets discrete Gaussian noise ([`gaussian`]) before it is converted to floating point.
//! 3. The noise is a function of a secret key and of the sum ([`key`]). A restarted controller that receives the same
//!    messages therefore releases the same numbers.
//!
//! [`Private`] combines these, according to a [`Plan`] that is fixed before the first message.
//!
//! Generators whose past can be computed from their output must not be reachable here. `host/clippy.toml` forbids those of
//! the other modules, and [`gaussian::DiscreteGaussian::sample`] only accepts cryptographic ones.
#![forbid(clippy::disallowed_methods, clippy::disallowed_types)]

mod blt;
pub mod calibration;
pub mod gaussian;
pub mod grid;
pub mod key;
mod privatiser;
#[cfg(test)]
mod tests;
mod tree;

pub use grid::{Plan, PlanError};
pub use key::{RunKey, Seed};
pub use privatiser::{Private, SavedUnits, Stream};
