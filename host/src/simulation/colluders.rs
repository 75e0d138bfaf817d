//! The attackers of a simulation against a real controller.

use fedbandit_core::Model;

use super::attack::Attack;
use super::attackers::Attackers;
use super::config::SimulationConfig;
use super::environment::World;
use super::fleet::{EpisodeSteps, Fleet, Models, fleet};
use super::forged_summary::ForgedSummary;
use super::guard::GuardName;
use super::replay::Logs;
use crate::algorithm::ControllerConfig;
use crate::config::ConfigError;

/// Corrupted agents of a real run.
///
/// They do not know the messages of the honest agents. Instead they simulate all agents, with the real θ* and the models of
/// the real controller, and send what the attackers of this simulation send.
pub struct Colluders {
    controller_config: ControllerConfig,
    fleet: Box<dyn Fleet>,
    attackers: Attackers,
    honest: usize,
}

impl Colluders {
    /// Creates the agents of a configuration after the first `honest` ones, in the world of a seed.
    ///
    /// # Errors
    /// The configuration is invalid, replays a log, or has an attack that frames cannot carry.
    pub fn new(config: &SimulationConfig, honest: usize, seed: u64) -> Result<Self, ConfigError> {
        config.validate()?;
        if !config.attack.is_by_agents() {
            return Err(ConfigError::new("attack", "hostile-controller is not an attack of devices"));
        }
        if config.attack == Attack::Asymmetric {
            let reason = "asymmetric is not possible in frames, which carry one triangle of U";
            return Err(ConfigError::new("attack", reason));
        }
        let world = World::new(config, &Logs::new(), seed)?;
        let controller_config = config.resolve().controller_config()?;
        let corrupted: Vec<bool> = (0..config.run.agents).map(|agent| agent >= honest).collect();
        let attackers = Attackers::new(config, seed, controller_config, &world.theta(0), &corrupted)?;
        let numbers: Vec<usize> = (1..=config.run.agents).collect();
        let fleet = fleet(world, &numbers, config.fleet_config(seed, controller_config.rewards(), GuardName::Off));
        Ok(Self { controller_config, fleet, attackers, honest })
    }

    /// Returns the messages of each colluder in a model's episode, with the episode that each message claims.
    pub fn messages(&mut self, model: Model<'_>) -> Vec<Vec<(u32, ForgedSummary)>> {
        let Model { episode, episode_len, .. } = model;
        let conduct = self.attackers.draw_conduct(episode);
        let start = u32::try_from(self.controller_config.episodes.steps_before(episode)).unwrap_or(u32::MAX);
        let steps = EpisodeSteps { episode, episode_len, start, count: episode_len, late: u32::MAX };
        self.fleet.run_episode(Models::Broadcast(model), &conduct, steps);
        self.attackers.prepare(&mut *self.fleet, episode, &conduct);
        let messages = |row: usize| self.attackers.messages(&*self.fleet, episode, row, conduct[row]);
        (self.honest..conduct.len()).map(messages).collect()
    }
}

#[cfg(test)]
mod tests {
    use fedbandit_core::{Rewards, Values};

    use super::*;
    use crate::config::RunConfig;

    const D: usize = 2;
    const HONEST: usize = 3;

    fn colluders(attack: Attack) -> Result<Colluders, ConfigError> {
        let run = RunConfig { agents: 5, dim: D, steps: 64, ..RunConfig::default() };
        let run = RunConfig { episode_len: Some(8), first_episode: Some(8), ..run };
        Colluders::new(&SimulationConfig { run, attack, ..SimulationConfig::default() }, HONEST, 1)
    }

    /// Returns the messages of eight episodes, by episode and colluder.
    fn sent(attack: Attack) -> Vec<Vec<Vec<(u32, ForgedSummary)>>> {
        let mut colluders = colluders(attack).unwrap();
        let (theta, design) = ([0.5, 0.1], [2.0, 0.1, 3.0]);
        let (theta, design) = (Values::Native(&theta), Values::Native(&design));
        let model = |episode| Model { episode, episode_len: 8, beta: 1.0, rewards: Rewards::Unbounded, theta, design };
        (1..=8).map(|episode| colluders.messages(model(episode))).collect()
    }

    #[test]
    fn colluders_send_the_messages_of_their_attack() {
        let honest = sent(Attack::None);
        for attack in
            Attack::ALL.iter().copied().filter(|attack| attack.is_by_agents() && *attack != Attack::Asymmetric)
        {
            let sent = sent(attack);
            let honest_messages =
                |index: usize| (0..2).filter(|agent| sent[index][*agent] == honest[index][*agent]).count();
            for (index, episode) in (0..8).zip(1..) {
                let expected = match attack {
                    Attack::None => 2,
                    Attack::Sleeper | Attack::OptimalSleeper if episode <= 4 => 2,
                    // The first message is the agent's own.
                    Attack::Replay if episode == 1 => 2,
                    Attack::Intermittent => honest_messages(index),
                    _ => 0,
                };
                assert_eq!(honest_messages(index), expected, "{attack} in episode {episode}");
                for (own, sent) in honest[index].iter().zip(&sent[index]) {
                    let flipped: Vec<_> = own.iter().map(|(k, message)| (*k, message.clone().flipped())).collect();
                    assert_eq!(*sent == flipped, attack == Attack::SignFlip, "{attack} in episode {episode}");
                    assert_eq!(sent.is_empty(), attack == Attack::Silent);
                }
            }
            for (agent, first) in honest[0].iter().enumerate().filter(|_| attack == Attack::Replay) {
                let first = &first[0].1;
                let replayed = |index: usize| [(1, first.clone()), (index as u32 + 1, first.clone())];
                assert!((1..8).all(|index| sent[index][agent] == replayed(index)));
            }
            let unattacked: usize = (0..8).map(honest_messages).sum();
            assert!(attack != Attack::Intermittent || (1..16).contains(&unattacked), "{unattacked} of 16");
        }
        assert!(colluders(Attack::Asymmetric).is_err());
    }
}
