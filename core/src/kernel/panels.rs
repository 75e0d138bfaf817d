//! Kernels on panels of four rows. The rows share every load of x, and a loop of D steps becomes one of D/4.

use super::{ZERO, add_products};

/// Number of rows in a panel and of columns in a block.
const PANEL: usize = 4;

/// Same as [`definition::norm_squared_of_product`](super::definition::norm_squared_of_product).
#[inline(always)]
pub(crate) fn norm_squared_of_product<const D: usize>(
    square: &[[f32; D]; D],
    diagonal: &[f32; D],
    x: &[f32; D],
) -> f32 {
    let (panels, last_rows) = square.as_chunks::<PANEL>();
    let (w_blocks, last_w) = diagonal.as_chunks::<PANEL>();
    let (x_blocks, last_x) = x.as_chunks::<PANEL>();
    let mut sum = ZERO;
    for (p, ((panel, w), x)) in panels.iter().zip(w_blocks).zip(x_blocks).enumerate() {
        let Some([y0, y1, y2, y3]) = panel_product(panel, w, x_blocks.get(..p).unwrap_or_default(), x) else { break };
        sum += y0 * y0;
        sum += y1 * y1;
        sum += y2 * y2;
        sum += y3 * y3;
    }
    let whole = D - last_x.len();
    for (i, ((row, w), x_i)) in last_rows.iter().zip(last_w).zip(last_x).enumerate() {
        let row = row.get(..whole + i).unwrap_or_default();
        let y = add_products(ZERO, row, x) + w * x_i;
        sum += y * y;
    }
    sum
}

/// Four rows of Wx: the blocks left of the diagonal block, then the diagonal block.
#[inline(always)]
fn panel_product<const D: usize>(
    [r0, r1, r2, r3]: &[[f32; D]; PANEL],
    [w0, w1, w2, w3]: &[f32; PANEL],
    left_x: &[[f32; PANEL]],
    [x0, x1, x2, x3]: &[f32; PANEL],
) -> Option<[f32; PANEL]> {
    let (r0, _) = blocks(r0, left_x.len())?;
    let (r1, [v10, ..]) = blocks(r1, left_x.len())?;
    let (r2, [v20, v21, ..]) = blocks(r2, left_x.len())?;
    let (r3, [v30, v31, v32, _]) = blocks(r3, left_x.len())?;
    let (mut y0, mut y1, mut y2, mut y3) = (ZERO, ZERO, ZERO, ZERO);
    for ((((x, r0), r1), r2), r3) in left_x.iter().zip(r0).zip(r1).zip(r2).zip(r3) {
        y0 = add_products(y0, r0, x);
        y1 = add_products(y1, r1, x);
        y2 = add_products(y2, r2, x);
        y3 = add_products(y3, r3, x);
    }
    Some([
        y0 + w0 * x0,
        y1 + v10 * x0 + w1 * x1,
        y2 + v20 * x0 + v21 * x1 + w2 * x2,
        y3 + v30 * x0 + v31 * x1 + v32 * x2 + w3 * x3,
    ])
}

/// Returns a row's first `count` blocks and the block after them.
#[inline(always)]
fn blocks<const D: usize>(row: &[f32; D], count: usize) -> Option<(&[[f32; PANEL]], &[f32; PANEL])> {
    let (left, right) = row.as_chunks().0.split_at_checked(count)?;
    Some((left, right.first()?))
}

/// Same as [`definition::add_outer_product`](super::definition::add_outer_product).
#[inline(always)]
pub(crate) fn add_outer_product<const D: usize>(square: &mut [[f32; D]; D], x: &[f32; D]) {
    let (panels, last_rows) = square.as_chunks_mut::<PANEL>();
    let (x_blocks, last_x) = x.as_chunks::<PANEL>();
    for (p, (panel, x)) in panels.iter_mut().zip(x_blocks).enumerate() {
        if add_to_panel(panel, p, x, x_blocks.get(p + 1..).unwrap_or_default(), last_x).is_none() {
            break;
        }
    }
    let whole = D - last_x.len();
    for (i, (row, x_i)) in last_rows.iter_mut().zip(last_x).enumerate() {
        add_scaled(row.get_mut(whole + i..).unwrap_or_default(), *x_i, last_x.get(i..).unwrap_or_default());
    }
}

/// Four rows of U += xxᵀ: the diagonal block, the blocks to its right and the columns of the incomplete last block.
#[inline(always)]
fn add_to_panel<const D: usize>(
    [r0, r1, r2, r3]: &mut [[f32; D]; PANEL],
    p: usize,
    x: &[f32; PANEL],
    right_x: &[[f32; PANEL]],
    last_x: &[f32],
) -> Option<()> {
    let ([u00, u01, u02, u03], r0, end0) = blocks_mut(r0, p)?;
    let ([_, u11, u12, u13], r1, end1) = blocks_mut(r1, p)?;
    let ([_, _, u22, u23], r2, end2) = blocks_mut(r2, p)?;
    let ([_, _, _, u33], r3, end3) = blocks_mut(r3, p)?;
    let [x0, x1, x2, x3] = x;
    *u00 += x0 * x0;
    *u01 += x0 * x1;
    *u02 += x0 * x2;
    *u03 += x0 * x3;
    *u11 += x1 * x1;
    *u12 += x1 * x2;
    *u13 += x1 * x3;
    *u22 += x2 * x2;
    *u23 += x2 * x3;
    *u33 += x3 * x3;
    for ((((x, r0), r1), r2), r3) in right_x.iter().zip(r0).zip(r1).zip(r2).zip(r3) {
        add_block(r0, *x0, x);
        add_block(r1, *x1, x);
        add_block(r2, *x2, x);
        add_block(r3, *x3, x);
    }
    for (end, x_i) in [end0, end1, end2, end3].into_iter().zip(x) {
        add_scaled(end, *x_i, last_x);
    }
    Some(())
}

/// Returns a row's block at `index`, the blocks after it and the entries of the incomplete last block.
#[inline(always)]
#[expect(clippy::type_complexity, reason = "one use, right above")]
fn blocks_mut<const D: usize>(
    row: &mut [f32; D],
    index: usize,
) -> Option<(&mut [f32; PANEL], &mut [[f32; PANEL]], &mut [f32])> {
    let (blocks, end) = row.as_chunks_mut();
    let (own, right) = blocks.get_mut(index..)?.split_first_mut()?;
    Some((own, right, end))
}

/// Same as [`definition::add_scaled`](super::definition::add_scaled).
#[inline(always)]
pub(crate) fn add_scaled(a: &mut [f32], scale: f32, b: &[f32]) {
    let (a_blocks, a_end) = a.as_chunks_mut();
    let (b_blocks, b_end) = b.as_chunks();
    for (a, b) in a_blocks.iter_mut().zip(b_blocks) {
        add_block(a, scale, b);
    }
    for (a, b) in a_end.iter_mut().zip(b_end) {
        *a += scale * b;
    }
}

#[inline(always)]
fn add_block([a0, a1, a2, a3]: &mut [f32; PANEL], scale: f32, [b0, b1, b2, b3]: &[f32; PANEL]) {
    *a0 += scale * b0;
    *a1 += scale * b1;
    *a2 += scale * b2;
    *a3 += scale * b3;
}
