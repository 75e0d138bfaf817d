//! Units in the coordinates of the cap.

use fedbandit_core::packed_len;
use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;

use super::super::matrices::{Inverse, symmetrised};
use super::super::{CHUNK, kernel};
use crate::algorithm::Streams;
use crate::math::symmetric;

/// Maximum number of units of which squares are computed.
const SQUARES: usize = 128;

/// Capped information of all units: with C = LLᵀ, W_i = L⁻¹(V̂_i + λI)L⁻ᵀ, B_i = (I + W_i)⁻¹ and y_i = L⁻¹v̂_i,
///
/// ```text
/// D_i = I − B_i,   b_i = B_iy_i,   0 ⪯ D_i ⪯ I.
/// ```
///
/// D_i is the parallel sum of C and V̂_i + λI: the information of the unit, capped at C in every direction. At φ* = Lᵀθ* the
/// residual of an honest unit is
///
/// ```text
/// b_i − D_iφ* = B_iL⁻¹(ξ_i + h_i − H_iθ*) − λB_iL⁻¹θ*.
/// ```
///
/// Noise ξ_i has a covariance of at most R²V̂_i. Privacy noise H_i of V̂_i and h_i of v̂_i add ν²(1 + S²)I, and the last term is a
/// bias. Together their second moment is about
///
/// ```text
/// R²B_iL⁻¹V̂_iL⁻ᵀB_i + (ν²(1 + S²) + λ²S²)B_iL⁻¹L⁻ᵀB_i = R²(B_i − B_i² + eB_iL⁻¹L⁻ᵀB_i),
/// e = (ν²(1 + S²) + λ²S²)/R² − λ.
/// ```
#[derive(Debug, Default)]
pub(super) struct Units {
    pub(super) d: usize,
    /// All D_i, in the scaled packing.
    pub(super) information: Vec<f64>,
    /// All second moments of residuals in units of R², in the scaled packing.
    pub(super) noise: Vec<f64>,
    /// All b_i.
    pub(super) sums: Vec<f64>,
    /// All b_iᵀD_i⁻¹b_i.
    pub(super) squares: Vec<f64>,
}

/// Coordinates of a cap C = LLᵀ.
pub(super) struct Frame {
    /// L.
    pub(super) factor: DMatrix<f64>,
    inverse: Inverse,
    /// L⁻¹L⁻ᵀ.
    pub(super) unit: DMatrix<f64>,
    /// λ.
    pub(super) lambda: f64,
}

impl Units {
    /// Returns the number of units.
    pub(super) fn len(&self) -> usize {
        self.information.len() / packed_len(self.d)
    }

    /// Computes the D_i of a cap. `None` if the cap is not positive definite.
    pub(super) fn at(&mut self, streams: &Streams, cap: &DMatrix<f64>, lambda: f64) -> Option<Frame> {
        let (d, p, n) = (streams.dimension(), streams.gram.dimension(), streams.gram.len());
        let factor = cap.clone().cholesky()?.l();
        let inverse = Inverse::of(&factor);
        let rows = inverse.matrix();
        let unit = symmetrised(&rows * rows.transpose());
        let prior = pack(&(&unit * lambda));
        self.d = d;
        self.information.resize(n * p, 0.0);
        let grams = streams.gram.values().par_chunks(CHUNK * p);
        grams.zip(self.information.par_chunks_mut(CHUNK * p)).for_each(|(grams, information)| {
            kernel::cap(grams, &inverse, &prior, information);
        });
        Some(Frame { factor, inverse, unit, lambda })
    }

    /// Computes all in the coordinates of a cap, with the e of [`Units`].
    pub(super) fn complete(&mut self, streams: &Streams, frame: &Frame, added: f64) {
        let (d, p, n) = (streams.dimension(), streams.gram.dimension(), streams.gram.len());
        let root: Vec<f64> = frame.inverse.rows.iter().map(|value| value * added.abs().sqrt()).collect();
        let prior = pack(&(&frame.unit * frame.lambda));
        self.d = d;
        let Self { information, noise, sums, squares, .. } = self;
        for (values, length) in [(&mut *information, p), (&mut *noise, p), (&mut *sums, d), (&mut *squares, 1)] {
            values.resize(n * length, 0.0);
        }
        let inputs =
            streams.gram.values().par_chunks(CHUNK * p).zip(streams.feature_sum.values().par_chunks(CHUNK * d));
        let matrices = information.par_chunks_mut(CHUNK * p).zip(noise.par_chunks_mut(CHUNK * p));
        let vectors = sums.par_chunks_mut(CHUNK * d).zip(squares.par_chunks_mut(CHUNK));
        inputs.zip(matrices).zip(vectors).for_each(|((inputs, (information, noise)), (sums, squares))| {
            let units = kernel::CappedUnits { information, noise, sums, squares };
            kernel::capped_units(inputs, &frame.inverse, &prior, (&root, added.signum()), units);
        });
    }

