//! CPU time of private noise, summed over threads.
//!
//! `cargo bench -p fedbandit --bench noise` prints the tables; `-- --write` also records them in docs/benchmarks.md.

mod record;

use std::hint::black_box;

use chacha20::ChaCha20Rng;
use chacha20::rand_core::SeedableRng;
use fedbandit::algorithm::{ControllerConfig, Episodes, Level, Privatise};
use fedbandit::privacy::calibration::{Budget, Mechanism};
use fedbandit::privacy::gaussian::{DiscreteGaussian, MAX_SIGMA};
use fedbandit::privacy::{Plan, Private, Seed};
use fedbandit_core::packed_len;
use record::{Table, least, mark};
use rustix::time::ClockId;

const AGENTS: usize = 10_000;
const DIMENSION: u8 = 8;
const EPISODES: u32 = 1024;

fn main() {
    let tables = [samples(), episodes()];
    if record::is_requested() {
        record::write("noise", &[], &tables.join("\n\n"));
    }
}

fn samples() -> String {
    let mut table = Table::new("Noise: discrete Gaussian samples, one thread", "| σ | samples per CPU second |");
    for (name, sigma) in [("3", 3), ("3·2²³", 3 << 23), ("2²⁹, the largest", MAX_SIGMA)] {
        let gaussian = DiscreteGaussian::new(sigma).expect("σ is in range");
        let mut rng = ChaCha20Rng::from_seed([0; 32]);
        let samples = 300_000;
        let seconds = least(ClockId::ThreadCPUTime, 10, || {
            (0..samples).for_each(|_| assert_ne!(black_box(gaussian.sample(&mut rng)), i64::MAX));
        });
        table.row(format!("| {name} | {:.2}·10⁶ |", f64::from(samples) / seconds / 1e6));
    }
    table.0
}

fn episodes() -> String {
    let title = format!(
        "Noise: CPU seconds per episode, N = {AGENTS}, d = {DIMENSION}, K = {EPISODES} (limit 2 for the worst episode)"
    );
    let mut table = Table::new(&title, "| mechanism | episodes timed | mean s | worst s | worst episode |");
    // A tree and a BLT add noise to one vector per episode. Honaker's estimator adds it to every closed node, and the
    // largest node closes after the first half.
    for (mechanism, releases) in [(Mechanism::Tree, 16), (Mechanism::Honaker, EPISODES / 2), (Mechanism::Blt, 16)] {
        let seconds = seconds(mechanism, releases);
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
        let (worst, most) = seconds.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("at least one episode");
        let (worst, miss) = (worst + 1, mark(*most <= 2.0));
        table.row(format!("| {mechanism} | 1–{releases} | {mean:.2} | {most:.2}{miss} | {worst} |"));
    }
    table.0
}

/// Times each of the first episodes, from its messages to their release.
fn seconds(mechanism: Mechanism, releases: u32) -> Vec<f64> {
    let episodes = Episodes::new(64 * EPISODES, 64, 64).expect("the lengths are in range");
    let config = ControllerConfig {
        dimension: DIMENSION,
        episodes,
        level: Level::Strict,
        reward_bound: Some(1.0),
        window: 0,
        half_life: None,
    };
    let budget = Budget::new(1.0, 1e-6).expect("the budget is in range");
    let plan = Plan::new(&config, budget, mechanism, 1).expect("the configuration is valid");
    let mut private = Private::agents(plan, Seed(1), AGENTS).expect("the dimension is valid");
    let (gram, feature_sum) = (vec![0.0; packed_len(DIMENSION.into())], vec![0.0; DIMENSION.into()]);
    let mut episode = |episode| {
        (0..AGENTS).for_each(|agent| private.add(agent, episode, &gram, &feature_sum));
        black_box(private.release(episode + 1));
    };
    (1..=releases).map(|k| least(ClockId::ProcessCPUTime, 1, || episode(k))).collect()
}
