//! Cost of simulated agents: a step relative to its random numbers, selection against peers, memory.
//!
//! `cargo bench -p fedbandit --bench simulation` prints the tables; `-- --write` also records them in docs/benchmarks.md.

#[path = "../record/child.rs"]
mod child;
mod peers;
#[path = "../record/mod.rs"]
mod record;

use fedbandit::config::{AggregatorName, RunConfig};
use fedbandit::simulation::{Attack, Logs, Outcome, SimulationConfig};
use rand_distr::{Distribution, Exp1, StandardNormal};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::SeedableRng;
use rayon::ThreadPoolBuilder;
use record::{Table, least, mark};
use rustix::time::ClockId;

fn main() {
    if std::env::args().nth(1).is_some_and(|mode| mode == "memory-of") {
        return many_devices();
    }
    let tables = [steps(), peers::table(), memory()];
    if record::is_requested() {
        record::write("simulation", &peers::versions(), &format!("{HEAD}\n{}", tables.join("\n\n")));
    }
}

const HEAD: &str = "\
A simulated step draws 10 arms in the unit ball, selects one, draws its reward and records it; a new model comes every 64
steps. Its random numbers are the same numbers from the same generator, only summed: d normal and one exponential per arm,
and one normal for the reward.

Selection is `select_all` on decision sets that are already in its layout. \"Laid out first\" includes copying arrays of
actions into that layout; \"one at a time\" is `Agent::select`. Peers get the same number of contexts as one batch in their
own layout. The comparison is not like for like. A peer has one model per arm and one context for all arms; fedbandit has one
model and a vector per arm. Per arm, all compute one d × d quadratic form and one inner product. fedbandit and
contextualbandits use f32, mabwiser f64; contextualbandits adds an intercept; fedbandit reads ten times as much data and
validates every vector.
";

const ARMS: usize = 10;
const AGENTS: usize = 100;

fn simulate(config: &SimulationConfig) -> Outcome {
    fedbandit::simulation::simulate(config, &Logs::new(), 1, &|_| {}).expect("a valid configuration")
}

fn steps() -> String {
    let title = "Simulation: a step of one agent against its random numbers, 10 arms, one thread (limit 2.5 at d = 8)";
    let mut table = Table::new(title, "| d | step ns | its random numbers ns | ratio | agent-steps per CPU second |");
    let one = ThreadPoolBuilder::new().num_threads(1).build().expect("a thread starts");
    for dim in [2, 4, 8, 16, 32, 64] {
        let steps = 160_000 / dim;
        let (aggregator, attack) = (AggregatorName::Mean, Attack::None);
        let run = RunConfig { agents: AGENTS, dim, steps: steps as u32, aggregator, ..RunConfig::default() };
        let config = SimulationConfig { run, arms: ARMS, attack, ..SimulationConfig::default() };
        let (mut step, mut draws) = (f64::INFINITY, f64::INFINITY);
        // Alternately, so that a slow phase of the machine affects both.
        for _ in 0..5 {
            step = step.min(1.0 / one.install(|| simulate(&config)).agent_steps_per_cpu_second);
            draws = draws.min(least(ClockId::ThreadCPUTime, 1, || draw(dim, AGENTS * steps)) / (AGENTS * steps) as f64);
        }
        let (ratio, rate) = (step / draws, 1e-6 / step);
        let miss = mark(dim != 8 || ratio <= 2.5);
        let (step, draws) = (step * 1e9, draws * 1e9);
        table.row(format!("| {dim} | {step:.0} | {draws:.0} | {ratio:.2}{miss} | {rate:.2}·10⁶ |"));
    }
    table.0
}

/// Sums the random numbers of steps in the ball: direction and radius of each arm, and noise of the reward.
fn draw(dimension: usize, steps: usize) -> f64 {
    let mut rng = Pcg64::seed_from_u64(1);
    let mut sum = 0.0;
    for _ in 0..steps {
        let mut arms = 0.0;
        for _ in 0..ARMS {
            for _ in 0..dimension {
                arms += Distribution::<f32>::sample(&StandardNormal, &mut rng);
            }
            arms += Distribution::<f32>::sample(&Exp1, &mut rng);
        }
        sum += f64::from(arms) + Distribution::<f64>::sample(&StandardNormal, &mut rng);
    }
    sum
}

fn memory() -> String {
    let title = "Simulation: 100,000 virtual devices, d = 16, in one process (limit 2 GiB)";
    let mut table = Table::new(title, "| devices | episodes | peak MB | bytes per device |");
    table.row(child::run_self(&["memory-of", "100000"]));
    table.0
}

/// Child process of [`memory`], which measures its own peak.
fn many_devices() {
    let agents: usize = std::env::args().nth(2).and_then(|n| n.parse().ok()).expect("a number of devices");
    let run = RunConfig { agents, dim: 16, steps: 16, episode_len: Some(4), ..RunConfig::default() };
    let config = SimulationConfig { run, attack: Attack::SignFlip, ..SimulationConfig::default() };
    let episodes = simulate(&config).trace.len();
    let peak = child::peak();
    let (each, miss) = (peak * 1e6 / agents as f64, mark(peak <= 2048.0 * 1.048_576));
    println!("| {agents} | {episodes} | {peak:.0}{miss} | {each:.0} |");
}
