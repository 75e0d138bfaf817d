//! Geometric median against a double-double reference, on rows that are hard to solve.
// `!(x <= limit)` rejects NaN as well as large values.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

use crate::reference::families::{self, Make, below, normal, normals, shuffle, uniform};
use crate::reference::{Gap, Reference, mean_distance, median};
use fedbandit::aggregate::{Aggregate, Aggregator, GeometricMedian, Points, Tolerance, distance};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::SeedableRng;

const TOLERANCES: [Tolerance; 5] = [
    Tolerance::Relative(1e-6),
    Tolerance::Relative(1e-9),
    Tolerance::Relative(1e-12),
    Tolerance::Absolute(1e-8),
    // As accurate as f64 allows.
    Tolerance::Relative(0.0),
];

fn solve(points: &Points<'_>, tolerance: Tolerance) -> Aggregate {
    GeometricMedian::new(tolerance).aggregate(points).unwrap()
}

/// Gap that the tolerance allows at the point found.
fn allowed(points: &Points<'_>, found: &Aggregate, tolerance: Tolerance) -> f64 {
    match tolerance {
        Tolerance::Absolute(most) => most,
        Tolerance::Relative(share) => share * median(points.rows().map(|row| distance(row, &found.point)).collect()),
    }
}

/// Returns true if the certified gap is within the tolerance.
fn met(points: &Points<'_>, found: &Aggregate, tolerance: Tolerance) -> bool {
    let certified = found.certified_gap;
    certified == 0.0 || certified <= allowed(points, found, tolerance)
}

/// Describes every violated requirement of a solution; the requirements hold for all rows.
fn faults(points: &Points<'_>, reference: &Reference, found: &Aggregate) -> Vec<String> {
    if !found.point.iter().all(|x| x.is_finite()) {
        return vec!["point is not finite".into()];
    }
    let mut faults = Vec::new();
    let certified = found.certified_gap;
    if !(certified >= 0.0 && certified.is_finite()) {
        faults.push(format!("certified gap {certified:e} is negative or not finite"));
    }
    let Gap { most, slack } = reference.gap(&found.point);
    let radius = reference.median_radius();
    // A certificate is only as precise as its f64; a subnormal one has fewer digits.
    if !(most <= reference.units(certified) + slack) {
        faults.push(format!(
            "gap of {:e} radii exceeds the certified {:e}",
            most / radius,
            reference.units(certified) / radius
        ));
    }
    if !(slack <= 1e-22 * (radius + most)) {
        faults.push(format!("reference is accurate only to {:e} radii", slack / radius));
    }
    let expected = mean_distance(points.values(), &found.point);
    let tiniest = (points.len() + 8) as f64 * f64::from_bits(1);
    if !((found.objective - expected).abs() <= 1e-12 * expected + tiniest) {
        faults.push(format!("objective {:e}, expected {expected:e}", found.objective));
    }
    if found.passes > 401 {
        faults.push(format!("{} passes, limit 401", found.passes));
    }
    faults
}

fn bits(found: &Aggregate) -> Vec<u64> {
    let numbers = found.point.iter().copied().chain([found.objective, found.certified_gap]);
    numbers.map(f64::to_bits).chain([u64::from(found.passes)]).collect()
}

/// Statistics over many solves.
#[derive(Default)]
struct Tally {
    solves: usize,
    faults: Vec<String>,
    passes: Vec<f64>,
    /// Certified gap over true gap, where the reference is accurate enough to tell.
    ratios: Vec<f64>,
    /// Per tolerance: solutions not certified to it.
    uncertified: [usize; TOLERANCES.len()],
    /// Per tolerance: uncertified solutions that are indeed beyond it.
    missed: [usize; TOLERANCES.len()],
}

