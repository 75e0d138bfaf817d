//! Units in the coordinates of the cap.

use fedbandit_core::packed_len;
use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;

use super::super::CHUNK;
use super::super::kernel::{LANES, Lanes, ZERO};
use super::super::matrices::{Inverse, pack, symmetrised};
use super::kernel::{self, CapMatrices, Roots};
use super::sums;
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
    n: usize,
    /// Blocks of all D_i, in the scaled packing.
    information: Vec<Lanes>,
    /// Blocks of all second moments of residuals in units of R², in the scaled packing.
    noise: Vec<Lanes>,
    /// Blocks of all b_i.
    sums: Vec<Lanes>,
    /// Blocks of all b_iᵀD_i⁻¹b_i.
    squares: Vec<Lanes>,
}

/// All V̂_i in blocks, for more than one cap.
pub(super) struct GramBlocks {
    n: usize,
    blocks: Vec<Lanes>,
}

impl GramBlocks {
    pub(super) fn new(streams: &Streams) -> Self {
        let blocks = kernel::interleave(streams.gram.values(), streams.gram.dimension());
        Self { n: streams.gram.len(), blocks }
    }
}

/// Coordinates of a cap C = LLᵀ.
pub(super) struct Frame {
    /// L.
    pub(super) factor: DMatrix<f64>,
    matrices: CapMatrices,
    /// L⁻¹L⁻ᵀ.
    pub(super) unit: DMatrix<f64>,
    /// λ.
    pub(super) lambda: f64,
}

impl Frame {
    fn new(cap: &DMatrix<f64>, lambda: f64) -> Option<Self> {
        let factor = cap.clone().cholesky()?.l();
        let rows = Inverse::of(&factor).matrix();
        let unit = symmetrised(&rows * rows.transpose());
        let matrices = CapMatrices::new(&factor, cap, lambda);
        Some(Self { factor, matrices, unit, lambda })
    }

    /// Returns the roots of the noise for the e of [`Units`]: one if I − eL⁻¹L⁻ᵀ is positive definite.
    fn roots(&self, added: f64) -> Roots {
        let identity = DMatrix::identity(self.unit.nrows(), self.unit.nrows());
        let columns = |root: &DMatrix<f64>| root.as_slice().to_vec();
        match (&identity - &self.unit * added).cholesky() {
            Some(root) => vec![(columns(&root.l()), -1.0)],
            None => {
                let root = Inverse::of(&self.factor).matrix() * added.abs().sqrt();
                vec![(columns(&identity), -1.0), (columns(&root), added.signum())]
            }
        }
    }
}

impl Units {
    /// Returns the number of units.
    pub(super) fn len(&self) -> usize {
        self.n
    }

    /// Computes the D_i of a cap. `None` if the cap is not positive definite.
    pub(super) fn at(&mut self, grams: &GramBlocks, cap: &DMatrix<f64>, lambda: f64) -> Option<Frame> {
        let frame = Frame::new(cap, lambda)?;
        (self.d, self.n) = (cap.nrows(), grams.n);
        self.information.resize(grams.blocks.len(), ZERO);
        let length = CHUNK / LANES * packed_len(self.d);
        let grams = grams.blocks.par_chunks(length);
        grams.zip(self.information.par_chunks_mut(length)).for_each(|(grams, information)| {
            kernel::cap(grams, &frame.matrices, information, cap.nrows());
        });
        Some(frame)
    }

