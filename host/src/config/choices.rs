//! What is chosen by name.

use std::fmt;
use std::str::FromStr;

use super::ConfigError;
use crate::names::{named, serde_as_text};
use crate::privacy::calibration::Budget;

/// How the controller makes one of many, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AggregatorName {
    /// The geometric median: Byzantine-UCB, and with privacy Byzantine-UCB-DP.
    GeometricMedian,
    /// The geometric median of group means: with privacy Byzantine-UCB-DP-MoM.
    MedianOfMeans,
    /// The mean, which one agent can move anywhere.
    Mean,
    /// The mean over the honest agents, which only a simulation knows.
    Oracle,
    /// No communication: every agent learns alone.
    Solo,
    /// The median of each coordinate.
    CoordinateMedian,
    /// The mean of each coordinate without its extremes.
    TrimmedMean,
    /// The stream with the nearest neighbours.
    Krum,
    /// The mean of the best streams by Krum's measure.
    MultiKrum,
    /// Beyond the paper: whitened residuals, a spectral filter and a width for each direction
    /// ([`Whitened`](crate::robust::Whitened)).
    WhitenedFilter,
    /// The mean over the honest agents with the width of `whitened-filter`, which only a simulation knows.
    WhitenedOracle,
}

impl AggregatorName {
    /// Whether it works on groups of agents.
    pub(crate) fn is_of_means(self) -> bool {
        self == Self::MedianOfMeans
    }

    /// Whether it takes the honest agents alone.
    pub fn is_oracle(self) -> bool {
        matches!(self, Self::Oracle | Self::WhitenedOracle)
    }

    /// Whether only a simulation has it: a service would know neither who is honest, nor what an agent alone has learned.
    pub fn is_simulated(self) -> bool {
        self.is_oracle() || self == Self::Solo
    }

    /// Checks that the noise of real rewards was declared, if the rule depends on it.
    ///
    /// # Errors
    /// The rule needs the noise level, and it was not declared.
    pub(crate) fn require_noise(self, declared: bool) -> Result<(), ConfigError> {
        if declared || !self.is_whitened() {
            return Ok(());
        }
        let reason = format!(
            "{self} needs the noise level of rewards; set rewards = \"gaussian:R\" for R-sub-Gaussian noise, \
             or \"bounded\" if they are within [-1, 1]"
        );
        Err(ConfigError::new("rewards", reason))
    }

    /// Whether it compares residuals with their noise, so that R must be known.
    pub(crate) fn is_whitened(self) -> bool {
        match self {
            Self::WhitenedFilter | Self::WhitenedOracle => true,
            Self::GeometricMedian
            | Self::MedianOfMeans
            | Self::Mean
            | Self::Oracle
            | Self::Solo
            | Self::CoordinateMedian
            | Self::TrimmedMean
            | Self::Krum
            | Self::MultiKrum => false,
        }
    }
}

named!(
    AggregatorName,
    "aggregator",
    GeometricMedian = "geometric-median",
    MedianOfMeans = "median-of-means",
    Mean = "mean",
    Oracle = "oracle",
    Solo = "solo",
    CoordinateMedian = "coordinate-median",
    TrimmedMean = "trimmed-mean",
    Krum = "krum",
    MultiKrum = "multi-krum",
    WhitenedFilter = "whitened-filter",
    WhitenedOracle = "whitened-oracle",
);

/// Where λ_k and β_k come from, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleName {
    /// [`Calibrated`](crate::algorithm::Calibrated).
    Calibrated,
    /// [`Theorem`](crate::algorithm::Theorem): the one that fits the aggregator and privacy.
    Theorem,
}

named!(ScheduleName, "schedule", Calibrated = "calibrated", Theorem = "theorem");

/// (μ, ν), written `MU,NU`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Privacy(pub Budget);

serde_as_text!(Privacy);

impl fmt::Display for Privacy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.0.mu(), self.0.nu())
    }
}

impl FromStr for Privacy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers =
            text.split_once(',').and_then(|(mu, nu)| Some((mu.trim().parse().ok()?, nu.trim().parse().ok()?)));
        let (mu, nu) =
            numbers.ok_or_else(|| format!("invalid privacy budget '{text}'; expected MU,NU (e.g. 4,1e-6)"))?;
        Budget::new(mu, nu).map(Self).map_err(|error| error.to_string())
    }
}

/// What a reward is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RewardKind {
    /// ⟨x, θ*⟩ + R·N(0, 1).
    Gaussian(f64),
    /// 1 with probability (1 + ⟨x, θ*⟩)/2, else −1.
    Bounded,
}

impl RewardKind {
    /// R, for which the noise is R-sub-Gaussian.
    pub fn noise(self) -> f64 {
        match self {
            Self::Gaussian(noise) => noise,
            // A variable with values in an interval of length 2.
            Self::Bounded => 1.0,
        }
    }

    /// r_max, where there is one.
    pub fn bound(self) -> Option<f64> {
        match self {
            Self::Gaussian(_) => None,
            Self::Bounded => Some(1.0),
        }
    }
}

serde_as_text!(RewardKind);

impl fmt::Display for RewardKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gaussian(noise) => write!(f, "gaussian:{noise}"),
            Self::Bounded => f.pad("bounded"),
        }
    }
}

impl FromStr for RewardKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let noise = |noise: &str| noise.parse().ok().filter(|noise| (0.0..=MAX_REWARD).contains(noise));
        match text.strip_prefix("gaussian:").map(noise) {
            Some(Some(noise)) => Ok(Self::Gaussian(noise)),
            None if text == "bounded" => Ok(Self::Bounded),
            _ => Err(format!(
                "invalid rewards '{text}'; expected gaussian:R with a noise level R from 0 to {MAX_REWARD:e}, or bounded"
            )),
        }
    }
}

/// The largest R, ‖θ*‖ and logged reward: far below what a device refuses, however often it is added up.
pub(crate) const MAX_REWARD: f64 = 1e15;
