//! Directions that too few units have explored for any rule to identify θ* along them.

use std::borrow::Cow;
use std::f64::consts::SQRT_2;
use std::iter;

use nalgebra::{DMatrix, DVector};
use serde::Serialize;

use super::Assumptions;
use super::matrices::{along, symmetrised, weighted};
use crate::aggregate::corrupted;
use crate::algorithm::Streams;
use crate::math::symmetric;

/// Number of explorers along the directions that the fewest units have explored.
///
/// A unit explores the unit vector u to the degree
///
/// ```text
/// e_i(u) = 2Φ(S√(uᵀV̂_iu)/R) − 1,
/// ```
///
/// from 0 without data to 1. For normal noise it is the total variation distance between the unit's rewards under the parameters
/// −Su and Su. It is 0.68 at uᵀV̂_iu = R²/S², where the unit's own data determine ⟨u, θ*⟩ up to a standard error of S.
/// A uᵀV̂_iu of at most 2⁻²³·tr V̂_i may be rounding on the device, and counts as 0.
///
/// The *number of explorers* m(u) is Σe_i(u) over all units. With f units that may be corrupted, and f′ = max{f, 1/2}:
///
/// | m(u) | state | reason |
/// |---|---|---|
/// | at most f′ | not identifiable | in one of two worlds, −Su and Su, every rule errs by S along u with probability 1/4 |
/// | at most f + f′ | uncertain | the same holds if corrupted units claim f of m(u) |
/// | above | identifiable | honest units have more than f′, whoever is corrupted |
///
/// The first reason is part 2 of Theorem 6 (docs/theory.md, section 9), for actions that do not depend on rewards. For f = 0 it is
/// Le Cam's lemma: the total variation distance between all rewards is at most m(u). *Identifiable* means that this bound
/// excludes no rule. A rule may need more: the paper's rules also count absent units as corrupted.
///
/// Units that were excluded for impossible messages are no longer among the f.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Exploration {
    /// Number of units.
    pub units: usize,
    /// f: number of units that may be corrupted, without excluded ones.
    pub corrupted: usize,
    /// f′: with at most as many explorers a direction is not identifiable.
    pub limit: f64,
    /// f + f′: with more explorers a direction is identifiable.
    pub needed: f64,
    /// Number of explorers of each feature: m(u) for the axes u.
    pub features: Vec<f64>,
    /// Directions with few explorers, each orthogonal to those before. The first identifiable one is the last; there are at most
    /// eight.
    ///
    /// The search for directions is local and may miss some. Each number of explorers is that of its direction.
    pub directions: Vec<Direction>,
}

/// A direction with few explorers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Direction {
    /// "feature 3" for an axis, else the largest coefficients of u. Features are counted from 1.
    pub name: String,
    /// u, of length 1.
    pub vector: Vec<f64>,
    /// m(u).
    pub explorers: f64,
    /// Possibility of identifying θ* along u.
    pub state: Identifiability,
}

/// Possibility of identifying θ* along a direction, whoever is corrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Identifiability {
    /// No rule can.
    NotIdentifiable,
    /// No rule can if some claims of exploration are false.
    Uncertain,
    /// Enough honest units have explored the direction.
    Identifiable,
}

/// Maximum number of reported directions.
const MAX_DIRECTIONS: usize = 8;

/// Maximum number of turns in the search for a direction.
const TURNS: usize = 5;

/// Number of inverse iterations in a turn.
const ITERATIONS: usize = 8;

/// Maximum number of units among which a search starts. Explorers are counted among all units.
const SAMPLE: usize = 256;

/// Number of single units from whose least explored direction a search starts.
const WITNESSES: usize = 6;

/// An axis is reported instead of another direction if it has at most that share of all units more explorers.
const AXIS_MARGIN: f64 = 0.002;

