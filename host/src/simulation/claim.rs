//! The attack `claim`: a search over the information that colluders claim.
//!
//! Colluders claim to have explored nothing but one direction, or nothing at all. A rule that weighs agents by their
//! information is attacked through these weights. `optimal` leaves V_i about as honest agents have it.

use nalgebra::{DMatrix, DVector};
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64;

use super::forged_summary::ForgedSummary;
use super::knowledge::Knowledge;
use super::optimal::sums;
use crate::algorithm::Streams;
use crate::math::symmetric;
use crate::robust::LAMBDA;

/// Claims of the colluders: U = L·qqᵀ/‖q‖² or 0, and v_i such that an error e passes for noise.
///
/// With Ṽ_i = V_i + λI, including U, and the parallel sum C:Ṽ = C − C(C + Ṽ)⁻¹C,
///
/// ```text
/// v_i = Ṽ_i(θ* + e),   ‖(C:Ṽ_i)^{1/2}e‖ = t·R.
/// ```
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// q; `None` for U = 0.
    explored: Option<DVector<f64>>,
    /// Direction of e.
    error: DVector<f64>,
    /// t.
    distance: f64,
}

/// Search for the best claims in an episode.
pub(super) struct ClaimSearch<'a> {
    knowledge: &'a Knowledge,
    /// R.
    noise: f64,
    /// Sums of each agent's messages so far.
    sent: &'a Streams,
    /// C, which solves mean C:Ṽ_i = C/2 over the honest agents: the cap of `capped-filter` without colluders.
    cap: DMatrix<f64>,
    inverse: DMatrix<f64>,
}

/// Number of iterations towards C. Each halves the error if honest agents are alike.
const ROUNDS: usize = 20;

/// t of the first claims: about the distance that a filter lets pass.
const FIRST_DISTANCE: f64 = 2.2;

/// Number of eigenvectors of C, from the smallest eigenvalue on, that are tried as e.
const AXES: usize = 3;

/// Number of differences between actions that are tried as e.
const ACTIONS: usize = 8;

impl<'a> ClaimSearch<'a> {
    /// Prepares a search. `own` are the sums of each agent's own steps, and `honest` the rows of the honest agents.
    pub(super) fn new(
        knowledge: &'a Knowledge,
        noise: f64,
        (own, sent): (&Streams, &'a Streams),
        honest: &[usize],
    ) -> Option<Self> {
        let explored: Vec<_> = honest.iter().map(|row| symmetric::shifted(&sums(own, *row).0, LAMBDA)).collect();
        let mut cap = explored.iter().sum::<DMatrix<f64>>() / honest.len() as f64;
        for _ in 0..ROUNDS {
            let total: DMatrix<f64> = explored.iter().map(|information| capped(&cap, information)).sum();
            cap = total * (2.0 / honest.len() as f64);
        }
        Some(Self { knowledge, noise, sent, inverse: inverse(&cap)?, cap })
    }

    /// Returns the message of a colluder with these claims. With bounded rewards, u is the part along q.
    pub(super) fn message(&self, claim: &Claim, row: usize) -> ForgedSummary {
        let Claim { explored, error, distance } = claim;
        let d = error.len();
        let onto = explored.as_ref().map_or_else(|| DMatrix::zeros(d, d), |q| q * q.transpose() / q.norm_squared());
        let gram = &onto * self.knowledge.episode_len();
        let (sent_gram, sent_sum) = sums(self.sent, row);
        let information = symmetric::shifted(&(sent_gram + &gram), LAMBDA);
        let square = error.dot(&(capped(&self.cap, &information) * error));
        let error = error * (distance * self.noise / square.max(f64::MIN_POSITIVE).sqrt());
        let mut feature_sum = information * (self.knowledge.theta() + error) - sent_sum;
        if self.knowledge.reward_bound().is_some() {
            feature_sum = onto * feature_sum;
        }
        let gram = symmetric::pack(&gram).collect();
        self.knowledge.make_consistent(ForgedSummary { gram, feature_sum: feature_sum.as_slice().to_vec() })
    }

    /// Returns the eigenvectors of C, from the smallest eigenvalue on.
    fn axes(&self) -> Vec<DVector<f64>> {
        let mut pairs = symmetric::eigenpairs(&self.cap);
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        pairs.into_iter().map(|(_, vector)| vector).collect()
    }

    /// Returns the directions of e to try: away from θ*, along the least explored axes, a random one, and towards other actions;
    /// some of them plainly and as explored.
    fn errors(&self, differences: &[DVector<f64>], rng: &mut Pcg64) -> Vec<DVector<f64>> {
        let theta = self.knowledge.theta();
        let mut errors = vec![-theta, -(&self.inverse * theta)];
        errors.extend(self.axes().into_iter().take(AXES).flat_map(|axis| [-&axis, axis]));
        errors.push(DVector::from_fn(theta.len(), |_, _| StandardNormal.sample(rng)));
        errors.extend(differences.iter().take(ACTIONS).flat_map(|towards| [&self.inverse * towards, towards.clone()]));
        errors
    }

    /// Returns the claims with each q to try: none, e, and the least explored axis.
    fn with_each_direction(&self, claim: &Claim) -> Vec<Claim> {
        let directions = [None, Some(claim.error.clone()), self.axes().into_iter().next()];
        directions.map(|explored| Claim { explored, ..claim.clone() }).to_vec()
    }

    /// Returns the best claims found. Optimises e with q = e, then q, the distance, and both again.
    pub(super) fn run(
        &self,
        last: Option<&Claim>,
        differences: &[DVector<f64>],
        rng: &mut Pcg64,
        score: &mut dyn FnMut(&Claim) -> f64,
    ) -> Claim {
        let along = |error: DVector<f64>| Claim { explored: Some(error.clone()), error, distance: FIRST_DISTANCE };
        let mut best = (f64::NEG_INFINITY, along(-self.knowledge.theta()));
        let mut best_with = |claims: Vec<Claim>| {
            for claim in claims {
                let score = score(&claim);
                if score > best.0 {
                    best = (score, claim);
                }
            }
            best.1.clone()
        };
        let at = |claim: &Claim, distance: f64| Claim { distance, ..claim.clone() };
        let first = self.errors(differences, rng).into_iter().map(along).chain(last.cloned());
        let found = best_with(first.collect());
        let found = best_with(self.with_each_direction(&found));
        let found = best_with([0.5, 1.0, 1.4, 1.8, 3.0, 4.0, 6.0, 20.0].map(|distance| at(&found, distance)).to_vec());
        let found = best_with(self.with_each_direction(&found));
        best_with([0.85, 0.93, 1.08, 1.18].map(|factor| at(&found, found.distance * factor)).to_vec())
    }
}

/// Returns the parallel sum C:V; 0 if C + V is not positive definite.
fn capped(cap: &DMatrix<f64>, information: &DMatrix<f64>) -> DMatrix<f64> {
    inverse(&(cap + information)).map_or_else(|| cap * 0.0, |inverse| cap - cap * inverse * cap)
}

fn inverse(matrix: &DMatrix<f64>) -> Option<DMatrix<f64>> {
    Some(matrix.clone().cholesky()?.inverse())
}
