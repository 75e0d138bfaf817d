//! Quasi-Newton descent to the median, with one pass per iterate.
//!
//! Steps are judged by gradients alone: since g is convex, ⟨∇g(z + d), d⟩ ≤ 0 proves g(z + d) ≤ g(z). Values of g are too
//! coarse for this: with rows at 10³⁰, rounding hides every change of g.

use super::super::{distance, norm};
use super::certificate::{Slope, gap};
use super::lbfgs::{Lbfgs, dot};
use super::pass::{Pass, Sums, View};
use super::{Tolerance, few, upper_median};

/// Maximum number of passes. The answer then has the best certificate so far.
const MOST_PASSES: u32 = 400;

/// Passes without halving the gradient or the gap after which rounding is assumed to prevent progress.
const PATIENCE: u32 = 40;

/// Passes without progress after which the descent restarts from another point.
const LOST: u32 = 6;

/// Initial limit on the step length, in lengths of Weiszfeld's step.
const FIRST_CAP: f64 = 20.0;

/// Factor by which the limit grows after a truncated step that descended, and shrinks after a step that went too far.
/// With a limit that never grew, rows near a line were not certified.
const TRUST: f64 = 4.0;

/// A gradient shorter than this share of the shortest so far counts as descent without proof. The shortest gradient then
/// shrinks by this factor, so this happens finitely often.
const SHORTER: f64 = 0.7;

/// Maximum number of clusters that may be entered without proof of descent.
const ENTRIES: u32 = 4;

/// Rows within this factor of the nearest distance form a cluster with the nearest row.
const ABOUT: f64 = 1.1;

/// Tolerance of the test for a minimum at m coinciding rows, which holds if the others pull with at most m. The pull is
/// known at a nearby point only, where it may be slightly larger.
const BALANCE: f64 = 1.05;

/// Stopping criterion.
pub(super) enum Goal {
    /// Precision of a sample: the gradients of two samples differ by about 1/√n.
    Sample,
    Within(Tolerance),
}

/// Descent on the rows of a view.
pub(super) struct Descent<'a> {
    pub(super) view: View<'a>,
    pub(super) goal: Goal,
    /// Disables SIMD.
    pub(super) plain: bool,
    /// Median distance of a few rows from the last iterate, without rows at it.
    pub(super) typical: f64,
    /// Distance of every row from the last iterate.
    pub(super) radii: Vec<f64>,
    pub(super) memory: Lbfgs,
}

/// Iterate with the results of its pass.
pub(super) struct Place {
    pub(super) z: Vec<f64>,
    pub(super) mean_distance: f64,
    pub(super) gap: f64,
    /// The shortest subgradient of g.
    gradient: Vec<f64>,
    sums: Sums,
    /// Nearest row, computed once a step may overshoot it.
    near: Option<Near>,
    enough: bool,
}

/// Nearest row that is not at z, and the number of rows in its cluster.
#[derive(Clone, Copy)]
struct Near {
    row: usize,
    count: usize,
}

/// Kind of step.
#[derive(Clone, Copy, PartialEq)]
enum Move {
    /// Quasi-Newton step, possibly truncated to the limit.
    Newton { cut: bool },
    /// Weiszfeld's step, in Vardi and Zhang's form at a row. It always descends: it minimises a quadratic majorant of g
    /// that touches g at z.
    Weiszfeld,
    /// Step to the nearest row, which may be the minimum.
    Snap,
}

/// Step control of a descent.
struct Course {
    /// Limit on the step length, in lengths of Weiszfeld's step.
    cap: f64,
    /// Absolute limit on the step length, set by a step that went too far.
    trust: f64,
    /// Row that was tested last and is not the minimum.
    tried: Option<usize>,
    /// Remaining [`ENTRIES`].
    entries: u32,
    /// Length of the shortest gradient.
    least: f64,
    /// Least gap.
    gap: f64,
    /// Passes since the gradient or the gap halved.
    stalled: u32,
}

impl Course {
    fn new(here: &Place) -> Self {
        let (least, gap) = (norm(&here.gradient), here.gap);
        Self { cap: FIRST_CAP, trust: f64::INFINITY, tried: None, entries: ENTRIES, least, gap, stalled: 0 }
    }

    /// Returns whether to continue from `there`, and adapts the limits.
    fn judge(&mut self, here: &Place, there: &Place, way: Move) -> bool {
        let (step, slope) = (difference(&there.z, &here.z), norm(&there.gradient));
        // A cluster of several rows may contain the minimum: enter it and continue at its scale.
        let enter = way == Move::Snap && here.near.is_some_and(|near| near.count > 1) && self.entries > 0;
        self.entries -= u32::from(enter);
        let shorter = slope < SHORTER * self.least;
        let down = enter || way == Move::Weiszfeld || dot(&there.gradient, &step) <= 0.0 || shorter;
        match way {
            Move::Snap => self.tried = here.near.map(|near| near.row),
            Move::Newton { cut } if down && cut => (self.cap, self.trust) = (TRUST * self.cap, TRUST * self.trust),
            Move::Newton { .. } if !down => self.trust = norm(&step) / TRUST,
            _ => {}
        }
        self.stalled = if slope < 0.5 * self.least || there.gap < 0.5 * self.gap { 0 } else { self.stalled + 1 };
        (self.least, self.gap) = (self.least.min(slope), self.gap.min(there.gap));
        down
    }
}

