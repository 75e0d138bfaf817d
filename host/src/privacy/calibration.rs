//! Calibration of noise to a privacy budget, and bounds on the noise. Nothing here has access to messages.
//!
//! The unit is one message (U, u) as a vector: the scaled packing of U ([`symmetric`](crate::math::symmetric)), followed by u. Two
//! runs are neighbours if they differ in one message. The two vectors are at most Δ apart ([`sensitivity`]). Gaussian noise
//! with a standard deviation proportional to Δ hides this difference in all releases ([`Noise`]). All roundings are
//! conservative.

use fedbandit_core::{packed_len, rounding};
use thiserror::Error;

use crate::algorithm::Level;
use crate::names::named;

/// Privacy budget (μ, ν) of one message: P(E) ≤ e^μ·P′(E) + ν for every event E and neighbouring runs.
///
/// This is the paper's definition of federated differential privacy. Elsewhere μ and ν are called ε and δ; the paper's ε is
/// the tolerance of the geometric median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    mu: f64,
    nu: f64,
    rho: f64,
}

/// Error returned by [`Budget::new`].
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// μ is not positive and finite.
    #[error("mu must be positive and finite, got {0}")]
    Mu(f64),
    /// ν is not between 0 and 1. Gaussian noise cannot achieve ν = 0.
    #[error("nu must be greater than 0 and less than 1, got {0}")]
    Nu(f64),
    /// The noise would exceed the range of f64.
    #[error("no finite noise achieves mu = {0} with nu = {1}; increase one of them")]
    OutOfReach(f64, f64),
}

impl Budget {
    /// Creates a budget with 0 < μ < ∞ and 0 < ν < 1.
    ///
    /// # Errors
    /// See [`BudgetError`].
    pub fn new(mu: f64, nu: f64) -> Result<Self, BudgetError> {
        if !(mu > 0.0 && mu.is_finite()) {
            return Err(BudgetError::Mu(mu));
        }
        if !(nu > 0.0 && nu < 1.0) {
            return Err(BudgetError::Nu(nu));
        }
        let rho = largest(|rho| delta(rho, mu) <= nu);
        if rho.is_normal() { Ok(Self { mu, nu, rho }) } else { Err(BudgetError::OutOfReach(mu, nu)) }
    }

    /// μ.
    pub fn mu(&self) -> f64 {
        self.mu
    }

    /// ν.
    pub fn nu(&self) -> f64 {
        self.nu
    }

    /// ρ, the largest for which ρ-zCDP implies (μ, ν): [`delta`]`(ρ, μ)` ≤ ν.
    pub fn rho(&self) -> f64 {
        self.rho
    }

    /// Returns the μ for a person in r messages, with the same ν: the least μ that r²ρ-zCDP implies.
    ///
    /// r messages move releases by at most r times as much as one.
    pub fn mu_for_messages(&self, r: u32) -> f64 {
        least_mu(f64::from(r).powi(2) * self.rho, self.nu)
    }
}

/// Returns the least μ for which ρ-zCDP implies (μ, ν), by [`delta`].
pub fn least_mu(rho: f64, nu: f64) -> f64 {
    largest(|mu| delta(rho, mu) > nu).next_up()
}

/// Returns δ(ρ, μ), rounded up.
///
/// **Lemma.** ρ-zCDP implies (μ, δ)-differential privacy with
///
/// ```text
/// δ(ρ, μ) = inf_{b > 0} exp(b(1 + b)ρ − bμ)·bᵇ/(1 + b)^{1+b}
/// ```
///
/// (Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential Privacy*, proposition 12, with b = a − 1).
///
/// *Proof.* For the privacy loss Z, δ = E max(0, 1 − e^{μ−Z}). The function (1 − e^{−x})·e^{−bx} is largest at
/// e^{−x} = b/(1 + b), so δ ≤ E e^{b(Z−μ)}·bᵇ/(1 + b)^{1+b}. zCDP is E e^{bZ} ≤ e^{b(1+b)ρ}. ∎
///
/// The logarithm, b(1 + b)ρ − bμ − (1 + b)·ln(1 + 1/b) − ln b, is convex in b. It is least where its derivative
/// (1 + 2b)ρ − μ − ln(1 + 1/b) is 0. Any other b also gives a valid δ.
pub fn delta(rho: f64, mu: f64) -> f64 {
    // For the smallest b, 1/b overflows.
    let log = |b: f64| b.recip().min(f64::MAX).ln_1p();
    // For larger bμ the infimum is 0 in f64, and the rounding of such large terms would dominate.
    let b = largest(|b| (1.0 + 2.0 * b) * rho - mu < log(b)).min(1e5 / mu);
    let terms = [b * (1.0 + b) * rho, -b * mu, -(1.0 + b) * log(b), -b.ln()];
    let rounded = ROUNDINGS * (1.0 + terms.map(f64::abs).iter().sum::<f64>());
    (terms.iter().sum::<f64>() + rounded).exp().min(1.0)
}

