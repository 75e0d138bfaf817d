//! How far g(z) can be above its minimum, from what one pass found at z.

use super::super::norm;
use super::pass::{AT, Sums, pull_error};

/// A subgradient of f = Σ‖z − x_i‖ at z, as short as can be.
pub(super) struct Slope {
    /// ‖G‖, the pull of the rows that are not at z.
    rest: f64,
    /// What ‖G‖ is at most, without rounding.
    most: f64,
    /// The rows at z can pull with up to 1 each, in any direction: they balance m of ‖G‖.
    at: f64,
}

impl Slope {
    pub(super) fn new(sums: &Sums, n: usize) -> Self {
        let rest = norm(&sums.pull);
        Self { rest, most: rest * (1.0 + 1e-12) + pull_error(n, sums.pull.len()), at: sums.at as f64 }
    }

    /// A bound on the length of the shortest subgradient. At 0 the place is a minimum.
    pub(super) fn excess(&self) -> f64 {
        (self.most - self.at).max(0.0)
    }

    /// The shortest subgradient of g, from the pull.
    pub(super) fn gradient(&self, sums: &Sums, n: usize) -> Vec<f64> {
        let left = (1.0 - self.at / self.rest).max(0.0);
        sums.pull.iter().map(|pull| if self.rest > 0.0 { pull * left / n as f64 } else { 0.0 }).collect()
    }
}

/// A bound on g(z) − min g: the least of three, each proven by itself.
pub(super) fn gap(sums: &Sums, slope: &Slope, n: usize, reach: f64) -> f64 {
    // Moving the rows that only count as at z changes g by less than this, here and at its minimum.
    let blur = if sums.nearest < AT { 2.0 * AT } else { 0.0 };
    let excess = slope.excess();
    if excess == 0.0 {
        return blur;
    }
    let gap = curved(sums, excess, reach).min(dual(sums, slope, excess, n)) / n as f64;
    // g is never negative.
    gap.min(sums.mean_distance) * (1.0 + 1e-9) + blur
}

/// For ‖d‖ ≤ R and every row, ‖z + d − x‖ ≥ r + ⟨u, d⟩ + ‖d − ⟨u, d⟩u‖²/(2(r + R)). Summed up, with λ = `curvature`:
/// f(z + d) ≥ f(z) − ‖G‖‖d‖ + λ‖d‖²/2. If λR > 2‖G‖, f is larger on the whole sphere ‖d‖ = R than at z, so all
/// minima are inside, and there f ≥ f(z) − ‖G‖²/(2λ). Rows that are far away do no harm.
fn curved(sums: &Sums, excess: f64, reach: f64) -> f64 {
    if sums.curvature * reach > 2.0 * excess { excess * excess / (2.0 * sums.curvature) } else { f64::INFINITY }
}

/// The dual of min f is max Σ⟨y_i, −x_i⟩ over ‖y_i‖ ≤ 1 with Σy_i = 0. From y_i = (u_i − c_i G)/s with c_i = 1/(r_i W) and
/// s = 1 + max c_i‖G‖, the gap is (f·max c_i‖G‖ + ‖G‖²/W)/s. It needs no curvature: this one serves rows on a line.
fn dual(sums: &Sums, slope: &Slope, excess: f64, n: usize) -> f64 {
    let share = excess / (sums.nearest * sums.weight);
    (sums.mean_distance * n as f64 * share + excess * slope.most / sums.weight) / (1.0 + share)
}
