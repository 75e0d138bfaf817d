//! The controller and what it is made of, by itself and in simulated fleets.

mod admission;
mod controller;
mod naive;
#[path = "../shared/random.rs"]
mod random;
mod schedule;
mod simulation;
