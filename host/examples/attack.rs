//! A custom attack: six of twenty devices send (U, −4u). `cargo run --release -p fedbandit --example attack`

use fedbandit::aggregate::{Aggregator, GeometricMedian, Mean, Tolerance};
use fedbandit::algorithm::{AgentId, Calibrated, Controller, ControllerConfig, Episodes, Level, NoPrivacy, PaperRule};
use fedbandit_core::{Action, Agent, Prior, Rewards, project};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Returns the mean regret of the honest devices in the last episode.
fn regret(aggregator: impl Aggregator + Clone) -> Result<f32, Box<dyn std::error::Error>> {
    let episodes = Episodes::new(512, 4, 32)?;
    let config = ControllerConfig::new(2, episodes, Level::Strict);
    let schedule = Calibrated { corruption: 0.3, theta_bound: 1.0, noise: None };
    let rule = PaperRule::new(aggregator.clone(), aggregator, schedule);
    let mut controller = Controller::new(config, (0..20).map(AgentId), rule, NoPrivacy::new)?;
    let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 4, rewards: Rewards::Unbounded };
    let mut agents = vec![Agent::<2>::new(&prior)?; 20];
    let mut rng = Pcg64::seed_from_u64(1);
    let mut uniform = || (rng.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0;
    let mut regret = 0.0;
    while let Some(model) = controller.model() {
        let (episode, steps) = (model.episode, model.episode_len);
        agents.iter_mut().try_for_each(|agent| agent.begin(&model))?;
        regret = 0.0;
        for (id, agent) in (0..).zip(&mut agents) {
            let corrupted = id < 6;
            for _ in 0..steps {
                let actions: [Action<2>; 8] = std::array::from_fn(|_| project(&[uniform(), uniform()]));
                let expected = actions.map(|action| 0.6 * action[0] - 0.8 * action[1]);
                let index = agent.select(&actions)?.index;
                agent.record(&actions[index], expected[index] + uniform())?;
                let lost = expected.into_iter().fold(-1.0, f32::max) - expected[index];
                regret += if corrupted { 0.0 } else { lost / (14 * steps) as f32 };
            }
            let summary = agent.finish();
            let feature_sum = summary.feature_sum().map(|u| if corrupted { -4.0 * u } else { u });
            controller.receive(AgentId(id), episode, summary.gram(), feature_sum)?;
        }
        controller.close_episode()?;
    }
    Ok(regret)
}

fn output() -> Result<String, Box<dyn std::error::Error>> {
    let (median, mean) = (regret(GeometricMedian::new(Tolerance::Relative(1e-6)))?, regret(Mean)?);
    assert!(median < 0.05 && mean > 1.0);
    Ok(format!("regret per step: {median:.4} with the geometric median, {mean:.4} with the mean\n"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    output().map(|text| print!("{text}"))
}

#[test]
fn example_runs() {
    let block = format!("--example attack\n{}```\n", output().unwrap());
    assert!(include_str!("../../docs/guide/extend.md").contains(&block), "docs/guide/extend.md lacks\n{block}");
}
