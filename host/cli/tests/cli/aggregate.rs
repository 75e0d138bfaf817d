//! `fedbandit aggregate`: input files, JSON output and exit codes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

/// Temporary file, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: impl AsRef<[u8]>) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("fedbandit-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(unique);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(name), bytes).unwrap();
        Self(directory.join(name))
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.parent().unwrap());
    }
}

fn fedbandit(options: &str, file: impl AsRef<Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedbandit"));
    command.arg("aggregate").args(options.split_whitespace()).arg(file.as_ref()).output().unwrap()
}

fn report(options: &str, file: &Scratch) -> Value {
    let output = fedbandit(options, file);
    assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 1, "not one line");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn point(options: &str, file: &Scratch) -> Vec<f64> {
    serde_json::from_value(report(options, file)["point"].clone()).unwrap()
}

/// Asserts the exit code, a sentence on stderr, and an empty stdout.
fn refuses(options: &str, file: impl AsRef<Path>, code: i32, sentence: &str) {
    let output = fedbandit(options, file);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{options}: {stderr}");
    assert!(stderr.contains(sentence), "{options}: {stderr:?} lacks {sentence:?}");
    assert!(output.stdout.is_empty() && (code == 2 || stderr.lines().count() == 1), "{stderr}");
}

fn data_error(name: &str, bytes: impl AsRef<[u8]>, sentence: &str) {
    refuses("--rule mean", &Scratch::new(name, bytes), 65, &format!("{name}: {sentence}"));
}

/// A .npy file by the format's definition: magic, version, header length, header, values.
fn npy(version: u8, header: &str, values: &[f64]) -> Vec<u8> {
    let header = format!("{header:<117}\n");
    let mut bytes = [b"\x93NUMPY", &[version, 0][..]].concat();
    let length = header.len() as u32;
    bytes.extend(&length.to_le_bytes()[..if version == 1 { 2 } else { 4 }]);
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

fn header(descr: &str, fortran: &str, shape: &str) -> String {
    format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}")
}

fn matrix(shape: &str) -> String {
    header("'<f8'", "False", shape)
}

/// Nine points around (1, 1) and one far away.
fn ten() -> Scratch {
    let near = ["1,1", "0,1", "2,1", "1,0", "1,2", "0,0", "2,2", "0,2", "2,0"];
    Scratch::new("ten.csv", format!("x,y\n{}\n1000,1000\n", near.join("\n")))
}

#[test]
fn each_rule_returns_its_aggregate() {
    let file = ten();
    assert_eq!(point("--rule mean", &file), [100.9, 100.9]);
    assert_eq!(point("--rule coordinate-median", &file), [1.0, 1.0]);
    assert_eq!(point("--rule trimmed-mean --corrupt 0.1", &file), [9.0 / 8.0; 2]);
    assert_eq!(point("--rule krum --corrupt 0.1", &file), [1.0, 1.0]);
    assert_eq!(point("--rule multi-krum --corrupt 0.1", &file), [1.0, 1.0]);
    let mean = point("--rule median-of-means --groups 1", &file);
    assert!(mean.iter().all(|x| (x - 100.9).abs() < 1e-9), "{mean:?}");
    let median = point("--rule geometric-median", &file);
    assert!(median.iter().all(|x| (0.9..1.3).contains(x)), "{median:?}");
    let of_means = point("--rule median-of-means --corrupt 0.1 --seed 3", &file);
    assert!(of_means.iter().all(|x| x.is_finite()));
    assert_eq!(of_means, point("--rule median-of-means --groups 3 --seed 3", &file), "P = 3f");
    assert_ne!(of_means, point("--rule median-of-means --groups 3 --seed 4", &file));
}

