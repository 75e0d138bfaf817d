//! Pages of the device table.

use std::cmp::Reverse;
use std::ops::Bound::{Excluded, Unbounded};

use super::super::device_table::{DeviceOrder, DevicePage, DeviceQuery, DeviceReport, SinceStart};
use super::{Device, StateMachine};
use crate::algorithm::AgentId;

/// Position of a device in an order: the largest key first, then the smallest number.
type Position = (Reverse<u64>, AgentId);

impl StateMachine {
    /// Returns a page of the device table. By number, the cost is that of the page; other orders look at every device.
    pub fn devices(&self, query: DeviceQuery, now: u64) -> DevicePage {
        let limit = query.limit.clamp(1, DeviceQuery::MAX_LIMIT);
        // One more than the page shows whether there is another page.
        let mut agents = match query.order {
            DeviceOrder::Number => self.numbers_after(query.after, limit + 1),
            order => self.positions_after(order, query.after, limit + 1),
        };
        let has_next = agents.len() > limit;
        agents.truncate(limit);
        let next = agents.last().map(|agent| agent.0).filter(|_| has_next);
        let closed = self.closed_episodes();
        let report = |agent: &AgentId| Some(self.report(*agent, self.devices.get(agent)?, closed, now));
        DevicePage {
            closed_episodes: closed,
            private: self.controller.is_private(),
            devices: agents.iter().filter_map(report).collect(),
            next,
        }
    }

    pub(super) fn closed_episodes(&self) -> u32 {
        match self.controller.model() {
            Some(model) => model.episode.saturating_sub(1),
            None => self.info.episodes,
        }
    }

    fn numbers_after(&self, after: Option<u32>, count: usize) -> Vec<AgentId> {
        let start = after.map_or(Unbounded, |agent| Excluded(AgentId(agent)));
        self.devices.range((start, Unbounded)).map(|(agent, _)| *agent).take(count).collect()
    }

    fn positions_after(&self, order: DeviceOrder, after: Option<u32>, count: usize) -> Vec<AgentId> {
        let closed = self.closed_episodes();
        let mut positions: Vec<Position> = match order {
            // Distances are not negative, so their bits are ordered as they are.
            DeviceOrder::Distance => {
                let distances = self.controller.distances().into_iter();
                distances.map(|outlier| (Reverse(outlier.distance.to_bits()), AgentId(outlier.agent))).collect()
            }
            DeviceOrder::Missing => self.positions(|device| device.history.missing_streak(closed).into()),
            DeviceOrder::Zeroed => self.positions(|device| device.history.zeroed_total()),
            DeviceOrder::Number => self.positions(|_| 0),
        };
        if let Some(after) = after {
            // A number that is not enrolled has no position: the page is empty.
            let last = positions.iter().find(|(_, agent)| agent.0 == after).copied();
            positions.retain(|position| last.is_some_and(|last| *position > last));
        }
        if positions.len() > count {
            positions.select_nth_unstable(count);
            positions.truncate(count);
        }
        positions.sort_unstable();
        positions.into_iter().map(|(_, agent)| agent).collect()
    }

    fn positions(&self, key: impl Fn(&Device) -> u64) -> Vec<Position> {
        self.devices.iter().map(|(agent, device)| (Reverse(key(device)), *agent)).collect()
    }

    fn report(&self, agent: AgentId, device: &Device, closed: u32, now: u64) -> DeviceReport {
        let Device { history, revoked, .. } = device;
        DeviceReport {
            agent: agent.0,
            revoked: *revoked,
            last_episode: Some(history.last_episode).filter(|episode| *episode > 0),
            missing_streak: history.missing_streak(closed),
            zeroed: (!self.controller.is_private()).then(|| history.zeroed.clone()),
            distance: self.controller.distance_of(agent),
            since_start: Some(device.since_start(now)),
        }
    }
}

impl Device {
    fn since_start(&self, now: u64) -> SinceStart {
        let (dropped, dropped_unverified) = self.dropped.iter().partition(|(reason, _)| reason.is_verified());
        SinceStart {
            seconds_since_seen: self.last_seen.map(|seen| now.saturating_sub(seen) / 1000),
            connected: self.link.is_some(),
            transport: self.transport,
            boot: self.boot,
            dropped,
            dropped_unverified,
        }
    }
}
