//! The least mean distance to some rows in double-double arithmetic, by another way than the solver's.

pub(crate) mod double;
pub(crate) mod families;

use double::{Double, direction, dot, exponent, norm, times_power};

/// A minimum of f(z) = Σ‖z − x_i‖ with a proof that it is one.
///
/// Rows are held as (x_i − origin)·2ᵏ. The difference of two f64 is a `Double` without error, the origin is a row, and k
/// makes the median distance about 1; so it takes neither offsets nor scales for rounding to matter.
///
/// Weak duality: let ‖y_i‖ ≤ 1 and Σy_i = 0. Then for every z, f(z) ≥ Σ⟨y_i, z − x_i⟩ by Cauchy and Schwarz, and that sum
/// does not depend on z, since the y_i cancel. So it is a lower bound on min f, and f(z) − min f ≤ Σ(‖z − x_i‖ − ⟨y_i,
/// z − x_i⟩) at any z. Here y_i is about u_i, the exact direction from x_i to `place`, and a vector of the unit ball for
/// rows that are there. They sum up to G, which is about 0. To make it 0, the y_i of the near rows (more than half) become
/// (u_i − v)/(1 + σ) with v = ((1 + σ)G − σN)/n', where N is the sum of the near u_i and n' the number of them: all then
/// sum up to 0, and ‖y_i‖ ≤ 1 as ‖v‖ ≤ σ for σ = ‖G‖/(n' − ‖N‖ − ‖G‖). Far rows stay as they are: an outlier at 10³⁰⁰ that
/// is scaled by 1 + 10⁻³⁰ would spoil it all.
///
/// Nothing of this rounds except the value of G, for which `Reference::allowance` is added, and the terms of the sums in
/// [`Reference::gap`], which are positive and so right to some 2⁻¹⁰⁰ of themselves.
pub(crate) struct Reference {
    origin: Vec<f64>,
    k: i32,
    rows: Vec<Vec<Double>>,
    place: Vec<Double>,
    /// The y_i before G is made 0, and ‖place − x_i‖.
    pulls: Vec<Vec<Double>>,
    radii: Vec<Double>,
    near: Vec<bool>,
    /// ‖G‖ at most.
    rest: f64,
    sigma: f64,
    median_radius: f64,
}

/// What [`Reference::gap`] finds, in units of 2⁻ᵏ.
pub(crate) struct Gap {
    /// g(z) − lower, so that g(z) − min g is at most this.
    pub(crate) most: f64,
    /// The part that may be the reference's own fault: g(z) − min g is at least `most` − `slack`.
    pub(crate) slack: f64,
}

impl Reference {
    /// For rows of p numbers each.
    pub(crate) fn new(values: &[f64], p: usize) -> Self {
        let rows: Vec<&[f64]> = values.chunks_exact(p).collect();
        let scan = if rows.len() <= MOST_PAIRED { Scan::new(&rows) } else { Scan::coarse(&rows) };
        for i in scan.candidates() {
            let mut reference = Self::about(&rows, i);
            reference.commit_and_tick(vec![Double::ZERO; p]);
            if reference.rest <= 2.0 * reference.allowance() {
                return reference;
            }
        }
        // From a row amid the others; then again from where that led, with the nearest row as the origin.
        let mut reference = Self::about(&rows, scan.central);
        reference.commit_and_tick(reference.newton(vec![Double::ZERO; p]));
        let mut origin = scan.central;
        for _ in 0..4 {
            let (nearest, distance) = reference.nearest();
            if nearest == origin || distance > 0.01 {
                break;
            }
            let mut closer = Self::about(&rows, nearest);
            closer.commit_and_tick(closer.newton(closer.moved(&reference)));
            (reference, origin) = (closer, nearest);
        }
        reference
    }

    fn about(rows: &[&[f64]], origin: usize) -> Self {
        let origin = rows[origin].to_vec();
        let k = -exponent(median(rows.iter().map(|row| length(row, &origin)).collect()).max(f64::from_bits(1)));
        Self {
            rows: rows.iter().map(|row| shifted(row, &origin, k)).collect(),
            k,
            origin,
            place: Vec::new(),
            pulls: Vec::new(),
            radii: Vec::new(),
            near: Vec::new(),
            rest: f64::INFINITY,
            sigma: f64::INFINITY,
            median_radius: 0.0,
        }
    }

