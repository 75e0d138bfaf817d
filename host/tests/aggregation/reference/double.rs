//! Double-double arithmetic: unevaluated sums of two f64, about 104 bits.
//!
//! Algorithms of Dekker (1971) and of Joldes, Muller and Popescu (2017).

use std::iter::Sum;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// hi + lo with |lo| ≤ ulp(hi)/2.
///
/// Unless something over- or underflows, an operation has a relative error of a few 2⁻¹⁰⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Double {
    pub(crate) hi: f64,
    pub(crate) lo: f64,
}

/// Returns a + b without error.
fn two_sum(a: f64, b: f64) -> Double {
    let hi = a + b;
    let b_part = hi - a;
    Double { hi, lo: (a - (hi - b_part)) + (b - b_part) }
}

/// Returns a + b without error, for |a| ≥ |b|.
fn fast_two_sum(a: f64, b: f64) -> Double {
    let hi = a + b;
    Double { hi, lo: b - (hi - a) }
}

impl Double {
    pub(crate) const ZERO: Self = Self { hi: 0.0, lo: 0.0 };

    /// Returns a − b without error.
    pub(crate) fn difference(a: f64, b: f64) -> Self {
        two_sum(a, -b)
    }

    pub(crate) fn sqrt(self) -> Self {
        if self.hi == 0.0 {
            return Self::ZERO;
        }
        let root = self.hi.sqrt();
        let rest = self - Self::from(root) * Self::from(root);
        fast_two_sum(root, rest.hi / (2.0 * root))
    }

    /// Multiplies by 2ᵏ.
    pub(crate) fn scaled(self, k: i32) -> Self {
        Self { hi: times_power_of_two(self.hi, k), lo: times_power_of_two(self.lo, k) }
    }
}

/// Returns x·2ᵏ, even if 2ᵏ is out of range. Halving k avoids rounding twice.
pub(crate) fn times_power_of_two(x: f64, k: i32) -> f64 {
    let power = |k: i32| f64::from_bits(((1023 + k) as u64) << 52);
    match k {
        -1022..=1023 => x * power(k),
        _ => x * power(k / 2) * power(k - k / 2),
    }
}

impl From<f64> for Double {
    fn from(hi: f64) -> Self {
        Self { hi, lo: 0.0 }
    }
}

impl Add for Double {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let high = two_sum(self.hi, other.hi);
        let low = two_sum(self.lo, other.lo);
        let sum = fast_two_sum(high.hi, high.lo + low.hi);
        fast_two_sum(sum.hi, sum.lo + low.lo)
    }
}

impl Neg for Double {
    type Output = Self;

    fn neg(self) -> Self {
        Self { hi: -self.hi, lo: -self.lo }
    }
}

impl Sub for Double {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul for Double {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let hi = self.hi * other.hi;
        let lo = self.hi.mul_add(other.hi, -hi) + (self.hi * other.lo + self.lo * other.hi);
        fast_two_sum(hi, lo)
    }
}

impl Div for Double {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        let first = self.hi / other.hi;
        let rest = self - other * Self::from(first);
        let second = rest.hi / other.hi;
        let rest = rest - other * Self::from(second);
        fast_two_sum(first, second) + Self::from(rest.hi / other.hi)
    }
}

impl Sum for Double {
    fn sum<I: Iterator<Item = Self>>(terms: I) -> Self {
        terms.fold(Self::ZERO, Add::add)
    }
}

pub(crate) fn dot(a: &[Double], b: &[Double]) -> Double {
    a.iter().zip(b).map(|(a, b)| *a * *b).sum()
}

pub(crate) fn norm(a: &[Double]) -> Double {
    dot(a, a).sqrt()
}

/// Splits a vector into direction and length; `None` for the zero vector. Scaled internally to keep squares in range.
pub(crate) fn direction(d: &[Double]) -> Option<(Vec<Double>, Double)> {
    let largest = d.iter().fold(0.0, |largest: f64, d| largest.max(d.hi.abs()));
    if largest == 0.0 {
        return None;
    }
    let k = exponent(largest);
    let mut unit: Vec<Double> = d.iter().map(|d| d.scaled(-k)).collect();
    let length = norm(&unit);
    let inverse = Double::from(1.0) / length;
    unit.iter_mut().for_each(|d| *d = *d * inverse);
    Some((unit, length.scaled(k)))
}

/// Returns ⌊log₂ x⌋ for x > 0.
pub(crate) fn exponent(x: f64) -> i32 {
    let field = |x: f64| (x.to_bits() >> 52) as i32 - 1023;
    if x < f64::MIN_POSITIVE { field(times_power_of_two(x, 100)) - 100 } else { field(x) }
}
