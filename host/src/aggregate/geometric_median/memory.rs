//! What past steps say about the curvature of g: limited-memory BFGS.

use std::collections::VecDeque;

use super::super::norm;

/// How many steps are remembered.
const PAIRS: usize = 12;

/// Steps s with the changes y of the gradient along them.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    pairs: VecDeque<Pair>,
}

#[derive(Clone, Debug)]
struct Pair {
    step: Vec<f64>,
    change: Vec<f64>,
    /// ⟨s, y⟩ > 0, as g is convex.
    product: f64,
}

impl Memory {
    pub(super) fn remember(&mut self, step: Vec<f64>, change: Vec<f64>) {
        let product = dot(&step, &change);
        // Less may be rounding, and H divides by it.
        if product > 1e-8 * norm(&step) * norm(&change) {
            self.pairs.truncate(PAIRS - 1);
            self.pairs.push_front(Pair { step, change, product });
        }
    }

    /// −H·gradient, where H is what the pairs make of `scale`·I.
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
