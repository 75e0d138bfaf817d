//! `fedbandit aggregate`: an oracle on a file of points.

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
Example:
  fedbandit aggregate --rule trimmed-mean --corrupt 0.2 points.csv

FILE holds one point per row:
  .npy  a 2-D array of little-endian float64, as numpy.save writes it
  .csv  comma-separated numbers; a first line of names, blank lines and # comments are skipped
A row with a NaN or an infinity counts as 0.

Output, a JSON object:
  rule           the rule
  n, p           the number of points, and of coordinates of each
  point          the answer
  objective      the mean distance from the answer to the points (median-of-means: to the group means)
  certified_gap  a proven bound on the objective minus its least value, which only the geometric median seeks
  passes         how many times the rule read all points (median-of-means: all group means)
  cpu_seconds    CPU time of the rule, without reading the file
  rejected_rows  the number of rows that were not finite
  version        the version of this program
  config         the file, and all options of the rule";

/// One point that stands for many, although some of them may be corrupted.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// How the answer is found.
    #[arg(long, value_enum)]
    rule: Rule,
    /// How far the objective may be above its least value [default: 1e-9].
    ///
    /// A share of the median distance from the answer to the points, or as abs:EPS a number in the points' own unit.
    /// For geometric-median and median-of-means.
    #[arg(long, value_name = "EPS", value_parser = tolerance)]
    tolerance: Option<Tolerance>,
    /// The number of groups of median-of-means.
    #[arg(long, value_name = "P", conflicts_with = "corrupt")]
    groups: Option<NonZeroUsize>,
    /// What the groups of median-of-means are drawn from [default: 0].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The share of points that may be corrupted, from 0 to below 1/2: f = ⌊SHARE·n⌋.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    corrupt: Option<f64>,
    /// A .npy or .csv file with one point per row.
    file: PathBuf,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Rule {
    /// The point with the least mean distance to all points, with a proven bound on its error
    GeometricMedian,
    /// The geometric median of the means of random groups: --groups P, or P = 3f by --corrupt (f ≤ n/4)
    MedianOfMeans,
    /// The mean, which one corrupted point can move anywhere
    Mean,
    /// The median of each coordinate
    CoordinateMedian,
    /// In each coordinate, the mean without the f least and the f largest values (n > 2f)
    TrimmedMean,
    /// The point with the least sum of squared distances to its n−f−2 nearest (n > 2f+2)
    Krum,
    /// The mean of the n−f best points by Krum's measure (n > 2f+2)
    MultiKrum,
}

impl Rule {
    /// The options that mean something to the rule.
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
        self.check()?;
        let report = self.report().map_err(|failure| failure.about(self.file.display()))?;
        print_result(&report, self.config())
    }

    /// What the rule was given: what it does not use is none.
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

    /// Whether the options fit the rule.
    fn check(&self) -> Result<(), Failure> {
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
        Err(Failure::Usage(format!("{rule} needs --corrupt SHARE{or_groups}")))
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
            Rule::MedianOfMeans => Box::new(MedianOfMeans::new(self.draw(n, f)?, tolerance)),
            Rule::Mean => Box::new(Mean),
            Rule::CoordinateMedian => Box::new(CoordinateMedian),
            Rule::TrimmedMean => Box::new(TrimmedMean { f }),
            Rule::Krum => Box::new(Krum { f }),
            Rule::MultiKrum => Box::new(MultiKrum { f, m: None }),
        })
    }

    fn draw(&self, n: usize, corrupted: usize) -> Result<Groups, Failure> {
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
    valid.map(kind).ok_or_else(|| "a tolerance is a positive number, or abs: and one".into())
}

fn share(text: &str) -> Result<f64, String> {
    let valid = text.parse().ok().filter(|share| (0.0..0.5).contains(share));
    valid.ok_or_else(|| "a share is from 0 to below 0.5".into())
}

/// The points of a file.
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
