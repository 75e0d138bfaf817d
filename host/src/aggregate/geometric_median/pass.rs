//! One pass over the points: all sums at z that the median and its certificates need.
//!
//! Sums have a fixed order, lane by lane, and always use fused multiply-add. Results are therefore bit-identical for all
//! instruction sets and numbers of threads.

use std::ops::Range;

use pulp::{Simd, f64x4};

use super::super::{Points, SQUARES, distance};
use super::start;

/// Rows per block: enough to hide the latency of roots and divisions, few enough for the L1 cache.
pub(super) const BLOCK: usize = 16;

/// Rows whose weights fit into registers together.
const HALF: usize = BLOCK / 2;

/// Rows per curvature bound.
const GROUP: usize = 4;

/// Blocks that are summed in sequence. Larger sums are pairwise, so that rounding grows with the logarithm.
const LEAF: usize = 32;

/// Least number of values for which a second thread pays.
pub(super) const PARALLEL: usize = 1 << 17;

/// Vectors of four numbers, in SIMD or scalar arithmetic.
trait Lanes: Simd<f64s = f64x4> {}
impl<S: Simd<f64s = f64x4>> Lanes for S {}

/// Distance below which a row counts as at z: 1/r would leave the range of f64.
pub(super) const AT: f64 = 1e-290;

/// Selection of rows: all, or every `stride`-th block.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    points: &'a Points<'a>,
    stride: usize,
}

impl<'a> View<'a> {
    pub(super) fn all(points: &'a Points<'a>) -> Self {
        Self { points, stride: 1 }
    }

    /// Selects one block from each stretch of `stride` blocks.
    pub(super) fn sample(points: &'a Points<'a>, stride: usize) -> Self {
        Self { points, stride }
    }

    fn blocks(&self) -> usize {
        let n = self.points.len();
        if self.stride == 1 { n.div_ceil(BLOCK) } else { n / BLOCK / self.stride }
    }

    /// Number of selected rows.
    pub(super) fn len(&self) -> usize {
        if self.stride == 1 { self.points.len() } else { self.blocks() * BLOCK }
    }

    /// Index of the first row of a block. Its position within the stretch is hashed, so that periodic data do not bias it.
    fn first(&self, block: usize) -> usize {
        // The stride is a power of two.
        let jitter = ((block as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize & (self.stride - 1);
        (block * self.stride + jitter) * BLOCK
    }

    /// Returns the upper median of each coordinate over the selected rows.
    pub(super) fn middle(&self) -> Vec<f64> {
        start((0..self.len()).map(|i| self.row(i)))
    }

    /// Returns the first `count` rows of a block.
    fn block(&self, block: usize, count: usize) -> &'a [f64] {
        let p = self.points.dimension();
        &self.points.values()[self.first(block) * p..][..count * p]
    }

    /// Returns the `i`-th selected row.
    pub(super) fn row(&self, i: usize) -> &'a [f64] {
        self.points.row(self.first(i / BLOCK) + i % BLOCK)
    }
}

/// Sums of a pass at z, with distances r_i and directions u_i = (z − x_i)/r_i.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    /// G, the sum of the u_i of the rows that are not at z.
    pub(super) pull: Vec<f64>,
    /// W, the sum of their 1/r_i.
    pub(super) weight: f64,
    /// The mean of the r_i.
    pub(super) mean_distance: f64,
    /// m, the number of rows at z.
    pub(super) at: usize,
    /// The smallest r_i above 0.
    pub(super) nearest: f64,
    /// Lower bound on the smallest eigenvalue of Σ (I − u_i u_iᵀ)/(r_i + R) over some of the rows.
    pub(super) curvature: f64,
}

impl Sums {
    fn zero(p: usize) -> Self {
        Self { pull: vec![0.0; p], weight: 0.0, mean_distance: 0.0, at: 0, nearest: f64::INFINITY, curvature: 0.0 }
    }

    /// [`Easy::add`] for blocks with rows that are missing, at z, or out of the range of squares. Adds the pull of rows
    /// that are out of range.
    #[cold]
    fn add_hard(
        &mut self,
        z: &[f64],
        rows: &[f64],
        squares: &[f64; BLOCK],
        radii: &mut [f64],
        share: f64,
    ) -> [f64; BLOCK] {
        let mut weights = [0.0; BLOCK];
        for (k, row) in rows.chunks_exact(z.len()).enumerate() {
            let easy = SQUARES.contains(&squares[k]);
            let r = if easy { squares[k].sqrt() } else { distance(row, z) };
            radii[k] = r;
            self.mean_distance += r * share;
            self.nearest = if r > 0.0 { self.nearest.min(r) } else { self.nearest };
            if r < AT {
                self.at += 1;
                continue;
            }
            self.weight += 1.0 / r;
            if easy {
                weights[k] = 1.0 / r;
            } else {
                self.pull.iter_mut().zip(z.iter().zip(row)).for_each(|(sum, (z, x))| *sum += (z - x) / r);
            }
        }
        weights
    }

