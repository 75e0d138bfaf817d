//! Corrupted agents of a run: when they attack, and what they send.

use fedbandit_core::Model;
use nalgebra::DMatrix;
use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;

use super::attack::Attack;
use super::claim::{Claim, ClaimSearch};
use super::config::SimulationConfig;
use super::fleet::{Conduct, Fleet};
use super::forged_summary::ForgedSummary;
use super::knowledge::Knowledge;
use super::optimal::{Placement, PlacementSearch};
use crate::algorithm::{AgentId, Controller, ControllerConfig, Privatise, Rule, Streams};
use crate::config::{AggregatorName, ConfigError};
use crate::math::rng::{Purpose, generator};

/// The attackers of a run and their view of all agents.
pub(super) struct Attackers {
    attack: Attack,
    controller_config: ControllerConfig,
    theta: Vec<f64>,
    corrupted: Vec<bool>,
    honest: Vec<usize>,
    rng: Pcg64,
    /// Mean of all honest agents' Gram matrices so far, with the weights that the controller gives them.
    explored: DMatrix<f64>,
    /// Message of all attackers in this episode.
    common: Option<ForgedSummary>,
    /// Message of each attacker, in place of the common one.
    individual: Vec<Option<ForgedSummary>>,
    /// First message of each attacker.
    first: Vec<Option<ForgedSummary>>,
    /// Present for attacks that try messages on the rule.
    shadow: Option<ShadowController>,
}

/// The controller as the attackers know it: all sums, without noise, and the rule.
struct ShadowController {
    sums: Streams,
    rule: Box<dyn Rule + Send>,
    /// Sums of the agents' own steps.
    own: Streams,
    /// R.
    noise: f64,
    /// Best placement of the last episode.
    last: Option<Placement>,
    /// Best claims of the last episode.
    last_claim: Option<Claim>,
}

impl Attackers {
    pub(super) fn new(
        config: &SimulationConfig,
        seed: u64,
        controller_config: ControllerConfig,
        theta: &[f64],
        corrupted: &[bool],
    ) -> Result<Self, ConfigError> {
        let attack = config.attack;
        let any = corrupted.contains(&true) && config.run.aggregator != AggregatorName::Solo;
        let shadow = if any && attack.is_search() {
            let sums = Streams::zeros(corrupted.len(), config.run.dim);
            let sums = sums.map_err(|error| ConfigError::new("dim", error))?;
            let (own, noise) = (sums.clone(), config.run.rewards.noise());
            Some(ShadowController {
                sums,
                rule: config.resolve().rule(seed)?,
                own,
                noise,
                last: None,
                last_claim: None,
            })
        } else {
            None
        };
        Ok(Self {
            attack,
            controller_config,
            theta: theta.to_vec(),
            honest: (0..corrupted.len()).filter(|row| !corrupted[*row]).collect(),
            corrupted: corrupted.to_vec(),
            rng: generator(seed, Purpose::Attacker, 0),
            explored: DMatrix::zeros(theta.len(), theta.len()),
            common: None,
            individual: vec![None; corrupted.len()],
            first: vec![None; corrupted.len()],
            shadow,
        })
    }

    /// Replaces the rule on which messages are tried.
    pub(super) fn with_rule(mut self, rule: Box<dyn Rule + Send>) -> Self {
        if let Some(shadow) = &mut self.shadow {
            shadow.rule = rule;
        }
        self
    }

    /// Draws the conduct of each agent in an episode.
    pub(super) fn draw_conduct(&mut self, episode: u32) -> Vec<Conduct> {
        let half = self.controller_config.episodes.count() / 2;
        let Self { attack, rng, .. } = self;
        let mut conduct = |corrupted: &bool| match attack {
            _ if !corrupted => Conduct::Honest,
            Attack::None => Conduct::Honest,
            Attack::FakeParameter => Conduct::FakeRewards,
            Attack::Sleeper | Attack::OptimalSleeper if episode <= half => Conduct::Honest,
            Attack::Intermittent if rng.next_u32() >> 31 == 1 => Conduct::Honest,
            _ => Conduct::Attacked,
        };
        self.corrupted.iter().map(&mut conduct).collect()
    }

