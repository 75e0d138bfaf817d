//! What corrupted agents send.
//!
//! Attackers know everything: θ*, all honest messages and sums, how messages are checked and aggregated. What they send
//! goes through the same admission as every message.

use fedbandit_core::packed_len;
use nalgebra::{DMatrix, DVector};

use super::fleet::Summaries;
use crate::math::normal;
use crate::math::symmetric;
use crate::names::named;

impl Attack {
    /// Whether it tries messages out on the rule.
    pub(super) fn tries(self) -> bool {
        matches!(self, Self::Adaptive | Self::Sleeper) || self.is_optimal()
    }

    pub(super) fn is_optimal(self) -> bool {
        matches!(self, Self::Optimal | Self::OptimalSleeper)
    }
}

/// What corrupted agents do. (U, u) is what an agent's own steps give, (Ū, ū) the mean of the honest messages of the
/// episode, s the deviation of the honest u by coordinate, w = θ*/‖θ*‖, and q the unit vector that honest agents have
/// explored least, with ⟨q, θ*⟩ ≥ 0.
///
/// Where rewards are bounded, u is scaled down so far that it fits its U: admission would count it as zero otherwise.
/// `huge`, `non-finite`, `asymmetric` and `non-psd` do not care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attack {
    /// (U, u): nothing is wrong.
    None,
    /// (U, −u).
    SignFlip,
    /// At each step with probability 1/2, the reward is one of −θ* (Proposition 1). The other steps are not attacked.
    FakeParameter,
    /// (0, 0).
    Zero,
    /// (Ū, −10⁶·L·w).
    Huge,
    /// NaN and ∞.
    NonFinite,
    /// U with L added above the diagonal alone, and −u.
    Asymmetric,
    /// (−Ū, ū): symmetric, and all that the paper checks, but no Gram matrix.
    NonPsd,
    /// (Ū, −10·L·w), the same from all.
    Collude,
    /// (Ū, ū − z·s·sign ū), with z = Φ⁻¹((n − f − m)/(n − f)) and m = ⌊n/2⌋ + 1 − f (Baruch et al. 2019).
    ALittleIsEnough,
    /// (Ū, −2ū) (Xie et al. 2020).
    InnerProduct,
    /// (Ū, ū − γ·s) with the largest γ for which no honest message is farther away than two honest ones are from each other
    /// (Shejwalkar and Houmansadr 2021).
    MinMax,
    /// The message of one honest agent, from all.
    Mimic,
    /// (L·qqᵀ, −L·qqᵀθ*): great certainty about a direction that nobody explored.
    GramInflate,
    /// (Ū/100, −ū): rewards that came of almost nothing.
    GramDeflate,
    /// (Ū, ū − L·q).
    WeakDirection,
    /// The first episode's message, as a stale frame and again as this episode's.
    Replay,
    /// Honest for the first half of the episodes, `adaptive` from then on.
    Sleeper,
    /// `collude` in half of the episodes, drawn for each agent and episode; the others are not attacked.
    Intermittent,
    /// Nothing is sent.
    Silent,
    /// Of some thirty messages, the one after which the rule's next model has the most regret.
    Adaptive,
    /// The messages of `adaptive`, and some sixty ways to place the colluders' sums: by direction, distance, the share of U in one
    /// direction, each with the noise of an honest agent or all the same. The one after which the rule's next model has the
    /// most regret, and comes closest to more.
    Optimal,
    /// Honest for the first half of the episodes, `optimal` from then on.
    OptimalSleeper,
}

named!(
    Attack,
    "attack",
    None = "none",
    SignFlip = "sign-flip",
    FakeParameter = "fake-parameter",
    Zero = "zero",
    Huge = "huge",
    NonFinite = "non-finite",
    Asymmetric = "asymmetric",
    NonPsd = "non-psd",
    Collude = "collude",
    ALittleIsEnough = "a-little-is-enough",
    InnerProduct = "inner-product",
    MinMax = "min-max",
    Mimic = "mimic",
    GramInflate = "gram-inflate",
    GramDeflate = "gram-deflate",
    WeakDirection = "weak-direction",
    Replay = "replay",
    Sleeper = "sleeper",
    Intermittent = "intermittent",
    Silent = "silent",
    Adaptive = "adaptive",
    Optimal = "optimal",
    OptimalSleeper = "optimal-sleeper",
);

