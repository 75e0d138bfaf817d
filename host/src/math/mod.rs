//! Numerics shared by the other modules.

pub(crate) mod normal;
#[expect(clippy::disallowed_types, reason = "it makes generators")]
pub(crate) mod rng;
pub mod symmetric;
