//! Schedules of λ_k, β_k and L: the paper's theorems, and a calibrated one that learns within a device's lifetime.

use nalgebra::{DMatrix, DVector};

use super::streams::Streams;
use crate::aggregate::{distance, lower_median};
use crate::math::symmetric;
use crate::privacy::calibration::{Fleet, Noise, NoiseBound, NoiseNorms};

/// Source of λ_k and β_k.
///
/// Both may depend on data: λ_k on the aggregates and the spread of the streams around them, β_k also on the solution.
/// A function k ↦ (λ_k, β_k) is a schedule that depends on k alone; `|_| (1.0, 0.5)` is constant.
pub trait Schedule {
    /// Returns λ_k > 0.
    fn lambda(&self, evidence: &Evidence<'_>) -> f64;

    /// Returns β_k ≥ 0.
    fn beta(&self, evidence: &Evidence<'_>, solution: &Solution<'_>) -> f64;
}

/// Input for the choice of λ_k.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// k.
    pub episode: u32,
    /// All V̂_i and v̂_i.
    pub streams: &'a Streams,
    /// Agg(V̂_i), in the scaled packing.
    pub gram: &'a [f64],
    /// b_k = Agg(v̂_i).
    pub feature_sum: &'a [f64],
}

/// Further input for the choice of β_k.
#[derive(Clone, Copy, Debug)]
pub struct Solution<'a> {
    /// λ_k.
    pub lambda: f64,
    /// Λ_k.
    pub design: &'a DMatrix<f64>,
    /// θ_k.
    pub theta: &'a DVector<f64>,
}

impl Schedule for Box<dyn Schedule + Send> {
    fn lambda(&self, evidence: &Evidence<'_>) -> f64 {
        (**self).lambda(evidence)
    }

    fn beta(&self, evidence: &Evidence<'_>, solution: &Solution<'_>) -> f64 {
        (**self).beta(evidence, solution)
    }
}

impl<F: Fn(u32) -> (f64, f64)> Schedule for F {
    fn lambda(&self, evidence: &Evidence<'_>) -> f64 {
        self(evidence.episode).0
    }

    fn beta(&self, evidence: &Evidence<'_>, _: &Solution<'_>) -> f64 {
        self(evidence.episode).1
    }
}

/// Parameters of the theorems.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// N.
    pub agents: usize,
    /// T.
    pub horizon: u32,
    /// d.
    pub dimension: usize,
    /// α, the share of agents that may be corrupted. The theorems' λ_k, β_k and L depend on it.
    pub corruption: f64,
    /// σ, the bound on ‖xxᵀ − E(xxᵀ)‖_F (Assumption 1): √2 holds for all decision sets, and 0 if all agents have the
    /// same one.
    pub sigma: f64,
    /// R: the noise of rewards is R-sub-Gaussian.
    pub noise: f64,
    /// δ: the regret bound holds with probability 1 − δ.
    pub delta: f64,
}

impl Problem {
    /// ι = ln(128·N·T/δ).
    pub fn iota(&self) -> f64 {
        (128.0 * self.agents as f64 * f64::from(self.horizon) / self.delta).ln()
    }

    /// C_α = (2 − 2α)/(1 − 2α).
    pub fn c_alpha(&self) -> f64 {
        (2.0 - 2.0 * self.corruption) / (1.0 - 2.0 * self.corruption)
    }

    /// L = C_α(σ + R)√(T·ι), rounded up (Theorems 1 and 2).
    pub fn episode_len(&self) -> u32 {
        (self.c_alpha() * (self.sigma + self.noise) * (f64::from(self.horizon) * self.iota()).sqrt()).ceil() as u32
    }

    /// L = max{(σ + R)√(α·T·ι), 1}, rounded up (Theorem 3).
    pub fn episode_len_of_means(&self) -> u32 {
        let length = (self.sigma + self.noise) * (self.corruption * f64::from(self.horizon) * self.iota()).sqrt();
        length.max(1.0).ceil() as u32
    }
}

/// Bounds on the effect of privacy noise and of an inexact oracle on the aggregates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Inexact {
    /// Bound on ‖H_i^k‖_F for all i and k: the paper's B·L·√d.
    pub gram_noise: f64,
    /// Bound on ‖h_i^k‖₂ for all i and k: the paper's B·L.
    pub feature_noise: f64,
    /// ε, the tolerance of the geometric median.
    pub epsilon: f64,
}

