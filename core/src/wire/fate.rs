//! Fate of a summary at the controller.

use core::fmt;

/// Whether a summary counts and, if not, why.
///
/// A function of the summary, of the run's public terms and of the running episode. The sender could compute it, so it
/// reveals nothing about other devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Fate {
    /// It counts, and is stored durably. A repeated summary is judged by its content; the first one stored is the one that
    /// counts.
    Counts,
    /// The episode ended too long ago or has not begun.
    WrongEpisode,
    /// The dimension differs from the run's.
    WrongDimension,
    /// The summary's run is not the controller's.
    WrongRun,
    /// A value is NaN or infinite.
    NotFinite,
    /// A norm or the trace exceeds the maximum of the episode's L steps.
    Norm,
    /// U has a negative eigenvalue.
    NotPositiveSemidefinite,
    /// No rewards within the run's bound give this u with this U.
    Inconsistent,
    /// The device is excluded from the run because of an earlier summary.
    Excluded,
    /// Does not count, for a reason that this version does not know.
    Other(u8),
}

impl Fate {
    const NAMED: [Self; 9] = [
        Self::Counts,
        Self::WrongEpisode,
        Self::WrongDimension,
        Self::WrongRun,
        Self::NotFinite,
        Self::Norm,
        Self::NotPositiveSemidefinite,
        Self::Inconsistent,
        Self::Excluded,
    ];

    /// Returns true if the summary counts.
    pub const fn counts(self) -> bool {
        matches!(self, Self::Counts)
    }

    /// Returns the code on the wire.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Other(code) => code,
            named => Self::NAMED.iter().position(|fate| *fate == named).unwrap_or_default() as u8,
        }
    }

    pub(super) fn from_code(code: u8) -> Self {
        Self::NAMED.get(usize::from(code)).copied().unwrap_or(Self::Other(code))
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counts => "counts",
            Self::WrongEpisode => "its episode is not open",
            Self::WrongDimension => "its dimension is not the run's",
            Self::WrongRun => "its run is not the controller's",
            Self::NotFinite => "it contains a value that is not finite",
            Self::Norm => "its norm exceeds the maximum of an episode",
            Self::NotPositiveSemidefinite => "its Gram matrix is not positive semidefinite",
            Self::Inconsistent => "its feature sum is inconsistent with its Gram matrix",
            Self::Excluded => "the device is excluded",
            Self::Other(code) => return write!(f, "unknown reason {code}"),
        })
    }
}