#[test]
fn report_keys_are_in_order() {
    let file = Scratch::new("points.csv", "0,0\n3,4\nnan,1\ninf,1\n");
    let text = String::from_utf8(fedbandit("--rule mean", &file).stdout).unwrap();
    let keys = [
        "rule",
        "n",
        "p",
        "point",
        "objective",
        "certified_gap",
        "passes",
        "cpu_seconds",
        "rejected_rows",
        "version",
        "config",
    ];
    let positions = keys.map(|key| text.find(&format!("\"{key}\":")).unwrap());
    assert!(positions.is_sorted());
    let report = report("--rule mean", &file);
    assert_eq!(report.as_object().unwrap().len(), keys.len());
    assert_eq!(
        [&report["rule"], &report["n"], &report["p"], &report["passes"]],
        [&json!("mean"), &json!(4), &json!(2), &json!(1)]
    );
    assert_eq!(report["rejected_rows"], json!(2));
    assert!(report["certified_gap"].as_f64().unwrap() <= report["objective"].as_f64().unwrap() * (1.0 + 1e-6));
    assert_eq!(report["point"], json!([0.75, 1.0]));
    assert!(report["cpu_seconds"].as_f64().unwrap() >= 0.0);
    assert!(report["version"].as_str().unwrap().starts_with(env!("CARGO_PKG_VERSION")));
}

#[test]
fn report_config_has_defaults_and_omits_unused_options() {
    let file = Scratch::new("points.csv", "0\n1\n2\n3\n");
    let config = |options: &str| {
        let mut config = report(options, &file)["config"].clone();
        assert!(config["file"].as_str().unwrap().ends_with("points.csv"));
        config["file"] = Value::Null;
        config
    };
    let none = Value::Null;
    assert_eq!(
        config("--rule median-of-means --groups 2"),
        json!({"file": none, "rule": "median-of-means", "tolerance": "0.000000001", "groups": 2, "seed": 0, "corrupt": none})
    );
    assert_eq!(
        config("--rule trimmed-mean --corrupt 0.25"),
        json!({"file": none, "rule": "trimmed-mean", "tolerance": none, "groups": none, "seed": none, "corrupt": 0.25})
    );
    assert_eq!(config("--rule geometric-median --tolerance abs:0.5")["tolerance"], "abs:0.5");
}

#[test]
fn numbers_round_trip_exactly() {
    let values = [0.1, 1e300, -5e-324, 1.0 / 3.0, f64::MIN_POSITIVE, 123_456_789.123_456_78];
    let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let csv = Scratch::new("row.csv", values.map(|value| format!("{value:e}")).join(","));
    assert_eq!(bits(&point("--rule coordinate-median", &csv)), bits(&values));
    let npy = Scratch::new("row.npy", npy(1, &matrix("(1, 6)"), &values));
    assert_eq!(bits(&point("--rule coordinate-median", &npy)), bits(&values));
}

#[test]
fn csv_header_comments_and_blank_lines_are_skipped() {
    let text = "\u{feff}# made by hand\n\n a , b \r\n 1 , 2 \r\n\n3,4 # the last\n";
    assert_eq!(point("--rule mean", &Scratch::new("points.csv", text)), [2.0, 3.0]);
    assert_eq!(point("--rule mean", &Scratch::new("POINTS.CSV", "1\n2\n6")), [3.0]);
}

#[test]
fn npy_versions_and_memory_orders_are_read() {
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 9.0];
    for version in 1..=3 {
        let file = Scratch::new("a.npy", npy(version, &matrix("(2, 3)"), &values));
        assert_eq!(point("--rule mean", &file), [2.5, 3.5, 6.0]);
        let file = Scratch::new("a.npy", npy(version, &header("'<f8'", "True", "(3, 2)"), &values));
        assert_eq!(point("--rule mean", &file), [2.0, 6.0]);
    }
    let reordered = "{ 'shape':(2,3),'fortran_order':False ,'descr':'<f8'}";
    assert_eq!(point("--rule mean", &Scratch::new("a.npy", npy(1, reordered, &values))), [2.5, 3.5, 6.0]);
}

/// `numpy.save` of NumPy 2.4.6: [[1.5, -2.0], [0.1, 1e300], [nan, 3.0]].
const BY_NUMPY: &[u8] = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), }\
    \x20                                                         \n\
    \x00\x00\x00\x00\x00\x00\xf8?\x00\x00\x00\x00\x00\x00\x00\xc0\x9a\x99\x99\x99\x99\x99\xb9?\
    \x9cu\x00\x88<\xe47~\x00\x00\x00\x00\x00\x00\xf8\x7f\x00\x00\x00\x00\x00\x00\x08@";

