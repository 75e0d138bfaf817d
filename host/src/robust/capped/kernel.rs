//! SIMD kernels that compute units in blocks.
//!
//! A block has the numbers of [`LANES`] units, entry by entry. Lanes after the last unit are finite, and do not count.

use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};
use std::iter;

use fedbandit_core::packed_len;
use nalgebra::DMatrix;
use pulp::Arch;

use super::super::kernel::{LANES, Lanes, Wide, ZERO, transpose};
use crate::math::symmetric;

/// Interleaves rows of a length.
pub(super) fn interleave(rows: &[f64], length: usize) -> Vec<Lanes> {
    let mut blocks = vec![ZERO; rows.len().div_ceil(LANES * length) * length];
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || {
            for (rows, block) in rows.chunks(LANES * length).zip(blocks.chunks_exact_mut(length)) {
                transpose(rows, length, block);
            }
        },
    ));
    blocks
}

/// Keeps the units of which the flag is set, of blocks with `length` entries.
pub(super) fn retain(blocks: &mut Vec<Lanes>, length: usize, kept: &[bool]) {
    let kept: Vec<usize> = (0..kept.len()).filter(|unit| kept[*unit]).collect();
    let mut block = vec![ZERO; length];
    for (to, units) in kept.chunks(LANES).enumerate() {
        for (lane, unit) in units.iter().enumerate() {
            let own = &blocks[unit / LANES * length..][..length];
            let place = unit % LANES;
            block.iter_mut().zip(own).for_each(|(entry, own)| entry.0[lane] = own.0[place]);
        }
        // Units come from this block or later ones.
        blocks[to * length..][..length].copy_from_slice(&block);
    }
    blocks.truncate(kept.len().div_ceil(LANES) * length);
}

/// Cap C = LLᵀ. With M = V + λI + C = RRᵀ, a unit has
///
/// ```text
/// B = (I + L⁻¹(V + λI)L⁻ᵀ)⁻¹ = LᵀM⁻¹L = XᵀX,   X = R⁻¹L.
/// ```
pub(super) struct CapMatrices {
    /// L, column by column.
    factor: Vec<f64>,
    /// λI + C.
    added: Vec<f64>,
    lambda: f64,
}

impl CapMatrices {
    pub(super) fn new(factor: &DMatrix<f64>, cap: &DMatrix<f64>, lambda: f64) -> Self {
        let added = symmetric::shifted(cap, lambda).as_slice().to_vec();
        Self { factor: factor.as_slice().to_vec(), added, lambda }
    }

    /// Least pivot of V + λI. A noised V may have a negative eigenvalue; without one, pivots are at least λ.
    fn least(&self) -> f64 {
        self.lambda / 2.0
    }

    /// Computes Xᵀ for factors R.
    #[inline(always)]
    fn columns(&self, factor: &[Lanes], columns: &mut [Lanes], d: usize) {
        for (c, (column, own)) in columns.chunks_exact_mut(d).zip(self.factor.chunks_exact(d)).enumerate() {
            for i in c..d {
                let mut sum = Lanes([own[i]; LANES]);
                for (a, b) in factor[i * d + c..i * d + i].iter().zip(&column[c..i]) {
                    sum.subtract_product(a, b);
                }
                column[i] = sum.times(&factor[i * d + i]);
            }
        }
    }
}

/// Dimension for which kernels are compiled with unrolled loops.
const UNROLLED: usize = 8;

/// Expands scaled packings to the lower triangle of full matrices, and adds a full matrix.
#[inline(always)]
fn fill(packed: &[Lanes], added: &[f64], full: &mut [Lanes], d: usize) {
    let mut rest = packed;
    for i in 0..d {
        let (row, below) = rest.split_at(d - i);
        for (j, (lanes, scale)) in row.iter().zip(iter::once(1.0).chain(iter::repeat(FRAC_1_SQRT_2))).enumerate() {
            let place = (i + j) * d + i;
            let mut sum = Lanes([added[place]; LANES]);
            sum.add(scale, lanes);
            full[place] = sum;
        }
        rest = below;
    }
}

/// Computes D = I − B of each V, in the scaled packing.
pub(super) fn cap(grams: &[Lanes], cap: &CapMatrices, information: &mut [Lanes], d: usize) {
    let [mut factor, mut columns] = [(); 2].map(|()| vec![ZERO; d * d]);
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || match d {
            UNROLLED => cap_blocks(grams, cap, information, (&mut factor, &mut columns), UNROLLED),
            d => cap_blocks(grams, cap, information, (&mut factor, &mut columns), d),
        },
    ));
}

