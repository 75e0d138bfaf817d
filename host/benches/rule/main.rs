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
use record::{Table, clock, mark};
use rustix::time::ClockId;

fn main() {
    let title = "Rules: one episode with 30 % corrupted agents, one thread (limit 3 at N = 10,000, d = 8)";
    let columns = "| N | d | corrupted | geometric-median ms | whitened-filter ms | capped-filter ms | \
                   ratio, whitened-filter to geometric-median | ratio, capped-filter to geometric-median |";
    let mut table = Table::new(title, columns);
    let one = ThreadPoolBuilder::new().num_threads(1).build().expect("a thread starts");
    for (n, d) in [(100, 8), (1000, 8), (10_000, 8), (1000, 32)] {
        for (name, push) in [("none", 0.0), ("near", 1.0), ("far", 100.0), ("gram", 1.0)] {
            let episodes = episodes(n, d, push, name == "gram");
            let runs = (2_000_000 / (n * d * d)).clamp(3, 50);
            let [median, whitened, capped] = one.install(|| {
                rules()
                    .map(|rule| (0..runs).map(|_| per_episode(rule(), &episodes) * 1e3).fold(f64::INFINITY, f64::min))
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
Mean of the second to the fifth episode of 40 steps. A rule starts from its estimate of the episode before. All corrupted agents add the same vector to their feature sum: 3 standard
deviations of an honest one (`near`) or 300 (`far`). Those of `gram` are `near`, and claim to have explored one direction
only. The paper's rule has the calibrated schedule.

`capped-filter` reads the matrices of all agents several times. With `near` its filter reads them once more; with `far` and `gram` it solves its sample twice,
before and after it removes corrupted agents. With 1,000 agents or fewer, the search for its cap and its axes takes most of the time.
";

fn rules() -> [fn() -> Box<dyn Rule>; 3] {
    const ASSUMPTIONS: Assumptions =
        Assumptions { corruption: 0.3, noise: 0.5, theta_bound: 1.0, stream_noise: None, forgetting: false };
    let paper = || {
        let median = GeometricMedian::new(Tolerance::Relative(1e-6));
        let schedule = Calibrated { corruption: 0.3, theta_bound: 1.0, noise: None };
        Box::new(PaperRule::new(median.clone(), median, schedule)) as Box<dyn Rule>
    };
    let whitened = || Box::new(Whitened::new(Centre::Filter, ASSUMPTIONS)) as Box<dyn Rule>;
    [paper, whitened, || Box::new(Capped::new(ASSUMPTIONS))]
}

/// Returns the CPU seconds of an episode after the first. A rule starts from its last estimate.
fn per_episode(mut rule: Box<dyn Rule>, episodes: &[Streams]) -> f64 {
    let mut start = 0.0;
    for (episode, streams) in (1..).zip(episodes) {
        rule.estimate(streams, episode).expect("at least one unit");
        if episode == 1 {
            start = clock(ClockId::ThreadCPUTime);
        }
    }
    (clock(ClockId::ThreadCPUTime) - start) / (episodes.len() - 1) as f64
}

/// Number of steps of an episode.
const STEPS: u32 = 40;

/// Sums after each of five episodes, with actions on the sphere, θ* = e₁ and R = 1/2.
fn episodes(n: usize, d: usize, push: f64, one_direction: bool) -> Vec<Streams> {
    let mut rng = Pcg64::seed_from_u64(1);
    let mut honest = Streams::zeros(n, d).expect("a dimension");
    let is_corrupted = |unit: usize| unit % 10 < 3;
    let mut after = |episode: u32| {
        for unit in 0..n {
            let (mut gram, mut sum) = (vec![0.0; d * (d + 1) / 2], vec![0.0; d]);
            for _ in 0..STEPS {
                let x: Vec<f64> = (0..d).map(|_| StandardNormal.sample(&mut rng)).collect();
                let length = x.iter().map(|x| x * x).sum::<f64>().sqrt();
                let noise: f64 = StandardNormal.sample(&mut rng);
                let reward = x[0] / length + 0.5 * noise;
                let places = (0..d).flat_map(|i| (i..d).map(move |j| (i, j)));
                gram.iter_mut().zip(places).for_each(|(sum, (i, j))| *sum += x[i] * x[j] / (length * length));
                sum.iter_mut().zip(&x).for_each(|(sum, x)| *sum += x / length * reward);
            }
            if one_direction && is_corrupted(unit) {
                gram.fill(0.0);
                gram[0] = f64::from(STEPS);
            }
            honest.add(unit, &gram, &sum);
        }
        let mut streams = honest.clone();
        let mut pushed = vec![0.0; d];
        pushed[0] = -push * 3.0 * 0.5 * (f64::from(STEPS * episode) / d as f64).sqrt();
        let unchanged = vec![0.0; d * (d + 1) / 2];
        (0..n).filter(|unit| is_corrupted(*unit)).for_each(|unit| streams.add(unit, &unchanged, &pushed));
        streams
    };
    (1..=5).map(&mut after).collect()
}