/// A message as it is sent: U packed or, if it may be asymmetric, in full.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Message {
    pub(super) gram: Vec<f64>,
    pub(super) feature_sum: Vec<f64>,
}

/// What attackers know in an episode.
pub(super) struct Knowledge {
    episode_len: f64,
    reward_bound: Option<f64>,
    /// n and f.
    agents: (usize, usize),
    theta: DVector<f64>,
    /// (Ū, ū).
    mean: Message,
    /// s.
    deviation: DVector<f64>,
    /// q.
    weak: DVector<f64>,
    /// Some honest messages.
    some: Vec<Message>,
}

/// How many honest messages are compared with each other.
const SOME: usize = 200;

impl Knowledge {
    /// From the honest agents' messages of this episode and the mean of their Gram matrices before it.
    pub(super) fn new(
        (episode_len, reward_bound): (u32, Option<f64>),
        theta: &[f64],
        honest: &[usize],
        corrupted: usize,
        summaries: &Summaries,
        explored: &DMatrix<f64>,
    ) -> Self {
        let d = theta.len();
        let mut mean = Message { gram: vec![0.0; packed_len(d)], feature_sum: vec![0.0; d] };
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
        let some = honest.iter().step_by(honest.len().div_ceil(SOME).max(1));
        Self {
            episode_len: episode_len.into(),
            reward_bound,
            agents: (honest.len() + corrupted, corrupted),
            deviation: DVector::from_iterator(d, variances.map(f64::sqrt)),
            weak: least_explored(explored, &theta),
            theta,
            some: some.map(|agent| Message::own(summaries, *agent)).collect(),
            mean,
        }
    }

    /// Ū.
    pub(super) fn mean_gram(&self) -> DMatrix<f64> {
        full(&self.mean.gram, self.theta.len())
    }

    /// θ*.
    pub(super) fn theta(&self) -> &DVector<f64> {
        &self.theta
    }

    /// L.
    pub(super) fn episode_len(&self) -> f64 {
        self.episode_len
    }

    /// w.
    fn best(&self) -> DVector<f64> {
        self.theta.normalize()
    }

    fn mean_sum(&self) -> DVector<f64> {
        DVector::from_column_slice(&self.mean.feature_sum)
    }

    fn message(&self, gram: &[f64], feature_sum: &DVector<f64>) -> Message {
        Message { gram: gram.to_vec(), feature_sum: feature_sum.as_slice().to_vec() }
    }

    /// (Ū, u).
    fn with_mean_gram(&self, feature_sum: DVector<f64>) -> Message {
        self.message(&self.mean.gram, &feature_sum)
    }

    /// (L·qqᵀ, −L·qqᵀθ*).
    fn inflated(&self) -> Message {
        let q = &self.weak;
        let gram = (q * q.transpose()) * self.episode_len;
        let feature_sum = &gram * &self.theta * -1.0;
        Message { gram: symmetric::pack(&gram).collect(), feature_sum: feature_sum.as_slice().to_vec() }
    }

    /// (Ū/100, −ū).
    fn deflated(&self) -> Message {
        let gram: Vec<f64> = self.mean.gram.iter().map(|value| value / 100.0).collect();
        self.message(&gram, &-self.mean_sum())
    }

