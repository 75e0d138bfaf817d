//! Several actions side by side, for targets with vector registers.

use super::ZERO;

/// How many actions the blocked kernel holds.
pub(crate) const LANES: usize = 16;

/// Entry j of every action of a block.
pub(crate) type Lanes = [f32; LANES];

/// [`dot`](super::dot) and [`norm_squared_of_product`](super::norm_squared_of_product) for the first N actions of a block, side by side in vector registers.
///
/// Returns ⟨x,x⟩, ⟨x,θ⟩ and ‖Wx‖₂² of each.
#[inline(never)]
pub(crate) fn block_products<const D: usize, const N: usize>(
    theta: &[f32; D],
    square: &[[f32; D]; D],
    diagonal: &[f32; D],
    block: &[Lanes; D],
) -> [Lanes; 3] {
    let [mut norm, mut mean, mut sum] = [[ZERO; N]; 3];
    for (theta, x) in theta.iter().zip(block) {
        add_lanes(&mut norm, x, |x| *x);
        add_lanes(&mut mean, x, |_| *theta);
    }
    for (i, ((row, w_ii), x_i)) in square.iter().zip(diagonal).zip(block).enumerate() {
        let mut y = [ZERO; N];
        for (w, x) in row.iter().zip(block).take(i) {
            add_lanes(&mut y, x, |_| *w);
        }
        add_lanes(&mut y, x_i, |_| *w_ii);
        add_lanes(&mut sum, &y, |y| *y);
    }
    [norm, mean, sum].map(|lanes| core::array::from_fn(|lane| lanes.get(lane).copied().unwrap_or_default()))
}

/// sum += a·factor(a) in each lane
#[inline(always)]
fn add_lanes<const N: usize>(sum: &mut [f32; N], a: &[f32], factor: impl Fn(&f32) -> f32) {
    for (sum, a) in sum.iter_mut().zip(a) {
        *sum += a * factor(a);
    }
}
