//! The attackers of a simulation against a real controller.

use fedbandit_core::Model;

use super::attack::{Attack, Message};
use super::attackers::Attackers;
use super::config::SimulationConfig;
use super::environment::World;
use super::fleet::{Fleet, Models, Stretch, fleet};
use super::replay::Logs;
use crate::algorithm::ControllerConfig;
use crate::config::ConfigError;

/// Corrupted agents of a real run. Of the honest ones they know no messages. All agents live in a simulation of
/// theirs, with the real θ* and the models that the real controller sends, and what the attackers of this simulation
/// send, they send.
pub struct Colluders {
    setting: ControllerConfig,
    fleet: Box<dyn Fleet>,
    attackers: Attackers,
    honest: usize,
}

/// What is sent: for which episode, U packed and then u.
pub type Lie = (u32, Vec<f32>);

impl Colluders {
    /// The agents of a configuration after the first `honest` ones, in the world of a seed.
    ///
    /// # Errors
    /// The configuration makes no sense, replays a log, or has an attack that the wire cannot carry.
    pub fn new(config: &SimulationConfig, honest: usize, seed: u64) -> Result<Self, ConfigError> {
        config.validate()?;
        if config.attack == Attack::Asymmetric {
            return Err(ConfigError::new("attack", "frames have one triangle of U: it cannot be asymmetric"));
        }
        let (world, setting) = (World::new(config, &Logs::new(), seed)?, config.resolve().controller_config()?);
        let corrupted: Vec<bool> = (0..config.run.agents).map(|agent| agent >= honest).collect();
        let attackers = Attackers::new(config, seed, setting, &world.theta, &corrupted)?;
        let numbers: Vec<usize> = (1..=config.run.agents).collect();
        Ok(Self { setting, fleet: fleet(world, &numbers, seed, setting.rewards()), attackers, honest })
    }

    /// What each of them sends in a model's episode.
    pub fn lies(&mut self, model: Model<'_>) -> Vec<Vec<Lie>> {
        let Model { episode, episode_len, .. } = model;
        let conduct = self.attackers.conduct(episode);
        let start = u32::try_from(self.setting.episodes.steps_before(episode)).unwrap_or(u32::MAX);
        let stretch = Stretch { episode, episode_len, start, steps: episode_len, late: u32::MAX };
        self.fleet.play(Models::Broadcast(model), &conduct, stretch);
        self.attackers.prepare(&mut *self.fleet, episode, &conduct);
        let on_the_wire = |(episode, Message { gram, feature_sum }): (u32, Message)| {
            (episode, gram.iter().chain(&feature_sum).map(|value| *value as f32).collect())
        };
        let lies = |row: usize| self.attackers.messages(&*self.fleet, episode, row, conduct[row]);
        (self.honest..conduct.len()).map(lies).map(|lies| lies.into_iter().map(on_the_wire).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use fedbandit_core::{Rewards, Values, packed_len};

    use super::*;
    use crate::config::RunConfig;

    const D: usize = 2;
    const HONEST: usize = 3;

    fn colluders(attack: Attack) -> Result<Colluders, ConfigError> {
        let run = RunConfig { agents: 5, dim: D, steps: 64, ..RunConfig::default() };
        let run = RunConfig { episode_len: Some(8), first_episode: Some(8), ..run };
        Colluders::new(&SimulationConfig { run, attack, ..SimulationConfig::default() }, HONEST, 1)
    }

    /// What is sent in eight episodes, by episode and colluder.
    fn sent(attack: Attack) -> Vec<Vec<Vec<Lie>>> {
        let mut colluders = colluders(attack).unwrap();
        let (theta, design) = ([0.5, 0.1], [2.0, 0.1, 3.0]);
        let (theta, design) = (Values::Native(&theta), Values::Native(&design));
        let model = |episode| Model { episode, episode_len: 8, beta: 1.0, rewards: Rewards::Unbounded, theta, design };
        (1..=8).map(|episode| colluders.lies(model(episode))).collect()
    }

    #[test]
    fn lies_are_what_the_attacks_say() {
        let honest = sent(Attack::None);
        for attack in Attack::ALL.iter().copied().filter(|attack| *attack != Attack::Asymmetric) {
            let sent = sent(attack);
            let is_honest = |index: usize| (0..2).filter(|agent| sent[index][*agent] == honest[index][*agent]).count();
            for (index, episode) in (0..8).zip(1..) {
                let expected = match attack {
                    Attack::None => 2,
                    Attack::Sleeper | Attack::OptimalSleeper if episode <= 4 => 2,
                    // The first message is the own one.
                    Attack::Replay if episode == 1 => 2,
                    Attack::Intermittent => is_honest(index),
                    _ => 0,
                };
                assert_eq!(is_honest(index), expected, "{attack} in {episode}");
                for (own, sent) in honest[index].iter().zip(&sent[index]) {
                    let mut flipped = own.clone();
                    flipped[0].1[packed_len(D)..].iter_mut().for_each(|value| *value = -*value);
                    assert_eq!(*sent == flipped, attack == Attack::SignFlip, "{attack} in {episode}");
                    assert_eq!(sent.is_empty(), attack == Attack::Silent);
                }
            }
            for (agent, first) in honest[0].iter().enumerate().filter(|_| attack == Attack::Replay) {
                let values = &first[0].1;
                assert!(
                    (1..8).all(|index| {
                        sent[index][agent] == [(1, values.clone()), (index as u32 + 1, values.clone())]
                    })
                );
            }
            let quiet: usize = (0..8).map(is_honest).sum();
            assert!(attack != Attack::Intermittent || (1..16).contains(&quiet), "{quiet} of 16");
        }
        assert!(colluders(Attack::Asymmetric).is_err());
    }
}
