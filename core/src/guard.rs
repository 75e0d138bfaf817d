//! Guarded agent: fuses the controller's confidence ellipsoid with that of the device's own data.
//!
//! `docs/theory.md` proves the formulas. All arithmetic is f32 in a fixed order, so every target computes the same bits.

use core::num::NonZeroU32;
use core::ops::Deref;

use rand_core::Rng;

use crate::action::AsAction;
#[cfg(feature = "wire")]
use crate::agent::Learner;
use crate::agent::{Agent, Choice, Terms};
use crate::error::{ModelError, RecordError, SelectError};
use crate::factor::{factorise, in_range};
use crate::kernel::{add_scaled, dot};
use crate::model::{Model, Prior, Values, packed_len};
use crate::summary::EpisodeSummary;

/// λ of the device's own ridge regression.
const LAMBDA: f32 = 0.1;

/// 2·ln(1/δ) of the own ellipsoid, for δ = 0.1.
const CONFIDENCE: f32 = 4.605_170_2;

/// Factor by which λ grows if the own matrix is too ill-conditioned for f32.
const LAMBDA_STEP: f32 = 16.0;

/// Largest number of such steps.
const MAX_LAMBDA_STEPS: u32 = 12;

/// ln(1/δ) of the gate, for δ = 10⁻². It rejects models with ‖θ_g − θ_l‖²_Λ_l above a bound on the 1 − δ quantile of R²χ²_d.
const GATE: f32 = 4.605_170_2;

/// ln(1/δ) of the prediction test, for δ = 10⁻⁵.
const TEST: f32 = 11.512_925;

/// Number of steps without the controller's models after the first alarm; each further alarm doubles it, up to `u32::MAX`.
const FIRST_FALLBACK: u32 = 1024;

/// Largest number of alarms that halve the threshold of the test.
const MAX_HALVINGS: u8 = 3;

/// Weights of the controller's ellipsoid that a fusion tries, besides 0.
const WEIGHTS: [f32; 4] = [0.1, 0.9, 1.0, 0.5];

/// Smallest 1 − κ, the squared radius of a fused ellipsoid.
const MIN_RADIUS_SQUARED: f32 = 1e-3;

/// Constants of a guard. A controller must not determine them, so they come from the device's identity or its code.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Guard {
    /// R > 0: rewards are R-sub-Gaussian around ⟨x, θ*⟩.
    pub noise: f32,
    /// S > 0: ‖θ*‖₂ ≤ S.
    pub theta_norm: f32,
    /// Longest episode: a lie is found at the end of its episode at the earliest.
    pub max_episode_len: u32,
    /// Half-life H of the own data in steps, for a θ* that drifts. `None` if θ* is constant: all steps then count alike.
    pub half_life: Option<NonZeroU32>,
}

impl Guard {
    /// Returns 2^(−n/H), the factor by which n further steps reduce the weight of the own data.
    fn retention(&self, steps: u32) -> Option<f32> {
        self.half_life.map(|half_life| libm::exp2f(-(steps as f32) / half_life.get() as f32))
    }

    /// Returns true if all constants are positive and in range.
    pub(crate) fn is_valid(&self) -> bool {
        let is_positive = |constant: f32| constant > 0.0 && in_range(constant).is_ok();
        is_positive(self.noise) && is_positive(self.theta_norm) && self.max_episode_len > 0
    }
}

