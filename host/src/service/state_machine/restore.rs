//! Rebuilds a state machine from stored events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fedbandit_core::wire::Channel;

use super::super::any_controller::AnyController;
use super::super::event::Event;
use super::statistics::Statistics;
use super::{Device, StateMachine, StateMachineConfig};
use crate::algorithm::AgentId;

/// Stored event that cannot have occurred in this run, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {0} of the store does not fit the events before it; restore the last backup")]
pub struct RestoreError(u64);

/// State machine that is being rebuilt from the stored events.
pub struct Restoring {
    service: StateMachine,
    events: u64,
}

impl Restoring {
    /// Replays the next event.
    ///
    /// # Errors
    /// The event does not fit the events before it.
    pub fn replay(&mut self, event: Event) -> Result<(), RestoreError> {
        self.service.replay(event).map_err(|()| RestoreError(self.events))?;
        self.events += 1;
        Ok(())
    }

    /// Starts or resumes the run after the last event.
    pub fn finish(mut self) -> StateMachine {
        self.service.statistics.mark_logged(&self.service.controller);
        if self.service.model.is_none() && self.service.controller.model().is_some() {
            self.service.stage_model();
        }
        self.service
    }

    /// Returns the number of events replayed so far.
    pub fn events(&self) -> u64 {
        self.events
    }
}

impl StateMachine {
    /// Creates the state of a run before its first event. The devices, each with a flag that is true if it is revoked, are
    /// those that the controller was created for.
    pub fn restore(
        config: StateMachineConfig,
        controller: AnyController,
        devices: impl IntoIterator<Item = (AgentId, Channel, bool)>,
    ) -> Restoring {
        let StateMachineConfig { fleet, run, dimension, time_limit, now, info } = config;
        let device = |(agent, channel, revoked)| (agent, Device { channel, revoked, seen: false, link: None });
        let devices: BTreeMap<_, _> = devices.into_iter().map(device).collect();
        let service = Self {
            fleet,
            run,
            dimension,
            statistics: Statistics::new(&controller, devices.len(), info.assumptions),
            info,
            controller,
            devices,
            model: None,
            uncommitted: Vec::new(),
            writing: false,
            staged: BTreeSet::new(),
            outbox: VecDeque::new(),
            broker: None,
            time_limit,
            deadline: now.saturating_add(time_limit),
            now,
        };
        Restoring { service, events: 0 }
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
        }
        Ok(())
    }
}
