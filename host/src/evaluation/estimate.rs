//! Estimators of a policy's value, their intervals, and checks of the overlap of two policies.

use serde::Serialize;

use crate::names::named;

/// An event as the estimators see it.
///
/// Let p be the propensity of the logged action, π the target policy and q a model of rewards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// w = π(a|x)/p of the logged action a.
    pub(super) weight: f64,
    /// r.
    pub(super) reward: f64,
    /// p.
    pub(super) propensity: f64,
    /// q(x, a) of the logged action.
    pub(super) predicted: f64,
    /// Σ_b π(b|x)·q(x, b) over all available actions b.
    pub(super) expected: f64,
}

/// Estimator of a policy's value, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimator {
    /// Mean reward of the accepted events. An event is accepted with probability w/M, where M is the largest possible weight in the
    /// log, so that accepted events have the distribution of the target policy.
    Replay,
    /// Inverse propensity score: mean of w·r. Unbiased.
    Ips,
    /// Self-normalised inverse propensity score: Σw·r/Σw. Consistent, and less variable.
    Snips,
    /// Doubly robust: mean of Σ_b π(b)·q(b) + w·(r − q(a)). Unbiased for any q that does not depend on the event.
    DoublyRobust,
}

named!(Estimator, "estimator", Replay = "replay", Ips = "ips", Snips = "snips", DoublyRobust = "dr");

/// Estimated value of a policy: the mean reward of its choices.
///
/// Interval ends are the value ± 1.96 standard errors, by the normal approximation. They are honest if many events with a reward
/// contribute and no single one dominates, which [`Overlap`] checks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The estimator.
    pub estimator: Estimator,
    /// Value; `None` if no event contributes.
    pub value: Option<f64>,
    /// Lower end of the 95 % interval; `None` if fewer than two events contribute, or all contribute alike.
    pub low: Option<f64>,
    /// Upper end of that interval.
    pub high: Option<f64>,
    /// Effective sample size: number of accepted events for [`Estimator::Replay`], else (Σw)²/Σw².
    pub effective: f64,
}

/// 0.975 quantile of the normal distribution.
const QUANTILE: f64 = 1.959_964;

impl Estimate {
    fn new(estimator: Estimator, value: f64, error: f64, effective: f64) -> Self {
        let value = Some(value).filter(|value| value.is_finite());
        // A spread of 0 is not evidence: a log without rewards says little about a rare reward.
        let half = Some(QUANTILE * error).filter(|half| half.is_finite() && *half > 0.0);
        let end = |sign: f64| value.zip(half).map(|(value, half)| value + sign * half);
        Self { estimator, value, low: end(-1.0), high: end(1.0), effective }
    }

    /// Estimates the mean of the rewards of accepted events.
    pub(super) fn replay(rewards: &[f64]) -> Self {
        let (mean, error) = mean_and_error(rewards);
        Self::new(Estimator::Replay, mean, error, rewards.len() as f64)
    }

    /// Estimates by importance weights. `estimator` must be another one than [`Estimator::Replay`].
    pub(super) fn weighted(estimator: Estimator, samples: &[Sample]) -> Self {
        let effective = effective(samples);
        let sum = |value: &dyn Fn(&Sample) -> f64| samples.iter().map(value).sum::<f64>();
        if estimator == Estimator::Snips {
            let total = sum(&|sample| sample.weight);
            let value = sum(&|sample| sample.weight * sample.reward) / total;
            // The delta method, with n/(n − 1) for the estimated value.
            let squares = sum(&|sample| (sample.weight * (sample.reward - value)).powi(2));
            let n = samples.len() as f64;
            return Self::new(estimator, value, (squares * n / (n - 1.0)).sqrt() / total, effective);
        }
        let term = |sample: &Sample| match estimator {
            Estimator::DoublyRobust => sample.expected + sample.weight * (sample.reward - sample.predicted),
            _ => sample.weight * sample.reward,
        };
        let (mean, error) = mean_and_error(&samples.iter().map(term).collect::<Vec<_>>());
        Self::new(estimator, mean, error, effective)
    }
}

/// Returns the mean and its standard error; NaN if there are too few values.
pub(super) fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0) / n).sqrt())
}

/// Returns (Σw)²/Σw², 0 if all weights are 0.
fn effective(samples: &[Sample]) -> f64 {
    let (sum, squares) = samples.iter().fold((0.0, 0.0), |(sum, squares), sample| {
        let w = sample.weight;
        (sum + w, squares + w * w)
    });
    if squares > 0.0 { sum * sum / squares } else { 0.0 }
}

/// Overlap of a policy with the logging policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overlap {
    /// Mean weight. Its expectation is 1 if the log can contain every choice of the policy and its propensities are right.
    pub mean_weight: f64,
    /// Standard error of the mean weight.
    pub mean_weight_error: f64,
    /// Largest weight.
    pub max_weight: f64,
    /// Share of the sum of weights that the largest 1 % of them have.
    pub top_share: f64,
    /// Smallest propensity of a logged action.
    pub min_propensity: f64,
    /// Estimated share of the policy's choices whose propensity is below [`RARE`].
    pub rare_share: f64,
    /// Effective sample size, (Σw)²/Σw².
    pub effective: f64,
    /// Number of events with a weight above 0 and a reward other than 0.
    pub rewarded: usize,
}

