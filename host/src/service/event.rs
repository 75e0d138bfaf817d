//! What happened in a run, in order: all that a controller needs to be what it was.

use fedbandit_core::{Model, Rewards, Values, packed_len};

use crate::algorithm::AgentId;

/// An event, and its bytes in the log:
///
/// | bytes | summary | release | end |
/// |---|---|---|---|
/// | 1 | 1 | 2, and with rewards clipped 3 | 4 |
/// | 4 | agent | L | |
/// | 4 | episode | episode | |
/// | 4 | steps | β | |
/// | 4 or 0 | Σr | | |
/// | | U packed, u | θ, Λ packed | |
///
/// All numbers are little-endian, values are `f32`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A device's summary of an episode was taken. Whether it counts is decided by admission, the same way each time.
    Summary(SummaryEvent),
    /// An episode began, and this is its model.
    Model(ModelEvent),
    /// The last episode was closed, and the run is over.
    End,
}

/// A summary as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryEvent {
    /// Its sender.
    pub agent: AgentId,
    /// The episode that it is of.
    pub episode: u32,
    /// How many steps it is of.
    pub steps: u32,
    /// Σr, as its sender says.
    pub reward_sum: f32,
    /// U packed.
    pub gram: Vec<f32>,
    /// u.
    pub feature_sum: Vec<f32>,
}

/// A model that was, or is about to be, broadcast.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelEvent {
    /// k.
    pub episode: u32,
    /// L_k.
    pub episode_len: u32,
    /// β_k.
    pub beta: f32,
    /// Whether devices clip rewards.
    pub rewards: Rewards,
    /// θ_k.
    pub theta: Vec<f32>,
    /// Λ_k packed.
    pub design: Vec<f32>,
}

impl ModelEvent {
    /// A controller's model.
    pub fn of(model: &Model<'_>) -> Self {
        Self {
            episode: model.episode,
            episode_len: model.episode_len,
            beta: model.beta,
            rewards: model.rewards,
            theta: model.theta.iter().collect(),
            design: model.design.iter().collect(),
        }
    }

    /// The model again.
    pub fn model(&self) -> Model<'_> {
        Model {
            episode: self.episode,
            episode_len: self.episode_len,
            beta: self.beta,
            rewards: self.rewards,
            theta: Values::Native(&self.theta),
            design: Values::Native(&self.design),
        }
    }
}

const SUMMARY: u8 = 1;
const RELEASE: u8 = 2;
const CLIPPED: u8 = 3;
const END: u8 = 4;

impl Event {
    /// The event's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, numbers, values) = match self {
            Self::Summary(SummaryEvent { agent, episode, steps, reward_sum, gram, feature_sum }) => {
                (SUMMARY, vec![agent.0, *episode, *steps, reward_sum.to_bits()], [gram, feature_sum])
            }
            Self::Model(ModelEvent { episode, episode_len, beta, rewards, theta, design }) => {
                let kind = if *rewards == Rewards::Clipped { CLIPPED } else { RELEASE };
                (kind, vec![*episode_len, *episode, beta.to_bits()], [theta, design])
            }
            Self::End => return vec![END],
        };
        let words = numbers.into_iter().chain(values.into_iter().flatten().map(|value| value.to_bits()));
        [kind].into_iter().chain(words.flat_map(u32::to_le_bytes)).collect()
    }

    /// The event of some bytes, for a dimension; none if they are no event of it.
    pub fn from_bytes(bytes: &[u8], dimension: usize) -> Option<Self> {
        if bytes == [END] {
            return Some(Self::End);
        }
        let (kind, words) = bytes.split_first()?;
        let (words, []) = words.as_chunks::<4>() else { return None };
        let (numbers, values) = words.split_at_checked(words.len().checked_sub(packed_len(dimension) + dimension)?)?;
        let whole = u32::from_le_bytes;
        let split = |at| {
            let (first, second) = values.split_at_checked(at)?;
            let reals = |words: &[[u8; 4]]| words.iter().map(|word| f32::from_le_bytes(*word)).collect::<Vec<f32>>();
            Some((reals(first), reals(second)))
        };
        match (*kind, numbers) {
            (SUMMARY, &[agent, episode, steps, reward_sum]) => {
                let (gram, feature_sum) = split(packed_len(dimension))?;
                Some(Self::Summary(SummaryEvent {
                    agent: AgentId(whole(agent)),
                    episode: whole(episode),
                    steps: whole(steps),
                    reward_sum: f32::from_le_bytes(reward_sum),
                    gram,
                    feature_sum,
                }))
            }
            (RELEASE | CLIPPED, &[episode_len, episode, beta]) => {
                let (theta, design) = split(dimension)?;
                Some(Self::Model(ModelEvent {
                    episode: whole(episode),
                    episode_len: whole(episode_len),
                    beta: f32::from_le_bytes(beta),
                    rewards: if *kind == CLIPPED { Rewards::Clipped } else { Rewards::Unbounded },
                    theta,
                    design,
                }))
            }
            _ => None,
        }
    }
}
