//! The way down to the median: quasi-Newton steps from place to place, one pass at each.
//!
//! Steps are judged by gradients alone. Since g is convex, ⟨∇g(z + d), d⟩ ≤ 0 proves g(z + d) ≤ g(z), while g itself
//! may be rounded to where it tells nothing: with rows at 10³⁰ it does not change at all.

use super::super::distance;
use super::certificate::{Slope, gap, norm};
use super::memory::{Memory, dot};
use super::pass::{BLOCK, Pass, Sums, View};
use super::{Tolerance, few, middle};

/// Passes before giving up. What is certified until then is reported.
const MOST_PASSES: u32 = 400;

/// Passes in which neither the gradient nor the gap halved: rounding allows no more.
const PATIENCE: u32 = 16;

/// The first steps may be so many times Weiszfeld's.
const FIRST_CAP: f64 = 20.0;

/// R of the curvature certificate, in typical distances: large enough to hold the minimum soon, small enough to cost
/// little of 1/(r + R).
const REACH: f64 = 0.1;

/// When to stop.
pub(super) enum Goal {
    /// At what a sample can tell: the gradients of two samples differ by about 1/√n anyway.
    Sample,
    Within(Tolerance),
}

/// A descent on some rows.
pub(super) struct Descent<'a> {
    pub(super) view: View<'a>,
    pub(super) goal: Goal,
    /// Without the processor's wider registers.
    pub(super) plain: bool,
    /// The median distance of a few rows, of those that are not at the place visited last.
    pub(super) typical: f64,
    /// The distance of every row at the place visited last.
    pub(super) radii: Vec<f64>,
    pub(super) memory: Memory,
}

/// A point with what a pass found there.
pub(super) struct Place {
    pub(super) z: Vec<f64>,
    pub(super) mean_distance: f64,
    pub(super) gap: f64,
    /// The shortest subgradient of g.
    gradient: Vec<f64>,
    sums: Sums,
    /// The nearest row that is not at z, if any, and how many are about as near.
    nearest: Option<usize>,
    near: usize,
    enough: bool,
}

/// How long a step may be: the cap grows while it holds us back, the limit comes from a step that went too far.
struct Trust {
    cap: f64,
    limit: f64,
}

