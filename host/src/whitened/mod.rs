//! Beyond the paper: a rule in whitened coordinates, with a spectral filter and a width of its own.
//!
//! The paper's rule takes the median of the V̂_i and of the v̂_i in their own units. A direction that is rarely explored then
//! has an error as large as all others, and a width that does not shrink with the number of agents. Here Gram matrices are
//! compared relative to each other and agents by their residuals v̂_i − V̂_iθ, in units of their own noise. What is proven
//! of it and what is not stands in docs/theory.md.

mod kernel;

use nalgebra::{Cholesky, DMatrix, DVector, Dyn};
use rayon::prelude::*;

use crate::aggregate::{
    Aggregate, AggregateError, Aggregator, GeometricMedian, Mean, Points, Tolerance, certify, distance, lower_median,
    median,
};
use crate::normal;
use crate::rule::{Estimate, Parameters, Rule};
use crate::schedule::{StreamNoise, kappa};
use crate::streams::Streams;
use crate::symmetric;

/// How [`Whitened`] finds the centre of whitened points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Centre {
    /// The spectral filter, and a width for each direction.
    Filter,
    /// The geometric median, and one width for all directions.
    Median,
    /// The mean, with the width of the filter: what the rule would do if it knew who is honest. One liar can move it anywhere.
    Mean,
    /// As `Filter`, with the relative medoid of the Gram matrices in place of their median. It takes the square of the number of units.
    Medoid,
}

/// What [`Whitened`] has to be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumptions {
    /// a: the share of units that may be corrupted, below 1/2.
    pub corruption: f64,
    /// R > 0: the reward's noise is R-sub-Gaussian.
    pub noise: f64,
    /// S ≥ ‖θ*‖₂.
    pub theta_bound: f64,
    /// What noise there is in a stream.
    pub stream_noise: Option<StreamNoise>,
}

/// The rules `whitened-filter` and `whitened-median`, for n units, a share a of which may be corrupted:
///
/// 1. G is the geometric median of the V̂_i. Twice, or once if that moves it by no more than [`SETTLED`]: with Λ = G + λI = LLᵀ,
///    G becomes L·GM(L⁻¹V̂_iL⁻ᵀ)·Lᵀ, a median in which all directions count alike. Λ = G + λI, where λ = [`LAMBDA`]. With
///    privacy λ is larger, and L that of Λ plus the variance of the noise in units of R².
/// 2. From θ = 0, up to [`ROUNDS`] times: z_i = L⁻¹(v̂_i − V̂_iθ), m = centre(z_i), θ ← θ + Λ⁻¹(Lm − λθ). The centre is the geometric
///    median in the first round and the filter from then on, and then, if half of the V̂_i are within 1 of their median in the coordinates of
///    step 1, the mean of the V̂_i by its weights, plus λI, stands for Λ: if weights stay, one round is enough. Done when m moves θ by no
///    more than R/100 in the norm of that matrix, or when it would lead away, since agents may explore such different things that rounds do
///    not contract.
/// 3. The filter weighs all z_i alike, but those not at all that are farther from their median than R′((1 + κ)√d + √(2 ln 10n)), with
///    κ = a/√(1 − 2a) for what liars can do to it. R′ is R, or
///    more if their median distance cannot be explained by R and liars far away (see `normal::median_length`): honest units differ by what they
///    have explored, too. While the largest eigenvalue of the weighted covariance C is above 1.1(1 + √(d/W))²R′², W being the sum of weights,
///    weights go down along its eigenvector: with s_i the squared distance there from the median of all units, w_i ← w_i(1 − s_i/max s), again
///    until the variance there is no more than that, or than the second eigenvalue was. (From the mean, which lies between nearly half liars
///    and the honest units, the far side of these would go first.) If less than max(n(1 − 2a), n/4) of W would be left, or after
///    [`PASSES`], the m and C with the least largest eigenvalue relative to (1 + √(d/W))² are taken.
/// 4. The width is an ellipsoid around θ, in the coordinates of the z_i: the sum of four (see `outer_sum`). What liars can do that C does
///    not show, ε/(1 − ε)·(C − (1 − ε)γR²(I − λL⁻¹L⁻ᵀ))₊, where ε is their share of the weight that is left and
///    γ = (1 − √(d/(1 − a)n))²₊ times what the filter left of the honest units' variance; their noise and by how far the filter moved
///    their mean, a ball of radius R′((√d + 2)/√((1 − a)n) + what it moved); the bias, λ²S²L⁻¹L⁻ᵀ; and m − λL⁻¹θ, where that is not 0
///    yet. What the filter did to honest units follows from what it took (see `toll`). The four bound L⁻¹(V̄ + λI)(θ* − θ), where V̄
///    is the honest units' mean with weights. For V̄ + λI stands what the filter's last weights make of all units, divided by 1 − a; along
///    each of its axes, if the V̂_i are not within 1 as above, the mean without the share a that claims most; and Λ where that is more, or with
///    privacy.
///
/// If a share ε of the weight is at distance t from the rest, C along that direction is at least (1 − ε) of the honest units'
/// variance, plus ε(1 − ε)t², and the mean has moved by εt: the covariance that the filter has just made small bounds what was
/// done to the mean. The agent's √(xᵀPx) is its β‖x‖ in the norm of Λ⁻¹, with β = 1 and Λ = P⁻¹, so that nothing changes for
/// devices.
///
/// The answer is a function of the streams, up to the tolerance of the medians: nothing else is kept from one episode to the next.
#[derive(Debug)]
pub struct Whitened {
    centre: Centre,
    assumptions: Assumptions,
    raw: GeometricMedian,
    relative: GeometricMedian,
    residual: GeometricMedian,
    /// The L⁻¹V̂_iL⁻ᵀ, in the scaled packing.
    grams: Vec<f64>,
    /// The z_i.
    residuals: Vec<f64>,
    weights: Vec<f64>,
    /// Of the z_i, from their median or along a direction of the filter.
    deviations: Vec<f64>,
}