    /// Keeps the units of which the flag is set.
    pub(super) fn retain(&mut self, kept: &[bool]) {
        let p = packed_len(self.d);
        let columns =
            [(&mut self.information, p), (&mut self.noise, p), (&mut self.sums, self.d), (&mut self.squares, 1)];
        for (values, length) in columns {
            let mut end = 0;
            for unit in (0..kept.len()).filter(|unit| kept[*unit]) {
                values.copy_within(unit * length..(unit + 1) * length, end);
                end += length;
            }
            values.truncate(end);
        }
    }

    /// Returns qᵀD_iq of each unit.
    pub(super) fn claims(&self, q: &DVector<f64>) -> Vec<f64> {
        along(&self.information, q)
    }

    /// Returns ΣD_i over all units with their weights.
    pub(super) fn total(&self, weights: &[f64]) -> DMatrix<f64> {
        weighted(&self.information, weights, self.d)
    }

    /// Returns the mean of D_i² over at most [`SQUARES`] units.
    pub(super) fn mean_square(&self) -> DMatrix<f64> {
        let rows = self.information.chunks_exact(packed_len(self.d)).step_by(self.len().div_ceil(SQUARES));
        let mut sum = DMatrix::zeros(self.d, self.d);
        let count = rows.len() as f64;
        for matrix in rows.map(|row| symmetric::matrix(row, self.d)) {
            sum += &matrix * &matrix;
        }
        sum / count
    }

    /// Returns b_i − D_iφ of all units.
    pub(super) fn residuals(&self, phi: &DVector<f64>) -> Vec<f64> {
        let identity = Inverse::of(&DMatrix::identity(self.d, self.d));
        let mut residuals = vec![0.0; self.sums.len()];
        kernel::residuals(&self.information, &self.sums, &mut residuals, &identity, phi.as_slice());
        residuals
    }

    /// Returns ‖D_i^{−1/2}(b_i − D_iφ)‖² of each unit.
    pub(super) fn distances_squared(&self, phi: &DVector<f64>) -> Vec<f64> {
        let mut products = vec![0.0; self.len()];
        kernel::along(&self.sums, phi.as_slice(), &mut products);
        let quadratic = self.claims(phi);
        let terms = self.squares.iter().zip(products).zip(quadratic);
        terms.map(|((square, product), quadratic)| (square - 2.0 * product + quadratic).max(0.0)).collect()
    }
}

/// Returns qᵀA_iq for matrices A_i in the scaled packing.
pub(in super::super) fn along(matrices: &[f64], q: &DVector<f64>) -> Vec<f64> {
    along_each(matrices, std::slice::from_ref(q)).swap_remove(0)
}

