//! The controller and its parts, alone and in simulated fleets.

mod admission;
mod continued;
mod controller;
mod guard;
mod naive;
#[path = "../shared/random.rs"]
mod random;
mod schedule;
mod simulation;
#[path = "../shared/uniform.rs"]
mod uniform;
