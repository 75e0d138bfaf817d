//! Limited-memory BFGS approximation of the curvature of g.

use std::collections::VecDeque;

use super::super::norm;

/// Maximum number of stored steps.
const PAIRS: usize = 12;

/// Recent steps s with the gradient changes y along them.
#[derive(Clone, Debug, Default)]
pub(super) struct Lbfgs {
    pairs: VecDeque<Pair>,
}

#[derive(Clone, Debug)]
struct Pair {
    step: Vec<f64>,
    change: Vec<f64>,
    /// ⟨s, y⟩ > 0, since g is convex.
    product: f64,
}

impl Lbfgs {
    pub(super) fn remember(&mut self, step: Vec<f64>, change: Vec<f64>) {
        let product = dot(&step, &change);
        // A smaller product may be rounding error, and H divides by it.
        if product > 1e-8 * norm(&step) * norm(&change) {
            self.pairs.truncate(PAIRS - 1);
            self.pairs.push_front(Pair { step, change, product });
        }
    }

    /// Returns the stored steps and changes in turn, the most recent first.
    pub(super) fn vectors(&self) -> impl Iterator<Item = &Vec<f64>> {
        self.pairs.iter().flat_map(|pair| [&pair.step, &pair.change])
    }

    /// Restores what [`vectors`](Self::vectors) returned.
    pub(super) fn from_vectors(mut vectors: impl Iterator<Item = Vec<f64>>) -> Self {
        let pair = || {
            let (step, change) = (vectors.next()?, vectors.next()?);
            Some(Pair { product: dot(&step, &change), step, change })
        };
        Self { pairs: std::iter::from_fn(pair).take(PAIRS).collect() }
    }

    /// Returns −H·gradient, where H is the BFGS update of `scale`·I by all pairs.
    pub(super) fn step(&self, gradient: &[f64], scale: f64) -> Vec<f64> {
        let mut q: Vec<f64> = gradient.iter().map(|g| -g).collect();
        let mut alphas = Vec::with_capacity(self.pairs.len());
        for pair in &self.pairs {
            let alpha = dot(&pair.step, &q) / pair.product;
            add(&mut q, -alpha, &pair.change);
            alphas.push(alpha);
        }
        q.iter_mut().for_each(|q| *q *= scale);
        for (pair, alpha) in self.pairs.iter().zip(alphas).rev() {
            let beta = dot(&pair.change, &q) / pair.product;
            add(&mut q, alpha - beta, &pair.step);
        }
        q
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], factor: f64, values: &[f64]) {
    to.iter_mut().zip(values).for_each(|(to, value)| *to += factor * value);
}
