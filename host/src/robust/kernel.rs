//! SIMD kernels over all units. Every sum has a fixed order, so results are bit-identical on all machines.

use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

use fedbandit_core::packed_len;
use pulp::{Arch, Simd, WithSimd};

use super::matrices::Inverse;

/// Units per SIMD block.
pub(super) const LANES: usize = 8;

/// Independent sums per loop, which hides the latency of additions.
const BLOCK: usize = 4;

/// One entry of [`LANES`] units.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Lanes(pub(super) [f64; LANES]);

pub(super) const ZERO: Lanes = Lanes([0.0; LANES]);

impl Lanes {
    /// Loads up to [`LANES`] numbers; the other lanes are 0.
    #[inline(always)]
    pub(super) fn load(numbers: &[f64]) -> Self {
        let mut lanes = ZERO;
        match numbers.first_chunk() {
            Some(numbers) => lanes.0 = *numbers,
            None => lanes.0.iter_mut().zip(numbers).for_each(|(lane, number)| *lane = *number),
        }
        lanes
    }

    #[inline(always)]
    pub(super) fn add(&mut self, factor: f64, other: &Self) {
        for l in 0..LANES {
            self.0[l] += factor * other.0[l];
        }
    }

    #[inline(always)]
    pub(super) fn add_product(&mut self, a: &Self, b: &Self) {
        for l in 0..LANES {
            self.0[l] += a.0[l] * b.0[l];
        }
    }

    #[inline(always)]
    pub(super) fn scaled(mut self, factor: f64) -> Self {
        for l in 0..LANES {
            self.0[l] *= factor;
        }
        self
    }

    #[inline(always)]
    pub(super) fn subtract_product(&mut self, a: &Self, b: &Self) {
        for l in 0..LANES {
            self.0[l] -= a.0[l] * b.0[l];
        }
    }

    #[inline(always)]
    pub(super) fn times(mut self, other: &Self) -> Self {
        for l in 0..LANES {
            self.0[l] *= other.0[l];
        }
        self
    }

    /// Returns 1/√x, where x is raised to `least`.
    #[inline(always)]
    pub(super) fn reciprocal_root(mut self, least: f64) -> Self {
        for l in 0..LANES {
            self.0[l] = 1.0 / self.0[l].max(least).sqrt();
        }
        self
    }

    pub(super) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }
}

/// Closure compiled with the processor's widest instructions. A plain closure would become a function without them.
pub(super) struct Wide<F>(pub(super) F);

impl<F: FnMut()> WithSimd for Wide<F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        (self.0)();
    }
}

/// Loads up to [`LANES`] rows as columns of lanes; lanes without a row keep their values.
#[inline(always)]
pub(super) fn transpose(rows: &[f64], length: usize, lanes: &mut [Lanes]) {
    if rows.len() < LANES * length {
        for (l, row) in rows.chunks_exact(length).enumerate() {
            lanes.iter_mut().zip(row).for_each(|(lanes, value)| lanes.0[l] = *value);
        }
        return;
    }
    let (a, rest) = rows.split_at(length);
    let (b, rest) = rest.split_at(length);
    let (c, rest) = rest.split_at(length);
    let (d, rest) = rest.split_at(length);
    let (e, rest) = rest.split_at(length);
    let (f, rest) = rest.split_at(length);
    let (g, h) = rest.split_at(length);
    for (i, lanes) in lanes[..length].iter_mut().enumerate() {
        *lanes = Lanes([a[i], b[i], c[i], d[i], e[i], f[i], g[i], h[i]]);
    }
}

/// Inverts [`transpose`].
#[inline(always)]
fn transpose_back(lanes: &[Lanes], rows: &mut [f64], length: usize) {
    for (l, row) in rows.chunks_exact_mut(length).enumerate() {
        lanes.iter().zip(row).for_each(|(lanes, value)| *value = lanes.0[l % LANES]);
    }
}

/// Expands scaled packings to full matrices.
#[inline(always)]
fn unpack(packed: &[Lanes], full: &mut [Lanes], d: usize) {
    let mut rest = packed;
    for i in 0..d {
        let (row, below) = rest.split_at(d - i);
        full[i * d + i] = row[0];
        for (j, lanes) in row.iter().enumerate().skip(1) {
            let lanes = lanes.scaled(FRAC_1_SQRT_2);
            full[i * d + i + j] = lanes;
            full[(i + j) * d + i] = lanes;
        }
        rest = below;
    }
}