    fn plus(mut self, other: Self) -> Self {
        self.pull.iter_mut().zip(&other.pull).for_each(|(sum, pull)| *sum += pull);
        self.weight += other.weight;
        self.mean_distance += other.mean_distance;
        self.at += other.at;
        self.nearest = self.nearest.min(other.nearest);
        self.curvature += other.curvature;
        self
    }
}

/// Lane-wise sums over blocks of rows that are not at z and whose squares are in range.
struct Easy {
    weight: f64x4,
    distance: f64x4,
    nearest: f64x4,
}

impl Easy {
    /// Adds all 1/r_i and r_i. Returns the 1/r_i.
    #[inline(always)]
    fn add<S: Lanes>(&mut self, simd: S, squares: &[f64; BLOCK], radii: &mut [f64]) -> [f64; BLOCK] {
        let mut weights = [0.0; BLOCK];
        let (radii, _) = S::as_mut_simd_f64s(radii);
        let (squares, weight) = (S::as_simd_f64s(squares).0, S::as_mut_simd_f64s(&mut weights).0);
        for k in 0..BLOCK / 4 {
            let r = simd.sqrt_f64s(squares[k]);
            let w = simd.div_f64s(simd.splat_f64s(1.0), r);
            (radii[k], weight[k]) = (r, w);
            self.weight = simd.add_f64s(self.weight, w);
            self.distance = simd.add_f64s(self.distance, r);
            self.nearest = simd.min_f64s(self.nearest, r);
        }
        weights
    }

    fn add_to(&self, sums: &mut Sums, share: f64) {
        sums.weight += sum(self.weight);
        sums.mean_distance += sum(self.distance) * share;
        let f64x4(a, b, c, d) = self.nearest;
        sums.nearest = sums.nearest.min(a.min(b).min(c.min(d)));
    }
}

/// Bound on the error of G for n rows: each u_i has fewer than p/2 + 16 roundings, and each sum as many as its depth.
pub(super) fn pull_error(n: usize, p: usize) -> f64 {
    let depth = LEAF * BLOCK + n.ilog2() as usize + p / 2 + 16;
    1.01 * depth as f64 * n as f64 * f64::EPSILON / 2.0
}

/// R of the curvature certificate, in typical distances. Large enough to contain the minimum early, small enough to lower
/// 1/(r + R) little.
const REACH: f64 = 0.1;

/// Parameters of a pass.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    view: View<'a>,
    /// R of [`Sums::curvature`].
    pub(super) reach: f64,
    /// Stride of the blocks that contribute to the curvature.
    curvature_stride: usize,
    /// Disables SIMD.
    plain: bool,
}

impl<'a> Pass<'a> {
    pub(super) fn new(view: View<'a>, typical: f64, plain: bool) -> Self {
        Self { view, reach: REACH * typical, curvature_stride: (view.len() / BLOCK / 32).clamp(1, 16), plain }
    }

    /// Computes the sums at `z`. Writes the distances to `radii`.
    pub(super) fn run(&self, z: &[f64], radii: &mut [f64]) -> Sums {
        let mut buffer = Vec::new();
        let copy = from_line(&mut buffer, z.len());
        copy.copy_from_slice(z);
        self.tree(copy, 0..self.view.blocks(), radii)
    }

    fn tree(&self, z: &[f64], blocks: Range<usize>, radii: &mut [f64]) -> Sums {
        if blocks.len() <= LEAF {
            return self.vectorised_leaf(z, blocks, radii);
        }
        let leaves = blocks.len().div_ceil(LEAF);
        let middle = blocks.start + leaves / 2 * LEAF;
        let (first, second) = radii.split_at_mut((middle - blocks.start) * BLOCK);
        let parallel = blocks.len() * BLOCK * z.len() >= PARALLEL;
        let mut left = || self.tree(z, blocks.start..middle, first);
        let mut right = || self.tree(z, middle..blocks.end, second);
        let (left, right) = if parallel { rayon::join(left, right) } else { (left(), right()) };
        left.plus(right)
    }

    fn vectorised_leaf(&self, z: &[f64], blocks: Range<usize>, radii: &mut [f64]) -> Sums {
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = pulp::x86::V3::try_new().filter(|_| !self.plain) {
            return avx2.vectorize(
                #[inline(always)]
                || self.leaf(avx2, z, blocks, radii),
            );
        }
        self.leaf(pulp::Scalar256b, z, blocks, radii)
    }

