//! The geometric median argmin g, where g(z) is the mean distance ‖z − z_i‖₂, with a certificate of its error.
//!
//! A quasi-Newton descent ([`descent`]) starts from the medians of increasing samples. Each iterate costs one pass over
//! the points ([`pass`]), which also certifies it ([`certificate`]).

mod certificate;
mod descent;
mod lbfgs;
mod pass;

use std::iter;
use std::ops::Range;

use descent::{Descent, Goal, Place, typical};
use lbfgs::Lbfgs;
use pass::{BLOCK, PARALLEL, Pass, View};
use rayon::prelude::*;

use super::{
    Aggregate, AggregateError, Aggregator, MAGNITUDE, Points, WarmStart, distance, lower_median, middle_pair, objective,
};

/// Allowed excess of the mean distance over its minimum. A tolerance that is not positive requests full f64 precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// The paper's ε: g(ẑ) ≤ min g + ε.
    Absolute(f64),
    /// ε as a share of the median distance from ẑ to the points. Unlike g, fewer than half of the points cannot inflate it.
    Relative(f64),
}

/// Geometric median to a tolerance, started from its last answer.
#[derive(Clone, Debug)]
pub struct GeometricMedian {
    tolerance: Tolerance,
    plain: bool,
    last: Option<(Vec<f64>, Lbfgs)>,
}

impl GeometricMedian {
    /// Creates the oracle with a tolerance.
    pub fn new(tolerance: Tolerance) -> Self {
        Self { tolerance, plain: false, last: None }
    }

    /// Creates the oracle without SIMD, for tests. Its answers are bit-identical.
    #[doc(hidden)]
    pub fn plain(tolerance: Tolerance) -> Self {
        Self { plain: true, ..Self::new(tolerance) }
    }
}

impl Aggregator for GeometricMedian {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        if points.is_empty() {
            return Err(AggregateError::Empty);
        }
        if points.dimension() == 1 {
            return Ok(on_a_line(points));
        }
        // Enters the thread pool once, not in each pass.
        if points.values().len() >= PARALLEL { rayon::scope(|_| self.solve(points)) } else { self.solve(points) }
    }

    fn warm_start(&self) -> WarmStart {
        let vectors = self.last.iter().flat_map(|(point, memory)| iter::once(point).chain(memory.vectors()).cloned());
        WarmStart { vectors: vectors.collect(), parts: Vec::new() }
    }

    fn set_warm_start(&mut self, start: WarmStart) {
        let mut vectors = start.vectors.into_iter();
        self.last = vectors.next().map(|point| (point, Lbfgs::from_vectors(vectors)));
    }
}

impl GeometricMedian {
    fn solve(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        let last = self.last.take().filter(|(point, _)| point.len() == points.dimension());
        let fewest_blocks = if last.is_some() { FEWEST_BLOCKS_WARM } else { FEWEST_BLOCKS };
        let (mut start, memory) =
            last.unwrap_or_else(|| (start(few(points.len()).map(|i| points.row(i))), Lbfgs::default()));
        let mut typical = typical_distance(points, &start, few(points.len()));
        if !SQUARED_WELL.contains(&typical) {
            // A few rows may be chosen to mislead; the median of all rows cannot be.
            start = self::start(points.rows());
            typical = typical_distance(points, &start, 0..points.len());
        }
        if !(SQUARED_WELL.contains(&typical) || typical == 0.0) {
            return self.rescaled(points, &start, typical);
        }
        let descent = self.descent(View::all(points), typical, memory);
        let (found, passes, memory) = through_samples(descent, points, start, fewest_blocks);
        self.last = Some((found.z.clone(), memory));
        Ok(answer(found, passes))
    }
}

/// Evaluates g at a point and certifies a bound on its excess over the minimum. Takes one pass.
pub fn certify(points: &Points<'_>, point: Vec<f64>) -> Aggregate {
    let oracle = GeometricMedian::new(Tolerance::Absolute(0.0));
    let typical = typical_distance(points, &point, few(points.len()));
    answer(oracle.descent(View::all(points), typical, Lbfgs::default()).visit(point), 1)
}

/// Runs one pass at a point, for benchmarks. Writes the distances to `radii`.
#[doc(hidden)]
pub fn pass(points: &Points<'_>, z: &[f64], typical: f64, radii: &mut [f64]) -> f64 {
    Pass::new(View::all(points), typical, false).run(z, radii).mean_distance
}

fn answer(found: Place, passes: u32) -> Aggregate {
    Aggregate { point: found.z, objective: found.mean_distance, certified_gap: found.gap, passes }
}

/// Solves one dimension, where every value between the two middle ones is a minimum.
fn on_a_line(points: &Points<'_>) -> Aggregate {
    let point = vec![lower_median(points.values().to_vec())];
    Aggregate { objective: objective(points, &point), point, certified_gap: 0.0, passes: 2 }
}

// --- from small samples to all rows -----------------------------------------------------------------------------------

/// Strides of the samples, in blocks of rows, before the descent on all rows.
const SAMPLES: [usize; 2] = [64, 8];

/// Least number of blocks in a useful sample, for a cold start.
const FEWEST_BLOCKS: usize = 6;
/// Least number of blocks in a useful sample, for a start from the last answer.
const FEWEST_BLOCKS_WARM: usize = 64;

