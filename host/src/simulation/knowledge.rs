//! Knowledge of the attackers in an episode, and the messages that they compute from it.

use fedbandit_core::packed_len;
use nalgebra::{DMatrix, DVector};

use super::attack::Attack;
use super::fleet::Summaries;
use super::forged_summary::{ForgedSummary, unpacked};
use crate::math::{normal, symmetric};

/// Knowledge of the attackers in an episode. Symbols are those of [`Attack`].
pub(super) struct Knowledge {
    episode_len: f64,
    reward_bound: Option<f64>,
    /// n and f.
    agents: (usize, usize),
    theta: DVector<f64>,
    /// (Ū, ū).
    mean: ForgedSummary,
    /// s.
    deviation: DVector<f64>,
    /// q.
    weak: DVector<f64>,
    /// Up to [`SAMPLE`] honest messages.
    sample: Vec<ForgedSummary>,
}

/// Number of honest messages that are compared with each other.
const SAMPLE: usize = 200;

impl Knowledge {
    /// Summarises the honest messages of this episode and the mean of the honest Gram matrices before it. `agents` is n and f, and
    /// `honest` the rows of these messages.
    pub(super) fn new(
        (episode_len, reward_bound): (u32, Option<f64>),
        theta: &[f64],
        agents: (usize, usize),
        honest: &[usize],
        summaries: &Summaries,
        explored: &DMatrix<f64>,
    ) -> Self {
        let d = theta.len();
        let mut mean = zero(d);
        let mut squares = vec![0.0; d];
        for &agent in honest {
            let (gram, feature_sum) = summaries.row(agent);
            mean.gram.iter_mut().zip(gram).for_each(|(sum, value)| *sum += f64::from(*value));
            mean.feature_sum.iter_mut().zip(feature_sum).for_each(|(sum, value)| *sum += f64::from(*value));
            squares.iter_mut().zip(feature_sum).for_each(|(sum, value)| *sum += f64::from(*value).powi(2));
        }
        let n = honest.len().max(1) as f64;
        mean.gram.iter_mut().chain(&mut mean.feature_sum).chain(&mut squares).for_each(|sum| *sum /= n);
        let variances = squares.iter().zip(&mean.feature_sum).map(|(square, mean)| (square - mean * mean).max(0.0));
        let theta = DVector::from_column_slice(theta);
        let sample = honest.iter().step_by(honest.len().div_ceil(SAMPLE).max(1));
        Self {
            episode_len: episode_len.into(),
            reward_bound,
            agents,
            deviation: DVector::from_iterator(d, variances.map(f64::sqrt)),
            weak: least_explored(explored, &theta),
            theta,
            sample: sample.map(|agent| ForgedSummary::own(summaries, *agent)).collect(),
            mean,
        }
    }

    /// Returns Ū.
    pub(super) fn mean_gram(&self) -> DMatrix<f64> {
        unpacked(&self.mean.gram, self.theta.len())
    }

    /// Returns θ*.
    pub(super) fn theta(&self) -> &DVector<f64> {
        &self.theta
    }

    /// Returns L.
    pub(super) fn episode_len(&self) -> f64 {
        self.episode_len
    }

    /// Returns r_max.
    pub(super) fn reward_bound(&self) -> Option<f64> {
        self.reward_bound
    }

    /// Returns w.
    fn best(&self) -> DVector<f64> {
        self.theta.normalize()
    }

    /// Returns ū.
    fn mean_sum(&self) -> DVector<f64> {
        DVector::from_column_slice(&self.mean.feature_sum)
    }

    /// Returns (Ū, u).
    fn with_mean_gram(&self, feature_sum: DVector<f64>) -> ForgedSummary {
        ForgedSummary { gram: self.mean.gram.clone(), feature_sum: feature_sum.as_slice().to_vec() }
    }

