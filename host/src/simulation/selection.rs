//! Agents that hold the same model choose together, with their actions side by side in vector registers.

use fedbandit_core::{Action, Agent, SelectError};
use pulp::{Arch, Simd, WithSimd};

/// Actions side by side: as many as one register of AVX2 has room for.
const LANES: usize = 8;

/// Decision sets, one after the other, as [`select_all`] reads them.
#[derive(Clone, Debug, Default)]
pub struct DecisionSets<const D: usize> {
    /// Entry j of action 8·b + i is `blocks[b][j][i]`; after the last action stand zeros.
    blocks: Vec<[[f32; LANES]; D]>,
    actions: usize,
    /// Where each set ends.
    ends: Vec<usize>,
}

impl<const D: usize> DecisionSets<D> {
    /// No sets.
    pub const fn new() -> Self {
        Self { blocks: Vec::new(), actions: 0, ends: Vec::new() }
    }

    /// Forgets all sets, and keeps their memory.
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

/// What [`Agent::select`] chooses from each decision set, by its index: `choices` becomes that. `scores` is scratch.
///
/// # Errors
/// As [`Agent::select`], of the first set that it refuses.
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
            None => refuse(agent, sets, start, *end)?,
        };
        start = *end;
    }
    Ok(())
}

/// The index of the largest score, the first of equals; none if there is no score, or one of them is NaN.
fn best(scores: &[f32]) -> Option<usize> {
    // Branches that guess wrong cost more than to look twice.
    let largest =
        scores.iter().fold(f32::NEG_INFINITY, |largest, score| if *score > largest { *score } else { largest });
    let numbers = scores.iter().fold(true, |numbers, score| numbers & !score.is_nan());
    scores.iter().position(|score| *score == largest).filter(|_| numbers)
}

/// What [`Agent::select`] says of a set.
#[cold]
fn refuse<const D: usize>(
    agent: &Agent<D>,
    sets: &DecisionSets<D>,
    start: usize,
    end: usize,
) -> Result<usize, SelectError> {
    let action = |at: usize| Action::from_fn(|j, _| sets.blocks[at / LANES][j][at % LANES]);
    Ok(agent.select((start..end).map(action))?.index)
}

/// The scores of all blocks.
struct Scores<'a, const D: usize> {
    agent: &'a Agent<D>,
    blocks: &'a [[[f32; LANES]; D]],
    scores: &'a mut [f32],
}

impl<const D: usize> WithSimd for Scores<'_, D> {
    type Output = ();

    // Compiled for the instruction set of S, which it names nowhere.
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

    /// An agent with a random model: Λ = I + Σ xxᵀ over three vectors, θ one of them.
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

    /// Together as alone: the first of equals, whatever the sizes of the sets.
    fn chooses_as_one<const D: usize>() {
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
            let alone: Vec<usize> = drawn.iter().map(|set| agent.select_one_by_one(set).unwrap().index).collect();
            assert_eq!(choices, alone);
            // The bits are the same, too.
            let all: Vec<f32> = drawn.iter().flatten().map(|action| agent.score(action).unwrap()).collect();
            assert!(scores.iter().zip(&all).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn together_as_alone() {
        chooses_as_one::<1>();
        chooses_as_one::<2>();
        chooses_as_one::<5>();
        chooses_as_one::<8>();
        chooses_as_one::<32>();
    }

    #[test]
    fn what_is_no_action_is_refused() {
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
                let refused = select_all(&agent, &sets, &mut Vec::new(), &mut Vec::new());
                let Err(SelectError::Action { index, .. }) = refused else { panic!("{refused:?}") };
                assert_eq!(index, at);
            }
        }
        let mut sets = DecisionSets::new();
        sets.push(&[]);
        let refused = select_all(&agent, &sets, &mut Vec::new(), &mut Vec::new());
        assert_eq!(refused, Err(SelectError::EmptyDecisionSet));
    }
}