    /// Computes all in the coordinates of a cap, with the e of [`Units`].
    pub(super) fn complete(&mut self, streams: &Streams, frame: &Frame, added: f64) {
        let (d, p, n) = (streams.dimension(), streams.gram.dimension(), streams.gram.len());
        let roots = frame.roots(added);
        (self.d, self.n) = (d, n);
        let Self { information, noise, sums, squares, .. } = self;
        for (blocks, length) in [(&mut *information, p), (&mut *noise, p), (&mut *sums, d), (&mut *squares, 1)] {
            blocks.resize(n.div_ceil(LANES) * length, ZERO);
        }
        let inputs =
            streams.gram.values().par_chunks(CHUNK * p).zip(streams.feature_sum.values().par_chunks(CHUNK * d));
        let blocks = CHUNK / LANES;
        let matrices = information.par_chunks_mut(blocks * p).zip(noise.par_chunks_mut(blocks * p));
        let vectors = sums.par_chunks_mut(blocks * d).zip(squares.par_chunks_mut(blocks));
        inputs.zip(matrices).zip(vectors).for_each(|((inputs, (information, noise)), (sums, squares))| {
            let units = kernel::CappedUnits { information, noise, sums, squares };
            kernel::capped_units(inputs, &frame.matrices, &roots, units, d);
        });
    }

    /// Keeps the units of which the flag is set.
    pub(super) fn retain(&mut self, kept: &[bool]) {
        let (d, p) = (self.d, packed_len(self.d));
        let Self { information, noise, sums, squares, .. } = self;
        for (blocks, length) in [(information, p), (noise, p), (sums, d), (squares, 1)] {
            kernel::retain(blocks, length, kept);
        }
        self.n = kept.iter().filter(|kept| **kept).count();
    }

    /// Returns ⟨A, D_i⟩ of each unit for a symmetric matrix A.
    pub(super) fn inner(&self, matrix: &DMatrix<f64>) -> Vec<f64> {
        self.along_each(&self.information, &[pack(matrix)]).swap_remove(0)
    }

    /// Returns qᵀD_iq of each unit.
    pub(super) fn claims(&self, q: &DVector<f64>) -> Vec<f64> {
        self.inner(&(q * q.transpose()))
    }

    /// Returns qᵀD_iq of each unit for each direction q.
    pub(super) fn claims_along(&self, directions: &[DVector<f64>]) -> Vec<Vec<f64>> {
        self.along_each(&self.information, &outer(directions))
    }

    /// Returns the second moment along q of each unit for each direction q.
    pub(super) fn noise_along(&self, directions: &[DVector<f64>]) -> Vec<Vec<f64>> {
        self.along_each(&self.noise, &outer(directions))
    }

    /// Returns qᵀz_i of each residual z_i = b_i − D_iφ.
    pub(super) fn residuals_along(&self, q: &DVector<f64>, phi: &DVector<f64>) -> Vec<f64> {
        let mut residuals = self.along_each(&self.sums, &[q.as_slice().to_vec()]).swap_remove(0);
        let claims = self.inner(&symmetrised(q * phi.transpose()));
        residuals.iter_mut().zip(claims).for_each(|(residual, claim)| *residual -= claim);
        residuals
    }

    fn along_each(&self, blocks: &[Lanes], directions: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let mut numbers = vec![vec![0.0; self.n]; directions.len()];
        sums::along_each(blocks, directions, &mut numbers);
        numbers
    }

    /// Returns ΣD_i over all units with their weights.
    pub(super) fn total(&self, weights: &[f64]) -> DMatrix<f64> {
        symmetric::matrix(&sums::weighted_sum(&self.information, weights, packed_len(self.d)), self.d)
    }

    /// Returns the sum of second moments over all units with their weights.
    pub(super) fn total_noise(&self, weights: &[f64]) -> DMatrix<f64> {
        symmetric::matrix(&sums::weighted_sum(&self.noise, weights, packed_len(self.d)), self.d)
    }

    /// Returns Σb_i over all units with their weights.
    pub(super) fn total_sum(&self, weights: &[f64]) -> DVector<f64> {
        DVector::from_vec(sums::weighted_sum(&self.sums, weights, self.d))
    }