#[inline(always)]
fn cap_blocks(
    grams: &[Lanes],
    cap: &CapMatrices,
    information: &mut [Lanes],
    (factor, columns): (&mut [Lanes], &mut [Lanes]),
    d: usize,
) {
    let p = packed_len(d);
    let (factor, columns) = (&mut factor[..d * d], &mut columns[..d * d]);
    for (grams, information) in grams.chunks_exact(p).zip(information.chunks_exact_mut(p)) {
        fill(grams, &cap.added, factor, d);
        factorise([&mut *factor], d, cap.least());
        cap.columns(factor, columns, d);
        let mut rest = information;
        for i in 0..d {
            let (row, below) = rest.split_at_mut(d - i);
            for (j, to) in (i..d).zip(row) {
                *to = minus(product(&columns[i * d + j..(i + 1) * d], &columns[j * d + j..(j + 1) * d]), i == j);
            }
            rest = below;
        }
    }
}

/// Returns an entry of I − B in the scaled packing.
#[inline(always)]
fn minus(b: Lanes, on_diagonal: bool) -> Lanes {
    let (scale, one) = if on_diagonal { (-1.0, 1.0) } else { (-SQRT_2, 0.0) };
    let mut sum = Lanes([one; LANES]);
    sum.add(scale, &b);
    sum
}

/// Lower triangular matrices G_k, column by column, and signs s_k, with
///
/// ```text
/// Σs_kG_kG_kᵀ = eL⁻¹L⁻ᵀ − I.
/// ```
pub(super) type Roots = Vec<(Vec<f64>, f64)>;

/// Outputs of [`capped_units`] for each unit.
pub(super) struct CappedUnits<'a> {
    /// D = I − B, in the scaled packing.
    pub(super) information: &'a mut [Lanes],
    /// B + Σs_kBG_kG_kᵀB, in the scaled packing.
    pub(super) noise: &'a mut [Lanes],
    /// b = BL⁻¹v.
    pub(super) sums: &'a mut [Lanes],
    /// bᵀD⁻¹b.
    pub(super) squares: &'a mut [Lanes],
}

/// Computes all of each unit from its rows V and v.
pub(super) fn capped_units(
    (grams, sums): (&[f64], &[f64]),
    cap: &CapMatrices,
    roots: &Roots,
    units: CappedUnits<'_>,
    d: usize,
) {
    let mut scratch = Scratch::new(d);
    let mut units = units;
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || match d {
            UNROLLED => scratch.complete((grams, sums), cap, roots, &mut units, UNROLLED),
            d => scratch.complete((grams, sums), cap, roots, &mut units, d),
        },
    ));
}

/// Intermediate results of a block.
struct Scratch {
    packed: Vec<Lanes>,
    /// λI.
    prior: Vec<f64>,
    /// Cholesky factors of V + λI.
    own: Vec<Lanes>,
    /// R.
    factor: Vec<Lanes>,
    /// Xᵀ.
    columns: Vec<Lanes>,
    b: Vec<Lanes>,
    v: Vec<Lanes>,
    estimate: Vec<Lanes>,
}

impl Scratch {
    fn new(d: usize) -> Self {
        let [own, factor, columns, b] = [(); 4].map(|()| vec![ZERO; d * d]);
        let [v, estimate] = [(); 2].map(|()| vec![ZERO; d]);
        Self { packed: vec![ZERO; packed_len(d)], prior: vec![0.0; d * d], own, factor, columns, b, v, estimate }
    }

    #[inline(always)]
    fn complete(
        &mut self,
        (grams, sums): (&[f64], &[f64]),
        cap: &CapMatrices,
        roots: &Roots,
        units: &mut CappedUnits<'_>,
        d: usize,
    ) {
        let p = packed_len(d);
        let packed = &mut self.packed[..p];
        let [own, factor, columns, b] =
            [&mut self.own, &mut self.factor, &mut self.columns, &mut self.b].map(|matrix| &mut matrix[..d * d]);
        let [v, estimate] = [&mut self.v, &mut self.estimate].map(|vector| &mut vector[..d]);
        self.prior.iter_mut().step_by(d + 1).for_each(|entry| *entry = cap.lambda);
        let inputs = grams.chunks(LANES * p).zip(sums.chunks(LANES * d));
        let matrices = units.information.chunks_exact_mut(p).zip(units.noise.chunks_exact_mut(p));
        let vectors = units.sums.chunks_exact_mut(d).zip(units.squares.iter_mut());
        for (((grams, sums), (information, noise)), (capped, square)) in inputs.zip(matrices).zip(vectors) {
            transpose(grams, p, packed);
            transpose(sums, d, v);
            fill(packed, &self.prior, own, d);
            fill(packed, &cap.added, factor, d);
            factorise([&mut *own, &mut *factor], d, cap.least());
            cap.columns(factor, columns, d);
            // The own estimate (V + λI)⁻¹v.
            estimate.copy_from_slice(v);
            solve_lower(own, estimate, d);
            solve_upper(own, estimate, d);
            // b = XᵀR⁻¹v, and bᵀD⁻¹b = bᵀLᵀ(V + λI)⁻¹v.
            solve_lower(factor, v, d);
            *square = ZERO;
            for (i, to) in capped.iter_mut().enumerate() {
                *to = product(&columns[i * d + i..(i + 1) * d], &v[i..]);
                let mut image = ZERO;
                for (factor, estimate) in cap.factor[i * d + i..(i + 1) * d].iter().zip(&estimate[i..]) {
                    image.add(*factor, estimate);
                }
                square.add_product(to, &image);
            }
            let mut rest = information;
            for i in 0..d {
                let (row, below) = rest.split_at_mut(d - i);
                for (j, to) in (i..d).zip(row) {
                    let entry = product(&columns[i * d + j..(i + 1) * d], &columns[j * d + j..(j + 1) * d]);
                    (b[i * d + j], b[j * d + i]) = (entry, entry);
                    *to = minus(entry, i == j);
                }
                rest = below;
            }
            noise_of(b, roots, columns, noise, d);
        }
    }
}

