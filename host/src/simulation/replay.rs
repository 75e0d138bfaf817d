//! Logged decision sets and rewards, from a CSV file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use fedbandit_core::norm_squared_limit;
use thiserror::Error;

use crate::config::MAX_REWARD;

/// Decision sets with a reward for each action.
///
/// The file is CSV with a line of names. The columns are `step`, which groups consecutive lines to decision sets,
/// `reward`, and x_1 to x_d in order; any other column is an error. Each line is one action of a decision set with
/// ‖x‖₂ ≤ 1 and the reward that it gave or would have given. Blank lines and lines that start with `#` are skipped.
///
/// ```text
/// step,x_1,x_2,reward
/// 1,0.6,0.8,0.4
/// 1,1.0,0.0,-0.2
/// 2,0.0,0.5,0.1
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    dimension: usize,
    /// Rows of d + 1 numbers: x, then the reward.
    rows: Vec<f32>,
    /// Where each decision set begins; the last is where all end.
    starts: Vec<usize>,
}

/// Logs by their file.
pub type Logs = BTreeMap<PathBuf, Arc<Log>>;

/// What is wrong with a log, and where.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum LogError {
    /// There is no line of names.
    #[error("the file is empty: its first line must name the columns step, x_1, ..., x_d, reward")]
    Empty,
    /// A column is missing.
    #[error("column {0} is missing: the first line must name step, x_1, ..., x_d, reward")]
    Missing(String),
    /// A column is not known.
    #[error("column {0} is not known: there are step, x_1, ..., x_d and reward")]
    Unknown(String),
    /// A line has more or fewer fields than there are names.
    #[error("line {line} has {found} fields, but {expected} columns are named")]
    Fields {
        /// The line, from 1.
        line: usize,
        /// The number of its fields.
        found: usize,
        /// The number of names.
        expected: usize,
    },
    /// A field is no finite number.
    #[error("line {line}: '{field}' is no finite number")]
    Number {
        /// The line, from 1.
        line: usize,
        /// The field.
        field: String,
    },
    /// An action is too long.
    #[error("line {line}: the action's norm is {norm:.6}, above 1; scale all actions of the log down")]
    Norm {
        /// The line, from 1.
        line: usize,
        /// ‖x‖₂.
        norm: f64,
    },
    /// A reward is not within [−1, 1].
    #[error("line {line}: the reward is {reward}, but bounded rewards are within [-1, 1]")]
    Reward {
        /// The line, from 1.
        line: usize,
        /// The reward.
        reward: f32,
    },
    /// A reward is beyond what can be added up.
    #[error("line {line}: the reward is {reward:e}; scale all rewards of the log down to at most {MAX_REWARD:e}")]
    Huge {
        /// The line, from 1.
        line: usize,
        /// The reward.
        reward: f32,
    },
    /// There is no step.
    #[error("the file has no steps")]
    NoSteps,
}

impl Log {
    /// Reads a log; with `bounded` its rewards must be within [−1, 1].
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn parse(text: &str, bounded: bool) -> Result<Self, LogError> {
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let mut lines = lines.by_ref().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let (_, names) = lines.next().ok_or(LogError::Empty)?;
        let columns = Columns::parse(names)?;
        let dimension = columns.x.len();
        let mut log = Self { dimension, rows: Vec::new(), starts: vec![] };
        let mut last = None;
        for (line, text) in lines {
            let fields: Vec<&str> = text.split(',').map(str::trim).collect();
            if fields.len() != columns.count {
                return Err(LogError::Fields { line, found: fields.len(), expected: columns.count });
            }
            let number = |at: usize| {
                let value = fields[at].parse().ok().filter(|value: &f32| value.is_finite());
                value.ok_or_else(|| LogError::Number { line, field: fields[at].into() })
            };
            let x = columns.x.iter().map(|at| number(*at)).collect::<Result<Vec<_>, _>>()?;
            let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            if squares > f64::from(norm_squared_limit(0)) {
                return Err(LogError::Norm { line, norm: squares.sqrt() });
            }
            let reward = number(columns.reward)?;
            if f64::from(reward).abs() > MAX_REWARD {
                return Err(LogError::Huge { line, reward });
            }
            if bounded && reward.abs() > 1.0 {
                return Err(LogError::Reward { line, reward });
            }
            if last != Some(fields[columns.step]) {
                log.starts.push(log.rows.len() / (dimension + 1));
                last = Some(fields[columns.step]);
            }
            log.rows.extend(x);
            log.rows.push(reward);
        }
        if log.starts.is_empty() {
            return Err(LogError::NoSteps);
        }
        log.starts.push(log.rows.len() / (dimension + 1));
        Ok(log)
    }

    /// d.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The number of decision sets.
    pub fn sets(&self) -> usize {
        self.starts.len() - 1
    }

    /// The actions of a decision set with their rewards.
    pub fn set(&self, index: usize) -> impl Iterator<Item = (&[f32], f32)> {
        let width = self.dimension + 1;
        let rows = &self.rows[self.starts[index] * width..self.starts[index + 1] * width];
        rows.chunks_exact(width).map(|row| (&row[..self.dimension], row[self.dimension]))
    }
}

/// Where the columns stand.
struct Columns {
    count: usize,
    step: usize,
    reward: usize,
    x: Vec<usize>,
}

impl Columns {
    fn parse(names: &str) -> Result<Self, LogError> {
        let names: Vec<&str> = names.split(',').map(str::trim).collect();
        let find = |name: &str| {
            let at = names.iter().position(|other| *other == name);
            at.ok_or_else(|| LogError::Missing(name.into()))
        };
        let dimension = names.iter().filter(|name| name.starts_with("x_")).count();
        let x = (1..=dimension.max(1)).map(|j| find(&format!("x_{j}"))).collect::<Result<Vec<_>, _>>()?;
        let columns = Self { count: names.len(), step: find("step")?, reward: find("reward")?, x };
        let used = |at| at == columns.step || at == columns.reward || columns.x.contains(&at);
        match (0..names.len()).find(|at| !used(*at)) {
            Some(at) => Err(LogError::Unknown(names[at].into())),
            None => Ok(columns),
        }
    }
}
