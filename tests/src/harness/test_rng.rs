//! Seeded random generator for tests.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Random decisions from one seed.
#[derive(Clone, Debug)]
pub struct TestRng(Pcg64);

impl TestRng {
    /// Creates the generator of a seed for one usage; usages are independent of each other.
    pub fn new(seed: u64, usage: u64) -> Self {
        let mut mixed = Pcg64::seed_from_u64(seed ^ usage.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // One draw separates seeds that are close to each other.
        Self(Pcg64::seed_from_u64(mixed.next_u64()))
    }

    /// Draws a number below a positive limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// Draws a number from a range, both ends included.
    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Returns true in so many of a thousand cases.
    pub fn per_mille(&mut self, cases: u64) -> bool {
        self.below(1000) < cases
    }

    /// Picks one of the items, of which there must be one.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Draws a number from −1 to 1.
    pub fn signed_unit(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0
    }

    /// Returns the underlying generator.
    pub fn generator(&mut self) -> &mut Pcg64 {
        &mut self.0
    }
}
