//! CPU time of a rule for one episode: `capped-filter` and `whitened-filter` against the paper's pair of medians.
//!
//! `cargo bench -p fedbandit --bench rule` prints the table; `-- --write` also records it in docs/benchmarks.md.

#[path = "../record/mod.rs"]
mod record;

use fedbandit::aggregate::{GeometricMedian, Tolerance};
use fedbandit::algorithm::{Calibrated, PaperRule, Rule, Streams};
use fedbandit::robust::{Assumptions, Capped, Centre, Whitened};
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::SeedableRng;
use rayon::ThreadPoolBuilder;
use record::{Table, least, mark};
use rustix::time::ClockId;

fn main() {
    let title = "Rules: one episode with 30 % corrupted agents, one thread (limit 3 at N = 10,000, d = 8)";
    let columns = "| N | d | corrupted | geometric-median ms | whitened-filter ms | capped-filter ms | \
                   ratio, whitened-filter to geometric-median | ratio, capped-filter to geometric-median |";
    let mut table = Table::new(title, columns);
    let one = ThreadPoolBuilder::new().num_threads(1).build().expect("a thread starts");
    for (n, d) in [(100, 8), (1000, 8), (10_000, 8), (1000, 32)] {
        for (name, push) in [("none", 0.0), ("near", 1.0), ("far", 100.0), ("gram", 1.0)] {
            let streams = streams(n, d, push, name == "gram");
            let runs = (2_000_000 / (n * d * d)).clamp(3, 100);
            let [median, whitened, capped] = one.install(|| {
                rules().map(|mut rule| {
                    // The first call is a cold start; later episodes start from the last estimate.
                    let mut estimate = || rule.estimate(&streams, 2).expect("at least one unit");
                    estimate();
                    least(ClockId::ThreadCPUTime, runs, estimate) * 1e3
                })
            });
            let times = format!("{median:.2} | {whitened:.2} | {capped:.2}");
            let [whitened, capped] = [whitened, capped].map(|time| {
                let ratio = time / median;
                format!("{ratio:.2}{}", mark(n != 10_000 || ratio <= 3.0))
            });
            table.row(format!("| {n} | {d} | {name} | {times} | {whitened} | {capped} |"));
        }
    }
    if record::is_requested() {
        record::write("rule", &[], &format!("{HEAD}\n{}", table.0));
    }
}

const HEAD: &str = "\
Each agent has the Gram matrix of 200 steps. All corrupted agents add the same vector to their feature sum: 3 standard
deviations of an honest one (`near`) or 300 (`far`). Those of `gram` are `near`, and claim to have explored one direction
only. The paper's rule has the calibrated schedule.
";

fn rules() -> [Box<dyn Rule>; 3] {
    let median = GeometricMedian::new(Tolerance::Relative(1e-6));
    let schedule = Calibrated { corruption: 0.3, theta_bound: 1.0, noise: None };
    let assumptions =
        Assumptions { corruption: 0.3, noise: 0.5, theta_bound: 1.0, stream_noise: None, forgetting: false };
    [
        Box::new(PaperRule::new(median.clone(), median, schedule)),
        Box::new(Whitened::new(Centre::Filter, assumptions)),
        Box::new(Capped::new(assumptions)),
    ]
}

/// Sums of 200 steps with actions on the sphere, θ* = e₁ and R = 1/2.
fn streams(n: usize, d: usize, push: f64, one_direction: bool) -> Streams {
    let mut rng = Pcg64::seed_from_u64(1);
    let mut streams = Streams::zeros(n, d).expect("a dimension");
    for unit in 0..n {
        let (mut gram, mut sum) = (vec![0.0; d * (d + 1) / 2], vec![0.0; d]);
        for _ in 0..200 {
            let x: Vec<f64> = (0..d).map(|_| StandardNormal.sample(&mut rng)).collect();
            let length = x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let noise: f64 = StandardNormal.sample(&mut rng);
            let reward = x[0] / length + 0.5 * noise;
            let places = (0..d).flat_map(|i| (i..d).map(move |j| (i, j)));
            gram.iter_mut().zip(places).for_each(|(sum, (i, j))| *sum += x[i] * x[j] / (length * length));
            sum.iter_mut().zip(&x).for_each(|(sum, x)| *sum += x / length * reward);
        }
        if unit % 10 < 3 {
            sum[0] -= push * 3.0 * 0.5 * (200.0 / d as f64).sqrt();
            if one_direction {
                gram.fill(0.0);
                gram[0] = 200.0;
            }
        }
        streams.add(unit, &gram, &sum);
    }
    streams
}