/// `numpy.save` of `numpy.asfortranarray([[1., 2., 3.], [4., 5., 6.]])`.
const BY_NUMPY_FORTRAN: &[u8] = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3), }\
    \x20                                                          \n\
    \x00\x00\x00\x00\x00\x00\xf0?\x00\x00\x00\x00\x00\x00\x10@\x00\x00\x00\x00\x00\x00\x00@\
    \x00\x00\x00\x00\x00\x00\x14@\x00\x00\x00\x00\x00\x00\x08@\x00\x00\x00\x00\x00\x00\x18@";

#[test]
fn files_written_by_numpy_are_read() {
    assert_eq!((BY_NUMPY.len(), BY_NUMPY_FORTRAN.len()), (176, 176));
    let report = report("--rule coordinate-median", &Scratch::new("a.npy", BY_NUMPY));
    assert_eq!((&report["point"], &report["rejected_rows"]), (&json!([0.1, 0.0]), &json!(1)));
    assert_eq!(point("--rule mean", &Scratch::new("f.npy", BY_NUMPY_FORTRAN)), [2.5, 3.5, 4.5]);
}

#[test]
fn decimal_shares_are_exact() {
    // 0.29·100 is below 29 in f64; with f = 28 the trimmed mean would not be 1.
    let rows: Vec<_> = (0..100).map(|i| if i < 29 { "100" } else { "1" }).collect();
    let file = Scratch::new("points.csv", rows.join("\n"));
    assert_eq!(point("--rule trimmed-mean --corrupt 0.29", &file), [1.0]);
    assert_ne!(point("--rule trimmed-mean --corrupt 0.28", &file), [1.0]);
}

#[test]
fn unsuitable_options_are_rejected() {
    let file = ten();
    for rule in ["trimmed-mean", "krum", "multi-krum"] {
        refuses(&format!("--rule {rule}"), &file, 2, &format!("{rule} requires --corrupt SHARE"));
        refuses(&format!("--rule {rule} --corrupt 0.1 --seed 1"), &file, 2, &format!("{rule} does not use --seed"));
    }
    for (options, sentence) in [
        ("", "--rule"),
        ("--rule average", "invalid value 'average'"),
        ("--rule mean --tolerance 1e-3", "mean does not use --tolerance"),
        ("--rule coordinate-median --corrupt 0.1", "coordinate-median does not use --corrupt"),
        ("--rule geometric-median --groups 2", "geometric-median does not use --groups"),
        ("--rule median-of-means", "median-of-means requires --corrupt SHARE or --groups P"),
        ("--rule median-of-means --groups 3 --corrupt 0.1", "cannot be used with"),
        ("--rule median-of-means --groups 0", "invalid value '0'"),
        ("--rule krum --corrupt 0.5", "expected a number from 0 to below 0.5"),
        ("--rule krum --corrupt=-0.1", "expected a number from 0 to below 0.5"),
        ("--rule krum --corrupt nan", "expected a number from 0 to below 0.5"),
        ("--rule geometric-median --tolerance 0", "expected a positive number"),
        ("--rule geometric-median --tolerance abs:x", "expected a positive number"),
        ("--rule geometric-median --tolerance inf", "expected a positive number"),
    ] {
        refuses(options, &file, 2, sentence);
    }
    refuses("--rule mean", &Scratch::new("points.txt", "1\n"), 2, "FILE must end in .npy or .csv");
    assert!(point("--rule geometric-median --tolerance abs:1e-6", &file).iter().all(|x| x.is_finite()));
}

#[test]
fn too_many_corrupted_points_are_rejected() {
    let file = ten();
    refuses("--rule krum --corrupt 0.4", &file, 65, "krum is undefined for 10 points, 4 of them corrupted");
    refuses(
        "--rule median-of-means --corrupt 0.3",
        &file,
        65,
        "at most a quarter of the points corrupted, got 3 of 10",
    );
    refuses(
        "--rule median-of-means --groups 11",
        &file,
        65,
        "cannot split 10 points into 11 groups; expected from 1 to 10",
    );
}

#[test]
fn invalid_csv_is_reported_with_its_line() {
    data_error("a.csv", "", "no line of numbers found");
    data_error("a.csv", "# nothing\n\n", "no line of numbers found");
    data_error("a.csv", "x,y\n", "no points to aggregate");
    data_error("a.csv", "x,y\n1,2\n\n3\n", "line 4: expected 2 field(s) as in the lines before, found 1");
    data_error("a.csv", "x,y\n1,2,3\n", "line 2: expected 2 field(s) as in the lines before, found 3");
    data_error("a.csv", "1,2\n3,four\n", "line 2: field 2: \"four\" is not a number");
    data_error("a.csv", "1,\n", "line 1: field 2: \"\" is not a number");
    data_error("a.csv", b"1\n\xff\x1b[2J\n", "line 2: field 1: \"\u{fffd}\\u{1b}[2J\" is not a number");
}

