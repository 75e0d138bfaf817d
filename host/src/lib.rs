//! The controller side of a Byzantine-robust federated linear bandit.
//!
//! Devices run [`fedbandit_core::Agent`] and send one summary (U, u) per episode. [`controller`] runs the episodes of
//! Algorithm 1: [`admission`] decides which summaries may count at all, [`streams`] keeps their sums and releases them,
//! [`aggregate`] makes one point of many although some of them lie, and [`rule`] makes the next model of that.
//! [`whitened`] is a rule beyond the paper.
//! [`privacy`] is for runs whose releases must not tell what any one summary said.
#![deny(missing_docs)]
// `!(x <= limit)` refuses a NaN together with what is too large.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

pub mod admission;
pub mod aggregate;
pub mod controller;
pub mod names;
mod normal;
pub mod privacy;
pub mod report;
pub mod rule;
pub mod schedule;
pub mod service;
pub mod simulation;
pub mod streams;
pub mod symmetric;
pub mod whitened;
