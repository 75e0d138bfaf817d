//! Algorithm 1 of the paper: the controller and its parts, without clock, random numbers or IO.
//!
//! A summary passes [`Admission`], is added to the sums behind [`Privatise`], and reaches the [`Rule`] as released [`Streams`];
//! the [`Schedule`] gives λ_k and β_k, and the [`Controller`] ties them together, one episode after the other.

mod admission;
mod controller;
mod episodes;
mod rule;
mod schedule;
mod streams;

pub use admission::{Admission, AdmissionError, Fault, Level, pack_symmetric};
pub use controller::{ClosedEpisode, Controller, ControllerConfig, Counts, Deviation, Faults, MAX_WINDOW, SetupError};
pub use episodes::Episodes;
pub use rule::{Estimate, GroupedRule, ModelParameters, PaperRule, Rule};
pub(crate) use schedule::kappa;
pub use schedule::{
    Calibrated, Evidence, Inexact, Problem, Schedule, SoloSchedule, Solution, StreamNoise, Theorem, TheoremNumber,
    beta_theorem_1, beta_theorem_2, beta_theorem_3, lambda_theorem_1, lambda_theorem_2, lambda_theorem_3,
};
pub use streams::{AgentId, NoPrivacy, Privatise, Streams};
