//! Families of rows that are hard cases for a geometric median.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;

pub(crate) use crate::uniform::{below, uniform};

/// Generator of n rows of p numbers.
pub(crate) type Make = Box<dyn Fn(&mut Pcg64, usize, usize) -> Vec<f64>>;

/// Returns an approximately normal number: a sum of uniform ones, with the same bits on every platform.
pub(crate) fn normal(rng: &mut Pcg64) -> f64 {
    (0..12).map(|_| uniform(rng)).sum::<f64>() - 6.0
}

pub(crate) fn normals(rng: &mut Pcg64, count: usize) -> Vec<f64> {
    (0..count).map(|_| normal(rng)).collect()
}

pub(crate) fn shuffle(rng: &mut Pcg64, values: Vec<f64>, p: usize) -> Vec<f64> {
    let mut rows: Vec<&[f64]> = values.chunks_exact(p).collect();
    for i in (1..rows.len()).rev() {
        rows.swap(i, below(rng, i + 1));
    }
    rows.concat()
}

fn unit(rng: &mut Pcg64, p: usize) -> Vec<f64> {
    let v = normals(rng, p);
    let length = v.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-3);
    v.iter().map(|x| x / length).collect()
}

/// Normal rows with a share of them replaced, then shuffled.
fn replaced(share: f64, with: impl Fn(&mut Pcg64, &mut [f64]) + 'static) -> Make {
    Box::new(move |rng, n, p| {
        let mut values = normals(rng, n * p);
        let count = (share * n as f64) as usize;
        values.chunks_exact_mut(p).take(count).for_each(|row| with(rng, row));
        shuffle(rng, values, p)
    })
}

/// Normal rows with a share of them placed around one common point, then shuffled.
fn colluding(share: f64, distance: f64, spread: f64) -> Make {
    Box::new(move |rng, n, p| {
        let mut values = normals(rng, n * p);
        let point: Vec<f64> = unit(rng, p).iter().map(|x| x * distance).collect();
        for row in values.chunks_exact_mut(p).take((share * n as f64) as usize) {
            row.iter_mut().zip(&point).for_each(|(x, point)| *x = point + spread * normal(rng));
        }
        shuffle(rng, values, p)
    })
}

/// Normal rows with a minority far out, either in individual directions or in a common one.
fn outliers(magnitude: f64) -> Make {
    Box::new(move |rng, n, p| {
        let mut values = normals(rng, n * p);
        let count = below(rng, n.div_ceil(2));
        let common = unit(rng, p);
        let together = rng.next_u32() % 2 == 0;
        for row in values.chunks_exact_mut(p).take(count) {
            let direction = if together { common.clone() } else { unit(rng, p) };
            row.iter_mut().zip(direction).for_each(|(x, d)| *x = magnitude * d);
        }
        shuffle(rng, values, p)
    })
}

/// Rows of another family, shifted and scaled.
fn mapped(make: Make, factor: f64, offset: f64) -> Make {
    Box::new(move |rng, n, p| {
        let centre = normals(rng, p);
        let mut values = make(rng, n, p);
        for row in values.chunks_exact_mut(p) {
            row.iter_mut().zip(&centre).for_each(|(x, centre)| *x = (*x + offset * centre) * factor);
        }
        values
    })
}

fn clusters(count: usize, spread: f64) -> Make {
    Box::new(move |rng, n, p| {
        let centres = normals(rng, count * p);
        (0..n).flat_map(|_| near_random_centre(rng, &centres, p, spread)).collect()
    })
}

fn near_random_centre(rng: &mut Pcg64, centres: &[f64], p: usize, spread: f64) -> Vec<f64> {
    let i = below(rng, centres.len() / p);
    centres[i * p..(i + 1) * p].iter().map(|x| x + spread * normal(rng)).collect()
}

fn small_integer(rng: &mut Pcg64, most: i32) -> f64 {
    f64::from(below(rng, (2 * most + 1) as usize) as i32 - most)
}

/// Small multiples of an integer vector, which lie exactly on a line, then displaced from it by about `off`.
fn line(off: f64) -> Make {
    Box::new(move |rng, n, p| {
        let along: Vec<f64> = (0..p).map(|_| small_integer(rng, 9)).collect();
        let mut values = Vec::new();
        for _ in 0..n {
            let t = small_integer(rng, 500);
            values.extend(along.iter().map(|x| x * t + off * normal(rng)));
        }
        values
    })
}

