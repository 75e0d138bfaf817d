//! Streaming evaluation of a buffered linear Toeplitz factorisation ([`Blt`]).

use serde::{Deserialize, Serialize};

use super::calibration::{BUFFERS, Blt};

/// Noisy prefix sums of one unit's leaves with the noise of a [`Blt`], in units of the grid.
///
/// 1. *Encode* y = Cx from the leaves x, in fixed-point arithmetic.
/// 2. *Add noise*, ỹ = y + z.
/// 3. *Decode* C⁻¹ỹ by the same recursion, and sum it.
///
/// A message influences releases through y alone: it shifts y_k by c_{k−t}·Δ.
///
/// **Rounding.** C is defined by the rounded θ_j and ω_j. Both are positive and rounded down, so no c_i grows, and the norm
/// computed by [`calibration`](super::calibration) remains an upper bound. A buffer loses less than 2⁻¹⁸ per step. All
/// buffers together lose less than 2⁻¹⁸·Σ_j ω_j/(1 − θ_j) ≤ 2⁻⁷ in y, which is then rounded to an integer. So y is within
/// ½ + 2⁻⁷ of Cx, and the y of two runs differ by at most [`ROUNDING`] more than Cx and Cx′.
///
/// **Range.** Leaves are within 2⁵² and Σ_i θ_jⁱ is below 2¹⁹, so products have at most 52 + 19 + 18 + 32 = 121 bits. Since
/// Σ_i c_i ≤ 2¹¹, y has at most 63 bits.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Filter {
    theta: [i128; BUFFERS],
    omega: [i128; BUFFERS],
    episode: u32,
    coordinates: Vec<Coordinate>,
}

/// Bound on the increase of the distance between two y by rounding, per coordinate and step.
pub(super) const ROUNDING: f64 = 1.0 + 1.0 / 64.0;

/// Fractional bits of θ and ω.
const COEFFICIENT_BITS: u32 = 32;
/// Fractional bits of a buffer.
const BUFFER_BITS: u32 = 18;

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Coordinate {
    encoder: [i128; BUFFERS],
    decoder: [f64; BUFFERS],
    total: f64,
}

impl Filter {
    pub(super) fn new(blt: &Blt, dimension: usize) -> Self {
        let fixed = |value: f64| (value * (1_u64 << COEFFICIENT_BITS) as f64) as i128;
        let (theta, omega) = (blt.theta.map(fixed), blt.omega().map(fixed));
        Self { theta, omega, episode: 0, coordinates: vec![Coordinate::default(); dimension] }
    }

    /// Adds a leaf. `noise` receives the level 0, the index k and y, and adds z.
    pub(super) fn push(&mut self, leaf: &[i64], mut noise: impl FnMut(u32, u32, &mut [i64])) {
        self.episode += 1;
        let (theta, omega) = (&self.theta, &self.omega);
        let coordinates = self.coordinates.iter_mut();
        let mut y: Vec<i64> = coordinates.zip(leaf).map(|(at, x)| encode(&mut at.encoder, *x, theta, omega)).collect();
        noise(0, self.episode, &mut y);
        let float = |value: &i128| *value as f64 / (1_u64 << COEFFICIENT_BITS) as f64;
        let (theta, omega) = (theta.each_ref().map(float), omega.each_ref().map(float));
        for (at, y) in self.coordinates.iter_mut().zip(y) {
            at.total += decode(&mut at.decoder, y as f64, &theta, &omega);
        }
    }

    /// Returns true if this saved filter has a number of leaves, and the coefficients and coordinates of another filter.
    pub(super) fn fits(&self, other: &Self, leaves: u32) -> bool {
        (self.theta, self.omega) == (other.theta, other.omega)
            && self.episode == leaves
            && self.coordinates.len() == other.coordinates.len()
    }

    /// Returns the noisy sum of all leaves so far.
    pub(super) fn prefix(&self) -> Vec<f64> {
        self.coordinates.iter().map(|at| at.total).collect()
    }
}

/// y = x + Σ_j ω_j·s_j, then s_j ← θ_j·s_j + x.
fn encode(s: &mut [i128; BUFFERS], x: i64, theta: &[i128; BUFFERS], omega: &[i128; BUFFERS]) -> i64 {
    let x = i128::from(x) << BUFFER_BITS;
    let sum: i128 = s.iter().zip(omega).map(|(s, omega)| s * omega).sum();
    let y = x + (sum >> COEFFICIENT_BITS);
    s.iter_mut().zip(theta).for_each(|(s, theta)| *s = ((*s * theta) >> COEFFICIENT_BITS) + x);
    ((y + (1 << (BUFFER_BITS - 1))) >> BUFFER_BITS) as i64
}

/// x = y − Σ_j ω_j·s_j, then s_j ← θ_j·s_j + x: the inverse of [`encode`].
fn decode(s: &mut [f64; BUFFERS], y: f64, theta: &[f64; BUFFERS], omega: &[f64; BUFFERS]) -> f64 {
    let x = y - s.iter().zip(omega).map(|(s, omega)| s * omega).sum::<f64>();
    s.iter_mut().zip(theta).for_each(|(s, theta)| *s = *s * theta + x);
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_inverts_encoding() {
        for episodes in [2, 64, 1024, 1 << 14] {
            let mut filter = Filter::new(&Blt::for_episodes(episodes), 2);
            let mut sums = [0, 0];
            for k in 1..i64::from(episodes) {
                let leaf = [(k * k * 7919) % (1 << 40), (1 << 39) - (k * 104_729) % (1 << 40)];
                filter.push(&leaf, |_, _, _| ());
                sums = [sums[0] + leaf[0], sums[1] + leaf[1]];
            }
            for (released, exact) in filter.prefix().into_iter().zip(sums) {
                assert!(
                    (released - exact as f64).abs() < 1e-9 * (1_u64 << 40) as f64,
                    "{episodes}: {released} {exact}"
                );
            }
        }
    }

    #[test]
    fn parameters_satisfy_assumptions_of_rounding_bounds() {
        for episodes in (0..=20).map(|bits| 1 << bits) {
            let blt = Blt::for_episodes(episodes);
            assert!(blt.omega().iter().all(|omega| *omega > 0.0), "{episodes}");
            assert!(
                blt.theta.iter().all(|theta| *theta > 0.0 && 1.0 / (1.0 - theta) <= (1 << 19) as f64),
                "{episodes}"
            );
            let steady: f64 = blt.theta.iter().zip(blt.omega()).map(|(theta, omega)| omega / (1.0 - theta)).sum();
            assert!(steady <= 2046.0, "{episodes}: {steady}");
        }
    }
}