    fn nearest(&self) -> (usize, f64) {
        let distances = self.radii.iter().map(|r| r.hi).enumerate();
        distances.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
    }

    /// The other's place, in the coordinates of this one.
    fn moved(&self, other: &Self) -> Vec<Double> {
        let between = shifted(&self.origin, &other.origin, other.k);
        minus(&other.place, &between).iter().map(|z| z.scaled(self.k - other.k)).collect()
    }

    /// An upper bound on how far the computed G is from the exact one: each u_i is right to 32 roundings, and the sum adds
    /// one per row.
    fn allowance(&self) -> f64 {
        let n = self.rows.len() as f64;
        n * (n + self.origin.len() as f64 + 32.0) * 2.0_f64.powi(-104)
    }

    /// Builds the dual point at `place`.
    fn commit_and_tick(&mut self, place: Vec<Double>) {
        let n = self.rows.len();
        let found: Vec<_> = self.rows.iter().map(|row| direction(&minus(&place, row))).collect();
        let pull = total(found.iter().flatten().map(|(unit, _)| unit.as_slice()), place.len());
        let at = found.iter().filter(|found| found.is_none()).count() as f64;
        // The rows at `place` balance the others as far as they can. A little less, so that their norms are at most 1.
        let length = norm(&pull);
        let most = if length.hi > at { length } else { Double::from(at.max(1.0)) };
        let most = most * (Double::from(1.0) + Double::from((place.len() + 8) as f64 * 2.0_f64.powi(-104)));
        let balance: Vec<Double> = pull.iter().map(|g| -*g / most).collect();
        self.radii = found.iter().map(|found| found.as_ref().map_or(Double::ZERO, |(_, r)| *r)).collect();
        self.pulls = found.into_iter().map(|found| found.map_or_else(|| balance.clone(), |(unit, _)| unit)).collect();
        self.median_radius = median(self.radii.iter().map(|r| r.hi).collect());
        self.near = self.radii.iter().map(|r| r.hi <= 16.0 * self.median_radius).collect();
        let rest = total(self.pulls.iter().map(Vec::as_slice), place.len());
        let near = total((0..n).filter(|i| self.near[*i]).map(|i| self.pulls[i].as_slice()), place.len());
        self.rest = norm(&rest).hi + self.allowance();
        let least =
            self.near.iter().filter(|near| **near).count() as f64 - norm(&near).hi - self.allowance() - self.rest;
        self.sigma = if least > 0.0 { self.rest / least } else { f64::INFINITY };
        self.place = place;
    }

    /// Damped Newton on G = 0. Steps are judged by the slope at their end alone: if it points downwards, f has fallen.
    fn newton(&self, mut place: Vec<Double>) -> Vec<Double> {
        let mut here = self.slope(&place);
        let mut best = (f64::INFINITY, place.clone());
        let mut since = 0;
        // A row cannot be left by a Newton step, which would not see its kink.
        let mut kink = self.rows.contains(&place);
        while since < 300 && best.0 > 0.01 * self.allowance() {
            let step = if kink { here.clone() } else { solve(self.hessian(&place), &here) };
            let most = if kink { 0.0 } else { 0.3 * dot(&here, &step).hi.abs() };
            let mut share = Double::from(1.0);
            loop {
                let next: Vec<Double> = place.iter().zip(&step).map(|(z, step)| *z - share * *step).collect();
                let there = self.slope(&next);
                if dot(&there, &step).hi >= -most || share.hi < 1e-300 {
                    (place, here) = (next, there);
                    break;
                }
                share = share * Double::from(0.25);
            }
            kink = false;
            let length = norm(&here).hi;
            since = if length < 0.5 * best.0 { 0 } else { since + 1 };
            if length < best.0 {
                best = (length, place.clone());
            }
        }
        best.1
    }

    /// G at z, without the rows that are there.
    fn slope(&self, z: &[Double]) -> Vec<Double> {
        let units: Vec<_> = self.rows.iter().filter_map(|row| direction(&minus(z, row))).collect();
        total(units.iter().map(|(unit, _)| unit.as_slice()), z.len())
    }

