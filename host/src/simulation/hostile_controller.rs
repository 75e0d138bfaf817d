//! Hostile controller: forges a model for each device.
//!
//! It knows θ*, the device's own data, its guard and the state of the guard's prediction test. It tries candidate models on copies
//! of the device's agent, so every rule of the guard is taken into account.

use fedbandit_core::{Agent, GuardedAgent};
use nalgebra::{DMatrix, DVector};
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64;

use super::environment::{Context, World};
use super::fleet::EpisodeSteps;
use super::forged_summary::unpacked;
use super::guard::DeviceAgent;
use crate::algorithm::ModelParameters;
use crate::math::{normal, symmetric};
use crate::names::named;

/// Models that a hostile controller forges, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Forgery {
    /// Searches, for each device and episode, for the model that costs the device the most. Weighs the regret of the episode against
    /// the risk of an alarm, after which the device ignores models.
    #[default]
    Search,
    /// As `search`, whatever the risk of an alarm.
    Reckless,
    /// As `search`, for models that the prediction test is not expected to notice within the run.
    Patient,
    /// The truth for the first half of the run, so that devices explore little, then `search`.
    Sleeper,
    /// −θ* with a tiny width.
    Opposite,
    /// θ = 0 with a huge width.
    Wide,
}

named!(
    Forgery,
    "forgery",
    Search = "search",
    Reckless = "reckless",
    Patient = "patient",
    Sleeper = "sleeper",
    Opposite = "opposite",
    Wide = "wide",
);

/// Number of decision sets on which candidates are tried.
const TRIAL_STEPS: usize = 16;

/// Eigenvalue of Λ of a model with β = 1 that is as certain as a device takes seriously.
const CERTAIN: f64 = 1e5;

/// Number of random changes to the best candidate.
const CHANGES: usize = 24;

/// Controller of one device.
pub(super) struct HostileController<const D: usize> {
    forgery: Forgery,
    /// Share of scout steps of the device.
    scouts: f64,
    /// R.
    noise: f64,
    rng: Pcg64,
    trial: Vec<Context<D>>,
    /// Best candidate of the last episode.
    last: Option<Candidate>,
}

/// A model with β = 1: θ and Λ⁻¹.
#[derive(Clone)]
struct Candidate {
    theta: DVector<f64>,
    covariance: DMatrix<f64>,
}

/// Prospects of a device, per step.
#[derive(Clone, Copy, Default)]
struct Prospect {
    regret: f64,
    /// Mean of the test's increment.
    drift: f64,
    /// Variance of the test's increment.
    variance: f64,
}

impl<const D: usize> HostileController<D> {
    pub(super) fn new(forgery: Forgery, scouts: f32, noise: f32, rng: Pcg64) -> Self {
        Self {
            forgery,
            scouts: scouts.into(),
            noise: noise.into(),
            rng,
            trial: vec![Context::new(); TRIAL_STEPS],
            last: None,
        }
    }

    /// Returns the model for a device at the start of an episode.
    pub(super) fn forge<const T: usize>(
        &mut self,
        agent: &DeviceAgent<D, T>,
        number: u64,
        world: &World,
        steps: EpisodeSteps,
    ) -> ModelParameters {
        let truth = DVector::from_column_slice(&world.theta(steps.start));
        let certain = |theta: DVector<f64>| Candidate::new(theta, 1.0 / CERTAIN);
        let candidate = match (self.forgery, agent) {
            (Forgery::Opposite, _) | (_, DeviceAgent::Plain(_)) => certain(-truth),
            (Forgery::Wide, _) => Candidate::new(truth * 0.0, 1e6),
            (Forgery::Sleeper, _) if steps.start < steps.late => certain(truth),
            (_, DeviceAgent::Guarded(agent)) if agent.ignores_models() => certain(truth),
            (_, DeviceAgent::Guarded(agent)) => {
                for context in &mut self.trial {
                    world.draw(number, steps.start, &mut self.rng, context);
                }
                Search::new(self, agent, truth, steps).run()
            }
        };
        self.last = Some(candidate.clone());
        candidate.parameters().expect("candidates are usable models")
    }
}

impl Candidate {
    fn new(theta: DVector<f64>, variance: f64) -> Self {
        let d = theta.len();
        Self { theta, covariance: DMatrix::from_diagonal_element(d, d, variance) }
    }

