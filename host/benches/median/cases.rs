//! Inputs of the benchmark.

use std::f64::consts::{SQRT_2, TAU};

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// N rows of p numbers, 30 % of them corrupted in the way of the name.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) n: usize,
    pub(crate) p: usize,
}

const fn case(name: &'static str, n: usize, p: usize) -> Case {
    Case { name, n, p }
}

pub(crate) const ALL: [Case; 16] = [
    case("far", 100, 36),
    case("collude", 100, 36),
    case("gram", 100, 36),
    case("far", 1000, 36),
    case("collude", 1000, 36),
    case("gram", 1000, 36),
    case("far", 10_000, 136),
    case("collude", 10_000, 136),
    case("gram", 10_000, 136),
    case("far", 100_000, 36),
    case("gram", 100_000, 36),
    case("far", 10_000, 528),
    case("collude", 10_000, 528),
    case("near", 10_000, 36),
    case("none", 10_000, 36),
    case("near", 10_000, 8),
];

impl Case {
    /// Returns the number of repetitions; small cases vary more and get more.
    pub(crate) fn seeds(&self) -> u64 {
        (2_000_000 / (self.n * self.p)).clamp(2, 100) as u64
    }

    pub(crate) fn rows(&self, seed: u64) -> Vec<f64> {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut rows: Vec<f64> = match self.name {
            "gram" => (0..self.n).flat_map(|_| gram(self.p, &mut rng)).collect(),
            _ => (0..self.n * self.p).map(|_| gaussian(&mut rng)).collect(),
        };
        let mean: Vec<f64> =
            (0..self.p).map(|j| rows.iter().skip(j).step_by(self.p).sum::<f64>() / self.n as f64).collect();
        for (_, row) in rows.chunks_exact_mut(self.p).enumerate().filter(|(i, _)| [0, 3, 6].contains(&(i % 10))) {
            self.corrupt(row, &mean, &mut rng);
        }
        rows
    }

    fn corrupt(&self, row: &mut [f64], mean: &[f64], rng: &mut Pcg64) {
        for (x, mean) in row.iter_mut().zip(mean) {
            *x = match self.name {
                "far" => 300.0 * gaussian(rng),
                "collude" => 10.0,
                "near" => 1.0,
                "gram" => -mean,
                _ => *x,
            };
        }
    }
}

/// Moves rows by 1 % of a standard deviation per coordinate, all in the same direction or each in its own.
pub(crate) fn drifted(rows: &[f64], p: usize, together: bool) -> Vec<f64> {
    let mut rng = Pcg64::seed_from_u64(99);
    let deviation = deviation(rows, p);
    let shift: Vec<f64> = (0..p).map(|_| gaussian(&mut rng)).collect();
    let mut moved = |i: usize| 0.01 * deviation * if together { shift[i % p] } else { gaussian(&mut rng) };
    rows.iter().enumerate().map(|(i, x)| x + moved(i)).collect()
}

/// Estimates the standard deviation of honest rows by the median of |x − median|, which 30 % cannot move far.
fn deviation(rows: &[f64], p: usize) -> f64 {
    let median = |mut values: Vec<f64>| {
        let middle = values.len() / 2;
        *values.select_nth_unstable_by(middle, f64::total_cmp).1
    };
    let column = |j: usize| rows.iter().skip(j).step_by(p).copied().collect::<Vec<f64>>();
    let deviations = (0..p).map(|j| {
        let center = median(column(j));
        median(column(j).into_iter().map(|x| (x - center).abs()).collect())
    });
    1.48 * deviations.sum::<f64>() / p as f64
}

/// Σxxᵀ of 200 actions with half of their coordinates scaled by 0.2, packed with √2 off the diagonal.
fn gram(p: usize, rng: &mut Pcg64) -> Vec<f64> {
    let d = (1..).find(|d| d * (d + 1) / 2 == p).expect("a triangular number");
    let mut sum = vec![0.0; p];
    for _ in 0..200 {
        let x: Vec<f64> =
            (0..d).map(|j| gaussian(rng) * if j % 2 == 0 { 1.0 } else { 0.2 } / (d as f64).sqrt()).collect();
        let pairs = (0..d).flat_map(|i| (i..d).map(move |j| (i, j)));
        for (sum, (i, j)) in sum.iter_mut().zip(pairs) {
            *sum += x[i] * x[j] * if i == j { 1.0 } else { SQRT_2 };
        }
    }
    sum
}

fn uniform(rng: &mut Pcg64) -> f64 {
    ((rng.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

fn gaussian(rng: &mut Pcg64) -> f64 {
    (-2.0 * uniform(rng).ln()).sqrt() * (TAU * uniform(rng)).cos()
}
