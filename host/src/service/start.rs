//! Starts a service from its configuration, registry and store.

use fedbandit_core::wire::{Channel, Identity};
use thiserror::Error;

use super::any_controller::AnyController;
use super::device_table::{DevicePage, DeviceQuery};
use super::event::Event;
use super::master_key::MasterKey;
use super::registry::{EnrolledDevice, Registry};
use super::snapshot::{SnapshotError, SnapshotPolicy};
use super::state_machine::{RestoreError, Restoring, StateMachine, StateMachineConfig};
use super::status::Status;
use super::store::{Store, StoreError};
use super::terms::{OLDEST_SCHEMA, RunTerms, SCHEMA};
use crate::algorithm::{AgentId, Continued, Controller, ControllerConfig, NoPrivacy, PriorError, Rule};
use crate::config::{ConfigError, RunConfig};
use crate::privacy::{Private, RunKey};

/// Time limits and the current time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartOptions {
    /// Longest duration of an episode in milliseconds.
    pub time_limit: u64,
    /// W: number of episodes after its own for which a late summary is accepted.
    pub window: u32,
    /// Seconds since the Unix epoch, a lower bound of the boot counter. A store restored from a backup has lost its last
    /// boot counters; the clock has not.
    pub unix_seconds: u32,
    /// When snapshots are taken, and for how long summaries are kept after them.
    pub snapshots: SnapshotPolicy,
}

impl StartOptions {
    /// Creates options with the default snapshots.
    pub const fn new(time_limit: u64, window: u32, unix_seconds: u32) -> Self {
        Self { time_limit, window, unix_seconds, snapshots: SnapshotPolicy::DEFAULT }
    }
}

