//! A custom environment: the irrigation of fields. `cargo run --release -p fedbandit --example environment`

use fedbandit::aggregate::{GeometricMedian, Tolerance};
use fedbandit::algorithm::{AgentId, Calibrated, Controller, ControllerConfig, Episodes, Level, NoPrivacy, PaperRule};
use fedbandit_core::{Action, Agent, Prior, Rewards};
use rand_pcg::{Pcg64, rand_core::Rng, rand_core::SeedableRng};

/// θ*, unknown to the devices: water is worth more on dry soil, too much of it does harm, and each unit has a price.
const THETA: [f32; 3] = [1.2, -0.6, -0.1];

/// Returns the actions of a day: five amounts of water, with features of norm at most 1.
fn decision_set(dryness: f32) -> [Action<3>; 5] {
    [0.0, 0.25, 0.5, 0.75, 1.0].map(|water| Action::from([water * dryness, water * water, water]) * 0.577)
}

fn output() -> Result<String, Box<dyn std::error::Error>> {
    let episodes = Episodes::new(16_384, 4, 64)?;
    let config = ControllerConfig::new(3, episodes, Level::Strict);
    let median = GeometricMedian::new(Tolerance::Relative(1e-6));
    let rule = PaperRule::new(median.clone(), median, Calibrated { corruption: 0.3, theta_bound: 1.5, noise: None });
    let mut controller = Controller::new(config, (0..20).map(AgentId), rule, NoPrivacy::new)?;
    let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 4, rewards: Rewards::Unbounded };
    let mut agents = vec![Agent::<3>::new(&prior)?; 20];
    let mut rng = Pcg64::seed_from_u64(1);
    let mut uniform = || (rng.next_u32() >> 8) as f32 / 16_777_216.0;
    let expected = |action: &Action<3>| action.dot(&Action::from(THETA));
    let mut regrets = Vec::new();
    while let Some(model) = controller.model() {
        let (episode, days, mut regret) = (model.episode, model.episode_len, 0.0);
        for agent in &mut agents {
            agent.begin(&model)?;
            for _ in 0..days {
                let actions = decision_set(uniform());
                let chosen = &actions[agent.select(&actions)?.index];
                regret += actions.iter().map(expected).fold(f32::MIN, f32::max) - expected(chosen);
                agent.record(chosen, expected(chosen) + uniform() - 0.5)?;
            }
        }
        for (id, agent) in (0..).zip(&mut agents) {
            let summary = agent.finish();
            controller.receive(AgentId(id), episode, summary.gram(), *summary.feature_sum())?;
        }
        controller.close_episode()?;
        regrets.push(regret / (20 * days) as f32);
    }
    let (first, last) = (regrets[0], regrets[regrets.len() - 1]);
    assert!(last < first / 10.0, "devices do not learn");
    Ok(format!("regret per day: {first:.4} in the first episode, {last:.4} in the last\n"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    output().map(|text| print!("{text}"))
}

#[test]
fn example_runs() {
    let block = format!("--example environment\n{}```\n", output().unwrap());
    assert!(include_str!("../../docs/guide/extend.md").contains(&block), "docs/guide/extend.md lacks\n{block}");
}
