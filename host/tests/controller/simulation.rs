//! The simulation against independent calculations, and against the project's limits on regret.

use std::collections::BTreeSet;

use fedbandit::aggregate::Mean;
use fedbandit::algorithm::{Calibrated, Level, PaperRule, Rule};
use fedbandit::config::{AggregatorName, RewardKind, RunConfig, ScheduleName};
use fedbandit::simulation::{
    Attack, DIMENSIONS, Environment, GuardName, Job, Log, Logs, Outcome, Participation, SimulationConfig, run_all,
    simulate, simulate_rule,
};
use fedbandit_core::wire::{Channel, Identity, Message};
use fedbandit_core::{Agent, Prior, Rewards};

fn simulate_seed(config: &SimulationConfig, seed: u64) -> Outcome {
    simulate(config, &Logs::new(), seed, &|_| {}).unwrap()
}

/// Returns a run in the default world.
fn of(run: RunConfig) -> SimulationConfig {
    SimulationConfig { run, ..SimulationConfig::default() }
}

/// The paper's rule and few agents.
fn few() -> RunConfig {
    RunConfig { aggregator: AggregatorName::GeometricMedian, agents: 20, dim: 4, steps: 256, ..RunConfig::default() }
}

fn small() -> SimulationConfig {
    of(few())
}

/// Returns E max − E of A independent coordinates ⟨x, w⟩ of points uniform in the d-ball, by quadrature. Their density is
/// proportional to (1 − t²)^{(d−1)/2}.
fn random_regret_in_the_ball(d: usize, arms: i32) -> f64 {
    let steps = 200_000;
    let h = 2.0 / f64::from(steps);
    let density = |i: i32| {
        let t = -1.0 + h * (f64::from(i) + 0.5);
        (1.0 - t * t).powf((d as f64 - 1.0) / 2.0)
    };
    let whole: f64 = (0..steps).map(density).sum();
    let mut below = 0.0;
    // E max = 1 − ∫ F(t)^A dt over [−1, 1], and the mean is 0.
    let integral: f64 = (0..steps)
        .map(|i| {
            let middle = (below + density(i) / 2.0) / whole;
            below += density(i);
            middle.powi(arms) * h
        })
        .sum();
    1.0 - integral
}

/// The regret of random choices is a mean of 61,440 independent terms within [0, 2] and with a deviation below 0.25. Six
/// deviations are 0.006; false alarm below 2·10⁻⁹.
#[test]
fn random_regret_matches_the_distribution_of_the_ball() {
    for d in [2, 4, 8, 16] {
        let run = RunConfig { dim: d, agents: 20, steps: 3072, ..RunConfig::default() };
        let config = SimulationConfig { corrupt: 0.0, attack: Attack::None, ..of(run) };
        let outcome = simulate_seed(&config, 31);
        let expected = random_regret_in_the_ball(d, 10);
        let measured = outcome.regret_random / (20.0 * 3072.0);
        assert!((measured - expected).abs() < 0.006, "d = {d}: got {measured}, expected {expected}");
    }
}

