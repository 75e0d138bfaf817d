//! Privacy: calibration of the noise, its distribution, and an empirical audit of the guarantee.

mod audit;
mod calibration;
mod noise;
mod normal;
#[path = "../shared/random.rs"]
mod random;
mod streams;
