//! Sums of the agents' messages and their release (Algorithm 1, lines 19 to 23).

use fedbandit_core::packed_len;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::aggregate::{Points, ShapeError};
use crate::math::symmetric;

/// Number of an enrolled agent in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AgentId(pub u32);

/// V̂_i and v̂_i, one row per unit. A unit is an agent or a group of agents.
#[derive(Clone, Debug)]
pub struct Streams {
    /// V̂_i, in the scaled packing of [`symmetric`].
    pub gram: Points<'static>,
    /// v̂_i.
    pub feature_sum: Points<'static>,
}

impl Streams {
    /// Creates streams with V̂_i = 0 and v̂_i = 0 (line 1).
    ///
    /// # Errors
    /// The dimension is 0.
    pub fn zeros(units: usize, dimension: usize) -> Result<Self, ShapeError> {
        let gram = Points::zeros(units, packed_len(dimension))?;
        Ok(Self { gram, feature_sum: Points::zeros(units, dimension)? })
    }

    /// Adds a Gram matrix, as its packed triangle, and a feature sum to those of a unit.
    pub fn add(&mut self, unit: usize, gram: &[f64], feature_sum: &[f64]) {
        self.gram.add(unit, symmetric::scaled(gram, self.dimension()));
        self.feature_sum.add(unit, feature_sum.iter().copied());
    }

    /// Multiplies all V̂_i and v̂_i by a factor.
    pub fn scale(&mut self, factor: f64) {
        self.gram.scale(factor);
        self.feature_sum.scale(factor);
    }

    /// Returns the streams of some units; `None` without any.
    pub(crate) fn select(&self, units: &[usize]) -> Option<Self> {
        let rows = |points: &Points<'_>| {
            let values: Vec<f64> = units.iter().flat_map(|unit| points.row(*unit).iter().copied()).collect();
            Points::new(values, points.dimension()).ok()
        };
        Some(Self { gram: rows(&self.gram)?, feature_sum: rows(&self.feature_sum)? })
    }

    /// Adds a unit with V̂_i = 0 and v̂_i = 0.
    fn push_zeros(&mut self) {
        self.gram.push_zeros();
        self.feature_sum.push_zeros();
    }

    /// Returns D.
    pub fn dimension(&self) -> usize {
        self.feature_sum.dimension()
    }
}

/// The privatising function Pri and the sums V_i and v_i that it protects.
///
/// No other part of the controller stores messages, and everything computed from them starts from
/// [`release`](Self::release). A rule is therefore post-processing. An implementation may keep its sums in any form, for
/// agents or for groups drawn before the first message.
pub trait Privatise {
    /// Identifier of a row of the released streams, used in reports.
    ///
    /// [`AgentId`] is for streams that are not secret: only with it has a controller the methods that report about single
    /// agents.
    type Unit;

    /// True if messages must have a bounded norm (lines 15 to 17).
    const PRIVATE: bool;

    /// Adds an admitted message to the sums of its sender, the `agent`-th enrolled agent, counted from 0. With a half-life the
    /// message is multiplied by its weight beforehand.
    ///
    /// `episode` is that of the message. A late message has an earlier episode than the running one and is part of the next
    /// release.
    fn add(&mut self, agent: usize, episode: u32, gram: &[f64], feature_sum: &[f64]);

    /// Releases (V̂^k, v̂^k) for the model of episode k. Repeated calls must return the same values until another message is
    /// added.
    fn release(&mut self, episode: u32) -> &Streams;

    /// Returns the latest release.
    fn streams(&self) -> &Streams;

    /// Returns the row of an agent; none if agents have no rows of their own, or the agent was removed.
    fn row(&self, _agent: usize) -> Option<usize> {
        None
    }

    /// Returns the unit of a row.
    fn unit(&self, row: usize, enrolled: &[AgentId]) -> Self::Unit;

