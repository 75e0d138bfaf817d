//! The agent: LinUCB selection and episode sums (Algorithm 1, lines 5 to 12).

use rand_core::Rng;

use crate::action::{AsAction, check, norm_squared_limit, rejection};
use crate::error::{ModelError, RecordError, SelectError};
use crate::factor::{PIVOT_FLOOR, factorise, in_range};
use crate::kernel::{self, LANES, Lanes};
use crate::model::{Model, Prior, Rewards, check_episode_len, packed_len};
use crate::summary::EpisodeSummary;
use crate::{ActionError, REWARD_LIMIT};

/// One device's side of the federated bandit, for actions of dimension D.
///
/// A pure state machine: models, decision sets and rewards are arguments; choices and summaries are results. It has no
/// clock, no random number generator and no heap, and its methods never panic. An episode consists of
///
/// 1. [`begin`](Self::begin) with the controller's model; without a new model the last valid one stays in use,
/// 2. L steps of [`select`](Self::select), act, [`record`](Self::record),
/// 3. [`finish`](Self::finish), which returns the summary and starts the next episode.
///
/// RAM: 4·(D² + 3D) + 24 bytes. All but 24 bytes hold the two triangles and vectors of the algorithm.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent<const D: usize> {
    /// θ
    pub(crate) theta: [f32; D],
    /// Row i holds the inverse factor W left of the diagonal, and the Gram matrix U from the diagonal on.
    pub(crate) square: [[f32; D]; D],
    /// Diagonal of W.
    pub(crate) diagonal: [f32; D],
    /// u
    pub(crate) feature_sum: [f32; D],
    pub(crate) beta: f32,
    pub(crate) episode: u32,
    pub(crate) episode_len: u32,
    pub(crate) steps: u32,
    /// Σr
    pub(crate) reward_sum: f32,
    pub(crate) rewards: Rewards,
}

/// Checked model without its design matrix.
#[derive(Clone, Copy)]
pub(crate) struct Terms<const D: usize> {
    pub(crate) theta: [f32; D],
    pub(crate) beta: f32,
    pub(crate) episode: u32,
    pub(crate) episode_len: u32,
    pub(crate) rewards: Rewards,
}

/// Action chosen by [`Agent::select`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Choice {
    /// Position in the decision set, from zero.
    pub index: usize,
    /// Optimistic value ⟨x,θ⟩ + β‖x‖_{Λ⁻¹}.
    pub score: f32,
}

impl<const D: usize> Agent<D> {
    /// Creates an agent in episode 1 without data: θ = 0, Λ = λI.
    ///
    /// # Errors
    /// The prior's λ is not positive, its β is negative, a value is not finite or the episode length is out of range.
    pub fn new(prior: &Prior) -> Result<Self, ModelError> {
        const { assert!(D > 0 && D <= u16::MAX as usize, "dimension D must be from 1 to 65,535") };
        check_episode_len(prior.episode_len)?;
        if in_range(prior.lambda)? <= PIVOT_FLOOR {
            return Err(ModelError::NotPositiveDefinite { row: 0 });
        }
        Ok(Self {
            theta: [0.0; D],
            square: [[0.0; D]; D],
            diagonal: [1.0 / libm::sqrtf(prior.lambda); D],
            feature_sum: [0.0; D],
            beta: check_beta(prior.beta)?,
            episode: 1,
            episode_len: prior.episode_len,
            steps: 0,
            reward_sum: 0.0,
            rewards: prior.rewards,
        })
    }

    /// Returns k, the running episode, counted from 1.
    pub fn episode(&self) -> u32 {
        self.episode
    }

    /// Returns L, the number of steps in the running episode.
    pub fn episode_len(&self) -> u32 {
        self.episode_len
    }

    /// Returns the number of recorded steps in the running episode.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Returns the reward range of this run.
    pub fn rewards(&self) -> Rewards {
        self.rewards
    }

    /// Returns θ of the model in use.
    pub fn theta(&self) -> &[f32; D] {
        &self.theta
    }