impl Tally {
    fn add(&mut self, points: &Points<'_>, label: &str) {
        let reference = Reference::new(points.values(), points.dimension());
        for (i, tolerance) in TOLERANCES.into_iter().enumerate() {
            let found = solve(points, tolerance);
            let plain = GeometricMedian::plain(tolerance).aggregate(points).unwrap();
            self.solves += 1;
            let faults = faults(points, &reference, &found);
            self.faults.extend(faults.into_iter().map(|fault| format!("{label}, {tolerance:?}: {fault}")));
            if bits(&plain) != bits(&found) {
                self.faults.push(format!("{label}, {tolerance:?}: result differs without AVX2"));
            }
            self.passes.push(found.passes.into());
            let Gap { most, slack } = reference.gap(&found.point);
            if most > 100.0 * slack {
                self.ratios.push(reference.units(found.certified_gap) / most);
            }
            if !met(points, &found, tolerance) {
                self.uncertified[i] += 1;
                self.missed[i] += usize::from(most > reference.units(allowed(points, &found, tolerance)) + slack);
            }
        }
    }

    fn merge(&mut self, other: Self) {
        self.solves += other.solves;
        self.faults.extend(other.faults);
        self.passes.extend(other.passes);
        self.ratios.extend(other.ratios);
        for i in 0..TOLERANCES.len() {
            self.uncertified[i] += other.uncertified[i];
            self.missed[i] += other.missed[i];
        }
    }

    fn print(&mut self, name: &str) {
        let [p50, p99, most] = quantiles(&mut self.passes);
        let [r50, r99, worst] = quantiles(&mut self.ratios);
        let least = self.ratios.first().copied().unwrap_or(f64::NAN);
        println!(
            "{name:27} {:6} solves, {:3} faults, passes {p50:2} {p99:3} {most:3}, certificate/gap {least:7.1e} {r50:7.1e} \
             {r99:7.1e} {worst:7.1e}, uncertified {:?}, missed {:?}",
            self.solves,
            self.faults.len(),
            &self.uncertified[..4],
            &self.missed[..4]
        );
        self.faults.iter().take(3).for_each(|fault| println!("    {fault}"));
    }

    /// Share of the solves to tolerance `i` that were certified to it.
    fn certified_share(&self, i: usize) -> f64 {
        1.0 - self.uncertified[i] as f64 * TOLERANCES.len() as f64 / self.solves as f64
    }
}

/// Sorts the values and returns the median, the 99th percentile and the maximum.
fn quantiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [0.5, 0.99, 1.0].map(|q| values.get(((values.len().max(1) - 1) as f64 * q) as usize).copied().unwrap_or(f64::NAN))
}

/// Draws n and p: mostly small, and of all remainders modulo the solver's blocks and lanes.
fn shape(rng: &mut Pcg64, round: usize) -> (usize, usize) {
    match round % 16 {
        0 => (1 + below(rng, 4), 1 + below(rng, 8)),
        1 => (1 + below(rng, 40), 1),
        2 => (66 + below(rng, 36), 2 + below(rng, 4)),
        3 if round % 32 == 3 => (50 + below(rng, 20), 36),
        _ => (1 + below(rng, 80), 2 + below(rng, 8)),
    }
}

