//! Peers on the same rows: `rstats` (Rust) and `geom-median` (NumPy).

use std::path::Path;

use fedbandit::aggregate::{Points, objective};
use rstats::VecVec;

use super::cases::Case;
use super::child::{self, python, script};
use super::record::{Table, locked, mark};
use super::{cpu, pool, runs, solve};

const CASES: [Case; 7] = [
    Case { name: "far", n: 1000, p: 36 },
    Case { name: "collude", n: 1000, p: 36 },
    Case { name: "gram", n: 1000, p: 36 },
    Case { name: "far", n: 10_000, p: 136 },
    Case { name: "gram", n: 10_000, p: 136 },
    Case { name: "far", n: 100_000, p: 36 },
    Case { name: "collude", n: 10_000, p: 528 },
];

/// Time in seconds, and the resulting point.
type Run = (f64, Vec<f64>);

pub(crate) fn table() -> String {
    let title = "Peers at matched accuracy, one thread (limits: 80 × geom-median, 3 × rstats)";
    let columns = "| case | N | p | fedbandit ms (gap) | rstats ms (gap) | × | geom-median ms (gap) | × |";
    let mut table = Table::new(title, columns);
    let python = python("geom_median", &["geom-median==0.1.0", "numpy"]);
    for case in CASES {
        let rows = case.rows(0);
        let points = Points::new(&rows[..], case.p).expect("whole rows");
        let ours = pool(1).install(|| ours(&points));
        let rstats = pool(1).install(|| rstats(&points));
        let geom_median =
            python.as_deref().map_err(String::clone).and_then(|python| geom_median(python, &rows, case.p));
        let least = [Some(&ours), Some(&rstats), geom_median.as_ref().ok()]
            .into_iter()
            .flatten()
            .map(|(_, point)| objective(&points, point))
            .fold(f64::INFINITY, f64::min);
        let show = |(seconds, point): &Run| {
            let gap = (objective(&points, point) - least) / least;
            format!("{:.3} ({gap:.0e})", seconds * 1e3)
        };
        let ratio = |peer: &Run, limit: f64| format!("{:.1}{}", peer.0 / ours.0, mark(peer.0 >= limit * ours.0));
        let numpy = match &geom_median {
            Ok(run) => format!("{} | {}", show(run), ratio(run, 80.0)),
            Err(reason) => format!("not measured: {reason} | –"),
        };
        let Case { name, n, p } = case;
        let (own, theirs, gain) = (show(&ours), show(&rstats), ratio(&rstats, 3.0));
        table.row(format!("| {name} | {n} | {p} | {own} | {theirs} | {gain} | {numpy} |"));
    }
    table.0
}

pub(crate) fn versions() -> Vec<String> {
    [vec![locked("rstats")], child::versions(&["geom-median", "numpy"])].concat()
}

/// Runs to the accuracy of the peers, which is that of f64.
fn ours(points: &Points<'_>) -> Run {
    let seconds = cpu(runs(10 * points.values().len()), || solve(points, 1e-12));
    (seconds, solve(points, 1e-12).point)
}

/// Tolerance of rstats, on the sum of 1/r. Below it the results no longer improve.
const RSTATS_EPS: f64 = 1e-12;

fn rstats(points: &Points<'_>) -> Run {
    let rows: Vec<Vec<f64>> = points.rows().map(<[f64]>::to_vec).collect();
    let times = (runs(10 * points.values().len()) / 4).max(2);
    let seconds = cpu(times, || rows.gmedian(RSTATS_EPS));
    (seconds, rows.gmedian(RSTATS_EPS))
}

const SCRIPT: &str = "\
import sys, time, numpy
from geom_median.numpy import compute_geometric_median
rows = numpy.frombuffer(open(sys.argv[1], 'rb').read()).reshape(-1, int(sys.argv[2]))
points, best = list(rows), float('inf')
for _ in range(2):
    start = time.process_time()
    found = compute_geometric_median(points)
    best = min(best, time.process_time() - start)
print(best, *map(repr, map(float, found.median)))
";

fn geom_median(python: &Path, rows: &[f64], p: usize) -> Result<Run, String> {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rows.bin");
    let bytes: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(&file, bytes).map_err(|error| error.to_string())?;
    let numbers = script(python, SCRIPT, &[file.to_string_lossy().into(), p.to_string()])?;
    let [seconds, point @ ..] = &numbers[..] else { return Err("no output".into()) };
    if point.len() == p { Ok((*seconds, point.to_vec())) } else { Err("no output".into()) }
}
