//! Cost of the geometric median: passes, time relative to a plain read, threads, peers, memory.
//!
//! `cargo bench -p fedbandit --bench median` prints the tables, or those named after `--`; `-- --write` records all of them
//! in docs/benchmarks.md. Times are CPU times, the minimum of several runs. Both times of a ratio are from the same run.

mod cases;
#[path = "../record/child.rs"]
mod child;
mod peers;
#[path = "../record/mod.rs"]
mod record;

use cases::{Case, drifted};
use fedbandit::aggregate::{Aggregate, Aggregator, GeometricMedian, Points, Tolerance, pass};
use rayon::{ThreadPool, ThreadPoolBuilder};
use record::{Table, clock, least, mark};
use rustix::time::ClockId;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, rest @ ..] = &arguments[..]
        && mode == "memory-of"
    {
        return aggregate_many(rest);
    }
    let named = |name| !record::is_requested() && arguments.iter().any(|argument| argument == name);
    let some = SECTIONS.iter().any(|(name, _)| named(name));
    let sections: Vec<String> =
        SECTIONS.iter().filter(|(name, _)| !some || named(name)).map(|(_, section)| section()).collect();
    if record::is_requested() {
        record::write("median", &peers::versions(), &format!("{HEAD}\n{}", sections.join("\n\n")));
    }
}

type Section = fn() -> String;

/// Tables by name.
const SECTIONS: [(&str, Section); 5] =
    [("passes", passes), ("reads", reads), ("threads", threads), ("peers", peers::table), ("memory", memory)];

const HEAD: &str = "\
The name of a case describes its corrupted rows, 30 % of all. `far`: scattered at 300 σ. `collude`: all at one point, 10 σ
away in every coordinate. `near`: all at one point, 1 σ away. `gram`: the rows are Gram matrices of 200 anisotropic actions,
and the corrupted ones are minus their mean.
";

/// Minimum CPU time of this thread.
fn cpu<T>(runs: usize, work: impl FnMut() -> T) -> f64 {
    least(ClockId::ThreadCPUTime, runs, work)
}

/// Number of runs that take about a second, for work on a given number of values.
fn runs(numbers: usize) -> usize {
    (100_000_000 / numbers).clamp(5, 500)
}

fn pool(threads: usize) -> ThreadPool {
    ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start")
}

fn solve(points: &Points<'_>, tolerance: f64) -> Aggregate {
    GeometricMedian::new(Tolerance::Relative(tolerance)).aggregate(points).expect("at least one point")
}

/// Sums all values, as fast as memory can be read.
fn read(values: &[f64]) -> f64 {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut lanes = [0.0; 16];
            for chunk in values.as_chunks::<16>().0 {
                for l in 0..16 {
                    lanes[l] += chunk[l];
                }
            }
            lanes.iter().sum()
        },
    )
}

fn passes() -> String {
    let title = "Passes to a certified gap of 10⁻⁹ of the median distance (limit 5 cold, 4 warm)";
    let mut table = Table::new(
        title,
        "| case | N | p | cold, 10⁻⁶ | cold, 10⁻⁹ | warm, all rows moved by 1 % | warm, each its own way |",
    );
    for case in cases::ALL {
        let (mut loose, mut cold, mut warm, mut apart) = (0, 0, 0, 0);
        for seed in 0..case.seeds() {
            let rows = case.rows(seed);
            let points = Points::new(&rows[..], case.p).expect("whole rows");
            loose = loose.max(solve(&points, 1e-6).passes);
            let mut median = GeometricMedian::new(Tolerance::Relative(1e-9));
            cold = cold.max(median.aggregate(&points).expect("at least one point").passes);
            let passes = |rows: &[f64]| {
                let points = Points::new(rows, case.p).expect("whole rows");
                median.clone().aggregate(&points).expect("at least one point").passes
            };
            warm = warm.max(passes(&drifted(&rows, case.p, true)));
            apart = apart.max(passes(&drifted(&rows, case.p, false)));
        }
        let met = cold <= 5 && warm <= 4 && apart <= 4;
        let Case { name, n, p, .. } = case;
        table.row(format!("| {name} | {n} | {p} | {loose} | {cold} | {warm} | {apart}{} |", mark(met)));
    }
    table.0
}

/// Sizes of the timed arrays.
const SIZES: [(usize, usize); 6] =
    [(1000, 36), (10_000, 36), (10_000, 136), (100_000, 36), (10_000, 528), (1_000_000, 36)];