/// λ without privacy.
pub const LAMBDA: f64 = 0.1;

/// How often θ is improved at most.
pub const ROUNDS: usize = 6;

/// How often a filter lowers weights at most.
pub const PASSES: usize = 100;

/// How far above the largest eigenvalue of noise alone the filter stops.
const SLACK: f64 = 1.1;

/// How far beyond its root mean square the noise of a mean is allowed for, in deviations of one coordinate.
const TAIL: f64 = 2.0;

/// How many of its deviations the median along a direction is taken to be beyond where liars alone move it.
const UNLUCKY: f64 = 1.0;

/// How far apart half of the V̂_i may be, relative to their median, for the mean of those that are left to stand for all. If agents
/// explore different directions, liars may be all that is left in one.
const ALIKE: f64 = 1.0;

/// How little of Λ the units that are left are taken to have explored.
const THINNEST: f64 = 0.05;

/// Of medians that only choose coordinates.
const COARSE: Tolerance = Tolerance::Relative(1e-3);

/// How far the median of the Gram matrices may move, relative to itself, and be taken as it is.
pub const SETTLED: f64 = 0.01;

const FINE: Tolerance = Tolerance::Relative(1e-6);

/// Rows that a thread takes at a time.
const CHUNK: usize = 256;

impl Whitened {
    /// The rule; see [`Assumptions`] for what makes sense.
    pub fn new(centre: Centre, assumptions: Assumptions) -> Self {
        let [raw, relative, residual] = [COARSE, FINE, FINE].map(GeometricMedian::new);
        let [grams, residuals, weights, deviations] = [const { Vec::new() }; 4];
        Self { centre, assumptions, raw, relative, residual, grams, residuals, weights, deviations }
    }

    /// λ and ν²(1 + S²)/R², where ν is the deviation of the noise in each coordinate of a release: that much it adds to the variance of
    /// a residual, in units of R². λ is such that Λ is not lost in the noise of its own median.
    fn priors(&self, episode: u32, units: usize, dimension: usize) -> (f64, f64) {
        let Assumptions { noise, theta_bound, stream_noise, .. } = self.assumptions;
        let Some(stream_noise) = stream_noise else { return (LAMBDA, 0.0) };
        let one = stream_noise.of_mean(episode, 1.0);
        let added = one.vector.powi(2) * (1.0 + theta_bound.powi(2)) / (dimension as f64 * noise.powi(2));
        (LAMBDA.max(kappa(self.assumptions.corruption) * one.frobenius + one.spectral / (units as f64).sqrt()), added)
    }

