//! Seeded random numbers. Test modules extend `Random` by what they draw.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

pub(crate) struct Random(pub(crate) Pcg64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Pcg64::seed_from_u64(seed))
    }

    /// Returns a uniform number in [−1, 1).
    pub(crate) fn symmetric(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / 4_503_599_627_370_496.0 - 1.0
    }
}
