//! How much noise a privacy budget asks for, and how large that noise can be. Nothing here sees a message.
//!
//! The unit is one message (U, u) as a vector: the scaled packing of U ([`symmetric`](crate::math::symmetric)), then u. Two
//! runs are neighbours if one message differs. That moves the vector by at most Δ ([`sensitivity`]), whatever releases
//! are made of it moves along, and Gaussian noise with a deviation in proportion to Δ hides it ([`Noise`]). All
//! roundings go to the side on which the promise holds.

use fedbandit_core::{packed_len, rounding};
use thiserror::Error;

use crate::algorithm::Level;
use crate::names::named;

/// (μ, ν): what an observer can learn of one message. No event's probability changes by more than a factor e^μ and ν
/// on top (the paper's definition of federated differential privacy; elsewhere these are ε and δ).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    mu: f64,
    nu: f64,
    rho: f64,
}

/// Why two numbers are no [`Budget`].
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// μ is a positive number.
    #[error("mu is a positive number, not {0}")]
    Mu(f64),
    /// ν is a probability below 1; with 0 Gaussian noise cannot do it.
    #[error("nu is between 0 and 1, not {0}")]
    Nu(f64),
    /// The noise would be larger than numbers go.
    #[error("no finite noise gives mu = {0} with nu = {1}")]
    OutOfReach(f64, f64),
}

impl Budget {
    /// 0 < μ < ∞ and 0 < ν < 1.
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

    /// The μ that holds, with the same ν, for whoever is in r messages: the least one that r²ρ-zCDP implies.
    ///
    /// r messages move what is released by up to r times as much as one.
    pub fn mu_for_messages(&self, r: u32) -> f64 {
        let rho = f64::from(r).powi(2) * self.rho;
        largest(|mu| delta(rho, mu) > self.nu).next_up()
    }
}

/// The δ with which ρ-zCDP implies (μ, δ)-differential privacy, rounded up:
///
/// inf over b > 0 of exp(b(1 + b)ρ − bμ)·bᵇ/(1 + b)^{1+b}
///
/// (Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential Privacy*, proposition 12, with b = a − 1). For
/// the privacy loss Z, δ = E max(0, 1 − e^{μ−Z}); the function (1 − e^{−x})·e^{−bx} is largest at e^{−x} = b/(1 + b), so δ ≤ E
/// e^{b(Z−μ)}·bᵇ/(1 + b)^{1+b}, and E e^{bZ} ≤ e^{b(1+b)ρ} is what zCDP says. The logarithm, b(1 + b)ρ − bμ − (1 + b)·ln(1 + 1/b) − ln
/// b, is convex and least where its derivative (1 + 2b)ρ − μ − ln(1 + 1/b) is 0. Any other b gives a valid δ, too.
pub fn delta(rho: f64, mu: f64) -> f64 {
    // For the least b, 1/b is infinite.
    let log = |b: f64| b.recip().min(f64::MAX).ln_1p();
    // Beyond this bμ the least is 0 for f64, and terms as large would drown it in their roundings.
    let b = largest(|b| (1.0 + 2.0 * b) * rho - mu < log(b)).min(1e5 / mu);
    let terms = [b * (1.0 + b) * rho, -b * mu, -(1.0 + b) * log(b), -b.ln()];
    let rounded = ROUNDINGS * (1.0 + terms.map(f64::abs).iter().sum::<f64>());
    (terms.iter().sum::<f64>() + rounded).exp().min(1.0)
}

/// More than a few dozen roundings in sequence cost, relatively.
const ROUNDINGS: f64 = 1e-14;

/// The largest positive number up to which a condition holds; 0 if there is none.
fn largest(holds: impl Fn(f64) -> bool) -> f64 {
    // Positive numbers are ordered like their bits.
    let (mut low, mut high) = (0, f64::INFINITY.to_bits());
    while high - low > 1 {
        let middle = low.midpoint(high);
        *if holds(f64::from_bits(middle)) { &mut low } else { &mut high } = middle;
    }
    f64::from_bits(low)
}

