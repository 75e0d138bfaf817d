//! Reference minimum of the mean distance, in double-double arithmetic and independent of the solver's method.

pub(crate) mod double;
pub(crate) mod families;

use double::{Double, direction, dot, exponent, norm, times_power_of_two};

/// Minimiser of f(z) = Σ‖z − x_i‖ with a dual certificate of its optimality.
///
/// *Representation.* Rows are stored as (x_i − origin)·2ᵏ. The origin is a row, so each difference is exact as a
/// `Double`; k makes the median distance about 1. Offsets and scales therefore cause no rounding.
///
/// *Weak duality.* Let ‖y_i‖ ≤ 1 and Σy_i = 0. By Cauchy–Schwarz, f(z) ≥ Σ⟨y_i, z − x_i⟩ for every z. The y_i cancel,
/// so this sum is independent of z and a lower bound on min f. Hence, at any z,
/// f(z) − min f ≤ Σ(‖z − x_i‖ − ⟨y_i, z − x_i⟩).
///
/// *Dual point.* Let u_i be the exact direction from x_i to `place`; for rows at `place`, any vector of the unit ball.
/// Their sum G is nearly 0. Let N be the sum of the u_i of the n' near rows (more than half). With
///
/// - σ = ‖G‖/(n' − ‖N‖ − ‖G‖),
/// - v = ((1 + σ)G − σN)/n',
/// - y_i = (u_i − v)/(1 + σ) for near rows and y_i = u_i for far rows,
///
/// the y_i sum to 0, and ‖y_i‖ ≤ 1 since ‖v‖ ≤ σ. Far rows are not scaled: the factor 1 + 10⁻³⁰ on an outlier at 10³⁰⁰
/// would ruin the bound.
///
/// *Rounding.* Only two quantities round: G, which `Reference::allowance` covers, and the terms of the sums in
/// [`Reference::gap`]. Those are positive, so their relative error is about 2⁻¹⁰⁰.
pub(crate) struct Reference {
    origin: Vec<f64>,
    k: i32,
    rows: Vec<Vec<Double>>,
    place: Vec<Double>,
    /// The u_i.
    pulls: Vec<Vec<Double>>,
    /// ‖place − x_i‖.
    radii: Vec<Double>,
    near: Vec<bool>,
    /// Upper bound on ‖G‖.
    residual: f64,
    sigma: f64,
    median_radius: f64,
}

/// Bounds on g(z) − min g, where g = f/n is the mean distance, in units of 2⁻ᵏ.
pub(crate) struct Gap {
    /// Upper bound: g(z) minus the dual lower bound.
    pub(crate) most: f64,
    /// Inaccuracy of the reference itself: g(z) − min g is at least `most` − `slack`.
    pub(crate) slack: f64,
}

impl Reference {
    /// Minimises the distance to rows of p numbers each.
    pub(crate) fn new(values: &[f64], p: usize) -> Self {
        let rows: Vec<&[f64]> = values.chunks_exact(p).collect();
        let scan = if rows.len() <= MAX_PAIRED { Scan::new(&rows) } else { Scan::coarse(&rows) };
        for i in scan.candidates() {
            let mut reference = Self::about(&rows, i);
            reference.build_dual(vec![Double::ZERO; p]);
            if reference.residual <= 2.0 * reference.allowance() {
                return reference;
            }
        }
        // Start from a central row, then refine with the row nearest to the result as origin.
        let mut reference = Self::about(&rows, scan.central);
        reference.build_dual(reference.newton(vec![Double::ZERO; p]));
        let mut origin = scan.central;
        for _ in 0..4 {
            let (nearest, distance) = reference.nearest();
            if nearest == origin || distance > 0.01 {
                break;
            }
            let mut closer = Self::about(&rows, nearest);
            closer.build_dual(closer.newton(closer.moved(&reference)));
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
            residual: f64::INFINITY,
            sigma: f64::INFINITY,
            median_radius: 0.0,
        }
    }

    fn nearest(&self) -> (usize, f64) {
        let distances = self.radii.iter().map(|r| r.hi).enumerate();
        distances.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
    }

    /// Converts another reference's `place` to the coordinates of this one.
    fn moved(&self, other: &Self) -> Vec<Double> {
        let between = shifted(&self.origin, &other.origin, other.k);
        minus(&other.place, &between).iter().map(|z| z.scaled(self.k - other.k)).collect()
    }

    /// Upper bound on the error of the computed G: at most 32 roundings per u_i, and one per row from the sum.
    fn allowance(&self) -> f64 {
        let n = self.rows.len() as f64;
        n * (n + self.origin.len() as f64 + 32.0) * 2.0_f64.powi(-104)
    }