    /// Σ (I − u uᵀ)/r, the lower triangle.
    fn hessian(&self, z: &[Double]) -> Vec<Vec<Double>> {
        let mut sum: Vec<Vec<Double>> = (0..z.len()).map(|i| vec![Double::ZERO; i + 1]).collect();
        for (unit, r) in self.rows.iter().filter_map(|row| direction(&minus(z, row))) {
            let weight = Double::from(1.0) / r;
            for (i, line) in sum.iter_mut().enumerate() {
                let factor = unit[i] * weight;
                line.iter_mut().zip(&unit).for_each(|(sum, unit)| *sum = *sum - factor * *unit);
                line[i] = line[i] + weight;
            }
        }
        sum
    }

    /// How far g(z) is above the least value, without cancellation: for a row that pulls with u at `place`, at distance r
    /// there and s at z = place + d, s − ⟨u, z − x⟩ = ‖d − ⟨u, d⟩u‖²/(s + r + ⟨u, d⟩).
    pub(crate) fn gap(&self, z: &[f64]) -> Gap {
        let z = shifted(z, &self.origin, self.k);
        let d = minus(&z, &self.place);
        let (mut sum, mut near) = (Double::ZERO, 0.0);
        for (i, row) in self.rows.iter().enumerate() {
            let s = direction(&minus(&z, row)).map_or(Double::ZERO, |(_, s)| s);
            let (u, r) = (&self.pulls[i], self.radii[i]);
            let t = dot(u, &d);
            let along = r + t;
            sum = sum
                + if r.hi == 0.0 || along.hi <= 0.0 {
                    s - along
                } else {
                    let across: Vec<Double> = d.iter().zip(u).map(|(d, u)| *d - t * *u).collect();
                    dot(&across, &across) / (s + along)
                };
            near += if self.near[i] { s.hi } else { 0.0 };
        }
        let n = self.rows.len() as f64;
        let doubt = 2.0 * self.sigma * near;
        Gap { most: (sum.hi + doubt) / n, slack: (doubt + self.rest * norm(&d).hi) / n }
    }

    /// A length in the units of [`Gap`].
    pub(crate) fn units(&self, length: f64) -> f64 {
        times_power(length, self.k)
    }

    /// The median distance from the minimum to the rows, in the units of [`Gap`].
    pub(crate) fn median_radius(&self) -> f64 {
        self.median_radius
    }
}

/// The mean distance, right to some roundings.
pub(crate) fn mean_distance(values: &[f64], z: &[f64]) -> f64 {
    let difference = |row: &[f64]| row.iter().zip(z).map(|(x, z)| Double::difference(*z, *x)).collect::<Vec<_>>();
    let found: Vec<_> = values.chunks_exact(z.len()).filter_map(|row| length_parts(&difference(row))).collect();
    let Some(most) = found.iter().map(|(_, k)| *k).max() else { return 0.0 };
    let sum: Double = found.iter().filter(|(_, k)| *k > most - 500).map(|(r, k)| r.scaled(k - most)).sum();
    times_power(sum.hi / (values.len() / z.len()) as f64, most)
}

/// ‖d‖ as m·2ᵏ; none for 0.
fn length_parts(d: &[Double]) -> Option<(Double, i32)> {
    let k = exponent(Some(d.iter().fold(0.0, |largest: f64, d| largest.max(d.hi.abs()))).filter(|x| *x > 0.0)?);
    let scaled: Vec<Double> = d.iter().map(|d| d.scaled(-k)).collect();
    Some((norm(&scaled), k))
}

/// (x − origin)·2ᵏ. A row that would overflow keeps its direction: at 2⁹⁹⁰ median distances, that is all that counts.
fn shifted(x: &[f64], origin: &[f64], k: i32) -> Vec<Double> {
    let d: Vec<Double> = x.iter().zip(origin).map(|(x, o)| Double::difference(*x, *o)).collect();
    let largest = d.iter().fold(f64::from_bits(1), |largest, d| largest.max(d.hi.abs()));
    let k = k.min(990 - exponent(largest));
    d.iter().map(|d| d.scaled(k)).collect()
}

/// More rows than this are not compared pair by pair.
const MOST_PAIRED: usize = 2000;

/// What f64 can tell of the rows: how far each is from being a minimum, and which is amid them.
struct Scan {
    /// ‖Σ u‖ of the others less the number of rows there.
    excess: Vec<f64>,
    /// The one with the least excess among those with a median distance like the least: no minority can draw it away.
    central: usize,
}