#[test]
fn invalid_npy_is_reported_with_its_defect() {
    let values = [1.0, 2.0, 3.0, 4.0];
    let good = npy(1, &matrix("(2, 2)"), &values);
    data_error("a.npy", "", "truncated .npy file");
    data_error("a.npy", "1,2\n3,4\n", "not a .npy file: it does not begin with");
    data_error("a.npy", &good[..9], "truncated .npy file");
    data_error("a.npy", &good[..40], "header must be a dictionary");
    data_error("a.npy", &good[..good.len() - 1], "header declares 2 × 2 values of 8 bytes, but 31 bytes follow");
    data_error("a.npy", [&good[..], b"\0"].concat(), "header declares 2 × 2 values of 8 bytes, but 33 bytes follow");
    data_error("a.npy", npy(4, &matrix("(2, 2)"), &values), "unsupported .npy version 4.0; expected 1.0, 2.0 or 3.0");
    data_error("a.npy", npy(1, &matrix("(4,)"), &values), "unsupported array of 1 dimension(s)");
    data_error("a.npy", npy(1, &matrix("()"), &values[..1]), "unsupported array of 0 dimension(s)");
    data_error("a.npy", npy(1, &matrix("(1, 2, 2)"), &values), "unsupported array of 3 dimension(s)");
    data_error("a.npy", npy(1, &matrix("(0, 2)"), &[]), "no points to aggregate");
    data_error("a.npy", npy(1, &matrix("(2, 0)"), &[]), "points must have at least one coordinate");
    for descr in ["'<f4'", "'>f8'", "'|O'", "'<i8'", "[('x', '<f8'), ('y', '<f8')]"] {
        let sentence = format!("unsupported value type {descr}; expected little-endian float64");
        data_error("a.npy", npy(1, &header(descr, "False", "(2, 2)"), &values), &sentence);
    }
}

#[test]
fn npy_header_with_false_size_is_rejected() {
    let promises = "header declares";
    for shape in ["(4611686018427387904, 4)", "(2305843009213693952, 1)", "(1000000000000, 3)"] {
        data_error("a.npy", npy(1, &matrix(shape), &[]), promises);
    }
    let mut long = npy(2, &matrix("(1, 1)"), &[1.0]);
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    data_error("a.npy", long, "header of 4294967295 bytes exceeds the limit of 10000");
    for header in [
        "",
        "{",
        "{}",
        "{'descr': '<f8', 'fortran_order': False}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1), 'more': 1}",
        "{'descr': '<f8', 'fortran_order': 0, 'shape': (1, 1)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1 1)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 1)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1)} + 1",
        "{'descr': '\x1b[2J', 'fortran_order': False, 'shape': (1, 1)}",
    ] {
        data_error("a.npy", npy(1, header, &[1.0]), "header must be a dictionary of descr, fortran_order and shape");
    }
}

#[test]
fn unreadable_files_exit_with_74() {
    let file = Scratch::new("a.csv", "1\n");
    refuses("--rule mean", file.0.with_file_name("missing.npy"), 74, "missing.npy: No such file or directory");
    let directory = file.0.with_file_name("directory.csv");
    fs::create_dir(&directory).unwrap();
    refuses("--rule mean", directory, 74, "directory.csv: Is a directory");
}

#[test]
fn closed_stdout_is_not_an_error() {
    let file = Scratch::new("wide.csv", vec!["1.5"; 200_000].join(","));
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedbandit"));
    command.args(["aggregate", "--rule", "mean"]).arg(&file.0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn help_documents_rules_output_and_exit_codes() {
    let output = Command::new(env!("CARGO_BIN_EXE_fedbandit")).args(["aggregate", "--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for word in
        ["geometric-median:", "multi-krum:", "Examples:", "certified_gap", "rejected_rows", "Exit codes:", "abs:EPS"]
    {
        assert!(text.contains(word), "{word}");
    }
}