    fn parameters(&self) -> Option<ModelParameters> {
        ModelParameters::new(&self.theta, &self.covariance.clone().try_inverse()?, 1.0)
    }
}

/// Search for the best model for a device in an episode.
struct Search<'a, const D: usize, const T: usize> {
    controller: &'a mut HostileController<D>,
    agent: &'a GuardedAgent<D, T>,
    steps: EpisodeSteps,
    truth: DVector<f64>,
    /// θ_l.
    own: DVector<f64>,
    /// Eigenpairs of Λ_l/β_l².
    precision: Vec<(f64, DVector<f64>)>,
    /// Prospect of the device without a model.
    alone: Prospect,
    best: (f64, Candidate),
}

impl<'a, const D: usize, const T: usize> Search<'a, D, T> {
    fn new(
        controller: &'a mut HostileController<D>,
        agent: &'a GuardedAgent<D, T>,
        truth: DVector<f64>,
        steps: EpisodeSteps,
    ) -> Self {
        let own = DVector::from_iterator(D, agent.theta().iter().copied().map(f64::from));
        let (gram, lambda, beta) = agent.own_ellipsoid().expect("simulated rewards are within f32");
        let gram: Vec<f64> = gram.iter().copied().map(f64::from).collect();
        let design = symmetric::shifted(&unpacked(&gram, D), lambda.into()) / f64::from(beta).powi(2);
        let best = (f64::NEG_INFINITY, Candidate::new(truth.clone(), 1.0 / CERTAIN));
        let precision = symmetric::eigenpairs(&design);
        let mut search = Self { controller, agent, steps, truth, own, precision, alone: Prospect::default(), best };
        search.alone = search.prospect(agent);
        search
    }

    fn run(mut self) -> Candidate {
        if let Some(last) = self.controller.last.clone() {
            self.offer(last);
        }
        self.offer_lies();
        self.offer_truths_about_one_action();
        self.offer_exploration();
        self.offer_changes();
        self.best.1
    }

    /// Offers confident lies: towards −θ*, along the axes of the own ellipsoid and against the best actions, as far as the own
    /// ellipsoid reaches.
    fn offer_lies(&mut self) {
        let truth = self.truth.clone();
        let mut directions = vec![-&truth - &self.own, self.apply(&-&truth, |value| value), -&truth];
        for (_, axis) in &self.precision {
            directions.push(axis * -axis.dot(&truth).signum());
        }
        for context in self.controller.trial.iter().take(2) {
            let arms = vectors(context);
            let mean = arms.iter().fold(DVector::zeros(D), |sum, x| sum + x) / arms.len() as f64;
            directions.extend(arms.iter().map(|x| x - &mean));
        }
        for direction in directions {
            for direction in [self.apply(&direction, |value| 1.0 / value), direction] {
                let length = direction.dot(&self.apply(&direction, |value| value)).max(f64::MIN_POSITIVE).sqrt();
                for distance in [0.3, 0.6, 0.95] {
                    let lie = &self.own + &direction * (distance / length);
                    // A lie close to the truth is noticed later.
                    let modest = (&lie + &truth) / 2.0;
                    self.offer(Candidate::new(lie, 1.0 / CERTAIN));
                    self.offer(Candidate::new(modest, 1.0 / CERTAIN));
                }
            }
        }
    }

    /// Offers models that tell the truth about one action and put all others of its decision set just below.
    fn offer_truths_about_one_action(&mut self) {
        for context in self.controller.trial.iter().take(2).cloned().collect::<Vec<_>>() {
            let arms = vectors(&context);
            for (chosen, worth) in context.expected_rewards.iter().enumerate() {
                let mut lie = self.truth.clone();
                for _ in 0..8 {
                    for (index, x) in arms.iter().enumerate() {
                        let wanted = if index == chosen { *worth } else { lie.dot(x).min(worth - 0.02) };
                        lie += x * ((wanted - lie.dot(x)) / x.norm_squared().max(1e-9));
                    }
                }
                self.offer(Candidate::new(lie, 1.0 / CERTAIN));
            }
        }
    }

