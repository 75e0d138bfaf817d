//! Other implementations on the same rows: `rstats` (Rust) and `geom-median` (NumPy).

use std::path::{Path, PathBuf};
use std::process::Command;

use fedbandit::aggregate::{Points, objective};
use rstats::VecVec;

use super::cases::Case;
use super::record::{Table, mark};
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

/// A time in seconds, and the point that was found in it.
type Run = (f64, Vec<f64>);

pub(crate) fn table() -> String {
    let title = "Peers at matched accuracy, one thread (limits: 80 × geom-median, 3 × rstats)";
    let columns = "| case | N | p | fedbandit ms (gap) | rstats ms (gap) | × | geom-median ms (gap) | × |";
    let mut table = Table::new(title, columns);
    let python = python();
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

/// To the accuracy of the others, which is that of f64.
fn ours(points: &Points<'_>) -> Run {
    let seconds = cpu(runs(10 * points.values().len()), || solve(points, 1e-12));
    (seconds, solve(points, 1e-12).point)
}

/// Its stopping rule is on the sum of 1/r; this is where its answers stop improving.
const RSTATS_EPS: f64 = 1e-12;

fn rstats(points: &Points<'_>) -> Run {
    let rows: Vec<Vec<f64>> = points.rows().map(<[f64]>::to_vec).collect();
    let times = (runs(10 * points.values().len()) / 4).max(2);
    let seconds = cpu(times, || rows.gmedian(RSTATS_EPS));
    (seconds, rows.gmedian(RSTATS_EPS))
}

/// A Python with geom-median, made on first use.
fn python() -> Result<PathBuf, String> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
    let python = home.join("bin/python");
    if !python.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
        run(Command::new(&python).args(["-m", "pip", "install", "-q", "geom-median==0.1.0", "numpy"]))?;
    }
    Ok(python)
}

fn run(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let error = || String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
    if output.status.success() { Ok(output.stdout) } else { Err(error()) }
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
    let mut command = Command::new(python);
    command
        .args(["-c", SCRIPT])
        .arg(&file)
        .arg(p.to_string())
        .env("OMP_NUM_THREADS", "1")
        .env("OPENBLAS_NUM_THREADS", "1");
    let output = run(&mut command)?;
    let text = String::from_utf8_lossy(&output).into_owned();
    let numbers: Option<Vec<f64>> = text.split_whitespace().map(|number| number.parse().ok()).collect();
    let numbers = numbers.filter(|numbers| numbers.len() == p + 1).ok_or("no answer")?;
    Ok((numbers[0], numbers[1..].to_vec()))
}
