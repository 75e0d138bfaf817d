//! Aggregation rules against literal implementations of their definitions.

use fedbandit::aggregate::{
    Aggregate, AggregateError, Aggregator, CoordinateMedian, GeometricMedian, Groups, GroupsError, Krum, MAGNITUDE,
    Mean, MedianOfMeans, MultiKrum, Points, Tolerance, TrimmedMean, objective,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(5), failure_persistence: None, ..ProptestConfig::default() }
}

type Rows<T> = Vec<Vec<T>>;

/// Generates n rows of up to 19 numbers, more than the columns transposed at a time.
fn rows<T: std::fmt::Debug>(
    n: std::ops::Range<usize>,
    value: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = Rows<T>> {
    use proptest::collection::vec;
    (n, 1_usize..20).prop_flat_map(move |(n, p)| vec(vec(value.clone(), p), n))
}

/// Generates rows of small integers, for which sums and squares are exact and ties are frequent.
fn integers(n: std::ops::Range<usize>) -> impl Strategy<Value = Rows<i64>> {
    rows(n, -3_i64..=3)
}

fn scaled(rows: &Rows<i64>, scale: f64) -> Rows<f64> {
    rows.iter().map(|row| row.iter().map(|&x| x as f64 * scale).collect()).collect()
}

fn points(rows: &Rows<f64>) -> Points<'static> {
    Points::new(rows.concat(), rows[0].len()).unwrap()
}

fn aggregate(mut rule: impl Aggregator, rows: &Rows<f64>) -> Result<Aggregate, AggregateError> {
    rule.aggregate(&points(rows))
}

fn point(rule: impl Aggregator, rows: &Rows<f64>) -> Vec<f64> {
    aggregate(rule, rows).unwrap().point
}

fn column(rows: &Rows<i64>, j: usize) -> Vec<i64> {
    rows.iter().map(|row| row[j]).collect()
}

fn mean(values: &[i64]) -> f64 {
    values.iter().sum::<i64>() as f64 / values.len() as f64
}

fn mean_row<'a>(rows: impl Iterator<Item = &'a Vec<i64>>) -> Vec<f64> {
    let rows: Rows<i64> = rows.cloned().collect();
    (0..rows[0].len()).map(|j| mean(&column(&rows, j))).collect()
}

fn close(a: &[f64], b: &[f64], slack: f64) -> bool {
    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= slack * (1.0 + b.abs()))
}

/// Krum's score: the minimum over all sets of n − f − 2 other rows of the sum of squared distances.
fn score(rows: &Rows<i64>, f: usize, i: usize) -> i64 {
    let n = rows.len();
    let square = |j: usize| rows[i].iter().zip(&rows[j]).map(|(x, y)| (x - y) * (x - y)).sum::<i64>();
    let sets = (0_u32..1 << n).filter(|set| set.count_ones() as usize == n - f - 2 && set >> i & 1 == 0);
    sets.map(|set| (0..n).filter(|j| set >> j & 1 == 1).map(square).sum()).min().unwrap()
}

/// Returns the rows' indices by score, then by index.
fn by_score(rows: &Rows<i64>, f: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&i| (score(rows, f, i), i));
    order
}

#[test]
fn mean_equals_sum_over_n() {
    proptest!(cases(300), |(rows in integers(1..10))| {
        prop_assert_eq!(point(Mean, &scaled(&rows, 1.0)), mean_row(rows.iter()));
    });
}

#[test]
fn coordinate_median_has_equal_counts_below_and_above() {
    proptest!(cases(500), |(rows in integers(1..10))| {
        for (j, m) in point(CoordinateMedian, &scaled(&rows, 2.0)).into_iter().enumerate() {
            // Values were doubled to make midpoints integers.
            let column: Vec<i64> = column(&rows, j).into_iter().map(|x| 2 * x).collect();
            let (n, m) = (column.len(), m as i64);
            let (below, above) = (column.iter().filter(|x| **x < m).count(), column.iter().filter(|x| **x > m).count());
            if column.contains(&m) {
                prop_assert!(2 * below < n && 2 * above < n);
            } else {
                prop_assert!(2 * below == n && 2 * above == n);
                let (low, high) = (column.iter().filter(|x| **x < m).max(), column.iter().filter(|x| **x > m).min());
                prop_assert_eq!(low.unwrap() + high.unwrap(), 2 * m);
            }
        }
    });
}

