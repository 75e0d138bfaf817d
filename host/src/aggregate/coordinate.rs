//! Coordinate-wise rules.

use super::mean::{answer, mean};
use super::{Aggregate, AggregateError, Aggregator, Points, middle_pair};

/// Median of each coordinate; for an even n, the midpoint of the two middle values.
///
/// Reads the points once and buffers 16 columns. O(n·p) operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CoordinateMedian;

/// Mean of the values ranked f+1 to n−f in each coordinate.
///
/// Requires n > 2f. Reads the points once and buffers 16 columns. O(n·p) operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimmedMean {
    /// Number of values trimmed at either end.
    pub f: usize,
}

impl Aggregator for CoordinateMedian {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        answer(points, 1, || Ok(by_column(points, median)))
    }
}

impl Aggregator for TrimmedMean {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        let (n, f) = (points.len(), self.f);
        answer(points, 1, || {
            if f >= n.div_ceil(2) {
                return Err(AggregateError::TooCorrupted { rule: "trimmed-mean", n, f, needs: "it requires n > 2f" });
            }
            Ok(by_column(points, |column| trimmed_mean(column, f)))
        })
    }
}

/// Columns per block: two cache lines of a row, so that every fetched line is used completely.
const BLOCK: usize = 16;

fn by_column(points: &Points<'_>, rule: impl Fn(&mut [f64]) -> f64) -> Vec<f64> {
    let (n, p) = (points.len(), points.dimension());
    let mut columns = vec![0.0; n * BLOCK.min(p)];
    let mut answer = Vec::with_capacity(p);
    for start in (0..p).step_by(BLOCK) {
        let block = start..p.min(start + BLOCK);
        for (i, row) in points.rows().enumerate() {
            row[block.clone()].iter().enumerate().for_each(|(j, x)| columns[j * n + i] = *x);
        }
        answer.extend(columns.chunks_exact_mut(n).take(block.len()).map(&rule));
    }
    answer
}

/// Returns the midpoint of the two middle values. Reorders the column.
pub(crate) fn median(column: &mut [f64]) -> f64 {
    middle_pair(column).map_or(0.0, |[lower, upper]| lower.midpoint(upper))
}

fn trimmed_mean(column: &mut [f64], f: usize) -> f64 {
    let kept = column.len() - 2 * f;
    column.select_nth_unstable_by(f, f64::total_cmp);
    column[f..].select_nth_unstable_by(kept - 1, f64::total_cmp);
    mean(column[f..f + kept].chunks_exact(1), 1)[0]
}
