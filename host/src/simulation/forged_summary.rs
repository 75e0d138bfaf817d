//! Summaries as attackers compute and send them.

use nalgebra::DMatrix;

use super::fleet::Summaries;
use crate::math::symmetric;

/// Summary (U, u) as an attacker sends it.
#[derive(Clone, Debug, PartialEq)]
pub struct ForgedSummary {
    /// U as its packed upper triangle; for [`Attack::Asymmetric`](super::Attack::Asymmetric) the full matrix by rows.
    pub gram: Vec<f64>,
    /// u.
    pub feature_sum: Vec<f64>,
}

impl ForgedSummary {
    /// Returns the summary of an agent's own steps.
    pub(super) fn own(summaries: &Summaries, agent: usize) -> Self {
        let (gram, feature_sum) = summaries.row(agent);
        let widen = |values: &[f32]| values.iter().copied().map(f64::from).collect();
        Self { gram: widen(gram), feature_sum: widen(feature_sum) }
    }

    /// Returns (U, −u).
    pub(super) fn flipped(mut self) -> Self {
        self.feature_sum.iter_mut().for_each(|value| *value = -*value);
        self
    }

    /// Returns the full matrix of U with `add` added to the last entry of the first row only, and −u.
    pub(super) fn asymmetric(self, add: f64) -> Self {
        let d = self.feature_sum.len();
        let mut gram = unpacked(&self.gram, d);
        gram[(0, d - 1)] += add;
        let rows = gram.transpose();
        Self { gram: rows.as_slice().to_vec(), ..self.flipped() }
    }

    /// Returns U, then u, rounded to the f32 values of a frame.
    pub fn to_f32(&self) -> Vec<f32> {
        self.gram.iter().chain(&self.feature_sum).map(|value| *value as f32).collect()
    }
}

/// Returns the matrix of a packed triangle.
pub(super) fn unpacked(packed: &[f64], dimension: usize) -> DMatrix<f64> {
    symmetric::matrix(&symmetric::scaled(packed, dimension).collect::<Vec<_>>(), dimension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asymmetric_summary_changes_one_triangle() {
        let summary = ForgedSummary { gram: vec![1.0, 2.0, 3.0], feature_sum: vec![4.0, 5.0] }.asymmetric(10.0);
        assert_eq!(summary.gram, [1.0, 12.0, 2.0, 3.0]);
        assert_eq!(summary.feature_sum, [-4.0, -5.0]);
    }
}
