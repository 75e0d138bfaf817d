//! Fusion of a run's models with the last model of an earlier run, against its definition.

use fedbandit::aggregate::{AggregateError, Points, certify};
use fedbandit::algorithm::{Continued, Estimate, ModelParameters, PriorError, PriorModel, PriorUse, Rule, Streams};
use nalgebra::{DMatrix, DVector};

use crate::random::Random;

/// {θ: ‖θ − centre‖_shape ≤ 1}
#[derive(Clone)]
struct Ellipsoid {
    centre: DVector<f64>,
    shape: DMatrix<f64>,
}

impl Ellipsoid {
    fn distance_squared(&self, theta: &DVector<f64>) -> f64 {
        let difference = theta - &self.centre;
        difference.dot(&(&self.shape * &difference))
    }

    /// ln of the squared volume, up to a constant.
    fn log_volume(&self) -> f64 {
        -self.shape.determinant().ln()
    }

    fn of(parameters: &ModelParameters) -> Self {
        let dimension = parameters.theta().len();
        let mut packed = parameters.design().iter();
        let mut shape = DMatrix::zeros(dimension, dimension);
        for i in 0..dimension {
            for j in i..dimension {
                let value = f64::from(*packed.next().unwrap()) / f64::from(parameters.beta()).powi(2);
                (shape[(i, j)], shape[(j, i)]) = (value, value);
            }
        }
        Self { centre: DVector::from_iterator(dimension, parameters.theta().iter().copied().map(f64::from)), shape }
    }

    /// Returns a model of this ellipsoid with a width.
    fn model(&self, beta: f64) -> ModelParameters {
        ModelParameters::new(&self.centre, &(&self.shape * beta.powi(2)), beta).unwrap()
    }

    /// Returns a uniform point of its surface, times a factor.
    fn point(&self, random: &mut Random, factor: f64) -> DVector<f64> {
        let mut direction = DVector::from_fn(self.centre.len(), |_, _| random.symmetric());
        direction *= factor / direction.norm();
        let root = self.shape.clone().cholesky().unwrap().unpack();
        &self.centre + root.tr_solve_lower_triangular(&direction).unwrap()
    }
}

/// Rule with a fixed estimate.
#[derive(Clone)]
struct Fixed(Option<ModelParameters>);

impl Rule for Fixed {
    fn estimate(&mut self, streams: &Streams, _: u32) -> Result<Estimate, AggregateError> {
        let centre = |points: &Points<'_>| certify(points, vec![0.0; points.dimension()]);
        let (gram, feature_sum) = (centre(&streams.gram), centre(&streams.feature_sum));
        Ok(Estimate { parameters: self.0.clone(), lambda: 1.0, raised: 0, gram, feature_sum, prior: None })
    }
}

fn prior(model: &ModelParameters, discount: f64) -> Result<PriorModel, PriorError> {
    PriorModel::new(model.theta().to_vec(), model.design().to_vec(), model.beta(), discount)
}

/// Returns the estimate of a rule with a model that continues another model.
fn continued(old: &ModelParameters, discount: f64, own: Option<ModelParameters>) -> Estimate {
    let dimension = old.theta().len();
    let zeros = |width| Points::new(vec![0.0; 3 * width], width).unwrap();
    let streams = Streams { gram: zeros(dimension * (dimension + 1) / 2), feature_sum: zeros(dimension) };
    Continued { rule: Fixed(own), prior: prior(old, discount).unwrap() }.estimate(&streams, 1).unwrap()
}