/// Δ, how far two messages that admission lets pass can be apart: the ℓ2 norm of (U, u) − (U′, u′), rounded up.
///
/// A refused or missing message counts as 0, which would pass as well. Let ℓ = (1 + δ)L with the tolerance δ of
/// [`rounding::sums`], so that ‖U‖_F ≤ ℓ and ‖u‖₂ ≤ ℓ at both levels.
///
/// * [`Level::Paper`]: each part moves by at most 2ℓ, so Δ = 2√2·ℓ.
/// * [`Level::Strict`]: let s = 3δ(1 + δ)L be the shift that admission tolerates, and A = U + sI, so that A ⪰ 0 and
///   uuᵀ ⪯ L·A. The inner product of positive semidefinite matrices is monotone, hence ⟨A, A′⟩ ≥ ⟨uuᵀ, u′u′ᵀ⟩/L² = p²/L²
///   with p = uᵀu′, and with tr U ≤ ℓ
///
///   ⟨U, U′⟩ = ⟨A, A′⟩ − s·(tr U + tr U′) − Ds² ≥ p²/L² − 2sℓ − Ds².
///
///   Therefore ‖U − U′‖_F² + ‖u − u′‖² ≤ 4ℓ² − 2⟨U, U′⟩ − 2p ≤ 4ℓ² + 4sℓ + 2Ds² − 2p²/L² − 2p, and the last two terms
///   are at most L²/2, at p = −L²/2: **Δ² = 4ℓ² + L²/2 + 4sℓ + 2Ds²**, which is (3/√2·L)² without tolerance. Steps that
///   all take one action with reward 1, at an angle of 120° in the two runs, reach that.
///
/// What f64 misses in admission's own sums and factors is relatively below 10⁻¹⁰, and its slack on L in uuᵀ ⪯ L·A is
/// 10⁻⁹, of which Δ feels a tenth; a factor 1 + 10⁻⁹ covers both. Δ grows with L: where episodes differ in length, the
/// longest counts.
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

/// Δ for messages that were truncated toward zero to multiples of a grid: Δ + grid·√(D(D + 1)/2 + D).
///
/// Two values of one sign are truncated by less than a grid's step each, in the same direction, so their distance grows
/// by less than one step; values of different signs come closer.
pub fn truncated(sensitivity: f64, grid: f64, dimension: usize) -> f64 {
    (sensitivity + grid * ((packed_len(dimension) + dimension) as f64).sqrt()) * (1.0 + ROUNDINGS)
}

/// How noise is put on prefix sums: they are B·(C·x + z) with B·C = the lower triangle of ones, and z is the noise.
///
/// One message moves C·x by at most Δ times the largest norm of C's columns; release k has the noise of B's k-th row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mechanism {
    /// The binary tree (Dwork et al. 2010; Chan et al. 2011): C sums up the nodes, and release k is the sum of the
    /// popcount(k) nodes that k's bits name.
    #[default]
    Tree,
    /// The same noisy nodes, each replaced by the best estimate from it and all nodes below it (Honaker 2015).
    Honaker,
    /// A buffered linear Toeplitz matrix ([`Blt`]).
    Blt,
}

impl Mechanism {
    /// The squared norm of C's largest column, rounded up.
    fn column_norm_squared(self, episodes: u32) -> f64 {
        match self {
            Self::Tree | Self::Honaker => levels(episodes).into(),
            Self::Blt => Blt::for_episodes(episodes).column_norm_squared(episodes.saturating_sub(1)),
        }
    }

    /// The squared norm of B's k-th row.
    fn row_norm_squared(self, episodes: u32, k: u32) -> f64 {
        match self {
            Self::Tree => k.count_ones().into(),
            Self::Honaker => (0..32).filter(|level| k >> level & 1 == 1).map(honaker_variance).sum(),
            Self::Blt => Blt::for_episodes(episodes).row_norm_squared(k),
        }
    }

    /// The k below K with the largest row.
    fn worst_release(self, episodes: u32) -> u32 {
        match self {
            // No number below K has more ones, and low levels are the noisier ones.
            Self::Tree | Self::Honaker => (1 << episodes.checked_ilog2().unwrap_or(0)) - 1,
            Self::Blt => episodes.saturating_sub(1),
        }
    }
}

