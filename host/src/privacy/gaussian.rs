//! The discrete Gaussian distribution, sampled exactly (Canonne, Kamath and Steinke, *The Discrete Gaussian for
//! Differential Privacy*, 2020, algorithms 1 to 3).
//!
//! All probabilities are ratios of integers, and a coin with such a probability is a comparison with a uniform integer.
//! Floating-point numbers, whose rounding could leak information, are not involved.

use chacha20::rand_core::CryptoRng;

/// N_ℤ(0, σ²): the integer z has a probability proportional to exp(−z²/(2σ²)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscreteGaussian {
    variance: u64,
    /// Scale of the Laplace distribution of candidates.
    t: u64,
}

impl DiscreteGaussian {
    /// Creates the distribution for an integer σ from 1 to [`MAX_SIGMA`]; returns `None` for any other σ.
    pub fn new(sigma: u64) -> Option<Self> {
        (1..=MAX_SIGMA).contains(&sigma).then(|| Self { variance: sigma * sigma, t: sigma + 1 })
    }

    /// σ.
    pub fn sigma(&self) -> u64 {
        self.t - 1
    }

    /// Draws a number.
    ///
    /// A candidate y from the discrete Laplace distribution with scale t is accepted with probability
    /// exp(−(|y| − σ²/t)²/(2σ²)), here with numerator and denominator multiplied by t². Candidates beyond 2⁶⁴/t ≥ 60σ,
    /// whose probability of acceptance is below e⁻¹⁷⁰⁰, are rejected, so that 128 bits suffice.
    ///
    /// Generators that are not cryptographic do not compile:
    ///
    /// ```compile_fail,E0277
    /// # use fedbandit::privacy::gaussian::DiscreteGaussian;
    /// use rand_pcg::{Pcg64, rand_core::SeedableRng};
    /// DiscreteGaussian::new(1).unwrap().sample(&mut Pcg64::seed_from_u64(0));
    /// ```
    pub fn sample(&self, rng: &mut impl CryptoRng) -> i64 {
        let (variance, t) = (u128::from(self.variance), u128::from(self.t));
        loop {
            let (negative, magnitude) = laplace(self.t, rng);
            let product = u128::from(magnitude) * t;
            let distance = product.abs_diff(variance);
            if product >> 64 == 0 && coin_exp(distance * distance, 2 * variance * t * t, rng) {
                return if negative { -(magnitude as i64) } else { magnitude as i64 };
            }
        }
    }
}

/// Largest σ, 2²⁹.
pub const MAX_SIGMA: u64 = 1 << 29;

/// Draws sign and magnitude of y with a probability proportional to exp(−|y|/t).
fn laplace(t: u64, rng: &mut impl CryptoRng) -> (bool, u64) {
    loop {
        let below = uniform(t.into(), rng);
        if !coin_exp(below, t.into(), rng) {
            continue;
        }
        let mut magnitude = below as u64;
        while coin_exp_1(rng) {
            magnitude = magnitude.saturating_add(t);
        }
        let negative = rng.next_u32() & 1 == 1;
        // Without this, zero would be counted twice.
        if !(negative && magnitude == 0) {
            return (negative, magnitude);
        }
    }
}

/// Returns true with probability exp(−γ) for γ = numerator/denominator.
fn coin_exp(numerator: u128, denominator: u128, rng: &mut impl CryptoRng) -> bool {
    let (whole, part) = (numerator / denominator, numerator % denominator);
    (0..whole).all(|_| coin_exp_1(rng)) && alternating(|rng| uniform(denominator, rng) < part, rng)
}

/// Returns true with probability 1/e.
fn coin_exp_1(rng: &mut impl CryptoRng) -> bool {
    alternating(|_| true, rng)
}

/// Returns true with probability exp(−γ), given a coin that is true with probability γ.
///
/// Of coins with probabilities γ, γ/2, γ/3, …, the k-th is the first false one with probability γ^{k−1}/(k−1)! − γᵏ/k!.
/// These probabilities sum to exp(−γ) over odd k.
fn alternating<R: CryptoRng>(coin: impl Fn(&mut R) -> bool, rng: &mut R) -> bool {
    let mut k = 1;
    while coin(rng) && (k == 1 || uniform(k, rng) == 0) {
        k += 1;
    }
    k % 2 == 1
}

/// Draws a uniform number below a bound, from as few bits as possible, by rejection.
fn uniform(bound: u128, rng: &mut impl CryptoRng) -> u128 {
    let mask = u128::MAX.checked_shr((bound - 1).leading_zeros()).unwrap_or(0);
    loop {
        let bits = match mask >> 64 {
            0 => rng.next_u64().into(),
            _ => u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()),
        };
        if bits & mask < bound {
            return bits & mask;
        }
    }
}