impl Descent<'_> {
    /// Descends from `z` to the goal, or as far as f64 allows. Returns the iterate with the least certified gap and the
    /// number of passes.
    pub(super) fn run(&mut self, z: Vec<f64>) -> (Place, u32) {
        let mut here = self.visit(z);
        let mut best: Option<Place> = None;
        let mut course = Course::new(&here);
        let (mut passes, mut restarted) = (1, false);
        while !here.enough && passes < MOST_PASSES && course.stalled < PATIENCE {
            if course.stalled == LOST && !restarted {
                here = self.restart();
                course = Course { stalled: LOST, gap: course.gap, ..Course::new(&here) };
                (passes, restarted) = (passes + 2, true);
                continue;
            }
            let (next, way) = self.next(&mut here, &course);
            // The gradient is 0, or the step is below the resolution of f64.
            if next == here.z || !next.iter().all(|z| z.is_finite()) {
                break;
            }
            let there = self.visit(next);
            passes += 1;
            let down = course.judge(&here, &there, way);
            if down {
                self.learn(&here, &there);
            }
            let left = if down { std::mem::replace(&mut here, there) } else { there };
            best = best.filter(|best| best.gap <= left.gap).or(Some(left));
        }
        (best.filter(|best| best.gap < here.gap && !here.enough).unwrap_or(here), passes)
    }

    /// Updates the BFGS memory after a descending step.
    fn learn(&mut self, here: &Place, there: &Place) {
        let scale = there.sums.weight / here.sums.weight;
        if !(0.1..10.0).contains(&scale) {
            // The curvature differs at another scale.
            self.memory = Lbfgs::default();
        } else if there.sums.at == here.sums.at {
            self.memory.remember(difference(&there.z, &here.z), difference(&there.gradient, &here.gradient));
        }
    }

    /// Restarts from the coordinate-wise median of all rows. Unlike the median of a few rows, no minority controls it.
    fn restart(&mut self) -> Place {
        self.memory = Lbfgs::default();
        self.visit(self.view.middle())
    }

    /// Returns the next point and the kind of step to it.
    fn next(&self, here: &mut Place, course: &Course) -> (Vec<f64>, Move) {
        let weiszfeld = self.view.len() as f64 / here.sums.weight;
        // The quadratic of Weiszfeld has the curvature of Σ I/r_i; on average over all directions, g has (p − 1)/p of it.
        let p = here.z.len() as f64;
        let mut step = self.memory.step(&here.gradient, weiszfeld * p / (p - 1.0));
        let length = norm(&step);
        let most = (course.cap * weiszfeld * norm(&here.gradient)).min(course.trust);
        if here.sums.nearest <= 4.0 * length.min(most) {
            // Steps only get shorter until the next iterate, so the first lookup uses the `radii` of this one.
            here.near = here.near.or_else(|| self.near(here.sums.nearest));
            let near = here.near.filter(|near| Some(near.row) != course.tried && self.may_be_minimum(here, *near));
            if let Some(near) = near {
                return (self.view.row(near.row).to_vec(), Move::Snap);
            }
        }
        let way = if here.sums.at > 0 || !(dot(&step, &here.gradient) < 0.0) {
            step = here.gradient.iter().map(|gradient| -weiszfeld * gradient).collect();
            Move::Weiszfeld
        } else {
            let cut = length > most;
            step.iter_mut().filter(|_| cut).for_each(|step| *step *= most / length);
            Move::Newton { cut }
        };
        (here.z.iter().zip(&step).map(|(z, step)| z + step).collect(), way)
    }

    /// Runs a pass at `z`.
    pub(super) fn visit(&mut self, z: Vec<f64>) -> Place {
        let n = self.view.len();
        if self.radii.len() != n {
            self.radii = vec![0.0; n];
        }
        let pass = Pass::new(self.view, self.typical, self.plain);
        let sums = pass.run(&z, &mut self.radii);
        let slope = Slope::new(&sums, n);
        let gap = gap(&sums, &slope, n, pass.reach);
        let enough = match self.goal {
            Goal::Sample => slope.excess() <= 0.1 * (n as f64).sqrt(),
            Goal::Within(Tolerance::Absolute(most)) => gap == 0.0 || gap <= most,
            // A median is at most twice the mean.
            Goal::Within(Tolerance::Relative(share)) => {
                gap == 0.0 || gap / share <= 2.0 * sums.mean_distance && self.median_reaches(gap / share)
            }
        };
        self.typical = typical(few(n).map(|i| self.radii[i]));
        let gradient = slope.gradient(&sums, n);
        Place { z, mean_distance: sums.mean_distance, gap, gradient, near: None, enough, sums }
    }

    /// Returns whether the median distance is at least `least`.
    fn median_reaches(&self, least: f64) -> bool {
        let reached = self.radii.iter().filter(|r| **r >= least).count();
        reached >= self.radii.len() - self.radii.len() / 2
    }

    fn near(&self, nearest: f64) -> Option<Near> {
        let row = self.radii.iter().position(|r| *r == nearest)?;
        let count = self.radii.iter().filter(|r| (nearest..=ABOUT * nearest).contains(*r)).count();
        Some(Near { row, count })
    }

    /// Returns whether the cluster of the nearest row could balance all other rows. The minimum is then at that row, which
    /// gradient steps would never reach.
    fn may_be_minimum(&self, here: &Place, near: Near) -> bool {
        let row = self.view.row(near.row);
        let (r, count) = (distance(row, &here.z), near.count as f64);
        let pull_of_near = here.z.iter().zip(row).map(|(z, x)| count * (z - x) / r);
        let others: Vec<f64> = here.sums.pull.iter().zip(pull_of_near).map(|(all, near)| all - near).collect();
        norm(&others) <= BALANCE * count
    }
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// Returns the upper median of the positive distances.
pub(super) fn typical(distances: impl Iterator<Item = f64>) -> f64 {
    upper_median(distances.filter(|r| *r > 0.0).collect()).unwrap_or(0.0)
}
