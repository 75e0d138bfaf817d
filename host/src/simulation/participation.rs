//! Presence of devices over time.

use crate::math::rng::{Purpose, below, generator, uniform};
use crate::names::named;

/// Presence of honest devices, by name. Corrupted ones are always present.
///
/// An absent device gets no model, takes no step and sends no message. The first step of an episode decides about the whole episode.
/// Virtual devices of a real controller are always present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Participation {
    /// All devices are present in every episode.
    #[default]
    Always,
    /// Device i is present in an episode with probability p_i, drawn once uniformly from [0.2, 1).
    Sleepy,
    /// As `Sleepy`, with one draw for each eighth of the run instead of each episode.
    Stretches,
    /// Each device joins late with probability 1/2, at a step that is uniform in [0, T). The others are present from the start.
    Late,
}

named!(Participation, "participation", Always = "always", Sleepy = "sleepy", Stretches = "stretches", Late = "late",);

/// Number of blocks of `stretches`.
const BLOCKS: u64 = 8;

impl Participation {
    /// Returns true if a device is present in an episode, given the episode's first step and T. Depends on nothing else, so that
    /// all rules meet the same devices.
    pub(super) fn is_present(self, seed: u64, device: usize, start: u32, horizon: u32) -> bool {
        let mut rng = generator(seed, Purpose::Participation, device as u64);
        let draw = match self {
            Self::Always => return true,
            Self::Late => return uniform(&mut rng) >= 0.5 || start as usize >= below(horizon as usize, &mut rng),
            Self::Sleepy => start.into(),
            Self::Stretches => u64::from(start) * BLOCKS / u64::from(horizon),
        };
        let probability = 0.2 + 0.8 * uniform(&mut rng);
        rng.advance(draw.into());
        uniform(&mut rng) < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: usize = 20_000;
    const HORIZON: u32 = 4096;

    /// Returns the share of devices for which a condition holds.
    fn share(condition: impl Fn(&dyn Fn(u32) -> bool) -> bool, participation: Participation) -> f64 {
        let holds = |device: &usize| condition(&|step| participation.is_present(3, *device, step, HORIZON));
        (0..DEVICES).filter(holds).count() as f64 / DEVICES as f64
    }

    /// Six deviations of a share of 20,000 devices are at most 0.0213; false alarm below 2·10⁻⁹ each.
    fn assert_share(measured: f64, expected: f64) {
        assert!((measured - expected).abs() < 0.0213, "{measured}, expected {expected}");
    }

    /// E p = 0.6. Two independent draws of one device: E p² = 0.6² + 0.8²/12 = 0.41333; three: E p³ = (1 − 0.2⁴)/3.2 = 0.312.
    /// The same p_i for all devices would give 0.36 and 0.216.
    #[test]
    fn sleepy_devices_are_present_with_their_own_probability() {
        use Participation::Sleepy;
        for step in [0, 1, 4, 100, 4095] {
            assert_share(share(|present| present(step), Sleepy), 0.6);
            assert_share(share(|present| present(step) && present(step + 1), Sleepy), 0.413_33);
        }
        assert_share(share(|present| present(0) && present(7) && present(900), Sleepy), 0.312);
    }

    /// Blocks of 4096/8 = 512 steps.
    #[test]
    fn stretches_last_an_eighth_of_the_run() {
        use Participation::Stretches;
        for block in 0..8 {
            let first = block * 512;
            assert_share(share(|present| present(first), Stretches), 0.6);
            assert_eq!(share(|present| present(first) == present(first + 511), Stretches), 1.0);
            assert_eq!(share(|present| present(first) == present(first + 77), Stretches), 1.0);
        }
        for first in (0..3584).step_by(512) {
            assert_share(share(|present| present(first) && present(first + 512), Stretches), 0.413_33);
        }
    }

    /// A device is present at step t with probability 1/2 + (t + 1)/(2T), and stays.
    #[test]
    fn late_devices_join_at_a_uniform_step_and_stay() {
        use Participation::Late;
        for step in [0, 1023, 2047, 4095] {
            assert_share(share(|present| present(step), Late), 0.5 + f64::from(step + 1) / 8192.0);
        }
        assert_eq!(share(|present| present(4095), Late), 1.0);
        let leaves = |present: &dyn Fn(u32) -> bool| {
            let seen: Vec<bool> = (0..HORIZON).step_by(64).map(present).collect();
            seen.is_sorted()
        };
        assert_eq!(share(leaves, Late), 1.0);
    }

    #[test]
    fn devices_of_other_seeds_and_numbers_are_independent() {
        use Participation::Sleepy;
        let both = |other: &dyn Fn(usize) -> bool| {
            let both = |device: &usize| Sleepy.is_present(3, *device, 0, HORIZON) && other(*device);
            (0..DEVICES).filter(both).count() as f64 / DEVICES as f64
        };
        assert_share(both(&|device| Sleepy.is_present(4, device, 0, HORIZON)), 0.36);
        assert_share(both(&|device| Sleepy.is_present(3, device + 1, 0, HORIZON)), 0.36);
    }
}
