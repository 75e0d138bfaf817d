//! Helpers shared by the tests: seeded random data and an owned model.

use fedbandit_core::{Action, Agent, Model, Prior, Rewards, packed_len, project};
use nalgebra::{DMatrix, DVector};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

pub(crate) const PRIOR: Prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 64, rewards: Rewards::Unbounded };

pub(crate) struct Random(Pcg64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Pcg64::seed_from_u64(seed))
    }

    /// Uniform in [0, 1).
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / 9_007_199_254_740_992.0
    }

    /// Standard normal, by the Box–Muller transform.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// A random direction with a length uniform in [0, 1).
    pub(crate) fn action<const D: usize>(&mut self) -> Action<D> {
        let x = Action::from_fn(|_, _| self.normal() as f32);
        project(&(x * 1e6)) * self.uniform() as f32
    }
}

/// A model that owns its values.
#[derive(Clone, Debug)]
pub(crate) struct OwnedModel {
    pub(crate) episode: u32,
    pub(crate) episode_len: u32,
    pub(crate) beta: f32,
    pub(crate) rewards: Rewards,
    pub(crate) theta: Vec<f32>,
    pub(crate) design: Vec<f32>,
}

impl OwnedModel {
    pub(crate) fn view(&self) -> Model<'_> {
        Model {
            episode: self.episode,
            episode_len: self.episode_len,
            beta: self.beta,
            rewards: self.rewards,
            theta: self.theta.as_slice().into(),
            design: self.design.as_slice().into(),
        }
    }

    /// θ = 0, Λ = I.
    pub(crate) fn identity(dimension: usize, episode: u32) -> Self {
        let design = pack(&DMatrix::identity(dimension, dimension));
        Self { episode, episode_len: 64, beta: 1.0, rewards: Rewards::Unbounded, theta: vec![0.0; dimension], design }
    }
}

pub(crate) fn agent<const D: usize>() -> Agent<D> {
    Agent::new(&PRIOR).unwrap()
}

/// Packs the upper triangle row by row, rounded to f32.
pub(crate) fn pack(matrix: &DMatrix<f64>) -> Vec<f32> {
    let n = matrix.nrows();
    (0..n).flat_map(|i| (i..n).map(move |j| (i, j))).map(|at| matrix[at] as f32).collect()
}

/// Expands a packed triangle to the symmetric matrix, exactly.
pub(crate) fn unpack(packed: impl IntoIterator<Item = f32>, dimension: usize) -> DMatrix<f64> {
    let mut values = packed.into_iter();
    let mut matrix = DMatrix::zeros(dimension, dimension);
    for i in 0..dimension {
        for j in i..dimension {
            let value = f64::from(values.next().unwrap());
            matrix[(i, j)] = value;
            matrix[(j, i)] = value;
        }
    }
    assert_eq!(values.count(), 0, "dimension {dimension} has {} packed values", packed_len(dimension));
    matrix
}

pub(crate) fn to_f64<const D: usize>(x: &Action<D>) -> DVector<f64> {
    DVector::from_iterator(D, x.iter().map(|entry| f64::from(*entry)))
}