    /// G, and the median distance of the V̂_i from it, relative to itself.
    fn gram(&mut self, streams: &Streams, prior: f64) -> Result<(DMatrix<f64>, f64), AggregateError> {
        if self.centre == Centre::Medoid {
            return Ok(self.medoid(streams, prior));
        }
        let (d, p) = (streams.dimension(), streams.gram.dimension());
        let mean = self.centre == Centre::Mean;
        let first = if mean { Mean.aggregate(&streams.gram)? } else { self.raw.aggregate(&streams.gram)? };
        let (mut gram, mut centre) = (symmetric::matrix(&first.point, d), None);
        for _ in 0..if mean { 1 } else { 2 } {
            let Some((factor, _)) = factor(&gram, prior) else { break };
            let inverse = inverse(&factor);
            self.whiten(&streams.gram, &inverse);
            let Ok(points) = Points::new(&self.grams[..], p) else { break };
            let point = if mean { Mean.aggregate(&points)? } else { self.relative.aggregate(&points)? }.point;
            let (rows, relative) = (inverse.matrix(), symmetric::matrix(&point, d));
            let moved = (&relative - &rows * gram * rows.transpose()).norm();
            gram = symmetrised(&factor * relative * factor.transpose());
            centre = Some(point);
            if moved <= SETTLED {
                break;
            }
        }
        let apart = match (centre, Points::new(&self.grams[..], p)) {
            (Some(centre), Ok(points)) => lower_median(points.rows().map(|row| distance(row, &centre)).collect()),
            _ => 0.0,
        };
        Ok((gram, apart))
    }

    /// That V̂_i, with Λ_i = V̂_i + λI = LLᵀ, from which the median of ‖L⁻¹(V̂_j − V̂_i)L⁻ᵀ‖_F over all j is least, and that median;
    /// 0 if there is none.
    fn medoid(&mut self, streams: &Streams, prior: f64) -> (DMatrix<f64>, f64) {
        let (d, p) = (streams.dimension(), streams.gram.dimension());
        let mut best = (DMatrix::zeros(d, d), f64::INFINITY);
        for unit in 0..streams.gram.len() {
            let gram = symmetric::matrix(streams.gram.row(unit), d);
            let Some((factor, _)) = factor(&gram, prior) else { continue };
            self.whiten(&streams.gram, &inverse(&factor));
            let own = &self.grams[unit * p..][..p];
            let apart = lower_median(self.grams.chunks_exact(p).map(|other| distance(other, own)).collect());
            if apart < best.1 {
                best = (gram, apart);
            }
        }
        best
    }

    /// All L⁻¹V̂_iL⁻ᵀ, given L⁻¹.
    fn whiten(&mut self, grams: &Points<'_>, inverse: &Inverse) {
        let p = grams.dimension();
        self.grams.resize(grams.values().len(), 0.0);
        let rows = grams.values().par_chunks(CHUNK * p).zip(self.grams.par_chunks_mut(CHUNK * p));
        rows.for_each(|(grams, whitened)| kernel::whiten(grams, whitened, inverse));
    }

