//! One episode of one device. The same file runs on a computer,
//! `cargo run -p fedbandit-core --example one_episode`, and on a board, as a module of `firmware-example`'s `one_episode`.

use core::fmt;

use fedbandit_core::{Action, Agent, Model, Prior, Rewards};

/// A heater with four settings. Features: how strong, how fast, how noisy it is.
const SETTINGS: [[f32; 3]; 4] = [[0.2, 0.1, 0.0], [0.5, 0.4, 0.2], [0.6, 0.2, 0.5], [0.9, 0.3, 0.3]];

/// What the user likes, unknown to the device: strong, and not noisy.
const TASTE: [f32; 3] = [0.8, 0.1, -0.6];

/// What happened in the episode.
pub(crate) struct Outcome {
    chosen: [u32; SETTINGS.len()],
    episode: u32,
    steps: u32,
    feature_sum: [f32; 3],
}

/// Receives a model, lives through an episode of 32 steps, and reports.
pub(crate) fn one_episode() -> Result<Outcome, &'static str> {
    let mut agent = Agent::<3>::new(&Prior { lambda: 1.0, beta: 1.0, episode_len: 32, rewards: Rewards::Clipped })
        .map_err(|_| REFUSED)?;

    // What the controller sent: θ, the upper triangle of Λ, β.
    let (theta, design) = ([0.5, 0.0, -0.2], [9.0, 1.0, 1.0, 4.0, 0.5, 4.0]);
    let model = Model {
        episode: 3,
        episode_len: 32,
        beta: 0.6,
        rewards: Rewards::Clipped,
        theta: (&theta).into(),
        design: (&design).into(),
    };
    agent.begin(&model).map_err(|_| REFUSED)?;

    let mut chosen = [0; SETTINGS.len()];
    for step in 0..agent.episode_len() {
        // A setting is out of order now and then: decision sets may differ from step to step.
        let broken = step as usize % 7;
        let decision_set = SETTINGS.map(Action::from);
        let available = decision_set.iter().enumerate().filter(|(i, _)| *i != broken);
        let choice = agent.select(available.clone().map(|(_, action)| action)).map_err(|_| REFUSED)?;
        if let Some((setting, action)) = available.clone().nth(choice.index) {
            let reward = action.iter().zip(TASTE).map(|(x, taste)| x * taste).sum();
            agent.record(action, reward).map_err(|_| REFUSED)?;
            chosen[setting] += 1;
        }
    }

    let summary = agent.finish();
    Ok(Outcome { chosen, episode: summary.episode(), steps: summary.steps(), feature_sum: *summary.feature_sum() })
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { chosen, episode, steps, feature_sum } = self;
        write!(f, "episode {episode}: {steps} steps, settings chosen {chosen:?}, feature sum {feature_sum:?}")
    }
}

const REFUSED: &str = "the agent refused something";

#[cfg(not(target_os = "none"))]
fn main() -> Result<(), &'static str> {
    println!("{}", one_episode()?);
    Ok(())
}
