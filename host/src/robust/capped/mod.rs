//! Rule for unequal fleets: caps the information that a unit can claim in each direction.

mod cap;
mod filter;
pub(super) mod units;
mod width;

use std::borrow::Cow;

use nalgebra::{DMatrix, DVector};

use super::matrices::symmetrised;
use super::{Assumptions, kernel, noise};
use crate::aggregate::{AggregateError, certify};
use crate::algorithm::{Estimate, ModelParameters, Rule, Streams};
use crate::math::symmetric;
use cap::Cap;
use filter::{filter, gate, start};
use units::{Units, pack, weighted_rows};
use width::{Problem, width};

/// The rule `capped-filter`, for n units of which a share a may be corrupted.
///
/// Units may have explored different directions, or nothing at all: an absent unit has less information, not wrong
/// information. The cap keeps a corrupted unit from claiming more information than honest ones have.
///
/// 1. *Level* (`cap.rs`). With the parallel sum C:V = C − C(C + V)⁻¹C, the cap C solves
///
///    ```text
///    mean_i C:(V̂_i + λI) = C/2.
///    ```
///
///    It is a median of matrices in which each unit has a bounded influence. In its coordinates, C = LLᵀ and φ = Lᵀθ, each unit
///    has D_i with 0 ⪯ D_i ⪯ I and b_i (`units.rs`).
/// 2. *Balance* (`cap.rs`). Lowers C along directions u until the ⌊an⌋ largest uᵀD_iu are outweighed by the others. Then a
///    corrupted minority cannot outvote honest units along u. The λI of honest units counts, so that θ = 0 holds where nobody
///    has explored.
/// 3. *Start* (`filter.rs`). φ⁰ = argmin Σ‖D_i^{−1/2}(b_i − D_iφ)‖ is convex. docs/theory.md bounds its error for every C.
/// 4. *Filter* (`filter.rs`). Lowers the weights of units whose residuals z_i = b_i − D_iφ vary more than noise explains, as in
///    [`Whitened`](super::Whitened). Then φ = (Σw_iD_i)⁻¹Σw_ib_i.
/// 5. *Width.* An ellipsoid P around θ covers undetected corruption, noise and bias. It is broadcast as Λ = P⁻¹ with β = 1.
/// 6. *Removal.* A unit is corrupted if ‖D_i^{−1/2}z_i‖ exceeds what its own noise and the ellipsoid together permit. Steps 1 to 5
///    are repeated without such units, with the share of corrupted ones that remains.
///
/// For more than 1,024 units, steps 1 and 3 and the directions of step 5 come from a random sample of them.
///
/// On noised releases λ also covers the privacy noise of one V̂_i, so that V̂_i + λI stays positive definite, and the noise
/// that step 4 expects includes it.
#[derive(Debug)]
pub struct Capped {
    assumptions: Assumptions,
    /// Upper bound on R, if R is estimated.
    noise_bound: Option<f64>,
    cap: Cap,
    units: Units,
    /// Units of [`sample`].
    sample: Units,
}

/// Maximum number of units among which the cap, the start and the directions of the width are searched.
const SAMPLE: usize = 1024;

/// λ without privacy. A smaller one leaves less bias to units that know little, and more room to corrupted ones where few have explored.
const LAMBDA: f64 = 0.03;

/// Maximum number of times that units are removed.
const REMOVALS: usize = 4;

/// Least share of corrupted units that is assumed after a removal.
const LEAST_CORRUPTION: f64 = 0.05;

/// Result of the rule.
struct Solution {
    theta: DVector<f64>,
    /// P⁻¹.
    design: DMatrix<f64>,
    /// Weights of all units.
    weights: Vec<f64>,
}

impl Capped {
    /// Creates the rule. The fields of [`Assumptions`] document their valid ranges.
    pub fn new(assumptions: Assumptions) -> Self {
        let [units, sample] = [(); 2].map(|()| Units::default());
        Self { assumptions, noise_bound: None, cap: Cap::default(), units, sample }
    }

