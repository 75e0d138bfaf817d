//! A stand-in for sensors and actuators: where decision sets and rewards come from. Replace it with your own.
//!
//! It is seeded and uses the agent's arithmetic only, so a computer can tell bit by bit what the board will see.

use fedbandit_core::{Action, project};
use rand_pcg::Pcg32;
use rand_pcg::rand_core::Rng;

/// The dimension of actions.
pub const D: usize = 8;

/// Actions to choose from at each step.
pub const ARMS: usize = 10;

/// θ*, which the fleet is to learn.
pub const THETA: [f32; D] = [0.5, -0.4, 0.3, -0.3, 0.4, 0.2, -0.3, 0.35];

/// The world of one device.
pub struct Environment {
    rng: Pcg32,
}

impl Environment {
    /// A world of its own for each device and each start.
    pub fn new(agent: u32, boot: u32) -> Self {
        Self { rng: Pcg32::new(agent.into(), boot.into()) }
    }

    /// What can be done now.
    pub fn decision_set(&mut self) -> [Action<D>; ARMS] {
        core::array::from_fn(|_| project(&Action::from_fn(|_, _| self.uniform())))
    }

    /// What comes of it: ⟨x, θ*⟩ and noise in [−½, ½).
    pub fn reward(&mut self, action: &Action<D>) -> f32 {
        let mean: f32 = action.iter().zip(THETA).map(|(x, theta)| x * theta).sum();
        mean + 0.5 * self.uniform()
    }

    /// In [−1, 1).
    fn uniform(&mut self) -> f32 {
        (self.rng.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0
    }
}