/// A custom rule gives the same bits as the same rule by name. Attackers try messages on the custom rule, not on the configured
/// one.
#[test]
fn custom_rule_equals_the_same_rule_by_name() {
    let schedule = Calibrated { corruption: 0.3, theta_bound: 1.0, noise: None };
    let rule = || -> Box<dyn Rule + Send> { Box::new(PaperRule::new(Mean, Mean, schedule)) };
    let own = |config: &SimulationConfig| {
        let outcome = simulate_rule(config, &Logs::new(), 3, &rule, &|_| {}).unwrap();
        Outcome { agent_steps_per_cpu_second: 0.0, aggregator: "mean".into(), ..outcome }
    };
    for attack in [Attack::Collude, Attack::Adaptive] {
        let by = |aggregator| SimulationConfig { attack, ..of(RunConfig { aggregator, ..few() }) };
        let mean = by(AggregatorName::Mean);
        let named = Outcome { agent_steps_per_cpu_second: 0.0, ..simulate_seed(&mean, 3) };
        assert_eq!(own(&mean), named);
        assert_eq!(own(&by(AggregatorName::GeometricMedian)), named);
    }
    let private = of(RunConfig { rewards: RewardKind::Bounded, privacy: Some("4,1e-6".parse().unwrap()), ..few() });
    let solo = of(RunConfig { aggregator: AggregatorName::Solo, ..few() });
    let solo = SimulationConfig { attack: Attack::Adaptive, ..solo };
    for (config, key) in [(private, "privacy: "), (solo, "aggregator: solo")] {
        let error = simulate_rule(&config, &Logs::new(), 3, &rule, &|_| {}).unwrap_err();
        assert!(error.to_string().starts_with(key), "{error}");
    }
}

/// One decision set with rewards 1 and 0. Random choices lose 1/2 per step; agents lose nothing after the first episodes.
#[test]
fn regret_on_a_log_matches_its_rewards() {
    let log = Log::parse("step,x_1,x_2,reward\n1,1,0,1\n1,0,1,0\n", true).unwrap();
    let environment = Environment::Replay("log".into());
    let run = RunConfig { dim: 2, agents: 3, steps: 100, ..few() };
    let config = SimulationConfig { environment, corrupt: 0.0, attack: Attack::None, ..of(run) };
    let logs = Logs::from([("log".into(), log.into())]);
    let outcome = simulate(&config, &logs, 1, &|_| {}).unwrap();
    assert_eq!(outcome.regret_random, 3.0 * 100.0 / 2.0);
    assert_eq!(outcome.late, 0.0);
    assert_eq!(outcome.regret.fract(), 0.0, "each step has regret 0 or 1");
    assert_eq!(outcome.theta_error, None, "a log has no true parameter");
    let lost_first = outcome.trace.iter().find(|trace| trace.episode == 1).unwrap().regret;
    assert_eq!(outcome.after_first_episode, outcome.regret - lost_first);
}

/// Categories with an intercept do not span the space. Rounding may make eigenvalues of their Gram matrix negative.
#[test]
fn log_with_singular_gram_matrix_is_simulated() {
    let row = |category: usize, reward: usize| {
        let x: Vec<&str> = (0..7).map(|j| if j == category { "0.6" } else { "0" }).collect();
        format!("1,0.6,{},{reward}\n", x.join(","))
    };
    let rows: String = (0..100_000).map(|step| row(step % 7, step % 3)).collect();
    let log = Log::parse(&format!("step,x_1,x_2,x_3,x_4,x_5,x_6,x_7,x_8,reward\n{rows}"), false).unwrap();
    let environment = Environment::Replay("log".into());
    let run = RunConfig { dim: 8, agents: 3, steps: 10, ..few() };
    let config = SimulationConfig { environment, attack: Attack::FakeParameter, ..of(run) };
    assert!(simulate(&config, &Logs::from([("log".into(), log.into())]), 1, &|_| {}).is_ok());
}

#[test]
fn largest_rewards_are_simulated() {
    let run = RunConfig { rewards: RewardKind::Gaussian(1e15), theta_norm: 1e15, ..few() };
    for schedule in [ScheduleName::Calibrated, ScheduleName::Theorem] {
        let outcome = simulate_seed(&of(RunConfig { schedule, ..run }), 1);
        assert!(outcome.regret.is_finite() && outcome.regret_random > 1e15);
    }
}