#[test]
fn trimmed_mean_excludes_f_values_at_each_end() {
    proptest!(cases(500), |(rows in integers(1..10), f in 0_usize..6)| {
        let (n, p) = (rows.len(), rows[0].len());
        let answer = aggregate(TrimmedMean { f }, &scaled(&rows, 1.0));
        if 2 * f >= n {
            let error = AggregateError::TooCorrupted { rule: "trimmed-mean", n, f, needs: "it requires n > 2f" };
            prop_assert_eq!(answer, Err(error));
            return Ok(());
        }
        let sorted = (0..p).map(|j| { let mut values = column(&rows, j); values.sort(); values });
        let expected: Vec<f64> = sorted.map(|values| mean(&values[f..n - f])).collect();
        prop_assert_eq!(answer.unwrap().point, expected);
    });
}

#[test]
fn krum_selects_lowest_score_then_lowest_index() {
    proptest!(cases(300), |(rows in integers(3..9), f in 0_usize..3)| {
        prop_assume!(rows.len() > 2 * f + 2);
        let order = by_score(&rows, f);
        prop_assert_eq!(point(Krum { f }, &scaled(&rows, 1.0)), scaled(&rows, 1.0)[order[0]].clone());
        for m in [None, Some(1), Some(2)] {
            let best = &order[..m.unwrap_or(rows.len() - f)];
            prop_assert_eq!(
                point(MultiKrum { f, m }, &scaled(&rows, 1.0)),
                mean_row(best.iter().map(|&i| &rows[i]))
            );
        }
    });
}

#[test]
fn krum_selects_lowest_score_when_squares_are_out_of_range() {
    proptest!(cases(200), |(rows in integers(3..8), f in 0_usize..3, exponent in prop_oneof![Just(980), Just(-980)])| {
        prop_assume!(rows.len() > 2 * f + 2);
        let scale = 2_f64.powi(exponent);
        let answer: Vec<i64> = point(Krum { f }, &scaled(&rows, scale)).iter().map(|x| (x / scale) as i64).collect();
        let index = rows.iter().position(|row| *row == answer).unwrap();
        prop_assert_eq!(score(&rows, f, index), score(&rows, f, by_score(&rows, f)[0]));
    });
}

#[test]
fn krum_order_is_unchanged_by_far_points() {
    proptest!(cases(200), |(rows in integers(6..7))| {
        let mut with_far = scaled(&rows, 1.0);
        with_far.extend([MAGNITUDE, -MAGNITUDE].map(|x| vec![x; rows[0].len()]));
        // 8 points with f = 2 and 6 points with f = 0 both count 4 neighbours.
        prop_assert_eq!(point(Krum { f: 2 }, &with_far), point(Krum { f: 0 }, &scaled(&rows, 1.0)));
    });
}

#[test]
fn krum_rejects_too_many_corrupted_points() {
    let rows = |n| vec![vec![1.0]; n];
    for (n, f, accepted) in
        [(1, 0, false), (2, 0, false), (3, 0, true), (4, 1, false), (5, 1, true), (5, usize::MAX, false)]
    {
        assert_eq!(aggregate(Krum { f }, &rows(n)).is_ok(), accepted, "n = {n}, f = {f}");
        assert_eq!(aggregate(MultiKrum { f, m: None }, &rows(n)).is_ok(), accepted, "n = {n}, f = {f}");
    }
    assert!(aggregate(MultiKrum { f: 1, m: Some(0) }, &rows(5)).is_err());
    assert!(aggregate(MultiKrum { f: 1, m: Some(5) }, &rows(5)).is_err());
    assert!(aggregate(TrimmedMean { f: usize::MAX }, &rows(5)).is_err());
    let error = aggregate(Krum { f: 1 }, &rows(4)).unwrap_err();
    assert_eq!(error.to_string(), "krum is undefined for 4 points, 1 of them corrupted: it requires n > 2f + 2");
}

/// Returns every rule that is defined for n points, except the geometric medians.
fn all_rules(n: usize) -> Vec<(&'static str, Box<dyn Aggregator>)> {
    let f = n.saturating_sub(3) / 2;
    let mut rules: Vec<(_, Box<dyn Aggregator>)> = vec![
        ("mean", Box::new(Mean)),
        ("coordinate-median", Box::new(CoordinateMedian)),
        ("trimmed-mean", Box::new(TrimmedMean { f })),
    ];
    if n >= 3 {
        rules.push(("krum", Box::new(Krum { f })));
        rules.push(("multi-krum", Box::new(MultiKrum { f, m: None })));
    }
    rules
}