    /// All z_i at θ.
    fn residuals(&mut self, streams: &Streams, inverse: &Inverse, theta: &DVector<f64>) {
        let (d, p) = (theta.len(), streams.gram.dimension());
        self.residuals.resize(streams.feature_sum.values().len(), 0.0);
        let rows = streams.gram.values().par_chunks(CHUNK * p).zip(streams.feature_sum.values().par_chunks(CHUNK * d));
        rows.zip(self.residuals.par_chunks_mut(CHUNK * d)).for_each(|((grams, sums), residuals)| {
            kernel::residuals(grams, sums, residuals, inverse, theta.as_slice());
        });
        // What overflowed counts as nothing, as everywhere.
        self.residuals.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = 0.0);
    }

    /// θ, and the z_i that it was made of.
    fn solve(
        &mut self,
        streams: &Streams,
        Metric { factor, design, lambda }: &Metric,
        alike: bool,
    ) -> Result<(DVector<f64>, Cloud), AggregateError> {
        let d = streams.dimension();
        let inverse = inverse(factor);
        let mut theta = DVector::zeros(d);
        let mut last = Cloud::at(DVector::zeros(d));
        for round in 0..ROUNDS {
            self.residuals(streams, &inverse, &theta);
            let mut centre = match self.centre {
                Centre::Mean => {
                    self.weights.resize(streams.gram.len(), 1.0);
                    self.weighted(&vec![0.0; d])
                }
                Centre::Filter | Centre::Medoid if round > 0 => self.filtered(d)?,
                Centre::Filter | Centre::Medoid | Centre::Median => Cloud::at(self.median(d)?),
            };
            let step = factor * &centre.mean - &theta * *lambda;
            if centre.weight > 0.0 {
                centre.explored = self.explored(streams, *lambda);
            }
            let own = centre.explored.clone().filter(|_| alike).and_then(DMatrix::cholesky);
            let moved = own.as_ref().unwrap_or(design).solve(&step);
            let mut leads_away = false;
            if let Some(explored) = &centre.explored {
                let [before, after] = [step.clone(), &step - explored * &moved].map(|rest| inverse.matrix() * rest);
                leads_away = !(after.norm() <= before.norm());
                centre.rest = if leads_away { before } else { after };
            }
            last = centre;
            if leads_away {
                break;
            }
            theta += &moved;
            if round > 0 && moved.dot(&step) <= (0.01 * self.assumptions.noise).powi(2) {
                break;
            }
        }
        Ok((theta, last))
    }

    /// The mean of the V̂_i with the filter's last weights, plus λI.
    fn explored(&self, streams: &Streams, lambda: f64) -> Option<DMatrix<f64>> {
        let total: f64 = self.weights.iter().sum();
        let mut mean = vec![0.0; streams.gram.dimension()];
        for (gram, weight) in streams.gram.rows().zip(&self.weights) {
            mean.iter_mut().zip(gram).for_each(|(mean, value)| *mean += weight / total * value);
        }
        (total > 0.0).then(|| symmetric::shifted(&symmetric::matrix(&mean, streams.dimension()), lambda))
    }

    fn median(&mut self, d: usize) -> Result<DVector<f64>, AggregateError> {
        let Ok(points) = Points::new(&self.residuals[..], d) else { return Err(AggregateError::Empty) };
        Ok(self.residual.aggregate(&points)?.point.into())
    }

    /// Weight, mean and covariance of the z_i with weights, computed around a point nearby, so that nothing cancels.
    fn weighted(&self, origin: &[f64]) -> Cloud {
        let d = origin.len();
        let (total, sum, squares) = kernel::moments(&self.residuals, &self.weights, origin);
        let offset = DVector::from_vec(sum) / total;
        let squares: Vec<f64> = symmetric::scaled(&squares, d).collect();
        let spread = symmetric::matrix(&squares, d) / total - &offset * offset.transpose();
        Cloud {
            mean: DVector::from_column_slice(origin) + offset,
            spread,
            weight: total,
            noise: self.assumptions.noise,
            taken: 0.0,
            explored: None,
            rest: DVector::zeros(d),
        }
    }

    /// Step 3.
    fn filtered(&mut self, d: usize) -> Result<Cloud, AggregateError> {
        let Assumptions { corruption: a, noise, .. } = self.assumptions;
        let centre = self.median(d)?;
        let n = self.residuals.len() as f64 / d as f64;
        self.deviations.clear();
        self.deviations.extend(self.residuals.chunks_exact(d).map(|row| distance(row, centre.as_slice())));
        let noise = noise.max(lower_median(self.deviations.clone()) / normal::median_length(d as f64, a));
        let far = noise * ((1.0 + kappa(a)) * (d as f64).sqrt() + (2.0 * (10.0 * n).ln()).sqrt());
        self.weights.clear();
        self.weights.extend(self.deviations.iter().map(|distance| f64::from(*distance <= far)));
        let near: f64 = self.weights.iter().sum();
        let least = (n * (1.0 - 2.0 * a)).max(n / 4.0);
        let limit = |weight: f64| limit(d as f64, weight) * noise * noise;
        let mut best: Option<(f64, Cloud)> = None;
        for _ in 0..PASSES {
            let mut cloud = self.weighted(centre.as_slice());
            (cloud.taken, cloud.noise) = (near - cloud.weight, noise);
            let (value, direction) = largest_eigenpair(&cloud.spread);
            if value <= limit(cloud.weight) {
                return Ok(cloud);
            }
            kernel::along(&self.residuals, direction.as_slice(), &mut self.deviations);
            let middle = median(&mut self.deviations.clone());
            self.deviations.iter_mut().for_each(|deviation| *deviation -= middle);
            let second = largest_eigenpair(&(&cloud.spread - &direction * direction.transpose() * value)).0;
            let relative = value / edge(d as f64, cloud.weight);
            if best.as_ref().is_none_or(|(least, _)| relative < *least) {
                best = Some((relative, cloud));
            }
            if !lower(&self.deviations, &mut self.weights, |weight| limit(weight).max(second), least) {
                break;
            }
        }
        best.map(|(_, cloud)| cloud).ok_or(AggregateError::Empty)
    }

    /// P in the coordinates of the z_i.
    fn width(&self, Metric { factor, lambda, .. }: &Metric, cloud: &Cloud, units: f64) -> DMatrix<f64> {
        let Assumptions { corruption: a, noise, theta_bound, .. } = self.assumptions;
        let d = factor.nrows() as f64;
        let rows = inverse(factor).matrix();
        let prior = symmetrised(&rows * rows.transpose() * *lambda);
        let bias = &prior * (lambda * theta_bound.powi(2));
        let ball = |radius: f64| DMatrix::from_diagonal_element(factor.nrows(), factor.nrows(), radius * radius);
        if self.centre == Centre::Median {
            return outer_sum(&[ball(noise * d.sqrt() * (kappa(a) + 1.0 / units.sqrt())), bias]);
        }
        let honest = (1.0 - a) * units;
        let edge = (1.0 - (d / honest).sqrt()).max(0.0).powi(2);
        let Toll { liars, shift, variance } = toll(a, units, d, cloud);
        let shown = (ball(1.0) - prior) * ((1.0 - liars) * edge * variance * noise * noise);
        let hidden = positive_part(&symmetrised(&cloud.spread - shown)) * (liars / (1.0 - liars));
        let rest = &cloud.rest * cloud.rest.transpose();
        outer_sum(&[hidden, ball(cloud.noise * ((d.sqrt() + TAIL) / honest.sqrt() + shift)), bias, rest])
    }

    /// The inverse of what the units that are left have explored, in the coordinates of the z_i: I where that is no less than Λ.
    fn thinned(&self, streams: &Streams, metric: &Metric, explored: &DMatrix<f64>, alike: bool) -> DMatrix<f64> {
        let rows = inverse(&metric.factor).matrix();
        let mut thin = explored * 0.0;
        for (value, vector) in symmetric::eigenpairs(&symmetrised(&rows * explored * rows.transpose())) {
            let value = match alike {
                true => value / (1.0 - self.assumptions.corruption),
                false => self.explored_at_least(streams, &rows.tr_mul(&vector), metric.lambda),
            };
            thin.ger(1.0 / value.clamp(THINNEST, 1.0), &vector, &vector, 1.0);
        }
        thin
    }

    /// The mean of uᵀV̂_iu with the filter's last weights over all but that share a of them where it is most, plus λ‖u‖². If liars have no
    /// more than that share, it is at most that of the honest units, whatever they claim.
    fn explored_at_least(&self, streams: &Streams, u: &DVector<f64>, lambda: f64) -> f64 {
        let outer: Vec<f64> = symmetric::pack(&(u * u.transpose())).collect();
        let outer: Vec<f64> = symmetric::scaled(&outer, u.len()).collect();
        let mut claims = vec![0.0; streams.gram.len()];
        kernel::along(streams.gram.values(), &outer, &mut claims);
        let mut claims: Vec<(f64, f64)> = claims.into_iter().zip(self.weights.iter().copied()).collect();
        claims.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let all = (1.0 - self.assumptions.corruption) * self.weights.iter().sum::<f64>();
        let (mut left, mut sum) = (all, 0.0);
        for (claim, weight) in claims {
            let weight = weight.min(left);
            sum += weight * claim;
            left -= weight;
        }
        sum / all + lambda * u.norm_squared()
    }

    /// θ and its parameters, if a device can use them, and how many eigenvalues were raised for that.
    fn parameters(
        &mut self,
        streams: &Streams,
        metric: &Metric,
        apart: f64,
    ) -> Result<Option<(DVector<f64>, Parameters, usize)>, AggregateError> {
        let alike = apart <= ALIKE;
        let (theta, cloud) = self.solve(streams, metric, alike)?;
        // By how much liars may have moved Λ, relative to itself. With privacy, λ allows for that, and for what few have explored.
        let moved =
            if self.assumptions.stream_noise.is_none() { kappa(self.assumptions.corruption) * apart } else { 0.0 };
        let wider = (1.0 + moved).powi(2);
        let width = self.width(metric, &cloud, streams.gram.len() as f64) * wider;
        let width = match &cloud.explored {
            Some(explored) if self.assumptions.stream_noise.is_none() => {
                let thin = self.thinned(streams, metric, explored, alike);
                symmetrised(&thin * width * &thin)
            }
            _ => width,
        };
        let usable = || {
            // P⁻¹ = (CCᵀ)⁻¹ in coordinates of the z_i; ΛL⁻ᵀ takes it to those of θ.
            let back = metric.factor.solve_lower_triangular(&metric.design.l_dirty().lower_triangle())?;
            let back = back * metric.design.l_dirty().lower_triangle().transpose();
            let design = symmetrised(back.tr_mul(&(width.cholesky()?.inverse() * &back)));
            let (design, raised) = symmetric::raise_eigenvalues(design, 0.0)?;
            Some((theta.clone(), Parameters::new(&theta, &design, 1.0)?, raised))
        };
        Ok(usable())
    }
}