    /// Returns ‖θ − θ*‖_Λ/β: above 1, the ellipsoid in use does not contain θ*.
    // Hidden: only simulations know θ*.
    #[doc(hidden)]
    pub fn width_ratio(&self, truth: &[f32; D]) -> f32 {
        let mut error = self.theta;
        kernel::add_scaled(&mut error, -1.0, truth);
        // ‖e‖_Λ = ‖y‖ for Wᵀy = e, by back substitution.
        let (mut rest, mut squares) = (error.as_mut_slice(), 0.0);
        for (row, w_ii) in self.square.iter().zip(&self.diagonal).rev() {
            let Some((y, before)) = rest.split_last_mut() else { break };
            *y /= w_ii;
            squares += *y * *y;
            for (entry, w) in before.iter_mut().zip(row) {
                *entry -= w * *y;
            }
            rest = before;
        }
        libm::sqrtf(squares) / self.beta
    }

    /// Applies the controller's model and factorises its Λ (line 4).
    ///
    /// A model of a later episode moves the agent to that episode, so a device that was offline catches up. Applying the
    /// same model twice is harmless. Cost: D³/3 multiply-adds and 4·(D² + 2D) bytes of stack.
    ///
    /// # Errors
    /// The model has another dimension, a value out of range, a Λ that is not positive definite or an earlier episode, or
    /// it would interrupt an episode with recorded steps. The last valid model then stays in use.
    pub fn begin(&mut self, model: &Model<'_>) -> Result<(), ModelError> {
        let terms = self.check(model)?;
        self.apply(model, &terms)
    }

    /// Factorises the design matrix of a checked model, and puts the model into force.
    #[inline]
    fn apply(&mut self, model: &Model<'_>, terms: &Terms<D>) -> Result<(), ModelError> {
        let (mut square, mut diagonal) = ([[0.0; D]; D], [0.0; D]);
        factorise(model.design.iter(), &mut square, &mut diagonal)?;
        self.install(terms, &square, &diagonal);
        Ok(())
    }

    /// Checks everything about a model except its design matrix.
    #[inline]
    pub(crate) fn check(&self, model: &Model<'_>) -> Result<Terms<D>, ModelError> {
        if model.episode < self.episode {
            return Err(ModelError::OldEpisode { model: model.episode, agent: self.episode });
        }
        self.check_back(model)
    }

    /// [`check`](Self::check) for an agent that ran ahead without models and, between episodes, returns to the model's.
    #[inline]
    pub(crate) fn check_back(&self, model: &Model<'_>) -> Result<Terms<D>, ModelError> {
        let (theta, design) = (model.theta, model.design);
        if theta.len() != D || design.len() != packed_len(D) {
            return Err(ModelError::Dimension { theta: theta.len(), design: design.len() });
        }
        check_episode_len(model.episode_len)?;
        if self.steps > 0 && model.episode < self.episode {
            return Err(ModelError::OldEpisode { model: model.episode, agent: self.episode });
        }
        let same_terms =
            (model.episode, model.episode_len, model.rewards) == (self.episode, self.episode_len, self.rewards);
        if self.steps > 0 && !same_terms {
            return Err(ModelError::EpisodeUnfinished { steps: self.steps });
        }
        let Model { episode, episode_len, rewards, .. } = *model;
        let mut terms = Terms { theta: [0.0; D], beta: check_beta(model.beta)?, episode, episode_len, rewards };
        for (entry, value) in terms.theta.iter_mut().zip(theta.iter()) {
            *entry = in_range(value)?;
        }
        Ok(terms)
    }

    /// Puts checked terms into force, with the inverse factor of their design matrix.
    #[inline]
    pub(crate) fn install(&mut self, terms: &Terms<D>, square: &[[f32; D]; D], diagonal: &[f32; D]) {
        for (i, (own, row)) in self.square.iter_mut().zip(square).enumerate() {
            for (own, entry) in own.iter_mut().zip(row).take(i) {
                *own = *entry;
            }
        }
        self.diagonal = *diagonal;
        let Terms { theta, beta, episode, episode_len, rewards } = *terms;
        (self.theta, self.beta) = (theta, beta);
        (self.episode, self.episode_len, self.rewards) = (episode, episode_len, rewards);
    }

    /// Returns the terms in force.
    pub(crate) fn terms(&self) -> Terms<D> {
        let Self { theta, beta, episode, episode_len, rewards, .. } = *self;
        Terms { theta, beta, episode, episode_len, rewards }
    }