/// Upper bound on the relative error of a few dozen roundings in sequence.
const ROUNDINGS: f64 = 1e-14;

/// Returns the largest positive number up to which a condition holds, or 0 if it holds for none.
fn largest(holds: impl Fn(f64) -> bool) -> f64 {
    // Positive floating-point numbers have the order of their bits.
    let (mut low, mut high) = (0, f64::INFINITY.to_bits());
    while high - low > 1 {
        let middle = low.midpoint(high);
        *if holds(f64::from_bits(middle)) { &mut low } else { &mut high } = middle;
    }
    f64::from_bits(low)
}

/// Returns Δ, the largest ℓ2 distance between two admitted messages (U, u) and (U′, u′), rounded up.
///
/// A refused or missing message counts as 0, which is also admissible. Let ℓ = (1 + δ)L with the tolerance δ of
/// [`rounding::sums`], so that ‖U‖_F ≤ ℓ and ‖u‖₂ ≤ ℓ at all levels. Let s = 3δ(1 + δ)L be the shift that strict
/// admission tolerates.
///
/// **Lemma.** At [`Level::Paper`] Δ = 2√2·ℓ. At [`Level::Strict`]
///
/// ```text
/// Δ² = 4ℓ² + L²/2 + 4sℓ + 2Ds²,
/// ```
///
/// which is (3/√2·L)² without tolerance.
///
/// *Proof.* At [`Level::Paper`] each part moves by at most 2ℓ. At [`Level::Strict`] let A = U + sI, so that A ⪰ 0 and
/// uuᵀ ⪯ L·A, and let p = uᵀu′. The inner product of positive semidefinite matrices is monotone, hence
/// ⟨A, A′⟩ ≥ ⟨uuᵀ, u′u′ᵀ⟩/L² = p²/L². With tr U ≤ ℓ,
///
/// ```text
/// ⟨U, U′⟩ = ⟨A, A′⟩ − s·(tr U + tr U′) − Ds² ≥ p²/L² − 2sℓ − Ds²,
/// ‖U − U′‖_F² + ‖u − u′‖² ≤ 4ℓ² − 2⟨U, U′⟩ − 2p ≤ 4ℓ² + 4sℓ + 2Ds² − 2p²/L² − 2p.
/// ```
///
/// The last two terms are at most L²/2, at p = −L²/2. ∎ The bound is attained: all steps take one action with reward 1, and
/// the actions of the two runs are at an angle of 120°.
///
/// A factor 1 + 10⁻⁹ covers two errors of admission in f64. Its sums and factors have relative errors below 10⁻¹⁰. Its slack
/// on L in uuᵀ ⪯ L·A is 10⁻⁹, a tenth of which affects Δ. Δ grows with L, so the longest episode counts.
pub fn sensitivity(level: Level, episode_len: u32, dimension: usize) -> f64 {
    let tolerance = rounding::sums(episode_len, dimension);
    let most = 1.0 + tolerance;
    let squared = match level {
        Level::Paper => 8.0 * most * most,
        Level::Strict | Level::Drop => {
            let shift = 3.0 * tolerance * most;
            4.0 * most * most + 0.5 + 4.0 * shift * most + 2.0 * dimension as f64 * shift * shift
        }
    };
    f64::from(episode_len) * squared.sqrt() * (1.0 + 1e-9)
}

/// Returns Δ for messages truncated toward zero to multiples of a grid: Δ + grid·√(D(D + 1)/2 + D).
///
/// Two values of one sign are truncated in the same direction, by less than one grid step each. So their distance grows by
/// less than one step. Values of different signs come closer.
pub fn truncated(sensitivity: f64, grid: f64, dimension: usize) -> f64 {
    (sensitivity + grid * ((packed_len(dimension) + dimension) as f64).sqrt()) * (1.0 + ROUNDINGS)
}

