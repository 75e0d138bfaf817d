//! One reading of the points: everything that the median and its certificates need to know at a place z.
//!
//! The sums are formed in one fixed order, lane by lane and with fused multiplication everywhere, so that they have the
//! same bits whatever instructions the processor has and however many threads work.

use std::ops::Range;

use pulp::{Simd, f64x4};

use super::super::{Points, SQUARES, distance};
use super::start;

/// Rows that are read together: enough to hide how long their roots and quotients take, few enough for the first cache.
pub(super) const BLOCK: usize = 16;

/// Rows whose weights fit into registers.
const HALF: usize = BLOCK / 2;

/// Rows whose distances are formed together, and whose curvature is bounded together.
const GROUP: usize = 4;

/// Blocks that one thread sums up in order; larger sums are formed pairwise, so that rounding grows with their logarithm.
const LEAF: usize = 64;

/// Fewer numbers than this are not worth a second thread.
const PARALLEL: usize = 1 << 20;

/// Four numbers at a time: the processor's own vectors, or the same in plain arithmetic.
trait Lanes: Simd<f64s = f64x4> {}
impl<S: Simd<f64s = f64x4>> Lanes for S {}

/// A row that is closer than this counts as at z: its 1/r would leave the range of f64.
pub(super) const AT: f64 = 1e-290;

/// Which rows are read: all, or a share of the blocks.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    points: &'a Points<'a>,
    stride: usize,
}

impl<'a> View<'a> {
    pub(super) fn all(points: &'a Points<'a>) -> Self {
        Self { points, stride: 1 }
    }

    /// One of `stride` blocks, each from another stretch of the rows.
    pub(super) fn sample(points: &'a Points<'a>, stride: usize) -> Self {
        Self { points, stride }
    }

    fn blocks(&self) -> usize {
        let n = self.points.len();
        if self.stride == 1 { n.div_ceil(BLOCK) } else { n / BLOCK / self.stride }
    }

    /// How many rows are read.
    pub(super) fn len(&self) -> usize {
        if self.stride == 1 { self.points.len() } else { self.blocks() * BLOCK }
    }

    /// The first row of a block. The place within its stretch is hashed: data with a period must not fool us.
    fn first(&self, block: usize) -> usize {
        // The stride is a power of two.
        let jitter = ((block as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize & (self.stride - 1);
        (block * self.stride + jitter) * BLOCK
    }

    /// The median of each coordinate over the rows that are read.
    pub(super) fn middle(&self) -> Vec<f64> {
        start((0..self.len()).map(|i| self.row(i)))
    }

    /// The `count` rows of a block.
    fn block(&self, block: usize, count: usize) -> &'a [f64] {
        let p = self.points.dimension();
        &self.points.values()[self.first(block) * p..][..count * p]
    }

    /// The row that stands at `i` among those that are read.
    pub(super) fn row(&self, i: usize) -> &'a [f64] {
        self.points.row(self.first(i / BLOCK) + i % BLOCK)
    }
}

/// What a pass finds at z. Distances are r_i, directions u_i = (z − x_i)/r_i.
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
    /// A lower bound on the smallest eigenvalue of Σ (I − u_i u_iᵀ)/(r_i + R), over some of the rows.
    pub(super) curvature: f64,
}

impl Sums {
    fn zero(p: usize) -> Self {
        Self { pull: vec![0.0; p], weight: 0.0, mean_distance: 0.0, at: 0, nearest: f64::INFINITY, curvature: 0.0 }
    }

    /// Adds all of 1/r_i and r_i, and returns the 1/r_i.
    #[inline(always)]
    fn add_easy(&mut self, squares: &[f64; BLOCK], radii: &mut [f64], share: f64) -> [f64; BLOCK] {
        let (mut r, mut weights) = ([0.0; BLOCK], [0.0; BLOCK]);
        for k in 0..BLOCK {
            r[k] = squares[k].sqrt();
            weights[k] = 1.0 / r[k];
        }
        radii.copy_from_slice(&r);
        self.weight += total(&weights);
        self.mean_distance += total(&r) * share;
        self.nearest = r.iter().fold(self.nearest, |nearest, r| if *r < nearest { *r } else { nearest });
        weights
    }

