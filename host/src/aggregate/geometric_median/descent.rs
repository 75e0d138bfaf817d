//! The way down to the median: quasi-Newton steps from place to place, one pass at each.
//!
//! Steps are judged by gradients alone. Since g is convex, ⟨∇g(z + d), d⟩ ≤ 0 proves g(z + d) ≤ g(z), while g itself
//! may be rounded to where it tells nothing: with rows at 10³⁰ it does not change at all.

use super::super::{distance, norm};
use super::certificate::{Slope, gap};
use super::memory::{Memory, dot};
use super::pass::{Pass, Sums, View};
use super::{Tolerance, few, upper_median};

/// Passes before giving up. What is certified until then is reported.
const MOST_PASSES: u32 = 400;

/// Passes in which neither the gradient nor the gap halved: rounding allows no more.
const PATIENCE: u32 = 40;

/// Passes in vain after which the start is doubted.
const LOST: u32 = 6;

/// The first steps may be so many times Weiszfeld's.
const FIRST_CAP: f64 = 20.0;

/// By how much longer steps are trusted after one that was cut short and led down, and shorter ones after one that went too far. Under
/// a cap that never grew, rows near a line were not certified.
const TRUST: f64 = 4.0;

/// A gradient so much shorter than the shortest is a better place without further proof. Each time the shortest becomes that much
/// shorter, so this comes to an end.
const SHORTER: f64 = 0.7;

/// How often a cluster may be entered without proof that it is lower, so that this comes to an end as well.
const ENTRIES: u32 = 4;

/// Rows up to so many times as far as the nearest are about as near.
const ABOUT: f64 = 1.1;

/// m rows at a point are the minimum if the rest pulls with at most m there. What is known is the pull at a place nearby, where it may
/// be a bit more.
const BALANCE: f64 = 1.05;

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
    /// Looked for where a step would pass it by.
    near: Option<Near>,
    enough: bool,
}

/// The nearest row that is not at z, and how many are about as near.
#[derive(Clone, Copy)]
struct Near {
    row: usize,
    count: usize,
}

/// The ways to go on.
#[derive(Clone, Copy, PartialEq)]
enum Move {
    /// A quasi-Newton step, and whether it was cut short.
    Newton { cut: bool },
    /// Weiszfeld's step, in Vardi and Zhang's form at a row. It always leads down: it minimises a quadratic that is
    /// nowhere below g and equal to it here.
    Weiszfeld,
    /// To the nearest row, which may be the minimum.
    Snap,
}

/// What a descent has learnt about its own steps.
struct Course {
    /// The longest step that is trusted, in Weiszfeld's.
    cap: f64,
    /// The same as a length: it comes from a step that went too far.
    trust: f64,
    /// The row that was looked at, and was not the minimum.
    tried: Option<usize>,
    /// What is left of [`ENTRIES`].
    entries: u32,
    /// The shortest gradient, the least gap, and the passes since one of them halved.
    least: f64,
    gap: f64,
    in_vain: u32,
}

impl Course {
    fn new(here: &Place) -> Self {
        let (least, gap) = (norm(&here.gradient), here.gap);
        Self { cap: FIRST_CAP, trust: f64::INFINITY, tried: None, entries: ENTRIES, least, gap, in_vain: 0 }
    }

    /// Whether `there` is the better place to go on from.
    fn judge(&mut self, here: &Place, there: &Place, way: Move) -> bool {
        let (step, slope) = (difference(&there.z, &here.z), norm(&there.gradient));
        // Several rows about as near are a cluster that seems to hold the minimum: go in, and look at its own scale.
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
        self.in_vain = if slope < 0.5 * self.least || there.gap < 0.5 * self.gap { 0 } else { self.in_vain + 1 };
        (self.least, self.gap) = (self.least.min(slope), self.gap.min(there.gap));
        down
    }
}

impl Descent<'_> {
    /// Descends from `z` to the goal or as far as f64 goes. Returns the place with the least certified gap, and the
    /// number of passes.
    pub(super) fn run(&mut self, z: Vec<f64>) -> (Place, u32) {
        let mut here = self.visit(z);
        let mut best: Option<Place> = None;
        let mut course = Course::new(&here);
        let (mut passes, mut restarted) = (1, false);
        while !here.enough && passes < MOST_PASSES && course.in_vain < PATIENCE {
            if course.in_vain == LOST && !restarted {
                here = self.restart();
                course = Course { in_vain: LOST, gap: course.gap, ..Course::new(&here) };
                (passes, restarted) = (passes + 2, true);
                continue;
            }
            let (next, way) = self.next(&mut here, &course);
            // Nothing pulls, or nothing that f64 could still follow.
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

    fn learn(&mut self, here: &Place, there: &Place) {
        let scale = there.sums.weight / here.sums.weight;
        if !(0.1..10.0).contains(&scale) {
            // Another scale, another curvature: what was learnt is no longer true.
            self.memory = Memory::default();
        } else if there.sums.at == here.sums.at {
            self.memory.remember(difference(&there.z, &here.z), difference(&there.gradient, &here.gradient));
        }
    }

    /// From the median of each coordinate over all rows: unlike that of a few, no minority can choose it.
    fn restart(&mut self) -> Place {
        self.memory = Memory::default();
        self.visit(self.view.middle())
    }

    /// Where to look next, and how we came to it.
    fn next(&self, here: &mut Place, course: &Course) -> (Vec<f64>, Move) {
        let weiszfeld = self.view.len() as f64 / here.sums.weight;
        // The quadratic of Weiszfeld has the curvature of Σ I/r_i; on average over all directions, g has (p − 1)/p of it.
        let p = here.z.len() as f64;
        let mut step = self.memory.step(&here.gradient, weiszfeld * p / (p - 1.0));
        let length = norm(&step);
        let most = (course.cap * weiszfeld * norm(&here.gradient)).min(course.trust);
        if here.sums.nearest <= 4.0 * length.min(most) {
            // A step only gets shorter until the next place, so `radii` are of this one where they are looked at first.
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

    /// Makes a pass at `z`.
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
            // No median is above twice the mean.
            Goal::Within(Tolerance::Relative(share)) => {
                gap == 0.0 || gap / share <= 2.0 * sums.mean_distance && self.median_reaches(gap / share)
            }
        };
        self.typical = typical(few(n).map(|i| self.radii[i]));
        let gradient = slope.gradient(&sums, n);
        Place { z, mean_distance: sums.mean_distance, gap, gradient, near: None, enough, sums }
    }

    /// Whether the median distance is `least` or more.
    fn median_reaches(&self, least: f64) -> bool {
        let reached = self.radii.iter().filter(|r| **r >= least).count();
        reached >= self.radii.len() - self.radii.len() / 2
    }

    fn near(&self, nearest: f64) -> Option<Near> {
        let row = self.radii.iter().position(|r| *r == nearest)?;
        let count = self.radii.iter().filter(|r| (nearest..=ABOUT * nearest).contains(*r)).count();
        Some(Near { row, count })
    }

    /// Whether the nearest row, with those about as near, could balance all others: then the minimum is there, and no
    /// step along a gradient would ever arrive.
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

/// The median distance of those that are not 0.
pub(super) fn typical(distances: impl Iterator<Item = f64>) -> f64 {
    upper_median(distances.filter(|r| *r > 0.0).collect()).unwrap_or(0.0)
}
