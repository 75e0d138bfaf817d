//! Rebuilds a state machine from a snapshot and the events after it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fedbandit_core::wire::Channel;

use super::super::any_controller::AnyController;
use super::super::event::{Event, ModelEvent};
use super::super::snapshot::{Saved, SnapshotError};
use super::device_history::DeviceHistory;
use super::statistics::Statistics;
use super::{Device, Progress, StateMachine, StateMachineConfig};
use crate::algorithm::AgentId;

/// Stored event that cannot have occurred in this run, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {0} of the store does not fit the events before it; restore the last backup")]
pub struct RestoreError(u64);

/// State machine that is being rebuilt from the stored events.
pub struct Restoring {
    service: StateMachine,
}

impl Restoring {
    /// Replays the next event.
    ///
    /// # Errors
    /// The event does not fit the events before it.
    pub fn replay(&mut self, event: Event) -> Result<(), RestoreError> {
        let number = self.events();
        self.service.progress.count(&event);
        self.service.replay(event).map_err(|()| RestoreError(number))
    }

    /// Starts or resumes the run after the last event. Devices that were enrolled since then join the run, if it accepts
    /// devices.
    pub fn finish(mut self) -> StateMachine {
        self.service.statistics.mark_logged(&self.service.controller);
        self.service.stage_enrollments();
        if self.service.model.is_none() && self.service.controller.model().is_some() {
            self.service.stage_model();
        }
        self.service
    }

    /// Returns the number of events that precede the present state.
    pub fn events(&self) -> u64 {
        self.service.progress.events
    }
}

impl StateMachine {
    /// Creates the state of a run from a stored snapshot, or before its first event. The devices, each with a flag that is true
    /// if it is revoked, include those that the controller was created for.
    ///
    /// # Errors
    /// The snapshot is corrupt or belongs to another run.
    pub fn restore(
        config: StateMachineConfig,
        controller: AnyController,
        devices: impl IntoIterator<Item = (AgentId, Channel, bool)>,
        snapshot: Option<&[u8]>,
    ) -> Result<Restoring, SnapshotError> {
        let StateMachineConfig { fleet, run, boot, dimension, time_limit, now, unix_seconds, snapshots, info } = config;
        let device = |(agent, channel, revoked)| (agent, Device::new(channel, revoked));
        let devices: BTreeMap<_, _> = devices.into_iter().map(device).collect();
        let mut service = Self {
            fleet,
            run,
            boot,
            dimension,
            statistics: Statistics::new(&controller, info.assumptions),
            info,
            controller,
            devices,
            model: None,
            uncommitted: Vec::new(),
            writing: false,
            staged: BTreeSet::new(),
            outbox: VecDeque::new(),
            links: BTreeMap::new(),
            broker: None,
            time_limit,
            deadline: now.saturating_add(time_limit),
            unix_seconds,
            snapshots,
            now,
            progress: Progress::default(),
        };
        if let Some(bytes) = snapshot {
            let saved = Saved::from_bytes(bytes, service.info.config_hash)?;
            service = service.resume(saved, bytes.len() as u64).ok_or(SnapshotError::Corrupt)?;
        }
        Ok(Restoring { service })
    }

    /// Returns the state that a snapshot stores.
    pub(super) fn save(&self) -> Saved {
        Saved {
            config_hash: self.info.config_hash,
            events: self.progress.events,
            taken_at: self.unix_time(self.now),
            controller: self.controller.save(),
            model: self.model.clone().map(|model| Event::Model(model).to_bytes()),
            models: self.progress.models.iter().copied().collect(),
            statistics: self.statistics.save(),
            histories: self.histories().map(|(agent, history)| (agent, history.clone())).collect(),
        }
    }

    /// Returns the records of the devices that have one.
    fn histories(&self) -> impl Iterator<Item = (AgentId, &DeviceHistory)> {
        let devices = self.devices.iter().map(|(agent, device)| (*agent, &device.history));
        devices.filter(|(_, history)| **history != DeviceHistory::default())
    }

    /// Returns a hash of everything that a restart restores, the same for every way to the same events.
    pub fn fingerprint(&self) -> [u8; 32] {
        let state = Saved { taken_at: 0, models: Vec::new(), ..self.save() };
        *blake3::hash(&state.to_bytes()).as_bytes()
    }

    /// Continues from a snapshot of this run; none if its parts do not fit together.
    fn resume(mut self, saved: Saved, length: u64) -> Option<Self> {
        let Saved { events, taken_at, controller, model, models, statistics, histories, .. } = saved;
        let controller = self.controller.restore(controller)?;
        let model = match model {
            Some(bytes) => Some(stored_model(&bytes, self.dimension)?),
            None => None,
        };
        if model.as_ref().map(|model| model.episode) != controller.model().map(|model| model.episode) {
            return None;
        }
        for (agent, history) in histories {
            self.devices.get_mut(&agent)?.history = history;
        }
        let statistics = Statistics::restore(statistics, &controller, self.info.assumptions);
        let progress =
            Progress { events, models: models.into(), unsaved: 0, saved: Some((length, taken_at)), at_model: true };
        Some(Self { controller, model, statistics, progress, ..self })
    }

    fn replay(&mut self, event: Event) -> Result<(), ()> {
        match event {
            Event::Summary(summary) => {
                self.controller.expects(summary.agent, summary.episode).map_err(drop)?;
                self.apply_summary(&summary);
            }
            Event::Model(model) => {
                if self.model.is_some() {
                    self.close_episode().map_err(drop)?;
                }
                if self.controller.model().is_none_or(|next| next.episode != model.episode) {
                    return Err(());
                }
                // The stored model, not the recomputed one: devices have received these bytes.
                self.model = Some(model);
            }
            Event::End => {
                self.model.as_ref().ok_or(())?;
                self.close_episode().map_err(drop)?;
                if self.controller.model().is_some() {
                    return Err(());
                }
                self.model = None;
            }
            Event::Enrollment(agent) => {
                if !self.info.accepts_devices || !self.devices.contains_key(&agent) {
                    return Err(());
                }
                self.apply_enrollment(agent).map_err(drop)?;
            }
        }
        Ok(())
    }

    /// Stages the enrolment of all devices that are not part of the run yet.
    fn stage_enrollments(&mut self) {
        if !self.info.accepts_devices || self.controller.model().is_none() {
            return;
        }
        let enrolled: BTreeSet<AgentId> = self.controller.enrolled().iter().copied().collect();
        let new: Vec<AgentId> = self.devices.keys().filter(|agent| !enrolled.contains(agent)).copied().collect();
        self.uncommitted.extend(new.into_iter().map(Event::Enrollment));
    }
}

fn stored_model(bytes: &[u8], dimension: usize) -> Option<ModelEvent> {
    match Event::from_bytes(bytes, dimension)? {
        Event::Model(model) => Some(model),
        _ => None,
    }
}
