//! Readers of CSV logs: one line per action, or one line per event with the columns of the Open Bandit Pipeline.

use super::choice_log::{
    CONSTANT, ChoiceLogError, Contents, Event, MAX_ACTIONS, REMEDY, feature, name, propensity, reward,
};

/// Lines of a CSV file after its header, split into fields.
struct Table<'a> {
    /// Number of the header's line.
    header: usize,
    names: Vec<&'a str>,
    /// Number and fields of each line.
    lines: Vec<(usize, Vec<&'a str>)>,
}

impl<'a> Table<'a> {
    fn parse(text: &'a str) -> Result<Self, ChoiceLogError> {
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let split = |line: &'a str| line.split(',').map(str::trim).collect::<Vec<_>>();
        let (header, names) = lines.next().map_or((1, Vec::new()), |(number, line)| (number, split(line)));
        let lines: Vec<_> = lines.map(|(number, line)| (number, split(line))).collect();
        match lines.iter().find(|(_, fields)| fields.len() != names.len()) {
            Some((line, fields)) => {
                let reason = format!("{} fields, but the header has {}", fields.len(), names.len());
                Err(ChoiceLogError::line(*line, reason))
            }
            None => Ok(Self { header, names, lines }),
        }
    }

    fn find(&self, names: &[&str]) -> Option<usize> {
        self.names.iter().position(|name| names.contains(name))
    }

    fn require(&self, names: &[&str]) -> Result<usize, ChoiceLogError> {
        self.find(names).ok_or_else(|| self.invalid(format!("column {} is missing", names.join(" or "))))
    }

    /// Creates an error about the header.
    fn invalid(&self, reason: impl Into<String>) -> ChoiceLogError {
        ChoiceLogError::line(self.header, reason)
    }
}

/// Parses a CSV log of either kind.
pub(super) fn parse(text: &str) -> Result<Contents, ChoiceLogError> {
    let table = Table::parse(text)?;
    if table.find(&["step"]).is_some() {
        return parse_actions(&table);
    }
    if table.find(ACTION).is_some() {
        return parse_events(&table);
    }
    Err(table.invalid("unknown format; expected VW text, or a CSV header with the column step or item_id"))
}

/// Parses lines that are actions: `step`, x_1 to x_d, `reward`, `propensity`.
fn parse_actions(table: &Table<'_>) -> Result<Contents, ChoiceLogError> {
    let [step, reward_at] = [table.require(&["step"])?, table.require(&["reward"])?];
    let propensity_at = table.find(&["propensity"]);
    let propensity_at =
        propensity_at.ok_or_else(|| table.invalid(format!("column propensity is missing; {REMEDY}")))?;
    let dimension = table.names.iter().filter(|name| name.starts_with("x_")).count();
    let x = (1..=dimension.max(1)).map(|j| table.require(&[&format!("x_{j}")])).collect::<Result<Vec<_>, _>>()?;
    let known = |at: &usize| [step, reward_at, propensity_at].contains(at) || x.contains(at);
    if let Some(at) = (0..table.names.len()).find(|at| !known(at)) {
        let reason = format!("unknown column {}; expected step, x_1, ..., x_d, reward, propensity", table.names[at]);
        return Err(table.invalid(reason));
    }
    let names: Vec<u64> = x.iter().map(|at| name(&[table.names[*at]])).collect();
    let mut contents = Contents::default();
    let constant = contents.add_features([(CONSTANT, 1.0)]);
    for lines in table.lines.chunk_by(|(_, a), (_, b)| a[step] == b[step]) {
        let first = lines[0].0;
        if lines.len() > MAX_ACTIONS {
            return Err(ChoiceLogError::line(first, format!("step has more than {MAX_ACTIONS} actions")));
        }
        let is_chosen = |(_, (_, fields)): &(usize, &(usize, Vec<&str>))| !fields[reward_at].is_empty();
        let mut chosen = lines.iter().enumerate().filter(is_chosen);
        let (Some((chosen, (line, fields))), None) = (chosen.next(), chosen.next()) else {
            let reason = "expected a reward for exactly one action of the step, the chosen one";
            return Err(ChoiceLogError::at(first, "reward", format!("{reason}; step is {}", lines[0].1[step])));
        };
        let mut actions = Vec::new();
        for (line, fields) in lines {
            let values = x.iter().map(|at| feature(*line, table.names[*at], fields[*at]));
            let values = values.collect::<Result<Vec<_>, _>>()?;
            actions.push(contents.add_features(names.iter().copied().zip(values)));
        }
        let event = Event {
            context: constant.clone(),
            actions: contents.add_actions(actions),
            chosen,
            reward: reward(*line, "reward", fields[reward_at])?,
            propensity: propensity(*line, "propensity", fields[propensity_at], lines.len())?,
        };
        contents.add_event(event);
    }
    Ok(contents)
}