/// Returns two random ellipsoids around a common point, at random distances from their centres below `reach`, with axes of
/// very different lengths.
fn pair(random: &mut Random, dimension: usize, reach: f64) -> [Ellipsoid; 2] {
    let theta = DVector::from_fn(dimension, |_, _| random.symmetric());
    [(); 2].map(|()| {
        let factor = DMatrix::from_fn(dimension, dimension, |_, _| random.symmetric());
        let axes = DMatrix::from_diagonal(&DVector::from_fn(dimension, |_, _| 10_f64.powf(1.5 * random.symmetric())));
        let shape = &factor * axes * factor.transpose() + DMatrix::identity(dimension, dimension) * 0.05;
        let shape = shape * 10_f64.powf(random.symmetric());
        let at_theta = Ellipsoid { centre: theta.clone(), shape };
        let distance = reach * random.symmetric().abs();
        let centre = at_theta.point(random, distance);
        // Rounded to f32 here, so that rounding cannot lose the common point.
        Ellipsoid::of(&Ellipsoid { centre, ..at_theta }.model(1.0))
    })
}

/// wA_0 + (1 − w)A_1 and its centre, and the least value of wq_0 + (1 − w)q_1, all by their definition.
fn mixture([a, b]: &[Ellipsoid; 2], w: f64) -> (Ellipsoid, f64) {
    let shape = &a.shape * w + &b.shape * (1.0 - w);
    let sum = &a.shape * &a.centre * w + &b.shape * &b.centre * (1.0 - w);
    let centre = shape.clone().lu().solve(&sum).unwrap();
    let least = w * a.distance_squared(&centre) + (1.0 - w) * b.distance_squared(&centre);
    (Ellipsoid { centre, shape }, least)
}

const GRID: usize = 200;

#[test]
fn fused_ellipsoid_contains_the_intersection_and_is_the_smallest_mixture() {
    let mut random = Random::new(1);
    let mut inner = 0;
    for round in 0..300 {
        let pair = pair(&mut random, 1 + round % 8, 1.0);
        let [old, own] = &pair;
        let Estimate { parameters, prior, raised, .. } =
            continued(&old.model(2.0), 1.0, Some(own.model(0.1 + random.symmetric().abs())));
        let (fused, Some(PriorUse::Fused(weight))) = (Ellipsoid::of(&parameters.unwrap()), prior) else {
            panic!("ellipsoids with a common point contradict each other")
        };
        let volume = fused.log_volume();
        for w in (0..=GRID).map(|w| w as f64 / GRID as f64) {
            let (mixture, gap) = mixture(&pair, w);
            assert!(volume <= mixture.log_volume() + 1e-4, "{volume} {w} {weight}");
            assert!(gap <= 1.0, "the common point has {gap} or less");
        }
        assert!(volume <= old.log_volume().min(own.log_volume()) + 1e-4);
        let (expected, _) = mixture(&pair, weight);
        assert!((&expected.centre - &fused.centre).norm() <= 1e-4 * (1.0 + expected.centre.norm()));
        assert!((&expected.shape - &fused.shape).norm() <= 1e-5 * expected.shape.norm());
        for _ in 0..200 {
            let factor = random.symmetric();
            let point = old.point(&mut random, factor);
            if own.distance_squared(&point) <= 1.0 {
                inner += 1;
                assert!(fused.distance_squared(&point) <= 1.0 + 1e-4);
            }
        }
        assert_eq!(raised, 0);
    }
    assert!(inner > 1000, "{inner} points were in both ellipsoids");
}

/// The lemma with the gap: for every w and θ, wq_0 + (1 − w)q_1 = ‖θ − θ(w)‖²_{A(w)} + gap(w), with the gap of docs/theory.md.
#[test]
fn distances_add_up_to_the_mixture_and_the_gap() {
    let mut random = Random::new(2);
    for round in 0..200 {
        let pair = pair(&mut random, 1 + round % 6, 3.0);
        let [a, b] = &pair;
        let w = 0.5 + 0.49 * random.symmetric();
        let (mixture, least) = mixture(&pair, w);
        let delta = &a.centre - &b.centre;
        let inner = mixture.shape.clone().lu().solve(&(&b.shape * &delta)).unwrap();
        let gap = w * (1.0 - w) * (&a.shape * &delta).dot(&inner);
        let theta = a.point(&mut random, 2.0);
        let sum = w * a.distance_squared(&theta) + (1.0 - w) * b.distance_squared(&theta);
        let tolerance = 1e-8 * (1.0 + sum);
        assert!((gap - least).abs() <= tolerance, "{gap} {least}");
        assert!((mixture.distance_squared(&theta) + gap - sum).abs() <= tolerance);
    }
}