/// λ_k = max{L, 8√(L·ι)·C_α·σ·√k} (Theorem 1).
pub fn lambda_theorem_1(problem: &Problem, episode_len: u32, k: u32) -> f64 {
    let length = f64::from(episode_len);
    let lambda_1 = 8.0 * (length * problem.iota()).sqrt() * problem.c_alpha() * problem.sigma;
    length.max(lambda_1 * f64::from(k).sqrt())
}

/// β_k = 3√(λ_k·d) + 4√((k−1)·L·d·ι)·C_α(σ + R)/√λ_k + 2R√(d·ι/N) (Theorem 1).
pub fn beta_theorem_1(problem: &Problem, episode_len: u32, k: u32, lambda: f64) -> f64 {
    let steps = f64::from(k.saturating_sub(1)) * f64::from(episode_len);
    let (d, iota) = (problem.dimension as f64, problem.iota());
    let error = 4.0 * (steps * d * iota).sqrt() * problem.c_alpha() * (problem.sigma + problem.noise);
    3.0 * (lambda * d).sqrt() + error / lambda.sqrt() + 2.0 * problem.noise * (d * iota / problem.agents as f64).sqrt()
}

/// λ_k = 2C_α(B·L·√d + ε) + that of Theorem 1 (Theorem 2).
pub fn lambda_theorem_2(problem: &Problem, episode_len: u32, k: u32, inexact: &Inexact) -> f64 {
    2.0 * problem.c_alpha() * (inexact.gram_noise + inexact.epsilon) + lambda_theorem_1(problem, episode_len, k)
}

/// β_k of Theorem 1, for the larger λ_k, + C_α(B·L + ε)/√λ_k (Theorem 2).
pub fn beta_theorem_2(problem: &Problem, episode_len: u32, k: u32, lambda: f64, inexact: &Inexact) -> f64 {
    let error = problem.c_alpha() * (inexact.feature_noise + inexact.epsilon);
    beta_theorem_1(problem, episode_len, k, lambda) + error / lambda.sqrt()
}

/// λ_k = 8(B·L·√d + ε) + max{L, 128σ√(α·L·ι)·√k} (Theorem 3).
pub fn lambda_theorem_3(problem: &Problem, episode_len: u32, k: u32, inexact: &Inexact) -> f64 {
    let length = f64::from(episode_len);
    let lambda_1 = 128.0 * problem.sigma * (problem.corruption * length * problem.iota()).sqrt();
    8.0 * (inexact.gram_noise + inexact.epsilon) + length.max(lambda_1 * f64::from(k).sqrt())
}

/// β_k = 3√(λ_k·d) + (64(σ + R)√(α(k−1)·L·d·ι) + 4(B·L + ε))/√λ_k + 2R√(d·ι/N) (Theorem 3).
pub fn beta_theorem_3(problem: &Problem, episode_len: u32, k: u32, lambda: f64, inexact: &Inexact) -> f64 {
    let steps = f64::from(k.saturating_sub(1)) * f64::from(episode_len);
    let (d, iota) = (problem.dimension as f64, problem.iota());
    let drift = 64.0 * (problem.sigma + problem.noise) * (problem.corruption * steps * d * iota).sqrt();
    let error = drift + 4.0 * (inexact.feature_noise + inexact.epsilon);
    3.0 * (lambda * d).sqrt() + error / lambda.sqrt() + 2.0 * problem.noise * (d * iota / problem.agents as f64).sqrt()
}

/// Schedule of one of the paper's theorems, for episodes of equal length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Theorem {
    /// The theorem.
    pub number: TheoremNumber,
    /// Parameters of its formulas.
    pub problem: Problem,
    /// L.
    pub episode_len: u32,
    /// Bounds on noise and tolerance. Theorem 1 ignores them.
    pub inexact: Inexact,
}

/// The paper's theorems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TheoremNumber {
    /// Theorem 1, Byzantine-UCB.
    One,
    /// Theorem 2, Byzantine-UCB-DP.
    Two,
    /// Theorem 3, Byzantine-UCB-DP-MoM.
    Three,
}