#[test]
fn aggregate_of_hostile_points_stays_within_their_range() {
    let hostile = [f64::NAN, f64::INFINITY, f64::MIN, f64::MAX, 1e300, -1e300, 1e150, 5e-324, -0.0, 0.0, 1.0, -1.0];
    proptest!(cases(500), |(rows in rows(1..8, prop::sample::select(hostile.to_vec())))| {
        let points = points(&rows);
        let tolerance = Tolerance::Relative(1e-9);
        let groups = Groups::new(rows.len(), rows.len().div_ceil(2), 0).unwrap();
        let medians: [(_, Box<dyn Aggregator>); 2] = [
            ("geometric-median", Box::new(GeometricMedian::new(tolerance))),
            ("median-of-means", Box::new(MedianOfMeans::new(groups, tolerance))),
        ];
        for (name, mut rule) in all_rules(rows.len()).into_iter().chain(medians) {
            let answer = rule.aggregate(&points).unwrap();
            prop_assert!(answer.objective.is_finite() && answer.certified_gap.is_finite(), "{}", name);
            for (j, x) in answer.point.iter().enumerate() {
                let column = || points.rows().map(|row| row[j]);
                let (least, most) = (column().fold(f64::MAX, f64::min), column().fold(f64::MIN, f64::max));
                // Geometric medians are solved in all coordinates jointly; the error is of the order of √tolerance.
                let largest = points.values().iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
                let slack = if name.contains("median-") || name == "geometric-median" { 1e-4 * largest } else { 1e-9 * (most - least) };
                let slack = slack + f64::MIN_POSITIVE;
                prop_assert!((least - slack..=most + slack).contains(x), "{}: {} outside [{}, {}]", name, x, least, most);
            }
        }
    });
}

#[test]
fn aggregate_is_independent_of_point_order() {
    // At least four points: of three, two are mutually nearest and tie for Krum.
    proptest!(cases(200), |(rows in rows(4..9, -1.0..1.0_f64), by in 0_usize..8)| {
        let mut other = rows.clone();
        other.rotate_left(by % rows.len());
        other.reverse();
        for ((name, mut rule), (_, mut again)) in all_rules(rows.len()).into_iter().zip(all_rules(rows.len())) {
            let (one, two) = (rule.aggregate(&points(&rows)).unwrap(), again.aggregate(&points(&other)).unwrap());
            prop_assert!(close(&one.point, &two.point, 1e-12), "{}", name);
        }
    });
}

#[test]
fn aggregate_reports_its_objective() {
    let rows = vec![vec![0.0, 0.0], vec![3.0, 4.0], vec![6.0, 8.0]];
    for (name, mut rule) in all_rules(3) {
        let answer = rule.aggregate(&points(&rows)).unwrap();
        assert!((answer.objective - objective(&points(&rows), &answer.point)).abs() <= 1e-12, "{name}");
        // The points are collinear. The middle one is the median, at mean distance 10/3.
        assert!(answer.objective - 10.0 / 3.0 <= answer.certified_gap + 1e-12, "{name}");
        assert_eq!(answer.passes, if name.ends_with("krum") { 3 } else { 1 }, "{name}");
    }
}

#[test]
fn empty_input_is_rejected() {
    let none = Points::zeros(0, 2).unwrap();
    let rules: [Box<dyn Aggregator>; 5] = [
        Box::new(Mean),
        Box::new(CoordinateMedian),
        Box::new(TrimmedMean { f: 1 }),
        Box::new(Krum { f: 1 }),
        Box::new(MultiKrum { f: 1, m: None }),
    ];
    for mut rule in rules {
        assert_eq!(rule.aggregate(&none), Err(AggregateError::Empty));
    }
    assert_eq!(Groups::new(0, 1, 0), Err(GroupsError::Count { n: 0, groups: 1 }));
    assert!(Groups::for_corruption(0, 0, 0).is_err());
}

