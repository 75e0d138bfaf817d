//! The corrupted agents of a run: when they attack, and what they send.

use fedbandit_core::{Model, Rewards};
use nalgebra::DMatrix;
use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;

use super::attack::{Attack, Knowledge, Message};
use super::config::SimulationConfig;
use super::fleet::{Conduct, Fleet};
use super::optimal::{Board, Pull};
use crate::algorithm::Controller;
use crate::algorithm::ControllerConfig;
use crate::algorithm::Rule;
use crate::algorithm::{AgentId, Privatise, Streams};
use crate::config::{AggregatorName, ConfigError};
use crate::math::rng::{Purpose, generator};

/// All agents of a run, as the attackers see them.
pub(super) struct Attackers {
    attack: Attack,
    setting: ControllerConfig,
    theta: Vec<f64>,
    corrupted: Vec<bool>,
    honest: Vec<usize>,
    rng: Pcg64,
    /// The mean of the honest agents' Gram matrices so far.
    explored: DMatrix<f64>,
    /// What all of them send in this episode.
    common: Option<Message>,
    /// What each sends instead.
    each: Vec<Option<Message>>,
    /// What each sent first.
    first: Vec<Option<Message>>,
    /// For attacks that try messages out.
    shadow: Option<Shadow>,
}

/// The controller as an attacker knows it: all sums, without noise, and the rule.
struct Shadow {
    sums: Streams,
    rule: Box<dyn Rule + Send>,
    /// What their own steps would have given.
    own: Streams,
    /// R.
    noise: f64,
    /// What was best in the last episode.
    last: Option<Pull>,
}

impl Attackers {
    pub(super) fn new(
        config: &SimulationConfig,
        seed: u64,
        setting: ControllerConfig,
        theta: &[f64],
        corrupted: &[bool],
    ) -> Result<Self, ConfigError> {
        let attack = config.attack;
        let any = corrupted.contains(&true) && config.run.aggregator != AggregatorName::Solo;
        let shadow = if any && attack.tries() {
            let sums = Streams::zeros(corrupted.len(), config.run.dim);
            let sums = sums.map_err(|error| ConfigError::new("dim", error))?;
            let (own, noise) = (sums.clone(), config.run.rewards.noise());
            Some(Shadow { sums, rule: config.resolve().rule(seed)?, own, noise, last: None })
        } else {
            None
        };
        Ok(Self {
            attack,
            setting,
            theta: theta.to_vec(),
            honest: (0..corrupted.len()).filter(|row| !corrupted[*row]).collect(),
            corrupted: corrupted.to_vec(),
            rng: generator(seed, Purpose::Attacker, 0),
            explored: DMatrix::zeros(theta.len(), theta.len()),
            common: None,
            each: vec![None; corrupted.len()],
            first: vec![None; corrupted.len()],
            shadow,
        })
    }

    /// Those who try messages out try them on this rule, and not on the configured one.
    pub(super) fn on(mut self, rule: Box<dyn Rule + Send>) -> Self {
        if let Some(shadow) = &mut self.shadow {
            shadow.rule = rule;
        }
        self
    }

    /// What happens to each agent in an episode.
    pub(super) fn conduct(&mut self, episode: u32) -> Vec<Conduct> {
        let half = self.setting.episodes.count() / 2;
        let Self { attack, rng, .. } = self;
        let mut one = |corrupted: &bool| match attack {
            _ if !corrupted => Conduct::Honest,
            Attack::None => Conduct::Honest,
            Attack::FakeParameter => Conduct::Faked,
            Attack::Sleeper | Attack::OptimalSleeper if episode <= half => Conduct::Honest,
            Attack::Intermittent if rng.next_u32() >> 31 == 1 => Conduct::Honest,
            _ => Conduct::Attacked,
        };
        self.corrupted.iter().map(&mut one).collect()
    }

    /// Decides what to send, once all honest messages are known.
    pub(super) fn prepare(&mut self, fleet: &mut dyn Fleet, episode: u32, conduct: &[Conduct]) {
        if self.honest.len() == self.corrupted.len() {
            return;
        }
        let ControllerConfig { episodes, reward_bound, .. } = self.setting;
        let corrupted = self.corrupted.len() - self.honest.len();
        let limits = (episodes.length(episode), reward_bound);
        let knowledge = Knowledge::new(limits, &self.theta, &self.honest, corrupted, fleet.summaries(), &self.explored);
        self.explored += knowledge.mean_gram();
        let Self { shadow, setting, rng, .. } = self;
        if let Some(shadow) = shadow {
            for row in (0..conduct.len()).filter(|row| conduct[*row] != Conduct::Attacked) {
                let Message { gram, feature_sum } = Message::own(fleet.summaries(), row);
                shadow.sums.add(row, &gram, &feature_sum);
            }
            fleet.look_ahead(u32::try_from(episodes.steps_before(episode + 1)).unwrap_or(u32::MAX), rng);
        }
        self.each.fill(None);
        self.common = None;
        if !conduct.contains(&Conduct::Attacked) {
            return;
        }
        let round = Round { setting, episode, conduct };
        if let Some(shadow) = shadow.as_mut().filter(|_| self.attack.is_optimal()) {
            self.each = shadow.optimal(fleet, &round, &knowledge, &self.explored, rng);
            return;
        }
        let mut score = |message: &Message| {
            let Some(Shadow { sums, rule, .. }) = shadow else { return 0.0 };
            let taken = admits(setting, episode, message);
            let sent = round.attacked().filter(|_| taken).map(|row| (row, message));
            round.worth(sums, &mut **rule, sent, |model| fleet.judge(model))
        };
        self.common = knowledge.common(self.attack, &mut score);
    }

