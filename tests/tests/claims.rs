//! docs/simulation.md is what the simulation measures.

use std::fs;
use std::path::Path;

use fedbandit_tests::measure::claims;

/// All claims take half an hour; two of them stand for the rest.
#[test]
fn recorded_claims_match_new_measurement() {
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"));
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("claims");
    let _ = fs::remove_dir_all(&out);
    claims::measure(&out, &["demonstration", "mean"]).unwrap();
    let [old, new] = [docs, &out].map(|directory| {
        let text = fs::read_to_string(directory.join("simulation.md")).unwrap();
        text.lines()
            .filter(|line| !line.starts_with("Measured with fedbandit "))
            .fold(String::new(), |text, line| text + line + "\n")
    });
    for section in new.split("\n## ") {
        assert!(old.contains(section.trim_end()), "docs/simulation.md differs from the measurement: {section}");
    }
    let figures: Vec<_> = fs::read_dir(out.join("figures")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!figures.is_empty());
    for name in figures {
        let [old, new] = [docs, &out].map(|directory| fs::read(directory.join("figures").join(&name)).ok());
        assert!(old == new, "docs/figures/{} differs from the measurement", name.display());
    }
}

#[test]
fn unknown_claim_is_rejected() {
    let error = claims::measure(Path::new("unused"), &["nonsense"]).unwrap_err();
    assert!(error.starts_with("unknown claim 'nonsense'; expected one of demonstration"), "{error}");
}