    /// Chooses the messages of the episode, once all honest messages are known.
    pub(super) fn prepare(&mut self, fleet: &mut dyn Fleet, episode: u32, conduct: &[Conduct]) {
        if self.honest.len() == self.corrupted.len() {
            return;
        }
        self.keep_up(fleet, episode);
        let ControllerConfig { episodes, reward_bound, .. } = self.controller_config;
        let agents = (self.corrupted.len(), self.corrupted.len() - self.honest.len());
        let is_present = |row: &usize| conduct[*row] != Conduct::Absent;
        let present: Vec<usize> = self.honest.iter().copied().filter(is_present).collect();
        let limits = (episodes.length(episode), reward_bound);
        let knowledge = Knowledge::new(limits, &self.theta, agents, &present, fleet.summaries(), &self.explored);
        self.explored += knowledge.mean_gram() * (present.len() as f64 / self.honest.len() as f64);
        let Self { shadow, controller_config, rng, .. } = self;
        if let Some(shadow) = shadow {
            for row in (0..conduct.len()).filter(|row| conduct[*row] != Conduct::Attacked) {
                let ForgedSummary { gram, feature_sum } = ForgedSummary::own(fleet.summaries(), row);
                shadow.sums.add(row, &gram, &feature_sum);
            }
            let next = u32::try_from(episodes.steps_before(episode + 1)).unwrap_or(u32::MAX);
            fleet.draw_trial_steps(next, &self.honest, rng);
        }
        self.individual.fill(None);
        self.common = None;
        if !conduct.contains(&Conduct::Attacked) {
            return;
        }
        let trial = Trial { controller_config, episode, conduct };
        if let Some(shadow) = shadow.as_mut().filter(|_| self.attack == Attack::Claim || self.attack.is_optimal()) {
            let now: Vec<_> = (0..conduct.len()).map(|row| ForgedSummary::own(fleet.summaries(), row)).collect();
            now.iter().enumerate().for_each(|(row, now)| shadow.own.add(row, &now.gram, &now.feature_sum));
            self.individual = if self.attack == Attack::Claim {
                shadow.search_claim(fleet, &trial, &knowledge, &self.honest, rng)
            } else {
                shadow.search_optimal(fleet, &trial, &knowledge, (&now, &self.explored), rng)
            };
            return;
        }
        let mut score = |message: &ForgedSummary| {
            let Some(ShadowController { sums, rule, .. }) = shadow else { return 0.0 };
            let is_admitted = is_admitted(controller_config, episode, message);
            let sent = trial.attacked().filter(|_| is_admitted).map(|row| (row, message));
            trial.score(sums, &mut **rule, sent, |model| fleet.trial_regret(model))
        };
        self.common = knowledge.common(self.attack, &mut score);
    }

    /// Follows θ* to the next model's first step, and forgets as the controller does before an episode's messages.
    fn keep_up(&mut self, fleet: &dyn Fleet, episode: u32) {
        let ControllerConfig { episodes, .. } = self.controller_config;
        self.theta = fleet.theta(u32::try_from(episodes.steps_before(episode + 1)).unwrap_or(u32::MAX));
        let Some(retention) = self.controller_config.forgetting().retention(episode) else { return };
        self.explored *= retention;
        if let Some(ShadowController { sums, own, .. }) = &mut self.shadow {
            sums.scale(retention);
            own.scale(retention);
        }
    }

