//! SIMD sums over units in blocks, and over numbers of all units.

use std::f64::consts::FRAC_1_SQRT_2;

use fedbandit_core::packed_len;
use pulp::Arch;

use super::super::kernel::{LANES, Lanes, Wide, ZERO};

/// Returns Σw·x over all units with their weights, for each entry x.
pub(super) fn weighted_sum(blocks: &[Lanes], weights: &[f64], length: usize) -> Vec<f64> {
    let mut sums = vec![ZERO; length];
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || {
            for (block, weights) in blocks.chunks_exact(length).zip(weights.chunks(LANES)) {
                let weight = Lanes::load(weights);
                sums.iter_mut().zip(block).for_each(|(sum, entry)| sum.add_product(&weight, entry));
            }
        },
    ));
    sums.iter().map(Lanes::sum).collect()
}

/// Blocks that [`along_each`] reads at once, which hides the latency of additions.
const AT_ONCE: usize = 4;

/// Computes ⟨q, x⟩ of each unit for each q.
pub(super) fn along_each(blocks: &[Lanes], directions: &[Vec<f64>], numbers: &mut [Vec<f64>]) {
    let length = directions.first().map_or(1, Vec::len);
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || {
            for (at, blocks) in blocks.chunks(AT_ONCE * length).enumerate() {
                for (direction, numbers) in directions.iter().zip(&mut *numbers) {
                    let numbers = &mut numbers[at * AT_ONCE * LANES..];
                    let along = along(blocks, direction);
                    match numbers.as_chunks_mut::<LANES>().0.first_chunk_mut::<AT_ONCE>() {
                        Some(numbers) => *numbers = along.map(|along| along.0),
                        None => numbers
                            .iter_mut()
                            .zip(along.iter().flat_map(|along| along.0))
                            .for_each(|(to, along)| *to = along),
                    }
                }
            }
        },
    ));
}

/// Computes ⟨q, x⟩ of up to [`AT_ONCE`] blocks.
#[inline(always)]
fn along(blocks: &[Lanes], direction: &[f64]) -> [Lanes; AT_ONCE] {
    let length = direction.len();
    let mut along = [ZERO; AT_ONCE];
    if blocks.len() < AT_ONCE * length {
        for (along, block) in along.iter_mut().zip(blocks.chunks_exact(length)) {
            direction.iter().zip(block).for_each(|(factor, entry)| along.add(*factor, entry));
        }
        return along;
    }
    let (a, rest) = blocks.split_at(length);
    let (b, rest) = rest.split_at(length);
    let (c, d) = rest.split_at(length);
    for ((((factor, a), b), c), d) in direction.iter().zip(a).zip(b).zip(c).zip(d) {
        for (along, entry) in along.iter_mut().zip([a, b, c, d]) {
            along.add(*factor, entry);
        }
    }
    along
}

/// Returns Σw·zzᵀ for z = b − Dφ over all units with their weights w: the upper triangle, packed row by row.
pub(super) fn residual_squares(information: &[Lanes], sums: &[Lanes], phi: &[f64], weights: &[f64]) -> Vec<f64> {
    let d = phi.len();
    let p = packed_len(d);
    let [mut z, mut squares] = [d, p].map(|length| vec![ZERO; length]);
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || {
            let blocks = information.chunks_exact(p).zip(sums.chunks_exact(d)).zip(weights.chunks(LANES));
            for ((information, sums), weights) in blocks {
                let weight = Lanes::load(weights);
                z.copy_from_slice(sums);
                let mut rest = information;
                for i in 0..d {
                    let (row, below) = rest.split_at(d - i);
                    let mut own = z[i];
                    own.add(-phi[i], &row[0]);
                    let (factor, others) = (-phi[i] * FRAC_1_SQRT_2, z[i + 1..].iter_mut().zip(&phi[i + 1..]));
                    for (entry, (other, phi)) in row[1..].iter().zip(others) {
                        own.add(-phi * FRAC_1_SQRT_2, entry);
                        other.add(factor, entry);
                    }
                    z[i] = own;
                    rest = below;
                }
                let mut rest = &mut squares[..];
                for i in 0..d {
                    let mut weighted = ZERO;
                    weighted.add_product(&weight, &z[i]);
                    let (row, below) = rest.split_at_mut(d - i);
                    row.iter_mut().zip(&z[i..]).for_each(|(square, z)| square.add_product(&weighted, z));
                    rest = below;
                }
            }
        },
    ));
    squares.iter().map(Lanes::sum).collect()
}

/// Computes ‖D^{−1/2}(b − Dφ)‖² = bᵀD⁻¹b − 2bᵀφ + φᵀDφ of each unit. `outer` is φφᵀ, packed.
pub(super) fn distances_squared(
    (information, sums, squares): (&[Lanes], &[Lanes], &[Lanes]),
    (outer, phi): (&[f64], &[f64]),
    distances: &mut [f64],
) {
    let (p, d) = (outer.len(), phi.len());
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || {
            let blocks = information.chunks(AT_ONCE * p).zip(sums.chunks(AT_ONCE * d)).zip(squares.chunks(AT_ONCE));
            for (((information, sums), squares), distances) in blocks.zip(distances.chunks_mut(AT_ONCE * LANES)) {
                let (quadratic, product) = (along(information, outer), along(sums, phi));
                let terms = squares.iter().zip(quadratic).zip(product);
                for (((square, quadratic), product), distances) in terms.zip(distances.chunks_mut(LANES)) {
                    for (l, distance) in distances.iter_mut().enumerate() {
                        *distance = (square.0[l] - 2.0 * product.0[l] + quadratic.0[l]).max(0.0);
                    }
                }
            }
        },
    ));
}

/// Returns Σa_ib_i.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sum = ZERO;
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || {
            for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
                sum.add_product(&Lanes::load(a), &Lanes::load(b));
            }
        },
    ));
    sum.sum()
}

/// Returns Σa_i.
pub(super) fn sum(numbers: &[f64]) -> f64 {
    let mut sum = ZERO;
    Arch::new().dispatch(Wide(
        #[inline(always)]
        || numbers.chunks(LANES).for_each(|numbers| sum.add(1.0, &Lanes::load(numbers))),
    ));
    sum.sum()
}