    /// Returns Σz_iz_iᵀ of the residuals z_i = b_i − D_iφ over all units with their weights.
    pub(super) fn total_square(&self, phi: &DVector<f64>, weights: &[f64]) -> DMatrix<f64> {
        let squares = sums::residual_squares(&self.information, &self.sums, phi.as_slice(), weights);
        let squares: Vec<f64> = symmetric::scaled(&squares, self.d).collect();
        symmetric::matrix(&squares, self.d)
    }

    /// Returns the mean of D_i² over at most [`SQUARES`] units.
    pub(super) fn mean_square(&self) -> DMatrix<f64> {
        let mut sum = DMatrix::zeros(self.d, self.d);
        let units = (0..self.n).step_by(self.n.div_ceil(SQUARES));
        let count = units.len() as f64;
        for matrix in units.map(|unit| matrix_of(&self.information, unit, self.d)) {
            sum += &matrix * &matrix;
        }
        sum / count
    }

    /// Returns ‖D_i^{−1/2}(b_i − D_iφ)‖² of each unit.
    pub(super) fn distances_squared(&self, phi: &DVector<f64>) -> Vec<f64> {
        let mut distances = vec![0.0; self.n];
        let outer = pack(&(phi * phi.transpose()));
        let blocks = (&self.information[..], &self.sums[..], &self.squares[..]);
        sums::distances_squared(blocks, (&outer, phi.as_slice()), &mut distances);
        distances
    }
}

/// Returns the matrix of a unit in blocks of matrices.
fn matrix_of(blocks: &[Lanes], unit: usize, d: usize) -> DMatrix<f64> {
    let p = packed_len(d);
    let packed: Vec<f64> = blocks[unit / LANES * p..][..p].iter().map(|entry| entry.0[unit % LANES]).collect();
    symmetric::matrix(&packed, d)
}

