//! Options that are chosen by name.

use std::fmt;
use std::str::FromStr;

use super::ConfigError;
use crate::names::{named, serde_as_text};
use crate::privacy::calibration::Budget;

/// Aggregation rule of the controller, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AggregatorName {
    /// Geometric median: Byzantine-UCB, or with privacy Byzantine-UCB-DP.
    GeometricMedian,
    /// Geometric median of group means: with privacy Byzantine-UCB-DP-MoM.
    MedianOfMeans,
    /// Mean, which a single agent can move anywhere.
    Mean,
    /// Mean over the honest agents, who are known in simulations only.
    Oracle,
    /// No communication: each agent learns alone.
    Solo,
    /// Median of each coordinate.
    CoordinateMedian,
    /// Mean of each coordinate without its extremes.
    TrimmedMean,
    /// Stream with the nearest neighbours.
    Krum,
    /// Mean of the best streams by the score of Krum.
    MultiKrum,
    /// [`Whitened`](crate::robust::Whitened), a rule beyond the paper: spectral filter on whitened residuals, with a width
    /// for each direction.
    WhitenedFilter,
    /// [`Capped`](crate::robust::Capped), a rule beyond the paper: as `whitened-filter`, for agents that explore different
    /// directions or are absent at times.
    CappedFilter,
    /// Mean over the honest agents, with the width of `whitened-filter`. Simulations only.
    WhitenedOracle,
}

impl AggregatorName {
    /// The recommended rule, and the default: for agents that may be absent, explore differently, or lie.
    pub const RECOMMENDED: Self = Self::CappedFilter;

    /// Returns true if only honest agents take part.
    pub fn is_oracle(self) -> bool {
        matches!(self, Self::Oracle | Self::WhitenedOracle)
    }

    /// Returns true for rules that a service cannot run: the oracles, and `solo`, which has no controller.
    pub fn is_simulation_only(self) -> bool {
        self.is_oracle() || self == Self::Solo
    }

    /// Returns true if a silent device has less information for the rule. To other rules it is a corrupted one, as its
    /// messages count as zero.
    pub fn tolerates_absence(self) -> bool {
        self == Self::CappedFilter
    }

    /// Checks that the noise level of real rewards is declared if the rule depends on it.
    ///
    /// # Errors
    /// The rule needs the noise level, and it is not declared.
    pub(crate) fn require_noise(self, declared: bool) -> Result<(), ConfigError> {
        if declared || !self.is_whitened() {
            return Ok(());
        }
        let reason = format!(
            "{self} needs the noise level of rewards; set rewards = \"gaussian:R\" for R-sub-Gaussian noise, \
             \"bounded\" if they are within [-1, 1], or \"auto:MAX\" to have R <= MAX estimated; \
             aggregator = \"geometric-median\" does not need it"
        );
        Err(ConfigError::new("rewards", reason))
    }

    /// Returns true if the rule compares residuals with their noise, so that R must be known.
    pub(crate) fn is_whitened(self) -> bool {
        match self {
            Self::WhitenedFilter | Self::CappedFilter | Self::WhitenedOracle => true,
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
    CappedFilter = "capped-filter",
    WhitenedOracle = "whitened-oracle",
);

/// Schedule of λ_k and β_k, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleName {
    /// [`Calibrated`](crate::algorithm::Calibrated).
    Calibrated,
    /// [`Theorem`](crate::algorithm::Theorem), chosen by aggregator and privacy.
    Theorem,
}

named!(ScheduleName, "schedule", Calibrated = "calibrated", Theorem = "theorem");

/// Privacy budget (μ, ν), written `MU,NU`.
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

/// Distribution of rewards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RewardKind {
    /// ⟨x, θ*⟩ + R·N(0, 1).
    Gaussian(f64),
    /// 1 with probability (1 + ⟨x, θ*⟩)/2, else −1.
    Bounded,
    /// Noise of an unknown level, which is at most this bound. `capped-filter` estimates it from the messages.
    Auto(f64),
}

impl RewardKind {
    /// Returns R, for which the noise is R-sub-Gaussian. If the level is unknown, it is the upper bound.
    pub fn noise(self) -> f64 {
        match self {
            Self::Gaussian(noise) | Self::Auto(noise) => noise,
            // The values are within an interval of length 2.
            Self::Bounded => 1.0,
        }
    }

    /// Returns r_max, if rewards are bounded.
    pub fn bound(self) -> Option<f64> {
        match self {
            Self::Gaussian(_) | Self::Auto(_) => None,
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
            Self::Auto(bound) => write!(f, "auto:{bound}"),
        }
    }
}

impl FromStr for RewardKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, noise) = text.split_once(':').unwrap_or((text, ""));
        let level = noise.parse().ok().filter(|noise| (0.0..=MAX_REWARD).contains(noise));
        match (kind, level) {
            ("gaussian", Some(noise)) => Ok(Self::Gaussian(noise)),
            ("auto", Some(bound)) if bound > 0.0 => Ok(Self::Auto(bound)),
            ("auto", _) => Err(format!(
                "invalid rewards '{text}'; expected auto:MAX with a positive upper bound on the noise level, at most {MAX_REWARD:e}"
            )),
            _ if text == "bounded" => Ok(Self::Bounded),
            _ => Err(format!(
                "invalid rewards '{text}'; expected gaussian:R with a noise level R from 0 to {MAX_REWARD:e}, bounded, or auto:MAX"
            )),
        }
    }
}

/// Largest R, ‖θ*‖ and logged reward. Sums over a whole run stay within the range of a device.
pub(crate) const MAX_REWARD: f64 = 1e15;