/// Agent that trusts its own data more than the controller.
///
/// It sums up its own actions and rewards over all episodes. Each model is fused with them: the agent then acts on an ellipsoid
/// that contains the intersection of the controller's and its own. If the two do not meet, or the model is too far from the own
/// estimate (the gate), the episode uses the own data alone. If the fused models predicted the rewards significantly worse than the
/// own data, the agent raises an alarm and ignores models for some time. Without a controller it acts on its own data too.
///
/// With a [half-life](Guard::half_life) old steps lose weight, so that the own estimate follows a θ* that drifts. The width β_l
/// does not allow for the drift itself.
///
/// The own data survive a change of the run. If the next run is another learning task, call [`forget`](Self::forget).
///
/// Within an episode it is an [`Agent`], with the same costs. T must be [`packed_len`] of D, the length of a packed triangle; the
/// compiler checks it. RAM: that of the agent and 4·(T + D) + 28 bytes.
///
/// ```
/// use fedbandit_core::{Guard, GuardedAgent, Prior, Rewards, packed_len};
/// let prior = Prior::new(1.0, 1.0, 8, Rewards::Unbounded);
/// let guard = Guard { noise: 0.5, theta_norm: 1.0, max_episode_len: 64, half_life: None };
/// let mut agent = GuardedAgent::<2, { packed_len(2) }>::new(&prior, guard)?;
/// let choice = agent.select(&[[0.0, 0.5], [0.0, 1.0]]).unwrap();
/// assert_eq!(choice.index, 1);
/// agent.record(&[0.0, 1.0], 0.3).unwrap();
/// # Ok::<(), fedbandit_core::ModelError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct GuardedAgent<const D: usize, const T: usize> {
    pub(crate) agent: Agent<D>,
    pub(crate) guard: Guard,
    /// V, packed: Σw·xxᵀ over all finished episodes. A half-life H gives a step the weight w = 2^(−h/H) if h steps were recorded
    /// since the end of its episode; otherwise w = 1.
    pub(crate) gram: [f32; T],
    /// v: Σw·xr over all finished episodes.
    pub(crate) feature_sum: [f32; D],
    /// ℓ of the prediction test.
    pub(crate) excess: f32,
    /// Number of steps for which models are ignored.
    pub(crate) fallback: u32,
    pub(crate) alarms: u8,
    /// True if the running episode uses a fused model.
    pub(crate) follows: bool,
}

/// The device's own estimate, with its factor in the scratch of the caller.
struct Own<const D: usize> {
    theta: [f32; D],
    lambda: f32,
    beta: f32,
}

/// Inverse factor W of a matrix: rows left of the diagonal of `square`, and its diagonal.
struct Factor<const D: usize> {
    square: [[f32; D]; D],
    diagonal: [f32; D],
}

impl<const D: usize, const T: usize> GuardedAgent<D, T> {
    /// Creates an agent in episode 1 without data. Until the first model it acts on its own data, whatever the prior's λ and β.
    ///
    /// # Errors
    /// As [`Agent::new`], a constant of the guard is not positive, or the prior's episode is longer than the guard allows.
    pub fn new(prior: &Prior, guard: Guard) -> Result<Self, ModelError> {
        const { assert!(T == packed_len(D), "T must be packed_len(D)") };
        if !guard.is_valid() {
            return Err(ModelError::OutOfRange);
        }
        let mut agent = Self::with(Agent::new(prior)?, guard);
        if prior.episode_len > guard.max_episode_len {
            return Err(ModelError::EpisodeLen(prior.episode_len));
        }
        agent.use_own_data();
        Ok(agent)
    }

    /// Guards an agent without own data.
    pub(crate) const fn with(agent: Agent<D>, guard: Guard) -> Self {
        let (gram, feature_sum) = ([0.0; T], [0.0; D]);
        Self { agent, guard, gram, feature_sum, excess: 0.0, fallback: 0, alarms: 0, follows: false }
    }

    /// Returns true if the running episode uses the controller's model, fused with own data.
    pub fn follows_controller(&self) -> bool {
        self.follows
    }

    /// Returns the number of alarms of the prediction test, up to 255.
    pub fn alarms(&self) -> u8 {
        self.alarms
    }

    /// Returns true while models are ignored after an alarm.
    pub fn ignores_models(&self) -> bool {
        self.fallback > 0
    }