/// Packs qqᵀ of each q.
fn outer(directions: &[DVector<f64>]) -> Vec<Vec<f64>> {
    directions.iter().map(|q| pack(&(q * q.transpose()))).collect()
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

    /// Definitions with nalgebra, for numbers of units that are not a multiple of a SIMD block, and noise with one root and two.
    #[test]
    fn capped_units_match_their_definition() {
        for (n, d) in [(1, 1), (6, 2), (11, 3), (36, 8), (43, 8)] {
            let mut draws = Draws::new(d as u64);
            let streams = draws.fleet(n, d, |i| 3 * i);
            let root = DMatrix::from_columns(&(0..d).map(|_| draws.vector(d)).collect::<Vec<_>>());
            let cap = symmetric::shifted(&(&root * root.transpose()), 0.5);
            let mut units = Units::default();
            // A λ and an e of either sign.
            let (lambda, added) = (0.1, if n % 2 == 0 { 4.0 } else { -0.07 });
            let frame = units.at(&GramBlocks::new(&streams), &cap, lambda).unwrap();
            units.complete(&streams, &frame, added);
            let phi = draws.vector(d);
            let axis = |k: usize| DVector::from_fn(d, |row, _| f64::from(row == k));
            let residuals: Vec<_> = (0..d).map(|k| units.residuals_along(&axis(k), &phi)).collect();
            let distances = units.distances_squared(&phi);
            for i in 0..n {
                let own = symmetric::shifted(&symmetric::matrix(streams.gram.row(i), d), lambda);
                let v = DVector::from_column_slice(streams.feature_sum.row(i));
                // The parallel sum, as (C⁻¹ + V⁻¹)⁻¹.
                let inverses = cap.clone().try_inverse().unwrap() + own.clone().try_inverse().unwrap();
                let parallel = inverses.try_inverse().unwrap();
                let information = matrix_of(&units.information, i, d);
                let scale = parallel.norm();
                assert!((&frame.factor * &information * frame.factor.transpose() - &parallel).norm() < 1e-9 * scale);
                let noise = matrix_of(&units.noise, i, d);
                // BL⁻¹(V + (λ + e)I)L⁻ᵀB.
                let left = (DMatrix::identity(d, d) - &information) * frame.factor.clone().try_inverse().unwrap();
                let explored = symmetric::shifted(&own, added);
                assert!((&left * explored * left.transpose() - noise).norm() < 1e-9);
                // L(b − Dφ) = (C:V)(θ_i − θ), for θ_i = V⁻¹v and θ = L⁻ᵀφ.
                let theta = frame.factor.tr_solve_lower_triangular(&phi).unwrap();
                let apart = own.cholesky().unwrap().solve(&v) - theta;
                let residual = &frame.factor * DVector::from_fn(d, |k, _| residuals[k][i]);
                assert!((residual - &parallel * &apart).norm() < 1e-9 * scale * (1.0 + apart.norm()));
                let distance = apart.dot(&(&parallel * &apart));
                assert!((distances[i] - distance).abs() < 1e-9 * (1.0 + distance) * (1.0 + scale), "unit {i} of {n}");
            }
        }
    }

    #[test]
    fn sums_over_units_match_their_definition() {
        let (n, d) = (43, 4);
        let mut draws = Draws::new(5);
        let streams = draws.fleet(n, d, |i| 2 * i);
        let mut units = Units::default();
        let frame = units.at(&GramBlocks::new(&streams), &DMatrix::identity(d, d), 0.1).unwrap();
        units.complete(&streams, &frame, 0.2);
        let (weights, phi) = (draws.vector(n), draws.vector(d));
        let axis = |k: usize| DVector::from_fn(d, |row, _| f64::from(row == k));
        let rows: Vec<_> = (0..d).map(|k| units.residuals_along(&axis(k), &phi)).collect();
        let zero = DMatrix::zeros(d, d);
        let [mut information, mut noise, mut square] = [zero.clone(), zero.clone(), zero];
        for (i, weight) in weights.iter().enumerate() {
            let residual = DVector::from_fn(d, |k, _| rows[k][i]);
            information += matrix_of(&units.information, i, d) * *weight;
            noise += matrix_of(&units.noise, i, d) * *weight;
            square += &residual * residual.transpose() * *weight;
        }
        let weights = weights.as_slice();
        assert!((units.total(weights) - information).norm() < 1e-9);
        assert!((units.total_noise(weights) - noise).norm() < 1e-9);
        assert!((units.total_square(&phi, weights) - &square).norm() < 1e-9 * square.norm());
        assert!((sums::sum(weights) - weights.iter().sum::<f64>()).abs() < 1e-9);
        assert!((sums::dot(weights, weights) - weights.iter().map(|w| w * w).sum::<f64>()).abs() < 1e-9);
    }

    /// The units that remain are the same as if there had never been others.
    #[test]
    fn retained_units_are_those_of_their_own_streams() {
        let (n, d) = (50, 3);
        let mut draws = Draws::new(6);
        let streams = draws.fleet(n, d, |i| 10 + i);
        let cap = DMatrix::identity(d, d);
        let q = draws.vector(d);
        let of = |streams: &Streams| {
            let mut units = Units::default();
            let frame = units.at(&GramBlocks::new(streams), &cap, 0.1).unwrap();
            units.complete(streams, &frame, -0.05);
            units
        };
        for modulus in [2, 3, 9, 50] {
            let kept: Vec<bool> = (0..n).map(|unit| unit % modulus != 0).collect();
            let mut units = of(&streams);
            units.retain(&kept);
            let rows: Vec<usize> = (0..n).filter(|unit| kept[*unit]).collect();
            let directions = std::slice::from_ref(&q);
            let expected = of(&streams.select(&rows).unwrap());
            assert_eq!(units.len(), rows.len());
            assert_eq!(units.claims(&q), expected.claims(&q));
            assert_eq!(units.noise_along(directions), expected.noise_along(directions));
            assert_eq!(units.distances_squared(&q), expected.distances_squared(&q));
        }
    }
}
