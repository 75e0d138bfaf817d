//! Many virtual devices, each running the agent of the firmware, under attack.
//!
//! A [`SimulationConfig`] and a seed determine a [`run`]: θ* and who is corrupted, every decision set and every reward. They are the
//! same for all aggregators, so that regrets can be compared draw by draw.
//!
//! ```
//! use fedbandit::config::RunConfig;
//! use fedbandit::simulation::{SimulationConfig, Logs, simulate};
//!
//! let run = RunConfig { agents: 20, dim: 4, steps: 256, ..RunConfig::default() };
//! let config = SimulationConfig { run, ..SimulationConfig::default() };
//! let outcome = simulate(&config, &Logs::new(), 7, &|_| {})?;
//! assert!(outcome.total < 0.5, "three in ten collude, and yet it learns");
//! # Ok::<(), fedbandit::config::ConfigError>(())
//! ```

mod attack;
mod attackers;
mod batch;
mod colluders;
mod config;
mod environment;
mod experiment;
mod fleet;
mod optimal;
mod outcome;
mod replay;
pub mod report;
mod run;
mod selection;
#[cfg(feature = "service")]
mod virtual_device;

pub use attack::Attack;
pub use batch::{Job, agent_steps, run_all};
pub use colluders::{Colluders, Lie};
pub use config::SimulationConfig;
pub use environment::Environment;
#[cfg(feature = "service")]
pub(crate) use environment::{Scene, World};
pub use experiment::Experiment;
pub use fleet::DIMENSIONS;
#[cfg(feature = "service")]
pub(crate) use fleet::for_dimensions;
pub use outcome::{MAX_TRACE_LEN, Outcome, Trace};
pub use replay::{Log, LogError, Logs};
pub use run::{simulate, simulate_rule};
pub use selection::{DecisionSets, select_all};
#[cfg(feature = "service")]
pub use virtual_device::{DeviceProgress, INDEPENDENT_ATTACKS, VirtualDevice, virtual_device};