impl Exploration {
    /// Counts the explorers, for `enrolled` units of which some may be excluded. `None` for noised streams: their V̂_i
    /// have noise in every direction.
    pub fn new(streams: &Streams, enrolled: usize, assumptions: &Assumptions) -> Option<Self> {
        if assumptions.stream_noise.is_some() {
            return None;
        }
        let (d, units) = (streams.dimension(), streams.gram.len());
        let excluded = enrolled.saturating_sub(units);
        let corrupted = corrupted(assumptions.corruption, enrolled).saturating_sub(excluded);
        let limit = (corrupted as f64).max(0.5);
        let needed = corrupted as f64 + limit;
        let all = Search::new(Cow::Borrowed(streams), assumptions);
        let part = sample(streams).map(|part| Search::new(Cow::Owned(part), assumptions));
        let features: Vec<f64> = (0..d).map(|axis| all.look(unit_vector(d, axis)).explorers).collect();
        let mut exploration = Self { units, corrupted, limit, needed, features, directions: Vec::new() };
        let mut remaining = DMatrix::identity(d, d);
        for _ in 0..d.min(MAX_DIRECTIONS) {
            let axis = all.axis(&remaining, &exploration.features);
            let starts =
                part.as_ref().unwrap_or(&all).least(&remaining).map(|u| all.look(u)).into_iter().chain(axis.clone());
            let Some(start) = starts.min_by(|a, b| a.explorers.total_cmp(&b.explorers)) else { break };
            let found = all.descend(start, &remaining);
            let is_as_poor = |axis: &Look| axis.explorers <= found.explorers + AXIS_MARGIN * units as f64;
            let Look { u, explorers, .. } = axis.filter(is_as_poor).unwrap_or(found);
            remaining -= &u * u.transpose();
            let state = exploration.state(explorers);
            exploration.directions.push(Direction { name: name(&u), vector: u.as_slice().to_vec(), explorers, state });
            if state == Identifiability::Identifiable {
                break;
            }
        }
        Some(exploration)
    }

    /// Returns the state of a direction with a number of explorers.
    pub fn state(&self, explorers: f64) -> Identifiability {
        match explorers {
            few if few <= self.limit => Identifiability::NotIdentifiable,
            some if some <= self.needed => Identifiability::Uncertain,
            _ => Identifiability::Identifiable,
        }
    }

    /// Returns the number of directions in a state.
    pub fn count(&self, state: Identifiability) -> usize {
        self.directions.iter().filter(|direction| direction.state == state).count()
    }
}

/// Names a direction by its three largest coefficients.
fn name(u: &DVector<f64>) -> String {
    let mut terms: Vec<(usize, f64)> = (1..).zip(u.iter().copied()).collect();
    terms.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let Some(((feature, first), others)) = terms.split_first() else { return String::new() };
    if first.abs() > 1.0 - 1e-9 {
        return format!("feature {feature}");
    }
    let mut name = format!("{:.2}·x{feature}", first.abs());
    let visible: Vec<_> = others.iter().filter(|(_, value)| value.abs() >= VISIBLE).collect();
    for (feature, value) in visible.iter().take(2) {
        let sign = if value * first > 0.0 { '+' } else { '−' };
        name += &format!(" {sign} {:.2}·x{feature}", value.abs());
    }
    if visible.len() > 2 { name + " + …" } else { name }
}

/// Smallest coefficient of a direction that is part of its name.
const VISIBLE: f64 = 0.05;

/// Returns some of the units, evenly spaced, if there are many.
fn sample(streams: &Streams) -> Option<Streams> {
    let n = streams.gram.len();
    let units: Vec<usize> = (0..SAMPLE).map(|place| place * n / SAMPLE).collect();
    if n > SAMPLE { streams.select(&units) } else { None }
}

fn unit_vector(d: usize, axis: usize) -> DVector<f64> {
    DVector::from_fn(d, |row, _| if row == axis { 1.0 } else { 0.0 })
}

/// Search for directions with few explorers among some units.
struct Search<'a> {
    streams: Cow<'a, Streams>,
    /// tr V̂_i.
    traces: Vec<f64>,
    /// S/(√2·R).
    scale: f64,
    /// h, the information at which a unit counts half in the search: R²/S², if it is not too small to compare with.
    half: f64,
}

/// A direction with its explorers.
#[derive(Clone)]
struct Look {
    u: DVector<f64>,
    explorers: f64,
    /// uᵀV̂_iu.
    information: Vec<f64>,
}

impl<'a> Search<'a> {
    fn new(streams: Cow<'a, Streams>, assumptions: &Assumptions) -> Self {
        let Assumptions { noise, theta_bound, .. } = *assumptions;
        let on_diagonal: Vec<bool> = symmetric::on_diagonal(streams.dimension()).collect();
        let trace =
            |gram: &[f64]| gram.iter().zip(&on_diagonal).filter(|(_, on)| **on).map(|(value, _)| value).sum::<f64>();
        let traces: Vec<f64> = streams.gram.rows().map(|gram| trace(gram).max(0.0)).collect();
        let mean = traces.iter().map(|trace| trace / traces.len() as f64).sum::<f64>();
        let half = (noise / theta_bound).powi(2).max(ROUNDING * mean).max(f64::MIN_POSITIVE);
        Self { streams, traces, scale: theta_bound / (SQRT_2 * noise), half }
    }