    /// The same where a row is missing, at z, or too far or near for its square; adds the pull of the latter two itself.
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

/// A bound on ‖error of G‖ for n rows: each u_i is off by less than (p/2 + 16) roundings, each sum by its depth.
pub(super) fn pull_error(n: usize, p: usize) -> f64 {
    let depth = LEAF * BLOCK + n.ilog2() as usize + p / 2 + 16;
    1.01 * depth as f64 * n as f64 * f64::EPSILON / 2.0
}

/// How a pass is made.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) view: View<'a>,
    /// R of [`Sums::curvature`].
    pub(super) reach: f64,
    /// One in so many blocks is asked for its curvature.
    pub(super) curvature_stride: usize,
    pub(super) plain: bool,
}

impl Pass<'_> {
    /// Reads the rows at `z`, and puts their distances into `radii`.
    pub(super) fn run(&self, z: &[f64], radii: &mut [f64]) -> Sums {
        let parallel = self.view.len() * z.len() >= PARALLEL && rayon::current_num_threads() > 1;
        self.tree(z, 0..self.view.blocks(), radii, parallel)
    }

    fn tree(&self, z: &[f64], blocks: Range<usize>, radii: &mut [f64], parallel: bool) -> Sums {
        if blocks.len() <= LEAF {
            return self.vectorised_leaf(z, blocks, radii);
        }
        let leaves = blocks.len().div_ceil(LEAF);
        let middle = blocks.start + leaves / 2 * LEAF;
        let (first, second) = radii.split_at_mut((middle - blocks.start) * BLOCK);
        let mut left = || self.tree(z, blocks.start..middle, first, parallel);
        let mut right = || self.tree(z, middle..blocks.end, second, parallel);
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
        let share = 1.0 / self.view.len() as f64;
        for (block, radii) in blocks.zip(radii.chunks_mut(BLOCK)) {
            let values = self.view.block(block, radii.len());
            let mut rows = [z; BLOCK];
            // A block that is not full is filled up with z itself, which has no weight.
            for (k, row) in rows.iter_mut().enumerate() {
                *row = values.get(k * z.len()..(k + 1) * z.len()).unwrap_or(z);
            }
            let squares = squared_distances(simd, z, &rows);
            let easy = squares.iter().fold(radii.len() == BLOCK, |easy, squares| easy & SQUARES.contains(squares));
            let weights = if easy {
                sums.add_easy(&squares, radii, share)
            } else {
                sums.add_hard(z, values, &squares, radii, share)
            };
            for first in [0, HALF] {
                add_pull(simd, &mut sums.pull, z, &rows[first..], &weights[first..]);
            }
            if block % self.curvature_stride == 0 {
                for first in (0..BLOCK).step_by(GROUP) {
                    let dots = dots(simd, z, &rows[first..]);
                    sums.curvature += curvature(dots, &weights[first..first + GROUP], self.reach, z.len());
                }
            }
        }
        sums
    }
}

/// The vectors of some rows, all as many as z has, so that one check does for all of them.
#[inline(always)]
fn heads<'a, S: Lanes, const N: usize>(z: &[f64x4], rows: &[&'a [f64]]) -> [&'a [f64x4]; N] {
    let mut heads: [&[f64x4]; N] = [&[]; N];
    for k in 0..N {
        heads[k] = &S::as_simd_f64s(rows[k]).0[..z.len()];
    }
    heads
}

/// The up to three numbers of a row that fill no vector.
#[inline(always)]
fn tail<S: Lanes>(simd: S, row: &[f64]) -> f64x4 {
    simd.partial_load_f64s(&row[row.len() / 4 * 4..])
}

#[inline(always)]
fn total(v: &[f64; BLOCK]) -> f64 {
    let mut lanes = [0.0; 4];
    for k in 0..BLOCK {
        lanes[k % 4] += v[k];
    }
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
}

#[inline(always)]
fn sum(v: f64x4) -> f64 {
    (v.0 + v.1) + (v.2 + v.3)
}

const ZERO: f64x4 = f64x4(0.0, 0.0, 0.0, 0.0);

/// Vectors from which on a row is long.
const LONG: usize = 16;

/// Long rows are read one after the other, as memory likes it; of short ones four at a time, which are then one sum each.
#[inline(always)]
fn squared_distances<S: Lanes>(simd: S, z: &[f64], rows: &[&[f64]; BLOCK]) -> [f64; BLOCK] {
    let mut lanes = [ZERO; BLOCK];
    let z_head = &S::as_simd_f64s(z).0[..z.len() / 4];
    for first in (0..BLOCK).step_by(GROUP) {
        let heads = heads::<S, GROUP>(z_head, &rows[first..]);
        for k in 0..GROUP {
            if z_head.len() >= LONG {
                lanes[first + k] = squares_of_row(simd, z_head, heads[k]);
            }
        }
        if z_head.len() < LONG {
            let sums = squares_of_group(simd, z_head, &heads);
            lanes[first..first + GROUP].copy_from_slice(&sums);
        }
    }
    let mut squares = [0.0; BLOCK];
    for k in 0..BLOCK {
        if !z.len().is_multiple_of(4) {
            lanes[k] = add_square(simd, lanes[k], tail(simd, z), tail(simd, rows[k]));
        }
        squares[k] = sum(lanes[k]);
    }
    squares
}

