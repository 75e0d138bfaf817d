//! Random decisions of a test, all from one seed.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// A stream of decisions.
#[derive(Clone, Debug)]
pub struct TestRng(Pcg64);

impl TestRng {
    /// The decisions of a seed, for one use of it.
    pub fn new(seed: u64, usage: u64) -> Self {
        let mut mixed = Pcg64::seed_from_u64(seed ^ usage.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // What is near in seed and use is far apart after a draw.
        Self(Pcg64::seed_from_u64(mixed.next_u64()))
    }

    /// A number below a limit that is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from a range, both ends included.
    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Whether something happens that happens in so many of a thousand cases.
    pub fn per_mille(&mut self, cases: u64) -> bool {
        self.below(1000) < cases
    }

    /// One of some things; there must be one.
    pub fn pick<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.below(things.len() as u64) as usize]
    }

    /// A number from −1 to 1.
    pub fn signed_unit(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0
    }

    /// A generator, for what asks for one.
    pub fn generator(&mut self) -> &mut Pcg64 {
        &mut self.0
    }
}
