//! The controller of a service, with or without privacy.

use fedbandit_core::Model;

use super::event::SummaryEvent;
use super::status::Outlier;
use crate::aggregate::AggregateError;
use crate::algorithm::Fault;
use crate::algorithm::{AgentId, NoPrivacy, Streams};
use crate::algorithm::{ClosedEpisode, Controller, Counts, Deviation};
use crate::algorithm::{Estimate, Rule};
use crate::privacy::{Private, RunKey};

/// A controller with or without privacy.
#[expect(clippy::large_enum_variant, reason = "there is one of them")]
pub enum AnyController {
    /// Streams are no secret.
    Plain(Controller<NoPrivacy, Box<dyn Rule + Send>>),
    /// Streams are private.
    Private(Controller<Private<RunKey>, Box<dyn Rule + Send>>),
}

/// Calls the same method of either controller.
macro_rules! either {
    ($learner:expr, $controller:ident => $call:expr) => {
        match $learner {
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

    /// Whether the summary counts; what is wrong with it is in the controller's counts.
    pub(super) fn receive(&mut self, summary: &SummaryEvent) -> bool {
        let SummaryEvent { agent, episode, gram, feature_sum, .. } = summary;
        let (gram, feature_sum) = (gram.iter().copied(), feature_sum.iter().copied());
        either!(self, controller => controller.receive(*agent, *episode, gram, feature_sum)).is_ok()
    }

    pub(super) fn close_episode(&mut self) -> Result<Option<ClosedEpisode>, AggregateError> {
        either!(self, controller => controller.close_episode())
    }

    pub(super) fn missing(&self) -> usize {
        either!(self, controller => controller.missing())
    }

    /// V̂_i and v̂_i as they are released; without privacy the sums as they are.
    pub fn streams(&self) -> &Streams {
        either!(self, controller => controller.streams())
    }

    /// What happened so far; exact, and so for the operator alone where streams are private.
    pub fn counts(&self) -> &Counts {
        either!(self, controller => controller.counts())
    }

    /// What the rule said last.
    pub fn estimate(&self) -> &Estimate {
        either!(self, controller => controller.estimate())
    }

    pub(super) fn is_private(&self) -> bool {
        matches!(self, Self::Private(_))
    }

    /// The devices that are farthest from the centre, the farthest first; none where streams are private.
    pub(super) fn suspicious(&self, most: usize) -> Vec<Outlier> {
        let Self::Plain(controller) = self else { return Vec::new() };
        let suspect = |suspicion: Deviation<AgentId>| Outlier {
            agent: suspicion.unit.0,
            // What is infinitely many median radii away is shown as very many.
            distance: suspicion.gram.max(suspicion.feature_sum).min(1e9),
        };
        let mut suspects: Vec<Outlier> = controller.deviations().map(suspect).collect();
        suspects.sort_by(|a, b| b.distance.total_cmp(&a.distance));
        suspects.truncate(most);
        suspects
    }
}
