//! `fedbandit aggregate`: one aggregation rule applied to a file of points.

use std::fs::File;
use std::io::BufReader;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use fedbandit::aggregate::table::{self, TableError};
use fedbandit::aggregate::{
    Aggregator, CoordinateMedian, GeometricMedian, Groups, Krum, Mean, MedianOfMeans, MultiKrum, Points, Tolerance,
    TrimmedMean, corrupted,
};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::{EXIT_CODES, Failure, print_result};

const HELP: &str = "\
Examples:
  fedbandit aggregate --rule geometric-median points.npy
  fedbandit aggregate --rule trimmed-mean --corrupt 0.2 points.csv

FILE holds one point per row:
  .npy  2-D array of little-endian float64, as numpy.save writes it
  .csv  comma-separated numbers; a header line, blank lines and # comments are skipped
A row with a NaN or an infinity counts as 0.

Output, a JSON object:
  rule           the rule
  n, p           number of points, and of coordinates per point
  point          the aggregate
  objective      mean distance from the aggregate to the points (median-of-means: to the group means)
  certified_gap  proven bound on the objective minus its minimum; only the geometric median minimizes it
  passes         number of passes over the points (median-of-means: over the group means)
  cpu_seconds    CPU time of the rule, without reading the file
  rejected_rows  number of rows that were not finite
  version        version of this program
  config         the file, and all options of the rule";

/// Aggregate the points of a file into one, even if some are corrupted.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// Aggregation rule.
    #[arg(long, value_enum)]
    rule: Rule,
    /// Tolerance for the objective above its minimum [default: 1e-9].
    ///
    /// Relative to the median distance from the aggregate to the points, or absolute as abs:EPS. For geometric-median and
    /// median-of-means.
    #[arg(long, value_name = "EPS", value_parser = tolerance)]
    tolerance: Option<Tolerance>,
    /// Number of groups of median-of-means.
    #[arg(long, value_name = "P", conflicts_with = "corrupt")]
    groups: Option<NonZeroUsize>,
    /// Random seed of the groups of median-of-means [default: 0].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Share of points that may be corrupted, from 0 to below 0.5: f = ⌊SHARE·n⌋.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    corrupt: Option<f64>,
    /// Input file (.npy or .csv) with one point per row.
    file: PathBuf,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Rule {
    /// Point with the smallest mean distance to all points, with a proven bound on its error
    GeometricMedian,
    /// Geometric median of the means of random groups: --groups P, or P = 3f by --corrupt (f ≤ n/4)
    MedianOfMeans,
    /// Mean; not robust, one corrupted point can move it anywhere
    Mean,
    /// Median of each coordinate
    CoordinateMedian,
    /// Mean of each coordinate without its f smallest and f largest values (n > 2f)
    TrimmedMean,
    /// Point with the smallest sum of squared distances to its n−f−2 nearest neighbours (n > 2f+2)
    Krum,
    /// Mean of the n−f best points by Krum's score (n > 2f+2)
    MultiKrum,
}

impl Rule {
    /// Options that the rule uses.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::GeometricMedian => &["--tolerance"],
            Self::MedianOfMeans => &["--tolerance", "--groups", "--seed", "--corrupt"],
            Self::Mean | Self::CoordinateMedian => &[],
            Self::TrimmedMean | Self::Krum | Self::MultiKrum => &["--corrupt"],
        }
    }
}