    fn min_max(&self) -> Message {
        let rows: Vec<_> = self.some.iter().map(|some| DVector::from_column_slice(&some.feature_sum)).collect();
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

    fn a_little_is_enough(&self) -> Message {
        let (n, f) = self.agents;
        let supporters = (n / 2 + 1).saturating_sub(f);
        let share = (n - f).saturating_sub(supporters) as f64 / (n - f).max(1) as f64;
        let mean = self.mean_sum();
        let shift = self.deviation.component_mul(&mean.map(f64::signum)) * normal::quantile(share).max(0.0);
        self.with_mean_gram(mean - shift)
    }

    /// u scaled down until uᵀU⁻¹u ≤ r_max²·L, by a margin for rounding, that to f32 on a wire included. Admission shifts U as well, by
    /// more: its 3δ is at least 69·2⁻²⁴.
    pub(super) fn fitted(&self, mut message: Message) -> Message {
        let Some(bound) = self.reward_bound else { return message };
        let d = self.theta.len();
        let gram = symmetric::shifted(&full(&message.gram, d), 1e-7 * self.episode_len);
        let u = DVector::from_column_slice(&message.feature_sum);
        let form = gram.cholesky().map_or(f64::INFINITY, |factor| u.dot(&factor.solve(&u)));
        let factor = (bound * bound * self.episode_len / form).sqrt().min(1.0) * 0.999;
        message.feature_sum.iter_mut().for_each(|value| *value *= factor);
        message
    }

    /// Of many messages the one with the highest score.
    fn search(&self, score: &mut dyn FnMut(&Message) -> f64) -> Message {
        let (length, mean) = (self.episode_len, self.mean_sum());
        let mixed = (self.best() + &self.weak).normalize();
        let mut best = (f64::NEG_INFINITY, self.mean.clone());
        let mut offer = |message: Message| {
            let message = self.fitted(message);
            let score = score(&message);
            if score > best.0 {
                best = (score, message);
                return true;
            }
            false
        };
        let others = [-&mean, DVector::zeros(mean.len()), &mean * -2.0, self.best() * (-10.0 * length)];
        for feature_sum in others {
            offer(self.with_mean_gram(feature_sum));
        }
        let zero = Message { gram: vec![0.0; self.mean.gram.len()], feature_sum: vec![0.0; mean.len()] };
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

    /// What all colluders send; none if each sends its own.
    pub(super) fn common(&self, attack: Attack, score: &mut dyn FnMut(&Message) -> f64) -> Option<Message> {
        let (length, mean) = (self.episode_len, self.mean_sum());
        Some(match attack {
            Attack::Huge => return Some(self.with_mean_gram(self.best() * (-1e6 * length))),
            Attack::NonFinite => {
                let mut message = self.mean.clone();
                message.gram[0] = f64::INFINITY;
                message.feature_sum[0] = f64::NAN;
                return Some(message);
            }
            Attack::NonPsd => {
                let gram: Vec<f64> = self.mean.gram.iter().map(|value| -value).collect();
                return Some(self.message(&gram, &mean));
            }
            Attack::Zero => Message { gram: vec![0.0; self.mean.gram.len()], feature_sum: vec![0.0; mean.len()] },
            Attack::Collude | Attack::Intermittent => self.with_mean_gram(self.best() * (-10.0 * length)),
            Attack::ALittleIsEnough => self.a_little_is_enough(),
            Attack::InnerProduct => self.with_mean_gram(mean * -2.0),
            Attack::MinMax => self.min_max(),
            Attack::Mimic => self.some.first().cloned()?,
            Attack::GramInflate => self.inflated(),
            Attack::GramDeflate => self.deflated(),
            Attack::WeakDirection => self.with_mean_gram(mean - &self.weak * length),
            Attack::Adaptive | Attack::Sleeper | Attack::Optimal | Attack::OptimalSleeper => self.search(score),
            Attack::None
            | Attack::SignFlip
            | Attack::FakeParameter
            | Attack::Asymmetric
            | Attack::Replay
            | Attack::Silent => return None,
        })
        .map(|message| self.fitted(message))
    }
}

impl Message {
    /// An agent's own summary.
    pub(super) fn own(summaries: &Summaries, agent: usize) -> Self {
        let (gram, feature_sum) = summaries.row(agent);
        let wide = |values: &[f32]| values.iter().copied().map(f64::from).collect();
        Self { gram: wide(gram), feature_sum: wide(feature_sum) }
    }

    /// (U, −u).
    pub(super) fn flipped(mut self) -> Self {
        self.feature_sum.iter_mut().for_each(|value| *value = -*value);
        self
    }

    /// The full matrix of U with `add` above the diagonal, at the end of the first row, and −u.
    pub(super) fn asymmetric(self, add: f64) -> Self {
        let d = self.feature_sum.len();
        let mut gram = full(&self.gram, d);
        gram[(0, d - 1)] += add;
        let rows = gram.transpose();
        Self { gram: rows.as_slice().to_vec(), ..self.flipped() }
    }
}

/// The matrix of a packed triangle.
pub(super) fn full(packed: &[f64], dimension: usize) -> DMatrix<f64> {
    symmetric::matrix(&symmetric::scaled(packed, dimension).collect::<Vec<_>>(), dimension)
}

/// q, where honest agents have explored so much.
fn least_explored(design: &DMatrix<f64>, theta: &DVector<f64>) -> DVector<f64> {
    let pairs = symmetric::eigenpairs(design);
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
        Knowledge::new((LENGTH, reward_bound), &[0.6, -0.8], &[0, 1, 2], 2, &summaries, &explored)
    }

    fn sent(attack: Attack, reward_bound: Option<f64>) -> Message {
        knowledge(reward_bound).common(attack, &mut |_| 0.0).unwrap()
    }

    fn close(actual: &[f64], expected: &[f64]) {
        let far = actual.iter().zip(expected).any(|(a, b)| !((a - b).abs() < 1e-9));
        assert!(!far && actual.len() == expected.len(), "{actual:?} is not {expected:?}");
    }

    /// By hand: Ū = (9, 0, 4), ū = (3, 1), s = √(2/3) in both coordinates, w = (0.6, −0.8), q = −e₂.
    #[test]
    fn formulas() {
        let mean = [9.0, 0.0, 4.0];
        let deviation = (2.0_f64 / 3.0).sqrt();
        let expect = |attack, gram: [f64; 3], feature_sum: [f64; 2]| {
            let message = sent(attack, None);
            close(&message.gram, &gram);
            close(&message.feature_sum, &feature_sum);
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

    /// The farthest that is no farther from an honest message than these are from each other, 2√2.
    #[test]
    fn min_max_is_as_far_as_it_may_be() {
        let message = sent(Attack::MinMax, None);
        let farthest = |u: &[f64]| {
            let honest = [[3.0, 1.0], [2.0, 2.0], [4.0, 0.0]];
            honest.iter().map(|h| (h[0] - u[0]).hypot(h[1] - u[1])).fold(0.0, f64::max)
        };
        assert!((farthest(&message.feature_sum) - 8.0_f64.sqrt()).abs() < 1e-9);
        assert!(message.feature_sum[0] < 3.0 && message.feature_sum[1] < 1.0);
    }

    /// With bounded rewards, all who care send what admission lets pass; and not because it were nothing.
    #[test]
    fn fitted_messages_pass() {
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

    /// The search returns the best of what it tried.
    #[test]
    fn the_search_keeps_the_best() {
        let mut tried = Vec::new();
        let score = |message: &Message| (message.feature_sum[0] - 1.5).abs().mul_add(-1.0, message.gram[0]);
        let found = knowledge(None).common(Attack::Adaptive, &mut |message| {
            tried.push(message.clone());
            score(message)
        });
        let best = tried.iter().map(score).fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(score(&found.unwrap()), best);
        assert!(tried.len() >= 21);
    }

    #[test]
    fn an_asymmetric_matrix_is_one() {
        let message = Message { gram: vec![1.0, 2.0, 3.0], feature_sum: vec![4.0, 5.0] }.asymmetric(10.0);
        assert_eq!(message.gram, [1.0, 12.0, 2.0, 3.0]);
        assert_eq!(message.feature_sum, [-4.0, -5.0]);
    }
}
