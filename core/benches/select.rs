//! Benchmark of `select` on blocks of actions against one action at a time.
//!
//! `cargo bench -p fedbandit-core` prints time per action and the ratio, the best of interleaved rounds.

use std::hint::black_box;
use std::time::Instant;

use fedbandit_core::{Action, Agent, Model, Prior, Rewards, packed_len, project};
use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};

fn main() {
    println!("| D | actions | one by one, ns per action | blocks, ns per action | ratio |");
    println!("|---|---|---|---|---|");
    row::<8>();
    row::<16>();
    row::<32>();
}

fn row<const D: usize>() {
    for count in [10, 20, 100] {
        let (agent, decision_set) = setup::<D>(count);
        let calls = 20_000_000 / (count * D * D);
        let (mut one_by_one, mut blocks) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..9 {
            one_by_one =
                one_by_one.min(time(calls, || agent.select_one_by_one(black_box(&decision_set)).unwrap().index));
            blocks = blocks.min(time(calls, || agent.select(black_box(&decision_set)).unwrap().index));
        }
        let scale = 1e9 / count as f64;
        println!("| {D} | {count} | {:.1} | {:.1} | {:.2} |", one_by_one * scale, blocks * scale, one_by_one / blocks);
    }
}

/// Seconds per call.
fn time(calls: usize, call: impl Fn() -> usize) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        black_box(call());
    }
    start.elapsed().as_secs_f64() / calls as f64
}

fn setup<const D: usize>(count: usize) -> (Agent<D>, Vec<Action<D>>) {
    let mut rng = Pcg32::seed_from_u64(D as u64);
    let mut uniform = || rng.next_u32() as f32 / u32::MAX as f32 * 2.0 - 1.0;
    let theta: [f32; D] = core::array::from_fn(|_| uniform());
    let mut design = Vec::with_capacity(packed_len(D));
    for i in 0..D {
        design.push(D as f32 * 2.0);
        design.extend((i + 1..D).map(|_| uniform()));
    }
    let prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 64, rewards: Rewards::Unbounded };
    let mut agent = Agent::new(&prior).unwrap();
    agent
        .begin(&Model {
            episode: 1,
            episode_len: 64,
            beta: 1.0,
            rewards: Rewards::Unbounded,
            theta: (&theta).into(),
            design: design.as_slice().into(),
        })
        .unwrap();
    let decision_set = (0..count).map(|_| project(&Action::from_fn(|_, _| uniform()))).collect();
    (agent, decision_set)
}