    /// Discards the running episode's steps and returns to episode 1, with the same model.
    #[cfg(feature = "wire")]
    pub(crate) fn restart(&mut self) {
        (self.episode, self.steps) = (1, 0);
    }

    /// Iterates over the upper triangle of U, row by row.
    pub(crate) fn gram(&self) -> impl Iterator<Item = f32> {
        self.square.iter().enumerate().flat_map(|(i, row)| row.iter().copied().skip(i))
    }

    /// Returns the optimistic value ⟨x,θ⟩ + β‖x‖_{Λ⁻¹} of an action.
    ///
    /// It differs from the exact value by at most [`rounding::score`](crate::rounding::score). Cost: D(D+1)/2 + 3D
    /// multiply-adds and a square root.
    ///
    /// # Errors
    /// The vector is not an action.
    pub fn score(&self, action: &impl AsAction<D>) -> Result<f32, ActionError> {
        let x = action.as_action();
        let score = self.score_above(f32::NEG_INFINITY, x);
        if score.is_nan() { Err(rejection(x)) } else { Ok(score) }
    }

    /// Returns the score of x if it may exceed `floor`, else −∞; NaN if x is not an action.
    ///
    /// An action that cannot exceed the floor S needs no square root. With m = ⟨x,θ⟩ and w = ‖x‖_{Λ⁻¹}, that is m < S and
    /// βw ≤ S − m. The test is w² < ((S − m)/β)²·(1 − 10⁻⁶): all roundings of both sides, of √ and of β·w stay below half of
    /// that margin together. So m + βw ≤ S holds before the last rounding of the score, and therefore after it.
    // Out of line: inlined into a loop over actions, the factor's entries would be hoisted and spilled.
    #[inline(never)]
    fn score_above(&self, floor: f32, x: &[f32; D]) -> f32 {
        if check(x).is_err() {
            return f32::NAN;
        }
        let mean = kernel::dot(x, &self.theta);
        let width_squared = kernel::norm_squared_of_product(&self.square, &self.diagonal, x);
        let shortfall = (floor - mean) / self.beta;
        if shortfall > 0.0 && shortfall * shortfall * 0.999_999 > width_squared {
            return f32::NEG_INFINITY;
        }
        mean + self.beta * libm::sqrtf(width_squared)
    }

    /// [`score`](Self::score) of N actions side by side: entry j of action i is `actions[j][i]`. An invalid action scores NaN.
    ///
    /// Inlined, so that the caller can compile it for the vector registers it detects. `sqrt` must round correctly; every
    /// such square root gives the same bits.
    // Hidden: only the simulator of the `fedbandit` package needs it.
    #[doc(hidden)]
    #[inline(always)]
    pub fn score_lanes<const N: usize>(&self, actions: &[[f32; N]; D], sqrt: impl Fn(f32) -> f32) -> [f32; N] {
        let [norms, means, mut scores] =
            kernel::lane_products::<D, N, N>(&self.theta, &self.square, &self.diagonal, actions);
        for ((score, norm), mean) in scores.iter_mut().zip(norms).zip(means) {
            // Computed unconditionally to avoid a branch.
            let value = mean + self.beta * sqrt(*score);
            *score = if norm <= norm_squared_limit(D) { value } else { f32::NAN };
        }
        scores
    }

    /// Chooses the action with the largest [`score`](Self::score) (line 8); ties go to the first.
    ///
    /// ```
    /// # use fedbandit_core::{Agent, Prior, Rewards};
    /// # let agent = Agent::<2>::new(&Prior::new(1.0, 1.0, 8, Rewards::Unbounded)).unwrap();
    /// let decision_set = [[0.0, 0.5], [0.0, 1.0], [1.0, 0.0]];
    /// assert_eq!(agent.select(&decision_set).unwrap().index, 1);
    /// assert_eq!(agent.select(decision_set.iter().rev()).unwrap().index, 0);
    /// ```
    ///
    /// # Errors
    /// The decision set is empty or contains a vector that is not an action; the error names its index.
    pub fn select<I>(&self, decision_set: I) -> Result<Choice, SelectError>
    where
        I: IntoIterator<Item: AsAction<D>>,
    {
        if cfg!(any(target_feature = "sse2", target_feature = "neon")) {
            self.select_by_blocks(decision_set)
        } else {
            self.select_one_by_one(decision_set)
        }
    }

