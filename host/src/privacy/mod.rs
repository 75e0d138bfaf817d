//! Differential privacy with respect to messages: the tree mechanism and its kin, on integers (Algorithm 1, line 20).
//!
//! An admitted message becomes integers ([`grid`]); these are summed exactly, by agent or by group, and every sum that
//! is used gets discrete Gaussian noise ([`gaussian`]) before it becomes a floating-point number again. The noise is a
//! function of a secret key and of the sum it hides ([`key`]), so a restarted controller that is told the same messages
//! releases the same numbers. [`Private`] puts it together, from a [`Plan`] that was made before the first message.
//!
//! Generators whose past can be computed from their output must not be reachable here: `host/clippy.toml` names those of the
//! other modules, and [`gaussian::DiscreteGaussian::sample`] takes none that is not cryptographic.
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
pub use privatiser::{Private, Stream};