fn reads() -> String {
    let title = "One pass against a plain read-and-sum (limit 2.3 from 3 MB and p = 36 on)";
    let mut table = Table::new(
        title,
        "| N | p | MB | read µs | pass µs | ratio | solve at 10⁻⁹, in reads | without AVX2 and FMA |",
    );
    for (n, p) in SIZES {
        let rows = Case { name: "far", n, p }.rows(0);
        let points = Points::new(&rows[..], p).expect("whole rows");
        pool(1).install(|| {
            let Aggregate { point, objective, .. } = solve(&points, 1e-9);
            let mut radii = vec![0.0; n];
            let (mut a_read, mut a_pass) = (f64::INFINITY, f64::INFINITY);
            // Alternately, so that a slow phase of the machine affects both.
            for _ in 0..runs(n * p) {
                a_read = a_read.min(cpu(1, || read(&rows)));
                a_pass = a_pass.min(cpu(1, || pass(&points, &point, objective, &mut radii)));
            }
            let whole = cpu(runs(10 * n * p), || solve(&points, 1e-9));
            let plain = cpu(3, || GeometricMedian::plain(Tolerance::Relative(1e-9)).aggregate(&points));
            let (mb, ratio) = ((n * p * 8) as f64 / 1e6, a_pass / a_read);
            let miss = mark(mb < 3.0 || ratio <= 2.3);
            let (read, pass, whole, plain) = (a_read * 1e6, a_pass * 1e6, whole / a_read, plain / a_read);
            table.row(format!(
                "| {n} | {p} | {mb:.1} | {read:.0} | {pass:.0} | {ratio:.2}{miss} | {whole:.1} | {plain:.1} |"
            ));
        });
    }
    table.0
}

fn threads() -> String {
    let title = "Two threads against one, wall time of a solve at 10⁻⁹ (limit 1.7 × from 10 MB on)";
    let columns = "| N | p | MB | one ms | two ms | speed-up | speed-up of a plain read | ratio |";
    let mut table = Table::new(title, columns);
    let pools = [1, 2].map(pool);
    for (n, p) in SIZES.into_iter().filter(|(n, p)| n * p * 8 >= 10_000_000) {
        let rows = Case { name: "far", n, p }.rows(0);
        let points = Points::new(&rows[..], p).expect("whole rows");
        let turns = 3 * runs(10 * n * p);
        let [one, two] = walls(&pools, turns, || solve(&points, 1e-9)).map(|wall| wall * 1e3);
        let [one_read, two_reads] = walls(&pools, turns, || read_in_parts(&rows));
        let (mb, gain, of_read) = ((n * p * 8) as f64 / 1e6, one / two, one_read / two_reads);
        let miss = mark(gain >= 1.7);
        let ratio = of_read / gain;
        table.row(format!(
            "| {n} | {p} | {mb:.1} | {one:.2} | {two:.2} | {gain:.2}{miss} | {of_read:.2} | {ratio:.2} |"
        ));
    }
    table.0
}

/// Minimum wall times with one thread and with two, measured alternately.
fn walls<T>(pools: &[ThreadPool; 2], turns: usize, work: impl Fn() -> T + Sync) -> [f64; 2] {
    let mut walls = [f64::INFINITY; 2];
    for _ in 0..turns {
        for (wall, pool) in walls.iter_mut().zip(pools) {
            *wall = wall.min(pool.install(|| least(ClockId::Monotonic, 5, &work)));
        }
    }
    walls
}

/// Sums all values on two threads.
fn read_in_parts(values: &[f64]) -> f64 {
    if values.len() < 1 << 17 {
        return read(values);
    }
    let (left, right) = values.split_at(values.len() / 2);
    let (left, right) = rayon::join(|| read_in_parts(left), || read_in_parts(right));
    left + right
}

fn memory() -> String {
    let title = "A million agents, d = 8: V and v aggregated in one process (limit 1.3 × the data)";
    let mut table = Table::new(title, "| data MB | peak MB | ratio | CPU s | passes |");
    table.row(child::run_self(&["memory-of", "1000000"]));
    table.0
}

/// Child process of [`memory`], which measures its own peak.
fn aggregate_many(arguments: &[String]) {
    let n: usize = arguments.first().and_then(|n| n.parse().ok()).expect("a number of agents");
    let (mut bytes, mut passes) = (0, 0);
    let matrices = Case { name: "far", n, p: 36 }.rows(0);
    let vectors = Case { name: "far", n, p: 8 }.rows(1);
    let start = clock(ClockId::ProcessCPUTime);
    for (rows, p) in [(&matrices, 36), (&vectors, 8)] {
        bytes += rows.len() * 8;
        passes += solve(&Points::new(&rows[..], p).expect("whole rows"), 1e-9).passes;
    }
    let cpu = clock(ClockId::ProcessCPUTime) - start;
    let (data, peak) = (bytes as f64 / 1e6, child::peak());
    let ratio = peak / data;
    println!("| {data:.0} | {peak:.0} | {ratio:.2}{} | {cpu:.2} | {passes} |", mark(ratio <= 1.3));
}
