//! Logs of chosen actions, with features, reward and propensity.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use thiserror::Error;

use super::{csv, vw};
use crate::config::MAX_REWARD;
use crate::simulation::DIMENSIONS;

/// Log of chosen actions: for each event the available actions, the chosen one, its reward and its propensity.
///
/// The propensity is the probability with which the logging policy chose that action.
///
/// An action's feature vector has one entry per *feature pair*, a feature of the event's context times one of the action. Logs with d
/// columns x_1 to x_d have no context, so that x is as logged. If there are more pairs than dimensions, each pair is added to a
/// coordinate and with a sign that a hash of its name determines (feature hashing). All vectors of a log are divided by the largest
/// norm if that exceeds 1.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceLog {
    dimension: usize,
    interactions: bool,
    /// Coordinate of each feature pair; `None` if pairs are hashed.
    coordinates: Option<BTreeMap<u64, usize>>,
    scale: f64,
    contents: Contents,
}

/// Parsed events. Names of features are hashes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Contents {
    features: Vec<(u64, f32)>,
    /// Features of each action.
    actions: Vec<Range<usize>>,
    events: Vec<Event>,
}

/// A decision: context and available actions, and what came of the chosen one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    /// Features of the context.
    pub(super) context: Range<usize>,
    /// Available actions.
    pub(super) actions: Range<usize>,
    /// Position of the chosen action among them.
    pub(super) chosen: usize,
    pub(super) reward: f64,
    pub(super) propensity: f64,
}

/// Name of the constant feature.
pub(super) const CONSTANT: u64 = 0;
/// Largest number of actions that are available at an event.
pub(super) const MAX_ACTIONS: usize = 10_000;
/// Largest sum of these numbers over all events, which bounds the time of an evaluation.
const MAX_ROWS: usize = 1 << 28;
/// Largest absolute value of a feature.
const MAX_FEATURE: f32 = 1e6;
/// Least propensity.
const MIN_PROPENSITY: f64 = 1e-9;

/// Error returned by [`ChoiceLog::parse`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ChoiceLogError {
    /// Line, counted from 1; `None` if the error is about the whole log.
    line: Option<usize>,
    column: Option<String>,
    reason: String,
}

impl fmt::Display for ChoiceLogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, &self.column) {
            (Some(line), Some(column)) => write!(f, "line {line}, {column}: {}", self.reason),
            (Some(line), None) => write!(f, "line {line}: {}", self.reason),
            (None, _) => f.write_str(&self.reason),
        }
    }
}

impl ChoiceLogError {
    /// Creates an error about the whole log.
    pub(super) fn log(reason: impl Into<String>) -> Self {
        Self { line: None, column: None, reason: reason.into() }
    }

    /// Creates an error about a line.
    pub(super) fn line(line: usize, reason: impl Into<String>) -> Self {
        Self { line: Some(line), column: None, reason: reason.into() }
    }

    /// Creates an error about a column of a line.
    pub(super) fn at(line: usize, column: &str, reason: impl Into<String>) -> Self {
        Self { line: Some(line), column: Some(column.into()), reason: reason.into() }
    }
}

/// Remedy for propensities that are missing or 1.
pub(super) const REMEDY: &str =
    "record, for each choice, the probability with which a randomised policy made it; it cannot be recovered later";

/// Parses a finite number.
pub(super) fn number(line: usize, column: &str, text: &str) -> Result<f64, ChoiceLogError> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite());
    value.ok_or_else(|| ChoiceLogError::at(line, column, format!("'{text}' is not a finite number")))
}

/// Parses a feature.
pub(super) fn feature(line: usize, column: &str, text: &str) -> Result<f32, ChoiceLogError> {
    let value = number(line, column, text)? as f32;
    if value.abs() <= MAX_FEATURE {
        return Ok(value);
    }
    Err(ChoiceLogError::at(line, column, format!("feature is {value:e}; scale features to at most {MAX_FEATURE:e}")))
}

/// Parses a reward, or a cost.
pub(super) fn reward(line: usize, column: &str, text: &str) -> Result<f64, ChoiceLogError> {
    let value = number(line, column, text)?;
    if value.abs() <= MAX_REWARD {
        return Ok(value);
    }
    Err(ChoiceLogError::at(line, column, format!("value is {value:e}; scale rewards to at most {MAX_REWARD:e}")))
}