    /// [`select`](Self::select) as defined, for targets without vector registers.
    // Hidden: public for tests and benchmarks only.
    #[doc(hidden)]
    pub fn select_one_by_one<I>(&self, decision_set: I) -> Result<Choice, SelectError>
    where
        I: IntoIterator<Item: AsAction<D>>,
    {
        let mut best = Best::NONE;
        for (index, action) in decision_set.into_iter().enumerate() {
            let x = action.as_action();
            best.offer(index, self.score_above(best.score, x), || rejection(x))?;
        }
        best.choice()
    }

    /// [`select`](Self::select) on several actions at a time, in vector registers.
    fn select_by_blocks<I>(&self, decision_set: I) -> Result<Choice, SelectError>
    where
        I: IntoIterator<Item: AsAction<D>>,
    {
        let mut best = Best::NONE;
        let mut block = [[0.0; LANES]; D];
        let mut filled = 0;
        let mut start = 0;
        for action in decision_set {
            for (row, x_j) in block.iter_mut().zip(action.as_action()) {
                if let Some(cell) = row.get_mut(filled) {
                    *cell = *x_j;
                }
            }
            filled += 1;
            if filled == LANES {
                self.offer_block(&mut best, start, &block, filled)?;
                start += LANES;
                filled = 0;
            }
        }
        self.offer_block(&mut best, start, &block, filled)?;
        best.choice()
    }

    fn offer_block(&self, best: &mut Best, start: usize, block: &[Lanes; D], filled: usize) -> Result<(), SelectError> {
        let products = match filled {
            0 => return Ok(()),
            1..=4 => kernel::block_products::<D, 4>,
            5..=8 => kernel::block_products::<D, 8>,
            9..=12 => kernel::block_products::<D, 12>,
            _ => kernel::block_products::<D, LANES>,
        };
        let [norms, means, widths] = products(&self.theta, &self.square, &self.diagonal, block);
        for (lane, ((norm, mean), width)) in norms.iter().zip(means).zip(widths).enumerate().take(filled) {
            let score = if *norm <= norm_squared_limit(D) { mean + self.beta * libm::sqrtf(width) } else { f32::NAN };
            let reason = || rejection(&block.map(|row| row.get(lane).copied().unwrap_or_default()));
            best.offer(start + lane, score, reason)?;
        }
        Ok(())
    }

    /// [`select`](Self::select) with random tie-breaking: tied actions are equally likely, up to 2⁻³² per tie.
    ///
    /// The generator is used only on a tie.
    ///
    /// # Errors
    /// As [`select`](Self::select).
    pub fn select_random_ties<I, R>(&self, decision_set: I, rng: &mut R) -> Result<Choice, SelectError>
    where
        I: IntoIterator<Item: AsAction<D>>,
        R: Rng + ?Sized,
    {
        let mut best: Option<Choice> = None;
        let mut equals = 1_u32;
        for (index, action) in decision_set.into_iter().enumerate() {
            let score = self.score(&action).map_err(|reason| SelectError::Action { index, reason })?;
            match &mut best {
                Some(best) if score < best.score => {}
                Some(best) if score == best.score => {
                    // The n-th of n tied actions replaces the current one with probability 1/n.
                    equals = equals.saturating_add(1);
                    if (u64::from(rng.next_u32()) * u64::from(equals)) >> 32 == 0 {
                        best.index = index;
                    }
                }
                _ => {
                    best = Some(Choice { index, score });
                    equals = 1;
                }
            }
        }
        best.ok_or(SelectError::EmptyDecisionSet)
    }