/// Computes fᵀX for a matrix X with `sum.len()` columns.
#[inline(always)]
fn combine(sum: &mut [Lanes], factors: &[f64], rows: &[Lanes]) {
    let length = sum.len();
    let (blocks, rest) = sum.as_chunks_mut::<BLOCK>();
    let whole = blocks.len() * BLOCK;
    for (b, block) in blocks.iter_mut().enumerate() {
        let mut sums = [ZERO; BLOCK];
        for (factor, row) in factors.iter().zip(rows.chunks_exact(length)) {
            let row = &row.as_chunks::<BLOCK>().0[b];
            for w in 0..BLOCK {
                sums[w].add(*factor, &row[w]);
            }
        }
        *block = sums;
    }
    for (j, sum) in rest.iter_mut().enumerate() {
        *sum = ZERO;
        for (factor, row) in factors.iter().zip(rows.chunks_exact(length)) {
            sum.add(*factor, &row[whole + j]);
        }
    }
}

/// Computes L⁻¹x from entry `first` on.
#[inline(always)]
fn apply(inverse: &Inverse, x: &[Lanes], first: usize, image: &mut [Lanes]) {
    let d = inverse.d;
    let row = |i: usize| &inverse.rows[i * d..][..d];
    let (blocks, rest) = image.as_chunks_mut::<BLOCK>();
    let whole = first + blocks.len() * BLOCK;
    for (b, block) in blocks.iter_mut().enumerate() {
        let i = first + b * BLOCK;
        let rows: [&[f64]; BLOCK] = [row(i), row(i + 1), row(i + 2), row(i + 3)];
        let mut sums = [ZERO; BLOCK];
        // The last row of the block is the longest; the others end in zeros.
        for (k, x) in x[..i + BLOCK].iter().enumerate() {
            for w in 0..BLOCK {
                sums[w].add(rows[w][k], x);
            }
        }
        *block = sums;
    }
    for (w, image) in rest.iter_mut().enumerate() {
        *image = ZERO;
        row(whole + w)[..=whole + w].iter().zip(x).for_each(|(factor, x)| image.add(*factor, x));
    }
}

/// Computes L⁻¹VL⁻ᵀ of each V, in the scaled packing.
pub(super) fn whiten(grams: &[f64], whitened: &mut [f64], inverse: &Inverse) {
    let mut block = WhitenedBlock::new(inverse);
    let p = packed_len(inverse.d);
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || {
            for (grams, whitened) in grams.chunks(LANES * p).zip(whitened.chunks_mut(LANES * p)) {
                block.whiten(grams);
                transpose_back(&block.packed, whitened, p);
            }
        },
    ));
}

/// W = L⁻¹VL⁻ᵀ of a block of units.
struct WhitenedBlock<'a> {
    inverse: &'a Inverse,
    /// V, then W, in the scaled packing.
    packed: Vec<Lanes>,
    full: Vec<Lanes>,
    half: Vec<Lanes>,
}

impl<'a> WhitenedBlock<'a> {
    fn new(inverse: &'a Inverse) -> Self {
        let d = inverse.d;
        let [packed, full, half] = [packed_len(d), d * d, d].map(|length| vec![ZERO; length]);
        Self { inverse, packed, full, half }
    }

    #[inline(always)]
    fn whiten(&mut self, grams: &[f64]) {
        let d = self.inverse.d;
        transpose(grams, self.packed.len(), &mut self.packed);
        unpack(&self.packed, &mut self.full, d);
        let mut rest = &mut self.packed[..];
        for i in 0..d {
            combine(&mut self.half, &self.inverse.rows[i * d..][..=i], &self.full);
            let (row, below) = rest.split_at_mut(d - i);
            apply(self.inverse, &self.half, i, row);
            row[1..].iter_mut().for_each(|lanes| *lanes = lanes.scaled(SQRT_2));
            rest = below;
        }
    }
}

/// Returns, row by row of Vθ, the index of each entry in the scaled packing of V and its factor.
fn terms(theta: &[f64]) -> Vec<(usize, f64)> {
    let d = theta.len();
    let term = |i: usize, j: usize| {
        let (above, below) = (i.min(j), i.max(j));
        (above * (2 * d - above - 1) / 2 + below, theta[j] * if i == j { 1.0 } else { FRAC_1_SQRT_2 })
    };
    (0..d * d).map(|place| term(place / d, place % d)).collect()
}

/// Computes L⁻¹(v − Vθ) of each (V, v).
pub(super) fn residuals(grams: &[f64], sums: &[f64], residuals: &mut [f64], inverse: &Inverse, theta: &[f64]) {
    let d = inverse.d;
    let p = packed_len(d);
    let terms = terms(theta);
    let [mut packed, mut apart, mut lanes] = [p, d, d].map(|length| vec![ZERO; length]);
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || {
            let blocks = grams.chunks(LANES * p).zip(sums.chunks(LANES * d)).zip(residuals.chunks_mut(LANES * d));
            for ((grams, sums), residuals) in blocks {
                transpose(grams, p, &mut packed);
                transpose(sums, d, &mut apart);
                for (apart, terms) in apart.iter_mut().zip(terms.chunks_exact(d)) {
                    let mut sum = *apart;
                    terms.iter().for_each(|(place, factor)| sum.add(-factor, &packed[*place]));
                    *apart = sum;
                }
                apply(inverse, &apart, 0, &mut lanes);
                transpose_back(&lanes, residuals, d);
            }
        },
    ));
}

