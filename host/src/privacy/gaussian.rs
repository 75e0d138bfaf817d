//! The discrete Gaussian distribution, sampled exactly (Canonne, Kamath and Steinke, *The Discrete Gaussian for
//! Differential Privacy*, 2020, algorithms 1 to 3).
//!
//! All probabilities are ratios of integers, and a coin with such a probability is a comparison with a uniform integer:
//! no floating-point number is involved, whose rounding could tell something.

use chacha20::rand_core::CryptoRng;

/// N_ℤ(0, σ²): the integer z has a probability in proportion to exp(−z²/(2σ²)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscreteGaussian {
    variance: u64,
    /// The scale of the Laplace distribution that candidates come from.
    t: u64,
}

impl DiscreteGaussian {
    /// For an integer σ from 1 to [`MAX_SIGMA`], else none.
    pub fn new(sigma: u64) -> Option<Self> {
        (1..=MAX_SIGMA).contains(&sigma).then(|| Self { variance: sigma * sigma, t: sigma + 1 })
    }

    /// σ.
    pub fn sigma(&self) -> u64 {
        self.t - 1
    }

    /// One number.
    ///
    /// A candidate y from the discrete Laplace distribution with scale t is taken with probability
    /// exp(−(|y| − σ²/t)²/(2σ²)), here with numerator and denominator multiplied by t². A candidate beyond 2⁶⁴/t ≥ 60σ,
    /// which would be taken with a probability below e⁻¹⁷⁰⁰, is never taken, so that 128 bits suffice.
    ///
    /// A generator that is not cryptographic does not compile:
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

/// The largest σ: 2²⁹.
pub const MAX_SIGMA: u64 = 1 << 29;

/// Sign and magnitude of y, which has a probability in proportion to exp(−|y|/t).
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
        // Zero has one sign.
        if !(negative && magnitude == 0) {
            return (negative, magnitude);
        }
    }
}

/// True with probability exp(−γ) for γ = numerator/denominator.
fn coin_exp(numerator: u128, denominator: u128, rng: &mut impl CryptoRng) -> bool {
    let (whole, part) = (numerator / denominator, numerator % denominator);
    (0..whole).all(|_| coin_exp_1(rng)) && alternating(|rng| uniform(denominator, rng) < part, rng)
}

/// True with probability 1/e.
fn coin_exp_1(rng: &mut impl CryptoRng) -> bool {
    alternating(|_| true, rng)
}

/// True with probability exp(−γ) for a coin that is true with probability γ.
///
/// Of coins with γ, γ/2, γ/3, … the first false one is the k-th with probability γ^{k−1}/(k−1)! − γᵏ/k!, and these sum
/// to exp(−γ) over odd k.
fn alternating<R: CryptoRng>(coin: impl Fn(&mut R) -> bool, rng: &mut R) -> bool {
    let mut k = 1;
    while coin(rng) && (k == 1 || uniform(k, rng) == 0) {
        k += 1;
    }
    k % 2 == 1
}

/// Uniform below a bound: as many bits as it needs, redrawn where they are not below it.
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
