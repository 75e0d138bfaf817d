//! Simulated environment in place of sensors and actuators: the source of decision sets and rewards. Replace it with yours.
//!
//! It is seeded and deterministic, so the tests can reproduce on a computer, bit for bit, what a board observes.

use fedbandit_core::{Action, Rewards, project};
use rand_pcg::Pcg32;
use rand_pcg::rand_core::Rng;

/// Dimension of the actions.
pub const D: usize = 8;

/// Number of actions in a decision set.
pub const ARMS: usize = 10;

/// Range of rewards in the run. A guarded device rejects models with another.
pub const REWARDS: Rewards = Rewards::Unbounded;

/// θ*, the parameter that the fleet learns, of norm below 1.
pub const THETA: [f32; D] = [0.5, -0.4, 0.3, -0.3, 0.4, 0.2, -0.3, 0.34];

/// Environment of one device.
pub struct Environment {
    rng: Pcg32,
}

impl Environment {
    /// Creates an environment seeded by device and boot counter.
    pub fn new(agent: u32, boot: u32) -> Self {
        Self { rng: Pcg32::new(agent.into(), boot.into()) }
    }

    /// Returns the actions available at this step.
    pub fn decision_set(&mut self) -> [Action<D>; ARMS] {
        core::array::from_fn(|_| project(&Action::from_fn(|_, _| self.uniform())))
    }

    /// Returns the reward of an action: ⟨x, θ*⟩ plus noise in [−½, ½).
    pub fn reward(&mut self, action: &Action<D>) -> f32 {
        let mean: f32 = action.iter().zip(THETA).map(|(x, theta)| x * theta).sum();
        mean + 0.5 * self.uniform()
    }

    /// Uniform in [−1, 1).
    fn uniform(&mut self) -> f32 {
        (self.rng.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0
    }
}