    /// Returns (Ū/c, u).
    fn with_divided_gram(&self, divisor: f64, feature_sum: DVector<f64>) -> ForgedSummary {
        let gram = self.mean.gram.iter().map(|value| value / divisor).collect();
        ForgedSummary { gram, feature_sum: feature_sum.as_slice().to_vec() }
    }

    /// Returns (L·qqᵀ, −L·qqᵀθ*).
    fn inflated(&self) -> ForgedSummary {
        let q = &self.weak;
        let gram = (q * q.transpose()) * self.episode_len;
        let feature_sum = &gram * &self.theta * -1.0;
        ForgedSummary { gram: symmetric::pack(&gram).collect(), feature_sum: feature_sum.as_slice().to_vec() }
    }

    /// Returns (Ū/100, −ū).
    fn deflated(&self) -> ForgedSummary {
        self.with_divided_gram(100.0, -self.mean_sum())
    }

    fn min_max(&self) -> ForgedSummary {
        let rows: Vec<_> = self.sample.iter().map(|honest| DVector::from_column_slice(&honest.feature_sum)).collect();
        let pairs = rows.iter().enumerate().flat_map(|(i, a)| rows[..i].iter().map(move |b| (a - b).norm()));
        let widest = pairs.fold(0.0, f64::max);
        let at = |gamma: f64| self.mean_sum() - &self.deviation * gamma;
        let fits = |gamma: f64| rows.iter().all(|row| (at(gamma) - row).norm() <= widest);
        let (mut low, mut high) = (0.0, 1e3);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            *if fits(middle) { &mut low } else { &mut high } = middle;
        }
        self.with_mean_gram(at(low))
    }

    fn a_little_is_enough(&self) -> ForgedSummary {
        let (n, f) = self.agents;
        let supporters = (n / 2 + 1).saturating_sub(f);
        let share = (n - f).saturating_sub(supporters) as f64 / (n - f).max(1) as f64;
        let mean = self.mean_sum();
        let shift = self.deviation.component_mul(&mean.map(f64::signum)) * normal::quantile(share).max(0.0);
        self.with_mean_gram(mean - shift)
    }

    /// Scales u down until uᵀU⁻¹u ≤ r_max²·L, with a margin for rounding, including that to f32 on the wire.
    ///
    /// Admission shifts U by more than this does: its 3δ is at least 69·2⁻²⁴.
    pub(super) fn make_consistent(&self, mut message: ForgedSummary) -> ForgedSummary {
        let Some(bound) = self.reward_bound else { return message };
        let d = self.theta.len();
        let gram = symmetric::shifted(&unpacked(&message.gram, d), 1e-7 * self.episode_len);
        let u = DVector::from_column_slice(&message.feature_sum);
        let form = gram.cholesky().map_or(f64::INFINITY, |factor| u.dot(&factor.solve(&u)));
        let factor = (bound * bound * self.episode_len / form).sqrt().min(1.0) * 0.999;
        message.feature_sum.iter_mut().for_each(|value| *value *= factor);
        message
    }

    /// Returns the message of `adaptive`: the one with the highest score.
    fn search(&self, score: &mut dyn FnMut(&ForgedSummary) -> f64) -> ForgedSummary {
        let (length, mean) = (self.episode_len, self.mean_sum());
        let mixed = (self.best() + &self.weak).normalize();
        let mut best = (f64::NEG_INFINITY, self.mean.clone());
        let mut offer = |message: ForgedSummary| {
            let message = self.make_consistent(message);
            let score = score(&message);
            if score > best.0 {
                best = (score, message);
                return true;
            }
            false
        };
        let sums = [-&mean, DVector::zeros(mean.len()), &mean * -2.0, self.best() * (-10.0 * length)];
        for feature_sum in sums {
            offer(self.with_mean_gram(feature_sum));
        }
        let zero = zero(mean.len());
        for message in [zero, self.inflated(), self.deflated(), self.a_little_is_enough(), self.min_max()] {
            offer(message);
        }
        let mut found = None;
        for direction in [self.best(), self.weak.clone(), mixed] {
            for push in [0.05, 0.3, 1.0, 3.0] {
                if offer(self.with_mean_gram(&mean - &direction * (push * length))) {
                    found = Some((direction.clone(), push));
                }
            }
        }
        if let Some((direction, push)) = found {
            for factor in [0.4, 0.6, 0.8, 1.3, 1.7, 2.2] {
                offer(self.with_mean_gram(&mean - &direction * (factor * push * length)));
            }
        }
        best.1
    }

    /// Returns the message of all colluders, or `None` if each sends its own.
    pub(super) fn common(&self, attack: Attack, score: &mut dyn FnMut(&ForgedSummary) -> f64) -> Option<ForgedSummary> {
        let (length, mean) = (self.episode_len, self.mean_sum());
        let message = match attack {
            Attack::Huge => return Some(self.with_mean_gram(self.best() * (-1e6 * length))),
            Attack::NonFinite => {
                let mut message = self.mean.clone();
                message.gram[0] = f64::INFINITY;
                message.feature_sum[0] = f64::NAN;
                return Some(message);
            }
            Attack::NonPsd => return Some(self.with_divided_gram(-1.0, mean)),
            Attack::Zero => zero(mean.len()),
            Attack::Collude | Attack::Intermittent => self.with_mean_gram(self.best() * (-10.0 * length)),
            Attack::ALittleIsEnough => self.a_little_is_enough(),
            Attack::InnerProduct => self.with_mean_gram(mean * -2.0),
            Attack::MinMax => self.min_max(),
            Attack::Mimic => self.sample.first().cloned()?,
            Attack::GramInflate => self.inflated(),
            Attack::GramDeflate => self.deflated(),
            Attack::WeakDirection => self.with_mean_gram(mean - &self.weak * length),
            Attack::Adaptive | Attack::Sleeper | Attack::Optimal | Attack::OptimalSleeper => self.search(score),
            Attack::None
            | Attack::SignFlip
            | Attack::FakeParameter
            | Attack::Asymmetric
            | Attack::Replay
            | Attack::Silent
            | Attack::Claim
            | Attack::HostileController => return None,
        };
        Some(self.make_consistent(message))
    }
}

