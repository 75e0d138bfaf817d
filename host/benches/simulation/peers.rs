//! Selection against LinUCB of `mabwiser` and `contextualbandits` (Python with NumPy).

use std::hint::black_box;

use fedbandit::simulation::{DecisionSets, select_all};
use fedbandit_core::{Action, Agent, Model, Prior, Rewards, project};
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::SeedableRng;
use rustix::time::ClockId;

use super::ARMS;
use super::child::{self, python, script};
use super::record::{Table, least, mark};

/// Decision sets in a batch.
const BATCH: usize = 10_000;

/// Module, package, and the script that fits a model.
const PEERS: [(&str, &str, &str); 2] = [
    (
        "mabwiser",
        "mabwiser==2.7.4",
        "\
from mabwiser.mab import MAB, LearningPolicy
model = MAB(list(range(arms)), LearningPolicy.LinUCB(alpha=1.0), n_jobs=1)
model.fit(chosen, rewards, seen)
",
    ),
    (
        "contextualbandits",
        "contextualbandits==0.3.30",
        "\
from contextualbandits.online import LinUCB
model = LinUCB(nchoices=arms, alpha=1.0, njobs=1)
model.fit(seen, chosen, rewards)
",
    ),
];

/// Script around the model, which prints the minimum CPU seconds of a batch.
const BEFORE: &str = "\
import sys, time, warnings, numpy
warnings.filterwarnings('ignore')
d, arms, batch = map(int, sys.argv[1:])
random = numpy.random.default_rng(1)
def vectors(n):
    x = random.standard_normal((n, d))
    return x / numpy.linalg.norm(x, axis=1, keepdims=True)
seen, chosen, rewards = vectors(2000), random.integers(0, arms, 2000), random.integers(0, 2, 2000).astype(float)
contexts = vectors(batch)
";
const AFTER: &str = "\
best = float('inf')
for _ in range(50):
    start = time.process_time()
    model.predict(contexts)
    best = min(best, time.process_time() - start)
print(best)
";

pub(crate) fn table() -> String {
    let title = "Selection from 10 actions against peers' batches, one thread (limits: 6 × at d = 8, 1.5 × at d = 32)";
    let mut table = Table::new(
        title,
        "| d | fedbandit, selections per CPU second | laid out first | one at a time | peer | its selections per CPU second | × | × laid out first | × one at a time |",
    );
    for (dim, ours, limit) in [(8, ours::<8> as fn() -> [f64; 3], 6.0), (32, ours::<32>, 1.5)] {
        for (module, package, model) in PEERS {
            let theirs = python(module, &[package, "numpy"]).and_then(|python| {
                let text = [BEFORE, model, AFTER].concat();
                let seconds = script(&python, &text, &[dim, ARMS, BATCH].map(|n| n.to_string()))?;
                seconds.first().copied().ok_or_else(|| "no output".into())
            });
            let [ours, laid_out, one] = ours();
            let rate = |seconds: f64| BATCH as f64 / seconds * 1e-6;
            let theirs = match theirs {
                Ok(theirs) => {
                    let [gain, second, third] = [ours, laid_out, one].map(|ours| theirs / ours);
                    let miss = mark(gain >= limit);
                    format!("{:.2}·10⁶ | {gain:.1}{miss} | {second:.2} | {third:.2}", rate(theirs))
                }
                Err(reason) => format!("not measured: {reason} | – | – | –"),
            };
            table.row(format!(
                "| {dim} | {:.2}·10⁶ | {:.2}·10⁶ | {:.2}·10⁶ | {module} | {theirs} |",
                rate(ours),
                rate(laid_out),
                rate(one)
            ));
        }
    }
    table.0
}

pub(crate) fn versions() -> Vec<String> {
    child::versions(&["mabwiser", "contextualbandits", "numpy"])
}

/// Returns the minimum CPU seconds of a batch: all decision sets together, the same including their layout, and one by one.
fn ours<const D: usize>() -> [f64; 3] {
    let mut rng = Pcg64::seed_from_u64(1);
    let mut vector = || project(&Action::<D>::from_fn(|_, _| StandardNormal.sample(&mut rng)));
    let agent = agent(&vector());
    let decision_sets: Vec<[Action<D>; ARMS]> = (0..BATCH).map(|_| std::array::from_fn(|_| vector())).collect();
    let mut sets = DecisionSets::new();
    decision_sets.iter().for_each(|set| sets.push(set));
    let (mut scores, mut choices) = (Vec::new(), Vec::new());
    let batch = least(ClockId::ThreadCPUTime, 50, || {
        select_all(&agent, &sets, &mut scores, &mut choices).expect("actions in the unit ball");
        black_box(&mut choices).len()
    });
    let laid_out = least(ClockId::ThreadCPUTime, 50, || {
        sets.clear();
        decision_sets.iter().for_each(|set| sets.push(set));
        select_all(&agent, &sets, &mut scores, &mut choices).expect("actions in the unit ball");
        black_box(&mut choices).len()
    });
    let select = |set: &[Action<D>; ARMS]| agent.select(set).expect("actions in the unit ball").index;
    let one = least(ClockId::ThreadCPUTime, 50, || decision_sets.iter().for_each(|set| _ = black_box(select(set))));
    [batch, laid_out, one]
}

/// Creates an agent with the model Λ = 2I + xxᵀ, θ = x.
fn agent<const D: usize>(x: &Action<D>) -> Agent<D> {
    let entry = |i: usize, j: usize| if i == j { 2.0 + x[i] * x[j] } else { x[i] * x[j] };
    let design: Vec<f32> = (0..D).flat_map(|i| (i..D).map(move |j| entry(i, j))).collect();
    let (episode_len, rewards) = (64, Rewards::Unbounded);
    let mut agent = Agent::new(&Prior { lambda: 1.0, beta: 1.0, episode_len, rewards }).expect("a valid prior");
    let model =
        Model { episode: 1, episode_len, beta: 1.0, rewards, theta: x.as_slice().into(), design: design[..].into() };
    agent.begin(&model).expect("Λ is positive definite");
    agent
}