    /// Counts the explorers of a direction.
    fn look(&self, u: DVector<f64>) -> Look {
        let mut information = along(self.streams.gram.values(), &u);
        let mut explorers = 0.0;
        for (v, trace) in information.iter_mut().zip(&self.traces) {
            if *v > ROUNDING * trace {
                explorers += libm::erf(self.scale * v.sqrt());
            } else {
                *v = 0.0;
            }
        }
        Look { u, explorers, information }
    }

    /// Returns the axis with the fewest explorers of those within the remaining space.
    fn axis(&self, remaining: &DMatrix<f64>, features: &[f64]) -> Option<Look> {
        let d = features.len();
        let inside = (0..d).filter(|axis| remaining[(*axis, *axis)] > 1.0 - 1e-9);
        let least = inside.min_by(|a, b| features[*a].total_cmp(&features[*b]));
        least.map(|axis| self.look(unit_vector(d, axis)))
    }

    /// Searches for the direction with the fewest explorers within the remaining space, from several starts: the least
    /// direction of all units, each with its own scale, and those of single units.
    fn least(&self, remaining: &DMatrix<f64>) -> Option<DVector<f64>> {
        let n = self.traces.len();
        let own: Vec<f64> = self.traces.iter().map(|trace| 1.0 / (trace + self.half)).collect();
        let witnesses = (0..WITNESSES.min(n)).map(|witness| {
            let unit = (2 * witness + 1) * n / (2 * WITNESSES.min(n));
            // All others decide between directions that the unit does not know.
            let mut weights: Vec<f64> = own.iter().map(|weight| weight * 1e-3 / n as f64).collect();
            weights[unit] = own[unit];
            weights
        });
        let generic = DVector::from_fn(self.streams.dimension(), |row, _| 1.0 + 1.0 / (row + 2) as f64);
        let start = |weights: Vec<f64>| self.poorest(&weights, &generic, remaining);
        let found = iter::once(own.clone()).chain(witnesses).filter_map(start);
        let found = found.map(|u| self.descend(self.look(u), remaining));
        found.min_by(|a, b| a.explorers.total_cmp(&b.explorers)).map(|look| look.u)
    }

    /// Follows a direction to a local minimum of Σv_i/(v_i + h) with v_i = uᵀV̂_iu. Returns the direction with the fewest
    /// explorers on the way.
    ///
    /// The sum is concave in the v_i, so it is at most its tangent: a constant plus Σw_iuᵀV̂_iu with w_i = h/(v_i + h)². A
    /// direction that lowers the tangent lowers the sum.
    fn descend(&self, start: Look, remaining: &DMatrix<f64>) -> Look {
        let mut best = start;
        for _ in 0..TURNS {
            let weights: Vec<f64> = best.information.iter().map(|v| (1.0 + v / self.half).powi(-2)).collect();
            let Some(next) = self.poorest(&weights, &best.u, remaining) else { break };
            let next = self.look(next);
            if !(next.explorers < best.explorers) {
                break;
            }
            best = next;
        }
        best
    }

    /// Searches within the remaining space for the direction along which Σw_iV̂_i is smallest, by inverse iteration. The
    /// result is at most as large as the start.
    fn poorest(&self, weights: &[f64], start: &DVector<f64>, remaining: &DMatrix<f64>) -> Option<DVector<f64>> {
        let d = remaining.nrows();
        let sum = symmetrised(remaining * weighted(self.streams.gram.values(), weights, d) * remaining);
        let trace = sum.trace();
        let relative = if trace > 0.0 { sum / trace } else { DMatrix::zeros(d, d) };
        let factor = symmetric::shifted(&relative, 1e-12).cholesky()?;
        let mut u = start.clone();
        for _ in 0..ITERATIONS {
            let inside = remaining * factor.solve(&u);
            let length = inside.norm();
            // False for NaN as well.
            if !(length > 0.0 && length < f64::INFINITY) {
                return None;
            }
            u = inside / length;
        }
        Some(u)
    }
}

/// Rounding of a device's sums, relative to their trace: 2⁻²³.
const ROUNDING: f64 = f32::EPSILON as f64;