/// Mechanism for noisy prefix sums B·(C·x + z), where z is the noise and B·C is the lower triangle of ones.
///
/// One message moves C·x by at most Δ times the largest column norm of C. Release k has the noise of the k-th row of B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mechanism {
    /// Binary tree (Dwork et al. 2010; Chan et al. 2011): C computes the nodes, and release k is the sum of the popcount(k)
    /// nodes given by the bits of k.
    #[default]
    Tree,
    /// The same noisy nodes, each replaced by the best estimate from it and all nodes below it (Honaker 2015).
    Honaker,
    /// Buffered linear Toeplitz matrix ([`Blt`]).
    Blt,
}

impl Mechanism {
    /// Squared norm of the largest column of C, rounded up.
    fn column_norm_squared(self, episodes: u32) -> f64 {
        match self {
            Self::Tree | Self::Honaker => levels(episodes).into(),
            Self::Blt => Blt::for_episodes(episodes).column_norm_squared(episodes.saturating_sub(1)),
        }
    }

    /// Squared norm of the k-th row of B.
    fn row_norm_squared(self, episodes: u32, k: u32) -> f64 {
        match self {
            Self::Tree => k.count_ones().into(),
            Self::Honaker => (0..32).filter(|level| k >> level & 1 == 1).map(honaker_variance).sum(),
            Self::Blt => Blt::for_episodes(episodes).row_norm_squared(k),
        }
    }

    /// k < K with the largest row of B.
    fn worst_release(self, episodes: u32) -> u32 {
        match self {
            // No number below K has more ones, and lower levels are noisier.
            Self::Tree | Self::Honaker => (1 << episodes.checked_ilog2().unwrap_or(0)) - 1,
            Self::Blt => episodes.saturating_sub(1),
        }
    }
}

named!(Mechanism, "mechanism", Tree = "tree", Honaker = "honaker", Blt = "blt");

/// Returns m = ⌊log₂(K − 1)⌋ + 1, the largest number of tree nodes that contain a message; 0 for K = 1.
///
/// The model of episode k depends on k − 1 messages per agent, so only the first K − 1 sums are released.
pub fn levels(episodes: u32) -> u32 {
    episodes.saturating_sub(1).checked_ilog2().map_or(0, |level| level + 1)
}

/// Variance of a node's best estimate, v_j = 1/(2 − 2⁻ʲ).
///
/// It solves v_0 = 1 and 1/v_j = 1 + 1/(2v_{j−1}), for the node's own noise and that of two estimated children.
pub(super) fn honaker_variance(level: u32) -> f64 {
    1.0 / (2.0 - 0.5_f64.powi(level as i32))
}

/// Buffered linear Toeplitz factorisation with three buffers (Dvijotham et al., *Efficient and Near-Optimal Noise
/// Generation for Streaming Differential Privacy*, 2024).
///
/// C has the coefficients c_0 = 1, c_i = Σ_j ω_j·θ_j^{i−1}, and C⁻¹ has the same form with θ̂ and ω̂. They interlace,
/// 1 > θ_1 > θ̂_1 > θ_2 > …, so all ω are positive. Privacy depends on the norm of c alone, not on the optimality of θ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blt {
    /// θ.
    pub theta: [f64; BUFFERS],
    /// θ̂.
    pub theta_hat: [f64; BUFFERS],
}

/// Number of buffers.
pub const BUFFERS: usize = 3;

/// θ and θ̂ with the least noise in the worst release, for several K, found numerically. The noise is within 0.1 % of the
/// best Toeplitz matrix at K = 256, 0.5 % at 4,096 and 6 % at 2²⁰.
const TUNED: [(u32, Blt); 6] = [
    (256, Blt { theta: [0.996641, 0.947413, 0.622773], theta_hat: [0.983615, 0.850955, 0.238888] }),
    (1024, Blt { theta: [0.998973, 0.978560, 0.743283], theta_hat: [0.994450, 0.922609, 0.327381] }),
    (4096, Blt { theta: [0.999682, 0.991003, 0.826365], theta_hat: [0.998067, 0.959243, 0.411712] }),
    (1 << 14, Blt { theta: [0.999899, 0.996035, 0.881393], theta_hat: [0.999294, 0.977823, 0.487646] }),
    (1 << 16, Blt { theta: [0.999968, 0.998211, 0.918779], theta_hat: [0.999738, 0.987748, 0.556423] }),
    (1 << 20, Blt { theta: [0.999997, 0.999643, 0.962908], theta_hat: [0.999965, 0.996332, 0.677017] }),
];