    /// Sends an agent's message, if it sends any, to the controller; how many it sent.
    pub(super) fn send<P: Privatise>(
        &mut self,
        fleet: &dyn Fleet,
        controller: &mut Controller<P, Box<dyn Rule + Send>>,
        episode: u32,
        row: usize,
        conduct: Conduct,
    ) -> u64 {
        let agent = AgentId(row as u32);
        // What is wrong with a message is in the controller's counts.
        if conduct != Conduct::Attacked {
            let (gram, feature_sum) = fleet.summaries().row(row);
            let _ = controller.receive(agent, episode, gram.iter().copied(), feature_sum.iter().copied());
            return 1;
        }
        if self.attack == Attack::Asymmetric {
            let own = Message::own(fleet.summaries(), row);
            let Message { gram, feature_sum } = own.asymmetric(self.setting.episodes.length(episode).into());
            let _ = controller.receive_matrix(agent, episode, &gram, &feature_sum);
            return 1;
        }
        let messages = self.messages(fleet, episode, row, conduct);
        let sent = !messages.is_empty();
        for (episode, Message { gram, feature_sum }) in messages {
            let _ = controller.receive(agent, episode, gram, feature_sum);
        }
        sent.into()
    }

    /// What an agent sends, and for which episodes. An asymmetric matrix is none of it.
    pub(super) fn messages(
        &mut self,
        fleet: &dyn Fleet,
        episode: u32,
        row: usize,
        conduct: Conduct,
    ) -> Vec<(u32, Message)> {
        let own = || Message::own(fleet.summaries(), row);
        if conduct != Conduct::Attacked {
            return vec![(episode, own())];
        }
        let mut messages = Vec::new();
        let message = match (self.attack, self.each[row].as_ref().or(self.common.as_ref())) {
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
        if let Some(shadow) = self.shadow.as_mut().filter(|_| admits(&self.setting, episode, &message)) {
            shadow.sums.add(row, &message.gram, &message.feature_sum);
        }
        messages.push((episode, message));
        messages
    }
}

/// What coming close to a wrong choice is worth to an attacker, against making it.
const TEMPTATION: f64 = 0.05;

fn admits(setting: &ControllerConfig, episode: u32, message: &Message) -> bool {
    let admission = setting.admission(episode, false);
    admission.is_ok_and(|admission| admission.check(&message.gram, &message.feature_sum).is_ok())
}

/// An episode, as those see it who try messages out.
struct Round<'a> {
    setting: &'a ControllerConfig,
    episode: u32,
    conduct: &'a [Conduct],
}

impl Round<'_> {
    fn attacked(&self) -> impl Iterator<Item = usize> {
        (0..self.conduct.len()).filter(|row| self.conduct[*row] == Conduct::Attacked)
    }

    /// A message for each attacked agent, by row.
    fn each(&self, message: impl Fn(usize) -> Message) -> Vec<Option<Message>> {
        let mut messages = vec![None; self.conduct.len()];
        self.attacked().for_each(|row| messages[row] = Some(message(row)));
        messages
    }

    /// What the next model is worth if these messages are added to the sums; 0 if there were none.
    fn worth<'m>(
        &self,
        sums: &Streams,
        rule: &mut dyn Rule,
        sent: impl Iterator<Item = (usize, &'m Message)>,
        judge: impl FnOnce(Model<'_>) -> f64,
    ) -> f64 {
        let (mut sums, next) = (sums.clone(), self.episode + 1);
        sent.for_each(|(row, message)| sums.add(row, &message.gram, &message.feature_sum));
        let estimate = rule.estimate(&sums, next).ok();
        let Some(parameters) = estimate.and_then(|estimate| estimate.parameters) else { return 0.0 };
        judge(parameters.model(next, self.setting.episodes.length(next), Rewards::Unbounded))
    }
}

impl Shadow {
    /// What each colluder sends after a search among all.
    fn optimal(
        &mut self,
        fleet: &mut dyn Fleet,
        round: &Round<'_>,
        knowledge: &Knowledge,
        explored: &DMatrix<f64>,
        rng: &mut Pcg64,
    ) -> Vec<Option<Message>> {
        let now: Vec<Message> = (0..round.conduct.len()).map(|row| Message::own(fleet.summaries(), row)).collect();
        let Self { sums, rule, own, noise, last } = self;
        now.iter().enumerate().for_each(|(row, now)| own.add(row, &now.gram, &now.feature_sum));
        let (sums, own, wishes) = (&*sums, &*own, fleet.wishes());
        let mut score = |messages: &[Option<Message>]| {
            let sent = messages.iter().enumerate().filter_map(|(row, message)| Some((row, message.as_ref()?)));
            let sent = sent.filter(|(_, message)| admits(round.setting, round.episode, message));
            let judge = |model: Model<'_>| fleet.judge(model) + TEMPTATION * fleet.temptation(model);
            round.worth(sums, &mut **rule, sent, judge)
        };
        let mut best = (f64::NEG_INFINITY, None);
        let common = knowledge.common(Attack::Adaptive, &mut |message| {
            let score = score(&round.each(|_| message.clone()));
            if score > best.0 {
                best = (score, Some(message.clone()));
            }
            score
        });
        let Some(board) = Board::new(knowledge, *noise, (own, sums), &now, explored) else {
            return round.each(|_| common.clone().unwrap_or_else(|| now[0].clone()));
        };
        let (found, pull) =
            board.search(last.as_ref(), wishes, rng, &mut |pull| score(&round.each(|row| board.message(pull, row))));
        let messages = match best {
            (common, Some(message)) if common >= found => round.each(|_| message.clone()),
            _ => round.each(|row| board.message(&pull, row)),
        };
        *last = Some(pull);
        messages
    }
}