    /// Creates the rule for noise of an unknown level, of which `noise` is an upper bound. R is estimated (`noise.rs`).
    pub fn with_noise_bound(assumptions: Assumptions) -> Self {
        Self { noise_bound: Some(assumptions.noise), ..Self::new(assumptions) }
    }

    /// Returns λ and the e of [`Units`] for one unit in an episode.
    fn priors(&self, episode: u32, d: usize) -> (f64, f64) {
        let Assumptions { noise, theta_bound, stream_noise, .. } = self.assumptions;
        let one = stream_noise.map(|stream_noise| stream_noise.of_mean(episode, 1.0));
        let (spectral, vector) = one.map_or((0.0, 0.0), |one| (one.spectral, one.vector));
        let lambda = LAMBDA + spectral;
        let private = vector.powi(2) / d as f64 * (1.0 + theta_bound.powi(2));
        (lambda, (private + (lambda * theta_bound).powi(2)) / noise.powi(2) - lambda)
    }

    /// Runs all steps, and again without units that cannot be honest.
    fn solve(&mut self, streams: &Streams, episode: u32) -> Option<Solution> {
        let n = streams.gram.len();
        let limit = (self.assumptions.corruption * n as f64).floor() as usize;
        let (mut present, mut remaining) = ((0..n).collect::<Vec<_>>(), Cow::Borrowed(streams));
        let mut best = None;
        for _ in 0..=REMOVALS {
            let gone = n - present.len();
            let corruption = match gone {
                0 => self.assumptions.corruption,
                _ => ((limit - gone) as f64 / present.len() as f64).max(LEAST_CORRUPTION),
            };
            let Some((mut solution, honest)) = self.solve_once(&remaining, corruption, episode) else { break };
            let mut weights = vec![0.0; n];
            present.iter().zip(&solution.weights).for_each(|(unit, weight)| weights[*unit] = *weight);
            solution.weights = weights;
            best = Some(solution);
            let kept: Vec<usize> =
                present.iter().zip(&honest).filter(|(_, honest)| **honest).map(|(unit, _)| *unit).collect();
            // More than there can be: then the ellipsoid missed θ*, and stays as wide as it is.
            if kept.len() == present.len() || n - kept.len() > limit {
                break;
            }
            present = kept;
            remaining = Cow::Owned(streams.select(&present)?);
        }
        best
    }

