//! Rule for unequal fleets: caps the information that a unit can claim in each direction.

mod cap;
mod filter;
mod kernel;
mod sums;
mod units;
mod width;

use std::borrow::Cow;
use std::mem;

use nalgebra::{DMatrix, DVector};

use super::kernel::weighted_sum;
use super::matrices::symmetrised;
use super::{Assumptions, noise};
use crate::aggregate::{AggregateError, WarmStart, certify};
use crate::algorithm::{Estimate, ModelParameters, Rule, Streams};
use crate::math::symmetric;
use cap::Cap;
use filter::{Fit, filter, gate, start};
use units::{Frame, Units};
use width::Problem;

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
/// More than 512 units are searched in a random sample of them. The rest of the units then takes the sample's cap, start and axes,
/// and the sample's ellipsoid decides which units are removed.
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

/// Maximum number of units among which the cap, the start and the axes of the width are searched.
const SAMPLE: usize = 512;

/// λ without privacy. A smaller one leaves less bias to units that know little, and more room to corrupted ones where few have explored.
const LAMBDA: f64 = 0.03;

/// Maximum number of times that units are removed.
const REMOVALS: usize = 4;

/// Least share of corrupted units that is assumed after a removal.
const LEAST_CORRUPTION: f64 = 0.05;

/// Factor of a standard deviation by which corrupted units may be more frequent in a sample than in the fleet.
const CHANCE: f64 = 3.0;

/// Result of the rule.
struct Solution {
    theta: DVector<f64>,
    /// P⁻¹.
    design: DMatrix<f64>,
    /// Weights of all units.
    weights: Vec<f64>,
}

/// Result of steps 1 to 5 for the units that remain.
struct Found {
    frame: Frame,
    /// φ⁰.
    start: DVector<f64>,
    /// Axes of the width.
    axes: Vec<DVector<f64>>,
    fit: Fit,
    /// Ellipsoid of φ* − φ.
    width: DMatrix<f64>,
}

impl Found {
    /// `present` are the units that the weights belong to, of `n`.
    fn solution(self, present: &[usize], n: usize) -> Option<Solution> {
        let Self { frame, fit, width, .. } = self;
        let mut weights = vec![0.0; n];
        present.iter().zip(&fit.weights).for_each(|(unit, weight)| weights[*unit] = *weight);
        let theta = frame.factor.tr_solve_lower_triangular(&fit.phi)?;
        // P = L⁻ᵀ·width·L⁻¹, so P⁻¹ = L·width⁻¹·Lᵀ.
        let design = symmetrised(&frame.factor * width.cholesky()?.inverse() * frame.factor.transpose());
        Some(Solution { theta, design, weights })
    }
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

    /// Runs all steps.
    fn solve(&mut self, streams: &Streams, episode: u32) -> Option<Solution> {
        let n = streams.gram.len();
        let a = self.assumptions.corruption;
        let most = (a * n as f64).floor() as usize;
        let Some(rows) = sample(streams) else {
            let (found, present) = self.search(streams, episode, most)?;
            return found.solution(&present, n);
        };
        let size = rows.len() as f64;
        let limit = (a * size + CHANCE * (a * (1.0 - a) * size).sqrt()) as usize;
        // Each keeps its buffers.
        mem::swap(&mut self.units, &mut self.sample);
        let searched = self.search(&streams.select(&rows)?, episode, limit);
        mem::swap(&mut self.units, &mut self.sample);
        let (searched, _) = searched?;
        let (lambda, added) = self.priors(episode, streams.dimension());
        self.units.complete(streams, &searched.frame, added);
        let honest = self.honest(&searched, added, lambda);
        let mut present: Vec<usize> = (0..n).filter(|unit| honest[*unit]).collect();
        if n - present.len() > most {
            present = (0..n).collect();
        } else if present.len() < n {
            self.units.retain(&honest);
        }
        let corruption = self.remaining_corruption(most, n, present.len());
        let Found { frame, start, axes, .. } = searched;
        self.fit(frame, start, Some(axes), corruption, episode)?.solution(&present, n)
    }

    /// Runs steps 1 to 5, and again without units that cannot be honest. Also returns the units that remain.
    fn search(&mut self, streams: &Streams, episode: u32, most: usize) -> Option<(Found, Vec<usize>)> {
        let n = streams.gram.len();
        let (mut present, mut remaining) = ((0..n).collect::<Vec<_>>(), Cow::Borrowed(streams));
        let mut best = None;
        for _ in 0..=REMOVALS {
            let corruption = self.remaining_corruption(most, n, present.len());
            let Some(found) = self.search_once(&remaining, corruption, episode) else { break };
            let (lambda, added) = self.priors(episode, streams.dimension());
            let honest = self.honest(&found, added, lambda);
            let kept: Vec<usize> =
                present.iter().zip(&honest).filter(|(_, honest)| **honest).map(|(unit, _)| *unit).collect();
            let is_last = kept.len() == present.len() || n - kept.len() > most;
            best = Some((found, present));
            // More than there can be: then the ellipsoid missed θ*, and stays as wide as it is.
            if is_last {
                break;
            }
            remaining = Cow::Owned(streams.select(&kept)?);
            present = kept;
        }
        best
    }

