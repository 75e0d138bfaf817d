//! Logged decision sets and rewards, from a CSV file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use fedbandit_core::norm_squared_limit;
use thiserror::Error;

use crate::config::MAX_REWARD;

/// Logged decision sets with a reward for each action.
///
/// The file is CSV with a header line. Its columns are `step`, `reward`, x_1 to x_d and, optionally, `device`; any other
/// column is an error. Consecutive lines with the same `step` and `device` form a decision set. Each line has an action with
/// ‖x‖₂ ≤ 1 and its observed or estimated reward. Blank lines and lines that start with `#` are skipped.
///
/// With the column `device`, each decision set belongs to a logged device. Devices are numbered from 0 in the order in which
/// they first appear. Without it, all sets belong to a single one.
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
    /// First row of each decision set, followed by the number of rows.
    starts: Vec<usize>,
    /// Decision sets of each device.
    devices: Vec<Vec<usize>>,
}

/// Logs by file.
pub type Logs = BTreeMap<PathBuf, Arc<Log>>;

/// Error returned by [`Log::parse`]. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum LogError {
    /// The header is missing.
    #[error("log is empty; the first line must name the columns step, x_1, ..., x_d, reward")]
    Empty,
    /// A column is missing.
    #[error("column {0} is missing; the first line must name step, x_1, ..., x_d, reward")]
    Missing(String),
    /// A column is unknown.
    #[error("unknown column {0}; expected step, x_1, ..., x_d, reward, device")]
    Unknown(String),
    /// A line has more or fewer fields than the header.
    #[error("line {line} has {found} fields, but the header has {expected}")]
    Fields {
        /// Number of the line.
        line: usize,
        /// Number of fields of the line.
        found: usize,
        /// Number of fields of the header.
        expected: usize,
    },
    /// A field is not a finite number.
    #[error("line {line}: '{field}' is not a finite number")]
    Number {
        /// Number of the line.
        line: usize,
        /// The field.
        field: String,
    },
    /// An action has a norm above 1.
    #[error("line {line}: norm of the action is {norm:.6}; scale all actions of the log to at most 1")]
    Norm {
        /// Number of the line.
        line: usize,
        /// ‖x‖₂.
        norm: f64,
    },
    /// A reward is not within [−1, 1].
    #[error("line {line}: reward is {reward}, but bounded rewards must be within [-1, 1]")]
    Reward {
        /// Number of the line.
        line: usize,
        /// The reward.
        reward: f32,
    },
    /// A reward is too large to be summed up.
    #[error("line {line}: reward is {reward:e}; scale all rewards of the log to at most {MAX_REWARD:e}")]
    Huge {
        /// Number of the line.
        line: usize,
        /// The reward.
        reward: f32,
    },
    /// The log has no line after the header.
    #[error("log has no steps")]
    NoSteps,
}

impl Log {
    /// Parses a log. With `bounded`, rewards must be within [−1, 1].
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn parse(text: &str, bounded: bool) -> Result<Self, LogError> {
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let mut lines = lines.by_ref().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let (_, names) = lines.next().ok_or(LogError::Empty)?;
        let columns = Columns::parse(names)?;
        let dimension = columns.x.len();
        let mut log = Self { dimension, rows: Vec::new(), starts: Vec::new(), devices: Vec::new() };
        let mut numbers = BTreeMap::new();
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
            let set = (fields[columns.step], columns.device.map(|at| fields[at]));
            if last != Some(set) {
                let number = *numbers.entry(set.1).or_insert(log.devices.len());
                if number == log.devices.len() {
                    log.devices.push(Vec::new());
                }
                log.devices[number].push(log.starts.len());
                log.starts.push(log.rows.len() / (dimension + 1));
                last = Some(set);
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

    /// Returns d.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Returns the number of decision sets.
    pub fn sets(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the decision sets of each device; all of them for a single device if the log has no column `device`.
    pub fn devices(&self) -> &[Vec<usize>] {
        &self.devices
    }

    /// Returns the decision sets of a virtual device: those of the logged device with the same number, modulo their count.
    pub(super) fn sets_of(&self, device: u64) -> &[usize] {
        &self.devices[(device % self.devices.len() as u64) as usize]
    }

    /// Returns the actions of a decision set with their rewards.
    pub fn set(&self, index: usize) -> impl Iterator<Item = (&[f32], f32)> {
        let width = self.dimension + 1;
        let rows = &self.rows[self.starts[index] * width..self.starts[index + 1] * width];
        rows.chunks_exact(width).map(|row| (&row[..self.dimension], row[self.dimension]))
    }
}

/// Positions of the columns.
struct Columns {
    count: usize,
    step: usize,
    reward: usize,
    device: Option<usize>,
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
        let device = find("device").ok();
        let columns = Self { count: names.len(), step: find("step")?, reward: find("reward")?, device, x };
        let used =
            |at| at == columns.step || at == columns.reward || columns.device == Some(at) || columns.x.contains(&at);
        match (0..names.len()).find(|at| !used(*at)) {
            Some(at) => Err(LogError::Unknown(names[at].into())),
            None => Ok(columns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "a,1,0.5,0.1\na,1,0.6,0.2\nb,1,0.7,0.3\na,2,0.8,0.4\nc,2,0.9,0.5\n";

    fn log(text: &str) -> Log {
        Log::parse(text, false).unwrap()
    }

    #[test]
    fn decision_sets_with_device_column_belong_to_devices_in_order_of_appearance() {
        let log = log(&format!("device,step,x_1,reward\n{ROWS}"));
        assert_eq!(log.devices(), [vec![0, 2], vec![1], vec![3]]);
        let rewards = |set: usize| log.set(set).map(|(_, reward)| reward).collect::<Vec<_>>();
        assert_eq!((0..log.sets()).map(rewards).collect::<Vec<_>>(), [vec![0.1, 0.2], vec![0.3], vec![0.4], vec![0.5]]);
        assert_eq!([0, 1, 2, 3, 7].map(|device| log.sets_of(device)), [&[0, 2][..], &[1], &[3], &[0, 2], &[1]]);
    }

    #[test]
    fn log_without_device_column_is_shared_by_all_devices() {
        let log = log("step,x_1,reward\n1,0.5,0.1\n1,0.6,0.2\n2,0.8,0.4\n");
        assert_eq!(log.devices(), [vec![0, 1]]);
        assert_eq!([0, 5].map(|device| log.sets_of(device)), [&[0, 1], &[0, 1]]);
    }
}