    /// Offers models whose θ is right or the best lie so far, and whose width is large in one direction.
    fn offer_exploration(&mut self) {
        let mut directions: Vec<DVector<f64>> = self.precision.iter().map(|(_, axis)| axis.clone()).collect();
        directions.extend(self.controller.trial.iter().take(2).flat_map(vectors).map(|x| x.normalize()));
        for theta in [self.truth.clone(), self.best.1.theta.clone()] {
            for q in &directions {
                let variance = q.dot(&self.apply(q, |value| 1.0 / value));
                for factor in [1.0, 2.0, 4.0, 8.0] {
                    let mut candidate = Candidate::new(theta.clone(), 1.0 / CERTAIN);
                    candidate.covariance += q * q.transpose() * (factor * variance);
                    self.offer(candidate);
                }
            }
        }
    }

    /// Offers random changes to the best candidate, in units of the own ellipsoid.
    fn offer_changes(&mut self) {
        for change in 0..CHANGES {
            let mut candidate = self.best.1.clone();
            let step = DVector::from_fn(D, |_, _| StandardNormal.sample(&mut self.controller.rng));
            let step: DVector<f64> = self.apply(&step, |value| 1.0 / value.sqrt()) * (0.3 / (D as f64).sqrt());
            if change % 3 == 2 {
                candidate.covariance += &step * step.transpose();
            } else {
                candidate.theta += step;
            }
            self.offer(candidate);
        }
    }

    /// Applies a function of the matrix Λ_l/β_l² to a vector.
    fn apply(&self, x: &DVector<f64>, function: impl Fn(f64) -> f64) -> DVector<f64> {
        let along = |(value, axis): &(f64, DVector<f64>)| axis * (function(*value) * axis.dot(x));
        self.precision.iter().map(along).fold(DVector::zeros(D), |sum, part| sum + part)
    }

    /// Tries a candidate, and keeps it if it is better.
    fn offer(&mut self, candidate: Candidate) {
        let Some(parameters) = candidate.parameters() else { return };
        let EpisodeSteps { episode, episode_len, .. } = self.steps;
        let mut copy = self.agent.clone();
        if copy.begin(&parameters.model(episode, episode_len, copy.rewards())).is_err() || !copy.follows_controller() {
            return;
        }
        let value = self.value(self.prospect(&copy));
        if value > self.best.0 {
            self.best = (value, candidate);
        }
    }

    /// Returns the prospect of a device that uses an agent, with its scouts.
    fn prospect(&self, agent: &Agent<D>) -> Prospect {
        let mut sum = Prospect::default();
        let theta = DVector::from_iterator(D, agent.theta().iter().copied().map(f64::from));
        for context in &self.controller.trial {
            let arms = &context.arms;
            let [follow, scout] = [agent, self.agent].map(|agent| agent.select(arms).map_or(0, |choice| choice.index));
            for (index, share) in [(follow, 1.0 - self.controller.scouts), (scout, self.controller.scouts)] {
                let x = DVector::from_iterator(D, arms[index].iter().copied().map(f64::from));
                let (error, own) = (x.dot(&(&theta - &self.truth)), x.dot(&(&self.own - &self.truth)));
                let share = share / TRIAL_STEPS as f64;
                sum.regret += share * (context.best_and_random().0 - context.expected_rewards[index]);
                sum.drift += share * (error * error - own * own);
                sum.variance += share * (2.0 * self.controller.noise * (error - own)).powi(2);
            }
        }
        sum
    }

    /// Returns the regret that a prospect promises: that of the episode, less the expected loss by an alarm.
    fn value(&self, prospect: Prospect) -> f64 {
        let (excess, threshold) = self.agent.test_state();
        let margin = f64::from(threshold - excess);
        let count = f64::from(self.steps.count);
        let gain = prospect.regret - self.alone.regret;
        let remaining = 2.0 * f64::from(self.steps.late) - f64::from(self.steps.start);
        let horizon = match self.controller.forgery {
            Forgery::Reckless => return prospect.regret,
            Forgery::Patient => remaining,
            _ => count,
        };
        let risk =
            1.0 - normal::distribution((margin - prospect.drift * horizon) / (prospect.variance * horizon).sqrt());
        let silence = f64::from(self.agent.next_fallback()).min(remaining);
        gain * count - risk * gain.max(0.0) * silence
    }
}

/// Returns the actions of a decision set.
fn vectors<const D: usize>(context: &Context<D>) -> Vec<DVector<f64>> {
    context.arms.iter().map(|x| DVector::from_iterator(D, x.iter().copied().map(f64::from))).collect()
}