/// Error returned when a service cannot start or a store cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store belongs to a run with different terms.
    #[error(
        "this store belongs to a run with different settings: {0}; restore the old settings, or start a new run in another \
         directory"
    )]
    DifferentRun(String),
    /// The store contains no terms yet.
    #[error("the run has not begun")]
    NotBegun,
    /// The stored terms are invalid.
    #[error("the store's terms are corrupt: {0}; restore the last backup")]
    Terms(#[source] serde_json::Error),
    /// The store was written by an incompatible version.
    #[error(
        "the store has schema {0}, this version supports {OLDEST_SCHEMA} to {SCHEMA}; use the version that started the run"
    )]
    Schema(u64),
    /// The stored events contradict each other.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The stored snapshot cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The last model of a run cannot be the prior of the next.
    #[error("cannot continue this run: {0}")]
    Prior(#[from] PriorError),
    /// The operating system provides no entropy.
    #[error("cannot generate a key: {0}")]
    Entropy(#[from] getrandom::Error),
    /// The stored key of a private run's noise is invalid.
    #[error("the stored noise key is corrupt; restore the last backup")]
    Key,
    /// The stored boot counter is invalid, or at its maximum.
    #[error("the stored boot counter is corrupt or exhausted; restore the last backup")]
    Boot,
    /// A stored event is missing.
    #[error("event {0} of the store is missing; restore the last backup")]
    Missing(u64),
    /// A stored event is invalid.
    #[error("event {0} of the store is corrupt; restore the last backup")]
    Event(u64),
}

/// Checks that a run can start, before its store is created.
///
/// # Errors
/// See [`StartError`].
pub fn check(run: &RunConfig, registry: &Registry, window: u32) -> Result<(), StartError> {
    controller(&RunTerms::new(run, registry, window)?, || Ok(RunKey::generate()?)).map(drop)
}

/// Starts the service of a run, or resumes it from its store.
///
/// # Errors
/// See [`StartError`].
pub fn start(
    store: &mut dyn Store,
    run: &RunConfig,
    registry: &Registry,
    master: &MasterKey,
    options: StartOptions,
    now: u64,
) -> Result<StateMachine, StartError> {
    let configured = RunTerms::new(run, registry, options.window)?;
    let stored = stored_terms(store, &configured)?;
    let is_stored = stored.as_ref().is_some_and(|stored| stored.schema() == SCHEMA);
    let terms = stored.map_or(configured, RunTerms::migrated);
    let controller = controller(&terms, || run_key(store))?;
    // Stored only once the run is known to start: terms are permanent, but for the schema of an earlier version.
    if !is_stored {
        store.set_value("terms", &terms.to_bytes())?;
    }
    let boot = next_boot(store, options.unix_seconds)?;
    let device = |device: &EnrolledDevice| {
        let channel = Channel::controller(registry.identity(device, master), boot, registry.run);
        (AgentId(device.agent), channel, device.revoked)
    };
    let config = StateMachineConfig {
        fleet: registry.fleet,
        run: registry.run,
        boot,
        dimension: registry.dimension.into(),
        time_limit: options.time_limit,
        now,
        unix_seconds: options.unix_seconds.into(),
        snapshots: options.snapshots,
        info: terms.info()?,
    };
    let snapshot = store.snapshot()?;
    let devices = registry.devices.iter().map(device);
    let restoring = restore(store, &terms, config, controller, devices, snapshot.as_deref())?;
    let (stored, service) = (restoring.events(), restoring.finish());
    let Status { run, episode, episodes, enrolled, revoked, config_hash, .. } = service.status(now);
    let message = if stored == 0 { "run started" } else { "run resumed" };
    tracing::info!(run, events = stored, episode, episodes, enrolled, revoked, config_hash, "{message}");
    Ok(service)
}

/// State of a run that was read from its store, without a service.
pub struct Inspection(StateMachine);

impl Inspection {
    /// Returns the status.
    pub fn status(&self) -> Status {
        self.0.status(0)
    }

    /// Returns a page of the device table, without observations of a service.
    pub fn devices(&self, query: DeviceQuery) -> DevicePage {
        let mut page = self.0.devices(query, 0);
        page.devices.iter_mut().for_each(|device| device.since_start = None);
        page
    }
}

/// Reads the state of a run from its store, without a service. Nothing is written.
///
/// # Errors
/// See [`StartError`].
pub fn inspect(store: &dyn Store, registry: &Registry) -> Result<Inspection, StartError> {
    Ok(Inspection(inspect_from(store, registry, store.snapshot()?.as_deref())?))
}

/// Restores a run from a snapshot, or from its first event.
pub(super) fn inspect_from(
    store: &dyn Store,
    registry: &Registry,
    snapshot: Option<&[u8]>,
) -> Result<StateMachine, StartError> {
    let terms = RunTerms::load(store)?;
    let key = || RunKey::from_stored(&store.value("run-key")?.ok_or(StartError::Key)?).map_err(|_| StartError::Key);
    let controller = controller(&terms, key)?;
    // No frames arrive, so the devices need no keys. The registry may have changed since the run started.
    let Registry { fleet, dimension, .. } = *registry;
    let unused = |agent| Channel::controller(Identity::new(fleet, agent, dimension, [0; 32]), 0, terms.run);
    let devices = registry.devices.iter().map(|device| (AgentId(device.agent), unused(device.agent), device.revoked));
    let (run, dimension, info) = (terms.run, terms.config.dim, terms.info()?);
    let snapshots = SnapshotPolicy::DEFAULT;
    let config =
        StateMachineConfig { fleet, run, boot: 0, dimension, time_limit: 0, now: 0, unix_seconds: 0, snapshots, info };
    Ok(restore(store, &terms, config, controller, devices, snapshot)?.finish())
}

/// Restores a snapshot, if there is one, and replays the events after it.
fn restore(
    store: &dyn Store,
    terms: &RunTerms,
    config: StateMachineConfig,
    controller: AnyController,
    devices: impl IntoIterator<Item = (AgentId, Channel, bool)>,
    snapshot: Option<&[u8]>,
) -> Result<Restoring, StartError> {
    let mut restoring = StateMachine::restore(config, controller, devices, snapshot)?;
    let from = restoring.events();
    for_each_event::<StartError>(store, terms, from, |number, event| match number == restoring.events() {
        true => Ok(restoring.replay(event)?),
        false => Err(StartError::Missing(restoring.events())),
    })?;
    Ok(restoring)
}

/// Calls a function with each stored event from a number on, with its number, in order, until it fails. One event is in memory at a time.
///
/// # Errors
/// The store cannot be read or is corrupt, or the function fails.
pub fn for_each_event<E: From<StartError>>(
    store: &dyn Store,
    terms: &RunTerms,
    from: u64,
    mut each: impl FnMut(u64, Event) -> Result<(), E>,
) -> Result<(), E> {
    let mut result = Ok(());
    let read = store.replay(from, &mut |number, bytes| {
        if result.is_ok() {
            let event = Event::from_bytes(bytes, terms.config.dim);
            result = event.ok_or_else(|| StartError::Event(number).into()).and_then(|event| each(number, event));
        }
    });
    read.map_err(StartError::from)?;
    result
}

/// Returns the boot counter of this start: larger than that of any earlier start, and stored.
fn next_boot(store: &mut dyn Store, unix_seconds: u32) -> Result<u32, StartError> {
    let last = match store.value("boot")? {
        Some(bytes) => bytes.try_into().map(u32::from_le_bytes).map_err(|_| StartError::Boot)?,
        None => 0,
    };
    let next = last.checked_add(1).ok_or(StartError::Boot)?;
    let boot = next.max(unix_seconds);
    store.set_value("boot", &boot.to_le_bytes())?;
    Ok(boot)
}

/// Returns the stored terms of the run; none if the run has not begun. Other terms than the configured ones are an error.
fn stored_terms(store: &dyn Store, configured: &RunTerms) -> Result<Option<RunTerms>, StartError> {
    let Some(stored) = RunTerms::find(store)? else { return Ok(None) };
    let configured = configured.as_begun(&stored);
    match stored.differences(&configured) {
        same if same.is_empty() => Ok(Some(stored)),
        differences => Err(StartError::DifferentRun(differences)),
    }
}

fn controller(terms: &RunTerms, key: impl FnOnce() -> Result<RunKey, StartError>) -> Result<AnyController, StartError> {
    let (resolved, seed) = (terms.resolve(), u64::from(terms.run));
    let config = ControllerConfig { window: terms.window, ..resolved.controller_config()? };
    let enrolled = terms.agents.iter().copied().map(AgentId);
    let prior = terms.prior()?;
    let continued = |rule: Box<dyn Rule + Send>| match prior {
        Some(prior) => Box::new(Continued { rule, prior }),
        None => rule,
    };
    let Some(plan) = resolved.plan(seed)? else {
        let controller = Controller::new(config, enrolled, continued(resolved.rule(seed)?), NoPrivacy::new);
        return Ok(AnyController::Plain(controller.map_err(ConfigError::from)?));
    };
    let (groups, key) = (resolved.groups(seed)?, key()?);
    let controller =
        Controller::new(config, enrolled, continued(resolved.rule_on_units()?), |agents, _| match &groups {
            Some(groups) => Private::groups(plan, key, agents, groups),
            None => Private::agents(plan, key, agents),
        });
    Ok(AnyController::Private(controller.map_err(ConfigError::from)?))
}

/// Returns the key of a private run's noise: generated once, and stored before it is used.
fn run_key(store: &mut dyn Store) -> Result<RunKey, StartError> {
    if let Some(stored) = store.value("run-key")? {
        return RunKey::from_stored(&stored).map_err(|_| StartError::Key);
    }
    let key = RunKey::generate()?;
    store.set_value("run-key", &*key.to_stored())?;
    Ok(key)
}