impl Rule for Whitened {
    fn estimate(&mut self, streams: &Streams, episode: u32) -> Result<Estimate, AggregateError> {
        let (d, units) = (streams.dimension(), streams.gram.len());
        if units == 0 {
            return Err(AggregateError::Empty);
        }
        let (lambda, added) = self.priors(episode, units, d);
        let (gram, apart) = self.gram(streams, lambda + added)?;
        let mut sum = vec![0.0; d];
        let (mut parameters, mut raised) = (None, 0);
        if let Some((metric, repaired)) = Metric::new(&gram, lambda, added) {
            raised = repaired;
            if let Some((theta, found, more)) = self.parameters(streams, &metric, apart)? {
                let factor = metric.design.l_dirty().lower_triangle();
                sum = (&factor * factor.tr_mul(&theta)).as_slice().to_vec();
                (parameters, raised) = (Some(found), raised + more);
            }
        }
        let packed: Vec<f64> = symmetric::pack(&gram).collect();
        let packed = symmetric::scaled(&packed, d).collect();
        let gram: Aggregate = certify(&streams.gram, packed);
        Ok(Estimate { parameters, lambda, raised, gram, feature_sum: certify(&streams.feature_sum, sum) })
    }
}

/// What the z_i are measured in.
struct Metric {
    /// L, with LLᵀ = Λ plus what privacy adds.
    factor: DMatrix<f64>,
    /// Λ.
    design: Cholesky<f64, Dyn>,
    /// λ.
    lambda: f64,
}

