//! Selection for agents that hold the same model, with actions side by side in vector registers.

use fedbandit_core::{Action, Agent, SelectError};
use pulp::{Arch, Simd, WithSimd};

/// Number of actions side by side, which fill one AVX2 register.
const LANES: usize = 8;

/// Decision sets in the layout of [`select_all`].
#[derive(Clone, Debug, Default)]
pub struct DecisionSets<const D: usize> {
    /// Entry j of action 8·b + i is `blocks[b][j][i]`. The last block is padded with zeros.
    blocks: Vec<[[f32; LANES]; D]>,
    actions: usize,
    /// End of each set, in actions.
    ends: Vec<usize>,
}

impl<const D: usize> DecisionSets<D> {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Self { blocks: Vec::new(), actions: 0, ends: Vec::new() }
    }

    /// Removes all sets, keeping their memory.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.actions = 0;
        self.ends.clear();
    }

    /// Adds a set.
    pub fn push(&mut self, decision_set: &[Action<D>]) {
        for action in decision_set {
            let lane = self.actions % LANES;
            if lane == 0 {
                self.blocks.push([[0.0; LANES]; D]);
            }
            if let Some(block) = self.blocks.last_mut() {
                for (row, x_j) in block.iter_mut().zip(action) {
                    row[lane] = *x_j;
                }
            }
            self.actions += 1;
        }
        self.ends.push(self.actions);
    }
}

/// Writes the index that [`Agent::select`] chooses from each decision set to `choices`. `scores` is scratch memory.
///
/// # Errors
/// As [`Agent::select`], for the first set that it rejects.
pub fn select_all<const D: usize>(
    agent: &Agent<D>,
    sets: &DecisionSets<D>,
    scores: &mut Vec<f32>,
    choices: &mut Vec<usize>,
) -> Result<(), SelectError> {
    scores.resize(sets.blocks.len() * LANES, 0.0);
    Arch::new().dispatch(Scores { agent, blocks: &sets.blocks, scores });
    choices.resize(sets.ends.len(), 0);
    let mut start = 0;
    for (choice, end) in choices.iter_mut().zip(&sets.ends) {
        *choice = match best(&scores[start..*end]) {
            Some(best) => best,
            None => select_one(agent, sets, start, *end)?,
        };
        start = *end;
    }
    Ok(())
}

/// Returns the index of the first largest score, or `None` if there is no score or one of them is NaN.
fn best(scores: &[f32]) -> Option<usize> {
    // Two passes without branches are faster than one with mispredicted branches.
    let largest =
        scores.iter().fold(f32::NEG_INFINITY, |largest, score| if *score > largest { *score } else { largest });
    let numbers = scores.iter().fold(true, |numbers, score| numbers & !score.is_nan());
    scores.iter().position(|score| *score == largest).filter(|_| numbers)
}

/// Returns the choice or the error of [`Agent::select`].
#[cold]
fn select_one<const D: usize>(
    agent: &Agent<D>,
    sets: &DecisionSets<D>,
    start: usize,
    end: usize,
) -> Result<usize, SelectError> {
    let action = |at: usize| Action::from_fn(|j, _| sets.blocks[at / LANES][j][at % LANES]);
    Ok(agent.select((start..end).map(action))?.index)
}

/// Computation of the scores of all blocks.
struct Scores<'a, const D: usize> {
    agent: &'a Agent<D>,
    blocks: &'a [[[f32; LANES]; D]],
    scores: &'a mut [f32],
}

impl<const D: usize> WithSimd for Scores<'_, D> {
    type Output = ();

    // Inlined, the body is compiled for the instruction set of S.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (block, scores) in self.blocks.iter().zip(self.scores.as_chunks_mut().0) {
            *scores = self.agent.score_lanes(block, f32::sqrt);
        }
    }
}

#[cfg(test)]
mod tests {
    use fedbandit_core::{Model, Prior, Rewards, project};
    use rand_distr::{Distribution, StandardNormal};
    use rand_pcg::Pcg64;
    use rand_pcg::rand_core::{Rng, SeedableRng};

