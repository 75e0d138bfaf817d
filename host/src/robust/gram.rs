//! Step 1: G is the geometric median of the V̂_i. Twice, or once if that moves it by no more than [`SETTLED`]: with Λ = G + λI = LLᵀ,
//! G becomes L·GM(L⁻¹V̂_iL⁻ᵀ)·Lᵀ, a median in which all directions count alike. Λ = G + λI, where λ = [`LAMBDA`](super::LAMBDA). With
//! privacy λ is larger, and L that of Λ plus the variance of the noise in units of R².

use nalgebra::{Cholesky, DMatrix, Dyn};
use rayon::prelude::*;

use super::matrices::{Inverse, symmetrised};
use super::{CHUNK, Centre, FINE, kernel};
use crate::aggregate::{AggregateError, Aggregator, GeometricMedian, Mean, Points, Tolerance, distance, lower_median};
use crate::algorithm::Streams;
use crate::math::symmetric;

/// How far apart half of the V̂_i may be, relative to their median, for the mean of those that are left to stand for all. If agents
/// explore different directions, liars may be all that is left in one.
pub(super) const ALIKE: f64 = 1.0;

/// Of medians that only choose coordinates.
const COARSE: Tolerance = Tolerance::Relative(1e-3);

/// How far the median of the Gram matrices may move, relative to itself, and be taken as it is.
const SETTLED: f64 = 0.01;

/// The centres of the V̂_i, each of which starts where the last one was.
#[derive(Debug)]
pub(super) struct Grams {
    raw: GeometricMedian,
    relative: GeometricMedian,
    /// The L⁻¹V̂_iL⁻ᵀ, in the scaled packing.
    whitened: Vec<f64>,
}

impl Grams {
    pub(super) fn new() -> Self {
        let [raw, relative] = [COARSE, FINE].map(GeometricMedian::new);
        Self { raw, relative, whitened: Vec::new() }
    }

    /// G, and the median distance of the V̂_i from it, relative to itself.
    pub(super) fn centre(
        &mut self,
        centre: Centre,
        streams: &Streams,
        prior: f64,
    ) -> Result<(DMatrix<f64>, f64), AggregateError> {
        if centre == Centre::Medoid {
            return Ok(self.medoid(streams, prior));
        }
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
        let apart = match (median, Points::new(&self.whitened[..], p)) {
            (Some(median), Ok(points)) => lower_median(points.rows().map(|row| distance(row, &median)).collect()),
            _ => 0.0,
        };
        Ok((gram, apart))
    }

    /// That V̂_i, with Λ_i = V̂_i + λI = LLᵀ, from which the median of ‖L⁻¹(V̂_j − V̂_i)L⁻ᵀ‖_F over all j is least, and that median;
    /// 0 if there is none.
    fn medoid(&mut self, streams: &Streams, prior: f64) -> (DMatrix<f64>, f64) {
        let (d, p) = (streams.dimension(), streams.gram.dimension());
        let mut best = (DMatrix::zeros(d, d), f64::INFINITY);
        for unit in 0..streams.gram.len() {
            let gram = symmetric::matrix(streams.gram.row(unit), d);
            let Some((factor, _)) = factor(&gram, prior) else { continue };
            self.whiten(&streams.gram, &Inverse::of(&factor));
            let own = &self.whitened[unit * p..][..p];
            let apart = lower_median(self.whitened.chunks_exact(p).map(|other| distance(other, own)).collect());
            if apart < best.1 {
                best = (gram, apart);
            }
        }
        best
    }

    /// All L⁻¹V̂_iL⁻ᵀ, given L⁻¹.
    fn whiten(&mut self, grams: &Points<'_>, inverse: &Inverse) {
        let p = grams.dimension();
        self.whitened.resize(grams.values().len(), 0.0);
        let rows = grams.values().par_chunks(CHUNK * p).zip(self.whitened.par_chunks_mut(CHUNK * p));
        rows.for_each(|(grams, whitened)| kernel::whiten(grams, whitened, inverse));
    }
}

/// What the z_i are measured in.
pub(super) struct Metric {
    /// L, with LLᵀ = Λ plus what privacy adds.
    pub(super) factor: DMatrix<f64>,
    /// L⁻¹.
    pub(super) inverse: Inverse,
    /// Λ.
    pub(super) design: Cholesky<f64, Dyn>,
    /// λ.
    pub(super) lambda: f64,
}

impl Metric {
    /// From G, and how many eigenvalues had to be raised.
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

/// L with LLᵀ = G + λI, and how many eigenvalues of G had to be raised so that this is at least λ/2: none without noise,
/// where G is a mean of Gram matrices.
fn factor(gram: &DMatrix<f64>, lambda: f64) -> Option<(DMatrix<f64>, usize)> {
    if symmetric::shifted(gram, lambda / 2.0).cholesky().is_some() {
        return Some((symmetric::shifted(gram, lambda).cholesky()?.l(), 0));
    }
    let (design, raised) = symmetric::raise_eigenvalues(symmetric::shifted(gram, lambda), lambda / 2.0)?;
    Some((design.cholesky()?.l(), raised))
}
