//! `fedbandit evaluate`: formats, JSON and exit codes.

use std::fs;
use std::path::Path;

use crate::directory::Directory;
use crate::simulate::{json, refuses, stdout};

/// Two actions, each chosen with probability 1/2. Action 1 (in VW) has cost 0, action 2 has cost −1.
fn logs(here: &Directory) {
    let (mut csv, mut vw, mut adf, mut obp) = (
        String::from("step,x_1,x_2,reward,propensity\n"),
        String::new(),
        String::new(),
        String::from("item_id,click,pscore\n"),
    );
    for step in 0..200 {
        let second = step % 2;
        csv += &[format!("{step},1,0,0,0.5\n{step},0,1,,\n"), format!("{step},1,0,,\n{step},0,1,1,0.5\n")][second];
        vw += ["1:0:0.5 | hour:0.5\n", "2:-1:0.5 | hour:0.5\n"][second];
        adf += ["shared | hour\n0:0:0.5 | a\n| b\n\n", "shared | hour\n| a\n0:-1:0.5 | b\n\n"][second];
        obp += ["0,0,0.5\n", "1,1,0.5\n"][second];
    }
    for (name, text) in [("log.csv", csv), ("log.vw", vw), ("log.adf", adf), ("log.obp", obp)] {
        here.file(name, &text);
    }
}

/// By definition: uniform earns 1/2, and greedy always chooses the second action, which earns 1.
#[test]
fn all_formats_of_one_log_give_the_same_values() {
    let here = Directory::new("evaluate");
    logs(&here);
    for log in ["log.csv", "log.vw", "log.adf", "log.obp"] {
        let result = json(&here.0, &format!("evaluate {log}"));
        assert_eq!((&result["events"], &result["actions"]), (&200.into(), &2.into()), "{log}");
        assert_eq!((&result["logged"], &result["config"]["log"]), (&0.5.into(), &log.into()));
        let names = result["policies"].as_array().unwrap().iter().map(|value| value["policy"].as_str().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), ["uniform", "linucb", "greedy"]);
        for (policy, expected) in [(0, 0.5), (2, 1.0)] {
            let estimates = result["policies"][policy]["estimates"].as_array().unwrap();
            let names: Vec<_> = estimates.iter().map(|estimate| estimate["estimator"].as_str().unwrap()).collect();
            assert_eq!(names, ["replay", "ips", "snips", "dr"]);
            for estimate in estimates {
                assert!((estimate["value"].as_f64().unwrap() - expected).abs() < 1e-6, "{log}: {estimate}");
            }
        }
        assert_eq!(result["policies"][2]["overlap"]["effective"], 100.0);
    }
    let table = stdout(&here.0, "evaluate log.csv --policy greedy --dim 4 --no-interactions --seed 7");
    assert!(table.starts_with("200 events, up to 2 actions, d = 4 (features: 2)\n"), "{table}");
}

#[test]
fn invalid_logs_and_options_have_their_exit_codes() {
    let here = Directory::new("evaluate-errors");
    logs(&here);
    here.file("missing.csv", "step,x_1,reward\n1,0.5,1\n1,0.2,\n");
    here.file("missing.vw", "1:0 | a\n2:1:0.5 | a\n");
    fs::write(here.0.join("binary"), [0xff, 0xfe]).unwrap();
    refuses(
        &here.0,
        "evaluate missing.csv",
        65,
        "missing.csv: line 1: column propensity is missing; record, for each choice,",
    );
    refuses(&here.0, "evaluate missing.vw", 65, "missing.vw: line 1, probability: propensity is missing");
    refuses(&here.0, "evaluate binary", 65, "binary: invalid utf-8");
    refuses(&here.0, "evaluate absent.csv", 74, "absent.csv: No such file");
    refuses(
        &here.0,
        "evaluate log.csv --policy best",
        2,
        "unknown policy 'best'; expected one of uniform, linucb, greedy",
    );
    refuses(&here.0, "evaluate log.csv --dim 7", 2, "expected one of 1, 2, 3");
}

/// The guide shows a file and the error that it causes.
#[test]
fn deterministic_log_is_rejected_as_documented() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/logs.md");
    let guide = fs::read_to_string(guide).unwrap();
    let (_, rest) = guide.split_once("<!-- file: certain.csv -->\n```csv\n").unwrap();
    let (file, rest) = rest.split_once("```").unwrap();
    let (_, rest) = rest.split_once("$ fedbandit evaluate certain.csv\n").unwrap();
    let here = Directory::new("evaluate-certain");
    here.file("certain.csv", file);
    refuses(&here.0, "evaluate certain.csv", 65, rest.split_once("```").unwrap().0);
}