#[derive(Serialize)]
struct Report {
    rule: Rule,
    n: usize,
    p: usize,
    point: Vec<f64>,
    objective: f64,
    certified_gap: f64,
    passes: u32,
    cpu_seconds: f64,
    rejected_rows: usize,
}

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.validate()?;
        let report = self.report().map_err(|failure| failure.context(self.file.display()))?;
        print_result(&report, self.config())
    }

    /// Returns the options of the rule; unused ones are null.
    fn config(&self) -> serde_json::Value {
        let uses = |option: &str| self.rule.options().contains(&option);
        serde_json::json!({
            "file": self.file,
            "rule": self.rule,
            "tolerance": uses("--tolerance").then(|| match self.tolerance() {
                Tolerance::Relative(eps) => eps.to_string(),
                Tolerance::Absolute(eps) => format!("abs:{eps}"),
            }),
            "groups": self.groups,
            "seed": uses("--seed").then(|| self.seed()),
            "corrupt": self.corrupt,
        })
    }

    fn tolerance(&self) -> Tolerance {
        self.tolerance.unwrap_or(Tolerance::Relative(1e-9))
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or_default()
    }

    /// Validates the options against the rule.
    fn validate(&self) -> Result<(), Failure> {
        let given = [
            ("--tolerance", self.tolerance.is_some()),
            ("--groups", self.groups.is_some()),
            ("--seed", self.seed.is_some()),
            ("--corrupt", self.corrupt.is_some()),
        ];
        let rule = self.rule.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let uses = self.rule.options();
        if let Some((option, _)) = given.iter().find(|(option, given)| *given && !uses.contains(option)) {
            return Err(Failure::Usage(format!("{rule} does not use {option}")));
        }
        if !uses.contains(&"--corrupt") || self.corrupt.is_some() || self.groups.is_some() {
            return Ok(());
        }
        let or_groups = if uses.contains(&"--groups") { " or --groups P" } else { "" };
        Err(Failure::Usage(format!("{rule} requires --corrupt SHARE{or_groups}")))
    }

    fn report(&self) -> Result<Report, Failure> {
        let points = read(&self.file)?;
        let start = cpu_time();
        let answer = self.aggregator(points.len())?.aggregate(&points).map_err(Failure::data)?;
        Ok(Report {
            rule: self.rule,
            n: points.len(),
            p: points.dimension(),
            point: answer.point,
            objective: answer.objective,
            certified_gap: answer.certified_gap,
            passes: answer.passes,
            cpu_seconds: (cpu_time() - start).as_secs_f64(),
            rejected_rows: points.rejected().len(),
        })
    }

    fn aggregator(&self, n: usize) -> Result<Box<dyn Aggregator>, Failure> {
        let tolerance = self.tolerance();
        let f = corrupted(self.corrupt.unwrap_or_default(), n);
        Ok(match self.rule {
            Rule::GeometricMedian => Box::new(GeometricMedian::new(tolerance)),
            Rule::MedianOfMeans => Box::new(MedianOfMeans::new(self.groups(n, f)?, tolerance)),
            Rule::Mean => Box::new(Mean),
            Rule::CoordinateMedian => Box::new(CoordinateMedian),
            Rule::TrimmedMean => Box::new(TrimmedMean { f }),
            Rule::Krum => Box::new(Krum { f }),
            Rule::MultiKrum => Box::new(MultiKrum { f, m: None }),
        })
    }

    fn groups(&self, n: usize, corrupted: usize) -> Result<Groups, Failure> {
        let seed = self.seed();
        match self.groups {
            Some(groups) => Groups::new(n, groups.get(), seed),
            None => Groups::for_corruption(n, corrupted, seed),
        }
        .map_err(Failure::data)
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn tolerance(text: &str) -> Result<Tolerance, String> {
    let (kind, number): (fn(f64) -> Tolerance, _) = match text.strip_prefix("abs:") {
        Some(number) => (Tolerance::Absolute, number),
        None => (Tolerance::Relative, text),
    };
    let valid = number.parse().ok().filter(|eps: &f64| eps.is_finite() && *eps > 0.0);
    valid.map(kind).ok_or_else(|| "expected a positive number, or abs: and a positive number".into())
}

fn share(text: &str) -> Result<f64, String> {
    let valid = text.parse().ok().filter(|share| (0.0..0.5).contains(share));
    valid.ok_or_else(|| "expected a number from 0 to below 0.5".into())
}

/// Reads the points of a file.
fn read(path: &Path) -> Result<Points<'static>, Failure> {
    let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
    let open = || {
        let file = File::open(path)?;
        Ok::<_, Failure>((file.metadata()?.len(), BufReader::with_capacity(1 << 16, file)))
    };
    let points = match extension.to_str() {
        Some("npy") => open().map(|(size, file)| table::npy(file, size))?,
        Some("csv") => open().map(|(_, file)| table::csv(file))?,
        _ => return Err(Failure::Usage("FILE must end in .npy or .csv".into())),
    };
    points.map_err(|error| match error {
        TableError::Io(error) => error.into(),
        other => Failure::data(other),
    })
}
