//! Inverse Cholesky factor W of a design matrix: Λ = LLᵀ and W = L⁻¹, so that ‖x‖_{Λ⁻¹} = ‖Wx‖₂.
//!
//! Scoring with W needs neither division nor substitution and reads each row of W once, in order.

use crate::VALUE_LIMIT;
use crate::error::ModelError;
use crate::kernel::add_scaled;

/// Bound on the entries of W. No score can overflow below it: ‖Wx‖₂² ≤ D²·2⁸⁰.
const FACTOR_LIMIT: f32 = 1.0995116e12; // 2⁴⁰

/// Smallest accepted pivot, 2⁻⁶⁰: its inverse root stays far below [`FACTOR_LIMIT`].
pub(crate) const PIVOT_FLOOR: f32 = 8.673_617e-19;

/// Factorises Λ, given as its packed upper triangle, and inverts the factor in one sweep of D³/3 multiply-adds.
///
/// Writes W's diagonal to `diagonal` and its rows left of the diagonal of `square`; the other entries of `square` are
/// scratch. The caller keeps the last valid factor elsewhere, since a rejected model must leave it untouched.
///
/// With Λ = M⁻¹·diag(p)·M⁻ᵀ and M unit lower triangular, W = diag(p)^{−1/2}·M. At step k, row k holds
/// [ row of M | pivot p_k | rest of the Schur complement's row ]. The step subtracts a_ki/p_k times this row from each row i
/// below, on both sides of the diagonal, and scales M's part by 1/√p_k. The elimination itself takes no square root, which
/// keeps its error small.
///
/// A pivot must exceed 2⁻²³ of its entry of Λ: below that it consists of rounding errors.
pub(crate) fn factorise<const D: usize>(
    mut design: impl Iterator<Item = f32>,
    square: &mut [[f32; D]; D],
    diagonal: &mut [f32; D],
) -> Result<(), ModelError> {
    for (i, (row, a_ii)) in square.iter_mut().zip(diagonal.iter_mut()).enumerate() {
        for (cell, value) in row.iter_mut().skip(i).zip(&mut design) {
            *cell = in_range(value)?;
        }
        *a_ii = row.get(i).copied().unwrap_or_default();
    }
    let mut remaining = square.as_mut_slice();
    for (k, diagonal) in diagonal.iter_mut().enumerate() {
        let rows = remaining;
        let indefinite = ModelError::NotPositiveDefinite { row: k };
        let Some((row_k, below)) = rows.split_first_mut() else { return Err(indefinite) };
        let Some((left, [pivot, right @ ..])) = row_k.split_at_mut_checked(k) else { return Err(indefinite) };
        if !(*pivot > *diagonal * f32::EPSILON && *pivot > PIVOT_FLOOR) {
            return Err(indefinite);
        }
        for (j, row) in below.iter_mut().enumerate() {
            let (Some((m_row, [m_k, rest @ ..])), Some(right)) = (row.split_at_mut_checked(k), right.get(j..)) else {
                return Err(indefinite);
            };
            let scale = -right.first().copied().unwrap_or_default() / *pivot;
            add_scaled(m_row, scale, left);
            *m_k = scale;
            add_scaled(rest.get_mut(j..).unwrap_or_default(), scale, right);
        }
        *diagonal = 1.0 / libm::sqrtf(*pivot);
        for entry in left {
            *entry *= *diagonal;
            if !(entry.abs() < FACTOR_LIMIT) {
                return Err(indefinite);
            }
        }
        remaining = below;
    }
    Ok(())
}

/// Validates that a value is finite and within ±[`VALUE_LIMIT`].
pub(crate) fn in_range(value: f32) -> Result<f32, ModelError> {
    if value.abs() <= VALUE_LIMIT { Ok(value) } else { Err(ModelError::OutOfRange) }
}
