//! Algorithm 1 of the paper: the controller and its parts, without clock, random numbers or IO.
//!
//! | part | role |
//! |---|---|
//! | [`Admission`] | checks each summary |
//! | [`Privatise`] | sums up admitted summaries and releases the sums as [`Streams`] |
//! | [`Forgetting`] | weights of past episodes in the sums |
//! | [`Rule`] | estimates the next model from released streams |
//! | [`Continued`] | fuses estimates with the last model of an earlier run |
//! | [`Schedule`] | yields λ_k and β_k to a rule |
//! | [`Controller`] | runs the episodes with all of these |

mod admission;
mod continued;
mod controller;
mod controller_config;
mod episodes;
mod forgetting;
mod rule;
mod schedule;
mod streams;

pub use admission::{Admission, AdmissionError, Fault, Level, pack_symmetric};
pub use continued::{Continued, PriorError, PriorModel, PriorUse};
pub use controller::{ClosedEpisode, Controller, Counts, Deviation, EnrollError, Faults, SavedController, SetupError};
pub use controller_config::{ControllerConfig, MAX_WINDOW};
pub(crate) use episodes::check_episode_len;
pub use episodes::{EpisodeLenError, Episodes};
pub use forgetting::Forgetting;
pub use rule::{Estimate, GroupedRule, ModelParameters, PaperRule, Rule};
pub(crate) use schedule::kappa;
pub use schedule::{
    Calibrated, Evidence, Inexact, Problem, Schedule, SoloSchedule, Solution, StreamNoise, Theorem, TheoremNumber,
    beta_theorem_1, beta_theorem_2, beta_theorem_3, lambda_theorem_1, lambda_theorem_2, lambda_theorem_3,
};
pub use streams::{AgentId, NoPrivacy, Privatise, SavedSums, Streams};