named!(Mechanism, "mechanism", Tree = "tree", Honaker = "honaker", Blt = "blt");

/// m = ⌊log₂(K − 1)⌋ + 1, in how many nodes of the tree a message is; 0 for K = 1.
///
/// The model of episode k is made of k − 1 messages per agent, so of K episodes only the first K − 1 sums are released.
pub fn levels(episodes: u32) -> u32 {
    episodes.saturating_sub(1).checked_ilog2().map_or(0, |level| level + 1)
}

/// The variance of a node's best estimate, v_j = 1/(2 − 2⁻ʲ). v_0 = 1, and 1/v_j = 1 + 1/(2v_{j−1}): its own noise, and that
/// of two estimated children.
pub(super) fn honaker_variance(level: u32) -> f64 {
    1.0 / (2.0 - 0.5_f64.powi(level as i32))
}

/// A buffered linear Toeplitz factorisation with three buffers (Dvijotham et al., *Efficient and Near-Optimal Noise
/// Generation for Streaming Differential Privacy*, 2024).
///
/// C has the coefficients c_0 = 1, c_i = Σ_j ω_j·θ_j^{i−1}, and C⁻¹ has the same form with θ̂ and ω̂. They interlace,
/// 1 > θ_1 > θ̂_1 > θ_2 > …, so all ω are positive. Privacy rests on the norm of c alone, not on how well θ was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blt {
    /// θ.
    pub theta: [f64; BUFFERS],
    /// θ̂.
    pub theta_hat: [f64; BUFFERS],
}

/// The number of buffers.
pub const BUFFERS: usize = 3;

/// For each K the θ and θ̂ with the least noise in the worst release, found numerically: within 0.1 % of the best
/// Toeplitz matrix at K = 256, 0.5 % at 4,096 and 6 % at 2²⁰.
const TUNED: [(u32, Blt); 6] = [
    (256, Blt { theta: [0.996641, 0.947413, 0.622773], theta_hat: [0.983615, 0.850955, 0.238888] }),
    (1024, Blt { theta: [0.998973, 0.978560, 0.743283], theta_hat: [0.994450, 0.922609, 0.327381] }),
    (4096, Blt { theta: [0.999682, 0.991003, 0.826365], theta_hat: [0.998067, 0.959243, 0.411712] }),
    (1 << 14, Blt { theta: [0.999899, 0.996035, 0.881393], theta_hat: [0.999294, 0.977823, 0.487646] }),
    (1 << 16, Blt { theta: [0.999968, 0.998211, 0.918779], theta_hat: [0.999738, 0.987748, 0.556423] }),
    (1 << 20, Blt { theta: [0.999997, 0.999643, 0.962908], theta_hat: [0.999965, 0.996332, 0.677017] }),
];

impl Blt {
    /// The parameters for K episodes: those tuned for the next larger K, since too long a memory costs almost nothing
    /// (below 0.6 %) and too short a one much.
    pub fn for_episodes(episodes: u32) -> Self {
        let at = TUNED.partition_point(|(tuned, _)| *tuned < episodes);
        TUNED[at.min(TUNED.len() - 1)].1
    }

    /// ω_j = Π_i (θ_j − θ̂_i) / Π_{i≠j} (θ_j − θ_i).
    pub fn omega(&self) -> [f64; BUFFERS] {
        residues(&self.theta, &self.theta_hat)
    }

    /// ω̂, the same with θ and θ̂ exchanged.
    pub fn omega_hat(&self) -> [f64; BUFFERS] {
        residues(&self.theta_hat, &self.theta)
    }

