//! Runs that follow each other: what a run takes over from the earlier ones, and what it reports about them.

use serde::{Deserialize, Serialize};

use super::event::{Event, ModelEvent};
use super::start::{StartError, for_each_event};
use super::store::Store;
use super::terms::RunTerms;
use crate::algorithm::{Counts, Estimate, PriorModel, PriorUse};
use crate::config::Privacy;
use crate::privacy::calibration::{Budget, Mechanism, least_mu};

/// Connection of a run to the one that it continues. It consists of terms and of one release, so that the earlier runs spend
/// no further privacy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Continuation {
    /// Earlier runs, the oldest first.
    pub chain: Vec<EarlierRun>,
    /// Last released model of the last of them.
    pub prior: PriorModel,
}

/// Earlier run of a chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlierRun {
    /// Number of the run.
    pub run: u32,
    /// N.
    pub agents: usize,
    /// Episode of its last model.
    pub episode: u32,
    /// K.
    pub episodes: u32,
    /// Budget of a private run.
    pub privacy: Option<Privacy>,
    /// Mechanism of a private run.
    pub mechanism: Option<Mechanism>,
}

/// State of a chain of runs as reported to the operator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chain {
    /// Earlier runs, the oldest first.
    pub runs: Vec<EarlierRun>,
    /// ρ of [`PriorModel`].
    pub discount: f64,
    /// Weight of the prior model in the last model: 1 if it is the prior model, 0 if it is the run's own.
    pub weight: f64,
    /// Number of models that ignored the prior model, because it contradicted the run's own.
    pub contradicted: u64,
    /// Guarantee over all private runs of the chain; none if no run is private.
    pub privacy: Option<ChainPrivacy>,
}

/// Guarantee for one message in each private run of a chain, of one device, all together.
///
/// Each single message keeps the guarantee of its own run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ChainPrivacy {
    /// Number of private runs, including this one if it is private.
    pub runs: usize,
    /// Sum of their ρ.
    pub rho: f64,
    /// Least μ that ρ implies with ν.
    pub mu: f64,
    /// Largest ν of these runs.
    pub nu: f64,
}

impl Continuation {
    /// Reads what the next run takes over from a store: the last model, and the chain with this run at its end.
    ///
    /// `agents` is the number of its devices, which may have grown. Messages are decoded to find the model, but nothing of them is
    /// used.
    ///
    /// # Errors
    /// The store cannot be read, has no model yet, or has one that cannot be a prior.
    pub fn of(store: &dyn Store, agents: usize, discount: f64) -> Result<Self, StartError> {
        let terms = RunTerms::load(store)?;
        let mut last = None;
        for_each_event::<StartError>(store, &terms, 0, |_, event| {
            if let Event::Model(model) = event {
                last = Some(model);
            }
            Ok(())
        })?;
        let ModelEvent { episode, theta, design, beta, .. } = last.ok_or(StartError::NotBegun)?;
        let prior = PriorModel::new(theta, design, beta, discount)?;
        let info = terms.info()?;
        let (episodes, privacy) = (info.episodes, terms.config.privacy);
        let mechanism = privacy.map(|_| terms.config.mechanism);
        let run = EarlierRun { run: terms.run, agents, episode, episodes, privacy, mechanism };
        let mut chain = terms.continues.map_or_else(Vec::new, |continues| continues.chain);
        chain.push(run);
        Ok(Self { chain, prior })
    }

    /// Returns the state of the chain at an estimate of the present run.
    pub(super) fn status(&self, present: Option<(Budget, Mechanism)>, estimate: &Estimate, counts: &Counts) -> Chain {
        let weight = match estimate.prior {
            Some(PriorUse::Fused(weight)) => weight,
            Some(PriorUse::Contradicted) | None => 0.0,
        };
        let budgets = self.chain.iter().filter_map(|run| run.privacy).map(|privacy| privacy.0);
        let privacy = ChainPrivacy::new(budgets.chain(present.map(|(budget, _)| budget)));
        let (runs, discount, contradicted) = (self.chain.clone(), self.prior.discount(), counts.contradicted);
        Chain { runs, discount, weight, contradicted, privacy }
    }
}

impl ChainPrivacy {
    /// Composes the guarantees of runs whose noise is independent: their ρ add up (docs/privacy.md).
    fn new(budgets: impl Iterator<Item = Budget>) -> Option<Self> {
        let (runs, rho, nu) = budgets
            .fold((0, 0.0, 0.0_f64), |(runs, rho, nu), budget| (runs + 1, rho + budget.rho(), nu.max(budget.nu())));
        (runs > 0).then(|| Self { runs, rho, mu: least_mu(rho, nu), nu })
    }
}
