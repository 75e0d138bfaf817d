//! Controller of a service, with or without privacy.

use fedbandit_core::Model;

use super::event::SummaryEvent;
use super::snapshot::SavedAnyController;
use super::status::Outlier;
use crate::aggregate::AggregateError;
use crate::algorithm::{
    AgentId, ClosedEpisode, Controller, Counts, Deviation, EnrollError, Estimate, Fault, NoPrivacy, Rule, Streams,
};
use crate::privacy::{Private, RunKey};
use crate::robust::{Assumptions, Exploration};

/// Controller with or without privacy.
#[expect(clippy::large_enum_variant, reason = "a service has a single one")]
pub enum AnyController {
    /// Streams are released as they are.
    Plain(Controller<NoPrivacy, Box<dyn Rule + Send>>),
    /// Streams are released with noise.
    Private(Controller<Private<RunKey>, Box<dyn Rule + Send>>),
}

/// Evaluates an expression on either controller.
macro_rules! either {
    ($any:expr, $controller:ident => $call:expr) => {
        match $any {
            AnyController::Plain($controller) => $call,
            AnyController::Private($controller) => $call,
        }
    };
}

impl AnyController {
    pub(super) fn model(&self) -> Option<Model<'_>> {
        either!(self, controller => controller.model())
    }

    pub(super) fn expects(&self, agent: AgentId, episode: u32) -> Result<(), Fault> {
        either!(self, controller => controller.expects(agent, episode))
    }

    /// Passes a summary to the controller, which counts its fault if it has one.
    pub(super) fn receive(&mut self, summary: &SummaryEvent) -> Result<(), Fault> {
        let SummaryEvent { agent, episode, gram, feature_sum, .. } = summary;
        let (gram, feature_sum) = (gram.iter().copied(), feature_sum.iter().copied());
        either!(self, controller => controller.receive(*agent, *episode, gram, feature_sum))
    }

    /// Judges a repeated summary by its content.
    pub(super) fn judge(
        &self,
        agent: AgentId,
        episode: u32,
        gram: impl Iterator<Item = f32>,
        feature_sum: impl Iterator<Item = f32>,
    ) -> Result<(), Fault> {
        either!(self, controller => controller.judge(agent, episode, gram, feature_sum))
    }

    pub(super) fn close_episode(&mut self) -> Result<Option<ClosedEpisode>, AggregateError> {
        either!(self, controller => controller.close_episode())
    }

    pub(super) fn enroll(&mut self, agent: AgentId) -> Result<(), EnrollError> {
        either!(self, controller => controller.enroll(agent))
    }

    pub(super) fn enrolled(&self) -> &[AgentId] {
        either!(self, controller => controller.enrolled())
    }

    pub(super) fn save(&self) -> SavedAnyController {
        match self {
            Self::Plain(controller) => SavedAnyController::Plain(controller.save()),
            Self::Private(controller) => SavedAnyController::Private(controller.save()),
        }
    }

    /// Restores a saved state in a controller that has handled nothing yet; none if it does not fit.
    pub(super) fn restore(self, saved: SavedAnyController) -> Option<Self> {
        match (self, saved) {
            (Self::Plain(controller), SavedAnyController::Plain(saved)) => controller.restore(saved).map(Self::Plain),
            (Self::Private(controller), SavedAnyController::Private(saved)) => {
                controller.restore(saved).map(Self::Private)
            }
            _ => None,
        }
    }

    pub(super) fn missing(&self) -> usize {
        either!(self, controller => controller.missing())
    }

    /// Returns the released streams V̂_i and v̂_i; without privacy these are the sums.
    pub fn streams(&self) -> &Streams {
        either!(self, controller => controller.streams())
    }

    /// Returns the counters of the run. They are exact, so those of a private run are for the operator only.
    pub fn counts(&self) -> &Counts {
        either!(self, controller => controller.counts())
    }

    /// Returns the last estimate of the rule.
    pub fn estimate(&self) -> &Estimate {
        either!(self, controller => controller.estimate())
    }

    pub(super) fn is_private(&self) -> bool {
        matches!(self, Self::Private(_))
    }

    /// Counts the devices that have explored each direction; `None` if streams are private.
    pub(super) fn exploration(&self, assumptions: &Assumptions) -> Option<Exploration> {
        Exploration::new(self.streams(), self.enrolled().len(), assumptions)
    }

    /// Returns the devices farthest from the centre, the farthest first; none if streams are private.
    pub(super) fn outliers(&self, count: usize) -> Vec<Outlier> {
        let mut outliers = self.distances();
        outliers.sort_by(|a, b| b.distance.total_cmp(&a.distance));
        outliers.truncate(count);
        outliers
    }

    /// Returns the distance of each device from the centre; none if streams are private.
    pub(super) fn distances(&self) -> Vec<Outlier> {
        let Self::Plain(controller) = self else { return Vec::new() };
        controller
            .deviations()
            .map(|deviation| Outlier { agent: deviation.unit.0, distance: larger(&deviation) })
            .collect()
    }

    /// Returns the distance of a device from the centre; none if it is not enrolled or streams are private.
    pub(super) fn distance_of(&self, agent: AgentId) -> Option<f64> {
        let Self::Plain(controller) = self else { return None };
        controller.deviation_of(agent).map(|deviation| larger(&deviation))
    }
}

/// Returns the larger of the two distances. JSON has no infinity.
fn larger(deviation: &Deviation<AgentId>) -> f64 {
    deviation.gram.max(deviation.feature_sum).min(1e9)
}
