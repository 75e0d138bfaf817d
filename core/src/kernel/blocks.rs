//! Kernels over several actions at a time, for targets with vector registers.

use super::ZERO;

/// Number of actions in a block.
pub(crate) const LANES: usize = 16;

/// Entry j of every action of a block.
pub(crate) type Lanes = [f32; LANES];

/// [`lane_products`] of the first N actions of a block.
#[inline(never)]
pub(crate) fn block_products<const D: usize, const N: usize>(
    theta: &[f32; D],
    square: &[[f32; D]; D],
    diagonal: &[f32; D],
    block: &[Lanes; D],
) -> [Lanes; 3] {
    let products = lane_products::<D, N, LANES>(theta, square, diagonal, block);
    products.map(|lanes| core::array::from_fn(|lane| lanes.get(lane).copied().unwrap_or_default()))
}

/// Computes ⟨x,x⟩, ⟨x,θ⟩ and ‖Wx‖₂² for the first N of M actions, one per lane of a vector register.
///
/// Same bits as [`dot`](super::dot) and [`norm_squared_of_product`](super::norm_squared_of_product). Two rows of W share
/// every load of x.
#[inline(always)]
pub(crate) fn lane_products<const D: usize, const N: usize, const M: usize>(
    theta: &[f32; D],
    square: &[[f32; D]; D],
    diagonal: &[f32; D],
    x: &[[f32; M]; D],
) -> [[f32; N]; 3] {
    let [mut norm, mut mean, mut sum] = [[ZERO; N]; 3];
    for (theta, x) in theta.iter().zip(x) {
        add_lanes(&mut norm, x, |x| *x);
        add_lanes(&mut mean, x, |_| *theta);
    }
    let (rows, last_row) = square.as_chunks::<2>();
    let (w_ii, last_w) = diagonal.as_chunks::<2>();
    let (x_i, last_x) = x.as_chunks::<2>();
    for (pair, (([row_0, row_1], [w_0, w_1]), [x_0, x_1])) in rows.iter().zip(w_ii).zip(x_i).enumerate() {
        let (i, [mut y_0, mut y_1]) = (2 * pair, [[ZERO; N]; 2]);
        for ((w_0, w_1), x) in row_0.iter().zip(row_1).zip(x).take(i) {
            add_lanes(&mut y_0, x, |_| *w_0);
            add_lanes(&mut y_1, x, |_| *w_1);
        }
        let w_10 = row_1.get(i).copied().unwrap_or_default();
        add_lanes(&mut y_0, x_0, |_| *w_0);
        add_lanes(&mut y_1, x_0, |_| w_10);
        add_lanes(&mut y_1, x_1, |_| *w_1);
        add_lanes(&mut sum, &y_0, |y| *y);
        add_lanes(&mut sum, &y_1, |y| *y);
    }
    if let ([row], [w], [x_i]) = (last_row, last_w, last_x) {
        let mut y = [ZERO; N];
        for (w, x) in row.iter().zip(x).take(D - 1) {
            add_lanes(&mut y, x, |_| *w);
        }
        add_lanes(&mut y, x_i, |_| *w);
        add_lanes(&mut sum, &y, |y| *y);
    }
    [norm, mean, sum]
}

/// sum += a·factor(a) in each lane
#[inline(always)]
fn add_lanes<const N: usize>(sum: &mut [f32; N], a: &[f32], factor: impl Fn(&f32) -> f32) {
    for (sum, a) in sum.iter_mut().zip(a) {
        *sum += a * factor(a);
    }
}
