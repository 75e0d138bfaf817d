//! The points that an oracle sees: finite whatever came in.

use std::borrow::Cow;

use thiserror::Error;

/// The largest magnitude of a coordinate.
///
/// A row beyond it is scaled down to it: it keeps its direction and so pulls with the same unit vector, as the geometric
/// median asks of a far point, and no sum of squares needs a larger exponent than f64 has.
pub const MAGNITUDE: f64 = 1e300;

/// n rows of p numbers each, all finite and within [`MAGNITUDE`].
///
/// A row with a NaN or an infinity is no vector of ℝᵖ; the paper counts such a one as 0, and so it becomes 0 here.
#[derive(Clone, Debug)]
pub struct Points<'a> {
    values: Cow<'a, [f64]>,
    dimension: usize,
    rejected: Vec<usize>,
}

/// Why some numbers are no rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// A row has at least one number.
    #[error("a point needs at least one coordinate")]
    NoColumns,
    /// The numbers do not fill their last row.
    #[error("{values} values do not make rows of {dimension}")]
    Ragged {
        /// How many numbers there are.
        values: usize,
        /// How many make a row.
        dimension: usize,
    },
}

impl<'a> Points<'a> {
    /// Rows of `dimension` numbers. Reads them once; copies them only if a row must be mended.
    ///
    /// # Errors
    /// The numbers do not make rows of that length.
    pub fn new(values: impl Into<Cow<'a, [f64]>>, dimension: usize) -> Result<Self, ShapeError> {
        let values = values.into();
        if dimension == 0 {
            return Err(ShapeError::NoColumns);
        }
        if !values.len().is_multiple_of(dimension) {
            return Err(ShapeError::Ragged { values: values.len(), dimension });
        }
        let mut points = Self { values, dimension, rejected: Vec::new() };
        points.mend();
        Ok(points)
    }

    /// `n` rows of zeros.
    ///
    /// # Errors
    /// A row must have a number.
    pub fn zeros(n: usize, dimension: usize) -> Result<Points<'static>, ShapeError> {
        if dimension == 0 {
            return Err(ShapeError::NoColumns);
        }
        Ok(Points { values: vec![0.0; n * dimension].into(), dimension, rejected: Vec::new() })
    }

    fn mend(&mut self) {
        for i in 0..self.len() {
            let row = self.row(i);
            // A loop without an early exit, because it vectorises.
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

    /// Adds to a row, within [`MAGNITUDE`]. A value that is not finite counts as 0.
    pub fn add(&mut self, i: usize, values: impl IntoIterator<Item = f64>) {
        let range = i * self.dimension..(i + 1) * self.dimension;
        for (sum, value) in self.values.to_mut()[range].iter_mut().zip(values) {
            let value = if value.is_finite() { value } else { 0.0 };
            *sum = (*sum + value).clamp(-MAGNITUDE, MAGNITUDE);
        }
    }

    /// Makes a row zero.
    pub fn clear(&mut self, i: usize) {
        self.values.to_mut()[i * self.dimension..(i + 1) * self.dimension].fill(0.0);
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

    /// Whether there is no row.
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

    /// The numbers of all rows, one row after the other.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Which rows were not finite and count as 0.
    pub fn rejected(&self) -> &[usize] {
        &self.rejected
    }
}