    /// Adds one step to the episode's sums: U += xxᵀ, u += xr and, for monitoring, Σr (line 11).
    ///
    /// Steps may be recorded in any order: a delayed reward can be recorded with its action at any time before the episode
    /// ends. Cost: D(D+1)/2 + 2D multiply-adds.
    ///
    /// # Errors
    /// All L steps are already recorded, the vector is not an action, or the reward is not finite or too large.
    pub fn record(&mut self, action: &impl AsAction<D>, reward: f32) -> Result<(), RecordError> {
        if self.steps >= self.episode_len {
            return Err(RecordError::EpisodeFull);
        }
        let x = action.as_action();
        check(x).map_err(RecordError::Action)?;
        if !(reward.abs() <= REWARD_LIMIT) {
            return Err(RecordError::Reward);
        }
        let reward = match self.rewards {
            Rewards::Unbounded => reward,
            Rewards::Clipped if reward > 1.0 => 1.0,
            Rewards::Clipped if reward < -1.0 => -1.0,
            Rewards::Clipped => reward,
        };
        if self.steps == 0 {
            self.clear_sums();
        }
        kernel::add_outer_product(&mut self.square, x);
        kernel::add_scaled(&mut self.feature_sum, reward, x);
        self.reward_sum += reward;
        self.steps += 1;
        Ok(())
    }

    /// Ends the episode and returns its summary (lines 11 and 12), even if fewer than L steps were recorded.
    ///
    /// The next episode starts with the same model.
    pub fn finish(&mut self) -> EpisodeSummary<'_, D> {
        let ended = self.end();
        self.summary(ended)
    }

    /// Ends the episode, and returns its number and its steps. The next episode's first record clears the sums.
    pub(crate) fn end(&mut self) -> (u32, u32) {
        if self.steps == 0 {
            self.clear_sums();
        }
        let ended = (self.episode, self.steps);
        (self.episode, self.steps) = (self.episode.saturating_add(1), 0);
        ended
    }

    /// Returns the summary of the episode that just ended.
    pub(crate) fn summary(&self, (episode, steps): (u32, u32)) -> EpisodeSummary<'_, D> {
        EpisodeSummary {
            episode,
            steps,
            reward_sum: self.reward_sum,
            square: &self.square,
            feature_sum: &self.feature_sum,
        }
    }

    fn clear_sums(&mut self) {
        for (i, row) in self.square.iter_mut().enumerate() {
            for sum in row.iter_mut().skip(i) {
                *sum = 0.0;
            }
        }
        self.feature_sum = [0.0; D];
        self.reward_sum = 0.0;
    }
}

/// Agent that a [session](crate::session) passes models to: [`Agent`] or [`GuardedAgent`](crate::GuardedAgent).
#[cfg(feature = "wire")]
pub trait Learner<const D: usize> {
    /// Applies a model; see [`Agent::begin`].
    ///
    /// # Errors
    /// The model is rejected, and the last valid one stays in use.
    fn begin(&mut self, model: &Model<'_>) -> Result<(), ModelError>;

    /// As [`begin`](Self::begin), for an agent that ran ahead without models: between episodes, it returns to the model's.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    fn go_back(&mut self, model: &Model<'_>) -> Result<(), ModelError>;

    /// Discards the running episode's steps and returns to episode 1, with the same model.
    fn restart(&mut self);
}

#[cfg(feature = "wire")]
impl<const D: usize> Learner<D> for Agent<D> {
    fn begin(&mut self, model: &Model<'_>) -> Result<(), ModelError> {
        self.begin(model)
    }

    fn go_back(&mut self, model: &Model<'_>) -> Result<(), ModelError> {
        let terms = self.check_back(model)?;
        self.apply(model, &terms)
    }

    fn restart(&mut self) {
        self.restart();
    }
}

/// Best action so far; ties go to the first.
struct Best {
    index: usize,
    score: f32,
}

impl Best {
    const NONE: Self = Self { index: usize::MAX, score: f32::NEG_INFINITY };

    #[inline(always)]
    fn offer(&mut self, index: usize, score: f32, reason: impl FnOnce() -> ActionError) -> Result<(), SelectError> {
        if score > self.score {
            *self = Self { index, score };
        } else if score.is_nan() {
            return Err(SelectError::Action { index, reason: reason() });
        }
        Ok(())
    }

    fn choice(self) -> Result<Choice, SelectError> {
        let Self { index, score } = self;
        if index == usize::MAX { Err(SelectError::EmptyDecisionSet) } else { Ok(Choice { index, score }) }
    }
}

fn check_beta(beta: f32) -> Result<f32, ModelError> {
    if beta >= 0.0 { in_range(beta) } else { Err(ModelError::OutOfRange) }
}