    /// Sends an agent's messages to the controller. Returns 1 if there are any, else 0.
    pub(super) fn send<P: Privatise>(
        &mut self,
        fleet: &dyn Fleet,
        controller: &mut Controller<P, Box<dyn Rule + Send>>,
        episode: u32,
        row: usize,
        conduct: Conduct,
    ) -> u64 {
        let agent = AgentId(row as u32);
        if conduct == Conduct::Absent {
            return 0;
        }
        // The controller counts the faults.
        if conduct != Conduct::Attacked {
            let (gram, feature_sum) = fleet.summaries().row(row);
            let _ = controller.receive(agent, episode, gram.iter().copied(), feature_sum.iter().copied());
            return 1;
        }
        if self.attack == Attack::Asymmetric {
            let own = ForgedSummary::own(fleet.summaries(), row);
            let ForgedSummary { gram, feature_sum } =
                own.asymmetric(self.controller_config.episodes.length(episode).into());
            let _ = controller.receive_matrix(agent, episode, &gram, &feature_sum);
            return 1;
        }
        let messages = self.messages(fleet, episode, row, conduct);
        let sent = !messages.is_empty();
        for (episode, ForgedSummary { gram, feature_sum }) in messages {
            let _ = controller.receive(agent, episode, gram, feature_sum);
        }
        sent.into()
    }

    /// Returns an agent's messages with their episodes, for all attacks but `asymmetric`.
    pub(super) fn messages(
        &mut self,
        fleet: &dyn Fleet,
        episode: u32,
        row: usize,
        conduct: Conduct,
    ) -> Vec<(u32, ForgedSummary)> {
        let own = || ForgedSummary::own(fleet.summaries(), row);
        if conduct != Conduct::Attacked {
            return vec![(episode, own())];
        }
        let mut messages = Vec::new();
        let message = match (self.attack, self.individual[row].as_ref().or(self.common.as_ref())) {
            (_, Some(chosen)) => chosen.clone(),
            (Attack::Silent, _) => return messages,
            (Attack::Replay, _) => {
                let first = self.first[row].get_or_insert_with(own).clone();
                if episode > 1 {
                    messages.push((1, first.clone()));
                }
                first
            }
            _ => own().flipped(),
        };
        if let Some(shadow) = self.shadow.as_mut().filter(|_| is_admitted(&self.controller_config, episode, &message)) {
            shadow.sums.add(row, &message.gram, &message.feature_sum);
        }
        messages.push((episode, message));
        messages
    }
}

/// Weight of the score gap against regret in the score of `optimal`.
const SCORE_GAP_WEIGHT: f64 = 0.05;

/// The same for `claim`, whose messages stay in V_i and must pay off later as well.
const CLAIM_SCORE_GAP_WEIGHT: f64 = 1.0;

fn is_admitted(config: &ControllerConfig, episode: u32, message: &ForgedSummary) -> bool {
    let admission = config.admission(episode, false);
    admission.is_ok_and(|admission| admission.check(&message.gram, &message.feature_sum).is_ok())
}

/// Trial of messages on the rule at the end of an episode.
struct Trial<'a> {
    controller_config: &'a ControllerConfig,
    episode: u32,
    conduct: &'a [Conduct],
}

