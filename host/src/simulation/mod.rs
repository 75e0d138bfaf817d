//! Simulation of whole fleets of virtual devices under attack. Each device runs the agent of the firmware.
//!
//! A [`SimulationConfig`] and a seed determine a run ([`simulate`]): θ*, the corrupted agents, all decision sets and all
//! rewards. These are the same for all aggregators, so that regrets can be compared draw by draw.
//!
//! ```
//! use fedbandit::config::RunConfig;
//! use fedbandit::simulation::{Logs, SimulationConfig, simulate};
//!
//! let run = RunConfig { agents: 20, dim: 4, steps: 256, ..RunConfig::default() };
//! let config = SimulationConfig { run, ..SimulationConfig::default() };
//! let outcome = simulate(&config, &Logs::new(), 7, &|_| {})?;
//! assert!(outcome.total < 0.5, "the fleet learns although 30 % of the agents collude");
//! # Ok::<(), fedbandit::config::ConfigError>(())
//! ```

mod attack;
mod attackers;
mod batch;
mod claim;
mod colluders;
mod config;
mod environment;
mod experiment;
mod fleet;
mod forged_summary;
mod guard;
mod hostile_controller;
mod knowledge;
mod optimal;
mod outcome;
mod participation;
mod replay;
pub mod report;
mod results;
mod run;
mod selection;
#[cfg(feature = "service")]
mod virtual_device;

pub use attack::Attack;
pub use batch::{Job, agent_steps, run_all};
pub use colluders::Colluders;
pub use config::SimulationConfig;
pub use environment::Environment;
pub use experiment::Experiment;
pub use fleet::DIMENSIONS;
pub(crate) use fleet::for_dimensions;
pub use forged_summary::ForgedSummary;
pub use guard::GuardName;
pub use hostile_controller::Forgery;
pub use outcome::{MAX_TRACE_LEN, Outcome, Trace};
pub use participation::Participation;
pub use replay::{Log, LogError, Logs};
pub use results::ResultDirectory;
pub use run::{simulate, simulate_rule};
pub use selection::{DecisionSets, select_all};
#[cfg(feature = "service")]
pub use virtual_device::{DeviceProgress, INDEPENDENT_ATTACKS, VirtualDevice, virtual_device};
