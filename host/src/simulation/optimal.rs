//! The attack `optimal`: a search against the rule that is running.
//!
//! Every message is one that admission lets pass, and each colluder has its own: what counts is where its *sums* end up, in units
//! of the honest agents' noise.

use nalgebra::{Cholesky, DMatrix, DVector, Dyn};
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64;

use super::attack::{Knowledge, Message, full};
use crate::algorithm::Streams;
use crate::math::symmetric;
use crate::robust::LAMBDA;

/// Where colluders put their sums: v_i − V_iθ* = t·R·y/‖y‖ in the norm of Λ⁻¹, where Λ is what honest agents have explored.
#[derive(Clone, Debug)]
pub(super) struct Pull {
    /// y.
    towards: DVector<f64>,
    /// t.
    far: f64,
    /// ρ: this much of U's trace is in the one direction Λ⁻¹y, the rest is as in Ū.
    share: f64,
    /// Whether each adds the residual of its own honest steps and sends the Gram matrix of these: then nothing but the mean tells
    /// it from honest agents.
    mimic: bool,
}

/// The colluders' view of an episode.
pub(super) struct Board<'a> {
    pub(super) knowledge: &'a Knowledge,
    /// R.
    pub(super) noise: f64,
    /// What each agent's own steps gave, and gave in this episode.
    pub(super) own: &'a Streams,
    pub(super) now: &'a [Message],
    /// What each has sent so far.
    pub(super) sent: &'a Streams,
    /// Λ, and its factor.
    design: DMatrix<f64>,
    factor: Cholesky<f64, Dyn>,
}

/// t of the first tries: about as far as a filter lets pass.
const FIRST: f64 = 2.2;

impl<'a> Board<'a> {
    /// `explored` is the mean of the honest agents' Gram matrices, with this episode's.
    pub(super) fn new(
        knowledge: &'a Knowledge,
        noise: f64,
        (own, sent): (&'a Streams, &'a Streams),
        now: &'a [Message],
        explored: &DMatrix<f64>,
    ) -> Option<Self> {
        let design = symmetric::shifted(explored, LAMBDA);
        let factor = design.clone().cholesky()?;
        Some(Self { knowledge, noise, own, now, sent, design, factor })
    }

    /// What a colluder sends.
    pub(super) fn message(&self, pull: &Pull, row: usize) -> Message {
        let (theta, d) = (self.knowledge.theta(), self.knowledge.theta().len());
        let solved = self.factor.solve(&pull.towards);
        let reach = pull.towards.dot(&solved).max(f64::MIN_POSITIVE).sqrt();
        let mut residual = &pull.towards * (pull.far * self.noise / reach);
        let gram = if pull.mimic {
            residual += sums(self.own, row).residual(theta);
            full(&self.now[row].gram, d)
        } else {
            let q = solved.normalize();
            self.knowledge.mean_gram() * (1.0 - pull.share)
                + &q * q.transpose() * (pull.share * self.knowledge.episode_len())
        };
        let before = sums(self.sent, row);
        let feature_sum = (before.gram + &gram) * theta + residual - before.feature_sum;
        let message = Message { gram: symmetric::pack(&gram).collect(), feature_sum: feature_sum.as_slice().to_vec() };
        self.knowledge.fitted(message)
    }

    /// Where to pull first: away from θ*, as it is explored or not, the directions that are explored least, one at random, and
    /// towards other actions.
    fn directions(&self, wishes: Vec<DVector<f64>>, rng: &mut Pcg64) -> Vec<DVector<f64>> {
        let theta = self.knowledge.theta();
        let mut pairs = symmetric::eigenpairs(&self.design);
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let weak = pairs.iter().take(2).map(|(value, vector)| vector * (-value.sqrt() * vector.dot(theta).signum()));
        let mut directions: Vec<DVector<f64>> = vec![-(&self.design * theta), -theta];
        directions.extend(weak);
        directions.push(directions[0].normalize() + directions[2].normalize());
        directions.push(-directions[2].clone());
        directions.push(DVector::from_fn(theta.len(), |_, _| StandardNormal.sample(rng)));
        directions.extend(wishes);
        directions
    }

    /// The best pull that is found, and its score: the best direction, then how far, whether to mimic, how much of U to give for it,
    /// and how far again.
    pub(super) fn search(
        &self,
        last: Option<&Pull>,
        wishes: Vec<DVector<f64>>,
        rng: &mut Pcg64,
        score: &mut dyn FnMut(&Pull) -> f64,
    ) -> (f64, Pull) {
        let theta = self.knowledge.theta();
        let plain = |towards| Pull { towards, far: FIRST, share: 0.0, mimic: false };
        let mut best = (f64::NEG_INFINITY, plain(-theta));
        let mut offer = |pull: Pull| {
            let score = score(&pull);
            if score > best.0 {
                best = (score, pull);
            }
            best.1.clone()
        };
        for pull in self.directions(wishes, rng).into_iter().map(plain).chain(last.cloned()) {
            offer(pull);
        }
        let towards = offer(plain(-theta)).towards;
        for far in [0.8, 1.2, 1.6, 2.0, 2.6, 3.2, 5.0, 10.0, 20.0, 50.0] {
            offer(Pull { far, ..plain(towards.clone()) });
        }
        for far in [0.8, 1.1, 1.5, 2.0, 3.0] {
            offer(Pull { far, mimic: true, ..plain(towards.clone()) });
        }
        let found = offer(plain(towards));
        for share in [0.3, 0.8, 1.0] {
            offer(Pull { share, mimic: false, ..found.clone() });
        }
        let found = offer(found);
        for factor in [0.85, 0.93, 1.08, 1.18] {
            offer(Pull { far: found.far * factor, ..found.clone() });
        }
        best
    }
}

/// A row of streams.
struct Sums {
    gram: DMatrix<f64>,
    feature_sum: DVector<f64>,
}

impl Sums {
    /// v − Vθ.
    fn residual(&self, theta: &DVector<f64>) -> DVector<f64> {
        &self.feature_sum - &self.gram * theta
    }
}

fn sums(streams: &Streams, row: usize) -> Sums {
    let gram = symmetric::matrix(streams.gram.row(row), streams.dimension());
    Sums { gram, feature_sum: DVector::from_column_slice(streams.feature_sum.row(row)) }
}