    /// Multiplies all sums by a factor ([`Forgetting`](super::Forgetting)). Never called for private streams.
    fn decay(&mut self, _factor: f64) {}

    /// Removes an agent from all further releases ([`Level::Drop`](super::Level::Drop)). Returns the row that the last row has
    /// replaced. Never called for private streams.
    fn drop_agent(&mut self, _agent: usize) -> Option<usize> {
        None
    }

    /// Adds an agent with empty sums. Returns false if the units are fixed.
    fn enroll(&mut self) -> bool {
        false
    }

    /// Result of [`save`](Self::save): all sums, and no key.
    type Saved: Serialize + DeserializeOwned;

    /// Returns all sums.
    fn save(&self) -> Self::Saved;

    /// Replaces all sums by saved ones of as many agents. All further releases have the same bits as those of the saved
    /// streams. Returns false, and changes nothing, if the saved sums do not fit.
    fn restore(&mut self, saved: Self::Saved) -> bool;
}

/// Saved sums of [`NoPrivacy`].
#[derive(Serialize, Deserialize)]
pub struct SavedSums {
    gram: Vec<f64>,
    feature_sum: Vec<f64>,
    rows: Vec<Option<usize>>,
    agents: Vec<usize>,
}

/// Streams without privacy: V̂_i = V_i and v̂_i = v_i (line 23), or weighted sums if the run has a half-life.
#[derive(Clone, Debug)]
pub struct NoPrivacy {
    streams: Streams,
    /// Row of each agent; `None` once it is excluded.
    rows: Vec<Option<usize>>,
    /// Agent of each row.
    agents: Vec<usize>,
}

impl NoPrivacy {
    /// Creates empty sums.
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

    fn row(&self, agent: usize) -> Option<usize> {
        self.rows.get(agent).copied().flatten()
    }

    fn unit(&self, row: usize, enrolled: &[AgentId]) -> AgentId {
        enrolled[self.agents[row]]
    }

    fn decay(&mut self, factor: f64) {
        self.streams.scale(factor);
    }

    fn enroll(&mut self) -> bool {
        self.rows.push(Some(self.agents.len()));
        self.agents.push(self.rows.len() - 1);
        self.streams.push_zeros();
        true
    }

    type Saved = SavedSums;

    fn save(&self) -> SavedSums {
        let [gram, feature_sum] =
            [&self.streams.gram, &self.streams.feature_sum].map(|points| points.values().to_vec());
        SavedSums { gram, feature_sum, rows: self.rows.clone(), agents: self.agents.clone() }
    }

    fn restore(&mut self, saved: SavedSums) -> bool {
        let SavedSums { gram, feature_sum, rows, agents } = saved;
        let (units, dimension) = (agents.len(), self.streams.dimension());
        let fits = rows.len() == self.rows.len()
            && rows.iter().flatten().all(|row| *row < units)
            && agents.iter().all(|agent| *agent < rows.len());
        let points = |values: Vec<f64>, dimension| {
            Points::new(values, dimension).ok().filter(|points| fits && points.len() == units)
        };
        let (Some(gram), Some(feature_sum)) = (points(gram, packed_len(dimension)), points(feature_sum, dimension))
        else {
            return false;
        };
        *self = Self { streams: Streams { gram, feature_sum }, rows, agents };
        true
    }

    /// Replaces the agent's row by the last one. The last remaining agent keeps a row of zeros, since rules need a row.
    fn drop_agent(&mut self, agent: usize) -> Option<usize> {
        let row = self.rows[agent].take()?;
        let Streams { gram, feature_sum } = &mut self.streams;
        if self.agents.len() == 1 {
            gram.clear(row);
            feature_sum.clear(row);
            return None;
        }
        gram.swap_remove(row);
        feature_sum.swap_remove(row);
        self.agents.swap_remove(row);
        if let Some(moved) = self.agents.get(row) {
            self.rows[*moved] = Some(row);
        }
        Some(row)
    }
}