impl Metric {
    /// From G, and how many eigenvalues had to be raised.
    fn new(gram: &DMatrix<f64>, lambda: f64, added: f64) -> Option<(Self, usize)> {
        let (root, raised) = factor(gram, lambda)?;
        let design = Cholesky::pack_dirty(root.clone());
        let factor = match added > 0.0 {
            true => symmetric::shifted(&(&root * root.transpose()), added).cholesky()?.l(),
            false => root,
        };
        Some((Self { factor, design, lambda }, raised))
    }
}

/// Some of the z_i.
#[derive(Clone, Debug)]
struct Cloud {
    mean: DVector<f64>,
    spread: DMatrix<f64>,
    weight: f64,
    /// R′.
    noise: f64,
    /// What the filter took of the weight of those that are near.
    taken: f64,
    /// What they have explored, with their weights, and λI.
    explored: Option<DMatrix<f64>>,
    /// m − λL⁻¹θ, if they kept their weights: 0 where θ has arrived.
    rest: DVector<f64>,
}

impl Cloud {
    /// A point of which nothing else is known.
    fn at(mean: DVector<f64>) -> Self {
        Self {
            spread: DMatrix::zeros(mean.len(), mean.len()),
            rest: DVector::zeros(mean.len()),
            mean,
            weight: 0.0,
            noise: 0.0,
            taken: 0.0,
            explored: None,
        }
    }
}

