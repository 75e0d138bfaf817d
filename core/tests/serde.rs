//! JSON produced by the `serde` feature.
#![cfg(feature = "serde")]

use fedbandit_core::{Action, Agent, Choice, Prior, Rewards, SelectError};

#[test]
fn plain_data_round_trips_through_json() {
    let prior = Prior { lambda: 0.5, beta: 1.0, episode_len: 8, rewards: Rewards::Clipped };
    let json = serde_json::to_string(&prior).unwrap();
    assert_eq!(json, r#"{"lambda":0.5,"beta":1.0,"episode_len":8,"rewards":"Clipped"}"#);
    assert_eq!(serde_json::from_str::<Prior>(&json).unwrap(), prior);

    let mut agent = Agent::<2>::new(&prior).unwrap();
    agent.record(&Action::from([0.5, 0.25]), -0.5).unwrap();
    let json = serde_json::to_string(&agent.finish()).unwrap();
    assert_eq!(
        json,
        r#"{"episode":1,"steps":1,"reward_sum":-0.5,"gram":[0.25,0.125,0.0625],"feature_sum":[-0.25,-0.125]}"#
    );

    let choice = Choice { index: 3, score: 0.5 };
    assert_eq!(serde_json::from_str::<Choice>(r#"{"index":3,"score":0.5}"#).unwrap(), choice);
    assert_eq!(serde_json::to_string(&SelectError::EmptyDecisionSet).unwrap(), r#""EmptyDecisionSet""#);
}
