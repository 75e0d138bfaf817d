//! Input of an oracle: rows of finite numbers.

use std::borrow::Cow;

use thiserror::Error;

/// Largest magnitude of a coordinate.
///
/// A larger row is scaled down to it. It keeps its direction, and hence the unit vector with which a far point pulls the
/// geometric median.
pub const MAGNITUDE: f64 = 1e300;

/// n rows of p numbers each, all finite and within [`MAGNITUDE`].
///
/// A row with a NaN or an infinity is not a vector of ℝᵖ. It is replaced by 0, as in the paper.
#[derive(Clone, Debug)]
pub struct Points<'a> {
    values: Cow<'a, [f64]>,
    dimension: usize,
    rejected: Vec<usize>,
}

/// Error returned by [`Points::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// Rows of length 0.
    #[error("points must have at least one coordinate")]
    NoColumns,
    /// The last row is incomplete.
    #[error("{values} values cannot be split into rows of {dimension}")]
    Ragged {
        /// Number of values.
        values: usize,
        /// Length of a row.
        dimension: usize,
    },
}

impl<'a> Points<'a> {
    /// Splits numbers into rows of `dimension`. Reads them once, and copies them only if a row must be replaced.
    ///
    /// # Errors
    /// The numbers cannot be split into rows of this length.
    pub fn new(values: impl Into<Cow<'a, [f64]>>, dimension: usize) -> Result<Self, ShapeError> {
        let values = values.into();
        if dimension == 0 {
            return Err(ShapeError::NoColumns);
        }
        if !values.len().is_multiple_of(dimension) {
            return Err(ShapeError::Ragged { values: values.len(), dimension });
        }
        let mut points = Self { values, dimension, rejected: Vec::new() };
        points.sanitise();
        Ok(points)
    }

    /// Creates `n` rows of zeros.
    ///
    /// # Errors
    /// `dimension` is 0.
    pub fn zeros(n: usize, dimension: usize) -> Result<Points<'static>, ShapeError> {
        if dimension == 0 {
            return Err(ShapeError::NoColumns);
        }
        Ok(Points { values: vec![0.0; n * dimension].into(), dimension, rejected: Vec::new() })
    }

    /// Scales down rows beyond [`MAGNITUDE`], and replaces rows that are not finite by 0.
    fn sanitise(&mut self) {
        for i in 0..self.len() {
            let row = self.row(i);
            // Without an early exit the loop vectorises.
            if row.iter().fold(true, |within, x| within & (x.abs() <= MAGNITUDE)) {
                continue;
            }
            let largest = row.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
            let range = i * self.dimension..(i + 1) * self.dimension;
            let row = &mut self.values.to_mut()[range];
            if row.iter().all(|x| x.is_finite()) {
                row.iter_mut().for_each(|x| *x = *x / largest * MAGNITUDE);
            } else {
                row.fill(0.0);
                self.rejected.push(i);
            }
        }
    }

    /// Adds values to a row, clamped to [`MAGNITUDE`]. A value that is not finite counts as 0.
    pub fn add(&mut self, i: usize, values: impl IntoIterator<Item = f64>) {
        let range = i * self.dimension..(i + 1) * self.dimension;
        for (sum, value) in self.values.to_mut()[range].iter_mut().zip(values) {
            let value = if value.is_finite() { value } else { 0.0 };
            *sum = (*sum + value).clamp(-MAGNITUDE, MAGNITUDE);
        }
    }

    /// Multiplies all values by a factor from 0 to 1.
    pub(crate) fn scale(&mut self, factor: f64) {
        self.values.to_mut().iter_mut().for_each(|value| *value *= factor);
    }

    /// Sets a row to 0.
    pub fn clear(&mut self, i: usize) {
        self.values.to_mut()[i * self.dimension..(i + 1) * self.dimension].fill(0.0);
    }

    /// Adds a row of zeros.
    pub(crate) fn push_zeros(&mut self) {
        let values = self.values.to_mut();
        values.resize(values.len() + self.dimension, 0.0);
    }

    /// Removes a row; the last one takes its place.
    pub fn swap_remove(&mut self, i: usize) {
        let (last, p) = (self.len() - 1, self.dimension);
        let values = self.values.to_mut();
        values.copy_within(last * p.., i * p);
        values.truncate(last * p);
        self.rejected.retain(|row| *row != i);
        self.rejected.iter_mut().filter(|row| **row == last).for_each(|row| *row = i);
    }

    /// n, the number of rows.
    pub fn len(&self) -> usize {
        self.values.len() / self.dimension
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// p, the length of a row.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Row `i`, counted from 0.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.dimension..(i + 1) * self.dimension]
    }

    /// All rows in order.
    pub fn rows(&self) -> std::slice::ChunksExact<'_, f64> {
        self.values.chunks_exact(self.dimension)
    }

    /// All values, row by row.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Indices of the rows that were not finite and count as 0.
    pub fn rejected(&self) -> &[usize] {
        &self.rejected
    }
}