/// What a filter did to honest units that are normal along a direction with variance 1, where liars stand as far away as goes unseen.
struct Toll {
    /// The share of liars in the weight that is left.
    liars: f64,
    /// The mean of honest units, and their variance.
    shift: f64,
    variance: f64,
}

/// Weights went down by factors 1 − s/max s, for the squared distance s from a median that liars have moved, as far as they can, by b.
/// That is about e^(−cs), with the c at which as much was taken as it was.
fn toll(a: f64, units: f64, d: f64, cloud: &Cloud) -> Toll {
    let b = normal::median_shift(a, (1.0 - a) * units, UNLUCKY);
    let away = (unseen(a, d, units) - b).max(0.0);
    let after = |c: f64| {
        let (left, shift, variance) = normal::lowered(c, b);
        // Without liars they are infinitely far away.
        let (honest, liars) = ((1.0 - a) * left, if a > 0.0 { a * (-c * away * away).exp() } else { 0.0 });
        (honest + liars, Toll { liars: liars / (honest + liars), shift, variance })
    };
    let (mut low, mut high) = (0.0, 1e3);
    for _ in 0..60 {
        let c = f64::midpoint(low, high);
        *if after(c).0 > 1.0 - cloud.taken / units { &mut low } else { &mut high } = c;
    }
    after(low).1
}

/// How far from honest units liars of a share a go unseen, all at one point: the variance along that direction is 1 − a + a(1 − a)t².
fn unseen(a: f64, d: f64, weight: f64) -> f64 {
    ((limit(d, weight) - (1.0 - a)) / (a * (1.0 - a))).sqrt()
}

/// The largest eigenvalue of a covariance, in units of R′², that the filter leaves as it is.
fn limit(d: f64, weight: f64) -> f64 {
    SLACK * edge(d, weight)
}

/// The largest eigenvalue of the covariance of standard normal units, if they are many.
fn edge(d: f64, weight: f64) -> f64 {
    (1.0 + (d / weight).sqrt()).powi(2)
}

/// Lowers the weights of numbers, those of the farthest from 0 most, until their variance is at most what `limit` allows for the
/// weight that is left; whether any was lowered before less than `least` would have been left.
fn lower(numbers: &[f64], weights: &mut [f64], limit: impl Fn(f64) -> f64, least: f64) -> bool {
    let mut line = kernel::lower(numbers, weights, f64::INFINITY);
    for turn in 0..PASSES {
        // Σw(1 − s/max s).
        let left = line.weight * (1.0 - line.square / line.farthest);
        if (turn > 0 && line.variance <= limit(line.weight)) || !(left >= least) {
            return turn > 0;
        }
        line = kernel::lower(numbers, weights, line.farthest);
    }
    true
}

/// L with LLᵀ = G + λI, and how many eigenvalues of G had to be raised so that this is at least λ/2: none without noise,
/// where G is a mean of Gram matrices.
fn factor(gram: &DMatrix<f64>, lambda: f64) -> Option<(DMatrix<f64>, usize)> {
    if symmetric::shifted(gram, lambda / 2.0).cholesky().is_some() {
        return Some((symmetric::shifted(gram, lambda).cholesky()?.l(), 0));
    }
    let (design, raised) = symmetric::raise_eigenvalues(symmetric::shifted(gram, lambda), lambda / 2.0)?;
    Some((design.cholesky()?.l(), raised))
}

/// L⁻¹.
struct Inverse {
    d: usize,
    rows: Vec<f64>,
}

impl Inverse {
    fn matrix(&self) -> DMatrix<f64> {
        DMatrix::from_row_slice(self.d, self.d, &self.rows)
    }
}

fn inverse(factor: &DMatrix<f64>) -> Inverse {
    let d = factor.nrows();
    let mut inverse = DMatrix::identity(d, d);
    // A Cholesky factor has a positive diagonal.
    factor.solve_lower_triangular_mut(&mut inverse);
    Inverse { d, rows: inverse.transpose().as_slice().to_vec() }
}

fn symmetrised(matrix: DMatrix<f64>) -> DMatrix<f64> {
    (&matrix + matrix.transpose()) * 0.5
}