    /// Returns V, packed, λ and β_l of the own ellipsoid, whose centre is the agent's θ between episodes.
    // Hidden, like the next two: only a simulated adversary needs it.
    #[doc(hidden)]
    pub fn own_ellipsoid(&self) -> Option<(&[f32; T], f32, f32)> {
        self.own(&mut Factor::new()).map(|own| (&self.gram, own.lambda, own.beta))
    }

    /// Returns ℓ of the prediction test and its threshold.
    #[doc(hidden)]
    pub fn test_state(&self) -> (f32, f32) {
        (self.excess, self.threshold())
    }

    /// Returns the number of steps for which models would be ignored after an alarm.
    #[doc(hidden)]
    pub fn next_fallback(&self) -> u32 {
        FIRST_FALLBACK.saturating_mul(2_u32.saturating_pow(self.alarms.into()))
    }

    /// Returns the threshold of the prediction test: 2R² ln(1/δ), halved by each of the first alarms. A controller that lied once is
    /// trusted less.
    fn threshold(&self) -> f32 {
        let halvings = self.alarms.min(MAX_HALVINGS);
        2.0 * self.guard.noise * self.guard.noise * TEST / (1_u32 << halvings) as f32
    }

    /// Fuses the controller's model with the agent's own data, and applies the result. A model after the first recorded step has no
    /// effect.
    ///
    /// Record the reward of a choice before the next model: the test assumes that models do not depend on rewards that they are
    /// judged by.
    ///
    /// Cost: about 13 times that of [`Agent::begin`].
    ///
    /// # Errors
    /// As [`Agent::begin`], or the episode is longer than the guard's limit, or the model changes the reward range of the prior.
    pub fn begin(&mut self, model: &Model<'_>) -> Result<(), ModelError> {
        let terms = self.agent.check(model)?;
        self.apply(model, terms)
    }

    /// Forgets all own data and alarms at once, for another learning task, and discards the running episode's model. For a
    /// parameter that drifts within a task, use [`Guard::half_life`] instead.
    ///
    /// Do not call it at each [`NextRun`](crate::session::Event::NextRun) unless the controller is trusted: a hostile one could
    /// then make the agent forget.
    pub fn forget(&mut self) {
        self.clear();
        (self.fallback, self.alarms) = (0, 0);
        self.use_own_data();
    }

    /// Removes the own data.
    fn clear(&mut self) {
        (self.gram, self.feature_sum, self.excess) = ([0.0; T], [0.0; D], 0.0);
    }

    /// Acts on the own data until the next model.
    fn use_own_data(&mut self) {
        let mut factor = Factor::new();
        let own = self.own_or_none(&mut factor);
        let terms = Terms { theta: own.theta, beta: own.beta, ..self.agent.terms() };
        self.agent.install(&terms, &factor.square, &factor.diagonal);
        self.follows = false;
    }

    fn apply(&mut self, model: &Model<'_>, terms: Terms<D>) -> Result<(), ModelError> {
        if terms.episode_len > self.guard.max_episode_len {
            return Err(ModelError::EpisodeLen(terms.episode_len));
        }
        if terms.rewards != self.agent.rewards() {
            return Err(ModelError::Rewards);
        }
        let mut factor = Factor::new();
        // The model itself must be valid, whatever comes of the fusion.
        factor.of(model.design.iter())?;
        // The test judges the model of the whole episode, so it cannot be exchanged after the first step.
        if self.agent.steps() > 0 {
            return Ok(());
        }
        let own = self.own_or_none(&mut factor);
        let fused = if self.fallback == 0 { self.fuse(model, &terms, &own, &mut factor) } else { None };
        self.follows = fused.is_some();
        let (theta, beta) = match fused {
            Some(fused) => fused,
            None => {
                self.own(&mut factor);
                (own.theta, own.beta)
            }
        };
        self.agent.install(&Terms { theta, beta, ..terms }, &factor.square, &factor.diagonal);
        Ok(())
    }