/// All values but the speed are reproducible.
#[test]
fn reruns_on_any_number_of_threads_give_the_same_bytes() {
    let private = RunConfig {
        rewards: RewardKind::Bounded,
        privacy: Some("4,1e-6".parse().unwrap()),
        aggregator: AggregatorName::MedianOfMeans,
        ..few()
    };
    let configs = [
        SimulationConfig { attack: Attack::Adaptive, ..small() },
        SimulationConfig { attack: Attack::Optimal, participation: Participation::Sleepy, ..small() },
        SimulationConfig {
            attack: Attack::FakeParameter,
            ..of(RunConfig { aggregator: AggregatorName::Solo, ..few() })
        },
        SimulationConfig { corrupt: 0.2, environment: Environment::Drifting, ..of(private) },
    ];
    let jobs: Vec<Job> = configs.into_iter().map(|config| Job { config, seed: 5 }).collect();
    let text = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let outcomes = pool.install(|| run_all(&jobs, &Logs::new(), &|_| {}, &|_, _| {})).unwrap();
        let outcomes = outcomes.into_iter().map(|outcome| Outcome { agent_steps_per_cpu_second: 0.0, ..outcome });
        serde_json::to_string(&outcomes.collect::<Vec<_>>()).unwrap()
    };
    let once = text(1);
    assert_eq!(once, text(1));
    assert_eq!(once, text(3));
}

/// All rules have the same decision sets, and so the same regret of random choices, bit by bit. This includes the oracles,
/// which have honest agents only, and devices that are absent at times.
#[test]
fn all_aggregators_have_the_same_draws() {
    Participation::ALL.iter().copied().for_each(assert_same_draws);
}

fn assert_same_draws(participation: Participation) {
    let jobs: Vec<Job> = AggregatorName::ALL
        .iter()
        .map(|aggregator| of(RunConfig { aggregator: *aggregator, first_episodes: Some(1), ..few() }))
        .map(|config| Job { config: SimulationConfig { corrupt: 0.2, participation, ..config }, seed: 8 })
        .collect();
    let outcomes = run_all(&jobs, &Logs::new(), &|_| {}, &|_, _| {}).unwrap();
    let randoms: BTreeSet<u64> = outcomes.iter().map(|outcome| outcome.regret_random.to_bits()).collect();
    assert_eq!(randoms.len(), 1);
    // Rules beyond the paper have their own oracle.
    let is_beyond =
        |outcome: &Outcome| ["whitened-filter", "whitened-oracle", "capped-filter"].contains(&&*outcome.aggregator);
    for (oracle, beyond) in [("oracle", false), ("whitened-oracle", true)] {
        let regret = outcomes.iter().find(|outcome| outcome.aggregator == oracle).unwrap().regret;
        let compared = outcomes.iter().filter(|outcome| is_beyond(outcome) == beyond);
        assert!(compared.map(|outcome| outcome.regret_oracle).all(|reference| reference == Some(regret)));
    }
}

/// The agents of Proposition 1 are attacked on half of their steps. Of the 4·4096 steps of 4 agents, half are not attacked,
/// with six deviations of 384. The mean regret of a step is within 0.012 at six deviations.
#[test]
fn attacked_steps_do_not_count() {
    let almost_half =
        |agents| SimulationConfig { corrupt: 0.49, ..of(RunConfig { agents, dim: 4, ..RunConfig::default() }) };
    assert_eq!(almost_half(8).corrupted(), 3);
    let config = almost_half(9);
    assert_eq!(config.corrupted(), 4);
    let faked = simulate_seed(&SimulationConfig { attack: Attack::FakeParameter, ..config.clone() }, 3);
    let random_per_step = random_regret_in_the_ball(4, 10);
    let counted = faked.attacked_regret / faked.attacked_total.unwrap() / random_per_step;
    assert!((counted / (4.0 * 4096.0) - 0.5).abs() < 0.04, "{counted}");
    // All steps of a colluder are attacked, and none of an honest agent.
    let colluding = simulate_seed(&SimulationConfig { attack: Attack::Collude, ..config.clone() }, 3);
    assert_eq!((colluding.attacked_regret, colluding.attacked_total), (0.0, None));
    let honest = simulate_seed(&SimulationConfig { attack: Attack::None, ..config }, 3);
    let counted = honest.attacked_regret / honest.attacked_total.unwrap() / random_per_step;
    assert!((counted / (4.0 * 4096.0) - 1.0).abs() < 0.04, "{counted}");
}