/// Returns qᵀA_iq for each direction q.
pub(super) fn along_each(matrices: &[f64], directions: &[DVector<f64>]) -> Vec<Vec<f64>> {
    let outer: Vec<Vec<f64>> = directions.iter().map(|q| pack(&(q * q.transpose()))).collect();
    let outer: Vec<&[f64]> = outer.iter().map(Vec::as_slice).collect();
    let count = outer.first().map_or(0, |outer| matrices.len() / outer.len());
    let mut claims = vec![vec![0.0; count]; outer.len()];
    kernel::along_each(matrices, &outer, &mut claims.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    claims
}

/// Returns Σw_iA_i for matrices A_i in the scaled packing.
pub(in super::super) fn weighted(matrices: &[f64], weights: &[f64], d: usize) -> DMatrix<f64> {
    symmetric::matrix(&kernel::weighted_sum(matrices, weights), d)
}

/// Packs a symmetric matrix, scaled.
pub(super) fn pack(matrix: &DMatrix<f64>) -> Vec<f64> {
    let packed: Vec<f64> = symmetric::pack(matrix).collect();
    symmetric::scaled(&packed, matrix.nrows()).collect()
}

#[cfg(test)]
#[expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "test data need no cryptographic generator")]
pub(super) mod tests {
    use rand_distr::{Distribution, StandardNormal};
    use rand_pcg::Pcg64;
    use rand_pcg::rand_core::SeedableRng;

    use super::*;

    pub(in super::super) struct Draws(Pcg64);

    impl Draws {
        pub(in super::super) fn new(seed: u64) -> Self {
            Self(Pcg64::seed_from_u64(seed))
        }

        pub(in super::super) fn vector(&mut self, d: usize) -> DVector<f64> {
            DVector::from_fn(d, |_, _| StandardNormal.sample(&mut self.0))
        }

        /// Streams of agents that took `steps(i)` steps, each mostly along its own directions, with θ = (1, 0, …) and noise 0.5.
        pub(in super::super) fn fleet(&mut self, n: usize, d: usize, steps: impl Fn(usize) -> usize) -> Streams {
            let mut streams = Streams::zeros(n, d).unwrap();
            for i in 0..n {
                let (mut gram, mut sum) = (DMatrix::zeros(d, d), DVector::zeros(d));
                for _ in 0..steps(i) {
                    let mut x = self.vector(d).normalize();
                    x[i % d] *= 0.1;
                    let reward = x[0] + 0.5 * self.vector(1)[0];
                    gram += &x * x.transpose();
                    sum += x * reward;
                }
                streams.add(i, &symmetric::pack(&gram).collect::<Vec<_>>(), sum.as_slice());
            }
            streams
        }
    }

    /// Definitions with nalgebra, for numbers of units that are not a multiple of a SIMD block.
    #[test]
    fn capped_units_match_their_definition() {
        for (n, d) in [(1, 1), (6, 2), (11, 3), (18, 8)] {
            let mut draws = Draws::new(d as u64);
            let streams = draws.fleet(n, d, |i| 3 * i);
            let root = DMatrix::from_columns(&(0..d).map(|_| draws.vector(d)).collect::<Vec<_>>());
            let cap = symmetric::shifted(&(&root * root.transpose()), 0.5);
            let mut units = Units::default();
            // A λ and an e of either sign.
            let (lambda, added) = (0.1, if n % 2 == 0 { 0.2 } else { -0.07 });
            let frame = units.at(&streams, &cap, lambda).unwrap();
            units.complete(&streams, &frame, added);
            let phi = draws.vector(d);
            let (residuals, distances) = (units.residuals(&phi), units.distances_squared(&phi));
            for i in 0..n {
                let own = symmetric::shifted(&symmetric::matrix(streams.gram.row(i), d), lambda);
                let v = DVector::from_column_slice(streams.feature_sum.row(i));
                // The parallel sum, as (C⁻¹ + V⁻¹)⁻¹.
                let inverses = cap.clone().try_inverse().unwrap() + own.clone().try_inverse().unwrap();
                let parallel = inverses.try_inverse().unwrap();
                let information =
                    symmetric::matrix(&units.information[i * units.information.len() / n..][..pack(&cap).len()], d);
                let scale = parallel.norm();
                assert!((&frame.factor * &information * frame.factor.transpose() - &parallel).norm() < 1e-9 * scale);
                let noise = symmetric::matrix(&units.noise[i * units.noise.len() / n..][..pack(&cap).len()], d);
                // BL⁻¹(V + (λ + e)I)L⁻ᵀB.
                let left = (DMatrix::identity(d, d) - &information) * frame.factor.clone().try_inverse().unwrap();
                let explored = symmetric::shifted(&own, added);
                assert!((&left * explored * left.transpose() - noise).norm() < 1e-9);
                // L(b − Dφ) = (C:V)(θ_i − θ), for θ_i = V⁻¹v and θ = L⁻ᵀφ.
                let theta = frame.factor.tr_solve_lower_triangular(&phi).unwrap();
                let apart = own.cholesky().unwrap().solve(&v) - theta;
                let residual = &frame.factor * DVector::from_column_slice(&residuals[i * d..][..d]);
                assert!((residual - &parallel * &apart).norm() < 1e-9 * scale * (1.0 + apart.norm()));
                let distance = apart.dot(&(&parallel * &apart));
                assert!((distances[i] - distance).abs() < 1e-9 * (1.0 + distance) * (1.0 + scale), "unit {i} of {n}");
            }
        }
    }
}