fn zero(dimension: usize) -> ForgedSummary {
    ForgedSummary { gram: vec![0.0; packed_len(dimension)], feature_sum: vec![0.0; dimension] }
}

/// Returns q.
fn least_explored(explored: &DMatrix<f64>, theta: &DVector<f64>) -> DVector<f64> {
    let pairs = symmetric::eigenpairs(explored);
    let least = pairs.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    let vector = least.map_or_else(|| theta.normalize(), |(_, vector)| vector);
    if vector.dot(theta) < 0.0 { -vector } else { vector }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Admission, Level};

    const LENGTH: u32 = 16;

    /// Three honest agents and two corrupted ones in two dimensions, after some exploration.
    fn knowledge(reward_bound: Option<f64>) -> Knowledge {
        let rows = [[9.0, 1.0, 4.0, 3.0, 1.0], [8.0, -1.0, 5.0, 2.0, 2.0], [10.0, 0.0, 3.0, 4.0, 0.0]];
        let values: Vec<f32> = rows.into_iter().flatten().collect();
        let summaries = Summaries::of(2, values);
        let explored = DMatrix::from_diagonal(&DVector::from_vec(vec![900.0, 400.0]));
        Knowledge::new((LENGTH, reward_bound), &[0.6, -0.8], (5, 2), &[0, 1, 2], &summaries, &explored)
    }

    fn sent(attack: Attack, reward_bound: Option<f64>) -> ForgedSummary {
        knowledge(reward_bound).common(attack, &mut |_| 0.0).unwrap()
    }

    fn assert_close(actual: &[f64], expected: &[f64]) {
        let far = actual.iter().zip(expected).any(|(a, b)| !((a - b).abs() < 1e-9));
        assert!(!far && actual.len() == expected.len(), "got {actual:?}, expected {expected:?}");
    }

    /// By hand: Ū = (9, 0, 4), ū = (3, 1), s = √(2/3) in both coordinates, w = (0.6, −0.8), q = −e₂.
    #[test]
    fn messages_match_formulas() {
        let mean = [9.0, 0.0, 4.0];
        let deviation = (2.0_f64 / 3.0).sqrt();
        let expect = |attack, gram: [f64; 3], feature_sum: [f64; 2]| {
            let message = sent(attack, None);
            assert_close(&message.gram, &gram);
            assert_close(&message.feature_sum, &feature_sum);
        };
        expect(Attack::Zero, [0.0; 3], [0.0; 2]);
        expect(Attack::Huge, mean, [-0.6e6 * 16.0, 0.8e6 * 16.0]);
        expect(Attack::NonPsd, [-9.0, 0.0, -4.0], [3.0, 1.0]);
        expect(Attack::Collude, mean, [-96.0, 128.0]);
        expect(Attack::InnerProduct, mean, [-6.0, -2.0]);
        expect(Attack::Mimic, [9.0, 1.0, 4.0], [3.0, 1.0]);
        expect(Attack::GramInflate, [0.0, 0.0, 16.0], [0.0, 12.8]);
        expect(Attack::GramDeflate, [0.09, 0.0, 0.04], [-3.0, -1.0]);
        expect(Attack::WeakDirection, mean, [3.0, 17.0]);
        // n = 5, f = 2, m = 1: z = Φ⁻¹(2/3) = 0.430727.
        let alie = sent(Attack::ALittleIsEnough, None).feature_sum;
        assert!(
            (alie[0] - (3.0 - 0.430_727 * deviation)).abs() < 1e-5
                && (alie[1] - (1.0 - 0.430_727 * deviation)).abs() < 1e-5
        );
    }

    /// The largest distance between two honest messages is 2√2.
    #[test]
    fn min_max_reaches_the_largest_honest_distance() {
        let message = sent(Attack::MinMax, None);
        let farthest = |u: &[f64]| {
            let honest = [[3.0, 1.0], [2.0, 2.0], [4.0, 0.0]];
            honest.iter().map(|h| (h[0] - u[0]).hypot(h[1] - u[1])).fold(0.0, f64::max)
        };
        assert!((farthest(&message.feature_sum) - 8.0_f64.sqrt()).abs() < 1e-9);
        assert!(message.feature_sum[0] < 3.0 && message.feature_sum[1] < 1.0);
    }

    /// With bounded rewards. All messages but those of `zero` also remain far from 0.
    #[test]
    fn consistent_messages_pass_admission() {
        let admission = Admission::new(Level::Strict, 2, LENGTH, Some(1.0), false).unwrap();
        for attack in Attack::ALL {
            let knowledge = knowledge(Some(1.0));
            let Some(message) = knowledge.common(*attack, &mut |message| message.feature_sum[0]) else { continue };
            let passes = admission.check(&message.gram, &message.feature_sum).is_ok();
            assert_eq!(passes, !matches!(attack, Attack::Huge | Attack::NonFinite | Attack::NonPsd), "{attack}");
            let length: f64 = message.feature_sum.iter().map(|u| u * u).sum();
            assert!(*attack == Attack::Zero || !(length < 0.1), "{attack}");
        }
    }

    #[test]
    fn search_returns_the_best_message_tried() {
        let mut tried = Vec::new();
        let score = |message: &ForgedSummary| (message.feature_sum[0] - 1.5).abs().mul_add(-1.0, message.gram[0]);
        let found = knowledge(None).common(Attack::Adaptive, &mut |message| {
            tried.push(message.clone());
            score(message)
        });
        let best = tried.iter().map(score).fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(score(&found.unwrap()), best);
        assert!(tried.len() >= 21);
    }
}