fn through_samples(
    all: Descent<'_>,
    points: &Points<'_>,
    start: Vec<f64>,
    fewest_blocks: usize,
) -> (Place, u32, Lbfgs) {
    let Descent { goal, mut memory, mut typical, plain, mut radii, view } = all;
    let mut z = start;
    for stride in SAMPLES.into_iter().filter(|stride| points.len() / BLOCK / stride >= fewest_blocks) {
        let view = View::sample(points, stride);
        let mut descent = Descent { view, goal: Goal::Sample, plain, typical, radii, memory };
        z = descent.run(z).0.z;
        Descent { memory, typical, radii, .. } = descent;
    }
    let mut descent = Descent { view, goal, plain, typical, radii, memory };
    let (found, passes) = descent.run(z);
    (found, passes, descent.memory)
}

impl GeometricMedian {
    fn descent<'a>(&self, view: View<'a>, typical: f64, memory: Lbfgs) -> Descent<'a> {
        Descent { view, goal: Goal::Within(self.tolerance), plain: self.plain, typical, radii: Vec::new(), memory }
    }
}

/// Rows that determine a starting point.
const FEW: usize = 101;
/// Rows that determine a starting point which samples refine.
const FEWER: usize = 65;

/// Returns a few of n indices, spread by the golden ratio to be unrelated to the order of the data.
fn few(n: usize) -> impl Iterator<Item = usize> {
    let hash = move |i: usize| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as u128 * n as u128) >> 64;
    let few = if n / BLOCK / SAMPLES[1] >= FEWEST_BLOCKS { FEWER } else { FEW.min(n) };
    (0..few).map(move |i| if n <= FEW { i } else { hash(i) as usize })
}

/// Least number of columns per parallel task.
const COLUMNS: usize = 32;

/// Returns the upper median of each coordinate over some rows.
fn start<'a>(rows: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let rows: Vec<&[f64]> = rows.collect();
    let column = |j| upper_median(rows.iter().map(|row| row[j]).collect());
    let columns = (0..rows.first().map_or(0, |row| row.len())).into_par_iter();
    columns.with_min_len(COLUMNS).filter_map(column).collect()
}

fn typical_distance(points: &Points<'_>, z: &[f64], rows: impl Iterator<Item = usize>) -> f64 {
    typical(rows.map(|i| distance(points.row(i), z)))
}

/// Returns the (⌊n/2⌋ + 1)-th smallest of n numbers.
fn upper_median(mut values: Vec<f64>) -> Option<f64> {
    middle_pair(&mut values).map(|[_, upper]| upper)
}

// --- distances at the limits of f64 -------------------------------------------------------------------------------------

/// Distances whose squares are well within the range of f64.
const SQUARED_WELL: Range<f64> = 1e-100..1e100;

impl GeometricMedian {
    /// Solves for rows whose squared distances leave the range of f64, in a copy with x replaced by (x − origin)·2ᵏ.
    fn rescaled(&self, points: &Points<'_>, start: &[f64], typical: f64) -> Result<Aggregate, AggregateError> {
        // Only a coordinate far larger than the distances needs an origin. Nearby rows then subtract without rounding, and
        // scaling by a power of two is exact.
        let origin: Vec<f64> = start.iter().map(|x| if x.abs() > 1e3 * typical { *x } else { 0.0 }).collect();
        let k = -typical.log2().round();
        let values: Vec<f64> = points.rows().flat_map(|row| rescale(row, &origin, k)).collect();
        let Ok(copy) = Points::new(values, points.dimension()) else { return Err(AggregateError::Empty) };
        let tolerance = match self.tolerance {
            Tolerance::Absolute(most) => Tolerance::Absolute(scale(most, k)),
            relative => relative,
        };
        let oracle = Self { tolerance, plain: self.plain, last: None };
        let begin = self::start(copy.rows());
        let (found, passes) = oracle.descent(View::all(&copy), 1.0, Lbfgs::default()).run(begin);
        let (point, lost) = unscale(&found.z, &origin, k);
        // g is 1-Lipschitz, so the rounding of the inverse transformation is added to the gap.
        let smallest = origin.len() as f64 * scale(f64::from_bits(1), -k).max(f64::from_bits(1));
        let certified_gap = scale(found.gap, -k) + 2.0 * (lost + smallest);
        Ok(Aggregate { objective: objective(points, &point), point, certified_gap, passes: passes + 2 })
    }
}

/// Returns origin + z·2⁻ᵏ and the sum of its rounding errors.
fn unscale(z: &[f64], origin: &[f64], k: f64) -> (Vec<f64>, f64) {
    let exact = z.iter().zip(origin).map(|(z, origin)| two_sum(*origin, scale(*z, -k)));
    let (point, lost): (Vec<f64>, Vec<f64>) = exact.unzip();
    (point, lost.iter().map(|lost| lost.abs()).sum())
}

/// Returns a + b and its rounding error (Knuth).
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// Rescales a row. It keeps its direction even if its length would overflow.
fn rescale<'a>(row: &'a [f64], origin: &'a [f64], k: f64) -> impl Iterator<Item = f64> + 'a {
    let longest = row.iter().zip(origin).map(|(x, o)| (x - o).abs()).fold(0.0, f64::max);
    let (factor, k) = if scale(longest, k) <= MAGNITUDE { (1.0, k) } else { (MAGNITUDE / longest, 0.0) };
    row.iter().zip(origin).map(move |(x, o)| scale((x - o) * factor, k))
}

/// Returns x·2ᵏ, also if 2ᵏ itself is out of range.
fn scale(x: f64, k: f64) -> f64 {
    x * (k / 2.0).floor().exp2() * (k / 2.0).ceil().exp2()
}
