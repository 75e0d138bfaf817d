//! Reader of contextual-bandit logs in the text format of Vowpal Wabbit.

use super::choice_log::{
    CONSTANT, ChoiceLogError, Contents, Event, MAX_ACTIONS, REMEDY, feature, name, propensity, reward,
};

/// A line `label |namespace features …`.
struct Line<'a> {
    number: usize,
    shared: bool,
    labels: Vec<Label<'a>>,
    features: Vec<(u64, f32)>,
}

/// A label `action`, or `action:cost:probability` of the chosen action.
struct Label<'a> {
    action: &'a str,
    outcome: Option<(&'a str, &'a str)>,
}

/// Parses a log with one event per line, or with one action per line if some lines have no label.
pub(super) fn parse(text: &str) -> Result<Contents, ChoiceLogError> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let lines: Vec<_> = lines.filter(|(_, line)| !line.starts_with('#')).collect();
    let parsed = lines.iter().filter(|(_, line)| !line.is_empty()).map(|(number, line)| Line::parse(*number, line));
    let parsed = parsed.collect::<Result<Vec<_>, _>>()?;
    if parsed.iter().all(|line| !line.shared && !line.labels.is_empty()) {
        return parse_events(parsed);
    }
    let mut rest = parsed.into_iter();
    let mut contents = Contents::default();
    for block in lines.split(|(_, line)| line.is_empty()).filter(|block| !block.is_empty()) {
        add_event(&mut contents, rest.by_ref().take(block.len()).collect())?;
    }
    Ok(contents)
}

impl<'a> Line<'a> {
    fn parse(number: usize, line: &'a str) -> Result<Self, ChoiceLogError> {
        let missing = || ChoiceLogError::line(number, "expected 'label | features', found no '|'");
        let (label, rest) = line.split_once('|').ok_or_else(missing)?;
        let mut parsed = Self { number, shared: false, labels: Vec::new(), features: vec![(CONSTANT, 1.0)] };
        // A word that starts with ' is a tag.
        for word in label.split_whitespace().filter(|word| !word.starts_with('\'')) {
            if word == "shared" {
                parsed.shared = true;
                continue;
            }
            let parts: Vec<&str> = word.split(':').collect();
            parsed.labels.push(match parts[..] {
                [action] => Label { action, outcome: None },
                [action, cost] => Label { action, outcome: Some((cost, "")) },
                [action, cost, probability] => Label { action, outcome: Some((cost, probability)) },
                _ => {
                    let reason = format!("invalid label '{word}'; expected action:cost:probability");
                    return Err(ChoiceLogError::line(number, reason));
                }
            });
        }
        for namespace in rest.split('|') {
            // A namespace follows its bar without a space.
            let (head, features) = match namespace.split_once(char::is_whitespace) {
                Some((head, features)) => (head, features),
                None => (namespace, ""),
            };
            let (space, weight) = weighted(number, head)?;
            for word in features.split_whitespace() {
                let (feature, value) = weighted(number, word)?;
                parsed.features.push((name(&[space, feature]), weight * value));
            }
        }
        Ok(parsed)
    }

    /// Returns the label with cost and probability, and its position.
    fn outcome(&self) -> Option<(usize, &Label<'a>, &'a str, &'a str)> {
        let mut labels = self.labels.iter().enumerate();
        labels.find_map(|(at, label)| label.outcome.map(|(cost, probability)| (at, label, cost, probability)))
    }
}

/// Parses `name` or `name:value`.
fn weighted(line: usize, word: &str) -> Result<(&str, f32), ChoiceLogError> {
    match word.rsplit_once(':') {
        Some((name, value)) => Ok((name, feature(line, name, value)?)),
        None => Ok((word, 1.0)),
    }
}

/// Parses an action number, counted from 1.
fn action(line: usize, text: &str) -> Result<usize, ChoiceLogError> {
    let number = text.parse().ok().filter(|action| (1..=MAX_ACTIONS).contains(action));
    let reason = || format!("'{text}' is not an action number from 1 to {MAX_ACTIONS}");
    number.ok_or_else(|| ChoiceLogError::at(line, "action", reason()))
}

/// Parses lines that are events. Actions 1 to K are available unless a line has several labels. The feature of an action is its
/// number.
fn parse_events(lines: Vec<Line<'_>>) -> Result<Contents, ChoiceLogError> {
    let mut largest = 1;
    for line in &lines {
        for label in &line.labels {
            largest = largest.max(action(line.number, label.action)?);
        }
    }
    let mut contents = Contents::default();
    let of_action = |number: usize| (name(&["action", &number.to_string()]), 1.0);
    let places: Vec<_> = (1..=largest).map(|number| contents.add_features([of_action(number)])).collect();
    let all = contents.add_actions(places.iter().cloned());
    for line in lines {
        let Some((at, label, cost, probability)) = line.outcome() else {
            return Err(ChoiceLogError::line(line.number, format!("no label action:cost:probability; {REMEDY}")));
        };
        let (chosen, actions) = if line.labels.len() == 1 {
            (action(line.number, label.action)? - 1, all.clone())
        } else {
            let available = line.labels.iter().map(|label| action(line.number, label.action));
            let available = available.collect::<Result<Vec<_>, _>>()?;
            (at, contents.add_actions(available.into_iter().map(|action| places[action - 1].clone())))
        };
        let event = Event {
            chosen,
            reward: -reward(line.number, "cost", cost)?,
            propensity: propensity(line.number, "probability", probability, actions.len())?,
            context: contents.add_features(line.features.iter().copied()),
            actions,
        };
        contents.add_event(event);
    }
    Ok(contents)
}

/// Adds an event with one line per action, after an optional line of the context.
fn add_event(contents: &mut Contents, lines: Vec<Line<'_>>) -> Result<(), ChoiceLogError> {
    let (context, lines) = match lines.split_first() {
        Some((first, rest)) if first.shared => (first.features.clone(), rest),
        _ => (vec![(CONSTANT, 1.0)], &lines[..]),
    };
    let first = lines.first().map_or(1, |line| line.number);
    if let Some(line) = lines.iter().find(|line| line.shared) {
        return Err(ChoiceLogError::line(line.number, "shared features must be the first line of an event"));
    }
    if lines.len() > MAX_ACTIONS {
        return Err(ChoiceLogError::line(first, format!("event has more than {MAX_ACTIONS} actions")));
    }
    let mut chosen = lines.iter().enumerate().filter_map(|(at, line)| Some((at, line, line.outcome()?)));
    let (Some((chosen, line, (_, _, cost, probability))), None) = (chosen.next(), chosen.next()) else {
        let reason = format!("expected one action of the event with a label action:cost:probability; {REMEDY}");
        return Err(ChoiceLogError::line(first, reason));
    };
    let context = contents.add_features(context);
    let actions: Vec<_> = lines.iter().map(|line| contents.add_features(line.features.iter().copied())).collect();
    let event = Event {
        context,
        actions: contents.add_actions(actions),
        chosen,
        reward: -reward(line.number, "cost", cost)?,
        propensity: propensity(line.number, "probability", probability, lines.len())?,
    };
    contents.add_event(event);
    Ok(())
}
