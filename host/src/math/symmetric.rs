//! Symmetric matrices as packed upper triangles, row by row.
//!
//! In the *scaled* packing values off the diagonal carry a factor √2, so that the ℓ2 norm is the Frobenius norm. An
//! oracle for vectors thus serves matrices. Its result is symmetric by construction. This loses nothing: the symmetric part
//! of a geometric median of symmetric matrices is as good a median (the paper's Lemma 9).

use std::f64::consts::SQRT_2;

use fedbandit_core::VALUE_LIMIT;
use nalgebra::{DMatrix, DVector};

/// Returns row and column of each value of a packed triangle.
fn places(dimension: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..dimension).flat_map(move |i| (i..dimension).map(move |j| (i, j)))
}

/// Returns for each value of a packed triangle whether it is on the diagonal.
pub(crate) fn on_diagonal(dimension: usize) -> impl Iterator<Item = bool> {
    places(dimension).map(|(i, j)| i == j)
}

fn scales(dimension: usize) -> impl Iterator<Item = f64> {
    on_diagonal(dimension).map(|on| if on { 1.0 } else { SQRT_2 })
}

/// Converts a packed triangle to the scaled packing.
pub fn scaled(packed: &[f64], dimension: usize) -> impl Iterator<Item = f64> {
    packed.iter().zip(scales(dimension)).map(|(value, scale)| value * scale)
}

/// Converts a scaled packing to the packed triangle.
pub fn unscaled(scaled: &[f64], dimension: usize) -> impl Iterator<Item = f64> {
    scaled.iter().zip(scales(dimension)).map(|(value, scale)| value / scale)
}

/// Expands a scaled packing to the full matrix.
pub fn matrix(scaled: &[f64], dimension: usize) -> DMatrix<f64> {
    let mut matrix = DMatrix::zeros(dimension, dimension);
    for ((i, j), value) in places(dimension).zip(unscaled(scaled, dimension)) {
        matrix[(i, j)] = value;
        matrix[(j, i)] = value;
    }
    matrix
}

/// Returns Ax for a matrix A in the scaled packing.
pub fn product(scaled: &[f64], x: &[f64]) -> Vec<f64> {
    let mut product = vec![0.0; x.len()];
    for ((i, j), value) in places(x.len()).zip(unscaled(scaled, x.len())) {
        product[i] += value * x[j];
        if i != j {
            product[j] += value * x[i];
        }
    }
    product
}

/// Packs a symmetric matrix. Reads the lower triangle, as nalgebra's Cholesky factorisation does.
pub fn pack(matrix: &DMatrix<f64>) -> impl Iterator<Item = f64> {
    places(matrix.nrows()).map(|(i, j)| matrix[(j, i)])
}

/// Least eigenvalue with which every device can factorise Λ: max{(D + 4)·2⁻²³·tr Λ, 2⁻⁵⁸}.
///
/// *Derivation.* Let u = 2⁻²⁴ and Λ = RᵀR. Storing Λ in f32 changes it by at most u·|Λ|. The device's elimination finds
/// the pivots of a matrix within (D + 3)u·|R|ᵀ|R| of that, including two roundings for a factor without roots (Higham,
/// *Accuracy and Stability of Numerical Algorithms*, theorem 10.3). Both |Λ| and |R|ᵀ|R| have spectral norms of at most
/// ‖R‖_F² = tr Λ, so every pivot is at least λ_min(Λ) − (D + 4)u·tr Λ to first order. If λ_min(Λ) is at least twice the
/// subtracted term, a pivot exceeds 2⁻²³ of its diagonal entry, which the device requires. 2⁻⁵⁸ keeps it above the
/// device's absolute limit, 2⁻⁶⁰.
fn margin(dimension: usize, trace: f64) -> f64 {
    ((dimension as f64 + 4.0) * f64::from(f32::EPSILON) * trace).max(LEAST)
}

const LEAST: f64 = 1.0 / (1_u64 << 58) as f64;