#[test]
fn bytes_match_encoded_frames() {
    let config = SimulationConfig { attack: Attack::Silent, ..of(RunConfig { dim: 8, ..few() }) };
    let outcome = simulate_seed(&config, 2);
    let mut channel = Channel::device(Identity::new(1, 1, 8, [0; 32]), 1);
    let mut frame = [0; 1024];
    let prior = Prior::new(1.0, 1.0, 4, Rewards::Unbounded);
    let up = channel.encode_summary(&Agent::<8>::new(&prior).unwrap().finish(), &mut frame).unwrap();
    let model = fedbandit_core::Model::new(1, 4, 1.0, Rewards::Unbounded, &[0.0; 8], &[0.0; 36]);
    let down = channel.encode(&Message::Model(model), &mut frame).unwrap();
    // Eight episodes: 4 + 8 + 16 + 32 + 64 + 64 + 64 steps and the remaining 4. 6 of 20 agents are silent.
    assert_eq!(outcome.bytes_up, 8 * 14 * up as u64);
    assert_eq!(outcome.bytes_down, 8 * 20 * down as u64);
}

/// There are 6 corrupted agents and 8 episodes.
#[test]
fn rejected_messages_are_counted_by_reason() {
    let bounded = of(RunConfig { rewards: RewardKind::Bounded, ..few() });
    let reasons = [
        (Attack::NonFinite, small(), "non-finite", 48),
        (Attack::Asymmetric, small(), "asymmetric", 48),
        (Attack::NonPsd, small(), "not-positive-semidefinite", 48),
        (Attack::Huge, bounded.clone(), "inconsistent", 48),
        // From the second episode on, the frame of the first is repeated.
        (Attack::Replay, small(), "duplicate", 42),
    ];
    for (attack, config, reason, count) in reasons.clone() {
        let outcome = simulate_seed(&SimulationConfig { attack, ..config }, 4);
        let rejected: Vec<_> = outcome.rejected.iter().map(|(reason, count)| (reason.as_str(), *count)).collect();
        assert_eq!(rejected, [(reason, count)], "{attack}");
    }
    // All other attacks pass admission.
    let others = Attack::ALL.iter().filter(|attack| !reasons.iter().any(|(rejected, ..)| rejected == *attack));
    for attack in others.copied() {
        for config in [small(), bounded.clone()] {
            let outcome = simulate_seed(&SimulationConfig { attack, ..config }, 4);
            assert!(outcome.rejected.is_empty(), "{attack}: {:?}", outcome.rejected);
        }
    }
}

/// With privacy no agent is dropped. Eight episodes of 4 steps, then 8, 16, 32, 64, 64 and the remaining steps: each of the 6
/// corrupted agents sends 14 messages.
#[test]
fn whitened_rules_drop_by_default() {
    let rejected = |aggregator, admission| {
        let config = SimulationConfig { attack: Attack::NonFinite, ..of(RunConfig { aggregator, admission, ..few() }) };
        simulate_seed(&config, 4).rejected.into_iter().collect::<Vec<_>>()
    };
    let zeroed = [("non-finite".to_owned(), 6 * 14)];
    let dropped = [("dropped".to_owned(), 6 * 13), ("non-finite".to_owned(), 6)];
    let filter = AggregatorName::WhitenedFilter;
    assert_eq!(rejected(filter, None), dropped);
    assert_eq!(rejected(filter, Some(Level::Drop)), dropped);
    assert_eq!(rejected(filter, Some(Level::Strict)), zeroed);
    assert_eq!(rejected(filter, Some(Level::Paper)), zeroed);
    let (rewards, privacy) = (RewardKind::Bounded, Some("4,1e-6".parse().unwrap()));
    let private = of(RunConfig { aggregator: filter, rewards, privacy, ..few() });
    let private = SimulationConfig { attack: Attack::NonFinite, ..private };
    assert!(simulate_seed(&private, 4).rejected.keys().eq(["non-finite"]));
}