impl Schedule for Theorem {
    fn lambda(&self, evidence: &Evidence<'_>) -> f64 {
        let Self { number, problem, episode_len, inexact } = self;
        match number {
            TheoremNumber::One => lambda_theorem_1(problem, *episode_len, evidence.episode),
            TheoremNumber::Two => lambda_theorem_2(problem, *episode_len, evidence.episode, inexact),
            TheoremNumber::Three => lambda_theorem_3(problem, *episode_len, evidence.episode, inexact),
        }
    }

    fn beta(&self, evidence: &Evidence<'_>, solution: &Solution<'_>) -> f64 {
        let Self { number, problem, episode_len, inexact } = self;
        match number {
            TheoremNumber::One => beta_theorem_1(problem, *episode_len, evidence.episode, solution.lambda),
            TheoremNumber::Two => beta_theorem_2(problem, *episode_len, evidence.episode, solution.lambda, inexact),
            TheoremNumber::Three => beta_theorem_3(problem, *episode_len, evidence.episode, solution.lambda, inexact),
        }
    }
}

/// Schedule calibrated by the spread of the streams around their median.
///
/// **Definition.** For P streams with the aggregates G and b, let
///
/// ```text
/// s_V = med_i ‖V̂_i − G‖_F,
/// s_z = med_i max{‖v̂_i − b‖, ‖(V̂_i − G)θ‖, ‖(v̂_i − b) − (V̂_i − G)θ‖},
/// ```
///
/// and κ = α/√(1 − 2α) for the corruption α that the width is designed for. Then
///
/// ```text
/// λ_k = max{1, κ·s_V + max(2s_V/√(P(d + 1)), ‖H̄‖)},
/// β_k = (S·λ_k + κ·s_z + max(s_z/√P, √(1 + S²)·‖h̄‖))/√λ_min(Λ_k).
/// ```
///
/// The terms follow the paper's lemma on the approximation error:
///
/// * the bias, λ_k‖θ*‖;
/// * the effect of corrupted streams on the median, κ·s_V and κ·s_z. Fewer than half of the streams cannot inflate these
///   medians. κ is the effect of far corrupted streams where honest ones lie orthogonal to it, and far below C_α;
/// * the noise of honest streams, or with privacy the bounds ‖H̄‖₂ and ‖h̄‖₂ on the noise of the mean of P releases. In
///   each direction the residual h̄ − H̄θ* has at most 1 + ‖θ*‖² times the variance of h̄.
///
/// The formulas depend on the streams only, not on the number of steps. With a half-life, streams and their spread shrink
/// alike, and the width follows.
///
/// **This is a heuristic**: nothing proves that the width covers θ*. Simulations therefore report ‖θ_k − θ*‖_Λ/β_k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibrated {
    /// α < 1/2, the share of streams that may be corrupted.
    pub corruption: f64,
    /// S ≥ ‖θ*‖₂.
    pub theta_bound: f64,
    /// Privacy noise of the streams, if any.
    pub noise: Option<StreamNoise>,
}

/// Noise of a private run, as input for schedules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamNoise {
    /// Standard deviations of the noise.
    pub noise: Noise,
    /// Fleet for which the noise is bounded, with the probability of failure.
    pub fleet: Fleet,
    /// Kind of bound.
    pub bound: NoiseBound,
}

impl StreamNoise {
    /// Returns bounds on the noise of the mean of P streams in episode k, after k − 1 messages per agent: those of one
    /// stream, divided by √P.
    pub(crate) fn of_mean(&self, episode: u32, streams: f64) -> NoiseNorms {
        let one = Fleet { agents: self.fleet.group_size, ..self.fleet };
        let NoiseNorms { spectral, frobenius, vector } = self.bound.norms(&self.noise, &one, episode.saturating_sub(1));
        let root = streams.sqrt();
        NoiseNorms { spectral: spectral / root, frobenius: frobenius / root, vector: vector / root }
    }

    /// Returns bounds on the noise of each stream that hold in all episodes, for a [`Theorem`].
    pub fn inexact(&self, epsilon: f64) -> Inexact {
        let NoiseNorms { frobenius, vector, .. } =
            self.bound.norms(&self.noise, &self.fleet, self.noise.worst_release());
        Inexact { gram_noise: frobenius, feature_noise: vector, epsilon }
    }
}

