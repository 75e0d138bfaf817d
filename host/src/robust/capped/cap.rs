//! Cap on the information of a unit (steps 1 and 2 of [`Capped`](super::Capped)).

use nalgebra::{DMatrix, DVector};

use super::super::matrices::{largest_eigenpair, symmetrised, weighted};
use super::sums::sum;
use super::units::{Frame, GramBlocks, Units};
use crate::algorithm::Streams;
use crate::math::symmetric;

/// Mean of the D_i at the level of the cap.
const LEVEL: f64 = 0.5;

/// Exponent of an iteration towards the level. Above 1 it converges faster than the plain fixed-point iteration.
const STEP: f64 = 1.5;

/// Largest |ln| of an eigenvalue of mean D_i/[`LEVEL`] at which the level is reached.
const SETTLED: f64 = 0.02;

/// Maximum number of iterations towards the level.
const LEVEL_ROUNDS: usize = 60;

/// Ratio of the claims of all other units to the ⌊an⌋ largest that is required along every direction.
const BALANCE: f64 = 1.25;

/// Maximum number of times that the cap is lowered.
const LOWERINGS: usize = 40;

/// Largest cut of ln C along a direction at once.
const LARGEST_CUT: f64 = 1.5;

/// Smallest claim above which a direction is left as it is: all units know it well.
const KNOWN: f64 = 0.7;

/// Largest |cos| of the angle between two directions that are cut at once.
const NEARLY_ORTHOGONAL: f64 = 0.2;

/// Maximum number of turns in the search for an unbalanced direction.
const TURNS: usize = 4;

/// The cap C.
#[derive(Debug, Default)]
pub(super) struct Cap {
    /// C of the last estimate at its level, as a starting point.
    level: Option<DMatrix<f64>>,
}

/// A direction, with the claims of all units along it, the largest ones first.
struct Direction {
    q: DVector<f64>,
    claims: Vec<f64>,
    balance: f64,
}

impl Cap {
    /// Creates a cap that starts from the values of a C; without values, from the units.
    pub(super) fn at_level(values: &[f64]) -> Self {
        let d = values.len().isqrt();
        Self { level: (d > 0 && d * d == values.len()).then(|| DMatrix::from_column_slice(d, d, values)) }
    }

    /// Returns the values from which the next estimate starts.
    pub(super) fn level(&self) -> Vec<f64> {
        self.level.as_ref().map_or_else(Vec::new, |level| level.as_slice().to_vec())
    }

    /// Computes C for V̂_i + λI and expresses the units in its coordinates.
    pub(super) fn apply(
        &mut self,
        units: &mut Units,
        streams: &Streams,
        lambda: f64,
        corruption: f64,
    ) -> Option<Frame> {
        let (d, n) = (streams.dimension(), streams.gram.len());
        let mean = || {
            let sum = weighted(streams.gram.values(), &vec![1.0 / n as f64; n], d);
            symmetric::shifted(&sum, lambda)
        };
        let mut cap = self.level.take().filter(|cap| cap.nrows() == d).unwrap_or_else(mean);
        let grams = GramBlocks::new(streams);
        let mut frame = units.at(&grams, &cap, lambda)?;
        for _ in 0..LEVEL_ROUNDS {
            let relative = units.total(&vec![1.0 / (LEVEL * n as f64); n]);
            let pairs = symmetric::eigenpairs(&relative);
            if pairs.iter().all(|(value, _)| value.max(1e-9).ln().abs() < SETTLED) {
                break;
            }
            let mut power = DMatrix::zeros(d, d);
            for (value, q) in &pairs {
                power.ger(value.clamp(1e-3, 1e3).powf(STEP), q, q, 1.0);
            }
            cap = symmetrised(&frame.factor * power * frame.factor.transpose());
            frame = units.at(&grams, &cap, lambda)?;
        }
        self.level = Some(cap);
        let largest = (corruption * n as f64).floor() as usize;
        if largest == 0 {
            return Some(frame);
        }
        for _ in 0..LOWERINGS {
            let Some(factor) = cut(units, largest) else { break };
            let root = &frame.factor * factor;
            frame = units.at(&grams, &symmetrised(&root * root.transpose()), lambda)?;
        }
        Some(frame)
    }
}

/// Returns a factor F for C ← LFFᵀLᵀ that lowers C along all unbalanced directions; `None` if there are none.
fn cut(units: &Units, largest: usize) -> Option<DMatrix<f64>> {
    let mut unbalanced: Vec<Direction> = starts(units).into_iter().map(|q| worst(units, q, largest)).collect();
    let least = |found: &Direction| found.claims.iter().copied().fold(f64::INFINITY, f64::min);
    unbalanced.retain(|found| found.balance < BALANCE && least(found) <= KNOWN);
    unbalanced.sort_by(|a, b| a.balance.total_cmp(&b.balance));
    let mut taken: Vec<DVector<f64>> = Vec::new();
    let mut factor = DMatrix::identity(units.d, units.d);
    for Direction { q, claims, .. } in unbalanced {
        if taken.iter().any(|other| other.dot(&q).abs() > NEARLY_ORTHOGONAL) {
            continue;
        }
        // Claims along q if C were lowered along q alone, by the factor e^cut.
        let balanced = |cut: f64| {
            let lowered = |claim: &f64| {
                let information = claim / (1.0 - claim).max(1e-12);
                information / (information + cut.exp())
            };
            let (most, rest) = claims.split_at(largest);
            rest.iter().map(lowered).sum::<f64>() >= 1.03 * BALANCE * most.iter().map(lowered).sum::<f64>()
        };
        let (mut low, mut high) = (-LARGEST_CUT, 0.0);
        for _ in 0..12 {
            let middle = f64::midpoint(low, high);
            *if balanced(middle) { &mut low } else { &mut high } = middle;
        }
        factor *= DMatrix::identity(units.d, units.d) - &q * q.transpose() * (1.0 - (low / 2.0).exp());
        taken.push(q);
    }
    (!taken.is_empty()).then_some(factor)
}