    /// Runs steps 1 to 5. Also returns which units may be honest.
    fn solve_once(&mut self, streams: &Streams, corruption: f64, episode: u32) -> Option<(Solution, Vec<bool>)> {
        let (lambda, added) = self.priors(episode, streams.dimension());
        let rows = sample(streams);
        let sampled = rows.as_ref().and_then(|rows| streams.select(rows));
        let data = sampled.as_ref().unwrap_or(streams);
        let searched = if sampled.is_some() { &mut self.sample } else { &mut self.units };
        let mut frame = self.cap.apply(searched, data, lambda, corruption)?;
        searched.complete(data, &frame, added);
        let mut phi = start(searched, self.noise_bound.unwrap_or(self.assumptions.noise))?;
        if let Some(bound) = self.noise_bound {
            let corrupted = (corruption * data.gram.len() as f64).floor() as usize;
            // Twice, since the start depends a little on R.
            for _ in 0..2 {
                let theta = frame.factor.tr_solve_lower_triangular(&phi)?;
                self.assumptions.noise = noise::estimate(data, &theta, corrupted, bound);
                phi = start(searched, self.assumptions.noise)?;
            }
        }
        let (_, added) = self.priors(episode, streams.dimension());
        if sampled.is_some() {
            frame = self.units.at(streams, &frame.cap(), lambda)?;
            self.sample.complete(data, &frame, added);
        }
        if sampled.is_some() || self.noise_bound.is_some() {
            self.units.complete(streams, &frame, added);
        }
        let Assumptions { noise, theta_bound, stream_noise, .. } = self.assumptions;
        // D_i^{−1/2}B_iL⁻¹L⁻ᵀB_iD_i^{−1/2} is at most I/λ. Without privacy, the bias does not count as noise.
        let reach = if stream_noise.is_some() { noise * (1.0 + added.max(0.0) / lambda).sqrt() } else { noise };
        let gate = gate(&self.units, &phi, corruption, reach);
        let fit = filter(&self.units, &gate, corruption, noise)?;
        let searched = rows.as_deref().map(|rows| (&self.sample, rows));
        let problem = Problem { units: &self.units, frame: &frame, fit: &fit, gate: &gate, searched };
        let width = width(&problem, corruption, &self.assumptions);
        let (d, n) = (streams.dimension() as f64, streams.gram.len() as f64);
        let own = reach * (d.sqrt() + (2.0 * (10.0 * n).ln()).sqrt()) + lambda.sqrt() * theta_bound;
        let mut reach = vec![0.0; streams.gram.len()];
        kernel::along(&self.units.information, &pack(&width), &mut reach);
        let distances = self.units.distances_squared(&fit.phi);
        let honest = distances.iter().zip(reach).map(|(square, reach)| square.sqrt() <= own + reach.max(0.0).sqrt());
        let theta = frame.factor.tr_solve_lower_triangular(&fit.phi)?;
        // P = L⁻ᵀ·width·L⁻¹, so P⁻¹ = L·width⁻¹·Lᵀ.
        let design = symmetrised(&frame.factor * width.cholesky()?.inverse() * frame.factor.transpose());
        Some((Solution { theta, design, weights: fit.weights }, honest.collect()))
    }
}

/// Returns the rows of [`SAMPLE`] units, or `None` if there are no more.
///
/// One unit is drawn from each of as many sections. The draws are a hash of the sum of all messages, so that corrupted units
/// cannot know them before honest ones have sent theirs.
fn sample(streams: &Streams) -> Option<Vec<usize>> {
    let n = streams.gram.len();
    if n <= SAMPLE {
        return None;
    }
    let mut hash = blake3::Hasher::new();
    for value in weighted_rows(streams.feature_sum.values(), &vec![1.0; n]) {
        hash.update(&value.to_le_bytes());
    }
    let mut draws = hash.finalize_xof();
    let draw = |section: usize| {
        let mut bytes = [0; 8];
        draws.fill(&mut bytes);
        let (first, next) = (section * n / SAMPLE, (section + 1) * n / SAMPLE);
        // The remainder's bias is below 2⁻³².
        first + (u64::from_le_bytes(bytes) % (next - first) as u64) as usize
    };
    Some((0..SAMPLE).map(draw).collect())
}

impl Rule for Capped {
    fn estimate(&mut self, streams: &Streams, episode: u32) -> Result<Estimate, AggregateError> {
        let n = streams.gram.len();
        if n == 0 {
            return Err(AggregateError::Empty);
        }
        let solved = self.solve(streams, episode);
        let weights = solved.as_ref().map_or_else(|| vec![1.0; n], |solution| solution.weights.clone());
        let usable = solved.and_then(|Solution { theta, design, .. }| {
            let (design, raised) = symmetric::raise_eigenvalues(design, 0.0)?;
            Some((ModelParameters::new(&theta, &design, 1.0)?, raised))
        });
        let (parameters, raised) = usable.unzip();
        let total: f64 = weights.iter().sum();
        let weights: Vec<f64> = weights.into_iter().map(|weight| weight / total).collect();
        let gram = certify(&streams.gram, weighted_rows(streams.gram.values(), &weights));
        let feature_sum = certify(&streams.feature_sum, weighted_rows(streams.feature_sum.values(), &weights));
        let (lambda, _) = self.priors(episode, streams.dimension());
        Ok(Estimate { parameters, lambda, raised: raised.unwrap_or(0), gram, feature_sum })
    }
}