/// A₊.
fn positive_part(matrix: &DMatrix<f64>) -> DMatrix<f64> {
    let mut positive = DMatrix::zeros(matrix.nrows(), matrix.ncols());
    for (value, vector) in symmetric::eigenpairs(matrix).iter().filter(|(value, _)| *value > 0.0) {
        positive.ger(*value, vector, vector, 1.0);
    }
    positive
}

/// An ellipsoid that holds all sums of points of some ellipsoids {x : xxᵀ ⪯ A_j}: Σt_j·ΣA_j/t_j, with t_j² the largest eigenvalue
/// of A_j.
///
/// For x = Σx_j and any u, (uᵀx)² ≤ (Σ√(uᵀA_ju))² ≤ Σt_j·Σ(uᵀA_ju)/t_j by Cauchy and Schwarz.
fn outer_sum(parts: &[DMatrix<f64>]) -> DMatrix<f64> {
    let extents: Vec<f64> = parts.iter().map(|part| largest_eigenpair(part).0.max(0.0).sqrt()).collect();
    let total: f64 = extents.iter().sum();
    let mut sum = parts[0].clone() * 0.0;
    for (part, extent) in parts.iter().zip(&extents).filter(|(_, extent)| **extent > 0.0) {
        sum += part * (total / extent);
    }
    sum
}

/// The largest eigenvalue of a positive semidefinite matrix, and its unit vector, by a high power of it. The value is at least
/// 1 − ln(d)/1024 of the largest, whatever lies between them.
fn largest_eigenpair(matrix: &DMatrix<f64>) -> (f64, DVector<f64>) {
    let mut power = matrix.clone();
    for _ in 0..SQUARINGS {
        let scale = power.amax();
        if !(scale > 0.0) {
            return (0.0, DVector::zeros(matrix.nrows()));
        }
        power /= scale;
        power = &power * &power;
    }
    let longest = power.column_iter().max_by(|a, b| a.norm_squared().total_cmp(&b.norm_squared()));
    let vector = longest.map_or_else(|| DVector::zeros(matrix.nrows()), |column| column.normalize());
    ((matrix * &vector).dot(&vector), vector)
}

/// 2⁹ = 512.
const SQUARINGS: usize = 9;

#[cfg(test)]
#[expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "the noise of a test")]
mod tests {
    use super::*;
    use rand_distr::{Distribution, StandardNormal};
    use rand_pcg::Pcg64;
    use rand_pcg::rand_core::SeedableRng;

    /// What the filter did to honest units, against what is computed of it, with liars a little farther away than goes unseen.
    #[test]
    fn tolls() {
        let (units, d) = (2000_usize, 8_usize);
        for (a, farther) in [(0.1, 1.1), (0.3, 1.05), (0.3, 1.2), (0.4, 1.1), (0.45, 1.05), (0.45, 1.1)] {
            let assumptions = Assumptions { corruption: a, noise: 1.0, theta_bound: 1.0, stream_noise: None };
            let mut rule = Whitened::new(Centre::Filter, assumptions);
            let mut rng = Pcg64::seed_from_u64(7);
            rule.residuals = (0..units * d).map(|_| StandardNormal.sample(&mut rng)).collect();
            let liars = (a * units as f64) as usize;
            let t = farther * unseen(a, d as f64, units as f64);
            let point: Vec<f64> = (0..d).map(|i| if i == 0 { t } else { 0.0 }).collect();
            rule.residuals.chunks_exact_mut(d).take(liars).for_each(|row| row.copy_from_slice(&point));
            let cloud = rule.filtered(d).unwrap();
            let toll = toll(a, units as f64, d as f64, &cloud);
            let [lies, honest] =
                [&rule.weights[..liars], &rule.weights[liars..]].map(|weights| weights.iter().sum::<f64>());
            let along = rule.residuals.chunks_exact(d).map(|row| row[0]).zip(&rule.weights).skip(liars);
            let shift = along.map(|(x, weight)| x * weight).sum::<f64>() / honest;
            // Never less than it was, and not much more.
            for (was, computed) in [(lies / (lies + honest), toll.liars), (shift, toll.shift)] {
                assert!((was..was + 0.06).contains(&computed), "{a}, {farther}: {computed} for {was}");
            }
        }
    }
}