fn tally(families: &[(&'static str, Make)], rounds: usize) -> Tally {
    let mut all = Tally::default();
    for (family, (name, make)) in families.iter().enumerate() {
        let mut tally = Tally::default();
        for round in 0..rounds {
            let mut rng = Pcg64::seed_from_u64((family * 10_000 + round) as u64);
            let (n, p) = shape(&mut rng, round);
            let points = Points::new(make(&mut rng, n, p), p).unwrap();
            assert_eq!(points.len(), n);
            tally.add(&points, &format!("{name}, round {round}, {n} rows of {p}"));
        }
        tally.print(name);
        all.merge(tally);
    }
    all.print("all");
    all
}

/// Asserts that no certificate is violated and that certificates are tight.
fn assert_certificates_hold(families: &[(&'static str, Make)], rounds: usize, least_share: f64) {
    let mut all = tally(families, rounds);
    assert!(
        all.faults.is_empty(),
        "{} faults, the first of which are {:#?}",
        all.faults.len(),
        &all.faults[..all.faults.len().min(9)]
    );
    let [typical, ..] = quantiles(&mut all.ratios);
    assert!((1.0..10.0).contains(&typical), "median of certificate/gap is {typical}");
    for (i, tolerance) in TOLERANCES.into_iter().enumerate().take(2) {
        let share = all.certified_share(i);
        assert!(share > least_share, "share {share} of the solves to {tolerance:?} is certified");
    }
}

#[test]
fn certificates_hold_on_usual_rows() {
    assert_certificates_hold(&families::usual(), 160, 0.96);
}

#[test]
fn certificates_hold_on_wide_rows() {
    assert_certificates_hold(&families::wide(), 128, 0.97);
}

#[test]
fn certificates_hold_on_extreme_rows() {
    assert_certificates_hold(&families::extreme(), 48, 0.88);
}

/// Rows in the solver's initial sample, which it draws from more than 65 rows independently of their values.
fn first_looked_at(n: usize) -> impl Iterator<Item = usize> {
    (0..33).map(move |i: u64| ((u128::from(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)) * n as u128) >> 64) as usize)
}

/// 1000 rows around 5, except for the 33 rows of the initial sample.
fn with_first_rows(value: impl Fn(&mut Pcg64) -> f64) -> Points<'static> {
    let (n, p) = (1000, 4);
    let mut rng = Pcg64::seed_from_u64(33);
    let mut values: Vec<f64> = (0..n * p).map(|_| 5.0 + normal(&mut rng)).collect();
    for i in first_looked_at(n) {
        values[i * p..(i + 1) * p].iter_mut().for_each(|x| *x = value(&mut rng));
    }
    Points::new(values, p).unwrap()
}

fn assert_sound(points: &Points<'_>, found: &Aggregate, label: &str) {
    let reference = Reference::new(points.values(), points.dimension());
    let faults = faults(points, &reference, found);
    assert!(faults.is_empty(), "{label}: {faults:?}, found {found:?}");
}

#[test]
fn certificate_holds_with_far_sample() {
    for far in [1e6, 1e30, 1e99, 1e102, 1e200, 1e300] {
        let points = with_first_rows(|_| far);
        assert_sound(&points, &solve(&points, Tolerance::Relative(1e-9)), &format!("33 of 1000 rows at {far:e}"));
    }
}

#[test]
fn descent_continues_with_tight_sample() {
    for spread in [0.0, 1e-12, 1e-30, 1e-60, 1e-90, 1e-200] {
        let points = with_first_rows(|rng| spread * normal(rng));
        let found = solve(&points, Tolerance::Relative(1e-9));
        assert_sound(&points, &found, &format!("33 of 1000 rows within {spread:e}"));
        let certified = found.certified_gap;
        assert!(met(&points, &found, Tolerance::Relative(1e-9)), "33 of 1000 rows within {spread:e}: {certified:e}");
    }
}

#[test]
fn certificate_holds_after_far_warm_start() {
    let mut rng = Pcg64::seed_from_u64(5);
    let mut oracle = GeometricMedian::new(Tolerance::Relative(1e-9));
    let far: Vec<f64> = (0..200).map(|_| 1e110 * (1.0 + 1e-12 * normal(&mut rng))).collect();
    oracle.aggregate(&Points::new(far, 4).unwrap()).unwrap();
    let points = Points::new((0..200).map(|_| 5.0 + normal(&mut rng)).collect::<Vec<_>>(), 4).unwrap();
    assert_sound(&points, &oracle.aggregate(&points).unwrap(), "after rows at 1e110");
}

/// The last row is inside the triangle of the others and therefore the median. Its coordinate 1e-17 is below rounding
/// relative to the coordinate-wise median (1, 0).
#[test]
fn scaled_rows_keep_their_small_coordinates() {
    let unit = [[-1.0, 0.0], [1.0, -1.0], [1.0, 1.0], [1e-17, 0.0]];
    for factor in [1.0, 1e-150, 1e150] {
        let values: Vec<f64> = unit.as_flattened().iter().map(|x| x * factor).collect();
        let points = Points::new(values, 2).unwrap();
        assert_sound(&points, &solve(&points, Tolerance::Relative(1e-9)), &format!("scale {factor:e}"));
    }
}

/// The scale that suits the second coordinate would overflow the first.
#[test]
fn tiny_rows_with_common_huge_coordinate_are_solved() {
    let mut rng = Pcg64::seed_from_u64(12);
    for common in [0.0, 1e-130, 1.0, 1e200] {
        let values: Vec<f64> =
            (0..30).flat_map(|_| [common, 1e-150 * normal(&mut rng), 1e-150 * normal(&mut rng)]).collect();
        let points = Points::new(values, 3).unwrap();
        let found = solve(&points, Tolerance::Relative(1e-9));
        assert_sound(&points, &found, &format!("common coordinate {common:e}"));
        assert!(met(&points, &found, Tolerance::Relative(1e-9)), "common coordinate {common:e}: {found:?}");
    }
}

#[test]
fn objective_includes_rows_beyond_scaled_range() {
    let unit = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]].map(|row| row.map(|x| x * 1e-200));
    let points = Points::new([unit.as_flattened(), &[1e200, 0.0]].concat(), 2).unwrap();
    assert_sound(&points, &solve(&points, Tolerance::Relative(1e-9)), "one row 1e400 radii away");
}