    use super::*;

    /// Returns an agent with a random model: Λ = I + Σ xxᵀ over three vectors, and θ one of them.
    fn agent<const D: usize>(rng: &mut Pcg64) -> Agent<D> {
        let vectors: [Action<D>; 3] = std::array::from_fn(|_| vector(rng));
        let product = |i: usize, j: usize| vectors.iter().map(|x| x[i] * x[j]).sum::<f32>();
        let entry = |i: usize, j: usize| if i == j { 1.0 + product(i, j) } else { product(i, j) };
        let design: Vec<f32> = (0..D).flat_map(|i| (i..D).map(move |j| (i, j))).map(|(i, j)| entry(i, j)).collect();
        let (episode_len, rewards) = (4, Rewards::Unbounded);
        let mut agent = Agent::new(&Prior { lambda: 1.0, beta: 1.0, episode_len, rewards }).unwrap();
        let theta = vectors[0].as_slice().into();
        agent.begin(&Model { episode: 1, episode_len, beta: 0.7, rewards, theta, design: design[..].into() }).unwrap();
        agent
    }

    fn vector<const D: usize>(rng: &mut Pcg64) -> Action<D> {
        project(&Action::from_fn(|_, _| StandardNormal.sample(rng)))
    }

    /// Compares choices and scores with those of `Agent::select_one_by_one`. Each set contains equal actions.
    fn compare_with_single_selection<const D: usize>() {
        let mut rng = Pcg64::seed_from_u64(D as u64);
        let (mut sets, mut scores, mut choices) = (DecisionSets::new(), Vec::new(), Vec::new());
        for _ in 0..200 {
            let agent = agent::<D>(&mut rng);
            let mut drawn: Vec<Vec<Action<D>>> = Vec::new();
            for _ in 0..5 {
                let mut set: Vec<Action<D>> = (0..1 + rng.next_u32() % 12).map(|_| vector(&mut rng)).collect();
                set.push(set[rng.next_u32() as usize % set.len()]);
                drawn.push(set);
            }
            sets.clear();
            drawn.iter().for_each(|set| sets.push(set));
            select_all(&agent, &sets, &mut scores, &mut choices).unwrap();
            let single: Vec<usize> = drawn.iter().map(|set| agent.select_one_by_one(set).unwrap().index).collect();
            assert_eq!(choices, single);
            let all: Vec<f32> = drawn.iter().flatten().map(|action| agent.score(action).unwrap()).collect();
            assert!(scores.iter().zip(&all).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn joint_selection_equals_single_selection() {
        compare_with_single_selection::<1>();
        compare_with_single_selection::<2>();
        compare_with_single_selection::<5>();
        compare_with_single_selection::<8>();
        compare_with_single_selection::<32>();
    }

    #[test]
    fn invalid_decision_sets_are_rejected() {
        let mut rng = Pcg64::seed_from_u64(3);
        let agent = agent::<3>(&mut rng);
        let good: Vec<Action<3>> = (0..9).map(|_| vector(&mut rng)).collect();
        for bad in [Action::from([2.0, 0.0, 0.0]), Action::from([f32::NAN, 0.0, 0.0])] {
            for at in 0..9 {
                let mut set = good.clone();
                set[at] = bad;
                let mut sets = DecisionSets::new();
                sets.push(&good);
                sets.push(&set);
                let result = select_all(&agent, &sets, &mut Vec::new(), &mut Vec::new());
                let Err(SelectError::Action { index, .. }) = result else { panic!("{result:?}") };
                assert_eq!(index, at);
            }
        }
        let mut sets = DecisionSets::new();
        sets.push(&[]);
        let result = select_all(&agent, &sets, &mut Vec::new(), &mut Vec::new());
        assert_eq!(result, Err(SelectError::EmptyDecisionSet));
    }
}