/// Propensity below which a choice is rare.
pub const RARE: f64 = 0.01;

impl Overlap {
    pub(super) fn new(samples: &[Sample]) -> Self {
        let mut weights: Vec<f64> = samples.iter().map(|sample| sample.weight).collect();
        let (mean_weight, mean_weight_error) = mean_and_error(&weights);
        weights.sort_by(|a, b| b.total_cmp(a));
        let total = weights.iter().sum::<f64>();
        let share = |part: f64| if total > 0.0 { part / total } else { 0.0 };
        let rare = samples.iter().filter(|sample| sample.propensity < RARE).map(|sample| sample.weight);
        Self {
            mean_weight,
            mean_weight_error,
            max_weight: weights.first().copied().unwrap_or(0.0),
            top_share: share(weights[..weights.len().div_ceil(100)].iter().sum()),
            min_propensity: samples.iter().map(|sample| sample.propensity).fold(1.0, f64::min),
            rare_share: share(rare.fold(0.0, |sum, weight| sum + weight)),
            effective: effective(samples),
            rewarded: samples.iter().filter(|sample| sample.weight > 0.0 && sample.reward != 0.0).count(),
        }
    }

    /// Returns the reasons not to trust the estimates.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !((self.mean_weight - 1.0).abs() <= 4.0 * self.mean_weight_error + 1e-6) {
            let mean = self.mean_weight;
            let reason = "the policy chooses actions that the log lacks, or propensities are wrong";
            warnings.push(format!("weights average {mean:.3} instead of 1: {reason}"));
        }
        if self.effective < 100.0 {
            warnings.push(format!("only {:.0} effective events: intervals are too narrow", self.effective));
        }
        if self.rewarded < 30 {
            let reason = "intervals are too narrow";
            warnings.push(format!("contributing events with a reward other than 0: {}; {reason}", self.rewarded));
        }
        if self.top_share > 0.5 {
            let share = 100.0 * self.top_share;
            warnings
                .push(format!("1 % of the events have {share:.0} % of the weight: a few events decide the estimates"));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    /// Three events with weights 2, 0 and 0.5; all numbers by hand.
    #[test]
    fn estimates_match_their_definitions() {
        let sample = |weight, reward, propensity, predicted, expected| Sample {
            weight,
            reward,
            propensity,
            predicted,
            expected,
        };
        let samples =
            [sample(2.0, 1.0, 0.25, 0.5, 0.4), sample(0.0, 3.0, 0.005, 0.1, 0.2), sample(0.5, -1.0, 0.5, 0.0, 0.3)];
        let of = |estimator| Estimate::weighted(estimator, &samples);
        assert!(close(of(Estimator::Ips).value.unwrap(), 1.5 / 3.0));
        assert!(close(of(Estimator::Snips).value.unwrap(), 1.5 / 2.5));
        assert!(close(of(Estimator::DoublyRobust).value.unwrap(), (1.4 + 0.2 - 0.2) / 3.0));
        assert!(close(of(Estimator::Ips).effective, 6.25 / 4.25));
        // Terms 2, 0 and −0.5 have mean 0.5 and squared differences 2.25 + 0.25 + 1.
        let half = 1.959_964 * (3.5 / 2.0 / 3.0_f64).sqrt();
        let ips = of(Estimator::Ips);
        assert!(close(ips.low.unwrap(), 0.5 - half) && close(ips.high.unwrap(), 0.5 + half));
        // w(r − 0.6) is 0.8, 0 and −0.8.
        let half = 1.959_964 * (1.28_f64 * 3.0 / 2.0).sqrt() / 2.5;
        assert!(close(of(Estimator::Snips).high.unwrap(), 0.6 + half));
        let overlap = Overlap::new(&samples);
        assert!(close(overlap.mean_weight, 2.5 / 3.0) && overlap.max_weight == 2.0 && close(overlap.top_share, 0.8));
        assert!(overlap.min_propensity == 0.005 && overlap.rare_share == 0.0 && overlap.rewarded == 2);
        let replay = Estimate::replay(&[1.0, 0.0, 0.5]);
        assert!(close(replay.value.unwrap(), 0.5) && replay.effective == 3.0);
        assert_eq!(Estimate::replay(&[]).value, None);
        assert_eq!(Estimate::replay(&[1.0]).low, None);
    }

    /// The expectation over the logged action is Σ_a p_a·(Σ_b π_b·q_b + π_a/p_a·(r_a − q_a)) = Σ_a π_a·r_a for any q.
    #[test]
    fn doubly_robust_is_unbiased_for_any_reward_model() {
        let (p, target, r) = ([0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [1.0, -2.0, 0.5]);
        let dot = |a: &[f64; 3], b: &[f64; 3]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for q in [[0.0; 3], [1.0, -2.0, 0.5], [40.0, -7.0, 3.0]] {
            let of = |a: usize| {
                let weight = target[a] / p[a];
                let expected = dot(&target, &q);
                let sample = Sample { weight, reward: r[a], propensity: p[a], predicted: q[a], expected };
                p[a] * Estimate::weighted(Estimator::DoublyRobust, &[sample]).value.unwrap()
            };
            assert!(close((0..3).map(of).sum(), dot(&target, &r)), "{q:?}");
        }
    }
}