/// With four sums at a time, because one would wait for each addition.
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
fn squares_of_group<S: Lanes>(simd: S, z: &[f64x4], rows: &[&[f64x4]; GROUP]) -> [f64x4; GROUP] {
    let mut sums = [ZERO; GROUP];
    for j in 0..z.len() {
        for k in 0..GROUP {
            sums[k] = add_square(simd, sums[k], z[j], rows[k][j]);
        }
    }
    sums
}

#[inline(always)]
fn add_square<S: Lanes>(simd: S, sum: f64x4, z: f64x4, x: f64x4) -> f64x4 {
    let d = simd.sub_f64s(z, x);
    simd.mul_add_f64s(d, d, sum)
}

#[inline(always)]
fn add_pull<S: Lanes>(simd: S, pull: &mut [f64], z: &[f64], rows: &[&[f64]], weights: &[f64]) {
    let mut splats = [ZERO; HALF];
    for k in 0..HALF {
        splats[k] = simd.splat_f64s(weights[k]);
    }
    let z_head = &S::as_simd_f64s(z).0[..z.len() / 4];
    let (pull_head, pull_tail) = S::as_mut_simd_f64s(pull);
    let pull_head = &mut pull_head[..z_head.len()];
    let heads = heads::<S, HALF>(z_head, rows);
    for j in 0..z_head.len() {
        let mut sum = pull_head[j];
        for k in 0..HALF {
            sum = simd.mul_add_f64s(splats[k], simd.sub_f64s(z_head[j], heads[k][j]), sum);
        }
        pull_head[j] = sum;
    }
    if !z.len().is_multiple_of(4) {
        let mut sum = simd.partial_load_f64s(pull_tail);
        for k in 0..HALF {
            sum = simd.mul_add_f64s(splats[k], simd.sub_f64s(tail(simd, z), tail(simd, rows[k])), sum);
        }
        simd.partial_store_f64s(pull_tail, sum);
    }
}

/// The pairs of a group.
const PAIRS: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];

/// Σw_i − ‖K‖_F with K_ij = √(w_i w_j)⟨u_i, u_j⟩ and w_i = 1/(r_i + R): ‖K‖_F is above the largest eigenvalue of
/// Σ w_i u_i u_iᵀ, so this is below the smallest one of Σ w_i (I − u_i u_iᵀ). Rounded down.
fn curvature(dots: [f64; PAIRS.len()], weights: &[f64], reach: f64, p: usize) -> f64 {
    // A row at z, far beyond or without weight has none: leaving it out only lowers the bound.
    let w: [f64; GROUP] = std::array::from_fn(|i| weights[i] / (1.0 + weights[i] * reach));
    let mut squares: f64 = w.iter().map(|w| w * w).sum();
    for (dot, (i, j)) in dots.into_iter().zip(PAIRS) {
        let cosine = if w[i] * w[j] == 0.0 { 0.0 } else { dot * weights[i] * weights[j] };
        squares += 2.0 * w[i] * w[j] * cosine * cosine;
    }
    let slack = (p + 36) as f64 * f64::EPSILON;
    (w.iter().sum::<f64>() * (1.0 - slack) - squares.sqrt() * (1.0 + slack)).max(0.0)
}

/// ⟨z − x_i, z − x_j⟩ for all pairs of a group.
#[inline(always)]
fn dots<S: Lanes>(simd: S, z: &[f64], rows: &[&[f64]]) -> [f64; PAIRS.len()] {
    let mut lanes = [ZERO; PAIRS.len()];
    let z_head = &S::as_simd_f64s(z).0[..z.len() / 4];
    let heads = heads::<S, GROUP>(z_head, rows);
    for j in 0..z_head.len() {
        let mut d = [ZERO; GROUP];
        for k in 0..GROUP {
            d[k] = simd.sub_f64s(z_head[j], heads[k][j]);
        }
        add_dots(simd, &mut lanes, d);
    }
    if !z.len().is_multiple_of(4) {
        let mut d = [ZERO; GROUP];
        for k in 0..GROUP {
            d[k] = simd.sub_f64s(tail(simd, z), tail(simd, rows[k]));
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