    /// Returns the own estimate. Own data beyond f32, for example after rewards near its limit, are forgotten.
    fn own_or_none(&mut self, factor: &mut Factor<D>) -> Own<D> {
        if let Some(own) = self.own(factor) {
            return own;
        }
        self.clear();
        // Cannot fail: Λ_l = λI.
        self.own(factor).unwrap_or(Own { theta: [0.0; D], lambda: LAMBDA, beta: self.guard.theta_norm })
    }

    /// Computes θ_l = Λ_l⁻¹v and β_l for Λ_l = λI + V, and leaves the factor of Λ_l. `None` if they are beyond f32.
    ///
    /// β_l = R√(ln det(Λ_l/λ) + 2 ln(1/δ)) + S√λ (Abbasi-Yadkori et al. 2011, Theorem 2). With a half-life the theorem applies to
    /// the actions √w·x with the rewards √w·r, whose noise is R-sub-Gaussian since w ≤ 1. It then covers θ* at each fixed time.
    fn own(&self, factor: &mut Factor<D>) -> Option<Own<D>> {
        let (mut lambda, mut steps) = (LAMBDA, 0);
        while factor.of(self.mixed(None, 1.0, lambda)).is_err() {
            (lambda, steps) = (lambda * LAMBDA_STEP, steps + 1);
            if steps > MAX_LAMBDA_STEPS {
                return None;
            }
        }
        let log_det = factor.diagonal.iter().fold(0.0, |sum, w| sum - libm::logf(w * w * lambda));
        // δ is halved with each step of λ.
        let confidence = CONFIDENCE + 2.0 * core::f32::consts::LN_2 * steps as f32;
        let noise = libm::sqrtf(if log_det > 0.0 { log_det + confidence } else { confidence });
        let beta = self.guard.noise * noise + self.guard.theta_norm * libm::sqrtf(lambda);
        let theta = factor.solve(&self.feature_sum);
        let in_range = theta.iter().chain([&beta]).all(|value| in_range(*value).is_ok());
        in_range.then_some(Own { theta, lambda, beta })
    }

    /// Fuses the ellipsoids {θ: ‖θ − θ_g‖_A ≤ 1} of the model and {θ: ‖θ − θ_l‖_B ≤ 1} of the own data. Returns θ_c and β_c with
    /// the factor of Λ_c, or `None` if the own ellipsoid is better, the two do not meet, or the gate rejects the model:
    /// ‖θ_g − θ_l‖²_Λ_l > R²(d + 2√(d·ln(1/δ)) + 2·ln(1/δ)).
    ///
    /// With A and B in units of β_l², the fused set of weight w is Λ_c = wA + (1 − w)B, θ_c = Λ_c⁻¹(wAθ_g + (1 − w)Bθ_l) and
    /// β_c² = β_l²(1 − κ), κ = w(1 − w)·ΔᵀAΛ_c⁻¹BΔ/β_l², Δ = θ_g − θ_l. It contains the intersection for every w, and the
    /// ellipsoids are disjoint if κ > 1. The weight minimises (1 − κ)·tr(Λ_c⁻¹(V + I)): the width along actions played so far.
    fn fuse(
        &self,
        model: &Model<'_>,
        terms: &Terms<D>,
        own: &Own<D>,
        factor: &mut Factor<D>,
    ) -> Option<([f32; D], f32)> {
        let ratio = own.beta / if terms.beta > 1e-3 * own.beta { terms.beta } else { 1e-3 * own.beta };
        let scale = ratio * ratio;
        let mut delta = terms.theta;
        add_scaled(&mut delta, -1.0, &own.theta);
        let a_delta = product(self.mixed(Some((model.design, scale)), 0.0, 0.0), &delta);
        let b_delta = product(self.mixed(None, 1.0, own.lambda), &delta);
        if dot(&delta, &b_delta) > self.guard.noise * self.guard.noise * largest_deviation(D as f32) {
            return None;
        }
        let mixture = |weight: f32| self.mixed(Some((model.design, scale * weight)), 1.0 - weight, own.lambda);
        let mut best = (0.0, 0.0, factor.trace(&self.gram));
        let mut last = 0.0;
        for weight in WEIGHTS {
            if factor.of(mixture(weight)).is_err() {
                continue;
            }
            last = weight;
            let (y, z) = (factor.whiten(&a_delta), factor.whiten(&b_delta));
            let kappa = weight * (1.0 - weight) * dot(&y, &z) / (own.beta * own.beta);
            if !(kappa <= 1.0) {
                return None;
            }
            let radius_squared = (1.0 - kappa).max(MIN_RADIUS_SQUARED);
            let cost = radius_squared * factor.trace(&self.gram);
            let (_, _, least) = best;
            if cost < least {
                best = (weight, radius_squared, cost);
            }
        }
        let (weight, radius_squared, _) = best;
        if weight == 0.0 {
            return None;
        }
        if weight != last {
            factor.of(mixture(weight)).ok()?;
        }
        // Bθ_l = v.
        let mut sum = product(self.mixed(Some((model.design, scale * weight)), 0.0, 0.0), &terms.theta);
        add_scaled(&mut sum, 1.0 - weight, &self.feature_sum);
        let (theta, beta) = (factor.solve(&sum), own.beta * libm::sqrtf(radius_squared));
        let in_range = theta.iter().all(|value| in_range(*value).is_ok());
        in_range.then_some((theta, beta))
    }

