//! The attack `optimal`: a search against the rule of the run.
//!
//! Each colluder has its own message, which passes admission. The search varies the position of the colluders' *sums*, in
//! units of the honest agents' noise.

use nalgebra::{Cholesky, DMatrix, DVector, Dyn};
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64;

use super::forged_summary::{ForgedSummary, unpacked};
use super::knowledge::Knowledge;
use crate::algorithm::Streams;
use crate::math::symmetric;
use crate::robust::LAMBDA;

/// Placement of the colluders' sums: v_i − V_iθ* = t·R·y/‖y‖ in the norm of Λ⁻¹, where Λ is what honest agents have explored.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    /// y.
    direction: DVector<f64>,
    /// t.
    distance: f64,
    /// ρ, the share of U's trace in the direction Λ⁻¹y. The rest is as in Ū.
    share: f64,
    /// True if each colluder sends the Gram matrix of its own honest steps and adds their residual. Only the mean then
    /// distinguishes colluders from honest agents.
    mimic: bool,
}

/// Search for the best placement in an episode.
pub(super) struct PlacementSearch<'a> {
    knowledge: &'a Knowledge,
    /// R.
    noise: f64,
    /// Sums of each agent's own steps.
    own: &'a Streams,
    /// Summary of each agent's own steps in this episode.
    now: &'a [ForgedSummary],
    /// Sums of each agent's messages so far.
    sent: &'a Streams,
    /// Λ.
    design: DMatrix<f64>,
    factor: Cholesky<f64, Dyn>,
}

/// t of the first placements: about the distance that a filter lets pass.
const FIRST_DISTANCE: f64 = 2.2;

impl<'a> PlacementSearch<'a> {
    /// Prepares a search. `explored` is the mean of the honest agents' Gram matrices, including this episode's.
    pub(super) fn new(
        knowledge: &'a Knowledge,
        noise: f64,
        (own, sent): (&'a Streams, &'a Streams),
        now: &'a [ForgedSummary],
        explored: &DMatrix<f64>,
    ) -> Option<Self> {
        let design = symmetric::shifted(explored, LAMBDA);
        let factor = design.clone().cholesky()?;
        Some(Self { knowledge, noise, own, now, sent, design, factor })
    }

    /// Returns the message by which a colluder's sums reach a placement.
    pub(super) fn message(&self, placement: &Placement, row: usize) -> ForgedSummary {
        let (theta, d) = (self.knowledge.theta(), self.knowledge.theta().len());
        let solved = self.factor.solve(&placement.direction);
        let norm = placement.direction.dot(&solved).max(f64::MIN_POSITIVE).sqrt();
        let mut residual = &placement.direction * (placement.distance * self.noise / norm);
        let gram = if placement.mimic {
            let (gram, feature_sum) = sums(self.own, row);
            residual += feature_sum - gram * theta;
            unpacked(&self.now[row].gram, d)
        } else {
            let q = solved.normalize();
            self.knowledge.mean_gram() * (1.0 - placement.share)
                + &q * q.transpose() * (placement.share * self.knowledge.episode_len())
        };
        let (sent_gram, sent_sum) = sums(self.sent, row);
        let feature_sum = (sent_gram + &gram) * theta + residual - sent_sum;
        let gram = symmetric::pack(&gram).collect();
        self.knowledge.make_consistent(ForgedSummary { gram, feature_sum: feature_sum.as_slice().to_vec() })
    }

    /// Returns the directions to try: away from θ*, as explored and plainly; the least explored ones; a random one; and those
    /// towards other actions.
    fn directions(&self, differences: Vec<DVector<f64>>, rng: &mut Pcg64) -> Vec<DVector<f64>> {
        let theta = self.knowledge.theta();
        let mut pairs = symmetric::eigenpairs(&self.design);
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let weak = pairs.iter().take(2).map(|(value, vector)| vector * (-value.sqrt() * vector.dot(theta).signum()));
        let mut directions: Vec<DVector<f64>> = vec![-(&self.design * theta), -theta];
        directions.extend(weak);
        directions.push(directions[0].normalize() + directions[2].normalize());
        directions.push(-directions[2].clone());
        directions.push(DVector::from_fn(theta.len(), |_, _| StandardNormal.sample(rng)));
        directions.extend(differences);
        directions
    }

    /// Returns the best placement found and its score. Optimises the direction, then the distance, mimicry, the share of U,
    /// and the distance again.
    pub(super) fn run(
        &self,
        last: Option<&Placement>,
        differences: Vec<DVector<f64>>,
        rng: &mut Pcg64,
        score: &mut dyn FnMut(&Placement) -> f64,
    ) -> (f64, Placement) {
        let theta = self.knowledge.theta();
        let plain = |direction| Placement { direction, distance: FIRST_DISTANCE, share: 0.0, mimic: false };
        let mut best = (f64::NEG_INFINITY, plain(-theta));
        let mut offer = |placement: Placement| {
            let score = score(&placement);
            if score > best.0 {
                best = (score, placement);
            }
            best.1.clone()
        };
        for placement in self.directions(differences, rng).into_iter().map(plain).chain(last.cloned()) {
            offer(placement);
        }
        let direction = offer(plain(-theta)).direction;
        for distance in [0.8, 1.2, 1.6, 2.0, 2.6, 3.2, 5.0, 10.0, 20.0, 50.0] {
            offer(Placement { distance, ..plain(direction.clone()) });
        }
        for distance in [0.8, 1.1, 1.5, 2.0, 3.0] {
            offer(Placement { distance, mimic: true, ..plain(direction.clone()) });
        }
        let found = offer(plain(direction));
        for share in [0.3, 0.8, 1.0] {
            offer(Placement { share, mimic: false, ..found.clone() });
        }
        let found = offer(found);
        for factor in [0.85, 0.93, 1.08, 1.18] {
            offer(Placement { distance: found.distance * factor, ..found.clone() });
        }
        best
    }
}

/// Returns V and v of a row.
pub(super) fn sums(streams: &Streams, row: usize) -> (DMatrix<f64>, DVector<f64>) {
    let gram = symmetric::matrix(streams.gram.row(row), streams.dimension());
    (gram, DVector::from_column_slice(streams.feature_sum.row(row)))
}
