//! One episode of one device.
//!
//! Runs on a computer with `cargo run -p fedbandit-core --example one_episode`, and unchanged on a board as a module of
//! `firmware-example`'s `one_episode`.

use core::fmt;

use fedbandit_core::{Action, Agent, Model, Prior, Rewards};

/// A heater with four settings. Features: power, speed, noise.
const SETTINGS: [[f32; 3]; 4] = [[0.2, 0.1, 0.0], [0.5, 0.4, 0.2], [0.6, 0.2, 0.5], [0.9, 0.3, 0.3]];

/// The user's preference, unknown to the device: powerful and quiet.
const PREFERENCE: [f32; 3] = [0.8, 0.1, -0.6];

/// Result of the episode.
pub(crate) struct Outcome {
    chosen: [u32; SETTINGS.len()],
    episode: u32,
    steps: u32,
    feature_sum: [f32; 3],
}

/// Receives a model, runs an episode of 32 steps and returns its result.
pub(crate) fn one_episode() -> Result<Outcome, &'static str> {
    let mut agent = Agent::<3>::new(&Prior { lambda: 1.0, beta: 1.0, episode_len: 32, rewards: Rewards::Clipped })
        .map_err(|_| FAILED)?;

    // From the controller: θ, the upper triangle of Λ, β.
    let (theta, design) = ([0.5, 0.0, -0.2], [9.0, 1.0, 1.0, 4.0, 0.5, 4.0]);
    let model = Model {
        episode: 3,
        episode_len: 32,
        beta: 0.6,
        rewards: Rewards::Clipped,
        theta: (&theta).into(),
        design: (&design).into(),
    };
    agent.begin(&model).map_err(|_| FAILED)?;

    let mut chosen = [0; SETTINGS.len()];
    for step in 0..agent.episode_len() {
        // One setting is unavailable at times: decision sets may differ from step to step.
        let unavailable = step as usize % 7;
        let decision_set = SETTINGS.map(Action::from);
        let available = decision_set.iter().enumerate().filter(|(i, _)| *i != unavailable);
        let choice = agent.select(available.clone().map(|(_, action)| action)).map_err(|_| FAILED)?;
        if let Some((setting, action)) = available.clone().nth(choice.index) {
            let reward = action.iter().zip(PREFERENCE).map(|(x, weight)| x * weight).sum();
            agent.record(action, reward).map_err(|_| FAILED)?;
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

const FAILED: &str = "the agent rejected a model, an action or a reward";

#[cfg(not(target_os = "none"))]
fn main() -> Result<(), &'static str> {
    println!("{}", one_episode()?);
    Ok(())
}