/// A contradiction has a proof, a w for which no θ has wq_0 + (1 − w)q_1 ≤ 1; a fusion has a witness in both ellipsoids.
#[test]
fn prior_is_contradicted_if_and_only_if_the_ellipsoids_are_disjoint() {
    let mut random = Random::new(3);
    let mut contradicted = 0;
    for round in 0..400 {
        let pair = pair(&mut random, 1 + round % 6, 1.6);
        let [old, own] = &pair;
        let own_model = own.model(0.5);
        let Estimate { parameters, prior, .. } = continued(&old.model(1.0), 1.0, Some(own_model.clone()));
        // The maximum over w of a concave function, by ternary search.
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..100 {
            let thirds = [low + (high - low) / 3.0, high - (high - low) / 3.0];
            let [left, right] = thirds.map(|w| mixture(&pair, w).1);
            if left < right { low = thirds[0] } else { high = thirds[1] }
        }
        let (best, gap) = mixture(&pair, low);
        if prior == Some(PriorUse::Contradicted) {
            contradicted += 1;
            assert!(gap > 1.0 - 1e-6, "{gap}");
            assert_eq!(parameters, Some(own_model), "the model is the rule's own");
        } else {
            let distances = pair.each_ref().map(|ellipsoid| ellipsoid.distance_squared(&best.centre));
            assert!(distances.iter().all(|distance| *distance <= 1.0 + 1e-6), "{distances:?}");
        }
    }
    assert!((50..350).contains(&contradicted), "{contradicted}");
}

/// {θ: ‖θ − (x, 0)‖ ≤ r} as a model.
fn disc(x: f64, radius: f64) -> ModelParameters {
    let shape = DMatrix::identity(2, 2) / radius.powi(2);
    Ellipsoid { centre: DVector::from_vec(vec![x, 0.0]), shape }.model(1.0)
}

#[test]
fn much_smaller_ellipsoid_is_kept_to_the_bit() {
    let (small, large) = (disc(0.3, 0.125), disc(0.0, 1.0));
    let old_known = continued(&small, 1.0, Some(large.clone()));
    assert_eq!((old_known.parameters.as_ref(), old_known.prior), (Some(&small), Some(PriorUse::Fused(1.0))));
    let own_known = continued(&large, 1.0, Some(small.clone()));
    assert_eq!((own_known.parameters, own_known.prior), (Some(small), Some(PriorUse::Fused(0.0))));
}

#[test]
fn discount_widens_the_prior() {
    let (old, own) = (disc(0.0, 1.0), disc(3.5, 1.0));
    assert_eq!(continued(&old, 1.0, Some(own.clone())).prior, Some(PriorUse::Contradicted));
    // The centres are 3.5 apart: a prior of radius 1/√ρ = 2.51 reaches the own ellipsoid of radius 1, one of 2.49 does not.
    assert_ne!(continued(&old, 2.51_f64.powi(-2), Some(own.clone())).prior, Some(PriorUse::Contradicted));
    assert_eq!(continued(&old, 2.49_f64.powi(-2), Some(own)).prior, Some(PriorUse::Contradicted));
    let wide = continued(&old, 0.25, Some(disc(0.0, 64.0))).parameters.unwrap();
    assert_eq!((wide.design(), wide.beta()), (old.design(), 2.0 * old.beta()));
}