/// A row that is the median because pairs of rows around it cancel, displaced by `row_off`.
///
/// `tilt` further rows lie on one side of it. With `blur` the pairs do not cancel exactly.
fn centred(row_off: f64, tilt: usize, blur: f64) -> Make {
    Box::new(move |rng, n, p| {
        let centre: Vec<f64> = (0..p).map(|_| small_integer(rng, 9)).collect();
        let mut values: Vec<f64> = unit(rng, p).iter().zip(&centre).map(|(d, c)| c + row_off * d).collect();
        let side: Vec<f64> = (0..p).map(|_| small_integer(rng, 9)).collect();
        for _ in 0..tilt.min(n - 1) {
            let t = 1.0 + small_integer(rng, 4).abs();
            values.extend(centre.iter().zip(&side).map(|(c, d)| c + t * d));
        }
        if n * p > values.len() && (n - values.len() / p) % 2 == 1 {
            values.extend_from_slice(&centre);
        }
        while values.len() < n * p {
            let d: Vec<f64> = (0..p).map(|_| small_integer(rng, 64) / 8.0).collect();
            values.extend(centre.iter().zip(&d).map(|(c, d)| c + d));
            values.extend(centre.iter().zip(&d).map(|(c, d)| c - d + blur * normal(rng)));
        }
        shuffle(rng, values, p)
    })
}

fn cauchy(rng: &mut Pcg64) -> f64 {
    normal(rng) / normal(rng)
}

/// Distances spread over many orders of magnitude, 10^±`decades`.
fn log_uniform(decades: f64) -> Make {
    Box::new(move |rng, n, p| {
        let mut values = Vec::new();
        for _ in 0..n {
            let r = 10.0_f64.powf((2.0 * uniform(rng) - 1.0) * decades);
            values.extend(unit(rng, p).iter().map(|x| x * r));
        }
        values
    })
}

/// Normal rows whose coordinates have different scales.
fn anisotropic(step: f64) -> Make {
    Box::new(move |rng, n, p| (0..n * p).map(|i| normal(rng) * 10.0_f64.powf(-step * (i % p) as f64)).collect())
}

fn plain(value: impl Fn(&mut Pcg64) -> f64 + 'static) -> Make {
    Box::new(move |rng, n, p| (0..n * p).map(|_| value(rng)).collect())
}

fn copies(share: f64) -> Make {
    Box::new(move |rng, n, p| {
        let mut values = normals(rng, n * p);
        let first = values[..p].to_vec();
        values.chunks_exact_mut(p).take((share * n as f64).ceil() as usize).for_each(|row| row.copy_from_slice(&first));
        shuffle(rng, values, p)
    })
}

/// Families whose distances are all of about the same scale.
pub(crate) fn usual() -> Vec<(&'static str, Make)> {
    vec![
        ("normal", plain(normal)),
        ("uniform", plain(uniform)),
        ("clusters", clusters(3, 0.1)),
        ("tight clusters 1e-7", clusters(3, 1e-7)),
        ("tight clusters 1e-12", clusters(4, 1e-12)),
        ("tight cluster 40% 1e-7", colluding(0.4, 0.1, 1e-7)),
        ("tight cluster 40% 1e-12", colluding(0.4, 0.1, 1e-12)),
        ("copies 60%", copies(0.6)),
        ("copies 50%", copies(0.5)),
        ("copies 5%", copies(0.05)),
        ("all equal", copies(1.0)),
        ("few values", clusters(5, 0.0)),
        ("Cauchy", plain(cauchy)),
        ("outliers 1e6", outliers(1e6)),
        ("outliers 1e12", outliers(1e12)),
        ("outliers 1e30", outliers(1e30)),
        ("colluding 49% near", colluding(0.49, 1.0, 0.0)),
        ("colluding 49% at 18", colluding(0.49, 18.0, 0.0)),
        ("colluding 49% at 1e6", colluding(0.49, 1e6, 0.0)),
        ("colluding 49% loosely", colluding(0.49, 5.0, 1e-3)),
        ("colluding 45% inside", colluding(0.45, 0.0, 0.0)),
        ("two points", clusters(2, 0.0)),
        ("two clusters", clusters(2, 0.05)),
        ("near ties", mapped(plain(normal), 1e-9, 1e9)),
        ("line", line(0.0)),
        ("line 1e-6", line(1e-6)),
        ("line 1e-10", line(1e-10)),
        ("line tiny steps", mapped(line(0.0), 1.0 / 1024.0, 0.0)),
        ("offset 1e6", mapped(plain(normal), 1.0, 1e6)),
        ("offset 1e12", mapped(plain(normal), 1.0, 1e12)),
        ("offset 1e15", mapped(plain(normal), 1.0, 1e15)),
        ("median at a row", centred(0.0, 0, 0.0)),
        ("row 1e-3 off", centred(1e-3, 0, 0.0)),
        ("row 1e-9 off", centred(1e-9, 0, 0.0)),
        ("row on the edge", centred(0.0, 1, 0.0)),
        ("row over the edge 1e-3", centred(0.0, 1, 1e-3)),
        ("row over the edge 1e-9", centred(0.0, 1, 1e-9)),
        ("row two sided", centred(1e-9, 2, 1e-9)),
        ("grid", plain(|rng| small_integer(rng, 2))),
        ("coarse grid", plain(|rng| small_integer(rng, 1))),
        ("sphere", Box::new(|rng, n, p| (0..n).flat_map(|_| unit(rng, p)).collect())),
        ("anisotropic", anisotropic(1.0)),
        ("log uniform 3", log_uniform(3.0)),
        ("log uniform 10", log_uniform(10.0)),
        ("one coordinate huge", replaced(0.3, |rng, row| row[0] = 1e14 * normal(rng))),
    ]
}