/// Every attack against every aggregator, every environment and every dimension. Regret is finite, not negative, and at most
/// 2.5 times that of random choices.
#[test]
fn all_combinations_give_finite_regret() {
    let mut jobs = Vec::new();
    for attack in Attack::ALL {
        for aggregator in AggregatorName::ALL {
            let run = RunConfig { aggregator: *aggregator, ..few() };
            jobs.push(SimulationConfig { attack: *attack, corrupt: 0.25, ..of(run) });
        }
    }
    for environment in [
        Environment::Skew,
        Environment::FixedArms,
        Environment::Shared,
        Environment::Drifting,
        Environment::DriftingTheta,
        Environment::Unequal,
        Environment::Mixture,
    ] {
        for rewards in [RewardKind::Gaussian(0.5), RewardKind::Bounded] {
            jobs.push(SimulationConfig { environment: environment.clone(), ..of(RunConfig { rewards, ..few() }) });
        }
    }
    for aggregator in AggregatorName::ALL {
        let run = RunConfig { aggregator: *aggregator, forget: Some(40), ..few() };
        jobs.push(SimulationConfig { attack: Attack::Optimal, corrupt: 0.25, ..of(run) });
    }
    for participation in Participation::ALL.iter().copied() {
        let jobs_of = |attack: &Attack| {
            let run = RunConfig { aggregator: AggregatorName::WhitenedFilter, ..few() };
            let guards = [GuardName::Off, GuardName::Untrusting].into_iter();
            let of = move |guard| SimulationConfig { attack: *attack, participation, guard: Some(guard), ..of(run) };
            guards.map(of).collect::<Vec<_>>()
        };
        jobs.extend(Attack::ALL.iter().flat_map(jobs_of));
        for aggregator in [AggregatorName::GeometricMedian, AggregatorName::MedianOfMeans] {
            let (rewards, privacy) = (RewardKind::Bounded, Some("4,1e-6".parse().unwrap()));
            let run = RunConfig { aggregator, rewards, privacy, ..few() };
            jobs.push(SimulationConfig { corrupt: 0.2, participation, ..of(run) });
        }
    }
    jobs.extend(DIMENSIONS.iter().map(|dim| of(RunConfig { dim: *dim, steps: 64, ..few() })));
    let jobs: Vec<Job> = jobs.into_iter().map(|config| Job { config, seed: 6 }).collect();
    for (job, outcome) in jobs.iter().zip(run_all(&jobs, &Logs::new(), &|_| {}, &|_, _| {}).unwrap()) {
        let numbers = [outcome.total, outcome.late, outcome.regret_oracle.unwrap(), outcome.theta_error.unwrap()];
        assert!(numbers.iter().all(|number| number.is_finite() && *number >= 0.0), "{job:?}: {outcome:?}");
        assert!(outcome.total < 2.5, "{job:?}: {}", outcome.total);
        assert_eq!(outcome.trace.last().unwrap().steps, u64::from(job.config.run.steps));
    }
}

/// A θ* that turns by 180° in 8,192 steps: data of the first half mislead in the second, unless they are forgotten. The guard
/// has the half-life of the run.
#[test]
fn half_life_follows_a_drifting_parameter() {
    for (aggregator, guard) in [
        (AggregatorName::GeometricMedian, GuardName::Off),
        (AggregatorName::WhitenedFilter, GuardName::Off),
        (AggregatorName::WhitenedFilter, GuardName::On),
        (AggregatorName::Solo, GuardName::Off),
    ] {
        let late = |forget| {
            let run = RunConfig { agents: 20, dim: 4, steps: 8192, aggregator, forget, ..RunConfig::default() };
            let config = SimulationConfig { environment: Environment::DriftingTheta, ..of(run) };
            let guard = Some(guard);
            simulate_seed(&SimulationConfig { attack: Attack::None, corrupt: 0.0, guard, ..config }, 9).late
        };
        let (all, half_life) = (late(None), late(Some(512)));
        assert!(half_life < 0.2 * all, "{aggregator}, guard {guard}: {half_life} with a half-life, {all} without");
    }
}