    /// Iterates over the packed triangle of a·Λ_g + b·(V + λI), for a design Λ_g.
    fn mixed<'a>(
        &'a self,
        global: Option<(Values<'a>, f32)>,
        local: f32,
        lambda: f32,
    ) -> impl Iterator<Item = f32> + 'a {
        let (design, scale) = global.unwrap_or((Values::Native(&[]), 0.0));
        let mut design = design.iter();
        let entries = rows::<D>(&self.gram).flat_map(|row| row.iter().enumerate());
        entries.map(move |(column, value)| {
            let own = if column == 0 { value + lambda } else { *value };
            design.next().map_or(local * own, |theirs| scale * theirs + local * own)
        })
    }

    /// Adds one step to the episode's sums; see [`Agent::record`].
    ///
    /// # Errors
    /// As [`Agent::record`].
    pub fn record(&mut self, action: &impl AsAction<D>, reward: f32) -> Result<(), RecordError> {
        self.agent.record(action, reward)
    }

    /// [`Agent::select`] that, with probability `share`, uses the own data alone. Such scout steps, in random places, bound what
    /// any controller can cost the device.
    ///
    /// The generator must be one that the controller cannot predict, and must not be that of a [session](crate::session), whose numbers
    /// are sent as challenges. A scout step takes the time and the stack of an [`Agent::begin`] more.
    ///
    /// # Errors
    /// As [`Agent::select`].
    pub fn select_or_scout<I>(&self, decision_set: I, share: f32, rng: &mut impl Rng) -> Result<Choice, SelectError>
    where
        I: IntoIterator<Item: AsAction<D>>,
    {
        let scouts = self.follows && ((rng.next_u32() >> 8) as f32) < share * 16_777_216.0;
        let mut factor = Factor::new();
        match scouts.then(|| self.own(&mut factor)).flatten() {
            Some(own) => {
                let mut scout = self.agent.clone();
                let terms = Terms { theta: own.theta, beta: own.beta, ..scout.terms() };
                scout.install(&terms, &factor.square, &factor.diagonal);
                scout.select(decision_set)
            }
            None => self.agent.select(decision_set),
        }
    }

    /// Ends the episode, adds its sums to the own data and returns its summary; see [`Agent::finish`].
    ///
    /// The prediction test compares how well θ_c and θ_l predicted the episode's rewards:
    /// ℓ += Σ(r − ⟨x,θ_c⟩)² − Σ(r − ⟨x,θ_l⟩)², at least 0. If ℓ exceeds a threshold, at first 2R² ln(1/δ), models are ignored for
    /// some time. The next episode uses the own data alone until a model arrives.
    pub fn finish(&mut self) -> EpisodeSummary<'_, D> {
        self.absorb();
        let ended = self.agent.end();
        self.use_own_data();
        self.agent.summary(ended)
    }

    /// Tests the model on the running episode's steps, and adds them to the own data, whose weights it first reduces by the number
    /// of these steps.
    fn absorb(&mut self) {
        if self.agent.steps() == 0 {
            return;
        }
        self.fallback = self.fallback.saturating_sub(self.agent.steps());
        if self.follows {
            self.test();
        }
        let Self { agent, guard, gram, feature_sum, .. } = self;
        if let Some(retention) = guard.retention(agent.steps()) {
            gram.iter_mut().chain(&mut *feature_sum).for_each(|sum| *sum *= retention);
        }
        for (sum, value) in gram.iter_mut().zip(agent.gram()) {
            *sum += value;
        }
        add_scaled(feature_sum, 1.0, &agent.feature_sum);
    }

    /// Updates ℓ with the running episode's sums, and raises the alarm.
    fn test(&mut self) {
        // Without an own estimate there is nothing to trust, and NaN is no proof of innocence: both raise the alarm.
        let excess = self.own(&mut Factor::new()).map_or(f32::NAN, |own| {
            let (mut difference, mut sum) = (*self.agent.theta(), *self.agent.theta());
            add_scaled(&mut difference, -1.0, &own.theta);
            add_scaled(&mut sum, 1.0, &own.theta);
            // (θ_c − θ_l)ᵀ(U(θ_c + θ_l) − 2u)
            let mut y = product(self.agent.gram(), &sum);
            add_scaled(&mut y, -2.0, &self.agent.feature_sum);
            self.excess + dot(&difference, &y)
        });
        let is_quiet = excess <= self.threshold();
        self.excess = if is_quiet { excess.max(0.0) } else { 0.0 };
        if !is_quiet {
            self.fallback = self.next_fallback();
            self.alarms = self.alarms.saturating_add(1);
        }
    }
}

