//! An environment of your own: how much water a field needs. `cargo run --release -p fedbandit --example environment`

use fedbandit::aggregate::{GeometricMedian, Tolerance};
use fedbandit::algorithm::Calibrated;
use fedbandit::algorithm::Controller;
use fedbandit::algorithm::Level;
use fedbandit::algorithm::PaperRule;
use fedbandit::algorithm::{AgentId, NoPrivacy};
use fedbandit::algorithm::{ControllerConfig, Episodes};
use fedbandit_core::{Action, Agent, Prior, Rewards};
use rand_pcg::{Pcg64, rand_core::Rng, rand_core::SeedableRng};

/// θ*, unknown to all: water is worth the more the drier the soil is; too much of it drowns, and it costs.
const THETA: [f32; 3] = [1.2, -0.6, -0.1];

/// What can be done today: five amounts of water, each with features of norm 1 at the most.
fn decision_set(dryness: f32) -> [Action<3>; 5] {
    [0.0, 0.25, 0.5, 0.75, 1.0].map(|water| Action::from([water * dryness, water * water, water]) * 0.577)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let episodes = Episodes::new(16_384, 4, 64)?;
    let setting = ControllerConfig { dimension: 3, episodes, level: Level::Strict, reward_bound: None, window: 0 };
    let median = GeometricMedian::new(Tolerance::Relative(1e-6));
    let rule = PaperRule::new(median.clone(), median, Calibrated { corruption: 0.3, theta_bound: 1.5, noise: None });
    let mut controller = Controller::new(setting, (0..20).map(AgentId), rule, NoPrivacy::new)?;
    let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 4, rewards: Rewards::Unbounded };
    let mut agents = vec![Agent::<3>::new(&prior)?; 20];
    let mut rng = Pcg64::seed_from_u64(1);
    let mut uniform = || (rng.next_u32() >> 8) as f32 / 16_777_216.0;
    let worth = |action: &Action<3>| action.dot(&Action::from(THETA));
    let mut regrets = Vec::new();
    while let Some(model) = controller.model() {
        let (episode, days, mut regret) = (model.episode, model.episode_len, 0.0);
        for agent in &mut agents {
            agent.begin(&model)?;
            for _ in 0..days {
                let actions = decision_set(uniform());
                let chosen = &actions[agent.select(&actions)?.index];
                regret += actions.iter().map(worth).fold(f32::MIN, f32::max) - worth(chosen);
                agent.record(chosen, worth(chosen) + uniform() - 0.5)?;
            }
        }
        for (id, agent) in (0..).zip(&mut agents) {
            let summary = agent.finish();
            controller.receive(AgentId(id), episode, summary.gram(), *summary.feature_sum())?;
        }
        controller.close_episode()?;
        regrets.push(regret / (20 * days) as f32);
    }
    println!("regret per day: {:.4} at first, {:.4} at last", regrets[0], regrets[regrets.len() - 1]);
    assert!(regrets[regrets.len() - 1] < regrets[0] / 10.0, "it learns");
    Ok(())
}

#[test]
fn example() -> Result<(), Box<dyn std::error::Error>> {
    main()
}