#[test]
fn reference_matches_closed_form_medians() {
    let square = [1.0, 1.0, 1.0, -1.0, -1.0, 1.0, -1.0, -1.0];
    let reference = Reference::new(&square, 2);
    let Gap { most, slack } = reference.gap(&[0.0, 0.0]);
    assert!(most <= slack + 1e-28 && slack < 1e-28, "most {most}, slack {slack}");
    // From the centre to a corner, g rises from √2 to (2 + 2 + √8)/4.
    let rise = reference.units(1.0 + 0.5_f64.sqrt() - 2.0_f64.sqrt());
    assert!((reference.gap(&[1.0, 1.0]).most - rise).abs() < 1e-15);
    assert_eq!(mean_distance(&square, &[0.0, 0.0]), 2.0_f64.sqrt());
    // 120° at the first row, the smallest angle at which it is the median.
    let reference = Reference::new(&[0.0, 0.0, 1.0, 0.0, -0.5, 0.75_f64.sqrt()], 2);
    assert!(reference.gap(&[0.0, 0.0]).most < 1e-16);
    assert!(reference.gap(&[1e-3, 1e-3]).most > 1e-8);
}

#[test]
fn non_finite_rows_count_as_zero() {
    let mut rng = Pcg64::seed_from_u64(2);
    for round in 0..500 {
        let (n, p) = shape(&mut rng, round);
        let mut zeroed: Vec<f64> = (0..n * p).map(|_| 1.0 + normal(&mut rng)).collect();
        let mut broken = zeroed.clone();
        for i in 0..n {
            if uniform(&mut rng) < 0.3 {
                broken[i * p + below(&mut rng, p)] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][below(&mut rng, 3)];
                zeroed[i * p..(i + 1) * p].fill(0.0);
            }
        }
        let [broken, zeroed] = [broken, zeroed].map(|values| Points::new(values, p).unwrap());
        let found = solve(&broken, Tolerance::Relative(1e-9));
        assert_eq!(bits(&found), bits(&solve(&zeroed, Tolerance::Relative(1e-9))));
        assert_sound(&zeroed, &found, "with zeros");
    }
}

#[test]
fn warm_starts_are_sound_and_certified() {
    let (mut solves, mut certified) = (0, 0);
    for seed in 0..40 {
        let mut rng = Pcg64::seed_from_u64(seed);
        let (n, p) = (5 + below(&mut rng, 90), 2 + below(&mut rng, 7));
        let mut oracle = GeometricMedian::new(Tolerance::Relative(1e-9));
        let mut values = normals(&mut rng, n * p);
        for round in 0..20 {
            // Every seventh round, all rows move far away and change scale.
            let [shift, factor] = if round % 7 == 6 { [1e3, 1e3] } else { [0.01, 1.0] };
            let drift: Vec<f64> = (0..p).map(|_| shift * normal(&mut rng)).collect();
            for row in values.chunks_exact_mut(p) {
                row.iter_mut().zip(&drift).for_each(|(x, d)| *x = factor * (*x + d + 0.01 * normal(&mut rng)));
            }
            let points = Points::new(values.clone(), p).unwrap();
            let found = oracle.aggregate(&points).unwrap();
            assert_sound(&points, &found, &format!("seed {seed}, round {round}"));
            solves += 1;
            certified += u32::from(met(&points, &found, Tolerance::Relative(1e-9)));
        }
    }
    println!("{certified} of {solves} certified");
    assert!(f64::from(certified) > 0.995 * f64::from(solves), "only {certified} of {solves} certified");
}