impl Scan {
    fn new(rows: &[&[f64]]) -> Self {
        let (n, p) = (rows.len(), rows[0].len());
        let mut pulls = vec![vec![0.0; p]; n];
        let mut distances = vec![vec![0.0; n]; n];
        for i in 0..n {
            for j in (0..i).filter(|j| rows[*j] != rows[i]) {
                let r = length(rows[i], rows[j]);
                (distances[i][j], distances[j][i]) = (r, r);
                for c in 0..p {
                    let u = (rows[i][c] - rows[j][c]) / r;
                    pulls[i][c] += u;
                    pulls[j][c] -= u;
                }
            }
        }
        let at = |i: usize| distances[i].iter().filter(|r| **r == 0.0).count() as f64;
        let pull = |i: usize| pulls[i].iter().map(|x| x * x).sum::<f64>().sqrt();
        let excess: Vec<f64> = (0..n).map(|i| pull(i) - at(i)).collect();
        let medians: Vec<f64> = distances.into_iter().map(median).collect();
        let most = 100.0 * medians.iter().copied().fold(f64::INFINITY, f64::min);
        let amid = (0..n).filter(|i| medians[*i] <= most);
        let central = amid.min_by(|i, j| excess[*i].total_cmp(&excess[*j])).unwrap_or(0);
        Self { excess, central }
    }

    /// The row nearest to the median of each coordinate, and no guess at minima. If one of many rows were a minimum, Newton
    /// would not arrive, and the width would tell.
    fn coarse(rows: &[&[f64]]) -> Self {
        let middle: Vec<f64> = (0..rows[0].len()).map(|c| median(rows.iter().map(|row| row[c]).collect())).collect();
        let distances = rows.iter().map(|row| length(row, &middle)).enumerate();
        let central = distances.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(i, _)| i);
        Self { excess: vec![f64::INFINITY; rows.len()], central }
    }

    /// The rows that may be minima.
    fn candidates(&self) -> impl Iterator<Item = usize> {
        let most = 1e-8 * self.excess.len() as f64;
        (0..self.excess.len()).filter(move |i| self.excess[*i] < most)
    }
}

fn length(x: &[f64], z: &[f64]) -> f64 {
    let largest = x.iter().zip(z).fold(0.0, |most: f64, (x, z)| most.max((x - z).abs()));
    let squares: f64 = x.iter().zip(z).map(|(x, z)| ((x - z) / largest).powi(2)).sum();
    if largest == 0.0 { 0.0 } else { largest * squares.sqrt() }
}

/// The upper median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

fn minus(a: &[Double], b: &[Double]) -> Vec<Double> {
    a.iter().zip(b).map(|(a, b)| *a - *b).collect()
}

fn total<'a>(vectors: impl Iterator<Item = &'a [Double]>, p: usize) -> Vec<Double> {
    let mut sum = vec![Double::ZERO; p];
    for vector in vectors {
        sum.iter_mut().zip(vector).for_each(|(sum, x)| *sum = *sum + *x);
    }
    sum
}

/// The solution of Ax = b by Cholesky's factors. A pivot that rounding has taken is replaced: the step may be any.
fn solve(mut a: Vec<Vec<Double>>, b: &[Double]) -> Vec<Double> {
    let p = b.len();
    let least = a.iter().enumerate().map(|(i, line)| line[i].hi).sum::<f64>() * 2.0_f64.powi(-100);
    let mut x = b.to_vec();
    for i in 0..p {
        for j in 0..=i {
            let (above, line) = a.split_at(i);
            let other = if j < i { &above[j] } else { &line[0] };
            let rest = line[0][j] - dot(&line[0][..j], &other[..j]);
            let pivot = if rest.hi > least { rest } else { Double::from(least) };
            a[i][j] = if j < i { rest / a[j][j] } else { pivot.sqrt() };
        }
        x[i] = (x[i] - dot(&a[i][..i], &x[..i])) / a[i][i];
    }
    for i in (0..p).rev() {
        let known: Double = (i + 1..p).map(|j| a[j][i] * x[j]).sum();
        x[i] = (x[i] - known) / a[i][i];
    }
    x
}
