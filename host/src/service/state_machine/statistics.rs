//! Counters and history for the operator. No decision of the state machine depends on them.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use super::super::any_controller::AnyController;
use super::super::event::SummaryEvent;
use super::super::snapshot::SavedStatistics;
use super::super::status::{EpisodeReport, Outlier, PrivacyGuarantee, Status, SummaryCounts};
use super::{Device, Dropped, StateMachine};
use crate::aggregate::lower_median;
use crate::algorithm::{ClosedEpisode, Estimate};
use crate::robust::{Assumptions, Exploration};

/// Number of closed episodes that the status reports.
const HISTORY: usize = 256;
/// Number of outliers that the status reports.
const OUTLIERS: usize = 8;

pub(super) struct Statistics {
    pub(super) received: SummaryCounts,
    dropped: BTreeMap<Dropped, u64>,
    /// Reported mean rewards of the running episode. None in a private run: they carry no noise, so they are not kept.
    mean_rewards: Option<Vec<f64>>,
    history: VecDeque<EpisodeReport>,
    /// Outliers of the last closed episode.
    outliers: Vec<Outlier>,
    /// Exploration by all devices up to the last closed episode; none in a private run.
    exploration: Option<Exploration>,
    assumptions: Assumptions,
    /// Numbers of dropped frames and zeroed summaries at the last log line about them.
    logged: [u64; 2],
}

impl Statistics {
    pub(super) fn new(controller: &AnyController, assumptions: Assumptions) -> Self {
        Self {
            received: SummaryCounts::default(),
            dropped: BTreeMap::new(),
            mean_rewards: (!controller.is_private()).then(Vec::new),
            history: VecDeque::new(),
            outliers: controller.outliers(OUTLIERS),
            exploration: controller.exploration(&assumptions),
            assumptions,
            logged: [0; 2],
        }
    }

    pub(super) fn save(&self) -> SavedStatistics {
        SavedStatistics {
            accepted: self.received.accepted,
            late: self.received.late,
            mean_rewards: self.mean_rewards.clone(),
            history: self.history.iter().copied().collect(),
        }
    }

    /// Creates the statistics of a restored controller at the beginning of an episode.
    pub(super) fn restore(saved: SavedStatistics, controller: &AnyController, assumptions: Assumptions) -> Self {
        let SavedStatistics { accepted, late, mean_rewards, history } = saved;
        let received = SummaryCounts { accepted, late, ..SummaryCounts::default() };
        Self { received, mean_rewards, history: history.into(), ..Self::new(controller, assumptions) }
    }

    pub(super) fn count_dropped(&mut self, reason: Dropped) {
        *self.dropped.entry(reason).or_default() += 1;
    }

    pub(super) fn count_accepted(&mut self, summary: &SummaryEvent, is_late: bool) {
        self.received.accepted += 1;
        self.received.late += u64::from(is_late);
        let mean_reward = f64::from(summary.reward_sum) / f64::from(summary.steps);
        if let Some(mean_rewards) = &mut self.mean_rewards
            && !is_late
            && mean_reward.is_finite()
        {
            mean_rewards.push(mean_reward);
        }
    }

    pub(super) fn record_episode(&mut self, closed: ClosedEpisode, beta: f32, controller: &AnyController) {
        let ClosedEpisode { episode, missing } = closed;
        self.outliers = controller.outliers(OUTLIERS);
        self.exploration = controller.exploration(&self.assumptions);
        let reported = self.mean_rewards.as_mut().map(mem::take).filter(|rewards| !rewards.is_empty());
        self.history.push_back(EpisodeReport { episode, beta, missing, mean_reward: reported.map(lower_median) });
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    /// Logs the closed episode, and at most one line about frames and summaries rejected since the last one.
    pub(super) fn log_closed_episode(&mut self, controller: &AnyController) {
        let Some(EpisodeReport { episode, beta, missing, mean_reward }) = self.history.back() else { return };
        let (passes, gap) = aggregation(controller);
        let (repaired, late) = (controller.counts().repaired, self.received.late);
        tracing::info!(episode, missing, beta, mean_reward, passes, gap, repaired, late, "episode closed");
        let rejected = self.rejected(controller);
        if rejected != self.logged {
            let [frames, summaries] = std::array::from_fn(|i| rejected[i] - self.logged[i]);
            let since_start = format!("{:?}, {:?}", self.dropped, controller.counts().faults);
            tracing::warn!(episode, frames, summaries, since_start, "frames dropped, or summaries counted as zero");
            self.logged = rejected;
        }
    }

    /// Excludes replayed events from the next log line.
    pub(super) fn mark_logged(&mut self, controller: &AnyController) {
        self.logged = self.rejected(controller);
    }

    fn rejected(&self, controller: &AnyController) -> [u64; 2] {
        [self.dropped.values().sum(), controller.counts().faults.values().sum()]
    }
}

/// Returns the passes of the last two aggregations together, and the larger certified gap.
fn aggregation(controller: &AnyController) -> (u32, f64) {
    let Estimate { gram, feature_sum, .. } = controller.estimate();
    (gram.passes + feature_sum.passes, gram.certified_gap.max(feature_sum.certified_gap))
}

impl StateMachine {
    /// Returns the state of the run, for the operator.
    pub fn status(&self, now: u64) -> Status {
        let Statistics { received, dropped, history, outliers, exploration, .. } = &self.statistics;
        let (passes, certified_gap) = aggregation(&self.controller);
        let devices = |is: fn(&Device) -> bool| self.devices.values().filter(|device| is(device)).count();
        let (finished, last) = (self.is_finished(), history.back());
        let model = self.model.as_ref();
        // Before the first model is stored, its episode is about to begin.
        let episode = model.map(|model| model.episode).or_else(|| Some(self.controller.model()?.episode));
        let releases = if finished { self.info.episodes } else { model.map_or(0, |model| model.episode) };
        Status {
            run: self.run,
            config_hash: format!("{:016x}", self.info.config_hash),
            finished,
            episode,
            episodes: self.info.episodes,
            seconds_left: (!finished).then(|| self.deadline.saturating_sub(now) / 1000),
            seconds_per_episode: self.time_limit / 1000,
            enrolled: self.devices.len(),
            revoked: devices(|device| device.revoked),
            seen: devices(|device| device.last_seen.is_some()),
            connected: devices(|device| device.link.is_some()),
            missing: if finished { 0 } else { self.controller.missing() },
            missing_in_last_episode: last.map(|last| last.missing),
            mean_reward: last.and_then(|last| last.mean_reward),
            beta: model.map(|model| model.beta),
            lambda: self.controller.estimate().lambda,
            certified_gap,
            passes,
            repaired: self.controller.counts().repaired,
            received: *received,
            faults: self.controller.counts().faults.clone(),
            dropped: dropped.clone(),
            private: self.controller.is_private(),
            privacy: self.info.privacy.map(|(budget, mechanism)| PrivacyGuarantee {
                mu: budget.mu(),
                nu: budget.nu(),
                rho: budget.rho(),
                mechanism: mechanism.to_string(),
                releases,
            }),
            chain: self.info.continues.as_ref().map(|continues| {
                continues.status(self.info.privacy, self.controller.estimate(), self.controller.counts())
            }),
            outliers: outliers.clone(),
            tolerates_absence: self.info.tolerates_absence,
            accepts_devices: self.info.accepts_devices,
            design_corruption: self.info.assumptions.corruption,
            snapshot_age_seconds: self.snapshot_age(now),
            exploration: exploration.clone(),
            history: history.iter().copied().collect(),
        }
    }
}