#[test]
fn warm_start_at_colluding_rows_is_left() {
    let tolerance = Tolerance::Relative(1e-9);
    for (seed, away) in [0.5, 3.0, 18.0, 1e3, 1e9, 1e30].into_iter().enumerate() {
        for n in [20, 60, 100, 500] {
            let mut rng = Pcg64::seed_from_u64(seed as u64);
            let mut oracle = GeometricMedian::new(tolerance);
            oracle.aggregate(&Points::new(vec![away; n * 5], 5).unwrap()).unwrap();
            let mut values = normals(&mut rng, n * 5);
            values[..n * 9 / 20 * 5].fill(away);
            let points = Points::new(shuffle(&mut rng, values, 5), 5).unwrap();
            let found = oracle.aggregate(&points).unwrap();
            assert_sound(&points, &found, &format!("{n} rows, colluders at {away:e}"));
            assert!(met(&points, &found, tolerance), "{n} rows, colluders at {away:e}: {found:?}");
        }
    }
}

#[test]
fn result_is_identical_across_threads_and_instruction_sets() {
    // Large enough for several threads; row lengths with and without a partial vector.
    for (n, p) in [(20_000, 36), (5_000, 137)] {
        let mut rng = Pcg64::seed_from_u64(7);
        let mut values = normals(&mut rng, n * p);
        values[..n / 3 * p].iter_mut().for_each(|x| *x = 3.0 + *x * 1e-2);
        let points = Points::new(shuffle(&mut rng, values, p), p).unwrap();
        let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for tolerance in TOLERANCES {
            let expected = bits(&solve(&points, tolerance));
            for threads in [1, 2, 3] {
                let plain = || GeometricMedian::plain(tolerance).aggregate(&points).unwrap();
                let (found, plain) = pool(threads).install(|| (solve(&points, tolerance), plain()));
                assert_eq!(bits(&found), expected, "{n} × {p}, {threads} threads, {tolerance:?}");
                assert_eq!(bits(&plain), expected, "{n} × {p}, {threads} threads, {tolerance:?}, plain");
            }
        }
    }
}

/// Returns corrupted rows, chosen with knowledge of the honest ones.
fn attack(kind: usize, honest: &[f64], p: usize, count: usize, rng: &mut Pcg64) -> Vec<f64> {
    let n = (honest.len() / p) as f64;
    let mean = mean(honest, p);
    let deviation =
        |c: usize| (honest.iter().skip(c).step_by(p).map(|x| (x - mean[c]).powi(2)).sum::<f64>() / n).sqrt();
    let side = normals(rng, p);
    let point: Vec<f64> = (0..p)
        .map(|c| match kind {
            0 => mean[c] + 1e6,
            1 => mean[c] + 0.5 * side[c],
            2 => mean[c] + 20.0 * side[c],
            3 => -mean[c],
            4 => mean[c] + 1.5 * deviation(c),
            5 => -0.1 * mean[c],
            6 => honest[c],
            7 => mean[c] + 1e3 * normal(rng),
            8 => mean[c] - 4.0 * deviation(c) * side[c].signum(),
            9 => mean[c] + if c == 0 { 1e4 } else { 0.0 },
            10 => 1e30 * side[c],
            11 => 1e99 * side[c],
            12 => mean[c] + 1e-3 * side[c],
            ATTACKS => 1e200 * side[c].signum(),
            22 => 1e300 * side[c],
            // The worst distance is unknown, so several are tried.
            _ => mean[c] + 10.0_f64.powi(kind as i32 - 16) * deviation(c),
        })
        .collect();
    let spread = [0.0, 0.0, 1.0, 0.1][kind % 4];
    let mut rows = Vec::new();
    for i in 0..count {
        match kind {
            7 => rows.extend(point.iter().map(|x| x + 1e3 * normal(rng))),
            // Along the coordinate axes in turn.
            9 => rows.extend((0..p).map(|c| mean[c] + if c == i % p { 1e4 } else { 0.0 })),
            _ => rows.extend(point.iter().map(|x| x + spread * normal(rng))),
        }
    }
    rows
}

/// Number of attacks whose squares are in range; two more are out of range.
const ATTACKS: usize = 21;

