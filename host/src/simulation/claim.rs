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

#[cfg(test)]
mod tests {
    use super::super::fleet::Summaries;
    use super::*;
    use crate::algorithm::{Admission, Level};

    const LENGTH: u32 = 16;
    const R: f64 = 0.5;

    fn vector(values: [f64; 2]) -> DVector<f64> {
        DVector::from_row_slice(&values)
    }

    /// Streams of three honest agents and a colluder in two dimensions.
    fn streams() -> Streams {
        let mut streams = Streams::zeros(4, 2).unwrap();
        let grams = [[90.0, 1.0, 4.0], [80.0, -1.0, 0.0], [10.0, 0.0, 30.0], [20.0, 3.0, 5.0]];
        grams.iter().enumerate().for_each(|(row, gram)| streams.add(row, gram, &[3.0, -2.0]));
        streams
    }

    fn with_search(reward_bound: Option<f64>, test: impl Fn(&ClaimSearch<'_>)) {
        let summaries = Summaries::of(2, vec![9.0, 1.0, 4.0, 3.0, 1.0]);
        let (theta, explored) = ([0.6, -0.8], DMatrix::identity(2, 2));
        let knowledge = Knowledge::new((LENGTH, reward_bound), &theta, (4, 1), &[0], &summaries, &explored);
        let streams = streams();
        test(&ClaimSearch::new(&knowledge, R, (&streams, &streams), &[0, 1, 2]).unwrap());
    }

    /// Every q with every e, and distances from none to far beyond any filter.
    fn claims() -> Vec<Claim> {
        let directions = [[1.0, 0.0], [0.3, -2.0]].map(vector);
        let explored = directions.iter().cloned().map(Some).chain([None]);
        let pairs = explored.flat_map(|q| directions.clone().map(|error| (q.clone(), error)));
        let at = |(explored, error): (Option<DVector<f64>>, DVector<f64>)| {
            [0.0, 2.2, 1e3].map(|distance| Claim { explored: explored.clone(), error: error.clone(), distance })
        };
        pairs.flat_map(at).collect()
    }

    #[test]
    fn messages_pass_admission() {
        for reward_bound in [None, Some(1.0)] {
            let admission = Admission::new(Level::Strict, 2, LENGTH, reward_bound, false).unwrap();
            with_search(reward_bound, |search| {
                for claim in claims() {
                    let message = search.message(&claim, 3);
                    assert!(admission.check(&message.gram, &message.feature_sum).is_ok(), "{claim:?}: {message:?}");
                    let silenced = message.feature_sum.iter().all(|value| value.abs() < 1e-3);
                    let may_be_silent = reward_bound.is_some() && claim.explored.is_none();
                    assert_eq!(silenced, may_be_silent, "{claim:?}: {message:?}");
                }
            });
        }
    }

    /// U = L·qqᵀ/‖q‖². With θ_i = Ṽ_i⁻¹v_i after the message, θ_i − θ* is a multiple of e and has the length t·R in the norm of
    /// (C⁻¹ + Ṽ_i⁻¹)⁻¹.
    #[test]
    fn claimed_sums_have_the_planned_information_and_error() {
        with_search(None, |search| {
            for claim in claims() {
                let mut sums_after = streams();
                let message = search.message(&claim, 3);
                sums_after.add(3, &message.gram, &message.feature_sum);
                let (before, (after, sum)) = (sums(&streams(), 3).0, sums(&sums_after, 3));
                let added = claim.explored.as_ref().map_or_else(
                    || DMatrix::zeros(2, 2),
                    |q| q.normalize() * q.normalize().transpose() * f64::from(LENGTH),
                );
                assert!((&after - before - added).norm() < 1e-9);
                let information = after + DMatrix::identity(2, 2) * LAMBDA;
                let error = information.clone().try_inverse().unwrap() * sum - search.knowledge.theta();
                assert!((error.normalize() - claim.error.normalize()).norm() < 1e-6 || claim.distance == 0.0);
                let inverses = search.cap.clone().try_inverse().unwrap() + information.try_inverse().unwrap();
                let length = error.dot(&(inverses.try_inverse().unwrap() * &error)).sqrt();
                assert!((length - claim.distance * R).abs() < 1e-6 * (1.0 + claim.distance), "{length}: {claim:?}");
            }
        });
    }

    /// mean (C⁻¹ + Ṽ_i⁻¹)⁻¹ = C/2 over the honest agents.
    #[test]
    fn cap_solves_its_equation() {
        with_search(None, |search| {
            let streams = streams();
            let inverse = search.cap.clone().try_inverse().unwrap();
            let parallel = |row: usize| {
                let information = sums(&streams, row).0 + DMatrix::identity(2, 2) * LAMBDA;
                (&inverse + information.try_inverse().unwrap()).try_inverse().unwrap()
            };
            let mean: DMatrix<f64> = (0..3).map(parallel).sum::<DMatrix<f64>>() / 3.0;
            assert!((mean * 2.0 - &search.cap).norm() < 0.02 * search.cap.norm());
        });
    }

    #[test]
    fn search_returns_the_best_claims_tried() {
        with_search(None, |search| {
            let mut tried = Vec::new();
            let score = |claim: &Claim| claim.error[0] / claim.error.norm() - (claim.distance - 3.7).abs();
            let mut rng = crate::math::rng::generator(1, crate::math::rng::Purpose::Attacker, 0);
            let differences = vec![vector([0.5, 0.5]); 16];
            let found = search.run(Some(&claims()[1]), &differences, &mut rng, &mut |claim| {
                tried.push(score(claim));
                score(claim)
            });
            assert_eq!(score(&found), tried.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            assert!((30..=60).contains(&tried.len()), "{} claims", tried.len());
            assert!((found.distance - 3.7).abs() < 0.5);
        });
    }
}