    /// ‖c‖² over the first n coefficients, rounded up.
    pub fn column_norm_squared(&self, n: u32) -> f64 {
        let Some(last) = n.checked_sub(1) else { return 0.0 };
        let omega = self.omega();
        let products = pairs().map(|(i, j)| omega[i] * omega[j] * geometric(self.theta[i] * self.theta[j], last));
        // 1 − θθ′ is as small as 10⁻⁶, and loses that much of its precision; all terms are positive.
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
/// Each coordinate of z has the deviation σ = Δ·‖C‖/√(2ρ), where ‖C‖ is the largest norm of C's columns: √m for a tree.
/// One message then shifts Cx by no more than √(2ρ)·σ in all, however the shift is spread over values that are released
/// one after the other and may depend on each other, which is ρ-zCDP (Bun and Steinke 2016, adaptive composition), with
/// discrete Gaussian noise as well (Canonne, Kamath and Steinke 2020). Groups of agents that are released as their
/// sums have the same Δ, for a message is in one of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    budget: Budget,
    mechanism: Mechanism,
    episodes: u32,
    node_sigma: f64,
}

impl Noise {
    /// For messages that differ by up to Δ = `sensitivity`, over K = `episodes`. With K = 1 nothing is released and σ = 0.
    pub fn new(budget: Budget, mechanism: Mechanism, sensitivity: f64, episodes: u32) -> Self {
        let norm = mechanism.column_norm_squared(episodes);
        let node_sigma = sensitivity * (norm / (2.0 * budget.rho)).sqrt() * (1.0 + ROUNDINGS);
        Self { budget, mechanism, episodes, node_sigma }
    }

    /// With another σ, for noise that is sampled with a rounded one.
    pub(super) fn with_node_sigma(self, node_sigma: f64) -> Self {
        Self { node_sigma, ..self }
    }

    /// σ, the deviation of each coordinate of each node; of each z_k for [`Mechanism::Blt`].
    pub fn node_sigma(&self) -> f64 {
        self.node_sigma
    }

    /// The deviation of each coordinate of the sum of the first k messages, k < K.
    pub fn release_sigma(&self, k: u32) -> f64 {
        self.node_sigma * self.mechanism.row_norm_squared(self.episodes, k).sqrt()
    }

    /// The k with the largest [`release_sigma`](Self::release_sigma).
    pub fn worst_release(&self) -> u32 {
        self.mechanism.worst_release(self.episodes)
    }
}

/// Whose noise is to be bounded, and how surely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fleet {
    /// N.
    pub agents: u32,
    /// |G|, the size of the smallest group whose mean is released; 1 without groups.
    pub group_size: u32,
    /// D.
    pub dimension: usize,
    /// L, the longest.
    pub episode_len: u32,
    /// δ: all bounds hold at once with probability 1 − δ/4.
    pub delta: f64,
}

/// Bounds on the noise (H, h) of one release.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseNorms {
    /// On ‖H‖₂.
    pub spectral: f64,
    /// On ‖H‖_F.
    pub frobenius: f64,
    /// On ‖h‖₂.
    pub vector: f64,
}

/// Where a schedule takes its bound on the noise from.
///
/// The theorems ask only that the bound holds for all agents and episodes with probability 1 − δ/4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NoiseBound {
    /// By the concentration of Gaussian vectors: with t = √(2·ln(16·P·K/δ)) for P = ⌈N/|G|⌉ groups,
    /// ‖H‖₂ ≤ σ_k(√(2D) + t), ‖H‖_F ≤ σ_k(√(D(D+1)/2) + t) and ‖h‖₂ ≤ σ_k(√D + t).
    ///
    /// All norms are 1-Lipschitz in the noise, and E λ_max(H) ≤ σ_k·√(2D) by comparison with √2·σ_k·⟨g, x⟩ on the
    /// sphere (Sudakov and Fernique). Four tails, λ_max and −λ_min among them, of e^{−t²/2} for each of P·K releases.
    #[default]
    Exact,
    /// ‖H‖₂ and ‖h‖₂ ≤ B·L with [`paper_bound`], and ‖H‖_F ≤ √D·‖H‖₂.
    Paper,
}

named!(NoiseBound, "noise bound", Exact = "exact", Paper = "paper");

impl NoiseBound {
    /// For the release of the first k messages.
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

/// B = 48·ι·ln(4/ν)·(√D + ι)/μ with ι = ln(128·N·T/δ), for a horizon of T steps (the paper's theorems 2 and 3).
pub fn paper_bound(budget: Budget, agents: u32, horizon: f64, dimension: usize, delta: f64) -> f64 {
    let iota = (128.0 * f64::from(agents) * horizon / delta).ln();
    48.0 * iota * (4.0 / budget.nu).ln() * ((dimension as f64).sqrt() + iota) / budget.mu
}
