//! Whitened geometric median of the Gram matrices (step 1 of [`Whitened`](super::Whitened)).
//!
//! GM is the geometric median in the Frobenius norm.
//!
//! 1. G ← GM(V̂_1, …, V̂_n).
//! 2. Twice, or once if G moves by at most [`SETTLED`] in the new coordinates:
//!
//!    ```text
//!    G + λI = LLᵀ,   G ← L·GM(L⁻¹V̂_1L⁻ᵀ, …, L⁻¹V̂_nL⁻ᵀ)·Lᵀ.
//!    ```
//!
//!    All directions count alike in this median.
//! 3. Λ = G + λI = LLᵀ with λ = [`LAMBDA`](super::LAMBDA).
//!
//! With privacy λ is larger, and LLᵀ is Λ plus the variance of the noise in units of R².

use nalgebra::{Cholesky, DMatrix, Dyn};
use rayon::prelude::*;

use super::matrices::{Inverse, symmetrised};
use super::{CHUNK, Centre, FINE, kernel};
use crate::aggregate::{AggregateError, Aggregator, GeometricMedian, Mean, Points, Tolerance, distance, lower_median};
use crate::algorithm::Streams;
use crate::math::symmetric;

/// Largest relative distance of half of the V̂_i from G at which the mean V̄_w of the remaining units may replace G. Where
/// agents explore different directions, corrupted units may be the only ones that remain in a direction.
pub(super) const ALIKE: f64 = 1.0;

/// Tolerance of medians that only choose coordinates.
const COARSE: Tolerance = Tolerance::Relative(1e-3);

/// Movement of G, relative to Λ, up to which no second iteration follows.
const SETTLED: f64 = 0.01;

/// Centres of the V̂_i, each started from its last result.
#[derive(Debug)]
pub(super) struct Grams {
    pub(super) raw: GeometricMedian,
    pub(super) relative: GeometricMedian,
    /// All L⁻¹V̂_iL⁻ᵀ, in the scaled packing.
    whitened: Vec<f64>,
}

impl Grams {
    pub(super) fn new() -> Self {
        let [raw, relative] = [COARSE, FINE].map(GeometricMedian::new);
        Self { raw, relative, whitened: Vec::new() }
    }

    /// Returns G and the median of ‖L⁻¹(V̂_i − G)L⁻ᵀ‖_F.
    pub(super) fn centre(
        &mut self,
        centre: Centre,
        streams: &Streams,
        prior: f64,
    ) -> Result<(DMatrix<f64>, f64), AggregateError> {
        let (d, p) = (streams.dimension(), streams.gram.dimension());
        let mean = centre == Centre::Mean;
        let first = if mean { Mean.aggregate(&streams.gram)? } else { self.raw.aggregate(&streams.gram)? };
        let (mut gram, mut median) = (symmetric::matrix(&first.point, d), None);
        for _ in 0..if mean { 1 } else { 2 } {
            let Some((factor, _)) = factor(&gram, prior) else { break };
            let inverse = Inverse::of(&factor);
            self.whiten(&streams.gram, &inverse);
            let Ok(points) = Points::new(&self.whitened[..], p) else { break };
            let point = if mean { Mean.aggregate(&points)? } else { self.relative.aggregate(&points)? }.point;
            let (rows, relative) = (inverse.matrix(), symmetric::matrix(&point, d));
            let moved = (&relative - &rows * gram * rows.transpose()).norm();
            gram = symmetrised(&factor * relative * factor.transpose());
            median = Some(point);
            if moved <= SETTLED {
                break;
            }
        }
        let dispersion = match (median, Points::new(&self.whitened[..], p)) {
            (Some(median), Ok(points)) => lower_median(points.rows().map(|row| distance(row, &median)).collect()),
            _ => 0.0,
        };
        Ok((gram, dispersion))
    }

    /// Computes all L⁻¹V̂_iL⁻ᵀ.
    fn whiten(&mut self, grams: &Points<'_>, inverse: &Inverse) {
        let p = grams.dimension();
        self.whitened.resize(grams.values().len(), 0.0);
        let rows = grams.values().par_chunks(CHUNK * p).zip(self.whitened.par_chunks_mut(CHUNK * p));
        rows.for_each(|(grams, whitened)| kernel::whiten(grams, whitened, inverse));
    }
}

/// Coordinates of the z_i.
pub(super) struct Metric {
    /// L, where LLᵀ is Λ plus the variance of privacy noise.
    pub(super) factor: DMatrix<f64>,
    /// L⁻¹.
    pub(super) inverse: Inverse,
    /// Cholesky factorisation of Λ.
    pub(super) design: Cholesky<f64, Dyn>,
    /// λ.
    pub(super) lambda: f64,
}

impl Metric {
    /// Builds the metric from G. Also returns the number of raised eigenvalues.
    pub(super) fn new(gram: &DMatrix<f64>, lambda: f64, added: f64) -> Option<(Self, usize)> {
        let (root, raised) = factor(gram, lambda)?;
        let design = Cholesky::pack_dirty(root.clone());
        let factor = match added > 0.0 {
            true => symmetric::shifted(&(&root * root.transpose()), added).cholesky()?.l(),
            false => root,
        };
        Some((Self { inverse: Inverse::of(&factor), factor, design, lambda }, raised))
    }
}

/// Returns L with LLᵀ = G + λI, and the number of eigenvalues that were raised to λ/2.
///
/// Without privacy none is raised: G is a convex combination of Gram matrices, and positive semidefinite.
fn factor(gram: &DMatrix<f64>, lambda: f64) -> Option<(DMatrix<f64>, usize)> {
    if symmetric::shifted(gram, lambda / 2.0).cholesky().is_some() {
        return Some((symmetric::shifted(gram, lambda).cholesky()?.l(), 0));
    }
    let (design, raised) = symmetric::raise_eigenvalues(symmetric::shifted(gram, lambda), lambda / 2.0)?;
    Some((design.cholesky()?.l(), raised))
}