/// κ = α/√(1 − 2α), the shift of a geometric median by a corrupted share α, in distances of honest points.
///
/// Let honest points have distance r from their centre, orthogonal to a direction in which corrupted points are far away.
/// At the median, at distance t in this direction, unit vectors balance: (1 − α)·t/√(r² + t²) = α. Hence t = κr.
pub(crate) fn kappa(corruption: f64) -> f64 {
    corruption / (1.0 - 2.0 * corruption).sqrt()
}

impl Calibrated {
    fn noise(&self, evidence: &Evidence<'_>) -> NoiseNorms {
        let streams = evidence.streams.gram.len() as f64;
        self.noise.map_or(NoiseNorms { spectral: 0.0, frobenius: 0.0, vector: 0.0 }, |noise| {
            noise.of_mean(evidence.episode, streams)
        })
    }
}

impl Schedule for Calibrated {
    fn lambda(&self, evidence: &Evidence<'_>) -> f64 {
        let (streams, d) = (evidence.streams.gram.len() as f64, evidence.feature_sum.len() as f64);
        let spread = lower_median(evidence.streams.gram.rows().map(|row| distance(row, evidence.gram)).collect());
        let sampling = 2.0 * spread / (streams * (d + 1.0)).sqrt();
        (kappa(self.corruption) * spread + sampling.max(self.noise(evidence).spectral)).max(1.0)
    }

    fn beta(&self, evidence: &Evidence<'_>, solution: &Solution<'_>) -> f64 {
        let streams = evidence.streams.gram.len() as f64;
        let spread = residual_spread(evidence, solution.theta.as_slice());
        let noise = self.noise(evidence);
        let error = (spread / streams.sqrt()).max(noise.vector * self.theta_bound.hypot(1.0));
        let least = symmetric::eigenpairs(solution.design).iter().map(|(value, _)| *value).fold(f64::MAX, f64::min);
        (self.theta_bound * solution.lambda + kappa(self.corruption) * spread + error) / least.sqrt()
    }
}

/// Returns s_z of [`Calibrated`].
fn residual_spread(evidence: &Evidence<'_>, theta: &[f64]) -> f64 {
    let centre = symmetric::product(evidence.gram, theta);
    let rows = evidence.streams.gram.rows().zip(evidence.streams.feature_sum.rows());
    let spreads = rows.map(|(gram, feature_sum)| {
        let image = symmetric::product(gram, theta);
        let residual = |j: usize| (feature_sum[j] - image[j]) - (evidence.feature_sum[j] - centre[j]);
        let squares: f64 = (0..theta.len()).map(|j| residual(j).powi(2)).sum();
        distance(feature_sum, evidence.feature_sum).max(distance(&image, &centre)).max(squares.sqrt())
    });
    lower_median(spreads.collect())
}

/// Schedule of an agent that learns alone: λ = 1 and β = R√(ln det(Λ/λ) + 2 ln(1/δ)) + S√λ (Abbasi-Yadkori, Pál and
/// Szepesvári 2011, Theorem 2).
///
/// With a half-life the theorem applies to the actions √w·x with rewards √w·r, whose noise is R-sub-Gaussian since w ≤ 1. The
/// width then covers a constant θ* in each episode with probability 1 − δ, instead of in all at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoloSchedule {
    /// R.
    pub noise: f64,
    /// S ≥ ‖θ*‖₂.
    pub theta_bound: f64,
    /// δ.
    pub delta: f64,
}

impl Schedule for SoloSchedule {
    fn lambda(&self, _: &Evidence<'_>) -> f64 {
        1.0
    }

    fn beta(&self, _: &Evidence<'_>, solution: &Solution<'_>) -> f64 {
        let eigenvalues = symmetric::eigenpairs(solution.design);
        let log_det: f64 = eigenvalues.iter().map(|(value, _)| (value / solution.lambda).ln()).sum();
        self.noise * (log_det.max(0.0) - 2.0 * self.delta.ln()).sqrt() + self.theta_bound * solution.lambda.sqrt()
    }
}
