//! Operations on small dense matrices.

use nalgebra::{DMatrix, DVector};

use super::kernel;
use crate::math::symmetric;

/// Inverse L⁻¹ of a Cholesky factor, row by row.
pub(super) struct Inverse {
    pub(super) d: usize,
    pub(super) rows: Vec<f64>,
}

impl Inverse {
    /// Inverts a Cholesky factor L.
    pub(super) fn of(factor: &DMatrix<f64>) -> Self {
        let d = factor.nrows();
        let mut inverse = DMatrix::identity(d, d);
        // Always succeeds: a Cholesky factor has a positive diagonal.
        factor.solve_lower_triangular_mut(&mut inverse);
        Self { d, rows: inverse.transpose().as_slice().to_vec() }
    }

    pub(super) fn matrix(&self) -> DMatrix<f64> {
        DMatrix::from_row_slice(self.d, self.d, &self.rows)
    }
}

/// Returns (A + Aᵀ)/2.
pub(super) fn symmetrised(matrix: DMatrix<f64>) -> DMatrix<f64> {
    (&matrix + matrix.transpose()) * 0.5
}

/// Returns A₊, with the negative eigenvalues of A replaced by 0.
pub(super) fn positive_part(matrix: &DMatrix<f64>) -> DMatrix<f64> {
    let mut positive = DMatrix::zeros(matrix.nrows(), matrix.ncols());
    for (value, vector) in symmetric::eigenpairs(matrix).iter().filter(|(value, _)| *value > 0.0) {
        positive.ger(*value, vector, vector, 1.0);
    }
    positive
}

/// Returns an ellipsoid that contains the sum of the ellipsoids {x : xxᵀ ⪯ A_j}:
///
/// ```text
/// A = Σ_j t_j·Σ_j A_j/t_j,   t_j = √λ_max(A_j).
/// ```
///
/// *Proof.* For x = Σx_j and any u, (uᵀx)² ≤ (Σ√(uᵀA_ju))² ≤ Σt_j·Σ(uᵀA_ju)/t_j by the Cauchy–Schwarz inequality. ∎
pub(super) fn outer_sum(parts: &[DMatrix<f64>]) -> DMatrix<f64> {
    let extents: Vec<f64> = parts.iter().map(|part| largest_eigenpair(part).0.max(0.0).sqrt()).collect();
    let total: f64 = extents.iter().sum();
    let mut sum = parts[0].clone() * 0.0;
    for (part, extent) in parts.iter().zip(&extents).filter(|(_, extent)| **extent > 0.0) {
        sum += part * (total / extent);
    }
    sum
}

/// Returns the largest eigenvalue of a positive semidefinite matrix and a unit vector, from a high power of the matrix.
///
/// The value is at least 1 − ln(d)/1024 of the largest eigenvalue, whatever the gap to the others.
pub(super) fn largest_eigenpair(matrix: &DMatrix<f64>) -> (f64, DVector<f64>) {
    let mut power = matrix.clone();
    for _ in 0..SQUARINGS {
        let scale = power.amax();
        if !(scale > 0.0) {
            return (0.0, DVector::zeros(matrix.nrows()));
        }
        power /= scale;
        power = &power * &power;
    }
    let longest = power.column_iter().max_by(|a, b| a.norm_squared().total_cmp(&b.norm_squared()));
    let vector = longest.map_or_else(|| DVector::zeros(matrix.nrows()), |column| column.normalize());
    ((matrix * &vector).dot(&vector), vector)
}

/// The matrix is raised to the power 2⁹ = 512.
const SQUARINGS: usize = 9;

/// Packs a symmetric matrix, scaled.
pub(super) fn pack(matrix: &DMatrix<f64>) -> Vec<f64> {
    let packed: Vec<f64> = symmetric::pack(matrix).collect();
    symmetric::scaled(&packed, matrix.nrows()).collect()
}

/// Returns qᵀA_iq for matrices A_i in the scaled packing.
pub(super) fn along(matrices: &[f64], q: &DVector<f64>) -> Vec<f64> {
    let outer = pack(&(q * q.transpose()));
    let mut values = vec![0.0; matrices.len() / outer.len()];
    kernel::along(matrices, &outer, &mut values);
    values
}

/// Returns Σw_iA_i for matrices A_i in the scaled packing.
pub(super) fn weighted(matrices: &[f64], weights: &[f64], d: usize) -> DMatrix<f64> {
    symmetric::matrix(&kernel::weighted_sum(matrices, weights), d)
}
