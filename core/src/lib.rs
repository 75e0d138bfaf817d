#![doc = include_str!("../README.md")]
#![no_std]
#![deny(missing_docs)]
#![warn(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `!(x <= limit)` also rejects NaN.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

#[cfg(feature = "std")]
extern crate std;

mod action;
mod agent;
mod error;
mod factor;
mod guard;
mod kernel;
mod model;
pub mod rounding;
#[cfg(feature = "wire")]
pub mod session;
mod state;
mod summary;
#[cfg(feature = "wire")]
pub mod wire;

pub use action::{Action, AsAction, norm_squared_limit, project};
#[cfg(feature = "wire")]
pub use agent::Learner;
pub use agent::{Agent, Choice};
pub use error::{ActionError, ModelError, RecordError, SelectError, StateError};
pub use guard::{Guard, GuardedAgent};
pub use model::{Model, Prior, Rewards, Values, packed_len};
pub use summary::EpisodeSummary;

/// Largest episode length L. Its sums have a relative error of at most 2⁻⁸; see [`rounding::sums`].
pub const MAX_EPISODE_LEN: u32 = 65_536;

/// Largest magnitude of β and of the entries of θ and Λ, 2⁶⁰. No score can overflow below it.
pub const VALUE_LIMIT: f32 = 1.152_921_5e18;

/// Largest magnitude of a reward, 2⁹⁶. No sum of an episode can overflow below it.
pub const REWARD_LIMIT: f32 = 7.922_816_3e28;