/// Names of the columns of the Open Bandit Dataset, and of the Open Bandit Pipeline.
const ACTION: &[&str] = &["item_id", "action"];
const REWARD: &[&str] = &["click", "reward"];
const PROPENSITY: &[&str] = &["propensity_score", "pscore"];
const AFFINITY: &str = "user-item_affinity_";

/// Parses lines that are events, with the columns of the Open Bandit Pipeline.
///
/// Features of an action are a constant, its number and its affinity. Those of the context are a constant, the position and the
/// user features. A user feature is a number if all of its values are; otherwise each value is a feature.
fn parse_events(table: &Table<'_>) -> Result<Contents, ChoiceLogError> {
    let [action_at, reward_at] = [table.require(ACTION)?, table.require(REWARD)?];
    let missing = || table.invalid(format!("column {} is missing; {REMEDY}", PROPENSITY.join(" or ")));
    let propensity_at = table.find(PROPENSITY).ok_or_else(missing)?;
    let columns = |prefix: &str| -> Vec<usize> {
        (0..table.names.len()).filter(|at| table.names[*at].starts_with(prefix)).collect()
    };
    let context: Vec<(usize, bool)> = columns("user_feature")
        .into_iter()
        .map(|at| (at, table.lines.iter().all(|(_, fields)| fields[at].parse::<f64>().is_ok_and(f64::is_finite))))
        .chain(table.find(&["position"]).map(|at| (at, false)))
        .collect();
    let affinity = columns(AFFINITY).len();
    let affinity = (0..affinity).map(|a| table.require(&[&format!("{AFFINITY}{a}")])).collect::<Result<Vec<_>, _>>()?;
    let index = |line: usize, text: &str| {
        let value = text.parse::<usize>().ok().filter(|action| *action < MAX_ACTIONS);
        let value = value.filter(|action| affinity.is_empty() || *action < affinity.len());
        let limit = if affinity.is_empty() { MAX_ACTIONS } else { affinity.len() };
        let reason = || format!("'{text}' is not an action number from 0 to {}", limit - 1);
        value.ok_or_else(|| ChoiceLogError::at(line, table.names[action_at], reason()))
    };
    let mut largest = 0;
    for (line, fields) in &table.lines {
        largest = largest.max(index(*line, fields[action_at])?);
    }
    let count = affinity.len().max(largest + 1);
    let numbers: Vec<u64> = (0..count).map(|action| name(&["action", &action.to_string()])).collect();
    let of_affinity = name(&["affinity"]);
    let mut contents = Contents::default();
    let plain: Vec<_> = numbers.iter().map(|name| contents.add_features([(CONSTANT, 1.0), (*name, 1.0)])).collect();
    let shared = contents.add_actions(plain.iter().cloned());
    for (line, fields) in &table.lines {
        let mut features = vec![(CONSTANT, 1.0)];
        for (at, is_number) in &context {
            let (column, text) = (table.names[*at], fields[*at]);
            features.push(match is_number {
                true => (name(&[column]), feature(*line, column, text)?),
                false => (name(&[column, text]), 1.0),
            });
        }
        let context = contents.add_features(features);
        let mut actions = plain.clone();
        for (action, at) in affinity.iter().enumerate() {
            let value = feature(*line, table.names[*at], fields[*at])?;
            if value != 0.0 {
                actions[action] =
                    contents.add_features([(CONSTANT, 1.0), (numbers[action], 1.0), (of_affinity, value)]);
            }
        }
        let actions = if actions == plain { shared.clone() } else { contents.add_actions(actions) };
        let (reward_name, propensity_name) = (table.names[reward_at], table.names[propensity_at]);
        contents.add_event(Event {
            context,
            actions,
            chosen: index(*line, fields[action_at])?,
            reward: reward(*line, reward_name, fields[reward_at])?,
            propensity: propensity(*line, propensity_name, fields[propensity_at], count)?,
        });
    }
    Ok(contents)
}
