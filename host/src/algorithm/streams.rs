//! The sums of what agents sent, and what of them is released (Algorithm 1, lines 19 to 23).

use crate::aggregate::{Points, ShapeError};
use crate::math::symmetric;
use fedbandit_core::packed_len;

/// An enrolled agent: its number in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub u32);

/// V̂_i and v̂_i: one row per unit, an agent or a group of agents.
#[derive(Clone, Debug)]
pub struct Streams {
    /// V̂_i, each in the scaled packing of [`symmetric`].
    pub gram: Points<'static>,
    /// v̂_i.
    pub feature_sum: Points<'static>,
}

impl Streams {
    /// V̂_i = 0 and v̂_i = 0 (line 1).
    ///
    /// # Errors
    /// The dimension is 0.
    pub fn zeros(units: usize, dimension: usize) -> Result<Self, ShapeError> {
        let gram = Points::zeros(units, packed_len(dimension))?;
        Ok(Self { gram, feature_sum: Points::zeros(units, dimension)? })
    }

    /// Adds a Gram matrix, as its packed triangle, and a feature sum to a unit's.
    pub fn add(&mut self, unit: usize, gram: &[f64], feature_sum: &[f64]) {
        self.gram.add(unit, symmetric::scaled(gram, self.dimension()));
        self.feature_sum.add(unit, feature_sum.iter().copied());
    }

    /// D.
    pub fn dimension(&self) -> usize {
        self.feature_sum.dimension()
    }
}

/// The privatising function Pri, with the sums V_i and v_i that it guards.
///
/// Nothing else keeps what agents sent, and all that is computed from it starts from [`release`](Self::release): what a
/// rule does is post-processing. An implementation may keep its sums in any form, for agents or for groups that were
/// drawn before the first message.
pub trait Privatise {
    /// Whom a row of the released streams stands for, and so whom a report may name.
    ///
    /// [`AgentId`] is for streams that are no secret: with it a controller also tells what it knows of each agent. With
    /// any other type it has no such methods.
    type Unit;

    /// Whether messages need a bounded norm (lines 15 to 17).
    const PRIVATE: bool;

    /// Adds a message that was admitted to the sums of its sender, the `agent`-th of those enrolled, counted from 0.
    ///
    /// `episode` is the message's own; a late one comes with an earlier episode than the running one and is part of the
    /// next release.
    fn add(&mut self, agent: usize, episode: u32, gram: &[f64], feature_sum: &[f64]);

    /// (V̂^k, v̂^k) for the model of episode k. Asked again before another message is added, the answer must be the
    /// same.
    fn release(&mut self, episode: u32) -> &Streams;

    /// What was released last.
    fn streams(&self) -> &Streams;

    /// The unit of a row.
    fn unit(&self, row: usize, enrolled: &[AgentId]) -> Self::Unit;

    /// Takes an agent out of all releases from now on ([`Level::Drop`](crate::algorithm::Level::Drop)). Where streams are
    /// private, nobody asks for it.
    fn drop_agent(&mut self, _agent: usize) {}
}

/// V̂_i = V_i and v̂_i = v_i (line 23).
#[derive(Clone, Debug)]
pub struct NoPrivacy {
    streams: Streams,
    /// The row of each agent that is not out, and the agent of each row.
    rows: Vec<Option<usize>>,
    agents: Vec<usize>,
}

impl NoPrivacy {
    /// Empty sums.
    ///
    /// # Errors
    /// The dimension is 0.
    pub fn new(agents: usize, dimension: usize) -> Result<Self, ShapeError> {
        let (rows, all) = ((0..agents).map(Some).collect(), (0..agents).collect());
        Ok(Self { streams: Streams::zeros(agents, dimension)?, rows, agents: all })
    }
}

impl Privatise for NoPrivacy {
    type Unit = AgentId;

    const PRIVATE: bool = false;

    fn add(&mut self, agent: usize, _episode: u32, gram: &[f64], feature_sum: &[f64]) {
        if let Some(row) = self.rows[agent] {
            self.streams.add(row, gram, feature_sum);
        }
    }

    fn release(&mut self, _episode: u32) -> &Streams {
        &self.streams
    }

    fn streams(&self) -> &Streams {
        &self.streams
    }

    fn unit(&self, row: usize, enrolled: &[AgentId]) -> AgentId {
        enrolled[self.agents[row]]
    }

    /// The last row takes the place of the agent's; the last agent of all keeps a row of zeros.
    fn drop_agent(&mut self, agent: usize) {
        let Some(row) = self.rows[agent].take() else { return };
        let Streams { gram, feature_sum } = &mut self.streams;
        if self.agents.len() == 1 {
            gram.clear(row);
            feature_sum.clear(row);
            return;
        }
        gram.swap_remove(row);
        feature_sum.swap_remove(row);
        self.agents.swap_remove(row);
        if let Some(moved) = self.agents.get(row) {
            self.rows[*moved] = Some(row);
        }
    }
}