/// Parses the propensity of an action that was chosen among some.
pub(super) fn propensity(line: usize, column: &str, text: &str, actions: usize) -> Result<f64, ChoiceLogError> {
    let error = |reason| Err(ChoiceLogError::at(line, column, reason));
    if text.is_empty() {
        return error(format!("propensity is missing; {REMEDY}"));
    }
    let value = number(line, column, text)?;
    if !(MIN_PROPENSITY..=1.0).contains(&value) {
        return error(format!("propensity must be from {MIN_PROPENSITY:e} to 1, got {value}"));
    }
    if value == 1.0 && actions > 1 {
        return error(format!("propensity is 1 although {actions} actions were available; {REMEDY}"));
    }
    Ok(value)
}

/// Returns the hash that stands for a name.
pub(super) fn name(parts: &[&str]) -> u64 {
    let mut hash = blake3::Hasher::new();
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    let [first, ..] = *hash.finalize().as_bytes().as_chunks().0 else { return 1 };
    u64::from_le_bytes(first).max(1)
}

/// Returns the hash of a pair of names, by the finaliser of splitmix64.
fn pair(context: u64, action: u64) -> u64 {
    let mut hash = context.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ action;
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

impl Contents {
    /// Adds features and returns their place.
    pub(super) fn add_features(&mut self, features: impl IntoIterator<Item = (u64, f32)>) -> Range<usize> {
        let start = self.features.len();
        self.features.extend(features);
        start..self.features.len()
    }

    /// Adds actions by the places of their features, and returns their place.
    pub(super) fn add_actions(&mut self, actions: impl IntoIterator<Item = Range<usize>>) -> Range<usize> {
        let start = self.actions.len();
        self.actions.extend(actions);
        start..self.actions.len()
    }

    pub(super) fn add_event(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Iterates over the feature pairs of an action, with their values.
    fn pairs(&self, event: &Event, action: usize, interactions: bool) -> impl Iterator<Item = (u64, f64)> {
        let features = |place: &Range<usize>| &self.features[place.clone()];
        let of_action = features(&self.actions[event.actions.start + action]);
        features(&event.context).iter().flat_map(move |(context, c)| {
            let kept = move |other: &&(u64, f32)| interactions || *context == CONSTANT || other.0 == CONSTANT;
            let value = move |(name, a): &(u64, f32)| (pair(*context, *name), f64::from(*c) * f64::from(*a));
            of_action.iter().filter(kept).map(value)
        })
    }

    fn all_pairs(&self, interactions: bool) -> impl Iterator<Item = (u64, f64)> {
        let of = move |event| (0..Event::count(event)).flat_map(move |action| self.pairs(event, action, interactions));
        self.events.iter().flat_map(of)
    }
}

impl Event {
    fn count(&self) -> usize {
        self.actions.len()
    }
}

impl ChoiceLog {
    /// Parses a log, and recognises its format by the first line:
    ///
    /// - *VW text* has a `|`. A line `action:cost:probability | features` is an event with actions 1 to K, where K is the largest
    ///   action of the log. If there are lines without a label or with `shared`, each line is an action instead, and a blank line
    ///   ends an event. The reward is −cost.
    /// - *CSV with the column `propensity`*: lines with the same `step` are the actions of an event, with columns x_1 to x_d. `reward` and
    ///   `propensity` are empty except for the chosen action.
    /// - *Open Bandit CSV* has a column `propensity_score` or `pscore`. Each line is an event with the columns `item_id` or `action`, and
    ///   `click` or `reward`. Optional are `position`, `user_feature…`, and one `user-item_affinity_K` for each action.
    ///
    /// `interactions` includes products of context and action features. Without `dimension`, it is the smallest of [`DIMENSIONS`] that
    /// holds all feature pairs, or the largest one.
    ///
    /// # Errors
    /// The dimension is not supported, the text is malformed, a propensity is missing or 1 although other actions were available, or every event has a single
    /// action.
    pub fn parse(text: &str, interactions: bool, dimension: Option<usize>) -> Result<Self, ChoiceLogError> {
        if let Some(dimension) = dimension.filter(|dimension| !DIMENSIONS.contains(dimension)) {
            let known: Vec<_> = DIMENSIONS.iter().map(ToString::to_string).collect();
            let reason = format!("dimension {dimension} is not supported; use one of {}", known.join(", "));
            return Err(ChoiceLogError::log(reason));
        }
        let Some(first) = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#')) else {
            return Err(ChoiceLogError::log("log is empty"));
        };
        let contents = if first.contains('|') { vw::parse(text)? } else { csv::parse(text)? };
        if contents.events.is_empty() {
            return Err(ChoiceLogError::log("log has no events"));
        }
        if contents.events.iter().all(|event| event.count() == 1) {
            return Err(ChoiceLogError::log("each event has a single action; list all actions that were available"));
        }
        let rows = contents.events.iter().map(Event::count).sum::<usize>();
        if rows > MAX_ROWS {
            return Err(ChoiceLogError::log(format!(
                "log has {rows} actions at its events, more than {MAX_ROWS}; split it"
            )));
        }
        Ok(Self::new(contents, interactions, dimension))
    }

    fn new(contents: Contents, interactions: bool, dimension: Option<usize>) -> Self {
        let most = dimension.or(DIMENSIONS.last().copied()).unwrap_or(1);
        let mut coordinates = BTreeMap::new();
        for (name, _) in contents.all_pairs(interactions) {
            let next = coordinates.len();
            coordinates.entry(name).or_insert(next);
            if coordinates.len() > most {
                break;
            }
        }
        let fitting = DIMENSIONS.iter().copied().find(|d| *d >= coordinates.len());
        let dimension = dimension.or(fitting).unwrap_or(most);
        let coordinates = Some(coordinates).filter(|coordinates| coordinates.len() <= most);
        let mut log = Self { dimension, interactions, coordinates, scale: 1.0, contents };
        let (mut row, mut largest) = (vec![0.0; dimension], 1.0_f64);
        for event in &log.contents.events {
            for action in 0..event.count() {
                log.fill(event, action, &mut row);
                largest = largest.max(row.iter().map(|x| x * x).sum::<f64>().sqrt());
            }
        }
        log.scale = 1.0 / largest;
        log
    }

    /// Computes the unscaled feature vector of an action.
    fn fill(&self, event: &Event, action: usize, row: &mut [f64]) {
        row.fill(0.0);
        for (name, value) in self.contents.pairs(event, action, self.interactions) {
            match &self.coordinates {
                Some(coordinates) => row[coordinates[&name]] += value,
                None => {
                    let sign = if name >> 63 == 0 { 1.0 } else { -1.0 };
                    row[(name % self.dimension as u64) as usize] += sign * value;
                }
            }
        }
    }

    /// Returns the feature vector of an action of an event.
    pub(super) fn row(&self, event: usize, action: usize) -> Vec<f32> {
        let mut row = vec![0.0; self.dimension];
        self.fill(&self.contents.events[event], action, &mut row);
        row.iter().map(|x| (x * self.scale) as f32).collect()
    }

    /// Computes the feature vectors of all actions of an event, one after the other.
    pub(super) fn rows(&self, event: usize, rows: &mut Vec<f32>) {
        let event = &self.contents.events[event];
        let mut row = vec![0.0; self.dimension];
        rows.clear();
        for action in 0..event.count() {
            self.fill(event, action, &mut row);
            rows.extend(row.iter().map(|x| (x * self.scale) as f32));
        }
    }

    pub(super) fn events(&self) -> &[Event] {
        &self.contents.events
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.contents.events.len()
    }

    /// Returns true if the log has no events, which [`parse`](Self::parse) rejects.
    pub fn is_empty(&self) -> bool {
        self.contents.events.is_empty()
    }

    /// Returns the largest number of available actions.
    pub fn most_actions(&self) -> usize {
        self.contents.events.iter().map(Event::count).max().unwrap_or(0)
    }

    /// Returns d, the dimension of feature vectors.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Returns the number of feature pairs; `None` if there are more than dimensions, so that they are hashed.
    pub fn features(&self) -> Option<usize> {
        self.coordinates.as_ref().map(BTreeMap::len)
    }

    /// Returns the factor that brings all feature vectors into the unit ball, at most 1.
    pub fn scale(&self) -> f64 {
        self.scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ChoiceLog, ChoiceLogError> {
        ChoiceLog::parse(text, true, None)
    }

    /// Returns chosen position, reward, propensity and number of actions of each event.
    fn outcomes(log: &ChoiceLog) -> Vec<(usize, f64, f64, usize)> {
        log.events().iter().map(|event| (event.chosen, event.reward, event.propensity, event.count())).collect()
    }

    fn rows(log: &ChoiceLog, event: usize) -> Vec<f32> {
        let mut rows = Vec::new();
        log.rows(event, &mut rows);
        rows
    }

    const OWN: &str = "step,x_1,x_2,reward,propensity\n1,0.6,0.8,,\n1,1,0,-2,0.25\n# comment\n2,0,3,0.5,1\n";

    #[test]
    fn csv_keeps_features_and_divides_them_by_the_largest_norm() {
        let log = parse(OWN).unwrap();
        assert_eq!(outcomes(&log), [(1, -2.0, 0.25, 2), (0, 0.5, 1.0, 1)]);
        assert_eq!((log.dimension(), log.features()), (2, Some(2)));
        assert!((log.scale() - 1.0 / 3.0).abs() < 1e-15);
        assert_eq!(rows(&log, 0), [0.6_f32, 0.8, 1.0, 0.0].map(|x| (f64::from(x) / 3.0) as f32));
    }

    /// Coordinates in order of appearance: constant, s, a, s·a for the first action; the second has b in place of a.
    #[test]
    fn vw_lines_of_actions_have_products_of_context_and_action() {
        let text = "shared |user s:0.5\n0:-1.5:0.2 |item a\n'tag |item b:2\n\nshared |user\n|item a\n0:1:0.5 |item b\n";
        let log = ChoiceLog::parse(text, true, Some(8)).unwrap();
        assert_eq!(outcomes(&log), [(0, 1.5, 0.2, 2), (1, -1.0, 0.5, 2)]);
        assert_eq!(log.features(), Some(6));
        let unscaled: Vec<f64> = rows(&log, 0).iter().map(|x| f64::from(*x) / log.scale()).collect();
        // Pairs in order: 1, a, s, s·a, then b and s·b.
        let expected = [1.0, 1.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.5, 0.0, 2.0, 1.0, 0.0, 0.0];
        assert!(unscaled.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{unscaled:?}");
        let plain = ChoiceLog::parse(text, false, None).unwrap();
        assert_eq!(plain.features(), Some(4), "1, a, s and b");
    }

    /// A coordinate for each action and feature, the constant included.
    #[test]
    fn vw_lines_of_events_have_weights_for_each_action() {
        let log = parse("1:0:0.5 | u:0.5\n3:2:0.25 | u\n2 1:1:0.5 |\n").unwrap();
        assert_eq!(outcomes(&log), [(0, 0.0, 0.5, 3), (2, -2.0, 0.25, 3), (1, -1.0, 0.5, 2)]);
        assert_eq!((log.features(), log.dimension()), (Some(6), 8));
        let norm = f64::sqrt(2.0);
        let expected = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        // Pairs of the first event: 1·a for a = 1; all actions share nothing.
        let row = log.row(2, 1);
        assert!(row.iter().zip(expected).all(|(x, e)| (f64::from(*x) - e / norm).abs() < 1e-6), "{row:?}");
    }

    #[test]
    fn open_bandit_columns_give_actions_affinities_and_one_hot_user_features() {
        let text = ",timestamp,item_id,position,click,propensity_score,user_feature_0,user-item_affinity_0,user-item_affinity_1\n\
            0,2019,1,3,1,0.25,ab,0.0,2.0\n1,2019,0,1,0,0.75,cd,0.0,0.0\n";
        let log = ChoiceLog::parse(text, false, None).unwrap();
        assert_eq!(outcomes(&log), [(1, 1.0, 0.25, 2), (0, 0.0, 0.75, 2)]);
        // Constant, two actions, affinity, two positions, two users.
        assert_eq!(log.features(), Some(8));
        let squares = |x: Vec<f32>| x.iter().map(|x| (f64::from(*x) / log.scale()).powi(2)).sum::<f64>();
        assert!((squares(log.row(0, 1)) - 8.0).abs() < 1e-5, "1, action, affinity 2, position, user");
        assert!((squares(log.row(1, 0)) - 4.0).abs() < 1e-5);
        let pipeline = parse("action,reward,pscore,user_feature_0\n0,0.5,0.5,1.5\n2,1,0.3,-2\n").unwrap();
        assert_eq!(outcomes(&pipeline), [(0, 0.5, 0.5, 3), (2, 1.0, 0.3, 3)]);
    }

    /// Inner products survive signed hashing on average; here only that the vector is a signed sum of all pairs.
    #[test]
    fn features_beyond_the_dimension_are_hashed_with_a_sign() {
        let features: String = (0..100).map(|j| format!(" f{j}")).collect();
        let log = ChoiceLog::parse(&format!("1:1:0.5 |{features}\n2:1:0.5 |{features}\n"), true, Some(8)).unwrap();
        assert_eq!((log.features(), log.dimension()), (None, 8));
        let row: Vec<f64> = log.row(0, 0).iter().map(|x| f64::from(*x) / log.scale()).collect();
        assert!(row.iter().all(|x| (x - x.round()).abs() < 1e-4), "{row:?}");
        let sum: f64 = row.iter().map(|x| x.round().abs()).sum();
        assert!(sum <= 101.0 && (sum as u32).is_multiple_of(2) == (101_u32).is_multiple_of(2), "{row:?}");
        assert!(row.iter().any(|x| *x < 0.0) && row.iter().any(|x| *x > 0.0), "{row:?}");
        assert_ne!(log.row(0, 0), log.row(0, 1));
    }

    #[test]
    fn errors_name_line_column_and_remedy() {
        let errors = [
            ("", "log is empty"),
            ("a,b\n1,2\n", "line 1: unknown format"),
            ("step,x_1,reward\n1,0,1\n", "line 1: column propensity is missing; record, for each choice,"),
            ("step,x_2,reward,propensity\n", "line 1: column x_1 is missing"),
            ("step,x_1,y,reward,propensity\n", "line 1: unknown column y; expected step, x_1"),
            ("step,x_1,reward,propensity\n", "log has no events"),
            ("step,x_1,reward,propensity\n1,0,1\n", "line 2: 3 fields, but the header has 4"),
            ("step,x_1,reward,propensity\n1,0,1,0.5\n1,0,1,0.5\n", "line 2, reward: expected a reward for exactly one"),
            ("step,x_1,reward,propensity\n1,a,1,0.5\n", "line 2, x_1: 'a' is not a finite number"),
            ("step,x_1,reward,propensity\n1,1e9,1,0.5\n", "line 2, x_1: feature is 1e9; scale"),
            ("step,x_1,reward,propensity\n1,1,1e16,0.5\n", "line 2, reward: value is 1e16; scale"),
            ("step,x_1,reward,propensity\n1,1,1,\n", "line 2, propensity: propensity is missing; record"),
            ("step,x_1,reward,propensity\n1,1,1,0\n", "line 2, propensity: propensity must be from 1e-9 to 1, got 0"),
            ("step,x_1,reward,propensity\n1,1,1,NaN\n", "line 2, propensity: 'NaN' is not a finite number"),
            ("step,x_1,reward,propensity\n1,1,1,1\n1,1,,\n", "line 2, propensity: propensity is 1 although 2 actions"),
            ("step,x_1,reward,propensity\n1,1,1,1\n", "each event has a single action"),
            ("item_id,click\n1,1\n", "line 1: column propensity_score or pscore is missing; record"),
            ("item_id,click,pscore\n-1,1,0.5\n", "line 2, item_id: '-1' is not an action number from 0 to 9999"),
            ("item_id,click,pscore\n1,1,1\n", "line 2, pscore: propensity is 1 although 2 actions"),
            ("1:1 | a\n2:1:0.5 | a\n", "line 1, probability: propensity is missing; record"),
            ("1 | a\n2:1:0.5 | a\n", "line 1: no label action:cost:probability; record"),
            ("1:1:1 | a\n2:1:0.5 | a\n", "line 1, probability: propensity is 1 although 2 actions"),
            ("0:1:0.5 | a\n", "line 1, action: '0' is not an action number from 1 to 10000"),
            ("1:2:3:4 | a\n", "line 1: invalid label '1:2:3:4'"),
            ("1:1:0.5 | a:x\n", "line 1, a: 'x' is not a finite number"),
            ("1:1:0.5 | a\nb\n", "line 2: expected 'label | features'"),
            ("shared | a\n| b\n| c\n", "line 2: expected one action of the event with a label"),
            ("shared | a\nshared | b\n", "line 2: shared features must be the first line"),
        ];
        for (text, expected) in errors {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error:?} lacks {expected:?}");
        }
        let error = ChoiceLog::parse(OWN, true, Some(7)).unwrap_err().to_string();
        assert!(error.starts_with("dimension 7 is not supported; use one of 2, 4, 8"), "{error}");
    }
}