/// Computes B + Σs_kBG_kG_kᵀB in the scaled packing. `image` is overwritten.
#[inline(always)]
fn noise_of(b: &[Lanes], roots: &Roots, image: &mut [Lanes], noise: &mut [Lanes], d: usize) {
    let mut rest = &mut *noise;
    for (i, b) in b.chunks_exact(d).enumerate() {
        let (row, below) = rest.split_at_mut(d - i);
        row.copy_from_slice(&b[i..]);
        rest = below;
    }
    for (root, sign) in roots {
        for (b, image) in b.chunks_exact(d).zip(image.chunks_exact_mut(d)) {
            for (k, (to, column)) in image.iter_mut().zip(root.chunks_exact(d)).enumerate() {
                let mut sum = ZERO;
                b[k..].iter().zip(&column[k..]).for_each(|(b, factor)| sum.add(*factor, b));
                *to = sum;
            }
        }
        let mut rest = &mut *noise;
        for (i, one) in image.chunks_exact(d).enumerate() {
            let (row, below) = rest.split_at_mut(d - i);
            for (to, other) in row.iter_mut().zip(image[i * d..].chunks_exact(d)) {
                to.add(*sign, &product(one, other));
            }
            rest = below;
        }
    }
    let mut rest = noise;
    for i in 0..d {
        let (row, below) = rest.split_at_mut(d - i);
        row[1..].iter_mut().for_each(|lanes| *lanes = lanes.scaled(SQRT_2));
        rest = below;
    }
}

/// Returns Σ_k a_kb_k.
#[inline(always)]
fn product(a: &[Lanes], b: &[Lanes]) -> Lanes {
    let mut sum = ZERO;
    a.iter().zip(b).for_each(|(a, b)| sum.add_product(a, b));
    sum
}

/// Replaces lower triangles of positive definite matrices by their Cholesky factors, with the reciprocal diagonal. Smaller
/// pivots are raised to `least`.
#[inline(always)]
fn factorise<const COUNT: usize>(mut full: [&mut [Lanes]; COUNT], d: usize, least: f64) {
    for j in 0..d {
        for i in j..d {
            // Several matrices at once hide the latency of roots and divisions.
            for full in &mut full {
                let mut sum = full[i * d + j];
                for (a, b) in full[i * d..][..j].iter().zip(&full[j * d..][..j]) {
                    sum.subtract_product(a, b);
                }
                full[i * d + j] = if i == j { sum.reciprocal_root(least) } else { sum.times(&full[j * d + j]) };
            }
        }
    }
}

/// Solves Rx = b in place, for a factor of [`factorise`].
#[inline(always)]
fn solve_lower(factor: &[Lanes], x: &mut [Lanes], d: usize) {
    for i in 0..d {
        let mut sum = x[i];
        for (a, b) in factor[i * d..][..i].iter().zip(&x[..i]) {
            sum.subtract_product(a, b);
        }
        x[i] = sum.times(&factor[i * d + i]);
    }
}

/// Solves Rᵀx = b in place, for a factor of [`factorise`].
#[inline(always)]
fn solve_upper(factor: &[Lanes], x: &mut [Lanes], d: usize) {
    for i in (0..d).rev() {
        let mut sum = x[i];
        for k in i + 1..d {
            sum.subtract_product(&factor[k * d + i], &x[k]);
        }
        x[i] = sum.times(&factor[i * d + i]);
    }
}