/// Returns the directions from which the search starts: the eigenvectors of mean D² − (mean D)².
fn starts(units: &Units) -> Vec<DVector<f64>> {
    let mean = units.total(&vec![1.0 / units.len() as f64; units.len()]);
    let spread = symmetrised(units.mean_square() - &mean * &mean);
    symmetric::eigenpairs(&spread).into_iter().map(|(_, q)| q).collect()
}

/// Searches for a direction along which the largest claims outweigh the others most, in alternation: the largest claims along
/// q, then the direction along which these units have most.
fn worst(units: &Units, start: DVector<f64>, largest: usize) -> Direction {
    let look = |q: DVector<f64>| {
        let along = units.claims(&q);
        let mut claims = along.clone();
        claims.select_nth_unstable_by(largest - 1, |a, b| b.total_cmp(a));
        let (most, rest) = claims.split_at(largest);
        let balance = sum(rest) / sum(most).max(1e-12);
        let limit = most[largest - 1];
        // Of several claims at the limit, the first ones count as large.
        let mut equal = most.iter().filter(|claim| **claim == limit).count();
        let weight = |claim: f64| {
            let is_large = claim > limit || (claim == limit && equal > 0);
            equal -= usize::from(is_large && claim == limit);
            if is_large { 1.0 } else { -1.0 / BALANCE }
        };
        let weights: Vec<f64> = along.into_iter().map(weight).collect();
        (Direction { q, claims, balance }, weights)
    };
    let (mut worst, mut weights) = look(start);
    for _ in 1..TURNS {
        let difference = units.total(&weights);
        // Shifted to be positive definite, as the sum of the claims of all other units is at most n.
        let shift = units.len() as f64;
        let (_, q) = largest_eigenpair(&symmetric::shifted(&difference, shift));
        let (found, next) = look(q);
        if found.balance >= worst.balance - 1e-3 {
            break;
        }
        (worst, weights) = (found, next);
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::super::LAMBDA;
    use super::super::units::tests::Draws;
    use super::*;

    /// mean_i C:(V_i + λI) = C/2, with the parallel sum as (C⁻¹ + V⁻¹)⁻¹. Without corrupted units C is not lowered.
    #[test]
    fn level_of_the_cap_solves_its_equation() {
        for (n, d) in [(40, 2), (100, 8)] {
            let streams = Draws::new(7).fleet(n, d, |i| 5 + i % 40);
            let (mut cap, mut units) = (Cap::default(), Units::default());
            // A second call starts at the result of the first.
            for _ in 0..2 {
                let frame = cap.apply(&mut units, &streams, LAMBDA, 0.0).unwrap();
                let level = &frame.factor * frame.factor.transpose();
                let mut mean = DMatrix::zeros(d, d);
                for gram in streams.gram.rows() {
                    let own = symmetric::shifted(&symmetric::matrix(gram, d), LAMBDA).try_inverse().unwrap();
                    mean += (level.clone().try_inverse().unwrap() + own).try_inverse().unwrap() / n as f64;
                }
                let relative = frame.factor.clone().try_inverse().unwrap() * mean;
                let relative = &relative * frame.factor.clone().try_inverse().unwrap().transpose();
                for (value, _) in symmetric::eigenpairs(&relative) {
                    assert!((value / LEVEL).ln().abs() < SETTLED, "{value}");
                }
            }
        }
    }

    /// Corrupted units claim a hundred times the information of all others along one direction.
    #[test]
    fn lowered_cap_balances_claims_along_every_direction() {
        let (n, d, largest) = (100, 8, 30);
        let mut draws = Draws::new(8);
        let mut streams = draws.fleet(n, d, |_| 50);
        let q = draws.vector(d).normalize();
        let claim: Vec<f64> = symmetric::pack(&(&q * q.transpose() * 1e4)).collect();
        (0..largest).for_each(|liar| streams.add(liar, &claim, &vec![0.0; d]));
        let mut units = Units::default();
        Cap::default().apply(&mut units, &streams, LAMBDA, 0.3).unwrap();
        for direction in (0..2_000).map(|_| draws.vector(d).normalize()).chain([q]) {
            let mut claims = units.claims(&direction);
            claims.sort_by(|a, b| b.total_cmp(a));
            let (most, rest) = claims.split_at(largest);
            let balance = rest.iter().sum::<f64>() / most.iter().sum::<f64>();
            assert!(balance > 0.95 * BALANCE, "{balance}");
        }
    }
}