fn mean(values: &[f64], p: usize) -> Vec<f64> {
    let n = (values.len() / p) as f64;
    (0..p).map(|c| values.iter().skip(c).step_by(p).map(|x| x / n).sum()).collect()
}

/// Ratio of ‖ẑ − z0‖ to the lemma's bound C_α(mean distance of the honest rows to z0 + gap).
fn share_of_bound(found: &[f64], z0: &[f64], honest: &[f64], alpha: f64, gap: f64) -> f64 {
    let p = z0.len();
    let honest: f64 = honest.chunks_exact(p).map(|row| distance(row, z0)).sum::<f64>() / (honest.len() / p) as f64;
    distance(found, z0) / ((2.0 - 2.0 * alpha) / (1.0 - 2.0 * alpha) * (honest + gap))
}

/// Statistics of the displacement under attack.
#[derive(Debug, Default)]
struct Breakdown {
    checks: usize,
    solves: usize,
    certified: usize,
    broken: Vec<String>,
    /// Largest displacement of a certified solution from the honest mean, as a share of the lemma's bound.
    largest: f64,
    /// Number of cases where the mean of all rows exceeds the bound.
    mean_broken: usize,
}

impl Breakdown {
    fn attack(&mut self, kind: usize, n: usize, p: usize, corrupted: usize, rng: &mut Pcg64) {
        let alpha = corrupted as f64 / n as f64;
        let away = if kind < ATTACKS { 10.0 } else { 1e3 };
        let honest: Vec<f64> = (0..(n - corrupted) * p).map(|_| away + normal(rng)).collect();
        let bad = attack(kind, &honest, p, corrupted, rng);
        let values = shuffle(rng, [honest.as_slice(), &bad].concat(), p);
        let average = mean(&values, p);
        let points = Points::new(values, p).unwrap();
        let found = solve(&points, Tolerance::Relative(1e-9));
        let gap = found.certified_gap;
        let centre = mean(&honest, p);
        let aside: Vec<f64> = centre.iter().map(|x| x + normal(rng)).collect();
        for z0 in [&centre, &aside, &honest[..p], &vec![0.0; p], &bad[..p.min(bad.len())]] {
            if z0.is_empty() {
                continue;
            }
            self.checks += 1;
            let share = share_of_bound(&found.point, z0, &honest, alpha, gap);
            if !(share <= 1.0 + 1e-9) {
                self.broken.push(format!("{share} of the bound: {corrupted} of {n} rows by attack {kind}"));
            }
        }
        self.solves += 1;
        if met(&points, &found, Tolerance::Relative(1e-9)) {
            self.certified += 1;
            self.largest = self.largest.max(share_of_bound(&found.point, &centre, &honest, alpha, 0.0));
        }
        self.mean_broken += usize::from(share_of_bound(&average, &centre, &honest, alpha, 0.0) > 1.0);
    }

    fn of(kinds: impl Iterator<Item = usize> + Clone) -> Self {
        let mut all = Self::default();
        for (n, p) in [(21, 3), (100, 5), (101, 10)] {
            for corrupted in [0, 1, n / 10, n / 4, n / 3, 2 * n / 5, (n - 1) / 2 - 1, (n - 1) / 2] {
                for (seed, kind) in (0..3).flat_map(|_| kinds.clone()).enumerate() {
                    all.attack(kind, n, p, corrupted, &mut Pcg64::seed_from_u64((n * 1000 + seed) as u64));
                }
            }
        }
        println!("{all:?}");
        all
    }
}

#[test]
fn displacement_by_corrupted_rows_is_within_lemma_bound() {
    let all = Breakdown::of(0..ATTACKS);
    assert!(all.broken.is_empty(), "{:?}", all.broken);
    assert!(all.largest > 0.15, "attacks reach only {} of the bound", all.largest);
    assert!(all.mean_broken > 100, "mean exceeds the bound in only {} cases", all.mean_broken);
}

#[test]
fn displacement_by_extreme_rows_is_within_lemma_bound() {
    let all = Breakdown::of([ATTACKS, ATTACKS + 1].into_iter());
    assert!(all.broken.is_empty(), "{:?}", all.broken);
}

