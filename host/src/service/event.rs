//! Events of a run: the entries of the store's log, from which a restarted service rebuilds its state.

use fedbandit_core::{Model, Rewards, Values, packed_len};

use crate::algorithm::AgentId;

/// Event, with this encoding in the log:
///
/// | bytes | summary | model | end | enrolment |
/// |---|---|---|---|---|
/// | 1 | 1 | 2, or 3 if rewards are clipped | 4 | 5 |
/// | 4 | agent | L | | agent |
/// | 4 | episode | episode | | |
/// | 4 | steps | β | | |
/// | 4 or 0 | Σr | | | |
/// | | U packed, u | θ, Λ packed | | |
///
/// Numbers are little-endian, values are `f32`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A device's summary was received. Admission decides, in the same way at each replay, if it counts.
    Summary(SummaryEvent),
    /// An episode began with this model.
    Model(ModelEvent),
    /// The last episode was closed: the run has finished.
    End,
    /// A device was enrolled during the run.
    Enrollment(AgentId),
}

/// Summary as received.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryEvent {
    /// Sender.
    pub agent: AgentId,
    /// k.
    pub episode: u32,
    /// Number of steps.
    pub steps: u32,
    /// Σr, as reported.
    pub reward_sum: f32,
    /// U packed.
    pub gram: Vec<f32>,
    /// u.
    pub feature_sum: Vec<f32>,
}

/// Model of an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelEvent {
    /// k.
    pub episode: u32,
    /// L_k.
    pub episode_len: u32,
    /// β_k.
    pub beta: f32,
    /// Tells devices if they clip rewards.
    pub rewards: Rewards,
    /// θ_k.
    pub theta: Vec<f32>,
    /// Λ_k packed.
    pub design: Vec<f32>,
}

impl ModelEvent {
    /// Copies a controller's model.
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

    /// Borrows the model.
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
const MODEL: u8 = 2;
const MODEL_CLIPPED: u8 = 3;
const END: u8 = 4;
const ENROLLMENT: u8 = 5;

impl Event {
    /// Encodes the event.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, numbers, values) = match self {
            Self::Summary(SummaryEvent { agent, episode, steps, reward_sum, gram, feature_sum }) => {
                (SUMMARY, vec![agent.0, *episode, *steps, reward_sum.to_bits()], [gram, feature_sum])
            }
            Self::Model(ModelEvent { episode, episode_len, beta, rewards, theta, design }) => {
                let kind = if *rewards == Rewards::Clipped { MODEL_CLIPPED } else { MODEL };
                (kind, vec![*episode_len, *episode, beta.to_bits()], [theta, design])
            }
            Self::End => return vec![END],
            Self::Enrollment(agent) => return [[ENROLLMENT].as_slice(), &agent.0.to_le_bytes()].concat(),
        };
        let words = numbers.into_iter().chain(values.into_iter().flatten().map(|value| value.to_bits()));
        [kind].into_iter().chain(words.flat_map(u32::to_le_bytes)).collect()
    }

    /// Returns the length of the encoding.
    pub(super) fn encoded_len(&self) -> usize {
        match self {
            Self::Summary(summary) => 17 + 4 * (summary.gram.len() + summary.feature_sum.len()),
            Self::Model(model) => 13 + 4 * (model.theta.len() + model.design.len()),
            Self::End => 1,
            Self::Enrollment(_) => 5,
        }
    }

    /// Decodes an event of a run with a dimension; none if the bytes are invalid.
    pub fn from_bytes(bytes: &[u8], dimension: usize) -> Option<Self> {
        if bytes == [END] {
            return Some(Self::End);
        }
        if let &[ENROLLMENT, ref agent @ ..] = bytes {
            return Some(Self::Enrollment(AgentId(u32::from_le_bytes(agent.try_into().ok()?))));
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
            (MODEL | MODEL_CLIPPED, &[episode_len, episode, beta]) => {
                let (theta, design) = split(dimension)?;
                Some(Self::Model(ModelEvent {
                    episode: whole(episode),
                    episode_len: whole(episode_len),
                    beta: f32::from_le_bytes(beta),
                    rewards: if *kind == MODEL_CLIPPED { Rewards::Clipped } else { Rewards::Unbounded },
                    theta,
                    design,
                }))
            }
            _ => None,
        }
    }
}