impl Trial<'_> {
    /// Returns the rows of the attacked agents.
    fn attacked(&self) -> impl Iterator<Item = usize> {
        (0..self.conduct.len()).filter(|row| self.conduct[*row] == Conduct::Attacked)
    }

    /// Returns a message for each attacked agent, by row.
    fn for_attacked(&self, message: impl Fn(usize) -> ForgedSummary) -> Vec<Option<ForgedSummary>> {
        let mut messages = vec![None; self.conduct.len()];
        self.attacked().for_each(|row| messages[row] = Some(message(row)));
        messages
    }

    /// Returns the score of the next model if these messages are added to the sums; 0 if the rule gives no model.
    fn score<'m>(
        &self,
        sums: &Streams,
        rule: &mut dyn Rule,
        sent: impl Iterator<Item = (usize, &'m ForgedSummary)>,
        score: impl FnOnce(Model<'_>) -> f64,
    ) -> f64 {
        let (mut sums, next) = (sums.clone(), self.episode + 1);
        sent.for_each(|(row, message)| sums.add(row, &message.gram, &message.feature_sum));
        let estimate = rule.estimate(&sums, next).ok();
        let Some(parameters) = estimate.and_then(|estimate| estimate.parameters) else { return 0.0 };
        let ControllerConfig { episodes, .. } = self.controller_config;
        score(parameters.model(next, episodes.length(next), self.controller_config.rewards()))
    }

    /// Returns the regret after these messages, plus the score gap with a weight.
    fn score_of_all(
        &self,
        (sums, rule): (&Streams, &mut dyn Rule),
        fleet: &dyn Fleet,
        messages: &[Option<ForgedSummary>],
        gap_weight: f64,
    ) -> f64 {
        let sent = messages.iter().enumerate().filter_map(|(row, message)| Some((row, message.as_ref()?)));
        let sent = sent.filter(|(_, message)| is_admitted(self.controller_config, self.episode, message));
        let score = |model: Model<'_>| fleet.trial_regret(model) + gap_weight * fleet.trial_score_gap(model);
        self.score(sums, rule, sent, score)
    }
}

impl ShadowController {
    /// Returns each colluder's message of `claim`; none if C cannot be inverted.
    fn search_claim(
        &mut self,
        fleet: &dyn Fleet,
        trial: &Trial<'_>,
        knowledge: &Knowledge,
        honest: &[usize],
        rng: &mut Pcg64,
    ) -> Vec<Option<ForgedSummary>> {
        let Self { sums, rule, own, noise, last_claim, .. } = self;
        let (sums, own) = (&*sums, &*own);
        let Some(search) = ClaimSearch::new(knowledge, *noise, (own, sums), honest) else {
            return vec![None; trial.conduct.len()];
        };
        let messages = |claim: &Claim| trial.for_attacked(|row| search.message(claim, row));
        let found = search.run(last_claim.as_ref(), &fleet.action_differences(), rng, &mut |claim| {
            trial.score_of_all((sums, &mut **rule), fleet, &messages(claim), CLAIM_SCORE_GAP_WEIGHT)
        });
        let chosen = messages(&found);
        *last_claim = Some(found);
        chosen
    }

    /// Returns each colluder's message of `optimal`.
    fn search_optimal(
        &mut self,
        fleet: &dyn Fleet,
        trial: &Trial<'_>,
        knowledge: &Knowledge,
        (now, explored): (&[ForgedSummary], &DMatrix<f64>),
        rng: &mut Pcg64,
    ) -> Vec<Option<ForgedSummary>> {
        let Self { sums, rule, own, noise, last, .. } = self;
        let (sums, own) = (&*sums, &*own);
        let mut score = |messages: &[Option<ForgedSummary>]| {
            trial.score_of_all((sums, &mut **rule), fleet, messages, SCORE_GAP_WEIGHT)
        };
        let mut best = (f64::NEG_INFINITY, None);
        let common = knowledge.common(Attack::Adaptive, &mut |message| {
            let score = score(&trial.for_attacked(|_| message.clone()));
            if score > best.0 {
                best = (score, Some(message.clone()));
            }
            score
        });
        let Some(search) = PlacementSearch::new(knowledge, *noise, (own, sums), now, explored) else {
            return trial.for_attacked(|_| common.clone().unwrap_or_else(|| now[0].clone()));
        };
        let (found, placement) = search.run(last.as_ref(), fleet.action_differences(), rng, &mut |placement| {
            score(&trial.for_attacked(|row| search.message(placement, row)))
        });
        let messages = match best {
            (common, Some(message)) if common >= found => trial.for_attacked(|_| message.clone()),
            _ => trial.for_attacked(|row| search.message(&placement, row)),
        };
        *last = Some(placement);
        messages
    }
}