/// Returns whether every device can factorise this Λ: in range, and positive definite by a margin for rounding in f32.
pub fn is_usable(design: &DMatrix<f64>) -> bool {
    in_range(design) && shifted(design, -margin(design.nrows(), design.trace())).cholesky().is_some()
}

fn in_range(design: &DMatrix<f64>) -> bool {
    design.iter().all(|value| value.abs() <= f64::from(VALUE_LIMIT))
}

/// Returns A + shift·I.
pub(crate) fn shifted(matrix: &DMatrix<f64>, shift: f64) -> DMatrix<f64> {
    matrix + DMatrix::from_diagonal_element(matrix.nrows(), matrix.nrows(), shift)
}

/// Makes Λ usable ([`is_usable`]). Returns it with the number of raised eigenvalues, or `None` if a value is out of range.
///
/// A usable Λ is returned unchanged. Otherwise all eigenvalues below the larger of `floor` and twice the margin are raised
/// to it.
pub fn raise_eigenvalues(mut design: DMatrix<f64>, floor: f64) -> Option<(DMatrix<f64>, usize)> {
    if is_usable(&design) {
        return Some((design, 0));
    }
    if !in_range(&design) {
        return None;
    }
    let pairs = eigenpairs(&design);
    // Raising adds at most D·floor to the trace. The margin grows by far less than the factor of 2 allows.
    let floor = floor.max(2.0 * margin(design.nrows(), pairs.iter().map(|(value, _)| value.max(0.0)).sum()));
    design.fill(0.0);
    for (value, vector) in &pairs {
        design.ger(value.max(floor), vector, vector, 1.0);
    }
    Some((design, pairs.iter().filter(|(value, _)| *value < floor).count()))
}

/// Returns eigenvalues and unit eigenvectors, by one-sided Jacobi rotations.
///
/// nalgebra's solver returns NaN for some sparse matrices with entries of many magnitudes, and loops forever on others
/// (nalgebra issue 1025). A peer may choose the matrix, so that solver is not used.
///
/// With a shift σ ≥ 2‖A‖₂ the eigenvalues of A + σI are within a factor of 3, so all columns have similar lengths. If V is
/// orthogonal and the columns of (A + σI)V are orthogonal, then V consists of eigenvectors, and the columns are these
/// eigenvectors times the eigenvalues of A + σI.
pub fn eigenpairs(matrix: &DMatrix<f64>) -> Vec<(f64, DVector<f64>)> {
    let shift = 2.0 * matrix.norm() + LEAST;
    let mut columns = shifted(matrix, shift);
    // Convergence is quadratic: fewer than ten sweeps suffice.
    for _ in 0..SWEEPS {
        if !sweep(&mut columns) {
            break;
        }
    }
    columns.column_iter().map(|column| (column.norm() - shift, column.normalize())).collect()
}

/// Maximum number of sweeps.
const SWEEPS: usize = 50;

/// Rotates every pair of columns until orthogonal. Returns whether any pair was rotated.
fn sweep(columns: &mut DMatrix<f64>) -> bool {
    let n = columns.ncols();
    let mut rotated = false;
    for (p, q) in places(n).filter(|(p, q)| p < q) {
        let (a, b) = (columns.column(p), columns.column(q));
        let (aa, bb, ab) = (a.norm_squared(), b.norm_squared(), a.dot(&b));
        if ab.abs() <= 4.0 * f64::EPSILON * n as f64 * (aa * bb).sqrt() {
            continue;
        }
        let cot_2 = (bb - aa) / (2.0 * ab);
        // A square that overflows gives tan = 0. The functions of libm differ between machines, a square root does not.
        let tan = cot_2.signum() / (cot_2.abs() + (cot_2 * cot_2 + 1.0).sqrt());
        let cos = 1.0 / (tan * tan + 1.0).sqrt();
        let (left, right) = columns.as_mut_slice().split_at_mut(q * n);
        for (a, b) in left[p * n..][..n].iter_mut().zip(right) {
            (*a, *b) = ((*a - *b * tan) * cos, (*a * tan + *b) * cos);
        }
        rotated = true;
    }
    rotated
}
