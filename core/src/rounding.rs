//! Bounds on f32 rounding errors, shared by the controller's admission checks and the tests.
//!
//! u = 2⁻²⁴ is the unit roundoff and γ_n = nu/(1 − nu) (Higham, *Accuracy and Stability of Numerical Algorithms*, §3.1). A
//! device never needs to call these functions.

/// The unit roundoff of f32, u = 2⁻²⁴.
const UNIT_ROUNDOFF: f64 = 5.960_464_477_539_063e-8;

/// Returns δ, the bound on the relative rounding error of one episode's sums.
///
/// An honest [`EpisodeSummary`](crate::EpisodeSummary) (Ũ, ũ) of at most L steps with rewards |r| ≤ r_max keeps
///
/// 1. tr Ũ ≤ (1 + δ)·L and ‖Ũ‖_F ≤ (1 + δ)·L,
/// 2. Ũ ⪰ −δL·I,
/// 3. ‖ũ‖₂ ≤ (1 + δ)·r_max·L,
/// 4. ũũᵀ ⪯ r_max²·L·(Ũ + 3δ(1 + δ)L·I).
///
/// *Proof.* Each entry of a sum of n products suffers at most n roundings in sequence, so |Ũ − U| ≤ γ_n·Σ|x||x|ᵀ entry by
/// entry, and ‖Ũ − U‖_F ≤ γ_n·Σ‖x‖². An accepted action has ‖x‖² ≤ 1 + s with s = (3D + 20)u: the limit of
/// [`norm_squared_limit`](crate::norm_squared_limit), plus the error of computing the norm. With δ = (1 + s)(1 + γ_L) − 1 the
/// first three follow from the triangle inequality. For the fourth, let e = ũ − u, so ‖e‖ ≤ γ_L·r_max·L·√(1 + s), and z a unit vector:
/// (zᵀũ)² ≤ (zᵀu)² + 2|zᵀu|‖e‖ + ‖e‖², where (zᵀu)² ≤ r_max²·L·zᵀUz by Cauchy–Schwarz and zᵀUz ≤ zᵀŨz + γ_L(1 + s)L; collecting
/// terms gives γ_L(1 + s)(3 + γ_L) ≤ 3δ(1 + δ). Underflow adds at most L·D·2⁻¹⁴⁹, far below the part sL of δL that the
/// bounds on Ũ do not use.
///
/// The bound grows with L because a sum of f32 in a register loses up to half a unit of its last place at every step; at the
/// largest L, 65 536, it is 0.4 %.
///
/// ```
/// use fedbandit_core::{MAX_EPISODE_LEN, rounding};
/// assert!(rounding::sums(64, 8) < 7e-6);
/// assert!(rounding::sums(MAX_EPISODE_LEN, 64) < 0.004);
/// ```
pub fn sums(episode_len: u32, dimension: usize) -> f64 {
    let accumulated = f64::from(episode_len) * UNIT_ROUNDOFF;
    let gamma = accumulated / (1.0 - accumulated);
    let norm_slack = (3.0 * dimension as f64 + 20.0) * UNIT_ROUNDOFF;
    (1.0 + norm_slack) * (1.0 + gamma) - 1.0
}

/// Returns the bound on the error of a [`score`](crate::Agent::score), relative to exact arithmetic on the model's f32 values:
/// 2⁻²⁴·( (D + 4)·(‖θ‖₂ + β‖x‖_{Λ⁻¹}) + 4·cond(Λ)·β‖x‖_{Λ⁻¹} ).
///
/// The term with ‖θ‖₂ is the standard bound on an inner product. The term with cond(Λ) comes from the factorisation. Its proven
/// worst case is D(D + 1)·cond(Λ) (Higham, theorem 10.3, to first order), where all rounding errors add up. The factor 4 is
/// empirical: over many thousand random and ill-conditioned matrices with cond(Λ) ≤ 10⁶ and D ≤ 32 the largest factor is
/// below 1, and the tests enforce 4. The exact score of the selected action is within twice this bound of the best.
pub fn score(dimension: usize, condition: f64, theta_norm: f64, beta_width: f64) -> f64 {
    let mean = (dimension as f64 + 4.0) * (theta_norm + beta_width);
    UNIT_ROUNDOFF * (mean + 4.0 * condition * beta_width)
}