#[test]
fn median_of_means_with_one_group_is_mean_with_n_groups_is_median() {
    let tolerance = Tolerance::Relative(1e-9);
    proptest!(cases(30), |(rows in rows(1..9, -1.0..1.0_f64))| {
        let n = rows.len();
        let of = |groups| aggregate(MedianOfMeans::new(Groups::new(n, groups, 7).unwrap(), tolerance), &rows).unwrap();
        let median = aggregate(GeometricMedian::new(tolerance), &rows).unwrap();
        // In two or more dimensions the median is unique; on a line only its objective is.
        prop_assert!((of(n).objective - median.objective).abs() <= 1e-8);
        prop_assert!(close(&of(1).point, &point(Mean, &rows), 1e-12));
    });
}

#[test]
fn group_means_equal_means_of_members() {
    proptest!(cases(200), |(rows in integers(1..10), groups in 1_usize..10, seed: u64)| {
        prop_assume!(groups <= rows.len());
        let drawn = Groups::new(rows.len(), groups, seed).unwrap();
        let means = drawn.means(&points(&scaled(&rows, 1.0))).unwrap();
        for group in 0..groups {
            let members = (0..rows.len()).filter(|&i| drawn.group_of(i) == group).map(|i| &rows[i]);
            prop_assert_eq!(means.row(group), mean_row(members));
        }
    });
    let wrong = Groups::new(3, 2, 0).unwrap().means(&Points::zeros(4, 1).unwrap()).unwrap_err();
    assert_eq!(wrong, AggregateError::WrongNumber { expected: 3, actual: 4 });
}

#[test]
fn group_means_of_largest_points_are_finite() {
    let rows = vec![vec![MAGNITUDE, -MAGNITUDE]; 7];
    for groups in 1..=7 {
        let means = Groups::new(7, groups, 0).unwrap().means(&points(&rows)).unwrap();
        assert!(means.rows().all(|row| close(row, &rows[0], 1e-15)) && means.rejected().is_empty());
    }
}

#[test]
fn group_sizes_match_the_paper() {
    proptest!(cases(500), |(n in 1_usize..400, share in 0.0..0.25, seed: u64)| {
        let corrupted = (share * n as f64) as usize;
        let groups = Groups::for_corruption(n, corrupted, seed).unwrap();
        prop_assert_eq!(groups.len(), (3 * corrupted).max(1));
        let mut counts = vec![0; groups.len()];
        (0..n).for_each(|i| counts[groups.group_of(i)] += 1);
        prop_assert_eq!(&counts, &groups.sizes().collect::<Vec<_>>());
        if corrupted > 0 {
            // 1/(3α) = n/(3·N₁)
            let (low, high) = (n / (3 * corrupted), n.div_ceil(3 * corrupted));
            prop_assert!(counts.iter().all(|size| (low..=high).contains(size)));
        }
        prop_assert_eq!(&groups, &Groups::for_corruption(n, corrupted, seed).unwrap());
    });
}

#[test]
fn groups_reject_invalid_counts() {
    let message = |result: Result<Groups, GroupsError>| result.unwrap_err().to_string();
    assert_eq!(message(Groups::new(5, 0, 0)), "cannot split 5 points into 0 groups; expected from 1 to 5");
    assert_eq!(message(Groups::new(5, 6, 0)), "cannot split 5 points into 6 groups; expected from 1 to 5");
    let expected = "median of means tolerates at most a quarter of the points corrupted, got 3 of 11";
    assert_eq!(message(Groups::for_corruption(11, 3, 0)), expected);
    assert!(Groups::for_corruption(12, 3, 0).is_ok());
    assert!(Groups::for_corruption(12, usize::MAX, 0).is_err());
}

/// 12,000 draws among 6 equally likely groupings: counts have standard deviation √(12,000·5/36) ≈ 41; five are allowed.
#[test]
fn groupings_are_equally_likely() {
    let mut counts = std::collections::BTreeMap::new();
    for seed in 0..12_000 {
        let groups = Groups::new(4, 2, seed).unwrap();
        *counts.entry([0, 1, 2, 3].map(|i| groups.group_of(i))).or_insert(0_i32) += 1;
    }
    assert_eq!(counts.len(), 6);
    assert!(counts.values().all(|count| (count - 2_000).abs() < 205), "{counts:?}");
}

/// Groups are part of a run: a seed must yield the same ones in every version.
#[test]
fn groups_of_a_seed_are_stable() {
    let groups = Groups::new(10, 3, 1).unwrap();
    let drawn: Vec<usize> = (0..10).map(|i| groups.group_of(i)).collect();
    assert_eq!(drawn, [0, 1, 1, 1, 2, 2, 0, 0, 0, 2]);
}