impl Blt {
    /// Returns the parameters for K episodes: those tuned for the next larger K. Too long a memory costs below 0.6 %, too
    /// short a one much more.
    pub fn for_episodes(episodes: u32) -> Self {
        let at = TUNED.partition_point(|(tuned, _)| *tuned < episodes);
        TUNED[at.min(TUNED.len() - 1)].1
    }

    /// ω_j = Π_i (θ_j − θ̂_i) / Π_{i≠j} (θ_j − θ_i).
    pub fn omega(&self) -> [f64; BUFFERS] {
        residues(&self.theta, &self.theta_hat)
    }

    /// ω̂, as ω with θ and θ̂ exchanged.
    pub fn omega_hat(&self) -> [f64; BUFFERS] {
        residues(&self.theta_hat, &self.theta)
    }

    /// ‖c‖² over the first n coefficients, rounded up.
    pub fn column_norm_squared(&self, n: u32) -> f64 {
        let Some(last) = n.checked_sub(1) else { return 0.0 };
        let omega = self.omega();
        let products = pairs().map(|(i, j)| omega[i] * omega[j] * geometric(self.theta[i] * self.theta[j], last));
        // 1 − θθ′ can be as small as 10⁻⁶, with a corresponding loss of precision. All terms are positive.
        (1.0 + products.sum::<f64>()) * (1.0 + 1e-9)
    }

    /// Σ_{i<k} b_i², where b_i = ĉ_0 + … + ĉ_i are the coefficients of B.
    pub fn row_norm_squared(&self, k: u32) -> f64 {
        // b_i = limit − Σ_j e_j·θ̂_j^i.
        let (omega, theta) = (self.omega_hat(), self.theta_hat);
        let e: [f64; BUFFERS] = std::array::from_fn(|j| omega[j] / (1.0 - theta[j]));
        let limit = 1.0 + e.iter().sum::<f64>();
        let single: f64 = e.iter().zip(theta).map(|(e, theta)| e * geometric(theta, k)).sum();
        let double: f64 = pairs().map(|(i, j)| e[i] * e[j] * geometric(theta[i] * theta[j], k)).sum();
        limit * limit * f64::from(k) - 2.0 * limit * single + double
    }
}

fn residues(theta: &[f64; BUFFERS], other: &[f64; BUFFERS]) -> [f64; BUFFERS] {
    std::array::from_fn(|j| {
        let zeros: f64 = other.iter().map(|other| theta[j] - other).product();
        let poles: f64 = (0..BUFFERS).filter(|i| *i != j).map(|i| theta[j] - theta[i]).product();
        zeros / poles
    })
}

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..BUFFERS).flat_map(|i| (0..BUFFERS).map(move |j| (i, j)))
}

/// 1 + r + … + r^{n−1}.
fn geometric(r: f64, n: u32) -> f64 {
    -(f64::from(n) * r.ln()).exp_m1() / (1.0 - r)
}

/// Gaussian noise that makes all releases of a run (μ, ν)-private.
///
/// **Definition.** Each coordinate of z has the standard deviation σ = Δ·‖C‖/√(2ρ), where ‖C‖ is the largest column norm of
/// C: √m for a tree.
///
/// **Lemma.** All releases together are ρ-zCDP. *Proof.* One message shifts Cx by at most √(2ρ)·σ in total. The shift may
/// be spread over values that are released in sequence and depend on each other (Bun and Steinke 2016, adaptive
/// composition). The same holds for discrete Gaussian noise (Canonne, Kamath and Steinke 2020). ∎
///
/// Groups of agents that are released as sums have the same Δ, since a message is in one group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    budget: Budget,
    mechanism: Mechanism,
    episodes: u32,
    node_sigma: f64,
}

impl Noise {
    /// Calibrates noise for messages at distance Δ = `sensitivity` over K = `episodes`. For K = 1 nothing is released and
    /// σ = 0.
    pub fn new(budget: Budget, mechanism: Mechanism, sensitivity: f64, episodes: u32) -> Self {
        let norm = mechanism.column_norm_squared(episodes);
        let node_sigma = sensitivity * (norm / (2.0 * budget.rho)).sqrt() * (1.0 + ROUNDINGS);
        Self { budget, mechanism, episodes, node_sigma }
    }

    /// Replaces σ by the rounded value that is sampled.
    pub(super) fn with_node_sigma(self, node_sigma: f64) -> Self {
        Self { node_sigma, ..self }
    }

