//! Reference kernels as short loops. The others must match them bit for bit; builds for size use them directly.

use super::{ZERO, add_products};

/// ‖Wx‖₂² for lower triangular W: its diagonal in `diagonal`, its rows left of the diagonal of `square`.
///
/// Row i gives y_i = Σ_{j≤i} w_ij x_j, and the result is Σ y_i².
#[inline(always)]
pub(crate) fn norm_squared_of_product<const D: usize>(
    square: &[[f32; D]; D],
    diagonal: &[f32; D],
    x: &[f32; D],
) -> f32 {
    let mut sum = ZERO;
    for (i, ((row, w_ii), x_i)) in square.iter().zip(diagonal).zip(x).enumerate() {
        let y = add_products(ZERO, row.get(..i).unwrap_or_default(), x) + w_ii * x_i;
        sum += y * y;
    }
    sum
}

/// U += xxᵀ, on and above the diagonal of `square`.
#[inline(always)]
pub(crate) fn add_outer_product<const D: usize>(square: &mut [[f32; D]; D], x: &[f32; D]) {
    for (i, (row, x_i)) in square.iter_mut().zip(x).enumerate() {
        add_scaled(row.get_mut(i..).unwrap_or_default(), *x_i, x.get(i..).unwrap_or_default());
    }
}

/// a += scale · b
#[inline(always)]
pub(crate) fn add_scaled(a: &mut [f32], scale: f32, b: &[f32]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a += scale * b;
    }
}
