//! The planted bugs of `tests/planted.toml` fit the current source. `./ci.sh planted` measures whether they are found.

use fedbandit_tests::planted::{Bug, bugs};

#[test]
fn planted_bugs_apply_to_the_source() {
    let bugs = bugs().unwrap();
    assert!(!bugs.is_empty(), "tests/planted.toml is empty");
    let errors: Vec<String> =
        bugs.iter().filter_map(|(name, bug)| Some(format!("{name}: {}", bug.plant().err()?))).collect();
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn bug_without_its_text_in_the_source_is_rejected() {
    let bug: Bug = toml::from_str("description = 'outdated'\nold = 'no such text'\nnew = ''").unwrap();
    let error = bug.plant().unwrap_err();
    assert!(error.starts_with("\"no such text\" occurs 0 times in core/src and host/src"), "{error}");
}