#[cfg(feature = "wire")]
impl<const D: usize, const T: usize> Learner<D> for GuardedAgent<D, T> {
    fn begin(&mut self, model: &Model<'_>) -> Result<(), ModelError> {
        self.begin(model)
    }

    fn go_back(&mut self, model: &Model<'_>) -> Result<(), ModelError> {
        let terms = self.agent.check_back(model)?;
        self.apply(model, terms)
    }

    fn restart(&mut self) {
        self.absorb();
        self.agent.restart();
        self.use_own_data();
    }
}

impl<const D: usize, const T: usize> Deref for GuardedAgent<D, T> {
    type Target = Agent<D>;

    fn deref(&self) -> &Agent<D> {
        &self.agent
    }
}

impl<const D: usize> Factor<D> {
    const fn new() -> Self {
        Self { square: [[0.0; D]; D], diagonal: [0.0; D] }
    }

    /// Factorises a matrix.
    fn of(&mut self, packed: impl Iterator<Item = f32>) -> Result<(), ModelError> {
        factorise(packed, &mut self.square, &mut self.diagonal)
    }

    /// Wb
    fn whiten(&self, b: &[f32; D]) -> [f32; D] {
        let mut y = *b;
        for (i, ((y, row), w_ii)) in y.iter_mut().zip(&self.square).zip(&self.diagonal).enumerate() {
            *y = row.iter().zip(b).take(i).fold(*y * w_ii, |sum, (w, b)| sum + w * b);
        }
        y
    }

