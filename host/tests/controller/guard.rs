//! Guarded devices in simulated fleets: liars, majorities of them, and hostile controllers.

use fedbandit::config::{AggregatorName, RunConfig};
use fedbandit::simulation::{
    Attack, Environment, Forgery, GuardName, Job, Logs, Outcome, SimulationConfig, run_all, simulate,
};

/// Seed that no constant of the guard was chosen on.
const SEED: u64 = 2020;

fn fleet(agents: usize) -> SimulationConfig {
    let run = RunConfig { agents, aggregator: AggregatorName::WhitenedFilter, ..RunConfig::default() };
    SimulationConfig { run, ..SimulationConfig::default() }
}

fn hostile(environment: Environment, forgery: Forgery, guard: GuardName) -> SimulationConfig {
    SimulationConfig { environment, forgery, attack: Attack::HostileController, guard: Some(guard), ..fleet(10) }
}

/// Returns the same devices, each alone.
fn alone(config: &SimulationConfig) -> SimulationConfig {
    let run = RunConfig { aggregator: AggregatorName::Solo, ..config.run };
    let corrupt = if config.attack.is_by_agents() { config.corrupt } else { 0.0 };
    // Agents that learn alone have no guard; the setting permits a majority of corrupted ones.
    SimulationConfig { run, corrupt, attack: Attack::None, guard: Some(GuardName::On), ..config.clone() }
}

fn simulate_all(configs: impl IntoIterator<Item = SimulationConfig>) -> Vec<Outcome> {
    let jobs: Vec<Job> = configs.into_iter().map(|config| Job { config, seed: SEED }).collect();
    run_all(&jobs, &Logs::new(), &|_| {}, &|_, _| {}).unwrap()
}

#[test]
fn hostile_controller_ruins_unguarded_devices_only() {
    let with = |guard| hostile(Environment::Ball, Forgery::Opposite, guard);
    let [off, on, solo]: [Outcome; 3] =
        simulate_all([with(GuardName::Off), with(GuardName::On), alone(&with(GuardName::On))]).try_into().unwrap();
    // 2 is the regret of the worst action at every step.
    assert!(off.total > 1.9, "{}", off.total);
    assert!(on.total < 1.5 * solo.total, "{} guarded, {} alone", on.total, solo.total);
    assert!(on.alarms > 0);
}

/// The project's limit: with scouts, 2.5 times the regret of a device that learns alone.
#[test]
fn no_forgery_ruins_devices_with_scouts() {
    for environment in [Environment::Ball, Environment::FixedArms] {
        let configs: Vec<_> =
            Forgery::ALL.iter().map(|forgery| hostile(environment.clone(), *forgery, GuardName::Untrusting)).collect();
        let solo = simulate_all([alone(&configs[0])]).remove(0);
        for (outcome, forgery) in simulate_all(configs).iter().zip(Forgery::ALL) {
            let ratio = outcome.total / solo.total;
            assert!(ratio <= 2.5, "{environment}, {forgery}: {ratio}");
        }
    }
}

/// A hostile controller must be worth its name: the search takes the guard into account, and finds more than the plain lie.
#[test]
fn search_costs_more_than_the_opposite() {
    for environment in [Environment::Ball, Environment::FixedArms, Environment::Skew] {
        let forgery = |forgery| hostile(environment.clone(), forgery, GuardName::On);
        let outcomes = simulate_all([forgery(Forgery::Search), forgery(Forgery::Opposite)]);
        let [search, opposite] = [outcomes[0].regret, outcomes[1].regret];
        assert!(search > opposite, "{environment}: {search} by search, {opposite} by the opposite");
    }
}

#[test]
fn devices_of_a_hostile_controller_are_all_honest() {
    let config = hostile(Environment::Ball, Forgery::Wide, GuardName::On);
    assert_eq!(config.corrupted(), 0);
    let outcome = simulate(&config, &Logs::new(), SEED, &|_| {}).unwrap();
    assert_eq!(outcome.attacked_total, None);
}

/// The project's limit: 1.5 times the regret of a device that learns alone.
#[test]
fn majority_of_liars_does_not_ruin_guarded_devices() {
    let attacks = [Attack::SignFlip, Attack::Collude, Attack::WeakDirection, Attack::Adaptive, Attack::Optimal];
    let configs: Vec<_> =
        attacks.iter().map(|attack| SimulationConfig { attack: *attack, corrupt: 0.9, ..fleet(50) }).collect();
    let solo = simulate_all([alone(&configs[0])]).remove(0);
    for outcome in simulate_all(configs) {
        let ratio = outcome.total / solo.total;
        assert!(ratio <= 1.5, "{}: {ratio}", outcome.attack);
    }
}

#[test]
fn guard_is_on_by_default_where_it_pays() {
    let guard = |aggregator, privacy: Option<&str>| {
        let privacy = privacy.map(|text| text.parse().unwrap());
        let run = RunConfig { aggregator, privacy, ..RunConfig::default() };
        SimulationConfig { run, ..SimulationConfig::default() }.guard()
    };
    assert_eq!(guard(AggregatorName::WhitenedFilter, None), GuardName::On);
    assert_eq!(guard(AggregatorName::WhitenedFilter, Some("1,1e-6")), GuardName::Off);
    assert_eq!(guard(AggregatorName::GeometricMedian, None), GuardName::Off);
    assert_eq!(guard(AggregatorName::Solo, None), GuardName::Off);
}

#[test]
fn guard_decides_on_majorities_and_not_on_privacy() {
    let config = |corrupt, guard| SimulationConfig { corrupt, guard: Some(guard), ..fleet(20) };
    assert!(config(0.99, GuardName::On).validate().is_ok());
    assert!(config(0.99, GuardName::Untrusting).validate().is_ok());
    let error = |config: SimulationConfig| config.validate().unwrap_err().to_string();
    assert_eq!(error(config(0.5, GuardName::Off)), "corrupt: must be at least 0 and below 0.5, got 0.5");
    assert_eq!(error(config(1.0, GuardName::On)), "corrupt: must be at least 0 and below 1, got 1");

    let mut private = config(0.3, GuardName::On);
    private.run.privacy = Some("1,1e-6".parse().unwrap());
    private.run.rewards = "bounded".parse().unwrap();
    assert!(error(private).starts_with("guard: not available with privacy"));
}
