//! Summary of an episode, which the agent sends to the controller.

/// U = Σ xxᵀ and u = Σ xr over the steps of one episode (Algorithm 1, line 11).
///
/// A view of the agent's sums: encode or copy it before the next episode's first [`record`](crate::Agent::record).
/// [`rounding::sums`](crate::rounding::sums) bounds its rounding error.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EpisodeSummary<'a, const D: usize> {
    pub(crate) episode: u32,
    pub(crate) steps: u32,
    pub(crate) reward_sum: f32,
    pub(crate) square: &'a [[f32; D]; D],
    pub(crate) feature_sum: &'a [f32; D],
}

impl<'a, const D: usize> EpisodeSummary<'a, D> {
    /// Returns k, the summary's episode.
    pub fn episode(&self) -> u32 {
        self.episode
    }

    /// Returns the number of recorded steps, at most L.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Returns Σr, the sum of recorded rewards. It is used for monitoring, not for learning.
    pub fn reward_sum(&self) -> f32 {
        self.reward_sum
    }

    /// Iterates over the upper triangle of U, row by row: D(D+1)/2 values.
    pub fn gram(&self) -> impl Iterator<Item = f32> + use<'a, D> {
        self.square.iter().enumerate().flat_map(|(i, row)| row.iter().copied().skip(i))
    }

    /// Returns u.
    pub fn feature_sum(&self) -> &'a [f32; D] {
        self.feature_sum
    }
}

#[cfg(feature = "serde")]
impl<const D: usize> serde::Serialize for EpisodeSummary<'_, D> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        struct Gram<'a, const D: usize>(EpisodeSummary<'a, D>);
        impl<const D: usize> serde::Serialize for Gram<'_, D> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(self.0.gram())
            }
        }

        let mut fields = serializer.serialize_struct("EpisodeSummary", 5)?;
        fields.serialize_field("episode", &self.episode)?;
        fields.serialize_field("steps", &self.steps)?;
        fields.serialize_field("reward_sum", &self.reward_sum)?;
        fields.serialize_field("gram", &Gram(*self))?;
        fields.serialize_field("feature_sum", self.feature_sum.as_slice())?;
        fields.end()
    }
}