    /// Builds the dual point at `place`.
    fn build_dual(&mut self, place: Vec<Double>) {
        let n = self.rows.len();
        let found: Vec<_> = self.rows.iter().map(|row| direction(&minus(&place, row))).collect();
        let pull = total(found.iter().flatten().map(|(unit, _)| unit.as_slice()), place.len());
        let at = found.iter().filter(|found| found.is_none()).count() as f64;
        // Rows at `place` balance the others as far as possible. Slightly less keeps their norms at most 1.
        let length = norm(&pull);
        let most = if length.hi > at { length } else { Double::from(at.max(1.0)) };
        let most = most * (Double::from(1.0) + Double::from((place.len() + 8) as f64 * 2.0_f64.powi(-104)));
        let balance: Vec<Double> = pull.iter().map(|g| -*g / most).collect();
        self.radii = found.iter().map(|found| found.as_ref().map_or(Double::ZERO, |(_, r)| *r)).collect();
        self.pulls = found.into_iter().map(|found| found.map_or_else(|| balance.clone(), |(unit, _)| unit)).collect();
        self.median_radius = median(self.radii.iter().map(|r| r.hi).collect());
        self.near = self.radii.iter().map(|r| r.hi <= 16.0 * self.median_radius).collect();
        let residual = total(self.pulls.iter().map(Vec::as_slice), place.len());
        let near = total((0..n).filter(|i| self.near[*i]).map(|i| self.pulls[i].as_slice()), place.len());
        self.residual = norm(&residual).hi + self.allowance();
        let least =
            self.near.iter().filter(|near| **near).count() as f64 - norm(&near).hi - self.allowance() - self.residual;
        self.sigma = if least > 0.0 { self.residual / least } else { f64::INFINITY };
        self.place = place;
    }

    /// Solves G = 0 by damped Newton steps.
    ///
    /// A step is accepted by the slope at its end alone: if that still points downwards, f has decreased.
    fn newton(&self, mut place: Vec<Double>) -> Vec<Double> {
        let mut here = self.slope(&place);
        let mut best = (f64::INFINITY, place.clone());
        let mut since = 0;
        // Newton steps cannot leave a row, since f is not differentiable there.
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

    /// G at z, without the rows located at z.
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

    /// Bounds g(z) − min g without cancellation.
    ///
    /// For a row x with direction u, at distance r from `place` and s from z = place + d:
    /// s − ⟨u, z − x⟩ = ‖d − ⟨u, d⟩u‖²/(s + r + ⟨u, d⟩).
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
        Gap { most: (sum.hi + doubt) / n, slack: (doubt + self.residual * norm(&d).hi) / n }
    }

    /// Converts a length to the units of [`Gap`].
    pub(crate) fn units(&self, length: f64) -> f64 {
        times_power_of_two(length, self.k)
    }

    /// Median distance from the minimum to the rows, in the units of [`Gap`].
    pub(crate) fn median_radius(&self) -> f64 {
        self.median_radius
    }
}

/// Returns the mean distance, accurate to a few roundings.
pub(crate) fn mean_distance(values: &[f64], z: &[f64]) -> f64 {
    let difference = |row: &[f64]| row.iter().zip(z).map(|(x, z)| Double::difference(*z, *x)).collect::<Vec<_>>();
    let found: Vec<_> = values.chunks_exact(z.len()).filter_map(|row| length_parts(&difference(row))).collect();
    let Some(most) = found.iter().map(|(_, k)| *k).max() else { return 0.0 };
    let sum: Double = found.iter().filter(|(_, k)| *k > most - 500).map(|(r, k)| r.scaled(k - most)).sum();
    times_power_of_two(sum.hi / (values.len() / z.len()) as f64, most)
}

/// Returns m and k with ‖d‖ = m·2ᵏ; `None` for the zero vector.
fn length_parts(d: &[Double]) -> Option<(Double, i32)> {
    let k = exponent(Some(d.iter().fold(0.0, |largest: f64, d| largest.max(d.hi.abs()))).filter(|x| *x > 0.0)?);
    let scaled: Vec<Double> = d.iter().map(|d| d.scaled(-k)).collect();
    Some((norm(&scaled), k))
}

/// Returns (x − origin)·2ᵏ. A row that would overflow keeps only its direction: at 2⁹⁹⁰ median distances, nothing else
/// matters.
fn shifted(x: &[f64], origin: &[f64], k: i32) -> Vec<Double> {
    let d: Vec<Double> = x.iter().zip(origin).map(|(x, o)| Double::difference(*x, *o)).collect();
    let largest = d.iter().fold(f64::from_bits(1), |largest, d| largest.max(d.hi.abs()));
    let k = k.min(990 - exponent(largest));
    d.iter().map(|d| d.scaled(k)).collect()
}

/// Largest number of rows that are compared pairwise.
const MAX_PAIRED: usize = 2000;

/// Preliminary scan of the rows in f64: candidates for the minimum, and a central row to start from.
struct Scan {
    /// ‖Σu‖ over the other rows, minus the number of copies of this row; a minimum has at most 0.
    excess: Vec<f64>,
    /// Row with the least excess among those whose median distance is near the smallest. No minority can displace it.
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
        let near_centre = (0..n).filter(|i| medians[*i] <= most);
        let central = near_centre.min_by(|i, j| excess[*i].total_cmp(&excess[*j])).unwrap_or(0);
        Self { excess, central }
    }

    /// Scan without candidates, whose central row is the nearest to the coordinate-wise median.
    ///
    /// If a row were the minimum, Newton would not converge and the slack would be large.
    fn coarse(rows: &[&[f64]]) -> Self {
        let middle: Vec<f64> = (0..rows[0].len()).map(|c| median(rows.iter().map(|row| row[c]).collect())).collect();
        let distances = rows.iter().map(|row| length(row, &middle)).enumerate();
        let central = distances.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(i, _)| i);
        Self { excess: vec![f64::INFINITY; rows.len()], central }
    }

    /// Rows that may be minima.
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

/// Solves Ax = b by Cholesky factorisation. A pivot lost to rounding is replaced, since any step is acceptable.
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
