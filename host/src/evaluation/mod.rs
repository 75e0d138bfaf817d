//! Offline evaluation: the value of a policy, from a log of another policy's choices.
//!
//! A [`ChoiceLog`] has the available actions, the chosen one, its reward and its propensity. [`evaluate`] estimates the mean reward that
//! other policies would have earned, with intervals and a check of the overlap of both policies.
//!
//! The log is split into its first and second half. Policies and reward models that are fitted on one half are evaluated on the other
//! (cross-fitting), so that no event is predicted by itself. The value is that of the two fitted policies on average.
//!
//! ```
//! use fedbandit::evaluation::{ChoiceLog, Policy, evaluate};
//!
//! // Two actions, each chosen with probability 1/2; only the second one pays.
//! let event = |step: usize, rewards: [&str; 2]| {
//!     let [first, second] = rewards.map(|reward| if reward.is_empty() { ",".into() } else { format!("{reward},0.5") });
//!     format!("{step},1,0,{first}\n{step},0,1,{second}\n")
//! };
//! let events = (0..200).map(|step| event(step, if step % 2 == 0 { ["0", ""] } else { ["", "1"] }));
//! let text = format!("step,x_1,x_2,reward,propensity\n{}", events.collect::<String>());
//! let log = ChoiceLog::parse(&text, true, None)?;
//! let evaluation = evaluate(&log, &[Policy::Uniform, Policy::Greedy], 1, &|_| {});
//! assert_eq!(evaluation.policies[0].estimates[1].value, Some(0.5));
//! assert_eq!(evaluation.policies[1].estimates[1].value, Some(1.0));
//! # Ok::<(), fedbandit::evaluation::ChoiceLogError>(())
//! ```

mod choice_log;
mod csv;
mod estimate;
mod policy;
mod table;
mod vw;

pub use choice_log::{ChoiceLog, ChoiceLogError};
pub use estimate::{Estimate, Estimator, Overlap, RARE};
pub use policy::Policy;
pub use table::text_table;

use serde::Serialize;

use crate::math::rng::{Purpose, generator, uniform};
use estimate::{Sample, mean_and_error};
use policy::{Learner, greedy, learner, predict, ridge};

/// Result of [`evaluate`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Number of events.
    pub events: usize,
    /// Largest number of available actions.
    pub actions: usize,
    /// Dimension of feature vectors.
    pub dimension: usize,
    /// Number of feature pairs; `None` if there are more than dimensions, so that they are hashed.
    pub features: Option<usize>,
    /// Factor that brings feature vectors into the unit ball.
    pub scale: f64,
    /// Mean reward of the logging policy.
    pub logged: f64,
    /// Standard error of that mean; `None` for a single event.
    pub logged_error: Option<f64>,
    /// Evaluated policies.
    pub policies: Vec<PolicyValue>,
}

/// Value of a policy, by several estimators.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyValue {
    /// The policy.
    pub policy: Policy,
    /// Estimates in the order of [`Estimator::ALL`].
    pub estimates: Vec<Estimate>,
    /// Overlap with the logging policy.
    pub overlap: Overlap,
    /// Reasons not to trust the estimates ([`Overlap::warnings`]).
    pub warnings: Vec<String>,
}

/// Number of passes over the events per policy that call `progress`.
const PASSES: usize = 2;

/// Returns the number of events that [`evaluate`] reports to `progress`.
pub fn events_to_process(log: &ChoiceLog, policies: &[Policy]) -> usize {
    PASSES * log.len() * policies.len()
}

/// Evaluates policies on a log. `seed` determines which events are accepted for [`Estimator::Replay`] where propensities differ. That
/// is a part of its error, which does not average out over logs that are evaluated with the same seed.
///
/// [`Policy::LinUcb`] is replayed as it learns, from the first event to the last; the other estimators evaluate its last model,
/// learnt from the accepted events of the other half. `progress` is called with numbers of processed events.
pub fn evaluate(log: &ChoiceLog, policies: &[Policy], seed: u64, progress: &dyn Fn(u64)) -> Evaluation {
    let rewards: Vec<f64> = log.events().iter().map(|event| event.reward).collect();
    let (logged, error) = mean_and_error(&rewards);
    let halves = [0..log.len() / 2, log.len() / 2..log.len()];
    let models = [ridge(log, halves[1].clone()), ridge(log, halves[0].clone())];
    let evaluator = Evaluator { log, seed, scale: root_mean_square(&rewards), models, progress };
    Evaluation {
        events: log.len(),
        actions: log.most_actions(),
        dimension: log.dimension(),
        features: log.features(),
        scale: log.scale(),
        logged,
        logged_error: Some(error).filter(|error| error.is_finite()),
        policies: policies.iter().map(|policy| evaluator.value(*policy)).collect(),
    }
}

