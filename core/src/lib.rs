#![doc = include_str!("../README.md")]
#![no_std]
#![deny(missing_docs)]
#![warn(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `!(x <= limit)` refuses a NaN together with what is too large.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

#[cfg(feature = "std")]
extern crate std;

mod action;
mod agent;
mod error;
mod factor;
mod fingerprint;
mod kernel;
mod model;
pub mod rounding;
#[cfg(feature = "wire")]
pub mod session;
mod state;
mod summary;
#[cfg(feature = "wire")]
pub mod wire;

pub use action::{Action, norm_squared_limit, project};
pub use agent::{Agent, Choice};
pub use error::{ActionError, ModelError, RecordError, SelectError, StateError};
pub use fingerprint::fingerprint;
pub use model::{Model, Prior, Rewards, Values, packed_len};
pub use summary::EpisodeSummary;

/// The largest episode length L: the bound on the error of its sums ([`rounding::sums`]) is 2⁻⁸ there.
pub const MAX_EPISODE_LEN: u32 = 65_536;

/// The largest magnitude of β and of an entry of θ or Λ, 2⁶⁰: no score can then overflow.
pub const VALUE_LIMIT: f32 = 1.152_921_5e18;

/// The largest magnitude of a reward, 2⁹⁶: no sum of an episode can then overflow.
pub const REWARD_LIMIT: f32 = 7.922_816_3e28;
