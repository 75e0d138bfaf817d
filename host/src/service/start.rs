//! From a configuration to a service.

use fedbandit_core::wire::{Channel, Identity};
use thiserror::Error;

use super::any_controller::AnyController;
use super::event::Event;
use super::master_key::MasterKey;
use super::registry::{EnrolledDevice, Registry};
use super::state_machine::{RestoreError, Restoring, StateMachine, StateMachineConfig};
use super::status::Status;
use super::store::{Store, StoreError};
use super::terms::{RunTerms, SCHEMA};
use crate::algorithm::Controller;
use crate::algorithm::ControllerConfig;
use crate::algorithm::{AgentId, NoPrivacy};
use crate::config::{ConfigError, RunConfig};
use crate::privacy::{Private, RunKey};

/// How the service treats time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartOptions {
    /// How long an episode may last, in milliseconds.
    pub time_limit: u64,
    /// W, for how many episodes after its own a summary is still taken.
    pub window: u32,
    /// The time in seconds of the Unix epoch. A store that was restored from a backup has forgotten its last starts; the
    /// clock has not.
    pub unix_seconds: u32,
}

/// Why a service cannot start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store is of a run with other terms.
    #[error("the store is of another run: {0}; put the old value back, or start a new run in another directory")]
    Other(String),
    /// The store has no terms yet.
    #[error("the run has not begun")]
    NotBegun,
    /// What is stored as the terms is none.
    #[error("the store's terms are damaged: {0}: restore the last backup")]
    Terms(#[source] serde_json::Error),
    /// The store is of another version.
    #[error("the store has schema {0}, not {SCHEMA}: go on with the version that began the run")]
    Schema(u64),
    /// The stored events do not fit.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// There is no entropy for a key.
    #[error("the system has no entropy: {0}")]
    Entropy(#[from] getrandom::Error),
    /// What is stored as the key is not a key.
    #[error("the store's key is damaged: restore the last backup")]
    Key,
    /// The stored number of the last start is damaged, or the largest that there is.
    #[error("the store's number of its last start is damaged, or there is none after it: restore the last backup")]
    Boot,
    /// What is stored as an event is not one.
    #[error("event {0} of the store is damaged: restore the last backup")]
    Damaged(u64),
}

/// Whether a run can start, before it has a store.
///
/// # Errors
/// See [`StartError`].
pub fn check(run: &RunConfig, registry: &Registry, window: u32) -> Result<(), StartError> {
    learner(&RunTerms::new(run, registry, window)?, || Ok(RunKey::generate()?)).map(drop)
}

/// Starts a service on a store, or goes on where it was.
///
/// # Errors
/// See [`StartError`].
pub fn start(
    store: &mut dyn Store,
    run: &RunConfig,
    registry: &Registry,
    master: &MasterKey,
    timing: StartOptions,
    now: u64,
) -> Result<StateMachine, StartError> {
    let terms = RunTerms::new(run, registry, timing.window)?;
    let is_new = !agree(store, &terms)?;
    let learner = learner(&terms, || run_key(store))?;
    // Only now it is sure that the run can start; terms hold for good.
    if is_new {
        store.set_value("terms", &terms.to_bytes())?;
    }
    let boot = boot(store, timing.unix_seconds)?;
    let device = |device: &EnrolledDevice| {
        let identity = master.identity(registry.run, device.agent, registry.dimension);
        let channel = match device.sealed {
            true => Channel::sealed_controller(identity, boot),
            false => Channel::plain(identity),
        };
        (AgentId(device.agent), channel, device.revoked)
    };
    let dimension = registry.dimension.into();
    let start =
        StateMachineConfig { run: registry.run, dimension, time_limit: timing.time_limit, now, about: terms.about()? };
    let mut restoring = StateMachine::restore(start, learner, registry.devices.iter().map(device));
    replay(store, &terms, &mut restoring)?;
    let (stored, service) = (restoring.events(), restoring.finish());
    let Status { run, episode, episodes, enrolled, revoked, config_hash, .. } = service.status(now);
    let words = if stored == 0 { "run begins" } else { "run goes on" };
    tracing::info!(run, events = stored, episode, episodes, enrolled, revoked, config_hash, "{words}");
    Ok(service)
}

/// How the run of a store stands, while no service has it. Nothing is written.
///
/// # Errors
/// See [`StartError`].
pub fn inspect(store: &dyn Store, registry: &Registry) -> Result<Status, StartError> {
    let terms = RunTerms::of(store)?;
    let key = || RunKey::from_stored(&store.value("run-key")?.ok_or(StartError::Key)?).map_err(|_| StartError::Key);
    let learner = learner(&terms, key)?;
    // Nobody will speak to it, so it needs no keys. The registry may have been changed since the store was made.
    let (run, dimension) = (terms.run, terms.config.dim);
    let nobody = |agent| Channel::plain(Identity { run, agent, dimension: registry.dimension, key: [0; 32] });
    let devices = registry.devices.iter().map(|device| (AgentId(device.agent), nobody(device.agent), device.revoked));
    let start = StateMachineConfig { run, dimension, time_limit: 0, now: 0, about: terms.about()? };
    let mut restoring = StateMachine::restore(start, learner, devices);
    replay(store, &terms, &mut restoring)?;
    Ok(restoring.finish().status(0))
}

fn replay(store: &dyn Store, terms: &RunTerms, restoring: &mut Restoring) -> Result<(), StartError> {
    for_each_event(store, terms, |event| Ok(restoring.replay(event)?))
}

/// Calls a function for the events of a store, in order, until it fails. One event at a time is in memory.
///
/// # Errors
/// The store cannot be read, or is damaged; or the function's.
pub fn for_each_event<E: From<StartError>>(
    store: &dyn Store,
    terms: &RunTerms,
    mut each: impl FnMut(Event) -> Result<(), E>,
) -> Result<(), E> {
    let (mut number, mut result) = (0, Ok(()));
    let read = store.replay(&mut |bytes| {
        if result.is_ok() {
            let event = Event::from_bytes(bytes, terms.config.dim);
            result = event.ok_or_else(|| StartError::Damaged(number).into()).and_then(&mut each);
            number += 1;
        }
    });
    read.map_err(StartError::from)?;
    result
}

/// A number for this start: larger than at any before, and stored.
fn boot(store: &mut dyn Store, unix_seconds: u32) -> Result<u32, StartError> {
    let last = match store.value("boot")? {
        Some(bytes) => bytes.try_into().map(u32::from_le_bytes).map_err(|_| StartError::Boot)?,
        None => 0,
    };
    let next = last.checked_add(1).ok_or(StartError::Boot)?;
    let boot = next.max(unix_seconds);
    store.set_value("boot", &boot.to_le_bytes())?;
    Ok(boot)
}

/// Whether a store has these terms; one with others is refused, and a new one has none.
fn agree(store: &dyn Store, terms: &RunTerms) -> Result<bool, StartError> {
    match RunTerms::read(store)? {
        Some(stored) if stored != *terms => Err(StartError::Other(stored.differences(terms))),
        stored => Ok(stored.is_some()),
    }
}

fn learner(terms: &RunTerms, key: impl FnOnce() -> Result<RunKey, StartError>) -> Result<AnyController, StartError> {
    let (rules, seed) = (terms.resolve(), u64::from(terms.run));
    let setting = ControllerConfig { window: terms.window, ..rules.controller_config()? };
    let enrolled = terms.agents.iter().copied().map(AgentId);
    let Some(plan) = rules.plan(seed)? else {
        let controller = Controller::new(setting, enrolled, rules.rule(seed)?, NoPrivacy::new);
        return Ok(AnyController::Plain(controller.map_err(ConfigError::from)?));
    };
    let (groups, key) = (rules.groups(seed)?, key()?);
    let controller = Controller::new(setting, enrolled, rules.rule_on_units()?, |agents, _| match &groups {
        Some(groups) => Private::groups(plan, key, agents, groups),
        None => Private::agents(plan, key, agents),
    });
    Ok(AnyController::Private(controller.map_err(ConfigError::from)?))
}

/// The key of a private run's noise: drawn once, and stored before it is used.
fn run_key(store: &mut dyn Store) -> Result<RunKey, StartError> {
    if let Some(stored) = store.value("run-key")? {
        return RunKey::from_stored(&stored).map_err(|_| StartError::Key);
    }
    let key = RunKey::generate()?;
    store.set_value("run-key", &*key.to_stored())?;
    Ok(key)
}