#[test]
fn extreme_models_neither_panic_nor_leave_the_range_of_devices() {
    let widths = [1e-30, 1e-9, 1.0, 1e9, 1e18];
    let scales = [1e-12, 1.0, 1e17];
    let model = |x: f64, scale: f64, beta: f64| {
        let design = DMatrix::from_diagonal(&DVector::from_vec(vec![scale, 1e-5 * scale]));
        ModelParameters::new(&DVector::from_vec(vec![x, -x]), &design, beta).unwrap()
    };
    for (old_width, own_width, old_scale, own_scale) in combinations(&widths, &scales) {
        for x in [0.0, 1e-3, 1e17] {
            let (old, own) = (model(x, old_scale, old_width), model(0.0, own_scale, own_width));
            let fused = continued(&old, 1.0, Some(own)).parameters.unwrap();
            let values =
                fused.theta().iter().chain(fused.design()).chain([fused.beta()].iter()).copied().collect::<Vec<_>>();
            assert!(values.iter().all(|value| value.abs() <= fedbandit_core::VALUE_LIMIT), "{values:?}");
        }
    }
    // A rule that claims certainty, or has no model, is left alone.
    let certain = model(0.0, 1.0, 0.0);
    assert_eq!(continued(&disc(0.0, 1.0), 1.0, Some(certain.clone())).parameters, Some(certain));
    let none = continued(&disc(0.0, 1.0), 1.0, None);
    assert_eq!((none.parameters, none.prior), (None, None));
}

fn combinations(widths: &[f64], scales: &[f64]) -> Vec<(f64, f64, f64, f64)> {
    let pairs = |values: &[f64]| {
        let each = |a: f64| values.iter().map(move |b| (a, *b)).collect::<Vec<_>>();
        values.iter().copied().flat_map(each).collect::<Vec<_>>()
    };
    let scales = pairs(scales);
    pairs(widths).into_iter().flat_map(|(a, b)| scales.iter().map(move |(c, d)| (a, b, *c, *d))).collect()
}

#[test]
fn invalid_prior_models_are_refused() {
    let new = |theta: &[f32], design: &[f32], beta: f32, discount: f64| {
        PriorModel::new(theta.to_vec(), design.to_vec(), beta, discount).unwrap_err()
    };
    let identity = [1.0, 0.0, 1.0];
    assert_eq!(new(&[0.0; 2], &identity[..2], 1.0, 1.0), PriorError::Shape(2, 2));
    assert_eq!(new(&[], &[], 1.0, 1.0), PriorError::Shape(0, 0));
    assert_eq!(new(&[0.0; 2], &identity, 0.0, 1.0), PriorError::Width(0.0));
    assert!(matches!(new(&[0.0; 2], &identity, f32::NAN, 1.0), PriorError::Width(_)));
    for discount in [0.0, -1.0, 1.001, f64::NAN, 1e-300] {
        assert!(matches!(new(&[0.0; 2], &identity, 1.0, discount), PriorError::Discount(..)), "{discount}");
    }
    for (theta, design, beta) in [
        ([f32::NAN, 0.0], identity, 1.0),
        ([0.0, 1e19], identity, 1.0),
        ([0.0; 2], [1.0, 2.0, 1.0], 1.0),
        ([0.0; 2], [1.0, f32::INFINITY, 1.0], 1.0),
        ([0.0; 2], identity, f32::INFINITY),
    ] {
        assert_eq!(new(&theta, &design, beta, 1.0), PriorError::Values, "{theta:?} {design:?} {beta}");
    }
    // The same checks apply to stored ones.
    let stored = serde_json::to_string(&prior(&disc(0.3, 0.1), 0.7).unwrap()).unwrap();
    assert_eq!(serde_json::from_str::<PriorModel>(&stored).unwrap(), prior(&disc(0.3, 0.1), 0.7).unwrap());
    let invalid = stored.replace("\"discount\":0.7", "\"discount\":1.5");
    assert!(serde_json::from_str::<PriorModel>(&invalid).unwrap_err().to_string().starts_with("the discount must be"));
}