    /// Returns the share of corrupted units among `present` of `n` units, of which `most` may be corrupted.
    fn remaining_corruption(&self, most: usize, n: usize, present: usize) -> f64 {
        match n - present {
            0 => self.assumptions.corruption,
            gone => ((most - gone) as f64 / present as f64).max(LEAST_CORRUPTION),
        }
    }

    /// Runs steps 1 to 5.
    fn search_once(&mut self, streams: &Streams, corruption: f64, episode: u32) -> Option<Found> {
        let (lambda, added) = self.priors(episode, streams.dimension());
        let frame = self.cap.apply(&mut self.units, streams, lambda, corruption)?;
        self.units.complete(streams, &frame, added);
        let mut phi = start(&self.units, self.noise_bound.unwrap_or(self.assumptions.noise))?;
        if let Some(bound) = self.noise_bound {
            let corrupted = (corruption * streams.gram.len() as f64).floor() as usize;
            // Twice, since the start depends a little on R.
            for _ in 0..2 {
                let theta = frame.factor.tr_solve_lower_triangular(&phi)?;
                self.assumptions.noise = noise::estimate(streams, &theta, corrupted, bound);
                phi = start(&self.units, self.assumptions.noise)?;
            }
            let (_, added) = self.priors(episode, streams.dimension());
            self.units.complete(streams, &frame, added);
        }
        self.fit(frame, phi, None, corruption, episode)
    }

    /// Runs steps 4 and 5. Searches axes unless they are known.
    fn fit(
        &self,
        frame: Frame,
        start: DVector<f64>,
        axes: Option<Vec<DVector<f64>>>,
        corruption: f64,
        episode: u32,
    ) -> Option<Found> {
        let (lambda, added) = self.priors(episode, self.units.d);
        let gate = gate(&self.units, &start, corruption, self.reach(added, lambda));
        let fit = filter(&self.units, &gate, corruption, self.assumptions.noise)?;
        let axes = axes.unwrap_or_else(|| width::axes(&self.units, &fit, corruption));
        let problem = Problem { units: &self.units, frame: &frame, fit: &fit, gate: &gate, axes: &axes };
        let width = width::width(&problem, corruption, &self.assumptions);
        Some(Found { frame, start, axes, fit, width })
    }

    /// Bound on the noise of D_i^{−1/2}z_i along any direction.
    fn reach(&self, added: f64, lambda: f64) -> f64 {
        let Assumptions { noise, stream_noise, .. } = self.assumptions;
        // D_i^{−1/2}B_iL⁻¹L⁻ᵀB_iD_i^{−1/2} is at most I/λ. Without privacy, the bias does not count as noise.
        if stream_noise.is_some() { noise * (1.0 + added.max(0.0) / lambda).sqrt() } else { noise }
    }

    /// Returns for each unit if its own noise and the ellipsoid together permit its residual.
    fn honest(&self, found: &Found, added: f64, lambda: f64) -> Vec<bool> {
        let (d, n) = (self.units.d as f64, self.units.len() as f64);
        let own = self.reach(added, lambda) * (d.sqrt() + (2.0 * (10.0 * n).ln()).sqrt())
            + lambda.sqrt() * self.assumptions.theta_bound;
        let reach = self.units.inner(&found.width);
        let distances = self.units.distances_squared(&found.fit.phi);
        distances.iter().zip(reach).map(|(square, reach)| square.sqrt() <= own + reach.max(0.0).sqrt()).collect()
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
    for value in weighted_sum(streams.feature_sum.values(), &vec![1.0; n]) {
        hash.update(&value.to_le_bytes());
    }
    let mut draws = vec![0; SAMPLE * size_of::<u64>()];
    hash.finalize_xof().fill(&mut draws);
    let draw = |(section, draw): (usize, &[u8; 8])| {
        let (first, next) = (section * n / SAMPLE, (section + 1) * n / SAMPLE);
        // The remainder's bias is below 2⁻³².
        first + (u64::from_le_bytes(*draw) % (next - first) as u64) as usize
    };
    Some(draws.as_chunks().0.iter().enumerate().map(draw).collect())
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
        let gram = certify(&streams.gram, weighted_sum(streams.gram.values(), &weights));
        let feature_sum = certify(&streams.feature_sum, weighted_sum(streams.feature_sum.values(), &weights));
        let (lambda, _) = self.priors(episode, streams.dimension());
        Ok(Estimate { parameters, lambda, raised: raised.unwrap_or(0), gram, feature_sum, prior: None })
    }

    fn warm_start(&self) -> WarmStart {
        WarmStart { vectors: vec![vec![self.assumptions.noise], self.cap.level()], parts: Vec::new() }
    }

    fn set_warm_start(&mut self, start: WarmStart) {
        if let [noise, level] = &start.vectors[..] {
            self.cap = Cap::at_level(level);
            self.assumptions.noise = noise.first().copied().unwrap_or(self.assumptions.noise);
        }
    }
}