    /// WᵀWb, the solution of Λx = b.
    fn solve(&self, b: &[f32; D]) -> [f32; D] {
        let y = self.whiten(b);
        let mut x = [0.0; D];
        for (i, ((row, w_ii), y)) in self.square.iter().zip(&self.diagonal).zip(&y).enumerate() {
            for (x, w) in x.iter_mut().zip(row).take(i) {
                *x += w * y;
            }
            if let Some(x) = x.get_mut(i) {
                *x += w_ii * y;
            }
        }
        x
    }

    /// tr(W(V + I)Wᵀ) for a packed V.
    fn trace(&self, gram: &[f32]) -> f32 {
        let mut sum = 0.0;
        for (i, (row, w_ii)) in self.square.iter().zip(&self.diagonal).enumerate() {
            let mut w = *row;
            for (j, entry) in w.iter_mut().enumerate().skip(i) {
                *entry = if j == i { *w_ii } else { 0.0 };
            }
            for (j, (v, w_j)) in rows::<D>(gram).zip(&w).take(i + 1).enumerate() {
                let along = v.iter().zip(w.iter().take(i + 1).skip(j)).fold(0.0, |sum, (v, w)| sum + v * w);
                let diagonal = v.first().copied().unwrap_or_default();
                // Off-diagonal entries count twice.
                sum += w_j * (2.0 * along + (1.0 - diagonal) * w_j);
            }
        }
        sum
    }
}

/// Returns d + 2√(d·x) + 2x, which a χ² variable with d degrees of freedom exceeds with probability at most e^(−x) (Laurent and
/// Massart 2000, Lemma 1).
fn largest_deviation(d: f32) -> f32 {
    d + 2.0 * libm::sqrtf(d * GATE) + 2.0 * GATE
}

/// Iterates over the rows of a packed triangle, each from its diagonal on.
fn rows<const D: usize>(packed: &[f32]) -> impl Iterator<Item = &[f32]> {
    let mut rest = packed;
    (0..D).map_while(move |i| {
        let (row, after) = rest.split_at_checked(D - i)?;
        rest = after;
        Some(row)
    })
}

/// Mx for a packed triangle of M.
fn product<const D: usize>(mut packed: impl Iterator<Item = f32>, x: &[f32; D]) -> [f32; D] {
    let mut y = [0.0; D];
    let mut remaining = (y.as_mut_slice(), x.as_slice());
    while let (Some((y_i, below)), Some((x_i, right))) = (remaining.0.split_first_mut(), remaining.1.split_first()) {
        *y_i += packed.next().unwrap_or_default() * x_i;
        for ((y_j, x_j), m) in below.iter_mut().zip(right).zip(&mut packed) {
            *y_i += m * x_j;
            *y_j += m * x_i;
        }
        remaining = (below, right);
    }
    y
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::model::Rewards;

    /// The period after the m-th alarm is 1024·2^{m−1} steps, or the largest number, and survives a reset.
    #[test]
    fn fallback_doubles_with_each_alarm_and_saturates() {
        let guard = Guard { noise: 0.5, theta_norm: 1.0, max_episode_len: 8, half_life: None };
        let prior = Prior::new(1.0, 1.0, 8, Rewards::Unbounded);
        for (alarms, period) in [(0, 1024), (1, 2048), (21, 1 << 31), (22, u32::MAX), (23, u32::MAX), (255, u32::MAX)] {
            let mut agent = GuardedAgent::<2, 3>::new(&prior, guard).unwrap();
            (agent.alarms, agent.excess, agent.follows) = (alarms, 1e6, true);
            agent.record(&[0.5, 0.5], 0.1).unwrap();
            agent.finish();
            assert_eq!((agent.fallback, agent.alarms), (period, alarms.saturating_add(1)));
            let mut saved = [0; GuardedAgent::<2, 3>::SAVED_LEN];
            agent.save(&mut saved).unwrap();
            assert_eq!(GuardedAgent::restore(&saved, guard).unwrap(), agent);
        }
    }
}
