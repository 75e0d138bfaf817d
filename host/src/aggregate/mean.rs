//! The mean, and helpers shared with other rules.

use super::{Aggregate, AggregateError, Aggregator, Points, certify};

/// Mean (1/n)·Σxᵢ, the baseline of the other rules: a single corrupted point can move it anywhere.
///
/// Reads the points once. As in all rules that do not need it, the pass for objective and certificate is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Mean;

impl Aggregator for Mean {
    fn aggregate(&mut self, points: &Points<'_>) -> Result<Aggregate, AggregateError> {
        answer(points, 1, || Ok(mean(points.rows(), points.dimension())))
    }
}

/// Certifies the point of a rule other than the geometric median.
pub(super) fn answer(
    points: &Points<'_>,
    passes: u32,
    rule: impl FnOnce() -> Result<Vec<f64>, AggregateError>,
) -> Result<Aggregate, AggregateError> {
    if points.is_empty() {
        return Err(AggregateError::Empty);
    }
    Ok(Aggregate { passes, ..certify(points, rule()?) })
}

/// Returns the mean of rows without overflow.
pub(super) fn mean<'a>(rows: impl ExactSizeIterator<Item = &'a [f64]>, dimension: usize) -> Vec<f64> {
    let divisor = Divisor::new(rows.len());
    let mut sum = vec![0.0; dimension];
    rows.for_each(|row| divisor.add(&mut sum, row));
    divisor.divide(&mut sum);
    sum
}

/// Division by n in two steps: by 2ᵏ ≥ n before summation, by n/2ᵏ after it. The first keeps the sum in range and is exact
/// except for subnormal numbers.
#[derive(Clone, Copy)]
pub(super) struct Divisor {
    before: f64,
    after: f64,
}

impl Divisor {
    pub(super) fn new(n: usize) -> Self {
        let before = 1.0 / n.next_power_of_two() as f64;
        Self { before, after: n as f64 * before }
    }

    pub(super) fn add(self, sum: &mut [f64], row: &[f64]) {
        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * self.before);
    }

    pub(super) fn divide(self, sum: &mut [f64]) {
        sum.iter_mut().for_each(|sum| *sum /= self.after);
    }
}