/// A half-life costs accuracy in a constant world, but no width becomes too small. Observed, not proven, on seeds that were not
/// used for tuning.
#[test]
fn half_life_keeps_widths_of_a_constant_parameter() {
    for environment in [Environment::Ball, Environment::FixedArms] {
        for aggregator in [AggregatorName::GeometricMedian, AggregatorName::WhitenedFilter, AggregatorName::Solo] {
            for forget in [128, 1024] {
                let run = RunConfig { agents: 40, forget: Some(forget), aggregator, ..RunConfig::default() };
                for attack in [Attack::None, Attack::Collude, Attack::Adaptive] {
                    let config = SimulationConfig { environment: environment.clone(), attack, ..of(run) };
                    let ratio = simulate_seed(&config, 2010).width_ratio_max.unwrap();
                    assert!(ratio <= 1.0, "{environment}, {aggregator}, {attack}, H = {forget}: {ratio}");
                }
            }
        }
    }
}

/// Limits on regret, on seeds that were not used for tuning: 100 agents, d = 8, T = 4096, L = 64, R = 0.5, ball. The largest
/// totals on other seeds are 0.0051, 0.017 and 0.064.
mod limits {
    use super::*;

    fn worst(corrupt: f64, seed: u64) -> (f64, f64, String) {
        let attacks = Attack::ALL.iter().copied().filter(|attack| attack.is_by_agents());
        let jobs = attacks.map(|attack| SimulationConfig { attack, corrupt, ..SimulationConfig::default() });
        let jobs: Vec<Job> = jobs.map(|config| Job { config, seed }).collect();
        let outcomes = run_all(&jobs, &Logs::new(), &|_| {}, &|_, _| {}).unwrap();
        let width = outcomes.iter().filter_map(|outcome| outcome.width_ratio_max).fold(0.0, f64::max);
        let worst = outcomes.into_iter().max_by(|a, b| a.total.total_cmp(&b.total)).unwrap();
        (worst.total, width, worst.attack)
    }

    #[test]
    fn regret_without_attack_is_within_limit() {
        let outcome = simulate_seed(
            &SimulationConfig { attack: Attack::None, corrupt: 0.0, ..SimulationConfig::default() },
            2001,
        );
        assert!(outcome.total <= 0.03, "{}", outcome.total);
        assert!(outcome.width_ratio_max.unwrap() <= 1.0);
    }

    #[test]
    fn regret_with_30_percent_corrupted_is_within_limit() {
        let (total, width, attack) = worst(0.3, 2002);
        assert!(total <= 0.05, "{attack}: {total}");
        // Observed, not proven.
        assert!(width <= 1.0, "{width}");
    }

    #[test]
    fn regret_with_45_percent_corrupted_is_within_limit() {
        let (total, _, attack) = worst(0.45, 2003);
        assert!(total <= 0.2, "{attack}: {total}");
    }

    #[test]
    fn mean_fails_with_10_percent_corrupted() {
        for attack in [Attack::Huge, Attack::Collude] {
            let run = RunConfig { aggregator: AggregatorName::Mean, ..RunConfig::default() };
            let config = SimulationConfig { attack, corrupt: 0.1, ..of(run) };
            let total = simulate_seed(&config, 2004).total;
            assert!(total >= 1.0, "{attack}: {total}");
        }
    }