/// Families with some distances whose squares are out of range, or that span many orders of magnitude.
pub(crate) fn wide() -> Vec<(&'static str, Make)> {
    vec![
        ("outliers 1e150", outliers(1e150)),
        ("outliers 1e155", outliers(1e155)),
        ("outliers 1e200", outliers(1e200)),
        ("outliers 1e300", outliers(1e300)),
        ("outliers at the limit", outliers(f64::MAX)),
        ("tight cluster 45% 1e-30", colluding(0.45, 0.0, 1e-30)),
        ("tight cluster 45% 1e-60", colluding(0.45, 0.0, 1e-60)),
        ("tight cluster 45% 1e-95", colluding(0.45, 0.0, 1e-95)),
        ("tight cluster 45% 1e-145", colluding(0.45, 0.0, 1e-145)),
        ("tight cluster 45% 1e-200", colluding(0.45, 0.0, 1e-200)),
        ("tight cluster 45% 1e-292", colluding(0.45, 0.0, 1e-292)),
        ("log uniform 60", log_uniform(60.0)),
        ("log uniform 150", log_uniform(150.0)),
        ("anisotropic 1e-20", anisotropic(20.0)),
        ("anisotropic 1e-80", anisotropic(80.0)),
        ("scale 1e-99", mapped(plain(normal), 1e-98, 0.0)),
        ("scale 1e99", mapped(clusters(3, 0.1), 1e99, 0.0)),
    ]
}

/// Families where the squares of most distances are out of range.
pub(crate) fn extreme() -> Vec<(&'static str, Make)> {
    let mut all = vec![
        ("log uniform 250", log_uniform(250.0)),
        ("scale 1e-200, outliers", mapped(outliers(1e30), 1e-200, 0.0)),
        ("scale 1e-200, far outliers", mapped(outliers(1e300), 1e-200, 0.0)),
        ("few far rows", far_minority()),
    ];
    for (name, factor) in [
        ("scale 1e-150", 1e-150),
        ("scale 1e-200", 1e-200),
        ("scale 1e-300", 1e-300),
        ("scale 1e-310", 1e-310),
        ("scale 1e-320", 1e-320),
        ("scale 1e150", 1e150),
        ("scale 1e200", 1e200),
        ("scale 1e299", 1e299),
    ] {
        all.push((name, mapped(plain(normal), factor, 0.0)));
        all.push((name, mapped(copies(0.3), factor, 0.0)));
        all.push((name, mapped(clusters(3, 1e-3), factor, 0.0)));
        all.push((name, mapped(centred(0.0, 0, 0.0), factor, 0.0)));
        all.push((name, mapped(centred(0.0, 1, 1e-9), factor, 0.0)));
        all.push((name, mapped(plain(cauchy), factor, 0.0)));
        all.push((name, mapped(anisotropic(2.0), factor, 0.0)));
    }
    all
}

/// Rows around 5, and almost as many at one far point, so that they may be the majority of a sample.
fn far_minority() -> Make {
    Box::new(|rng, n, p| {
        let mut values: Vec<f64> = (0..n * p).map(|_| 5.0 + normal(rng)).collect();
        let far = 10.0_f64.powf(110.0 + 180.0 * uniform(rng));
        values.iter_mut().take((0.49 * n as f64) as usize * p).for_each(|x| *x = far);
        shuffle(rng, values, p)
    })
}