    #[inline(always)]
    fn leaf<S: Lanes>(&self, simd: S, z: &[f64], blocks: Range<usize>, radii: &mut [f64]) -> Sums {
        let mut sums = Sums::zero(z.len());
        let mut buffer = Vec::new();
        let pull = from_line(&mut buffer, z.len());
        let mut easy_sums = Easy { weight: ZERO, distance: ZERO, nearest: simd.splat_f64s(f64::INFINITY) };
        let share = 1.0 / self.view.len() as f64;
        for (block, radii) in blocks.zip(radii.chunks_mut(BLOCK)) {
            let values = self.view.block(block, radii.len());
            // An incomplete block is padded with z, which has no weight.
            let filled: Vec<f64>;
            let rows = if radii.len() == BLOCK {
                values
            } else {
                filled = values.iter().chain(z.iter().cycle()).take(BLOCK * z.len()).copied().collect();
                &filled
            };
            let squares = squared_distances(simd, z, rows);
            let easy = squares.iter().fold(radii.len() == BLOCK, |easy, squares| easy & SQUARES.contains(squares));
            let weights = if easy {
                easy_sums.add(simd, &squares, radii)
            } else {
                sums.add_hard(z, values, &squares, radii, share)
            };
            for first in [0, HALF] {
                add_pull(simd, pull, z, &rows[first * z.len()..], &weights[first..]);
            }
            if block % self.curvature_stride == 0 {
                for first in (0..BLOCK).step_by(GROUP) {
                    let dots = dots(simd, z, &rows[first * z.len()..]);
                    sums.curvature += curvature(dots, &weights[first..first + GROUP], self.reach, z.len());
                }
            }
        }
        sums.pull.iter_mut().zip(pull).for_each(|(sum, pull)| *sum += *pull);
        easy_sums.add_to(&mut sums, share);
        sums
    }
}

/// Returns `len` zeros aligned to a cache line, so that vectors in hot loops do not cross lines.
fn from_line(buffer: &mut Vec<f64>, len: usize) -> &mut [f64] {
    const LINE: usize = 64;
    let most = LINE / size_of::<f64>();
    buffer.resize(len + most, 0.0);
    let first = buffer.as_ptr().align_offset(LINE).min(most);
    &mut buffer[first..][..len]
}

/// Splits rows into vectors and up to three remaining numbers each.
#[inline(always)]
fn split<S: Lanes, const N: usize>(p: usize, rows: &[f64]) -> [(&[f64x4], &[f64]); N] {
    let mut split: [(&[f64x4], &[f64]); N] = [(&[], &[]); N];
    for k in 0..N {
        let (head, tail) = rows[k * p..][..p].split_at(p / 4 * 4);
        split[k] = (&S::as_simd_f64s(head).0[..p / 4], tail);
    }
    split
}

#[inline(always)]
fn sum(v: f64x4) -> f64 {
    (v.0 + v.1) + (v.2 + v.3)
}

const ZERO: f64x4 = f64x4(0.0, 0.0, 0.0, 0.0);

/// Returns the squared distances of a block, row by row for sequential memory access.
#[inline(always)]
fn squared_distances<S: Lanes>(simd: S, z: &[f64], rows: &[f64]) -> [f64; BLOCK] {
    let (z_head, z_tail) = S::as_simd_f64s(z);
    let mut lanes = [ZERO; BLOCK];
    for (lanes, row) in lanes.iter_mut().zip(rows.chunks_exact(z.len())) {
        let (head, tail) = S::as_simd_f64s(row);
        *lanes = squares_of_row(simd, z_head, head);
        if !z_tail.is_empty() {
            *lanes = add_square(simd, *lanes, simd.partial_load_f64s(z_tail), simd.partial_load_f64s(tail));
        }
    }
    let mut squares = [0.0; BLOCK];
    for (squares, lanes) in squares.as_chunks_mut::<4>().0.iter_mut().zip(lanes.as_chunks::<4>().0) {
        *squares = [sum(lanes[0]), sum(lanes[1]), sum(lanes[2]), sum(lanes[3])];
    }
    squares
}

/// Returns the squared distance of a row, lane by lane. Four independent sums hide the latency of additions.
#[inline(always)]
fn squares_of_row<S: Lanes>(simd: S, z: &[f64x4], row: &[f64x4]) -> f64x4 {
    let mut sums = [ZERO; 4];
    let ((z, z_rest), (x, x_rest)) = (z.as_chunks::<4>(), row.as_chunks::<4>());
    for (z, x) in z.iter().zip(x) {
        for l in 0..4 {
            sums[l] = add_square(simd, sums[l], z[l], x[l]);
        }
    }
    for (z, x) in z_rest.iter().zip(x_rest) {
        sums[0] = add_square(simd, sums[0], *z, *x);
    }
    simd.add_f64s(simd.add_f64s(sums[0], sums[1]), simd.add_f64s(sums[2], sums[3]))
}