fn replace(n: usize, p: usize, share: f64, row: impl Fn(&mut Pcg64, usize) -> f64) -> Vec<f64> {
    let mut rng = Pcg64::seed_from_u64(4);
    let mut values = normals(&mut rng, n * p);
    let count = (share * n as f64) as usize;
    (0..count * p).for_each(|i| values[i] = row(&mut rng, i % p));
    shuffle(&mut rng, values, p)
}

/// Pairs of rows symmetric around 0, and one row at distance `off` from it.
fn pairs(n: usize, p: usize, off: f64) -> Vec<f64> {
    let mut values = normals(&mut Pcg64::seed_from_u64(6), n / 2 * p);
    values.extend(values.clone().iter().map(|x| -x));
    values.extend((0..p).map(|c| if c == 0 { off } else { 0.0 }));
    values
}

fn line(n: usize, p: usize) -> Vec<f64> {
    let mut rng = Pcg64::seed_from_u64(8);
    (0..n).map(|_| (2000.0 * uniform(&mut rng)).floor()).flat_map(|t| (1..=p).map(move |c| t * c as f64)).collect()
}

/// Name, rows, row length, and allowed number of passes.
type Case = (&'static str, Vec<f64>, usize, u32);

fn hard_cases() -> Vec<Case> {
    let (n, p) = (1000, 36);
    vec![
        ("majority identical 60%", replace(n, p, 0.6, |_, c| c as f64 / 9.0), p, 2),
        ("majority identical 50.1%", replace(n, p, 0.501, |_, c| c as f64 / 9.0), p, 2),
        ("copies 5%", replace(n, p, 0.05, |_, _| 0.0), p, 5),
        ("one row near the median", pairs(n, p, 1e-3), p, 6),
        ("median at a row", pairs(n, p, 0.0), p, 6),
        ("line, odd", line(1001, p), p, 14),
        ("line, even", line(n, p), p, 14),
        ("two points", (0..n * p).map(|i| (i / p % 2) as f64).collect(), p, 2),
        ("49% colluding", replace(n, p, 0.49, |_, _| 3.0), p, 3),
        ("49% colluding at 1e6", replace(n, p, 0.49, |_, _| 1e6), p, 24),
        ("30% at 1e30", replace(n, p, 0.3, |_, _| 1e30), p, 8),
        ("30% at 1e30, random", replace(n, p, 0.3, |rng, _| 1e30 * normal(rng)), p, 6),
        ("30% at 1e200", replace(n, p, 0.3, |_, _| 1e200), p, 8),
        ("30% NaN", replace(n, p, 0.3, |_, _| f64::NAN), p, 4),
        ("30% infinite", replace(n, p, 0.3, |_, _| f64::INFINITY), p, 4),
        ("one NaN", replace(n, p, 0.001, |_, c| if c == 3 { f64::NAN } else { 0.0 }), p, 6),
        ("near ties", replace(n, p, 0.8, |rng, _| 1e-9 * normal(rng)), p, 6),
        ("all identical", vec![0.1; n * p], p, 1),
        ("offset 1e12", normals(&mut Pcg64::seed_from_u64(3), n * p).iter().map(|x| x + 1e12).collect(), p, 20),
        ("tight cluster 40%", replace(n, p, 0.4, |rng, _| 1e-7 * normal(rng)), p, 6),
        ("p = 2", replace(n, 2, 0.3, |_, _| 5.0), 2, 10),
        ("p = 3", replace(10_001, 3, 0.3, |_, _| 5.0), 3, 9),
        ("p = 1", replace(1001, 1, 0.3, |_, _| 5.0), 1, 2),
    ]
}

#[test]
fn hard_cases_converge_quickly_and_certified() {
    let mut failed = Vec::new();
    for (name, values, p, allowed_passes) in hard_cases() {
        let points = Points::new(values, p).unwrap();
        let found = solve(&points, Tolerance::Relative(1e-9));
        assert_sound(&points, &found, name);
        let met = met(&points, &found, Tolerance::Relative(1e-9));
        println!("{name:26} {:3} passes, certified gap {:.1e}, {met}", found.passes, found.certified_gap);
        if found.passes > allowed_passes || !(met || name == "offset 1e12") {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "too many passes or not certified: {failed:?}");
}
