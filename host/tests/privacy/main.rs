//! Privacy: how much noise a budget needs, what that noise is, and what it hides.

mod audit;
mod calibration;
mod noise;
mod normal;
#[path = "../shared/random.rs"]
mod random;
mod streams;