#[inline(always)]
fn add_square<S: Lanes>(simd: S, sum: f64x4, z: f64x4, x: f64x4) -> f64x4 {
    let d = simd.sub_f64s(z, x);
    simd.mul_add_f64s(d, d, sum)
}

#[inline(always)]
fn add_pull<S: Lanes>(simd: S, pull: &mut [f64], z: &[f64], rows: &[f64], weights: &[f64]) {
    let mut splats = [ZERO; HALF];
    for k in 0..HALF {
        splats[k] = simd.splat_f64s(weights[k]);
    }
    let [(z_head, z_tail)] = split::<S, 1>(z.len(), z);
    let (pull_head, pull_tail) = S::as_mut_simd_f64s(pull);
    let pull_head = &mut pull_head[..z_head.len()];
    let rows = split::<S, HALF>(z.len(), rows);
    for j in 0..z_head.len() {
        let mut sum = pull_head[j];
        for k in 0..HALF {
            sum = simd.mul_add_f64s(splats[k], simd.sub_f64s(z_head[j], rows[k].0[j]), sum);
        }
        pull_head[j] = sum;
    }
    if !z_tail.is_empty() {
        let mut sum = simd.partial_load_f64s(pull_tail);
        for k in 0..HALF {
            let d = simd.sub_f64s(simd.partial_load_f64s(z_tail), simd.partial_load_f64s(rows[k].1));
            sum = simd.mul_add_f64s(splats[k], d, sum);
        }
        simd.partial_store_f64s(pull_tail, sum);
    }
}

/// Pairs of rows in a group.
const PAIRS: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];

/// Returns Σw_i − ‖K‖_F, rounded down, with w_i = 1/(r_i + R) and K_ij = √(w_i w_j)⟨u_i, u_j⟩.
///
/// ‖K‖_F is at least the largest eigenvalue of Σ w_i u_i u_iᵀ, so this is a lower bound on the smallest eigenvalue of
/// Σ w_i (I − u_i u_iᵀ).
#[inline(always)]
fn curvature(dots: [f64; PAIRS.len()], weights: &[f64], reach: f64, p: usize) -> f64 {
    // Rows without weight, at z or out of range, are left out, which only lowers the bound.
    let w: [f64; GROUP] = std::array::from_fn(|i| weights[i] / (1.0 + weights[i] * reach));
    let mut squares: f64 = w.iter().map(|w| w * w).sum();
    for (dot, (i, j)) in dots.into_iter().zip(PAIRS) {
        let cosine = if w[i] * w[j] == 0.0 { 0.0 } else { dot * weights[i] * weights[j] };
        squares += 2.0 * w[i] * w[j] * cosine * cosine;
    }
    let slack = (p + 36) as f64 * f64::EPSILON;
    (w.iter().sum::<f64>() * (1.0 - slack) - squares.sqrt() * (1.0 + slack)).max(0.0)
}

/// Returns ⟨z − x_i, z − x_j⟩ for all pairs of a group.
#[inline(always)]
fn dots<S: Lanes>(simd: S, z: &[f64], rows: &[f64]) -> [f64; PAIRS.len()] {
    let mut lanes = [ZERO; PAIRS.len()];
    let [(z_head, z_tail)] = split::<S, 1>(z.len(), z);
    let rows = split::<S, GROUP>(z.len(), rows);
    for (j, z) in z_head.iter().enumerate() {
        let mut d = [ZERO; GROUP];
        for k in 0..GROUP {
            d[k] = simd.sub_f64s(*z, rows[k].0[j]);
        }
        add_dots(simd, &mut lanes, d);
    }
    if !z_tail.is_empty() {
        let mut d = [ZERO; GROUP];
        for k in 0..GROUP {
            d[k] = simd.sub_f64s(simd.partial_load_f64s(z_tail), simd.partial_load_f64s(rows[k].1));
        }
        add_dots(simd, &mut lanes, d);
    }
    let mut dots = [0.0; PAIRS.len()];
    for k in 0..PAIRS.len() {
        dots[k] = sum(lanes[k]);
    }
    dots
}

#[inline(always)]
fn add_dots<S: Lanes>(simd: S, lanes: &mut [f64x4; PAIRS.len()], d: [f64x4; GROUP]) {
    for k in 0..PAIRS.len() {
        let (i, j) = PAIRS[k];
        lanes[k] = simd.mul_add_f64s(d[i], d[j], lanes[k]);
    }
}
