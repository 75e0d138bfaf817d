//! Upper bounds on g(z) − min g from the sums of one pass at z.

use super::super::norm;
use super::pass::{AT, Sums, pull_error};

/// Shortest subgradient of f = Σ‖z − x_i‖ at z.
pub(super) struct Slope {
    /// ‖G‖, the pull of the rows that are not at z.
    rest: f64,
    /// Upper bound on ‖G‖ that includes rounding.
    most: f64,
    /// m, the number of rows at z. Each can pull with up to 1 in any direction, so they balance m of ‖G‖.
    at: f64,
}

impl Slope {
    pub(super) fn new(sums: &Sums, n: usize) -> Self {
        let rest = norm(&sums.pull);
        Self { rest, most: rest * (1.0 + 1e-12) + pull_error(n, sums.pull.len()), at: sums.at as f64 }
    }

    /// Returns a bound on the length of the shortest subgradient. If it is 0, z is a minimum.
    pub(super) fn excess(&self) -> f64 {
        (self.most - self.at).max(0.0)
    }

    /// Returns the shortest subgradient of g.
    pub(super) fn gradient(&self, sums: &Sums, n: usize) -> Vec<f64> {
        let left = (1.0 - self.at / self.rest).max(0.0);
        sums.pull.iter().map(|pull| if self.rest > 0.0 { pull * left / n as f64 } else { 0.0 }).collect()
    }
}

/// Returns a bound on g(z) − min g: the least of [`curved`], [`dual`] and g(z) itself.
pub(super) fn gap(sums: &Sums, slope: &Slope, n: usize, reach: f64) -> f64 {
    // Rows within AT of z count as at z. Moving them there changes g by less than this, at z and at its minimum.
    let blur = if sums.nearest < AT { 2.0 * AT } else { 0.0 };
    let excess = slope.excess();
    if excess == 0.0 {
        return blur;
    }
    let gap = curved(sums, excess, reach).min(dual(sums, slope, excess, n)) / n as f64;
    // g is never negative.
    gap.min(sums.mean_distance) * (1.0 + 1e-9) + blur
}

/// Bound by curvature. **Lemma.** With λ = `curvature` and R = `reach`, f(z) − min f ≤ ‖G‖²/(2λ) if λR > 2‖G‖.
///
/// *Proof.* For ‖d‖ ≤ R and a row x at distance r in direction u, ‖z + d − x‖ ≥ r + ⟨u, d⟩ + ‖d − ⟨u, d⟩u‖²/(2(r + R)). The
/// sum over rows is f(z + d) ≥ f(z) − ‖G‖‖d‖ + λ‖d‖²/2. If λR > 2‖G‖, f is larger on the whole sphere ‖d‖ = R than at z. So
/// all minima are inside, where f ≥ f(z) − ‖G‖²/(2λ). ∎ Far rows do not weaken this bound.
fn curved(sums: &Sums, excess: f64, reach: f64) -> f64 {
    if sums.curvature * reach > 2.0 * excess { excess * excess / (2.0 * sums.curvature) } else { f64::INFINITY }
}

/// Bound by duality. **Lemma.** With c = 1/(W·min r_i), f(z) − min f ≤ (f(z)·c‖G‖ + ‖G‖²/W)/(1 + c‖G‖).
///
/// *Proof.* The dual of min f is max Σ⟨y_i, −x_i⟩ over ‖y_i‖ ≤ 1 with Σy_i = 0. Take y_i = (u_i − c_iG)/(1 + c‖G‖) with
/// c_i = 1/(r_iW) ≤ c. ∎ It needs no curvature, so it also serves rows on a line.
fn dual(sums: &Sums, slope: &Slope, excess: f64, n: usize) -> f64 {
    let share = excess / (sums.nearest * sums.weight);
    (sums.mean_distance * n as f64 * share + excess * slope.most / sums.weight) / (1.0 + share)
}
