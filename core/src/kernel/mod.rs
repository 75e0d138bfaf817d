//! The inner loops, in a fixed order of operations, so that every build on every target gets the same bits.
//!
//! [`definition`] says what they compute: a sum starts at −0 and adds its products one by one from the lowest index up; a product is
//! rounded before it is added (never a fused multiply-add). [`panels`] and [`blocks`] advance several such sums side
//! by side, and change nothing within one.

mod blocks;
#[cfg_attr(not(any(test, optimise_for_size)), expect(dead_code, reason = "the panels are what runs"))]
mod definition;
#[cfg_attr(all(not(test), optimise_for_size), expect(dead_code, reason = "the definition is smaller"))]
mod panels;

pub(crate) use blocks::{LANES, Lanes, block_products, lane_products};
#[cfg(optimise_for_size)]
pub(crate) use definition::{add_outer_product, add_scaled, norm_squared_of_product};
#[cfg(not(optimise_for_size))]
pub(crate) use panels::{add_outer_product, add_scaled, norm_squared_of_product};

/// Where sums start: −0 + x is x for every x, so that the first addition is none.
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
    reason = "which of two kernels is the point; tests may panic"
)]
mod tests {
    extern crate std;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    /// Numbers of many magnitudes, zeros of both signs among them.
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

    /// Panels and blocks give the definition's bits.
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
