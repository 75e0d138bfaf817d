//! Krum and multi-Krum (Blanchard et al., NeurIPS 2017).

use super::mean::{answer, mean};
use super::{Aggregate, AggregateError, Aggregator, Points, distance, root, squared_distance};

/// Point xᵢ with the least score s(i) = Σⱼ‖xᵢ − xⱼ‖², j over the n−f−2 nearest other points.
///
/// Ties go to the lower index. Requires n > 2f+2. Distances are computed row by row and not stored: n²·p operations, O(n)
/// memory and n passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Krum {
    /// Number of points that may be corrupted.
    pub f: usize,
}

/// Mean of the m points with the least scores of [`Krum`], at the same cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiKrum {
    /// Number of points that may be corrupted.
    pub f: usize,
    /// m, from 1 to n−f; defaults to n−f.
    pub m: Option<usize>,
}

impl Aggregator for Krum {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        mean_of_best("krum", points, self.f, Some(1))
    }
}

impl Aggregator for MultiKrum {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        mean_of_best("multi-krum", points, self.f, self.m)
    }
}

fn mean_of_best(
    rule: &'static str,
    points: &Points<'_>,
    f: usize,
    m: Option<usize>,
) -> Result<Aggregate, AggregateError> {
    let n = points.len();
    answer(points, n.try_into().unwrap_or(u32::MAX), || {
        let refused = |needs| AggregateError::TooCorrupted { rule, n, f, needs };
        // n > 2f+2 without overflow.
        if f >= n.saturating_sub(1) / 2 {
            return Err(refused("it requires n > 2f + 2"));
        }
        let m = m.unwrap_or(n - f);
        if m == 0 || m > n - f {
            return Err(refused("m must be from 1 to n − f"));
        }
        let best = &by_score(points, n - f - 2)[..m];
        Ok(mean(best.iter().map(|&i| points.row(i)), points.dimension()))
    })
}

/// Returns the indices of the points in order of increasing score.
fn by_score(points: &Points<'_>, nearest: usize) -> Vec<usize> {
    let mut buffer = Vec::with_capacity(points.len());
    let scores: Vec<f64> = (0..points.len()).map(|i| root_score(points, i, nearest, &mut buffer)).collect();
    let mut indices: Vec<usize> = (0..points.len()).collect();
    indices.sort_by(|&i, &j| scores[i].total_cmp(&scores[j]));
    indices
}

/// Returns √s(i), which has the order of s(i) and never overflows.
fn root_score(points: &Points<'_>, i: usize, nearest: usize, buffer: &mut Vec<f64>) -> f64 {
    root(least(points, i, nearest, squared_distance, buffer).iter().sum()).unwrap_or_else(|| {
        let distances = least(points, i, nearest, distance, buffer);
        distance(distances, &vec![0.0; nearest])
    })
}

/// Returns the `count` smallest distances from point `i` to others, in any order.
fn least<'b>(
    points: &Points<'_>,
    i: usize,
    count: usize,
    between: fn(&[f64], &[f64]) -> f64,
    buffer: &'b mut Vec<f64>,
) -> &'b [f64] {
    buffer.clear();
    buffer.extend(points.rows().map(|row| between(points.row(i), row)));
    buffer.swap_remove(i);
    buffer.select_nth_unstable_by(count - 1, f64::total_cmp);
    &buffer[..count]
}