impl Descent<'_> {
    /// Descends from `z` to the goal or as far as f64 goes. Returns the place with the least certified gap, and the
    /// number of passes.
    pub(super) fn run(&mut self, z: Vec<f64>) -> (Place, u32) {
        let mut here = self.visit(z);
        let mut best: Option<Place> = None;
        let mut least = norm(&here.gradient);
        let mut trust = Trust { cap: FIRST_CAP, limit: f64::INFINITY };
        let (mut passes, mut in_vain, mut tried) = (1, 0, None);
        while !here.enough && passes < MOST_PASSES && in_vain < PATIENCE {
            let (step, capped) = self.step(&here, &trust);
            let snap = here.nearest != tried && self.may_be_minimum(&here, norm(&step));
            let next = match here.nearest.filter(|_| snap) {
                Some(row) => self.view.row(row).to_vec(),
                None => here.z.iter().zip(&step).map(|(z, step)| z + step).collect(),
            };
            // Nothing pulls, or nothing that f64 could still follow.
            if next == here.z || !next.iter().all(|z| z.is_finite()) {
                break;
            }
            tried = if snap { here.nearest } else { tried };
            let there = self.visit(next);
            passes += 1;
            let step = difference(&there.z, &here.z);
            if there.sums.at == here.sums.at {
                self.memory.remember(step.clone(), difference(&there.gradient, &here.gradient));
            }
            let slope = norm(&there.gradient);
            let least_gap = best.as_ref().map_or(here.gap, |best| best.gap.min(here.gap));
            in_vain = if slope < 0.5 * least || there.gap < 0.5 * least_gap { 0 } else { in_vain + 1 };
            let downhill = dot(&there.gradient, &step) <= 0.0 || slope < 0.7 * least;
            least = least.min(slope);
            let left = if downhill {
                trust = Trust { cap: if capped && !snap { 4.0 * trust.cap } else { trust.cap }, limit: f64::INFINITY };
                std::mem::replace(&mut here, there)
            } else {
                trust.limit = if snap { trust.limit } else { 0.5 * norm(&step) };
                there
            };
            best = best.filter(|best| best.gap <= left.gap).or(Some(left));
        }
        (best.filter(|best| best.gap < here.gap && !here.enough).unwrap_or(here), passes)
    }

    /// A step down from here, and whether trust cut it short.
    fn step(&mut self, here: &Place, trust: &Trust) -> (Vec<f64>, bool) {
        // Weiszfeld's step takes the curvature for that of Σ I/r_i; on average over all directions it is (p − 1)/p of it.
        let p = here.z.len() as f64;
        let weiszfeld = self.view.len() as f64 / here.sums.weight * p / (p - 1.0);
        let mut step = self.memory.step(&here.gradient, weiszfeld);
        if !(dot(&step, &here.gradient) < 0.0) {
            self.memory = Memory::default();
            step = self.memory.step(&here.gradient, weiszfeld);
        }
        let most = (trust.cap * weiszfeld * norm(&here.gradient)).min(trust.limit);
        let length = norm(&step);
        if length > most {
            step.iter_mut().for_each(|step| *step *= most / length);
        }
        (step, length > most)
    }

    /// Makes a pass at `z`.
    pub(super) fn visit(&mut self, z: Vec<f64>) -> Place {
        let n = self.view.len();
        self.radii.resize(n, 0.0);
        let curvature_stride = (n / BLOCK / 64).clamp(1, 16);
        let reach = REACH * self.typical;
        let pass = Pass { view: self.view, reach, curvature_stride, plain: self.plain };
        let sums = pass.run(&z, &mut self.radii);
        let slope = Slope::new(&sums, n);
        let gap = gap(&sums, &slope, n, reach);
        let enough = match self.goal {
            Goal::Sample => slope.excess() <= 0.1 * (n as f64).sqrt(),
            Goal::Within(Tolerance::Absolute(most)) => gap == 0.0 || gap <= most,
            Goal::Within(Tolerance::Relative(share)) => gap == 0.0 || self.median_reaches(gap / share),
        };
        self.typical = typical(few(n).map(|i| self.radii[i]));
        let nearest = self.radii.iter().position(|r| *r == sums.nearest);
        let near = self.radii.iter().filter(|r| (sums.nearest..=1.1 * sums.nearest).contains(*r)).count();
        let gradient = slope.gradient(&sums, n);
        Place { z, mean_distance: sums.mean_distance, gap, gradient, nearest, near, enough, sums }
    }

    /// Whether the median distance is `least` or more.
    fn median_reaches(&self, least: f64) -> bool {
        let reached = self.radii.iter().filter(|r| **r >= least).count();
        reached >= self.radii.len() - self.radii.len() / 2
    }

    /// Whether the nearest row, with those about as near, could balance all others: then the minimum is there, and no
    /// step along a gradient would ever arrive. Only asked where the step would pass it by.
    fn may_be_minimum(&self, here: &Place, step: f64) -> bool {
        let Some(nearest) = here.nearest.filter(|_| here.sums.nearest <= 4.0 * step) else { return false };
        let row = self.view.row(nearest);
        let (r, near) = (distance(row, &here.z), here.near as f64);
        let pull_of_near = here.z.iter().zip(row).map(|(z, x)| near * (z - x) / r);
        let others: Vec<f64> = here.sums.pull.iter().zip(pull_of_near).map(|(all, near)| all - near).collect();
        norm(&others) <= 1.05 * near
    }
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// The median distance of those that are not 0.
pub(super) fn typical(distances: impl Iterator<Item = f64>) -> f64 {
    middle(distances.filter(|r| *r > 0.0).collect()).unwrap_or(0.0)
}
