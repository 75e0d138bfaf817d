//! Inner loops with a fixed order of operations, so that every build on every target computes the same bits.
//!
//! [`definition`] specifies the results. A sum starts at −0 and adds its products one by one, from the lowest index up. Each
//! product is rounded before it is added; there is no fused multiply-add. [`panels`] and [`blocks`] interleave several such
//! sums without reordering any of them.

mod blocks;
#[cfg_attr(not(any(test, optimise_for_size)), expect(dead_code, reason = "builds for speed run the panels"))]
mod definition;
#[cfg_attr(all(not(test), optimise_for_size), expect(dead_code, reason = "builds for size run the definition"))]
mod panels;

pub(crate) use blocks::{LANES, Lanes, block_products, lane_products};
#[cfg(optimise_for_size)]
pub(crate) use definition::{add_outer_product, add_scaled, norm_squared_of_product};
#[cfg(not(optimise_for_size))]
pub(crate) use panels::{add_outer_product, add_scaled, norm_squared_of_product};

/// Start of every sum: −0 + x equals x for every x, so the compiler can drop the first addition.
const ZERO: f32 = -0.0;

/// ⟨a, b⟩
#[inline(always)]
pub(crate) fn dot<const D: usize>(a: &[f32; D], b: &[f32; D]) -> f32 {
    add_products(ZERO, a, b)
}

/// sum + Σ a_j b_j
#[inline(always)]
fn add_products(sum: f32, a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(sum, |sum, (a, b)| sum + a * b)
}

#[cfg(test)]
#[expect(
    unused_qualifications,
    clippy::indexing_slicing,
    reason = "the module names tell the kernels apart; tests may panic"
)]
mod tests {
    extern crate std;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    /// Numbers of many magnitudes, including zeros of both signs.
    fn numbers<const N: usize>() -> impl Strategy<Value = [f32; N]> {
        let number = prop_oneof![
            8 => -1.0_f32..1.0,
            1 => (-60_i32..60, -1.0_f32..1.0).prop_map(|(exponent, x)| x * 2.0_f32.powi(exponent)),
            1 => prop_oneof![Just(0.0), Just(-0.0)],
        ];
        proptest::collection::vec(number, N).prop_map(|values| core::array::from_fn(|i| values[i]))
    }

    fn square<const D: usize>() -> impl Strategy<Value = [[f32; D]; D]> {
        proptest::collection::vec(numbers::<D>(), D).prop_map(|rows| core::array::from_fn(|i| rows[i]))
    }

    /// Asserts that panels and blocks compute the definition's bits.
    fn kernels_agree<const D: usize>() {
        let config = ProptestConfig {
            cases: if cfg!(miri) { 1 } else { 200 },
            rng_seed: RngSeed::Fixed(D as u64),
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let block = proptest::collection::vec(numbers::<LANES>(), D);
        proptest!(config, |(square in square::<D>(), diagonal in numbers::<D>(), theta in numbers::<D>(), block in block, scale in -2.0_f32..2.0)| {
            let block: [Lanes; D] = core::array::from_fn(|j| block[j]);
            let by_blocks = [
                block_products::<D, 4>(&theta, &square, &diagonal, &block),
                block_products::<D, 8>(&theta, &square, &diagonal, &block),
                block_products::<D, 12>(&theta, &square, &diagonal, &block),
                block_products::<D, LANES>(&theta, &square, &diagonal, &block),
                lane_products::<D, LANES, LANES>(&theta, &square, &diagonal, &block),
            ];
            for lane in 0..LANES {
                let x = block.map(|row| row[lane]);
                let width = definition::norm_squared_of_product(&square, &diagonal, &x);
                prop_assert_eq!(width.to_bits(), panels::norm_squared_of_product(&square, &diagonal, &x).to_bits());
                for products in &by_blocks[lane / 4..] {
                    let expected = [dot(&x, &x), dot(&x, &theta), width];
                    prop_assert_eq!(products.map(|lanes| lanes[lane].to_bits()), expected.map(f32::to_bits));
                }
            }
            let x = block.map(|row| row[0]);
            let (mut a, mut b) = (square, square);
            definition::add_outer_product(&mut a, &x);
            panels::add_outer_product(&mut b, &x);
            prop_assert_eq!(a.map(|row| row.map(f32::to_bits)), b.map(|row| row.map(f32::to_bits)));
            let (mut a, mut b) = (diagonal, diagonal);
            definition::add_scaled(&mut a, scale, &x);
            panels::add_scaled(&mut b, scale, &x);
            prop_assert_eq!(a.map(f32::to_bits), b.map(f32::to_bits));
        });
    }

    #[test]
    fn kernels_agree_bit_for_bit() {
        kernels_agree::<1>();
        kernels_agree::<2>();
        kernels_agree::<3>();
        kernels_agree::<4>();
        kernels_agree::<5>();
        if cfg!(miri) {
            return;
        }
        kernels_agree::<8>();
        kernels_agree::<15>();
        kernels_agree::<16>();
        kernels_agree::<32>();
    }
}