/// Computes ⟨q, z⟩ of each row z.
pub(super) fn along(rows: &[f64], direction: &[f64], numbers: &mut [f64]) {
    let length = direction.len();
    let mut z = vec![ZERO; length];
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || {
            for (rows, numbers) in rows.chunks(LANES * length).zip(numbers.chunks_mut(LANES)) {
                transpose(rows, length, &mut z);
                let mut along = ZERO;
                direction.iter().zip(&z).for_each(|(factor, z)| along.add(*factor, z));
                numbers.iter_mut().zip(along.0).for_each(|(number, along)| *number = along);
            }
        },
    ));
}

/// Returns Σw·z over all rows z with their weights w.
pub(super) fn weighted_sum(rows: &[f64], weights: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; rows.len() / weights.len()];
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || {
            for (row, weight) in rows.chunks_exact(sum.len()).zip(weights).filter(|(_, weight)| **weight != 0.0) {
                sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
            }
        },
    ));
    sum
}

/// Moments of weighted numbers.
pub(super) struct Line {
    pub(super) weight: f64,
    pub(super) variance: f64,
    /// Mean square.
    pub(super) square: f64,
    /// Largest square of a number with positive weight.
    pub(super) farthest: f64,
}

/// Lowers the weights of numbers y: w ← w·max{1 − y²/s, 0} with s = `scale`. Returns the new moments.
pub(super) fn lower(numbers: &[f64], weights: &mut [f64], scale: f64) -> Line {
    let mut sums = [ZERO; 4];
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || {
            let [mut total, mut sum, mut squares, mut most] = [ZERO; 4];
            for (numbers, weights) in numbers.chunks(LANES).zip(weights.chunks_mut(LANES)) {
                let (y, mut weight) = (Lanes::load(numbers), Lanes::load(weights));
                for l in 0..LANES {
                    // Division makes the factor exactly 0 for y² = s.
                    let kept = 1.0 - y.0[l] * y.0[l] / scale;
                    weight.0[l] *= if kept > 0.0 { kept } else { 0.0 };
                }
                total.add(1.0, &weight);
                let mut weighted = ZERO;
                weighted.add_product(&weight, &y);
                sum.add(1.0, &weighted);
                squares.add_product(&weighted, &y);
                for l in 0..LANES {
                    let square = if weight.0[l] > 0.0 { y.0[l] * y.0[l] } else { 0.0 };
                    most.0[l] = if square > most.0[l] { square } else { most.0[l] };
                }
                match weights.first_chunk_mut() {
                    Some(weights) => *weights = weight.0,
                    None => weights.iter_mut().zip(weight.0).for_each(|(to, weight)| *to = weight),
                }
            }
            sums = [total, sum, squares, most];
        },
    ));
    let [total, sum, squares, most] = sums;
    let weight = total.sum();
    let (mean, square) = (sum.sum() / weight, squares.sum() / weight);
    Line { weight, variance: square - mean * mean, square, farthest: most.0.into_iter().fold(0.0, f64::max) }
}

/// Returns Σw, Σw·y and Σw·yyᵀ over all rows z of positive weight w, with y = z − origin. The matrix is its upper triangle,
/// packed row by row.
pub(super) fn moments(residuals: &[f64], weights: &[f64], origin: &[f64]) -> (f64, Vec<f64>, Vec<f64>) {
    let d = origin.len();
    let [mut y, mut sums, mut squares] = [d, d, packed_len(d)].map(|length| vec![ZERO; length]);
    let mut total = ZERO;
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || {
            for (residuals, weights) in residuals.chunks(LANES * d).zip(weights.chunks(LANES)) {
                transpose(residuals, d, &mut y);
                let weight = Lanes::load(weights);
                total.add(1.0, &weight);
                for (y, origin) in y.iter_mut().zip(origin) {
                    for l in 0..LANES {
                        y.0[l] = if weight.0[l] > 0.0 { y.0[l] - origin } else { 0.0 };
                    }
                }
                let mut rest = &mut squares[..];
                for (i, sum) in sums.iter_mut().enumerate() {
                    let mut weighted = ZERO;
                    weighted.add_product(&weight, &y[i]);
                    sum.add(1.0, &weighted);
                    let (row, below) = rest.split_at_mut(d - i);
                    row.iter_mut().zip(&y[i..]).for_each(|(square, y)| square.add_product(&weighted, y));
                    rest = below;
                }
            }
        },
    ));
    (total.sum(), sums.iter().map(Lanes::sum).collect(), squares.iter().map(Lanes::sum).collect())
}
