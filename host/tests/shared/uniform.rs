//! Uniform random numbers.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;

/// Returns a uniform number in [0, 1).
pub(crate) fn uniform(rng: &mut Pcg64) -> f64 {
    (rng.next_u64() >> 11) as f64 / 9_007_199_254_740_992.0
}

/// Returns a uniform number below `n`.
pub(crate) fn below(rng: &mut Pcg64, n: usize) -> usize {
    (uniform(rng) * n as f64) as usize
}
