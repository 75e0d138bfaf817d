//! What privacy costs: `cargo bench -p fedbandit --bench noise` prints rows of a Markdown table, in CPU time.

use std::hint::black_box;

use chacha20::ChaCha20Rng;
use chacha20::rand_core::SeedableRng;
use fedbandit::admission::Level;
use fedbandit::controller::{Episodes, Setting};
use fedbandit::privacy::calibration::{Budget, Mechanism};
use fedbandit::privacy::gaussian::DiscreteGaussian;
use fedbandit::privacy::{Plan, Private, Seed};
use fedbandit::streams::Privatise;
use fedbandit_core::packed_len;
use rustix::time::{ClockId, clock_gettime};

const AGENTS: usize = 10_000;
const DIMENSION: u8 = 8;
/// A power of two, so that a tree ends with its largest node.
const RELEASES: u32 = 16;

fn main() {
    let samples = 1_000_000;
    let gaussian = DiscreteGaussian::new(3 << 23).expect("σ is in range");
    let mut rng = ChaCha20Rng::from_seed([0; 32]);
    let seconds = cpu_time(|| (0..samples).for_each(|_| assert_ne!(black_box(gaussian.sample(&mut rng)), i64::MAX)));
    println!("| what | CPU |\n|---|---|");
    println!("| samples per second, σ = 3·2²³ | {:.2e} |", f64::from(samples) / seconds);
    for mechanism in [Mechanism::Tree, Mechanism::Honaker, Mechanism::Blt] {
        println!("| {mechanism}: s per episode, N = {AGENTS}, D = {DIMENSION} | {:.2} |", episode(mechanism));
    }
}

/// The mean over [`RELEASES`] episodes.
fn episode(mechanism: Mechanism) -> f64 {
    let episodes = Episodes::new(64 * (RELEASES + 1), 64, 64).expect("the lengths are in range");
    let setting = Setting { dimension: DIMENSION, episodes, level: Level::Strict, reward_bound: Some(1.0), window: 0 };
    let budget = Budget::new(1.0, 1e-6).expect("the budget is in range");
    let plan = Plan::new(&setting, budget, mechanism, 1).expect("the setting is in range");
    let mut private = Private::agents(plan, Seed(1), AGENTS).expect("there is a dimension");
    let (gram, feature_sum) = (vec![0.0; packed_len(DIMENSION.into())], vec![0.0; DIMENSION.into()]);
    let seconds = cpu_time(|| {
        for episode in 1..=RELEASES {
            (0..AGENTS).for_each(|agent| private.add(agent, episode, &gram, &feature_sum));
            black_box(private.release(episode + 1));
        }
    });
    seconds / f64::from(RELEASES)
}

/// Of all threads.
fn cpu_time(work: impl FnOnce()) -> f64 {
    let now = || clock_gettime(ClockId::ProcessCPUTime);
    let start = now();
    work();
    let end = now();
    (end.tv_sec - start.tv_sec) as f64 + (end.tv_nsec - start.tv_nsec) as f64 * 1e-9
}