    /// σ, the standard deviation of each coordinate of each node, or of each z_k for [`Mechanism::Blt`].
    pub fn node_sigma(&self) -> f64 {
        self.node_sigma
    }

    /// Standard deviation of each coordinate of the sum of the first k messages, k < K.
    pub fn release_sigma(&self, k: u32) -> f64 {
        self.node_sigma * self.mechanism.row_norm_squared(self.episodes, k).sqrt()
    }

    /// k with the largest [`release_sigma`](Self::release_sigma).
    pub fn worst_release(&self) -> u32 {
        self.mechanism.worst_release(self.episodes)
    }
}

/// Scope of bounds on the noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fleet {
    /// N.
    pub agents: u32,
    /// |G|, the size of the smallest group; 1 without groups.
    pub group_size: u32,
    /// D.
    pub dimension: usize,
    /// L, the length of the longest episode.
    pub episode_len: u32,
    /// δ: all bounds hold at once with probability 1 − δ/4.
    pub delta: f64,
}

/// Bounds on the noise (H, h) of one release.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseNorms {
    /// Bound on ‖H‖₂.
    pub spectral: f64,
    /// Bound on ‖H‖_F.
    pub frobenius: f64,
    /// Bound on ‖h‖₂.
    pub vector: f64,
}

/// Kind of bound on the noise that schedules use.
///
/// The theorems require that the bound holds for all agents and episodes with probability 1 − δ/4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NoiseBound {
    /// Concentration of Gaussian vectors: with t = √(2·ln(16·P·K/δ)) for P = ⌈N/|G|⌉ groups,
    ///
    /// ```text
    /// ‖H‖₂ ≤ σ_k(√(2D) + t),   ‖H‖_F ≤ σ_k(√(D(D+1)/2) + t),   ‖h‖₂ ≤ σ_k(√D + t).
    /// ```
    ///
    /// All norms are 1-Lipschitz in the noise. E λ_max(H) ≤ σ_k·√(2D) by comparison with √2·σ_k·⟨g, x⟩ on the sphere
    /// (Sudakov and Fernique). There are four tails of e^{−t²/2} for each of P·K releases: λ_max, −λ_min, ‖H‖_F and ‖h‖₂.
    #[default]
    Exact,
    /// ‖H‖₂ and ‖h‖₂ ≤ B·L with [`paper_bound`], and ‖H‖_F ≤ √D·‖H‖₂. The horizon is K·L, which is at least T.
    Paper,
}

named!(NoiseBound, "noise bound", Exact = "exact", Paper = "paper");

impl NoiseBound {
    /// Returns bounds for the release of the first k messages.
    pub fn norms(self, noise: &Noise, fleet: &Fleet, k: u32) -> NoiseNorms {
        match self {
            Self::Exact => exact_norms(noise, fleet, k),
            Self::Paper => paper_norms(noise, fleet),
        }
    }
}

fn exact_norms(noise: &Noise, fleet: &Fleet, k: u32) -> NoiseNorms {
    let sigma = noise.release_sigma(k) / f64::from(fleet.group_size);
    let releases = f64::from(fleet.agents.div_ceil(fleet.group_size)) * f64::from(noise.episodes);
    let t = (2.0 * (16.0 * releases / fleet.delta).ln()).sqrt();
    let bound = |dimension: usize| sigma * ((dimension as f64).sqrt() + t);
    let d = fleet.dimension;
    NoiseNorms { spectral: bound(2 * d), frobenius: bound(packed_len(d)), vector: bound(d) }
}

fn paper_norms(noise: &Noise, fleet: &Fleet) -> NoiseNorms {
    let length = f64::from(fleet.episode_len);
    let bound =
        paper_bound(noise.budget, fleet.agents, f64::from(noise.episodes) * length, fleet.dimension, fleet.delta);
    let spectral = bound * length;
    NoiseNorms { spectral, frobenius: spectral * (fleet.dimension as f64).sqrt(), vector: spectral }
}

/// B = 48·ι·ln(4/ν)·(√D + ι)/μ with ι = ln(128·N·T/δ), for a horizon of T steps (Theorems 2 and 3).
pub fn paper_bound(budget: Budget, agents: u32, horizon: f64, dimension: usize, delta: f64) -> f64 {
    let iota = (128.0 * f64::from(agents) * horizon / delta).ln();
    48.0 * iota * (4.0 / budget.nu).ln() * ((dimension as f64).sqrt() + iota) / budget.mu
}