    /// Returns the slope of log regret by log T from 2¹⁰ to 2²⁰ with L = √T.
    fn slope(aggregator: AggregatorName, attack: Attack) -> f64 {
        let regret = |power: u32| {
            let (steps, episode_len) = (1 << power, Some(1 << (power / 2)));
            let run = RunConfig { agents: 20, steps, episode_len, aggregator, ..RunConfig::default() };
            let config = SimulationConfig { attack, ..of(run) };
            simulate_seed(&config, 2005).after_first_episode
        };
        (regret(20) / regret(10)).log2() / 10.0
    }

    #[test]
    fn regret_is_sublinear() {
        let slope = slope(AggregatorName::GeometricMedian, Attack::Adaptive);
        assert!(slope <= 0.5, "{slope}");
    }

    #[test]
    fn regret_of_the_mean_is_linear() {
        let slope = slope(AggregatorName::Mean, Attack::Collude);
        assert!(slope >= 0.95, "{slope}");
    }

    #[test]
    fn attacked_solo_agent_does_not_learn() {
        let run = RunConfig { aggregator: AggregatorName::Solo, ..RunConfig::default() };
        let config = SimulationConfig { attack: Attack::FakeParameter, ..of(run) };
        let total = simulate_seed(&config, 2006).attacked_total.unwrap();
        assert!(total >= 0.7, "{total}");
    }

    #[test]
    fn private_late_regret_is_within_limit() {
        let run = RunConfig {
            aggregator: AggregatorName::GeometricMedian,
            dim: 4,
            episode_len: Some(8),
            rewards: RewardKind::Bounded,
            privacy: Some("4,1e-6".parse().unwrap()),
            ..RunConfig::default()
        };
        let config = SimulationConfig { attack: Attack::None, corrupt: 0.0, ..of(run) };
        let outcome = simulate_seed(&config, 2007);
        assert_eq!(outcome.trace.last().unwrap().episode, 512);
        assert!(outcome.late <= 0.05, "{}", outcome.late);
    }
}

#[test]
fn log_errors_name_line_and_defect() {
    let cases = [
        ("", "empty"),
        ("step,x_1,x_2\n1,0,0\n", "column reward is missing"),
        ("x_1,reward\n0,0\n", "column step is missing"),
        ("step,x_1,x_3,reward\n", "column x_2 is missing"),
        ("step,reward\n1,0\n", "column x_1 is missing"),
        ("step,x_1,reward,colour\n", "unknown column colour; expected step"),
        ("step,x_1,reward\n# a comment\n1,0.5\n", "line 3 has 2 fields, but the header has 3"),
        ("step,x_1,reward\n1,abc,0\n", "line 2: 'abc' is not a finite number"),
        ("step,x_1,reward\n1,0,NaN\n", "line 2: 'NaN' is not a finite number"),
        ("step,x_1,x_2,reward\n1,0,1,0\n\n1,0.8,0.7,0\n", "line 4: norm of the action is 1.063015; scale"),
        ("step,x_1,reward\n1,1,1.5\n", "line 2: reward is 1.5"),
        ("step,x_1,reward\n1,1,-1e30\n", "line 2: reward is -1e30; scale all rewards"),
        ("step,x_1,reward\n", "no steps"),
    ];
    for (text, expected) in cases {
        let error = Log::parse(text, true).unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?}: {error:?} does not contain {expected:?}");
    }
}

#[test]
fn log_columns_may_be_in_any_order() {
    let log = Log::parse("reward, x_2 ,x_1,step\n3,0,1,a\n-4,1,0,a\n5,0.5,0.5,b\n6,0,0,a\n", false).unwrap();
    assert_eq!((log.dimension(), log.sets()), (2, 3));
    let set = |index| log.set(index).map(|(x, reward)| (x.to_vec(), reward)).collect::<Vec<_>>();
    assert_eq!(set(0), [(vec![1.0, 0.0], 3.0), (vec![0.0, 1.0], -4.0)]);
    assert_eq!(set(2), [(vec![0.0, 0.0], 6.0)]);
}