fn root_mean_square(values: &[f64]) -> f64 {
    (values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64).sqrt()
}

struct Evaluator<'a> {
    log: &'a ChoiceLog,
    seed: u64,
    /// Root mean square of the rewards.
    scale: f64,
    /// θ of the reward model for each half, fitted on the other half.
    models: [Vec<f64>; 2],
    progress: &'a dyn Fn(u64),
}

impl Evaluator<'_> {
    fn value(&self, policy: Policy) -> PolicyValue {
        let n = self.log.len();
        let halves = [0..n / 2, n / 2..n];
        let mut samples = Vec::with_capacity(n);
        let mut rows = Vec::new();
        for (half, model) in [0, 1].into_iter().zip(&self.models) {
            let learner = (policy == Policy::LinUcb).then(|| self.learn(halves[1 - half].clone()).0);
            for index in halves[half].clone() {
                self.log.rows(index, &mut rows);
                let choice = match &learner {
                    Some(learner) => Some(learner.select(&rows)),
                    None => (policy == Policy::Greedy).then(|| greedy(model, &rows)),
                };
                samples.push(self.sample(index, choice, model, &rows));
                (self.progress)(1);
            }
        }
        let replay = match policy {
            Policy::LinUcb => self.learn(0..n).1,
            _ => self.accept(&samples, policy),
        };
        let weighted = Estimator::ALL[1..].iter().map(|estimator| Estimate::weighted(*estimator, &samples));
        let overlap = Overlap::new(&samples);
        PolicyValue {
            policy,
            estimates: [Estimate::replay(&replay)].into_iter().chain(weighted).collect(),
            warnings: overlap.warnings(),
            overlap,
        }
    }

    /// Evaluates a choice, or the uniform policy without one.
    fn sample(&self, index: usize, choice: Option<usize>, model: &[f64], rows: &[f32]) -> Sample {
        let event = &self.log.events()[index];
        let predictions: Vec<f64> = rows.chunks_exact(model.len()).map(|x| predict(model, x)).collect();
        let count = predictions.len() as f64;
        let (probability, expected) = match choice {
            Some(choice) => (f64::from(u8::from(choice == event.chosen)), predictions[choice]),
            None => (1.0 / count, predictions.iter().sum::<f64>() / count),
        };
        let predicted = predictions[event.chosen];
        let weight = probability / event.propensity;
        Sample { weight, reward: event.reward, propensity: event.propensity, predicted, expected }
    }

    /// Returns the rewards of the events that a fixed policy accepts.
    fn accept(&self, samples: &[Sample], policy: Policy) -> Vec<f64> {
        let possible = self.log.events().iter().map(|event| match policy {
            Policy::Uniform => 1.0 / (event.actions.len() as f64 * event.propensity),
            _ => 1.0 / event.propensity,
        });
        let largest = possible.fold(0.0, f64::max);
        let mut rng = generator(self.seed, Purpose::Rejection, 0);
        let mut accepts = |sample: &&Sample| {
            (self.progress)(1);
            uniform(&mut rng) * largest < sample.weight
        };
        samples.iter().filter(|sample| accepts(sample)).map(|sample| sample.reward).collect()
    }

    /// Replays a learner by rejection. Returns it with the rewards of the accepted events.
    fn learn(&self, events: std::ops::Range<usize>) -> (Box<dyn Learner>, Vec<f64>) {
        let least = self.log.events().iter().map(|event| event.propensity).fold(1.0, f64::min);
        let mut learner = learner(self.log.dimension(), self.scale);
        let mut rng = generator(self.seed, Purpose::Rejection, 0);
        let (mut rows, mut rewards) = (Vec::new(), Vec::new());
        let whole = events.len() == self.log.len();
        for index in events {
            let event = &self.log.events()[index];
            self.log.rows(index, &mut rows);
            let accepted = uniform(&mut rng) * event.propensity < least;
            if accepted && learner.select(&rows) == event.chosen {
                let d = self.log.dimension();
                learner.record(&rows[event.chosen * d..][..d], event.reward);
                rewards.push(event.reward);
            }
            if whole {
                (self.progress)(1);
            }
        }
        (learner, rewards)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use rand_pcg::Pcg64;

    use super::*;
    use crate::math::rng::below;

    /// Rewards of three actions in each of two contexts. They are not linear in the features, so the reward model is wrong.
    const REWARDS: [[f64; 3]; 2] = [[0.2, 0.9, -0.4], [0.7, -0.6, 0.1]];
    /// Propensities of the logging policy.
    const PROPENSITIES: [[f64; 3]; 2] = [[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]];
    const FEATURES: [[&str; 3]; 2] = [["0.9,0.1", "0.2,0.4", "0.1,0.8"], ["0.3,0.3", "0.6,-0.5", "0,-1"]];
    const EVENTS: usize = 400;

    /// Draws a log. Rewards have uniform noise of ±1.
    fn draw(rng: &mut Pcg64) -> ChoiceLog {
        let mut text = String::from("step,x_1,x_2,reward,propensity\n");
        for step in 0..EVENTS {
            let context = below(2, rng);
            let propensities = PROPENSITIES[context];
            let u = uniform(rng);
            let chosen = if u < propensities[0] {
                0
            } else if u < propensities[0] + propensities[1] {
                1
            } else {
                2
            };
            for action in 0..3 {
                let _ = write!(text, "{step},{},", FEATURES[context][action]);
                let _ = if action == chosen {
                    let reward = REWARDS[context][action] + 2.0 * uniform(rng) - 1.0;
                    writeln!(text, "{reward},{}", propensities[action])
                } else {
                    writeln!(text, ",")
                };
            }
        }
        ChoiceLog::parse(&text, true, None).unwrap()
    }

    fn rng() -> Pcg64 {
        generator(5, Purpose::World, 77)
    }

    /// The value of the uniform policy is the mean of all six rewards.
    ///
    /// Coverage is 0.95 up to terms of order 1/n. The binomial probability of less than 0.911 of 2,000 intervals is 8e-8 for a coverage
    /// of 0.94, and that of 0.9775 or more is 1.4e-7 for 0.955. A mean of 2,000 estimates is within 5.3 standard errors with
    /// probability 1 − 1.2e-7. The false-alarm probability of all twelve comparisons is below 1e-6 for each kind.
    #[test]
    fn uniform_policy_is_estimated_without_bias_and_covered() {
        const LOGS: usize = 2000;
        let value = REWARDS.iter().flatten().sum::<f64>() / 6.0;
        let mut rng = rng();
        let mut covered = [0; 4];
        let mut estimates: [Vec<f64>; 4] = Default::default();
        for seed in 0..LOGS {
            let evaluation = evaluate(&draw(&mut rng), &[Policy::Uniform], seed as u64, &|_| {});
            for (index, estimate) in evaluation.policies[0].estimates.iter().enumerate() {
                covered[index] += usize::from(estimate.low.unwrap() <= value && value <= estimate.high.unwrap());
                estimates[index].push(estimate.value.unwrap());
            }
        }
        for ((estimator, covered), estimates) in Estimator::ALL.iter().zip(covered).zip(&estimates) {
            let share = covered as f64 / LOGS as f64;
            assert!((0.911..0.9775).contains(&share), "{estimator} covers {share}");
            let (mean, error) = mean_and_error(estimates);
            // The bias of a ratio is of order 1/n, far below its standard deviation.
            let bias = if *estimator == Estimator::Snips { 1.0 / EVENTS as f64 } else { 0.0 };
            assert!((mean - value).abs() < 5.3 * error + bias, "{estimator}: {mean} ± {error} for {value}");
        }
    }

    /// By definition: each sum is computed from the text again, for the uniform policy and the greedy one of a known model.
    #[test]
    fn estimates_match_naive_sums_over_the_log() {
        let log = draw(&mut rng());
        let halves = [0..EVENTS / 2, EVENTS / 2..EVENTS];
        for policy in [Policy::Uniform, Policy::Greedy] {
            let (mut weighted, mut weights, mut squares, mut robust) = (0.0, 0.0, 0.0, 0.0);
            for half in 0..2 {
                let theta = ridge(&log, halves[1 - half].clone());
                for index in halves[half].clone() {
                    let event = &log.events()[index];
                    let q: Vec<f64> = (0..3).map(|action| predict(&theta, &log.row(index, action))).collect();
                    let best = (0..3).rev().max_by(|a, b| q[*a].total_cmp(&q[*b])).unwrap();
                    let pi = |action: usize| match policy {
                        Policy::Uniform => 1.0 / 3.0,
                        _ => f64::from(u8::from(action == best)),
                    };
                    let w = pi(event.chosen) / event.propensity;
                    weighted += w * event.reward;
                    weights += w;
                    squares += w * w;
                    robust += (0..3).map(|action| pi(action) * q[action]).sum::<f64>();
                    robust += w * (event.reward - q[event.chosen]);
                }
            }
            let n = EVENTS as f64;
            let estimates = evaluate(&log, &[policy], 1, &|_| {}).policies[0].estimates.clone();
            for (estimate, expected) in estimates[1..].iter().zip([weighted / n, weighted / weights, robust / n]) {
                assert!((estimate.value.unwrap() - expected).abs() < 1e-12, "{policy}: {estimate:?} for {expected}");
                assert!((estimate.effective - weights * weights / squares).abs() < 1e-6);
            }
        }
    }

    /// If all propensities are equal, the policy's choice is the only condition for acceptance.
    #[test]
    fn replay_with_equal_propensities_accepts_every_match() {
        let mut text = String::from("step,x_1,x_2,reward,propensity\n");
        for step in 0..300 {
            let rows = if step % 3 == 0 { "S,1,0,1,0.5\nS,0,1,,\n" } else { "S,1,0,,\nS,0,1,0,0.5\n" };
            text += &rows.replace('S', &step.to_string());
        }
        let log = ChoiceLog::parse(&text, true, None).unwrap();
        let evaluation = evaluate(&log, &[Policy::Uniform, Policy::Greedy, Policy::LinUcb], 1, &|_| {});
        let replay = |policy: usize| evaluation.policies[policy].estimates[0];
        assert_eq!((replay(0).effective, replay(0).value), (300.0, Some(1.0 / 3.0)));
        // The first action always pays, so every match of the greedy policy is one of the 100.
        assert_eq!((replay(1).effective, replay(1).value), (100.0, Some(1.0)));
        // The agent learns it too: all but a few of its 100 or so accepted steps pay.
        assert!(replay(2).effective >= 80.0 && replay(2).value.unwrap() > 0.8, "{:?}", replay(2));
        assert!(evaluation.policies[1].warnings.iter().any(|warning| warning.starts_with("weights average 0.667")));
    }

    /// Of each step's three actions, the log never contains the third, which is the best by its features.
    #[test]
    fn missing_actions_are_reported_by_the_mean_weight() {
        let mut text = String::from("step,x_1,x_2,reward,propensity\n");
        for step in 0..1000 {
            let rows = ["S,0.1,0,0.1,0.5\nS,0.3,0,,\nS,1,0,,\n", "S,0.1,0,,\nS,0.3,0,0.3,0.5\nS,1,0,,\n"][step % 2];
            text += &rows.replace('S', &step.to_string());
        }
        let log = ChoiceLog::parse(&text, true, None).unwrap();
        let greedy = &evaluate(&log, &[Policy::Greedy], 1, &|_| {}).policies[0];
        assert_eq!((greedy.overlap.mean_weight, greedy.estimates[2].value), (0.0, None));
        assert!(greedy.warnings[0].starts_with("weights average 0.000 instead of 1"), "{:?}", greedy.warnings);
    }

    /// Random words of all formats. Whatever parses has finite values.
    #[test]
    fn random_text_never_panics() {
        const WORDS: [&str; 26] = [
            "\n",
            "\n",
            ",",
            ",",
            "|",
            "| a\n",
            " ",
            ":",
            "shared |u x:2\n",
            "1:2:0.5 ",
            "1:0:0.25 | b:1e6\n",
            "0",
            "1",
            "0.5",
            "-1",
            "1e15",
            "nan",
            "'t",
            "#",
            "é",
            "1,0.5,1,0.5\n",
            "1,0.25,,\n",
            "2,-1e6,-1e15,1e-9\n",
            "1,0,0.3,a,2\n",
            "0,1,0.5,,0\n",
            "\r",
        ];
        const HEADERS: [&str; 4] = [
            "",
            "step,x_1,reward,propensity\n1,0.1,0,0.5\n1,0.2,,\n",
            "item_id,click,pscore,user_feature_0,user-item_affinity_0\n",
            "shared | c\n0:0:0.5 | a\n| b\n\n",
        ];
        let mut rng = rng();
        let mut parsed = 0;
        for round in 0..20_000 {
            let mut text = String::from(HEADERS[round % HEADERS.len()]);
            for _ in 0..below(12, &mut rng) {
                text += WORDS[below(WORDS.len(), &mut rng)];
            }
            let Ok(log) = ChoiceLog::parse(&text, round % 8 < 4, None) else { continue };
            parsed += 1;
            for value in evaluate(&log, Policy::ALL, 1, &|_| {}).policies {
                let values = value.estimates.iter().flat_map(|estimate| [estimate.value, estimate.low, estimate.high]);
                assert!(values.flatten().all(f64::is_finite), "{text:?}: {value:?}");
            }
        }
        assert!(parsed > 200, "{parsed} texts are logs");
    }
}
